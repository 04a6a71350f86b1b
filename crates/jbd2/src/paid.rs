//! Which blocks a transaction has paid for, of those that several objects share.
//!
//! A credit stands for a block, but an inode is a small part of one: if each of the sixteen inodes
//! of a block were charged, a transaction of new files would be full long before its half of the
//! log is. So each shard remembers the blocks that its handles paid for, as many as it has places;
//! who touches a part of such a block pays nothing. What a shard does not remember, or another one
//! paid, is paid again, which only makes the transaction end earlier.
//!
//! Locking: none. A shard's places are emptied by its first handle of a transaction, before it says
//! whose they are. Two threads of one shard that both do so may lose what the other remembered; a
//! place that was filled in an earlier transaction is never taken for one of this.

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::Sharded;
use pext4_sync::atomic::{AtomicU64, Ordering};

/// Blocks that a shard remembers.
const PLACES: usize = 512;
/// Marks a transaction number as present.
const PRESENT: u64 = 1 << 32;

/// The blocks paid for in the running transaction.
pub(crate) struct PaidBlocks {
    shards: Sharded<Remembered>,
}

struct Remembered {
    /// [atomic] The transaction that the places are of, with [`PRESENT`].
    tid: AtomicU64,
    /// [atomic] One more than the block's number; 0 is empty.
    places: Box<[AtomicU64]>,
}

impl Remembered {
    fn new() -> Self {
        Self {
            tid: AtomicU64::new(0),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn begin(&self, tid: Tid) {
        let tid = PRESENT | u64::from(tid.0);
        if self.tid.load(Ordering::Acquire) == tid {
            return;
        }
        for place in &self.places {
            place.store(0, Ordering::Relaxed);
        }
        self.tid.store(tid, Ordering::Release);
    }
}

impl PaidBlocks {
    pub(crate) fn new() -> Self {
        Self {
            shards: Sharded::new(|_| Remembered::new()),
        }
    }

    /// Whether a handle of this shard, in the running transaction `tid`, has to pay for `block`;
    /// from now on it is paid for.
    pub(crate) fn is_due(&self, tid: Tid, shard: usize, block: BlockNumber) -> bool {
        let remembered = self.shards.get(shard);
        remembered.begin(tid);
        let place = &remembered.places[(block.get() % PLACES as u64) as usize];
        let mark = block.get() + 1;
        let is_due = place.load(Ordering::Relaxed) != mark;
        if is_due {
            place.store(mark, Ordering::Relaxed);
        }
        is_due
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{BlockNumber, PLACES, PaidBlocks, Tid};

    #[test]
    fn a_block_is_paid_for_once_a_transaction_and_shard() {
        let paid = PaidBlocks::new();
        let (one, other) = (BlockNumber(0), BlockNumber(PLACES as u64));
        assert!(paid.is_due(Tid(7), 0, one));
        assert!(!paid.is_due(Tid(7), 0, one));
        assert!(paid.is_due(Tid(7), 0, other), "they have one place");
        assert!(paid.is_due(Tid(7), 0, one), "what is not remembered");
        assert!(paid.is_due(Tid(8), 0, one), "the next transaction");
        assert!(!paid.is_due(Tid(8), 0, one));
        let last = paid.shards.count() - 1;
        if last > 0 {
            assert!(paid.is_due(Tid(8), last, one), "another shard");
        }
    }
}
