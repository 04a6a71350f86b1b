//! The groups of a volume: the location of their structures, their free blocks and inodes, and the
//! versions that they owe to transactions.
//!
//! At mount the descriptors are read once, in order, and each fills a [`GroupInfo`]: the location
//! of the inode table and a few hints. A group's bitmaps are read when first needed and evicted
//! when the last transaction that changed them is durable and memory is short. While a group is in
//! memory, memory is the truth; its bytes are made at capture.
//!
//! Where space is allocated in clusters of several blocks (`bigalloc`), what is called a block of a
//! group here and in `mballoc` is a cluster, of which the bitmap has a bit: bits, spans, hints and
//! sums count clusters. [`Groups::free_blocks`] and the reports multiply.
//!
//! This module has the state and its invariants. `mballoc` decides which blocks a request gets, and
//! `ialloc` which inode; both add their operations to [`Groups`].
//!
//! Life cycle of a block:
//! - *free* in bitmap and buddy;
//! - *taken* from the buddy, and either set in the bitmap at once, or set aside in a preallocation
//!   and set in the bitmap when its use is folded;
//! - *freed*: on the group's stack, then folded (clear in the bitmap, still used in the buddy),
//!   then free again once the transaction is durable, or as soon as it is folded if the same
//!   transaction had taken the block and never written it.

mod bits;
pub mod buddy;
mod capture;
mod changes;
mod counts;
mod evict;
mod freed;
mod front;
mod global_lists;
pub(crate) mod hints;
pub(crate) mod index;
pub(crate) mod info;
pub(crate) mod inodes;
pub(crate) mod lane;
mod loaded;
mod locked;
pub mod metadata;
pub mod open;
mod preallocation;
mod report;
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
use pext4_sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::statistics::{Event, Section};
use crate::store::Store;
use buddy::ORDERS;
use counts::{Counts, sum};
use evict::Residency;
use hints::Hints;
use index::GroupIndex;
use info::{GroupInfo, mark};
use metadata::MetadataMap;
use stream_goals::StreamGoals;
use waiting::Waiting;

pub(crate) use freed::{FreedExtent, Reuse};
pub(crate) use locked::LockedGroup;
pub(crate) use preallocation::Aside;
pub use preallocation::Preallocation;

/// The number of metadata blocks that the first change of a group in a transaction may dirty: both
/// bitmaps and the descriptor.
pub const CREDITS_PER_GROUP: u32 = 3;

/// All groups of a volume.
pub struct Groups {
    pub(crate) store: Arc<Store>,
    infos: Box<[GroupInfo]>,
    metadata: MetadataMap,
    /// The corrupt descriptors of groups that a read-only mount does without. [immutable after
    /// mount]
    damaged: BTreeMap<GroupNumber, Corrupt>,
    /// Descriptors that a read-only mount uses despite a wrong checksum or count. [immutable after
    /// mount]
    doubtful: Vec<Corrupt>,
    /// Where structures share blocks, on a read-only mount.
    overlap: OnceLock<Corrupt>,
    /// Blocks of the journal and the orphan file, which no other file may own. [immutable after
    /// mount]
    protected: OnceLock<MetadataMap>,
    pub(crate) counts: Counts,
    pub(crate) hints: Hints,
    /// Groups by free space.
    pub(crate) index: GroupIndex,
    stream_goals: StreamGoals,
    /// Groups with freed blocks that wait for their transaction.
    pub(crate) waiting: Waiting,
    residency: Residency,
    /// Corruption found under a group's lock, reported when no lock is held.
    deferred_errors: Stack<Error>,
    this: Weak<Self>,
}

/// What a search that found no space has seen of the groups, so that it is repeated only after a
/// change.
#[derive(Debug, Default)]
pub(crate) struct SpaceActivity {
    seen: Option<i64>,
}

impl SpaceActivity {
    /// Whether space may have become allocatable since the last call; true for the first call. The
    /// caller has read what is pending or set aside before, and looks at hints afterwards.
    pub(crate) fn has_changed(&mut self, groups: &Groups) -> bool {
        fence(Ordering::Acquire);
        let now = groups.counts.activity.sum();
        fence(Ordering::Acquire);
        self.seen.replace(now) != Some(now)
    }
}

/// One group on the list of a transaction.
struct ListedGroup {
    groups: Arc<Groups>,
    number: GroupNumber,
}

