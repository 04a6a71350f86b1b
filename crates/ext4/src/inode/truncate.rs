//! Truncating files: in one transaction if the work fits, else in several under an orphan entry, so
//! that recovery finishes a truncate that a crash interrupted.
//!
//! A handle requests credits for one *step* of a few tree entries at a time. Freed runs are mostly
//! in groups that the transaction has changed before, and then cost no credits, so the credits of
//! the first step are usually enough for the next as well. This way a file in a hundred pieces is
//! truncated without holding credits for a hundred groups, which other cores of a large machine
//! would have to do without.

use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::{BlockNumber, Corrupt, extent};

use crate::error::{Refusal, Result};
use crate::groups::CREDITS_PER_GROUP;
use crate::inode::data::SLOT_CREDITS;
use crate::inode::indirect;
use crate::inode::inodes::Inodes;
use crate::inode::mapping::MAX_FORGOTTEN;
use crate::inode::{Inode, Reach, Runs};
use crate::statistics::Event;
use crate::store::now;
use crate::types::FileType;

/// Maximum number of tree entries that a step removes: the extents that fit into an inode, and one
/// for their leaf.
const STEP_ENTRIES: u32 = 5;
/// Maximum number of steps under one handle, so that no commit waits long for it.
const MAX_STEPS: u32 = 16;
/// Metadata blocks that a step may dirty besides those of the freed runs: the tree's path, the
/// inode, the orphan entry, the superblock.
const STEP_BASE_CREDITS: u32 = 24;
/// The same for a truncate without tree nodes: the inode, the orphan entry, the superblock.
const ROOT_BASE_CREDITS: u32 = 8;

impl Inodes {
    /// Metadata blocks that freeing one run may dirty; a run may span several groups.
    fn run_credits(&self) -> u32 {
        let groups = extent::MAX_WRITTEN_LENGTH.div_ceil(self.store.geometry.blocks_per_group) + 1;
        groups.saturating_mul(CREDITS_PER_GROUP)
    }

    /// Metadata blocks that one step may dirty, plus the revokes that it may record. With tiny
    /// groups and a tiny journal it is limited to what one operation can have while others run;
    /// then a step is one run and its leaf.
    fn step_credits(&self, inode: &Inode) -> u32 {
        let wanted = STEP_BASE_CREDITS
            .saturating_add(most_revokes(inode))
            .saturating_add(self.run_credits().saturating_mul(STEP_ENTRIES));
        let wanted = wanted.saturating_add(self.store.quota_credits());
        wanted.min(self.store.journal().max_credits() / 2)
    }

    /// Metadata blocks that the first step of truncating this inode may dirty. The caller holds its
    /// lock. Most files are mapped by a few extents in the inode itself, so this counts them: on a
    /// large machine every core may hold these credits of one transaction at the same time.
    pub(crate) fn truncate_credits(&self, inode: &Inode) -> u32 {
        if !inode.maps_blocks() {
            return ROOT_BASE_CREDITS;
        }
        let step = self.step_credits(inode);
        match self.root_extents(inode) {
            Some(extents) if inode.file_type() == FileType::Regular => {
                let for_runs = self.run_credits().saturating_mul(extents);
                step.min(ROOT_BASE_CREDITS.saturating_add(for_runs))
            }
            _ => step,
        }
    }

    /// The number of extents, or runs of blocks, of a map without nodes; `None` if the map has
    /// nodes.
    fn root_extents(&self, inode: &Inode) -> Option<u32> {
        let (has_extents, root) = inode.state(|state| (state.slot.has_extents(), state.slot.block));
        if !has_extents {
            return indirect::root_runs(&root);
        }
        let node = extent::Node::parse(&root).ok()?;
        let count = u32::try_from(node.len()).ok()?;
        (node.depth() == 0).then_some(count)
    }

    fn step_entries(&self, inode: &Inode) -> u32 {
        let for_runs = self
            .step_credits(inode)
            .saturating_sub(STEP_BASE_CREDITS)
            .saturating_sub(most_revokes(inode));
        (for_runs / self.run_credits()).clamp(2, STEP_ENTRIES)
    }

    /// Sets the size of a regular file; the caller holds the inode's lock for writing.
    ///
    /// # Errors
    ///
    /// `Refused(FileTooLarge | ReadOnly)`, `Corrupt`, `Io`.
    pub fn set_size(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size > self.largest_size(inode) {
            return Err(Refusal::FileTooLarge.into());
        }
        self.store.check_writable()?;
        if inode.is_inline() && self.resize_inline(inode, size)? {
            return Ok(());
        }
        let before = inode.size();
        if size > before {
            self.finish_truncate(inode)?;
            self.zero_tail(inode)?;
            let mut handle = self.store.start(SLOT_CREDITS)?;
            self.allow_large_file(&mut handle, size);
            self.note_size(&mut handle, inode, size);
            return Ok(());
        }
        self.drop_preallocation(inode);
        let mut handle = self.store.start(self.truncate_credits(inode))?;
        self.note_size(&mut handle, inode, size);
        if !inode.maps_blocks() {
            return Ok(());
        }
        let first = size.div_ceil(u64::from(self.store.block_size()));
        self.free_from(handle, inode, first)
    }

