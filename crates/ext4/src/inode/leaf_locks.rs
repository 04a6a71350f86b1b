//! Locks of the leaves of one directory.
//!
//! There are about as many as the directory has blocks, up to a limit, and a leaf's is chosen by its block. A directory
//! that outgrows its locks gets others; it grows under its exclusive lock, when nobody uses any. So their memory is a
//! part of the directory's own. Whoever changes a name of a leaf holds the directory's lock shared and the leaf's
//! exclusively, the latter for the change alone.
//! What is looked at without the lock is made sure of by a count beside it, which grows under the
//! lock when the leaf *has been* changed, and before the links of the name's inode do:
//!
//! - Who looked at the leaf, then took the lock, and sees the count as it was before it looked, need
//!   not look again.
//! - A lookup that finds a name and then takes a hold of its inode must be sure that the name was
//!   still there when it had the hold, or the inode may have ended meanwhile. If the count of
//!   removals is as it was before it looked, it is sure. (A count that grew before the change would
//!   not do: the lookup could begin between the two.)

use std::sync::OnceLock;

use pext4_ondisk::LogicalBlock;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard, Sharded, topology};

/// Locks for each shard: makers of files in one directory meet where two leaves have one lock.
const FOR_EACH_SHARD: usize = 8;
/// One removal, as it is counted; names entered that fill the lower half look like one, which costs
/// somebody a second look.
const REMOVAL: u64 = 1 << 32;
/// Locks of the smallest directories and of all large ones; powers of two.
const FEWEST: u32 = 4;
const MOST: u32 = 512;

/// The locks.
#[derive(Default)]
pub struct LeafLocks {
    /// From the fewest, each as many again as the one before.
    levels: [OnceLock<Sharded<Stripe>>; (MOST / FEWEST).ilog2() as usize + 1],
}

struct Stripe {
    lock: Mutex<()>,
    /// Names entered in the lower half, names removed in the upper.
    changes: AtomicU64,
}

/// One leaf, and those that share its lock.
#[derive(Clone, Copy)]
pub struct LeafLock<'a> {
    stripe: &'a Stripe,
}

/// One leaf, locked.
pub struct LeafGuard<'a> {
    stripe: &'a Stripe,
    _guard: MutexGuard<'a, ()>,
}

impl LeafLocks {
    /// A leaf, by its block in the directory, which has `blocks` while the caller holds its lock.
    pub fn leaf(&self, block: LogicalBlock, blocks: u32) -> LeafLock<'_> {
        let locks = blocks.clamp(FEWEST, MOST).next_power_of_two();
        let level = &self.levels[(locks / FEWEST).ilog2() as usize];
        let stripes = level.get_or_init(|| stripes(locks as usize));
        let place = block.get() as usize & (stripes.count() - 1);
        LeafLock {
            stripe: stripes.get(place),
        }
    }
}

fn stripes(most: usize) -> Sharded<Stripe> {
    let count = (FOR_EACH_SHARD * topology::shard_count()).min(most);
    Sharded::with_count(count, |_| Stripe {
        lock: Mutex::new(Class::DirectoryLeaf, ()),
        changes: AtomicU64::new(0),
    })
}

impl<'a> LeafLock<'a> {
    /// Waits for the leaf.
    pub fn lock(self) -> LeafGuard<'a> {
        LeafGuard {
            stripe: self.stripe,
            _guard: self.stripe.lock.lock_spinning(),
        }
    }

    /// How many changes were made so far.
    pub fn changes(self) -> u64 {
        self.stripe.changes.load(Ordering::SeqCst)
    }

    /// The same for who will change the leaf: as a write, so that the line is its core's own when the
    /// lock is taken. To read it and then to write it is two ways.
    pub fn changes_for_update(self) -> u64 {
        self.stripe.changes.fetch_add(0, Ordering::SeqCst)
    }

    /// How many names were removed so far.
    pub fn removals(self) -> u64 {
        self.changes() / REMOVAL
    }
}

