//! The entry of one group in the table: what every thread may read without its lock, and the lock.
//!
//! The numbers outside the lock are hints: they are written when a hold ends, so they are exact
//! under the lock and possibly stale without it. A thread that acts on a hint tests it again under
//! the lock (rule D5). Hints are also correct for groups that are not in memory, except that for a
//! group never loaded the largest free run is derived from its free count, which only bounds it.

use std::sync::OnceLock;

use pext4_jbd2::{AtomicTid, Opened};
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Stack};

use super::freed::FreedExtent;
use super::index::Orders;
use super::inodes::InodeBits;
use super::loaded::Loaded;

/// Facts about a group that can be read without its lock, as bits of [`GroupInfo::marks`].
pub mod mark {
    /// Block bitmap and buddy are in memory.
    pub const BLOCKS_LOADED: u32 = 1;
    /// The inode bitmap is in memory.
    pub const INODES_LOADED: u32 = 2;
    /// The block bitmap is corrupt: no block is allocated or freed here.
    pub const BLOCKS_CORRUPT: u32 = 4;
    /// The inode bitmap is corrupt.
    pub const INODES_CORRUPT: u32 = 8;
    /// Used since the eviction hand last passed.
    pub const REFERENCED: u32 = 16;
}

/// One group of the table, in two cache lines of 64 bytes: `written`, and the rest, which threads
/// read in many operations and write seldom, so that they do not wait for the line of a lock that
/// they do not take. Lines come in pairs, which a processor may fetch together, and no two groups
/// share a pair. There are no empty lines in between: a volume of 16 TiB has 131,072 groups.
#[repr(align(128))]
pub struct GroupInfo {
    /// The first block of the inode table. [immutable after mount]
    pub inode_table: BlockNumber,
    /// Free inodes: a hint, which is 0 only if the descriptor says so or a search found none.
    /// [atomic]
    pub free_inodes: AtomicU32,
    /// Inodes at the end of the table that were never used. [atomic; captured with the group]
    pub unused_inodes: AtomicU32,
    /// Which inodes are used, once the bitmap was read: the truth from then on, so it is never
    /// evicted. [atomic; changed only under a handle that may change it, see `inodes`]
    pub inodes: OnceLock<Box<InodeBits>>,
    /// The transaction that may change `inodes`, `unused_inodes` and `written.directories` without
    /// the lock.
    pub opened: Opened,
    /// Bits of [`mark`]. [atomic]
    pub marks: AtomicU32,
    /// The last transaction whose commit will capture this group. [atomic]
    noted: AtomicTid,
    /// What is written often.
    pub written: Written,
}

/// The lock of a group, and what its holders and others write at almost every change, on a cache
/// line of its own.
#[repr(align(64))]
pub struct Written {
    /// Clusters that can be allocated. [atomic; exact under group, as the four that follow]
    pub free_clusters: AtomicU32,
    /// Free runs.
    pub fragments: AtomicU32,
    /// The order of the largest aligned free run plus one; 0 if nothing is free.
    pub largest: AtomicU32,
    /// The orders under which the index has the group; see
    /// [`Orders::packed`](super::index::Orders::packed).
    pub filed: AtomicU32,
    /// Clusters set aside in preallocations.
    pub aside: AtomicU32,
    /// Directories. [atomic; captured with the group]
    pub directories: AtomicU32,
    /// Frees that are not folded yet. [lock-free]
    pub freed: Stack<FreedExtent>,
    /// Preallocations with uses that are not folded yet, each named by the block after its end.
    /// [lock-free]
    pub used: Stack<u32>,
    /// The group in memory; `None` until first needed and after eviction.
    pub state: Mutex<Option<Box<Loaded>>>,
}

impl GroupInfo {
    /// A group that is not in memory.
    pub fn new(descriptor: &GroupDescriptor, unused_inodes: u32) -> Self {
        let free = descriptor.free_clusters;
        Self {
            inode_table: descriptor.inode_table,
            free_inodes: AtomicU32::new(descriptor.free_inodes),
            unused_inodes: AtomicU32::new(unused_inodes),
            inodes: OnceLock::new(),
            opened: Opened::new(),
            marks: AtomicU32::new(0),
            noted: AtomicTid::new(),
            written: Written {
                free_clusters: AtomicU32::new(free),
                fragments: AtomicU32::new(u32::from(free > 0)),
                largest: AtomicU32::new(free.checked_ilog2().map_or(0, |order| order + 1)),
                filed: AtomicU32::new(0),
                aside: AtomicU32::new(0),
                directories: AtomicU32::new(descriptor.used_directories),
                freed: Stack::new(),
                used: Stack::new(),
                state: Mutex::new(Class::Group, None),
            },
        }
    }

