//! What is found, and the entries of the tables that hold what they give out.

use std::sync::Arc;

use pext4_sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Not on the list of recency.
pub(super) const NOWHERE: usize = usize::MAX;

/// The entry is in its table.
const LISTED: u32 = 1;
/// It was found since the clock last passed.
const REFERENCED: u32 = 2;
/// Its block can serve one inode more.
const REUSABLE: u32 = 4;

/// A block that may have the content looked for.
pub(super) struct FoundEntry {
    /// The block.
    pub block: u64,
    /// Its key.
    pub key: u32,
    /// Where the search began and how far it has come, in a table of words.
    pub origin: usize,
    /// Steps from there.
    pub step: usize,
    /// The entry that is held, in the other tables.
    pub entry: Option<Arc<Entry>>,
}

/// What became of an attempt to take an entry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// It is not there, and nobody who found it before is still at it.
    Gone,
    /// Somebody holds it.
    Held,
}

/// One block with its content's hash.
///
/// Flags are independent of each other and changed without a common lock, so each change is one
/// atomic operation on the word.
pub(super) struct Entry {
    /// The volume, where one table serves many.
    pub volume: u64,
    /// Hash of the content.
    pub key: u32,
    /// The block.
    pub block: u64,
    /// Finders that have not yet judged it. [goes up under the table's lock]
    pub holders: AtomicU32,
    /// [atomic]
    flags: AtomicU32,
    /// Place on the list of recency. [list]
    pub place: AtomicUsize,
}

impl Entry {
    pub fn new(volume: u64, key: u32, block: u64, reusable: bool) -> Self {
        let flags = LISTED | if reusable { REUSABLE } else { 0 };
        Self {
            volume,
            key,
            block,
            holders: AtomicU32::new(0),
            flags: AtomicU32::new(flags),
            place: AtomicUsize::new(NOWHERE),
        }
    }

    /// Holds the entry for a finder; the table's lock is held.
    pub fn hold(self: &Arc<Self>) -> FoundEntry {
        self.holders.fetch_add(1, Ordering::Relaxed);
        FoundEntry {
            block: self.block,
            key: self.key,
            origin: 0,
            step: 0,
            entry: Some(Arc::clone(self)),
        }
    }

    /// Lets it go; true if nobody else holds it.
    pub fn let_go(&self) -> bool {
        self.holders.fetch_sub(1, Ordering::Release) == 1
    }

    /// Whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.holders.load(Ordering::Acquire) > 0
    }

    /// Whether it is in its table.
    pub fn is_listed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & LISTED != 0
    }

    /// Says that it has left its table.
    pub fn unlist(&self) {
        self.flags.fetch_and(!LISTED, Ordering::Release);
    }

    /// Whether its block can serve one inode more.
    pub fn is_reusable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REUSABLE != 0
    }

    /// Says whether its block can.
    pub fn set_reusable(&self, reusable: bool) {
        if reusable {
            self.flags.fetch_or(REUSABLE, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!REUSABLE, Ordering::Relaxed);
        }
    }

    /// Notes that it was found; writes only when that is news.
    pub fn mark_referenced(&self) {
        if self.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Whether it was found since the last call.
    pub fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}
