//! The groups of a volume: where everything lies, what is free, and what is owed to transactions.
//!
//! At mount the descriptors are read once, in order, and each leaves a [`Slot`]: a place and a few
//! hints. A group's bitmaps come into memory when first needed and leave again when the last
//! transaction that changed them is durable and memory is short. While a group is in memory, memory is
//! the truth; its bytes are made at capture.
//!
//! This module keeps the state and its invariants. Who gets which blocks is decided in `mballoc`,
//! who gets which inode in `ialloc`; both add their operations to [`Groups`].
//!
//! Life of a block: *free* in bitmap and buddy; *taken* from the buddy, and used in the bitmap or
//! set aside, used by its file later and in the bitmap once that is folded; *freed*: on the group's
//! stack, then folded (clear in the bitmap, still used in the buddy), then free again once the
//! transaction is durable, or at once where it was taken in the same one and never written.

mod bits;
pub mod buddy;
mod changes;
mod counts;
mod debt;
mod evict;
mod freed;
mod front;
mod held;
pub(crate) mod hints;
pub(crate) mod index;
pub(crate) mod inodes;
pub(crate) mod lane;
mod loaded;
mod metadata;
mod open;
mod preallocation;
pub(crate) mod slot;
mod stream_goals;
mod trim;
mod visit;
mod waiting;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use pext4_jbd2::Owing;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, Tid};
use pext4_sync::Stack;
use pext4_sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::statistics::{Event, Section};
use crate::store::Store;
use counts::{Counts, sum};
use evict::Residency;
use hints::Hints;
use index::GroupIndex;
use metadata::MetadataMap;
use open::with_what_helps;
use slot::{Slot, mark};
use stream_goals::StreamGoals;
use waiting::Waiting;

pub(crate) use freed::{FreedExtent, Reuse};
pub(crate) use held::Held;
pub(crate) use preallocation::Aside;
pub use preallocation::Preallocation;

/// Metadata blocks that the first change of a group in a transaction may dirty: both bitmaps and
/// the descriptor.
pub const CREDITS_PER_GROUP: u32 = 3;

/// All groups of a volume.
pub struct Groups {
    pub(crate) store: Arc<Store>,
    slots: Box<[Slot]>,
    metadata: MetadataMap,
    /// What is wrong with descriptors that a mount which only reads does without. [immutable after mount]
    damaged: BTreeMap<GroupNumber, Corrupt>,
    /// Where structures share blocks, likewise.
    overlap: OnceLock<Corrupt>,
    /// What else no file may own: the journal, the orphan file. [immutable after mount]
    protected: OnceLock<MetadataMap>,
    pub(crate) counts: Counts,
    pub(crate) hints: Hints,
    /// Groups by free space.
    pub(crate) index: GroupIndex,
    stream_goals: StreamGoals,
    /// Groups with freed blocks that wait for their transaction.
    pub(crate) waiting: Waiting,
    residency: Residency,
    /// Corruption found under a group's lock, judged when no lock is held.
    complaints: Stack<Error>,
    this: Weak<Self>,
}

/// What a search that found no room knows of changes in the groups.
#[derive(Debug, Default)]
pub(crate) struct Room {
    seen: Option<i64>,
}

/// One group in the committer's list of debtors.
struct Debtor {
    groups: Arc<Groups>,
    number: GroupNumber,
}

impl Groups {
    /// Free blocks: what `statfs` shows.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        sum(&self.counts.free_blocks) << self.store.geometry.cluster_bits
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u64 {
        sum(&self.counts.free_inodes)
    }

    /// Directories.
    #[must_use]
    pub fn directories(&self) -> u64 {
        sum(&self.counts.directories)
    }

    /// Whether blocks were freed that become allocatable with the next commit: an allocation that
    /// met a full disk is worth another try after it.
    #[must_use]
    pub fn has_pending_frees(&self) -> bool {
        sum(&self.counts.pending) > 0
    }

    /// Whether room may have come since the last question, the first time: where there is any. What a commit has freed
    /// is pending no more, though a search before that did not find it.
    pub fn has_come(&self, room: &mut Room) -> bool {
        let now = self.counts.activity.sum();
        let has_changed = room.seen.replace(now) != Some(now);
        has_changed && self.free_blocks() > 0
    }

