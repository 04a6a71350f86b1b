//! Maps a file's blocks to the device's: connects the extent tree or block map with the journal,
//! the buffers and the allocator.
//!
//! The tree's root is in the inode's slot. A change copies the root, runs the tree operation under
//! the map lock, and stores the root again under the state lock, so the committer sees either the
//! old root or the new one. Tree nodes are edited in place as shared pages. An operation reserves
//! the nodes that it may need before its first change (there is no undo); see `nodes`.
//!
//! Files of the older format have a block map in place of the tree (`indirect`), on the same node
//! store: its pointer blocks are nodes without checksums.

use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::extent::MAX_WRITTEN_LENGTH;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::clusters::{ClusterRuns, Unmapped};
use super::data::{Written, logical};
use super::nodes::{Nodes, Runs};
use crate::error::{Refusal, Result};
use crate::inode::extents::{self, BlockState, Extent, Mapping};
use crate::inode::indirect;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Map, Reach, Root};
use crate::mballoc::Zone;
use crate::types::FileType;

/// Maximum number of blocks of a directory or symbolic link that one step frees: each needs a
/// revoke record.
pub(crate) const MAX_FORGOTTEN: u32 = 64;

/// What a change of a tree is to be given: where it finds blocks for nodes, and what is noted with
/// it.
struct Wanted {
    /// Where a node should be.
    goal: BlockNumber,
    /// Blocks that nothing maps after the change, of which nodes may be made.
    spare: Range<u64>,
    /// What was written to the blocks that it maps.
    written: Option<Written>,
}

/// A run of blocks to be mapped into a hole of a file.
pub(crate) struct NewRun {
    /// What is mapped.
    pub(crate) extent: Extent,
    /// How many clusters the file has got for it.
    pub(crate) clusters: u32,
    /// How many blocks of these, right behind the extent, nodes may be made of; what no node
    /// needs is freed.
    pub(crate) spare: u32,
    /// What was written to the extent.
    pub(crate) written: Option<Written>,
}

/// Limits on the work of one call that unmaps blocks of a file, of either format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Runs of contiguous blocks, plus nodes of the map.
    pub entries: u32,
    /// Blocks of the file.
    pub blocks: u64,
}

/// What a change of a tree has unmapped.
#[derive(Default)]
struct Freed {
    /// The clusters that the file has no more.
    clusters: ClusterRuns,
    /// Runs of blocks, unless these are the same.
    blocks: Runs,
}

impl Wanted {
    fn near(goal: BlockNumber) -> Self {
        Self {
            goal,
            spare: 0..0,
            written: None,
        }
    }
}

impl Inodes {
    /// Whether a file is mapped by extents, which may be unwritten, and not by a block map.
    pub(crate) fn uses_extents(inode: &Inode) -> bool {
        inode.flags().contains(InodeFlags::EXTENTS)
    }

    /// Whether a file has a block map, or will have one when its content leaves the inode.
    pub(crate) fn uses_block_map(&self, inode: &Inode) -> bool {
        match inode.is_inline() {
            true => !self.new_files_use_extents(),
            false => !Self::uses_extents(inode),
        }
    }

    /// Refuses blocks of files that contain structures of the file system itself. Only a corrupt or
    /// malicious image maps them, and data written to them would be interpreted as metadata.
    pub(crate) fn check_not_metadata(&self, start: BlockNumber, length: u32) -> Result<()> {
        if self
            .groups
            .is_metadata(start.get()..start.get().saturating_add(u64::from(length)))
        {
            let corrupt =
                Corrupt::new("block pointer", "leads to the file system's own structures");
            return Err(corrupt.in_block(start).into());
        }
        Ok(())
    }

    /// Refuses an extent that only a corrupt or malicious image has: it maps structures of the file
    /// system itself, or blocks to other places in their clusters.
    pub(crate) fn check_extent(&self, extent: &Extent) -> Result<()> {
        let distance = extent.start.get() ^ u64::from(extent.logical.get());
        if distance & (self.cluster() - 1) != 0 {
            let corrupt = Corrupt::new("extent", "its blocks lie elsewhere in their clusters");
            return Err(corrupt.in_block(extent.start).into());
        }
        self.check_not_metadata(extent.start, extent.length)
    }

    /// What one block of the file maps to, and up to which block the mapping extends. The caller
    /// holds the inode's lock, under which the map does not change.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io` from the tree.
    pub fn lookup(&self, inode: &Inode, logical: LogicalBlock) -> Result<Mapping> {
        self.lookup_with_root(inode, &inode.root(), logical)
    }

