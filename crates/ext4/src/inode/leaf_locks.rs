//! Locks of the leaves of one directory.
//!
//! A directory has about as many of these locks as blocks, up to a limit; the block of a leaf
//! selects its lock, so leaves may share one. When a directory outgrows its locks, which happens
//! under its exclusive lock when no thread uses one, it gets a larger set. So their memory stays
//! proportional to the directory's. A thread that changes a name in a leaf holds the directory's
//! lock shared and, during the change, the leaf's lock exclusively.
//!
//! A counter next to each lock lets other threads validate what they read without the lock. It is
//! incremented under the lock *after* the leaf has changed, and before the link count of the name's
//! inode changes:
//!
//! - If a thread reads the leaf, then takes the lock and finds the count unchanged since before it
//!   read the leaf, it does not have to read the leaf again.
//! - A lookup that finds a name and then holds its inode must be sure that the name still existed
//!   when it had the hold, since otherwise the inode may have been freed meanwhile. It is sure if
//!   the count of removals is unchanged since before it read the leaf. (A counter incremented
//!   before the change would not do: the lookup could start between the increment and the change.)

use std::sync::OnceLock;

use pext4_ondisk::LogicalBlock;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard, Sharded, topology};

/// Locks per shard. Threads that create files in one directory contend if their leaves share a
/// lock.
const FOR_EACH_SHARD: usize = 8;
/// What one removal adds to the counter. Additions of names that overflow the lower half count as a
/// removal, which only costs some reader a second look.
const REMOVAL: u64 = 1 << 32;
/// Number of locks of the smallest directories and of all large ones; powers of two.
const FEWEST: u32 = 4;
const MOST: u32 = 512;

/// The locks of one directory.
#[derive(Default)]
pub struct LeafLocks {
    /// Sets of locks from the smallest; each has twice as many as the one before.
    levels: [OnceLock<Sharded<Stripe>>; (MOST / FEWEST).ilog2() as usize + 1],
}

struct Stripe {
    lock: Mutex<()>,
    /// Names added in the lower half, names removed in the upper.
    changes: AtomicU64,
}

/// The lock of one leaf, which others may share.
#[derive(Clone, Copy)]
pub struct LeafLock<'a> {
    stripe: &'a Stripe,
}

/// The locked leaf.
pub struct LeafGuard<'a> {
    stripe: &'a Stripe,
    _guard: MutexGuard<'a, ()>,
}

impl LeafLocks {
    /// The lock of the leaf in `block` of the directory, which has `blocks` blocks while the caller
    /// holds its lock.
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
    /// Locks the leaf, spinning for a while before it sleeps.
    pub fn lock(self) -> LeafGuard<'a> {
        LeafGuard {
            stripe: self.stripe,
            _guard: self.stripe.lock.lock_spinning(),
        }
    }

    /// The count of changes so far.
    pub fn changes(self) -> u64 {
        self.stripe.changes.load(Ordering::SeqCst)
    }

    /// As [`Self::changes`], for a thread that will change the leaf. It reads by a write, so that
    /// the cache line is exclusive to this core before the lock is taken; a read followed by a
    /// write would transfer the line twice.
    pub fn changes_for_update(self) -> u64 {
        self.stripe.changes.fetch_add(0, Ordering::SeqCst)
    }

    /// The count of removals so far.
    pub fn removals(self) -> u64 {
        self.changes() / REMOVAL
    }
}

impl LeafGuard<'_> {
    /// Counts an added name.
    pub fn note_entry(&self) {
        self.stripe.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a removed name, before the links of its inode change.
    pub fn note_removal(&self) {
        // Sequentially consistent with the count of holds: either a lookup sees this removal, or
        // the thread that frees the inode sees the hold of the lookup.
        self.stripe.changes.fetch_add(REMOVAL, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A leaf whose content is one number; zero means no name.

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
            // Creates the locks now: that is not part of the model.
            let _ = leaves.leaf(LogicalBlock(1), 2);
            Arc::new(Self {
                leaves,
                content: AtomicU64::new(content),
            })
        }

        /// Reads, locks, reads again if the count changed, and changes `from` to `to`.
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