    /// How many groups there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.store.geometry.group_count
    }

    /// Groups in memory.
    #[cfg(test)]
    #[must_use]
    pub fn resident(&self) -> usize {
        self.residency.count()
    }

    /// What may be known of a group without its lock.
    pub(crate) fn slot(&self, number: GroupNumber) -> &Slot {
        &self.slots[number.get() as usize]
    }

    /// The group in which the last large allocation of files like this one ended.
    pub(crate) fn stream_goal(&self, inode: InodeNumber) -> Option<GroupNumber> {
        self.stream_goals.get(&self.waiting.lists, inode.get())
    }

    /// Remembers it.
    pub(crate) fn set_stream_goal(&self, inode: InodeNumber, group: GroupNumber) {
        self.stream_goals
            .set(&self.waiting.lists, inode.get(), group);
    }

    /// Whether each file remembers a goal of its own.
    pub(crate) fn has_own_stream_goals(&self) -> bool {
        self.stream_goals.are_kept_by_files()
    }

    /// Whether searches go by the index of groups (`mb_optimize_scan`).
    #[must_use]
    pub fn optimizes_scan(&self) -> bool {
        self.index.is_in_use()
    }

    /// The groups as numbers.
    #[must_use]
    pub fn section(&self) -> Section {
        let corrupt = mark::BLOCKS_CORRUPT | mark::INODES_CORRUPT;
        let count = |marks| {
            let marked = self.slots.iter().filter(|slot| slot.is(marks)).count();
            u64::try_from(marked).unwrap_or(0)
        };
        let full = self.slots.iter().filter(|slot| slot.free_hint() == 0);
        Section::new(
            "groups",
            [
                ("groups", u64::from(self.count())),
                ("bitmaps in memory", count(mark::BLOCKS_LOADED)),
                ("without free blocks", full.count() as u64),
                ("corrupt", count(corrupt)),
                ("free blocks", self.free_blocks()),
                ("free inodes", self.free_inodes()),
                ("blocks freed but not durable", sum(&self.counts.pending)),
            ],
        )
    }

    /// Lets searches go by the index, in which every group is filed anew, or one by one.
    pub fn set_optimize_scan(&self, optimize: bool) {
        if !self.index.set_in_use(optimize) || !optimize {
            return;
        }
        for number in (0..self.count()).map(GroupNumber) {
            let held = self.hold(number);
            self.index
                .file(self.slot(number), number, self.slot(number).place());
            drop(held);
        }
    }

    /// What is wrong with the groups, where a mount that only reads goes on without some.
    pub fn damage(&self) -> impl Iterator<Item = &Corrupt> {
        self.damaged.values().chain(self.overlap.get())
    }

    /// Why nobody knows where an inode's slot lies, if its group is one that is done without.
    #[must_use]
    pub fn damage_of(&self, inode: InodeNumber) -> Option<&Corrupt> {
        if self.damaged.is_empty() {
            return None;
        }
        let (group, _) = self.store.geometry.inode_group(inode)?;
        self.damaged.get(&group)
    }

    /// Where an inode's slot lies: its block and the byte offset in it; `None` if there is no such
    /// inode. Of one in a group that is done without it is not known ([`Groups::damage_of`]).
    #[must_use]
    pub fn slot_place(&self, inode: InodeNumber) -> Option<(BlockNumber, u32)> {
        let (group, index) = self.store.geometry.inode_group(inode)?;
        self.store
            .geometry
            .inode_slot(self.slot(group).inode_table, index)
    }

    /// Whether an inode's slot has never been used: its bytes on disk mean nothing, and are to be
    /// initialised rather than read.
    #[must_use]
    pub fn inode_slot_is_virgin(&self, inode: InodeNumber) -> bool {
        let Some((group, index)) = self.store.geometry.inode_group(inode) else {
            return true;
        };
        let unused = self.slot(group).unused_inodes.load(Ordering::Acquire);
        index >= self.store.geometry.inodes_per_group.saturating_sub(unused)
    }

    /// Counts an event.
    pub(crate) fn count_event(&self, event: Event) {
        self.store.tally.count(event);
    }

    /// Whether any of these blocks holds the file system's own structures, which no file may own.
    #[must_use]
    pub fn is_metadata(&self, blocks: Range<u64>) -> bool {
        self.owned().any(|map| map.touches(blocks.clone()))
    }

    /// What no file may own.
    fn owned(&self) -> impl Iterator<Item = &MetadataMap> {
        std::iter::once(&self.metadata).chain(self.protected.get())
    }

    /// Keeps the blocks of the file system's own files from all others, once, at mount.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they share blocks with each other, or with bitmaps, tables and descriptors, unless the mount
    /// only reads.
    pub fn protect(&self, blocks: Vec<Range<u64>>) -> Result<()> {
        let (protected, shared) = self.judge_protected(blocks);
        match shared {
            Some(corrupt) if !self.store.options.read_only => return Err(with_what_helps(corrupt)),
            Some(corrupt) => drop(self.overlap.set(corrupt)),
            None => {}
        }
        let _ = self.protected.set(protected);
        Ok(())
    }

    fn judge_protected(&self, blocks: Vec<Range<u64>>) -> (MetadataMap, Option<Corrupt>) {
        let is_shared = |blocks: &&Range<u64>| self.metadata.touches((*blocks).clone());
        let shared = blocks.iter().find(is_shared).map(|blocks| {
            let problem = "holds blocks of the journal or the orphan file";
            let corrupt = Corrupt::new("group descriptors", problem);
            corrupt.in_block(BlockNumber(blocks.start))
        });
        let (map, overlap) = MetadataMap::new(blocks);
        (map, shared.or(overlap))
    }

    /// The group as the journal keeps it on a transaction's list.
    pub(crate) fn owing(&self, number: GroupNumber) -> Arc<dyn Owing> {
        let groups = self.this.upgrade().expect("groups are used through an Arc");
        Arc::new(Debtor { groups, number })
    }

    /// Reports corruption that was found under locks, now that none of a group is held.
    pub(crate) fn report(&self) {
        if !self.complaints.is_empty() {
            for error in self.complaints.take_all() {
                self.store.apply_error_policy(error);
            }
        }
    }
}

impl Owing for Debtor {
    fn capture(&self, tid: Tid, captures: &mut Vec<pext4_jbd2::Capture>) {
        self.groups.hold(self.number).settle(tid, captures);
    }
}