    fn note_size(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>, size: u64) {
        let time = now();
        let tid = handle.tid();
        let is_inside = !size.is_multiple_of(u64::from(self.store.block_size()));
        inode.edit(handle, Reach::Data, |state| {
            if size < state.slot.size {
                state.truncated_in = Some(tid);
                match is_inside {
                    true => self.tails.note(inode.number(), state),
                    false => state.tail_is_zero = false,
                }
            } else if size > state.slot.size {
                state.tail_is_zero = true;
            }
            state.slot.size = size;
            state.slot.modified = time;
            state.slot.changed = time;
        });
    }

    /// Finishes a truncate that a crash or an error interrupted: frees the blocks beyond the size.
    /// This must happen before the file grows, or the old content would reappear; before blocks are
    /// allocated beyond its end, or they would be freed as part of the truncate; and before the
    /// inode stops being an orphan. The caller holds the inode's lock for writing and no handle.
    ///
    /// No truncate of a file with fs-verity begins, so none is finished: what lies beyond its end
    /// are its hashes.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`; then the inode stays an orphan.
    pub fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        let has_name = inode.links() > 0;
        let is_left = inode.is_orphan() && has_name;
        if !is_left && !inode.truncate_is_unfinished() {
            return Ok(());
        }
        if inode.file_type() == FileType::Regular && !inode.is_inline() && !inode.has_verity() {
            let first = inode.size().div_ceil(u64::from(self.store.block_size()));
            let handle = self.start_step(inode)?;
            self.free_from(handle, inode, first)?;
        }
        inode.note(|state| state.truncate_is_unfinished = false);
        if !has_name {
            return Ok(());
        }
        let mut handle = self.start_step(inode)?;
        self.remove_orphan(&mut handle, inode)
    }

    /// Frees every block from `first` on, starting under `handle`.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`; then the inode stays an orphan, and [`Inodes::finish_truncate`] must be
    /// called.
    pub fn free_from(&self, handle: Handle<'_>, inode: &Arc<Inode>, first: u64) -> Result<()> {
        let freed = self.free_steps(handle, inode, first);
        if freed.is_err() {
            inode.note(|state| state.truncate_is_unfinished = true);
        }
        freed
    }

    fn free_steps(&self, mut handle: Handle<'_>, inode: &Arc<Inode>, first: u64) -> Result<()> {
        if self.orphans.is_eager() {
            self.add_orphan(&mut handle, inode)?;
        }
        let begun = self.unmap_steps(&mut handle, inode, first..u64::MAX);
        if begun.is_err() && !self.orphans.is_eager() {
            // The new size stays; the next mount frees the rest. Of two errors the first is more
            // specific.
            let _ = self.add_orphan(&mut handle, inode);
        }
        let mut left = begun?;
        if left.is_none() && !self.orphans.is_eager() {
            self.store.tally.count(Event::TruncatedAtOnce);
            return Ok(());
        }
        self.add_orphan(&mut handle, inode)?;
        // An inode without a name stays an orphan until it is reaped.
        let has_name = inode.links() > 0;
        while let Some(end) = left {
            handle.restart(self.step_credits(inode))?;
            left = self.unmap_steps(&mut handle, inode, first..end)?;
        }
        if has_name {
            self.remove_orphan(&mut handle, inode)?;
        }
        Ok(())
    }

    /// Frees the blocks of a range in as many transactions as it needs.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub(crate) fn unmap_in_steps(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        self.drop_preallocation(inode);
        let mut handle = self.start_step(inode)?;
        let mut left = self.unmap_steps(&mut handle, inode, range.clone())?;
        while let Some(end) = left {
            handle.restart(self.step_credits(inode))?;
            left = self.unmap_steps(&mut handle, inode, range.start..end)?;
        }
        Ok(())
    }

    /// Unmaps a range in as many transactions as it needs, and returns its blocks, which stay in
    /// use.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub(crate) fn detach_in_steps(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<Runs> {
        let mut runs = Vec::new();
        let mut left = Some(range.end);
        while let Some(end) = left {
            let mut handle = self.start_step(inode)?;
            let budget = self.step_entries(inode);
            let _map = inode.map.lock();
            let step = range.start..end;
            let (rest, detached) = self.unmap_runs(&mut handle, inode, step, budget)?;
            runs.extend(detached);
            left = rest;
        }
        Ok(runs)
    }

    /// Takes steps while the handle has or gets the credits. Returns the end of the range for the
    /// next step, or `None` when everything is freed.
    fn unmap_steps(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<Option<u64>> {
        let mut left = self.unmap_step(handle, inode, range.clone())?;
        for _ in 1..MAX_STEPS {
            let Some(end) = left else {
                break;
            };
            let lacking = self.step_credits(inode).saturating_sub(handle.credits());
            if lacking > 0 && !handle.extend(lacking) {
                break;
            }
            left = self.unmap_step(handle, inode, range.start..end)?;
        }
        Ok(left)
    }

    fn unmap_step(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<Option<u64>> {
        let mut map = inode.map.lock();
        self.unmap(handle, inode, &mut map, range, self.step_entries(inode))
    }

    /// Starts a handle with the credits of one step.
    ///
    /// # Errors
    ///
    /// `Refused(ReadOnly)` or the journal's error.
    pub fn start_step(&self, inode: &Inode) -> Result<Handle<'_>> {
        self.store.start(self.step_credits(inode))
    }

    /// Whether [`Inodes::free_all_blocks`] can free all blocks: the map has no nodes and fits one
    /// step.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the map refers to blocks that no file can have.
    pub(crate) fn is_freed_in_one_step(&self, inode: &Inode) -> Result<bool> {
        if !inode.maps_blocks() {
            return Ok(true);
        }
        let (extents, root) = inode.state(|state| (state.slot.has_extents(), state.slot.block));
        if !extents {
            let runs = indirect::root_runs(&root);
            for pointer in indirect::direct_blocks(&root) {
                self.check_mapped(pointer)
                    .map_err(|error| error.in_inode(inode.number()))?;
            }
            return Ok(runs.is_some_and(|runs| runs <= self.step_entries(inode)));
        }
        let is_short = || -> Result<bool> {
            let node = extent::Node::parse(&root)?;
            // The leaf costs an entry as well.
            if node.depth() > 0 || node.len() >= self.step_entries(inode) as usize {
                return Ok(false);
            }
            let bounds = self.store.bounds();
            node.check_entries(&bounds)?;
            let mut blocks = 0;
            for slot in 0..node.len() {
                let extent = node.extent(slot, &bounds)?;
                blocks += u64::from(extent.length);
                self.check_extent(&extent)?;
            }
            Ok(inode.file_type() == FileType::Regular || blocks <= u64::from(MAX_FORGOTTEN))
        };
        is_short().map_err(|error| error.in_inode(inode.number()))
    }

    fn check_mapped(&self, block: BlockNumber) -> Result<()> {
        if !self.store.bounds().contains(block, 1) {
            return Err(Corrupt::new("block map", "points outside the file system").into());
        }
        self.check_not_metadata(block, 1)
    }

    /// Frees all blocks of an inode under one handle.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`; `Corrupt` also if one step was not enough.
    pub(crate) fn free_all_blocks(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        self.drop_preallocation(inode);
        if !inode.maps_blocks() {
            return Ok(());
        }
        match self.unmap_step(handle, inode, 0..u64::MAX)? {
            None => Ok(()),
            Some(_) => Err(Corrupt::new("extent tree", "is larger than its root says")
                .in_inode(inode.number())
                .into()),
        }
    }
}

