//! The volume's sums: free blocks, free inodes, directories; and how much of the free space an
//! ordinary request may take.
//!
//! Every sum is a sharded counter, since each operation changes one. Comparing a sum with the
//! reserve would read all shards, so the answer is cached: `slack` is what one shard may hand out
//! before anyone must sum again, such that all shards together stay below half of what there is.

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::{Counter, Sharded};

use crate::options::Frees;

/// The sums of a volume.
pub struct Counts {
    /// Free in the sense of the bitmaps, or freed and on the way there. Preallocated blocks count.
    pub free_blocks: Counter,
    /// Free inodes.
    pub free_inodes: Counter,
    /// Directories.
    pub directories: Counter,
    /// Blocks freed by transactions that are not durable: free, but not allocatable yet.
    pub pending: Counter,
    /// Goes up whenever space becomes allocatable or a preallocation is discarded: an allocator
    /// that found nothing looks whether it moved meanwhile (rule D13).
    pub activity: Counter,
    gate: Gate,
}

struct Gate {
    /// Blocks kept for the privileged. [immutable after mount]
    reserved: u64,
    slack: AtomicU64,
    /// Handed out by each shard since it last summed.
    granted: Sharded<AtomicU64>,
}

impl Counts {
    /// The sums as the descriptors give them, `reserved` blocks of them not for everyone. Pending
    /// frees are counted by shard only where nothing else about them is shared.
    pub fn new(
        free_blocks: u64,
        free_inodes: u64,
        directories: u64,
        reserved: u64,
        frees: Frees,
    ) -> Self {
        let starting_at = |value: u64| {
            let counter = Counter::new();
            counter.add(i64::try_from(value).unwrap_or(i64::MAX));
            counter
        };
        Self {
            free_blocks: starting_at(free_blocks),
            free_inodes: starting_at(free_inodes),
            directories: starting_at(directories),
            pending: match frees {
                Frees::Listed | Frees::Merged => Counter::with_count(1),
                Frees::Deferred => Counter::new(),
            },
            activity: Counter::new(),
            gate: Gate {
                reserved,
                slack: AtomicU64::new(0),
                granted: Sharded::new(|_| AtomicU64::new(0)),
            },
        }
    }

    /// How many of `wanted` blocks an ordinary request may have: fewer, or none, where only the
    /// reserve is left.
    pub fn grant(&self, wanted: u32) -> u32 {
        let gate = &self.gate;
        let granted = gate.granted.local();
        let before = granted.fetch_add(u64::from(wanted), Ordering::Relaxed);
        if before.saturating_add(u64::from(wanted)) <= gate.slack.load(Ordering::Relaxed) {
            return wanted;
        }
        let available = sum(&self.free_blocks).saturating_sub(gate.reserved);
        let shards = u64::try_from(gate.granted.count()).unwrap_or(u64::MAX);
        gate.slack.store(available / 2 / shards, Ordering::Relaxed);
        granted.store(u64::from(wanted), Ordering::Relaxed);
        u32::try_from(available).map_or(wanted, |available| wanted.min(available))
    }
}

/// A counter's sum, never below zero.
pub fn sum(counter: &Counter) -> u64 {
    u64::try_from(counter.sum()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pext4_sync::topology;

    use super::{Counts, Frees, sum};

    #[test]
    fn the_reserve_is_never_handed_out() {
        let counts = Counts::new(10_000, 0, 0, 1_000, Frees::Deferred);
        let mut taken = 0u64;
        let mut turn = 0;
        loop {
            let _pin = topology::pin(turn % 7);
            turn += 1;
            let granted = counts.grant(13);
            counts.free_blocks.add(-i64::from(granted));
            taken += u64::from(granted);
            if granted == 0 {
                break;
            }
        }
        assert_eq!((taken, sum(&counts.free_blocks)), (9_000, 1_000));
        counts.free_blocks.add(5);
        assert_eq!(counts.grant(13), 5);
    }
}
