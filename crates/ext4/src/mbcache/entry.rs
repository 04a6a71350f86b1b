//! Results of searches, and the entries of the tables that have holders.

use std::sync::Arc;

use pext4_sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Not on the list of recency.
pub(super) const NOWHERE: usize = usize::MAX;

/// The entry is in its table.
const LISTED: u32 = 1;
/// The entry was found since the clock last passed it.
const REFERENCED: u32 = 2;
/// Its block can have another reference.
const REUSABLE: u32 = 4;

/// A block that may have the wanted content.
pub(super) struct FoundEntry {
    /// The block.
    pub block: u64,
    /// Its key.
    pub key: u32,
    /// The way at which the search started, in a table of words.
    pub origin: usize,
    /// Number of ways from there.
    pub step: usize,
    /// The entry that is held, in the other tables.
    pub entry: Option<Arc<Entry>>,
}

/// The result of an attempt to remove an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// It was removed.
    Removed,
    /// It was not in the table.
    Absent,
    /// A thread holds it.
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
    /// Searches that found it and have not checked it yet. [incremented under the table's lock]
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

    /// Takes a reference for a search. The caller holds the table's lock.
    pub fn acquire(self: &Arc<Self>) -> FoundEntry {
        self.holders.fetch_add(1, Ordering::Relaxed);
        FoundEntry {
            block: self.block,
            key: self.key,
            origin: 0,
            step: 0,
            entry: Some(Arc::clone(self)),
        }
    }

    /// Gives the reference back; true if no other thread has one.
    pub fn release(&self) -> bool {
        self.holders.fetch_sub(1, Ordering::Release) == 1
    }

    /// Whether a thread holds it.
    pub fn is_held(&self) -> bool {
        self.holders.load(Ordering::Acquire) > 0
    }

    /// Whether it is in its table.
    pub fn is_listed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & LISTED != 0
    }

    /// Marks it as removed from its table.
    pub fn unlist(&self) {
        self.flags.fetch_and(!LISTED, Ordering::Release);
    }

    /// Whether its block can have another reference.
    pub fn is_reusable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REUSABLE != 0
    }

    /// Sets whether its block can.
    pub fn set_reusable(&self, reusable: bool) {
        if reusable {
            self.flags.fetch_or(REUSABLE, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!REUSABLE, Ordering::Relaxed);
        }
    }

    /// Sets the mark that it was found; writes only if it is not set.
    pub fn mark_referenced(&self) {
        if self.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears the mark; returns whether it was found since the last call.
    pub fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}
