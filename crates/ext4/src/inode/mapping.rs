//! Maps a file's blocks to the device's: connects the extent tree or block map with the journal,
//! the buffers and the allocator.
//!
//! The tree's root is in the inode's slot. A change copies the root, runs the tree operation under
//! the map lock held for writing, and stores the root again under the state lock, so the committer
//! sees either the old root or the new one. Tree nodes are edited in place as shared pages. An
//! operation reserves the nodes that it may need before its first change (there is no undo).
//!
//! Files of the older format have a block map in place of the tree (`indirect`), on the same node
//! store: its pointer blocks are nodes without checksums.

use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Buffer, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::extent::Bounds;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock, extent};

use crate::error::{Error, Refusal, Result};
use crate::inode::extents::{self, BlockState, Extent, Mapping, NodeStore};
use crate::inode::indirect::{self, Limit};
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Map, Reach, Root};
use crate::mballoc::{Purpose, Request, Zone};
use crate::seal;

/// Maximum number of blocks of a directory or symbolic link that one step frees: each needs a
/// revoke record.
pub(crate) const MAX_FORGOTTEN: u32 = 64;

/// Widest gap in a file, in blocks, for which room is left on the device.
const MAX_GAP: u32 = 8192;

/// The tree nodes of one inode.
struct Nodes<'a, 'h> {
    inodes: &'a Inodes,
    inode: &'a Inode,
    generation: u32,
    /// Whether the nodes are pointer blocks, which carry no checksum.
    are_pointers: bool,
    change: Option<Change<'a, 'h>>,
}

/// The state of an operation that changes the tree.
struct Change<'a, 'h> {
    handle: &'a mut Handle<'h>,
    goal: BlockNumber,
    reserved: Vec<BlockNumber>,
    /// Change of the number of blocks of the file, nodes included.
    blocks: i64,
    /// Whether a node was changed: after that a failure cannot be undone.
    has_begun: bool,
}

impl<'a, 'h> Nodes<'a, 'h> {
    fn changing(&mut self) -> &mut Change<'a, 'h> {
        self.change
            .as_mut()
            .expect("tree operations that change are given a handle")
    }

    /// Counts data blocks that were mapped (positive) or unmapped (negative).
    fn count(&mut self, blocks: i64) {
        self.changing().blocks += blocks;
    }

    fn verify(&self, page: &[u8], depth: u16) -> std::result::Result<(), Corrupt> {
        self.verify_sum(page)?;
        extents::check_node(page, depth, &self.inodes.store.bounds())
    }

    fn verify_sum(&self, page: &[u8]) -> std::result::Result<(), Corrupt> {
        let store = &self.inodes.store;
        if store.metadata_csum {
            extent::verify_node(
                store.checksum_seed,
                self.inode.number(),
                self.generation,
                page,
            )?;
        }
        Ok(())
    }

    /// Whether a node must still be verified. A pointer block has nothing to verify: each pointer
    /// is checked when it is used.
    fn is_unverified(&self, buffer: &Buffer) -> bool {
        !self.are_pointers && !buffer.is_verified()
    }

    fn stamp(&self) -> Stamp {
        if self.are_pointers {
            return Stamp::NONE;
        }
        seal::extent_node(self.inode.number(), self.generation)
    }
}

impl NodeStore for Nodes<'_, '_> {
    fn bounds(&self) -> Bounds {
        self.inodes.store.bounds()
    }

    fn block_size(&self) -> usize {
        self.inodes.store.block_size() as usize
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let store = &self.inodes.store;
        self.inodes.check_not_metadata(block, 1)?;
        let buffer = store.read_frequent_block(block)?;
        let state = buffer.read();
        if self.is_unverified(&buffer) {
            self.verify(state.page(), depth)
                .map_err(|corrupt| corrupt.in_block(block).in_inode(self.inode.number()))?;
            buffer.set_verified();
        }
        look(state.page())
    }

