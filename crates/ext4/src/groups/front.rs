//! How far a preallocation is used, readable without its lock.
//!
//! Blocks are used from the front, in the order of transactions, of which at most two exist at a
//! time: the running and the committing one. So two positions suffice: how far the blocks are used
//! now, and how far they were used when the last transaction that used any of them began to do so.
//! One word holds both and the lower bits of that transaction's number, which are enough to
//! distinguish consecutive transactions. Writers of the word hold the preallocation's lock; a
//! thread that folds uses into the group's bitmap reads it without.
//!
//! Beside the word is a flag: whether a fold has been requested. The owner moves the front first
//! and then requests a fold; the folding thread clears the request first and then reads the front.
//! So if it does not see a move, the mover sees no request, and makes another one.

use pext4_ondisk::Tid;
use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bits of a position: every block number in a group fits.
const POSITION: u32 = 20;
const POSITION_MASK: u64 = (1 << POSITION) - 1;
const TID_MASK: u32 = (1 << (u64::BITS - 2 * POSITION)) - 1;

/// How far a preallocation is used, relative to its group. [Preallocation to write, atomic to read]
pub struct PreallocationFront {
    word: AtomicU64,
    is_fold_requested: AtomicBool,
}

/// The value of a [`PreallocationFront`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The last transaction that used blocks, its lower bits.
    tid: u32,
    /// The front when that transaction began to use blocks.
    before: u32,
    /// The front now.
    now: u32,
}

impl PreallocationFront {
    /// A front at `start`; the blocks before it do not belong to the preallocation.
    pub fn new(start: u32) -> Self {
        let used = Used {
            tid: 0,
            before: start,
            now: start,
        };
        Self {
            word: AtomicU64::new(used.packed()),
            is_fold_requested: AtomicBool::new(false),
        }
    }

    /// Its current value.
    pub fn used(&self) -> Used {
        Used::unpacked(self.word.load(Ordering::SeqCst))
    }

    /// Notes that the running transaction `tid` has used the blocks up to `end`.
    pub fn advance(&self, tid: Tid, end: u32) {
        let used = self.used();
        let tid = tid.0 & TID_MASK;
        let before = if used.tid == tid {
            used.before
        } else {
            used.now
        };
        let used = Used {
            tid,
            before,
            now: end,
        };
        self.word.store(used.packed(), Ordering::SeqCst);
    }

    /// Requests a fold after a move. Returns whether the caller must push the request onto the
    /// group's stack: false if one is pending.
    pub fn request_fold(&self) -> bool {
        !self.is_fold_requested.load(Ordering::SeqCst)
            && !self.is_fold_requested.swap(true, Ordering::SeqCst)
    }

    /// Clears the request for a fold, then returns the current value.
    pub fn begin_fold(&self) -> Used {
        self.is_fold_requested.store(false, Ordering::SeqCst);
        self.used()
    }

    /// Notes that the folding thread keeps the request for a later fold.
    pub fn keep_request(&self) {
        self.is_fold_requested.store(true, Ordering::SeqCst);
    }
}

impl Used {
    /// How far `tid` and earlier transactions have used the blocks.
    pub fn through(self, tid: Tid) -> u32 {
        if self.tid == tid.next().0 & TID_MASK {
            self.before
        } else {
            self.now
        }
    }

    /// How far transactions before the running one, `tid`, have used them.
    pub fn before(self, tid: Tid) -> u32 {
        if self.tid == tid.0 & TID_MASK {
            self.before
        } else {
            self.now
        }
    }

    /// How far all transactions have used them.
    pub fn now(self) -> u32 {
        self.now
    }

    fn packed(self) -> u64 {
        u64::from(self.tid) << (2 * POSITION)
            | u64::from(self.before) << POSITION
            | u64::from(self.now)
    }

    fn unpacked(word: u64) -> Self {
        let position = |bits: u64| u32::try_from(bits & POSITION_MASK).expect("masked");
        Self {
            tid: u32::try_from(word >> (2 * POSITION)).expect("24 bits are left"),
            before: position(word >> POSITION),
            now: position(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PreallocationFront, TID_MASK, Tid};

    #[test]
    fn each_of_two_transactions_sees_what_it_and_earlier_ones_used() {
        for first in [7, TID_MASK, u32::MAX] {
            let (first, second) = (Tid(first), Tid(first).next());
            let front = PreallocationFront::new(100);
            assert_eq!(
                (front.used().through(first), front.used().before(first)),
                (100, 100)
            );
            front.advance(first, 110);
            assert!(front.request_fold(), "none was requested yet");
            front.advance(first, 120);
            assert!(!front.request_fold());
            let used = front.used();
            assert_eq!(
                (used.before(first), used.through(first), used.now()),
                (100, 120, 120)
            );
            assert_eq!(used.before(second), 120);
            assert_eq!(front.begin_fold(), used);
            front.advance(second, 150);
            assert!(front.request_fold(), "after a fold");
            let used = front.used();
            assert_eq!((used.through(first), used.before(second)), (120, 120));
            assert_eq!((used.through(second), used.now()), (150, 150));
        }
    }

    #[test]
    fn positions_of_the_largest_groups_fit() {
        let front = PreallocationFront::new(8 * 65536 - 1);
        front.advance(Tid(u32::MAX), 8 * 65536);
        assert_eq!(front.used().before(Tid(u32::MAX)), 8 * 65536 - 1);
        assert_eq!(front.used().now(), 8 * 65536);
    }
}