impl LeafGuard<'_> {
    /// Says that a name was entered.
    pub fn note_entry(&self) {
        self.stripe.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Says that a name was removed. Its inode has its links still.
    pub fn note_removal(&self) {
        // In one order with the count of holds: a lookup sees the one, or the end the other.
        self.stripe.changes.fetch_add(REMOVAL, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A leaf whose content is one number, zero for no name.

    use std::sync::Arc;

    use pext4_ondisk::LogicalBlock;
    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::thread;

    use super::LeafLocks;

    struct Directory {
        leaves: LeafLocks,
        content: AtomicU64,
    }

    impl Directory {
        fn new(content: u64) -> Arc<Self> {
            let leaves = LeafLocks::default();
            // That they are made once is not what is looked at here.
            let _ = leaves.leaf(LogicalBlock(1), 2);
            Arc::new(Self {
                leaves,
                content: AtomicU64::new(content),
            })
        }

        /// Looks, locks, looks again if it has to, and changes `from` to `to`.
        fn change(&self, from: u64, to: u64) -> bool {
            let leaf = self.leaves.leaf(LogicalBlock(1), 2);
            let changes = leaf.changes_for_update();
            let seen = self.content.load(Ordering::Acquire);
            let guard = leaf.lock();
            let now = self.content.load(Ordering::Acquire);
            if leaf.changes() == changes {
                assert_eq!(now, seen, "what was seen is still so");
            }
            if now != from {
                return false;
            }
            self.content.store(to, Ordering::Release);
            if to == 0 {
                guard.note_removal();
            } else {
                guard.note_entry();
            }
            true
        }
    }

    #[test]
    fn an_unchanged_count_means_an_unchanged_leaf() {
        pext4_sync::model(|| {
            let directory = Directory::new(0);
            let beside = Arc::clone(&directory);
            let other = thread::spawn("other", move || beside.change(0, 2));
            let mine = directory.change(0, 1);
            let others = other.join().expect("it does not panic");
            assert!(mine != others, "one of them enters the name");
        });
    }

    #[test]
    fn a_lookup_that_sees_no_removal_held_a_name_that_was_there() {
        pext4_sync::model(|| {
            let directory = Directory::new(1);
            let ended = Arc::new(AtomicU64::new(0));
            let (beside, end) = (Arc::clone(&directory), Arc::clone(&ended));
            let other = thread::spawn("other", move || {
                assert!(beside.change(1, 0));
                end.store(1, Ordering::SeqCst);
            });
            let leaf = directory.leaves.leaf(LogicalBlock(1), 2);
            let removals = leaf.removals();
            let found = directory.content.load(Ordering::Acquire) == 1;
            let had_ended = ended.load(Ordering::SeqCst) == 1;
            if found && leaf.removals() == removals {
                assert!(!had_ended, "the inode was there when it was held");
            }
            other.join().expect("it does not panic");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::LogicalBlock;

    use super::LeafLocks;

    #[test]
    fn a_small_directory_has_few_locks() {
        let leaves = LeafLocks::default();
        let lock =
            |block, blocks| std::ptr::from_ref(leaves.leaf(LogicalBlock(block), blocks).stripe);
        assert_eq!(lock(1, 3), lock(1, 3));
        assert_ne!(lock(1, 3), lock(2, 3));
        assert!(leaves.levels[1..].iter().all(|level| level.get().is_none()));
        assert_ne!(lock(1, 5), lock(1, 3), "it has outgrown those");
        assert_ne!(lock(1, 1 << 31), lock(1, 5));
        let counts = leaves.levels.iter().filter_map(|level| level.get());
        let counts: Vec<_> = counts.map(|stripes| stripes.count()).collect();
        assert!(
            counts[0] <= 4 && counts[1] <= 8 && counts[2] <= 512,
            "{counts:?}"
        );
    }
}
