//! How far a preallocation is used, for those who do not hold its lock.
//!
//! Blocks are used from the front, in the order of transactions, and two of these are alive at a time: one that runs
//! and one that commits. So two positions say all that anybody wants to know: how far the blocks are used
//! now, and how far they were when the first handle of the transaction that used them last came. Both and that
//! transaction's number, of which a part is enough to tell two that follow one another apart, are one word. Its
//! writers hold the preallocation's lock; whoever folds uses into the group's bitmap reads it.
//!
//! Beside it is whether somebody will come and fold. Who moves the front asks for that afterwards; who comes
//! takes the request first and looks at the front then. So a move that the one does not see finds no
//! request, and makes another.

use pext4_ondisk::Tid;
use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bits of a position: no group has more blocks.
const POSITION: u32 = 20;
const POSITION_MASK: u64 = (1 << POSITION) - 1;
const TID_MASK: u32 = (1 << (u64::BITS - 2 * POSITION)) - 1;

/// How far a preallocation is used, relative to its group. [Preallocation to write, atomic to read]
pub struct Front {
    word: AtomicU64,
    is_awaited: AtomicBool,
}

/// What a [`Front`] was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The last transaction that used blocks, its lower bits.
    tid: u32,
    /// Where it found the front.
    before: u32,
    /// Where it is now.
    now: u32,
}

impl Front {
    /// One whose blocks are used up to here, by transactions that are no concern of ours.
    pub fn new(start: u32) -> Self {
        let used = Used {
            tid: 0,
            before: start,
            now: start,
        };
        Self {
            word: AtomicU64::new(used.packed()),
            is_awaited: AtomicBool::new(false),
        }
    }

    /// What it is now.
    pub fn used(&self) -> Used {
        Used::unpacked(self.word.load(Ordering::SeqCst))
    }

    /// Blocks up to `end` are used, by transaction `tid`, which runs.
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

    /// After a move: whether somebody is to be asked to fold it.
    pub fn asks(&self) -> bool {
        !self.is_awaited.load(Ordering::SeqCst) && !self.is_awaited.swap(true, Ordering::SeqCst)
    }

    /// Somebody has come: what it is now, and asking begins anew.
    pub fn visit(&self) -> Used {
        self.is_awaited.store(false, Ordering::SeqCst);
        self.used()
    }

    /// Who has come will come again.
    pub fn will_visit(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }
}

impl Used {
    /// How far blocks are used by `tid` and the transactions before it.
    pub fn through(self, tid: Tid) -> u32 {
        if self.tid == tid.next().0 & TID_MASK {
            self.before
        } else {
            self.now
        }
    }

    /// How far by those before `tid`, which runs.
    pub fn before(self, tid: Tid) -> u32 {
        if self.tid == tid.0 & TID_MASK {
            self.before
        } else {
            self.now
        }
    }

    /// How far in all.
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
    use super::{Front, TID_MASK, Tid};

    #[test]
    fn each_of_two_transactions_sees_what_it_and_earlier_ones_used() {
        for first in [7, TID_MASK, u32::MAX] {
            let (first, second) = (Tid(first), Tid(first).next());
            let front = Front::new(100);
            assert_eq!(
                (front.used().through(first), front.used().before(first)),
                (100, 100)
            );
            front.advance(first, 110);
            assert!(front.asks(), "nobody was asked yet");
            front.advance(first, 120);
            assert!(!front.asks());
            let used = front.used();
            assert_eq!(
                (used.before(first), used.through(first), used.now()),
                (100, 120, 120)
            );
            assert_eq!(used.before(second), 120);
            let visited = front.visit();
            assert_eq!(visited, used);
            front.advance(second, 150);
            assert!(front.asks(), "after a visit");
            let used = front.used();
            assert_eq!((used.through(first), used.before(second)), (120, 120));
            assert_eq!((used.through(second), used.now()), (150, 150));
        }
    }

    #[test]
    fn positions_of_the_largest_groups_fit() {
        let front = Front::new(8 * 65536 - 1);
        front.advance(Tid(u32::MAX), 8 * 65536);
        assert_eq!(front.used().before(Tid(u32::MAX)), 8 * 65536 - 1);
        assert_eq!(front.used().now(), 8 * 65536);
    }
}