    /// A group of which nothing is known.
    pub fn corrupt() -> Self {
        let info = Self::new(&GroupDescriptor::default(), 0);
        info.mark(mark::BLOCKS_CORRUPT | mark::INODES_CORRUPT);
        info
    }

    /// Whether any of these marks is set.
    pub fn is(&self, marks: u32) -> bool {
        self.marks.load(Ordering::Acquire) & marks != 0
    }

    /// Sets the mark that the group was used; writes only if it is not set.
    pub fn mark_referenced(&self) {
        if !self.is(mark::REFERENCED) {
            self.mark(mark::REFERENCED);
        }
    }

    /// Sets marks; returns those that were not set before.
    pub fn mark(&self, marks: u32) -> u32 {
        marks & !self.marks.fetch_or(marks, Ordering::AcqRel)
    }

    /// Clears marks; returns those that were set before.
    pub fn unmark(&self, marks: u32) -> u32 {
        self.marks.fetch_and(!marks, Ordering::AcqRel) & marks
    }

    /// The number of allocatable clusters, possibly stale without the lock; 0 in corrupt groups.
    pub fn free_hint(&self) -> u32 {
        if self.is(mark::BLOCKS_CORRUPT) {
            0
        } else {
            self.written.free_clusters.load(Ordering::Relaxed)
        }
    }

    /// The order of the largest aligned free run, possibly stale; `None` in corrupt groups.
    pub fn largest_hint(&self) -> Option<u32> {
        if self.is(mark::BLOCKS_CORRUPT) {
            return None;
        }
        self.written.largest.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The average length of free runs, possibly stale; 0 in corrupt groups.
    pub fn average_hint(&self) -> u32 {
        self.free_hint() / self.written.fragments.load(Ordering::Relaxed).max(1)
    }

    /// The place that the group should have in the index, possibly stale.
    pub fn orders(&self) -> Orders {
        let fragments = self.written.fragments.load(Ordering::Relaxed);
        Orders::of(self.free_hint(), fragments, self.largest_hint())
    }

    /// The number of free inodes, possibly stale; 0 in corrupt groups.
    pub fn free_inodes_hint(&self) -> u32 {
        if self.is(mark::INODES_CORRUPT) {
            0
        } else {
            self.free_inodes.load(Ordering::Relaxed)
        }
    }

    /// Notes that the commit of `tid` will capture the group; returns true in the first call for
    /// `tid`.
    pub fn note(&self, tid: Tid) -> bool {
        let is_other = |noted: Option<Tid>| noted != Some(tid);
        is_other(self.noted.load(Ordering::SeqCst))
            && is_other(self.noted.swap(tid, Ordering::SeqCst))
    }

    /// The last transaction that changed the group or freed blocks in it.
    pub fn last_noted(&self) -> Option<Tid> {
        self.noted.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{GroupDescriptor, GroupInfo, Mutex, Tid};

    #[test]
    fn a_slot_is_one_pair_of_cache_lines() {
        assert_eq!(align_of::<GroupInfo>(), 128);
        assert_eq!(offset_of!(GroupInfo, written) % 64, 0);
        // Locks that are both checked and metered are larger.
        let most = if size_of::<Mutex<u8>>() <= 3 {
            128
        } else {
            256
        };
        assert!(size_of::<GroupInfo>() <= most, "{}", size_of::<GroupInfo>());
    }

    #[test]
    fn only_the_first_note_of_a_transaction_returns_true() {
        let info = GroupInfo::new(&GroupDescriptor::default(), 0);
        assert_eq!(info.last_noted(), None);
        assert!(info.note(Tid(0)));
        assert!(!info.note(Tid(0)));
        assert_eq!(info.last_noted(), Some(Tid(0)));
        assert!(info.note(Tid(1)));
        assert_eq!(info.last_noted(), Some(Tid(1)));
    }
}