    /// As [`Self::lookup`], if the caller has read the root of the map under that lock before.
    ///
    /// # Errors
    ///
    /// As [`Self::lookup`].
    pub fn lookup_with_root(
        &self,
        inode: &Inode,
        root: &Root,
        logical: LogicalBlock,
    ) -> Result<Mapping> {
        let mapping = self.lookup_unchecked(inode, root, logical)?;
        if let Mapping::Mapped(extent) = &mapping {
            // Pointers have no order in clusters; Linux makes none there.
            let checked = match Self::uses_extents(inode) {
                true => self.check_extent(extent),
                false => self.check_not_metadata(extent.start, extent.length),
            };
            checked.map_err(|error| error.in_inode(inode.number()))?;
        }
        Ok(mapping)
    }

    /// As [`Self::lookup_with_root`], without the check against metadata: for walks of a whole map
    /// that only compare its blocks with each other and read none of them.
    pub(super) fn lookup_unchecked(
        &self,
        inode: &Inode,
        root: &Root,
        logical: LogicalBlock,
    ) -> Result<Mapping> {
        if inode.is_inline() {
            let corrupt = Corrupt::new("inode", "its content is not in blocks");
            return Err(corrupt.in_inode(inode.number()).into());
        }
        let nodes = Nodes::reading(self, inode);
        let mapping = if nodes.are_pointers {
            indirect::lookup(root, &nodes, logical)
        } else {
            extents::lookup(root, &nodes, logical)
        };
        mapping.map_err(|error| error.in_inode(inode.number()))
    }

    /// Where [`Self::lookup_unchecked`] of a block is `Corrupt`: the end of the blocks for which it
    /// is that for the same reason.
    pub(super) fn end_of_damage(&self, inode: &Inode, root: &Root, logical: LogicalBlock) -> u64 {
        let nodes = Nodes::reading(self, inode);
        if nodes.are_pointers {
            indirect::end_of_damage(root, &nodes, logical)
        } else {
            extents::end_of_damage(root, &nodes, logical)
        }
    }

    /// The longest run that can be mapped at once from a block of the file on.
    ///
    /// # Errors
    ///
    /// `Refused(FileTooLarge)` behind what a block map can map.
    pub(crate) fn room_in_map(&self, inode: &Inode, logical: LogicalBlock) -> Result<u32> {
        if Self::uses_extents(inode) {
            return Ok(MAX_WRITTEN_LENGTH);
        }
        let room = indirect::room(logical, self.store.block_size());
        room.ok_or_else(|| Refusal::FileTooLarge.into())
    }

    /// Runs a tree operation that changes the map, and stores the root and the block count. Returns
    /// its result, and what it unmapped and is to be freed. The caller holds the map lock.
    fn change_tree<R>(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        wanted: Wanted,
        operation: impl FnOnce(&mut Root, &mut Nodes<'_, '_>, &mut Unmapped) -> Result<R>,
    ) -> Result<(R, Freed)> {
        let before = inode.root();
        let mut root = before;
        let mut unmapped = Unmapped::default();
        let mut nodes = Nodes::changing(self, inode, handle, wanted.goal, wanted.spare);
        let result = operation(&mut root, &mut nodes, &mut unmapped);
        let change = nodes.into_change();
        let result = result.map(|result| {
            let clusters = self.left_clusters(change.handle, inode, &root, &mut unmapped);
            (result, clusters)
        });
        if let Err(error) = &result
            && change.has_begun
        {
            let what = format!("the map of inode {} was left half changed", inode.number());
            self.store.stop_half_done(&what, error);
            return result.map(|(result, _)| (result, Freed::default()));
        }
        let left = result
            .as_ref()
            .map_or(0, |(_, clusters)| self.blocks_in(clusters));
        let blocks = change.blocks - left;
        // There is nothing to unmap in a hole. A change of a node alone counts as one of the inode,
        // or `fdatasync` would not wait for its transaction.
        let is_changed = change.has_begun || blocks != 0 || root != before;
        if result.is_ok()
            && is_changed
            && let Err(error) = self.store_root(change.handle, inode, root, blocks, wanted.written)
        {
            let what = format!("inode {} has more blocks than it can count", inode.number());
            self.store.stop_half_done(&what, &error);
            return Err(error);
        }
        for (block, length) in change.unused() {
            self.groups.free(change.handle, block, length)?;
        }
        let (result, clusters) = result.map_err(|error| error.in_inode(inode.number()))?;
        let freed = Freed {
            clusters: ClusterRuns(change.to_free(clusters.0)),
            blocks: unmapped.runs,
        };
        Ok((result, freed))
    }

