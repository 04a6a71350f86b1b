//! Locks of the leaves of one directory.
//!
//! There is a fixed number of them, chosen by the leaf's block. Whoever changes a name of a leaf
//! holds the directory's lock shared and the leaf's exclusively. Lookups take no lock of a leaf. A
//! lookup that finds a name and then takes a hold of its inode must be sure that the name was
//! still there when it had the hold, or the inode may have ended meanwhile: so every removal is
//! counted beside the lock before the name goes, and a lookup that sees the count as it was before
//! it looked is sure.

use pext4_ondisk::LogicalBlock;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard, Sharded, topology};

/// Locks for each shard: makers of files in one directory meet where two leaves have one lock.
const FOR_EACH_SHARD: usize = 8;
/// Locks at most; a directory that is changed leaf by leaf has them in memory.
const MOST: usize = 512;

/// The locks.
pub struct Leaves {
    stripes: Sharded<Stripe>,
}

struct Stripe {
    lock: Mutex<()>,
    removals: AtomicU64,
}

/// One leaf, locked.
pub struct LeafGuard<'a> {
    stripe: &'a Stripe,
    _guard: MutexGuard<'a, ()>,
}

impl Leaves {
    pub fn new() -> Self {
        let count = (FOR_EACH_SHARD * topology::shard_count()).min(MOST);
        let stripe = |_| Stripe {
            lock: Mutex::new(Class::DirectoryLeaf, ()),
            removals: AtomicU64::new(0),
        };
        Self {
            stripes: Sharded::with_count(count, stripe),
        }
    }

    fn stripe(&self, leaf: LogicalBlock) -> &Stripe {
        self.stripes
            .get(leaf.get() as usize & (self.stripes.count() - 1))
    }

    /// Waits for a leaf.
    pub fn lock(&self, leaf: LogicalBlock) -> LeafGuard<'_> {
        let stripe = self.stripe(leaf);
        LeafGuard {
            stripe,
            _guard: stripe.lock.lock(),
        }
    }

    /// How many names were removed from a leaf and those that share its lock, so far.
    pub fn removals(&self, leaf: LogicalBlock) -> u64 {
        self.stripe(leaf).removals.load(Ordering::SeqCst)
    }
}

impl LeafGuard<'_> {
    /// Says that a name is about to be removed.
    pub fn note_removal(&self) {
        self.stripe.removals.fetch_add(1, Ordering::SeqCst);
    }
}