impl Groups {
    /// Free blocks, as `statfs` shows them.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_clusters() << self.store.geometry.cluster_bits
    }

    /// Free clusters.
    pub(crate) fn free_clusters(&self) -> u64 {
        sum(&self.counts.free_clusters)
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
    /// found the disk full should be retried after it.
    #[must_use]
    pub fn has_pending_frees(&self) -> bool {
        sum(&self.counts.pending_clusters) > 0
    }

    /// Whether blocks besides the reserve are free, or will be with the next commit.
    #[must_use]
    pub fn has_free_blocks(&self) -> bool {
        self.counts.available() > 0
    }

    /// Whether space may have become allocatable since the last call with this `activity`; the
    /// first call returns whether any block is free. A commit may have released blocks after a
    /// search for them, so that they are not pending any more although the search did not find
    /// them.
    pub fn has_new_space(&self, activity: &mut SpaceActivity) -> bool {
        activity.has_changed(self) && self.free_blocks() > 0
    }

    /// The number of groups.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.store.geometry.group_count
    }

    /// The number of groups in memory.
    #[cfg(test)]
    #[must_use]
    pub fn resident(&self) -> usize {
        self.residency.count()
    }

    /// A group: its hints, which can be read without the lock, and the lock.
    pub(crate) fn info(&self, number: GroupNumber) -> &GroupInfo {
        &self.infos[number.get() as usize]
    }

    /// The group where the last large allocation that used this stream goal ended. The inode's
    /// number selects the goal and, in the setting `spread`, the calling core does too.
    pub(crate) fn stream_goal(&self, inode: InodeNumber) -> Option<GroupNumber> {
        self.stream_goals.get(inode.get())
    }

    /// Sets the goal that [`Groups::stream_goal`] returns for this inode here.
    pub(crate) fn set_stream_goal(&self, inode: InodeNumber, group: GroupNumber) {
        self.stream_goals.set(inode.get(), group);
    }

    /// Whether each file remembers a goal of its own.
    pub(crate) fn has_own_stream_goals(&self) -> bool {
        self.stream_goals.are_kept_by_files()
    }

    /// Whether searches use the index of groups (`mb_optimize_scan`).
    #[must_use]
    pub fn optimizes_scan(&self) -> bool {
        self.index.is_in_use()
    }

    /// Statistics of the groups.
    #[must_use]
    pub fn section(&self) -> Section {
        let corrupt = mark::BLOCKS_CORRUPT | mark::INODES_CORRUPT;
        let count = |marks| {
            let marked = self.infos.iter().filter(|info| info.is(marks)).count();
            u64::try_from(marked).unwrap_or(0)
        };
        let bits = self.store.geometry.cluster_bits;
        let pending = sum(&self.counts.pending_clusters) << bits;
        let full = self.infos.iter().filter(|info| info.free_hint() == 0);
        Section::new(
            "groups",
            [
                ("groups", u64::from(self.count())),
                ("bitmaps in memory", count(mark::BLOCKS_LOADED)),
                ("without free blocks", full.count() as u64),
                ("corrupt", count(corrupt)),
                ("free blocks", self.free_blocks()),
                ("free inodes", self.free_inodes()),
                ("blocks freed but not durable", pending),
            ],
        )
    }

    /// How many groups have a longest aligned free run of each order, and free runs of each average
    /// order, as far as there are any. From the hints alone: no group is locked or read for it, and
    /// of a group that was never read only the free blocks are known, which count as one run.
    #[must_use]
    pub fn free_runs_section(&self) -> Section {
        let bits = self.store.geometry.cluster_bits;
        let mut longest = [0; ORDERS];
        let mut average = [0; ORDERS];
        for place in self.infos.iter().map(GroupInfo::orders) {
            for (counts, order) in [(&mut longest, place.largest), (&mut average, place.average)] {
                if let Some(count) = order.and_then(|order| counts.get_mut(order as usize)) {
                    *count += 1;
                }
            }
        }
        let rows = |kind: &'static str, counts: [u64; ORDERS]| {
            let counts = (0..).zip(counts).filter(|(_, count)| *count > 0);
            counts.map(move |(order, count)| {
                let blocks = 1u64 << (order + bits);
                (
                    format!("groups with {kind} of {blocks} blocks").into(),
                    count,
                )
            })
        };
        Section {
            name: "free runs",
            values: rows("a longest", longest)
                .chain(rows("an average", average))
                .collect(),
        }
    }

    /// Makes searches use the index, after filing every group in it again, or look at groups one by
    /// one.
    pub fn set_optimize_scan(&self, optimize: bool) {
        if !self.index.set_in_use(optimize) || !optimize {
            return;
        }
        for number in (0..self.count()).map(GroupNumber) {
            let held = self.lock(number);
            self.index
                .file(self.info(number), number, self.info(number).orders());
            drop(held);
        }
    }

    /// The corrupt descriptors and overlaps with which a read-only mount goes on.
    pub fn damage(&self) -> impl Iterator<Item = &Corrupt> {
        let descriptors = self.damaged.values().chain(&self.doubtful);
        descriptors.chain(self.overlap.get())
    }

    /// Why the location of an inode's slot is unknown, if the descriptor of its group is corrupt.
    #[must_use]
    pub fn damage_of(&self, inode: InodeNumber) -> Option<&Corrupt> {
        if self.damaged.is_empty() {
            return None;
        }
        let (group, _) = self.store.geometry.inode_group(inode)?;
        self.damaged.get(&group)
    }

    /// The location of an inode's slot: its block and the byte offset in it; `None` if there is no
    /// such inode. It is unknown in a group with a corrupt descriptor ([`Groups::damage_of`]).
    #[must_use]
    pub fn slot_place(&self, inode: InodeNumber) -> Option<(BlockNumber, u32)> {
        let (group, index) = self.store.geometry.inode_group(inode)?;
        self.store
            .geometry
            .inode_slot(self.info(group).inode_table, index)
    }

    /// Whether an inode's slot has never been used: its bytes on disk are undefined, and must be
    /// initialised rather than read.
    #[must_use]
    pub fn is_inode_slot_unused(&self, inode: InodeNumber) -> bool {
        let Some((group, index)) = self.store.geometry.inode_group(inode) else {
            return true;
        };
        index >= self.used_slots(group)
    }

    /// The number of slots at the start of a group's inode table of which all that were ever used
    /// are.
    pub(crate) fn used_slots(&self, group: GroupNumber) -> u32 {
        let unused = self.info(group).unused_inodes.load(Ordering::Acquire);
        self.store.geometry.inodes_per_group.saturating_sub(unused)
    }

    /// Counts an event.
    pub(crate) fn count_event(&self, event: Event) {
        self.store.tally.count(event);
    }

    /// Whether any of these blocks is in a cluster with the file system's own structures, which no
    /// file may own.
    #[must_use]
    pub fn is_metadata(&self, blocks: Range<u64>) -> bool {
        self.owned().any(|map| map.touches(blocks.clone()))
    }

    /// The blocks that no file may own.
    fn owned(&self) -> impl Iterator<Item = &MetadataMap> {
        std::iter::once(&self.metadata).chain(self.protected.get())
    }

    /// Protects the blocks of the file system's own files from all other files. Called once, at
    /// mount.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they share blocks with each other, or with bitmaps, tables and descriptors,
    /// unless the mount only reads.
    pub fn protect(&self, blocks: Vec<Range<u64>>) -> Result<()> {
        let (protected, shared) = self.judge_protected(blocks);
        match shared {
            Some(corrupt) if !self.store.options.read_only => return Err(corrupt.into()),
            Some(corrupt) => drop(self.overlap.set(corrupt)),
            None => {}
        }
        let _ = self.protected.set(protected);
        Ok(())
    }

    fn judge_protected(&self, blocks: Vec<Range<u64>>) -> (MetadataMap, Option<Corrupt>) {
        let is_shared = |blocks: &&Range<u64>| self.metadata.touches((*blocks).clone());
        let shared = blocks.iter().find(is_shared).map(|blocks| {
            let problem = "holds blocks of the journal or the orphan file, or of their clusters";
            let corrupt = Corrupt::new("group descriptors", problem);
            corrupt.in_block(BlockNumber(blocks.start))
        });
        let (map, overlap) = MetadataMap::new(blocks, self.store.geometry.blocks_per_cluster);
        (map, shared.or(overlap))
    }

    /// The group as an object for a transaction's list.
    pub(crate) fn owing(&self, number: GroupNumber) -> Arc<dyn Owing> {
        let groups = self.this.upgrade().expect("groups are used through an Arc");
        Arc::new(ListedGroup { groups, number })
    }

    /// Reports corruption that was found under a group's lock. The caller holds no lock of a group.
    pub(crate) fn report(&self) {
        if !self.deferred_errors.is_empty() {
            for error in self.deferred_errors.take_all() {
                self.store.apply_error_policy(error);
            }
        }
    }
}

impl Owing for ListedGroup {
    fn capture(&self, tid: Tid, captures: &mut Vec<pext4_jbd2::Capture>) {
        self.groups.lock(self.number).capture(tid, captures);
    }
}