    fn store_root(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        root: Root,
        blocks: i64,
        written: Option<Written>,
    ) -> Result<()> {
        let fits = inode.edit(handle, Reach::Data, |state| {
            state.slot.block = root;
            if let Some(written) = written {
                written.note(state);
            }
            self.store.count_blocks(&mut state.slot, blocks)
        });
        if fits {
            Ok(())
        } else {
            Err(Refusal::FileTooLarge.into())
        }
    }

    /// Maps a run of blocks into a hole of the file, and notes what was written to it.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if the tree needs more nodes than there are blocks for; nothing is
    /// changed then.
    pub(crate) fn map(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        _map: &mut Map,
        new: NewRun,
    ) -> Result<()> {
        let extent = new.extent;
        let spare = extent.start.get() + u64::from(extent.length);
        let wanted = Wanted {
            spare: spare..spare + u64::from(new.spare),
            written: new.written,
            ..Wanted::near(extent.start)
        };
        let (_, freed) = self.change_tree(handle, inode, wanted, |root, nodes, unmapped| {
            if nodes.are_pointers {
                indirect::insert(root, nodes, extent)?;
            } else {
                extents::insert(root, nodes, extent)?;
            }
            nodes.count_taken(new.clusters << self.store.geometry.cluster_bits);
            if new.spare > 0 {
                unmapped.runs.push((BlockNumber(spare), new.spare));
            }
            Ok(())
        })?;
        for (start, count) in freed.clusters.0 {
            self.groups.free(handle, start, count)?;
        }
        Ok(())
    }

    /// Unmaps and frees the blocks of a range, from its end backwards, touching at most `budget`
    /// tree entries. Returns the end of the range for the next call, or `None` when everything is
    /// freed. A hole in the middle of an extent may need a node: if the volume is full, that is
    /// made of a block of the hole, unless nodes take clusters of several blocks.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io` from the tree. `Refused(NoSpace)` if the volume is full and the hole has
    /// fewer blocks than the tree needs nodes; nothing is changed then.
    pub fn unmap(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        _map: &mut Map,
        range: Range<u64>,
        budget: u32,
    ) -> Result<Option<u64>> {
        let without_spare = self.unmap_with(handle, inode, range.clone(), budget, 0..0);
        match without_spare {
            Err(error) if error.is(Refusal::NoSpace) => {
                let spare = self.blocks_of_hole(inode, &range)?;
                if spare.is_empty() {
                    return Err(error);
                }
                self.unmap_with(handle, inode, range, budget, spare)
            }
            done => done,
        }
    }

    /// The blocks that a hole in the middle of an extent will free; none if the range is no such
    /// hole, or not of a regular file.
    fn blocks_of_hole(&self, inode: &Inode, range: &Range<u64>) -> Result<Range<u64>> {
        let first = logical(range.start)?;
        // A node takes a whole cluster.
        let is_file = inode.file_type() == FileType::Regular && self.cluster() == 1;
        Ok(match self.lookup(inode, first)? {
            Mapping::Mapped(extent) if is_file && extent.end() >= range.end => {
                let start = extent.start.get() + range.start - u64::from(extent.logical.get());
                start..start + (range.end - range.start)
            }
            _ => 0..0,
        })
    }

    fn unmap_with(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        range: Range<u64>,
        budget: u32,
        spare: Range<u64>,
    ) -> Result<Option<u64>> {
        let is_metadata = inode.file_type() != FileType::Regular;
        let limit = Limit {
            entries: budget,
            blocks: match is_metadata {
                true => MAX_FORGOTTEN.into(),
                false => u64::MAX,
            },
        };
        let (left, freed) = self.unmap_in(handle, inode, range, limit, spare)?;
        // After an error the others are freed too: no map refers to any of them any more.
        let mut outcome = Ok(());
        if is_metadata && self.cluster() == 1 {
            for block in blocks_of(&freed.clusters.0) {
                outcome = outcome.and(self.groups.free_metadata(handle, block));
            }
            return outcome.map(|()| left);
        }
        for block in blocks_of(&freed.blocks).filter(|_| is_metadata) {
            let _ = handle.forget(block);
        }
        for (start, count) in freed.clusters.0 {
            outcome = outcome.and(self.groups.free(handle, start, count));
        }
        outcome.map(|()| left)
    }