/// Maximum number of revokes of one step: only regular files have blocks that are not metadata.
fn most_revokes(inode: &Inode) -> u32 {
    match inode.file_type() {
        FileType::Regular => 0,
        _ => MAX_FORGOTTEN,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::extent::LOGICAL_END;
    use crate::groups::testing::image;
    use crate::inode::filling::Filling;
    use crate::{CreateAttributes, InodeNumber, MountOptions, Volume};

    /// A damaged map may lead to 2^32 blocks in few runs.
    #[test]
    fn what_is_detached_from_a_directory_comes_in_runs() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let new = CreateAttributes::default();
        let made = volume.make_directory(InodeNumber::ROOT, b"directory", &new);
        let number = made.expect("room").inode;
        let inodes = &volume.inodes;
        let inode = inodes.get(number).expect("it is held");
        let mut handle = inodes.start_step(&inode).expect("a journal that runs");
        let filling = Filling::written(10..510);
        let filled = inodes.fill_hole(&mut handle, &inode, filling, |_| Ok(None));
        let filled = filled.expect("room");
        assert!(filled.length > 200, "{filled}");
        drop(handle);
        let detached = inodes.detach_in_steps(&inode, 10..LOGICAL_END);
        assert_eq!(detached.expect("sound"), [(filled.start, filled.length)]);
    }
}
