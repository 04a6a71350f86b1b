//! The nodes of one inode's extent tree or block map: buffers of the cache, changed within a
//! transaction, with blocks from the allocator.
//!
//! An operation reserves the nodes that it may need before its first change. Where the volume is
//! full, an operation that unmaps blocks may make nodes of these, and one that maps a new run makes
//! them of the run's last blocks. That is safe: a node's bytes go to its home only when its
//! transaction is durable, and from then on the blocks are no data. Until then a crash makes blocks
//! that were unmapped data again, so such a node is not free at once if its transaction drops it,
//! as one whose block was free before.

use std::ops::Range;

use pext4_block::{Buffer, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::extent::Bounds;
use pext4_ondisk::{BlockNumber, Corrupt, extent};

use super::Inode;
use super::extents::{self, Extent, NodeStore};
use super::inodes::Inodes;
use crate::error::{Error, Refusal, Result};
use crate::mballoc::{Purpose, Request};
use crate::seal;

/// Runs of blocks: where each starts, and its length.
pub(crate) type Runs = Vec<(BlockNumber, u32)>;

/// The tree nodes of one inode.
pub(super) struct Nodes<'a, 'h> {
    inodes: &'a Inodes,
    inode: &'a Inode,
    generation: u32,
    /// Whether the nodes are pointer blocks, which carry no checksum.
    pub(super) are_pointers: bool,
    change: Option<TreeChange<'a, 'h>>,
}

/// Why a node that is changed has the state of a change.
const GIVEN: &str = "tree operations that change are given a handle";

/// The state of an operation that changes the tree.
pub(super) struct TreeChange<'a, 'h> {
    pub(super) handle: &'a mut Handle<'h>,
    goal: BlockNumber,
    reserved: Vec<BlockNumber>,
    /// Blocks of the file that nothing maps after the operation, of which it may make nodes on a
    /// full volume, those at the start first.
    spare: Range<u64>,
    /// Blocks that were reserved out of `spare`.
    spared: Vec<BlockNumber>,
    /// Change of the number of blocks of the file, nodes included and those that are freed not.
    pub(super) blocks: i64,
    /// Whether a node was changed: after that a failure cannot be undone.
    pub(super) has_begun: bool,
}

impl TreeChange<'_, '_> {
    /// One of the spare blocks, to be reserved for a node.
    fn take_spare(&mut self) -> Option<BlockNumber> {
        let block = BlockNumber(self.spare.next()?);
        self.spared.push(block);
        Some(block)
    }

    /// Those of `runs`, which nothing maps any more, that are to be freed: all but the spare ones
    /// that are nodes now.
    pub(super) fn to_free(&self, mut runs: Runs) -> Runs {
        let spared = self.spared.iter();
        for node in spared.filter(|block| !self.reserved.contains(block)) {
            runs = runs.iter().flat_map(|run| without(*run, *node)).collect();
        }
        runs
    }

    /// The reserved blocks that were allocated for the operation and not used.
    pub(super) fn unused(&self) -> Runs {
        let reserved = self.reserved.iter();
        let unused = reserved.filter(|block| !self.spared.contains(block));
        unused.map(|block| (*block, 1)).collect()
    }
}

impl<'a, 'h> Nodes<'a, 'h> {
    /// The nodes of an inode, for reading.
    pub(super) fn reading(inodes: &'a Inodes, inode: &'a Inode) -> Self {
        Self {
            inodes,
            inode,
            generation: inode.generation(),
            are_pointers: !Inodes::uses_extents(inode),
            change: None,
        }
    }

    /// The nodes of an inode, for changes. New ones are allocated near `goal`, or where the volume
    /// is full made of `spare` blocks, which nothing maps after the operation.
    pub(super) fn changing(
        inodes: &'a Inodes,
        inode: &'a Inode,
        handle: &'a mut Handle<'h>,
        goal: BlockNumber,
        spare: Range<u64>,
    ) -> Self {
        let change = TreeChange {
            handle,
            goal,
            reserved: Vec::new(),
            spare,
            spared: Vec::new(),
            blocks: 0,
            has_begun: false,
        };
        Self {
            change: Some(change),
            ..Self::reading(inodes, inode)
        }
    }

    /// The end of an operation that changes the tree.
    pub(super) fn into_change(self) -> TreeChange<'a, 'h> {
        self.change.expect(GIVEN)
    }

    fn change(&mut self) -> &mut TreeChange<'a, 'h> {
        self.change.as_mut().expect(GIVEN)
    }

    /// Counts blocks of clusters that the file got for its data.
    pub(super) fn count_taken(&mut self, blocks: u32) {
        self.change().blocks += i64::from(blocks);
    }

    fn verify(&self, page: &[u8], depth: u16) -> std::result::Result<(), Corrupt> {
        self.verify_sum(page)?;
        extents::check_node(page, depth, &self.inodes.store.bounds())
    }

    fn verify_sum(&self, page: &[u8]) -> std::result::Result<(), Corrupt> {
        let geometry = &self.inodes.store.geometry;
        match geometry.inode_seed(self.inode.number(), self.generation) {
            Some(seed) => extent::verify_node(seed, page),
            None => Ok(()),
        }
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

    fn check_extent(&self, extent: &Extent) -> Result<()> {
        self.inodes.check_extent(extent)
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
        let own = self.change();
        own.has_begun = true;
        Ok(own.handle.edit(&buffer, stamp, change))
    }

    fn reserve(&mut self, nodes: u32) -> Result<()> {
        let (inodes, number) = (self.inodes, self.inode.number());
        let zone = inodes.zone(self.are_pointers);
        let change = self.change();
        while change.reserved.len() < nodes as usize {
            let request = Request {
                purpose: Purpose::Metadata,
                zone,
                ..Request::one(number, change.goal)
            };
            let block = match inodes.groups.allocate(change.handle, &request) {
                Ok(run) => run.start,
                Err(error) if error.is(Refusal::NoSpace) => change.take_spare().ok_or(error)?,
                Err(error) => return Err(error),
            };
            change.reserved.push(block);
        }
        Ok(())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        let stamp = self.stamp();
        let number = self.inode.number();
        let cluster = i64::from(self.inodes.store.geometry.blocks_per_cluster);
        let change = self.change();
        let block = change.reserved.pop().ok_or_else(|| {
            Error::from(
                Corrupt::new("extent tree", "needs more nodes than its shape allows")
                    .in_inode(number),
            )
        })?;
        match change.spared.contains(&block) {
            true => change.handle.create_from_data(block, stamp),
            false => change.handle.create(block, stamp),
        };
        change.has_begun = true;
        change.blocks += cluster;
        Ok(block)
    }

    fn free(&mut self, block: BlockNumber) -> Result<()> {
        let inodes = self.inodes;
        let cluster = i64::from(inodes.store.geometry.blocks_per_cluster);
        let change = self.change();
        inodes.groups.free_metadata(change.handle, block)?;
        change.has_begun = true;
        change.blocks -= cluster;
        Ok(())
    }
}

/// A run of blocks without one of them: the parts before and behind it, or all of the run.
fn without(
    (start, length): (BlockNumber, u32),
    block: BlockNumber,
) -> impl Iterator<Item = (BlockNumber, u32)> {
    let before = block.get().checked_sub(start.get());
    let before = before.and_then(|before| u32::try_from(before).ok());
    let parts = match before.filter(|before| *before < length) {
        Some(before) => [
            (start, before),
            (BlockNumber(block.get() + 1), length - before - 1),
        ],
        None => [(start, length), (start, 0)],
    };
    parts.into_iter().filter(|(_, length)| *length > 0)
}