    /// As [`Inodes::unmap`], but the blocks stay in use: the caller, who holds the map lock, gets
    /// them, besides the end of the range for the next call. Nodes that hold nothing any more are
    /// freed. Only where a cluster is one block. No block is forgotten, so the blocks of a run come
    /// at once, whatever kind of file they are of.
    ///
    /// # Errors
    ///
    /// As [`Inodes::unmap`].
    pub(super) fn unmap_runs(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        range: Range<u64>,
        budget: u32,
    ) -> Result<(Option<u64>, Runs)> {
        let limit = Limit {
            entries: budget,
            blocks: u64::MAX,
        };
        let (left, freed) = self.unmap_in(handle, inode, range, limit, 0..0)?;
        Ok((left, freed.clusters.0))
    }

    /// Unmaps blocks of a range. Where the volume is full, new nodes are made of `spare` blocks.
    fn unmap_in(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        range: Range<u64>,
        limit: Limit,
        spare: Range<u64>,
    ) -> Result<(Option<u64>, Freed)> {
        let wanted = Wanted {
            spare,
            ..Wanted::near(self.home_goal(inode))
        };
        let beside = self.clusters_beside(inode, &range)?;
        self.change_tree(handle, inode, wanted, |root, nodes, unmapped| {
            let Range { start, end } = range;
            let runs = &mut unmapped.runs;
            let left = if nodes.are_pointers {
                indirect::remove(root, nodes, start..end, limit, runs)
            } else {
                remove_extents(root, nodes, start..end, limit, runs)
            }?;
            (unmapped.left, unmapped.beside) = (left, beside);
            Ok(left)
        })
    }

    /// Converts blocks of a range that are not in `state`; see [`extents::convert`].
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if the tree needs a node and there is none; nothing is changed then.
    pub fn convert(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        _map: &mut Map,
        (logical, length): (LogicalBlock, u32),
        state: BlockState,
    ) -> Result<()> {
        let wanted = Wanted::near(self.home_goal(inode));
        let changed = self.change_tree(handle, inode, wanted, |root, nodes, _| {
            extents::convert(root, nodes, logical, length, state)
        });
        changed.map(|_| ())
    }

    /// The first block of the inode's group: the goal of a file without blocks.
    pub fn home_goal(&self, inode: &Inode) -> BlockNumber {
        self.groups.goal_of(inode.number())
    }

    /// Where blocks may be located that extents, or pointers, will refer to.
    pub(super) fn zone(&self, are_pointers: bool) -> Zone {
        match are_pointers {
            true => Zone::of_pointers(&self.store.geometry),
            false => Zone::Anywhere,
        }
    }

    /// Whether this file may use the reserved blocks.
    pub fn may_use_reserve(&self, inode: &Inode) -> bool {
        let (_, group) = inode.mode_and_group();
        self.store.may_use_reserve(inode.owner(), group)
    }

    /// Releases a file's unused preallocation.
    pub fn drop_preallocation(&self, inode: &Inode) {
        if !inode.may_have_preallocation() {
            return;
        }
        let mut map = inode.map.lock();
        let taken = map.preallocation.take();
        inode.note_preallocation(&map);
        drop(map);
        if let Some(preallocation) = taken {
            self.groups.discard(&preallocation);
        }
    }
}

/// Each block of runs.
fn blocks_of(runs: &Runs) -> impl Iterator<Item = BlockNumber> + '_ {
    let steps = |&(start, length): &(BlockNumber, u32)| {
        (0..length).filter_map(move |step| start.checked_add(step))
    };
    runs.iter().flat_map(steps)
}

/// Removes a range from an extent tree, for [`Inodes::unmap`].
fn remove_extents(
    root: &mut Root,
    nodes: &mut Nodes<'_, '_>,
    range: Range<u64>,
    limit: Limit,
    freed: &mut Runs,
) -> Result<Option<u64>> {
    let start = match extents::last_end(root, nodes, &range)? {
        Some(end) => range.start.max(end.saturating_sub(limit.blocks)),
        None => range.start,
    };
    let step = start..range.end;
    let left = extents::remove(root, nodes, step, limit.entries, &mut |start, length| {
        freed.push((start, length))
    })?;
    Ok(left.or((start > range.start).then_some(start)))
}