    fn check_mapped(&self, start: BlockNumber, length: u32) -> Result<()> {
        self.inodes.check_not_metadata(start, length)
    }

    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let stamp = self.stamp();
        let buffer = self.inodes.store.read_frequent_block(block)?;
        // The node may have been evicted since it was read, and after the edit its checksum is
        // stale until the commit.
        if !self.are_pointers {
            let verified = buffer.verify(|page| self.verify_sum(page));
            verified.map_err(|corrupt| corrupt.in_block(block).in_inode(self.inode.number()))?;
        }
        let own = self.changing();
        own.has_begun = true;
        Ok(own.handle.edit(&buffer, stamp, change))
    }

    fn reserve(&mut self, nodes: u32) -> Result<()> {
        let (inodes, number) = (self.inodes, self.inode.number());
        let zone = inodes.zone(self.are_pointers);
        let change = self.changing();
        while change.reserved.len() < nodes as usize {
            let request = Request {
                purpose: Purpose::Metadata,
                zone,
                ..Request::one(number, change.goal)
            };
            let run = inodes.groups.allocate(change.handle, &request)?;
            change.reserved.push(run.start);
        }
        Ok(())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        let stamp = self.stamp();
        let number = self.inode.number();
        let change = self.changing();
        let block = change.reserved.pop().ok_or_else(|| {
            Error::from(
                Corrupt::new("extent tree", "needs more nodes than its shape allows")
                    .in_inode(number),
            )
        })?;
        change.handle.create(block, stamp);
        change.has_begun = true;
        change.blocks += 1;
        Ok(block)
    }

    fn free(&mut self, block: BlockNumber) -> Result<()> {
        let inodes = self.inodes;
        let change = self.changing();
        inodes.groups.free_metadata(change.handle, block)?;
        change.has_begun = true;
        change.blocks -= 1;
        Ok(())
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

    fn nodes<'a, 'h>(
        &'a self,
        inode: &'a Inode,
        handle: Option<&'a mut Handle<'h>>,
        goal: BlockNumber,
    ) -> Nodes<'a, 'h> {
        Nodes {
            inodes: self,
            inode,
            generation: inode.generation(),
            are_pointers: !Self::uses_extents(inode),
            change: handle.map(|handle| Change {
                handle,
                goal,
                reserved: Vec::new(),
                blocks: 0,
                has_begun: false,
            }),
        }
    }

    /// What one block of the file maps to, and up to which block the mapping extends.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io` from the tree.
    pub fn lookup(&self, inode: &Inode, logical: LogicalBlock) -> Result<Mapping> {
        let _map = inode.map.read();
        self.lookup_locked(inode, logical)
    }

    fn lookup_locked(&self, inode: &Inode, logical: LogicalBlock) -> Result<Mapping> {
        self.lookup_with_root(inode, &inode.root(), logical)
    }

    /// As [`Self::lookup`], without the map lock, if the map cannot change: that of a directory
    /// whose lock the caller holds. `root` is the root of the map, read while holding that lock.
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
        let mapping = self.lookup_any(inode, root, logical)?;
        if let Mapping::Mapped(extent) = &mapping {
            self.check_not_metadata(extent.start, extent.length)
                .map_err(|error| error.in_inode(inode.number()))?;
        }
        Ok(mapping)
    }

    fn lookup_any(&self, inode: &Inode, root: &Root, logical: LogicalBlock) -> Result<Mapping> {
        if inode.is_inline() {
            let corrupt = Corrupt::new("inode", "its content is not in blocks");
            return Err(corrupt.in_inode(inode.number()).into());
        }
        let nodes = self.nodes(inode, None, BlockNumber::default());
        let mapping = if nodes.are_pointers {
            indirect::lookup(root, &nodes, logical)
        } else {
            extents::lookup(root, &nodes, logical)
        };
        mapping.map_err(|error| error.in_inode(inode.number()))
    }

    /// Runs a tree operation that changes the map, and stores the root and the block count.
    /// The caller holds the map lock for writing.
    fn change_tree<R>(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        goal: BlockNumber,
        operation: impl FnOnce(&mut Root, &mut Nodes<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let before = inode.root();
        let mut root = before;
        let mut nodes = self.nodes(inode, Some(handle), goal);
        let result = operation(&mut root, &mut nodes);
        let change = nodes.change.take().expect("given above");
        if let Err(error) = &result
            && change.has_begun
        {
            let what = format!("the map of inode {} was left half changed", inode.number());
            self.store.stop_half_done(&what, error);
            return result;
        }
        // There is nothing to unmap in a hole. A change of a node alone counts as one of the inode,
        // or `fdatasync` would not wait for its transaction.
        let is_changed = change.has_begun || change.blocks != 0 || root != before;
        if result.is_ok()
            && is_changed
            && let Err(error) = self.store_root(change.handle, inode, root, change.blocks)
        {
            let what = format!("inode {} has more blocks than it can count", inode.number());
            self.store.stop_half_done(&what, &error);
            return Err(error);
        }
        for block in change.reserved {
            self.groups.free(change.handle, block, 1)?;
        }
        result.map_err(|error| error.in_inode(inode.number()))
    }

    fn store_root(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        root: Root,
        blocks: i64,
    ) -> Result<()> {
        let fits = inode.edit(handle, Reach::Data, |state| {
            state.slot.block = root;
            self.store.count_blocks(&mut state.slot, blocks)
        });
        if fits {
            Ok(())
        } else {
            Err(Refusal::FileTooLarge.into())
        }
    }

    /// Maps a run of blocks into a hole of the file.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if the tree needs a node and there is none; nothing is changed then.
    pub fn map(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        _map: &mut Map,
        extent: Extent,
    ) -> Result<()> {
        self.change_tree(handle, inode, extent.start, |root, nodes| {
            if nodes.are_pointers {
                indirect::insert(root, nodes, extent)?;
            } else {
                extents::insert(root, nodes, extent)?;
            }
            nodes.count(i64::from(extent.length));
            Ok(())
        })
    }

    /// Unmaps and frees the blocks of a range, from its end backwards, touching at most `budget`
    /// tree entries. Returns the end of the range for the next call, or `None` when everything is
    /// freed.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io` from the tree.
    pub fn unmap(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        _map: &mut Map,
        range: Range<u64>,
        budget: u32,
    ) -> Result<Option<u64>> {
        let is_metadata = inode.file_type() != crate::types::FileType::Regular;
        let mut freed = Vec::new();
        let left = self.change_tree(handle, inode, self.home_goal(inode), |root, nodes| {
            let left = if nodes.are_pointers {
                let blocks = if is_metadata {
                    u64::from(MAX_FORGOTTEN)
                } else {
                    u64::MAX
                };
                let entries = budget;
                indirect::remove(root, nodes, range, Limit { entries, blocks }, &mut freed)?
            } else {
                remove_extents(root, nodes, range, budget, is_metadata, &mut freed)?
            };
            nodes.count(
                -freed
                    .iter()
                    .map(|&(_, length)| i64::from(length))
                    .sum::<i64>(),
            );
            Ok(left)
        })?;
        for (start, length) in freed {
            if !is_metadata {
                self.groups.free(handle, start, length)?;
                continue;
            }
            for block in (0..length).filter_map(|step| start.checked_add(step)) {
                self.groups.free_metadata(handle, block)?;
            }
        }
        Ok(left)
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
        self.change_tree(handle, inode, self.home_goal(inode), |root, nodes| {
            extents::convert(root, nodes, logical, length, state)
        })
    }

    /// The first block of the inode's group: the goal of a file without blocks.
    pub fn home_goal(&self, inode: &Inode) -> BlockNumber {
        self.groups.goal_of(inode.number())
    }

    /// Allocates blocks for the start of a hole and maps them: one run, possibly shorter than the
    /// hole.
    ///
    /// `fill` writes the data of written blocks before they are mapped.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)`; nothing is changed then.
    pub fn fill_hole(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        hole: Range<u64>,
        unwritten: bool,
        fill: impl FnOnce(Extent) -> Result<()>,
    ) -> Result<Extent> {
        let mut map = inode.map.write();
        let logical = LogicalBlock(u32::try_from(hole.start).map_err(|_| Refusal::FileTooLarge)?);
        let most = if unwritten {
            extent::MAX_UNWRITTEN_LENGTH
        } else {
            extent::MAX_WRITTEN_LENGTH
        };
        let mut length = u32::try_from(hole.end - hole.start)
            .unwrap_or(u32::MAX)
            .min(most);
        if !Self::uses_extents(inode) {
            let room = indirect::room(logical, self.store.block_size());
            length = length.min(room.ok_or(Refusal::FileTooLarge)?);
            if unwritten {
                // A block map cannot represent unwritten blocks.
                return Err(Refusal::NotSupported.into());
            }
        }
        let request = Request {
            inode: inode.number(),
            logical,
            length,
            goal: self.goal(inode, logical)?,
            purpose: match inode.is_directory() {
                true => Purpose::Entries,
                false => Purpose::Data,
            },
            may_use_reserve: self.may_use_reserve(inode),
            size: inode.size(),
            stream_goal: map.stream_goal,
            zone: self.zone(!Self::uses_extents(inode)),
        };
        let run = self
            .groups
            .allocate_for_file(handle, &request, &mut map.preallocation)?;
        let own_goal = self.groups.own_stream_goal(&request, run);
        map.stream_goal = own_goal.or(map.stream_goal);
        let extent = Extent {
            logical,
            start: run.start,
            length: run.length,
            unwritten,
        };
        let mapped = fill(extent).and_then(|()| self.map(handle, inode, &mut map, extent));
        if let Err(error) = mapped {
            self.groups.free(handle, run.start, run.length)?;
            return Err(error);
        }
        Ok(extent)
    }

    /// Where blocks may be located that extents, or pointers, will refer to.
    fn zone(&self, are_pointers: bool) -> Zone {
        match are_pointers {
            true => Zone::of_pointers(&self.store.geometry),
            false => Zone::Anywhere,
        }
    }

    /// Whether this file may use the reserved blocks.
    pub fn may_use_reserve(&self, inode: &Inode) -> bool {
        let attributes = inode.attributes();
        self.store.may_use_reserve(attributes.uid, attributes.gid)
    }

    /// The goal for `logical`, which is not mapped: where it would be if it continued the extent
    /// before it in the file, or preceded the one after it; else the start of the inode's group.
    ///
    /// The kernel writes the pages of a file in several requests, which may be served in any order.
    /// With gaps between them as wide as what is still to come, they become one run.
    fn goal(&self, inode: &Inode, logical: LogicalBlock) -> Result<BlockNumber> {
        if !Self::uses_extents(inode) {
            return self.goal_in_map(inode, logical);
        }
        let nodes = self.nodes(inode, None, BlockNumber::default());
        let (before, after) = extents::neighbours(&inode.root(), &nodes, logical)
            .map_err(|error| error.in_inode(inode.number()))?;
        if let Some(before) = before {
            self.check_not_metadata(before.start, before.length)
                .map_err(|error| error.in_inode(inode.number()))?;
            return Ok(continuation(before, logical));
        }
        let preceding = after.and_then(|after| {
            let gap = after.logical.get().checked_sub(logical.get())?;
            after.start.checked_sub(gap).filter(|_| gap <= MAX_GAP)
        });
        Ok(preceding.unwrap_or_else(|| self.home_goal(inode)))
    }

    /// The goal in a block map: after the block that precedes `logical` in the file, else the start
    /// of the inode's group.
    fn goal_in_map(&self, inode: &Inode, logical: LogicalBlock) -> Result<BlockNumber> {
        let before = match logical.checked_sub(1u32) {
            Some(before) => self.lookup_locked(inode, before)?,
            None => return Ok(self.home_goal(inode)),
        };
        Ok(match before {
            Mapping::Mapped(extent) => extent
                .start
                .checked_add(extent.length)
                .unwrap_or(extent.start),
            Mapping::Hole { .. } => self.home_goal(inode),
        })
    }

    /// Releases a file's unused preallocation.
    pub fn drop_preallocation(&self, inode: &Inode) {
        let taken = inode.map.write().preallocation.take();
        if let Some(preallocation) = taken {
            self.groups.release(&preallocation);
        }
    }
}

/// Where `logical`, which is behind an extent, is if it continues it. A wide gap is a hole that
/// nobody fills soon, so it is left out.
fn continuation(extent: Extent, logical: LogicalBlock) -> BlockNumber {
    let offset = logical.get().saturating_sub(extent.logical.get());
    let gap = offset.saturating_sub(extent.length);
    let offset = if gap <= MAX_GAP {
        offset
    } else {
        extent.length
    };
    extent.start.checked_add(offset).unwrap_or(extent.start)
}

/// Removes a range from an extent tree, for [`Inodes::unmap`].
fn remove_extents(
    root: &mut Root,
    nodes: &mut Nodes<'_, '_>,
    range: Range<u64>,
    budget: u32,
    is_metadata: bool,
    freed: &mut Vec<(BlockNumber, u32)>,
) -> Result<Option<u64>> {
    let start = match extents::last_end(root, nodes, &range)? {
        Some(end) if is_metadata => range
            .start
            .max(end.saturating_sub(u64::from(MAX_FORGOTTEN))),
        _ => range.start,
    };
    let step = start..range.end;
    let left = extents::remove(root, nodes, step, budget, &mut |start, length| {
        freed.push((start, length))
    })?;
    Ok(left.or((start > range.start).then_some(start)))
}
