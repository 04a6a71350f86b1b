//! The volume's sums: free clusters, free inodes, directories; and how much of the free space an
//! ordinary request may take.
//!
//! Every sum is a sharded counter, since each operation changes one. Comparing a sum with the
//! reserve would read all shards, so the result is cached: `slack` is what one shard may grant
//! before it must sum again, chosen such that all shards together grant at most half of what is
//! available. What others take counts as granted as well. All shards read `slack`. So it is
//! rounded down to a power of two and stored only when that changes: where little is free, sums are
//! frequent and each of them differs from the last.

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::{CachePadded, Counter, Sharded};

use crate::options::Frees;

/// The sums of a volume.
pub struct Counts {
    /// Clusters that are free in the bitmaps, or freed and not folded yet. Preallocated ones count
    /// as free.
    pub free_clusters: Counter,
    /// Free inodes.
    pub free_inodes: Counter,
    /// Directories.
    pub directories: Counter,
    /// Clusters freed by transactions that are not durable: free, but not allocatable yet.
    pub pending_clusters: Counter,
    /// Incremented whenever space becomes allocatable or a preallocation is discarded: an allocator
    /// that found nothing checks whether it has changed meanwhile (rule D13).
    pub activity: Counter,
    gate: Gate,
}

struct Gate {
    /// Clusters kept for the privileged. [immutable after mount]
    reserved_clusters: u64,
    /// On a cache line of its own: beside it is what every operation reads. [atomic]
    slack: CachePadded<AtomicU64>,
    /// Granted by each shard since it last summed.
    granted: Sharded<AtomicU64>,
}

impl Counts {
    /// The sums of the descriptors, with `reserved_clusters` for privileged requests. Pending frees
    /// are counted by shard only in the setting where nothing else about them is shared.
    pub fn new(
        free_clusters: u64,
        free_inodes: u64,
        directories: u64,
        reserved_clusters: u64,
        frees: Frees,
    ) -> Self {
        let starting_at = |value: u64| {
            let counter = Counter::new();
            counter.add(i64::try_from(value).unwrap_or(i64::MAX));
            counter
        };
        Self {
            free_clusters: starting_at(free_clusters),
            free_inodes: starting_at(free_inodes),
            directories: starting_at(directories),
            pending_clusters: match frees {
                Frees::Listed | Frees::Merged => Counter::with_count(1),
                Frees::Deferred => Counter::new(),
            },
            activity: Counter::new(),
            gate: Gate {
                reserved_clusters,
                slack: CachePadded::new(AtomicU64::new(0)),
                granted: Sharded::new(|_| AtomicU64::new(0)),
            },
        }
    }

    /// How many of `wanted` clusters an ordinary request may have: fewer, or none, if little more
    /// than the reserve is left.
    pub fn grant(&self, wanted: u32) -> u32 {
        let available = self.note_taken(wanted).unwrap_or(u64::MAX);
        u32::try_from(available).map_or(wanted, |available| wanted.min(available))
    }

    /// Notes that a request takes `wanted` clusters, which may be of the reserve. Returns how many
    /// are available besides it, if it was time to sum.
    pub fn note_taken(&self, wanted: u32) -> Option<u64> {
        let gate = &self.gate;
        let granted = gate.granted.local();
        let before = granted.fetch_add(u64::from(wanted), Ordering::Relaxed);
        if before.saturating_add(u64::from(wanted)) <= gate.slack.load(Ordering::Relaxed) {
            return None;
        }
        let available = self.available();
        gate.set_slack(available);
        granted.store(u64::from(wanted), Ordering::Relaxed);
        Some(available)
    }

    /// The free clusters besides the reserve.
    pub fn available(&self) -> u64 {
        sum(&self.free_clusters).saturating_sub(self.gate.reserved_clusters)
    }

    /// Makes every shard sum before it grants anything: much less is available than before.
    pub fn sum_before_next_grant(&self) {
        self.gate.slack.store(0, Ordering::Relaxed);
    }
}

impl Gate {
    /// Stores the slack for `available` clusters, rounded as the head says.
    fn set_slack(&self, available: u64) {
        let shards = u64::try_from(self.granted.count()).unwrap_or(u64::MAX);
        let exact = available / 2 / shards;
        let slack = exact.checked_ilog2().map_or(0, |order| 1 << order);
        if slack != self.slack.load(Ordering::Relaxed) {
            self.slack.store(slack, Ordering::Relaxed);
        }
    }
}

/// A counter's sum, or 0 if it is negative.
pub fn sum(counter: &Counter) -> u64 {
    u64::try_from(counter.sum()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pext4_sync::topology;

    use super::{Counts, Frees, Ordering, sum};

    #[test]
    fn the_reserve_is_never_granted() {
        let counts = Counts::new(10_000, 0, 0, 1_000, Frees::Deferred);
        let mut taken = 0u64;
        let mut turn = 0;
        loop {
            let _pin = topology::pin(turn % 7);
            turn += 1;
            let granted = counts.grant(13);
            counts.free_clusters.add(-i64::from(granted));
            taken += u64::from(granted);
            if granted == 0 {
                break;
            }
        }
        assert_eq!((taken, sum(&counts.free_clusters)), (9_000, 1_000));
        counts.free_clusters.add(5);
        assert_eq!(counts.grant(13), 5);
    }

    /// Root, and the file system's own metadata, take blocks without asking.
    #[test]
    fn nor_is_it_where_others_take_what_is_available() {
        for is_lost in [false, true] {
            let counts = Counts::new(10_000, 0, 0, 1_000, Frees::Deferred);
            let _pin = topology::pin(0);
            assert_eq!(counts.grant(1), 1);
            let mut others = 8_990;
            if is_lost {
                counts.free_clusters.add(-others);
                counts.sum_before_next_grant();
            }
            while !is_lost && others > 0 {
                let _pin = topology::pin(usize::try_from(others % 5).expect("small"));
                let wanted = others.min(31);
                counts.note_taken(u32::try_from(wanted).expect("small"));
                counts.free_clusters.add(-wanted);
                others -= wanted;
            }
            counts.free_clusters.add(-1);
            let granted: u32 = (0..100)
                .map(|shard| {
                    let _pin = topology::pin(shard % 5);
                    let granted = counts.grant(1);
                    counts.free_clusters.add(-i64::from(granted));
                    granted
                })
                .sum();
            assert_eq!((granted, sum(&counts.free_clusters)), (9, 1_000));
        }
    }

    #[test]
    fn the_slack_is_rounded_down_to_a_power_of_two() {
        let gate = Counts::new(0, 0, 0, 0, Frees::Deferred).gate;
        let all = 2 * u64::try_from(gate.granted.count()).expect("a count of shards");
        let slack_after = |each: u64| {
            gate.set_slack(each * all);
            gate.slack.load(Ordering::Relaxed)
        };
        let steps = [100, 150, 201, 202, 201, 402, 403, 404, 0, 1, 2];
        let expected = [64, 128, 128, 128, 128, 256, 256, 256, 0, 1, 2];
        assert_eq!(steps.map(slack_after), expected);
    }
}
