//! Fills holes of files: finds where the blocks should be, allocates them, has their data written,
//! and maps them.

use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::{BlockNumber, LogicalBlock, extent};

use crate::error::{Refusal, Result};
use crate::inode::clusters::Place;
use crate::inode::data::logical;
use crate::inode::extents::{Extent, Hole, Mapping};
use crate::inode::inodes::Inodes;
use crate::inode::mapping::NewRun;
use crate::inode::{Inode, Map};
use crate::mballoc::{Purpose, Request, Run};

/// Widest gap in a file, in blocks, for which room is left on the device.
const MAX_GAP: u32 = 8192;

/// Blocks of a file to be allocated and mapped.
pub struct Filling {
    /// A hole of the file, or the beginning of one.
    pub blocks: Range<u64>,
    /// Whether they are mapped unwritten.
    pub unwritten: bool,
    /// The hole, if a lookup under the same hold of the inode's lock has found it.
    pub hole: Option<Hole>,
}

impl Filling {
    /// Blocks that are written at once, of a hole of which no more is known.
    pub fn written(blocks: Range<u64>) -> Self {
        Self {
            blocks,
            unwritten: false,
            hole: None,
        }
    }
}

impl Inodes {
    /// Allocates blocks for the start of a hole and maps them: one run, possibly shorter than the
    /// hole, which is returned. Where data is written in place, [`Inodes::settle_cluster`] comes
    /// before.
    ///
    /// `fill` writes the data of written blocks before they are mapped, and returns where in the
    /// file it ends, in bytes, for [`Inodes::note_written`]; `None` if nothing is to be noted.
    /// Where nothing else is free, the last blocks become nodes of the tree and are not mapped.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)`; nothing is changed then.
    pub fn fill_hole(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        filling: Filling,
        fill: impl FnOnce(Extent) -> Result<Option<u64>>,
    ) -> Result<Extent> {
        let mut map = inode.map.lock();
        let Filling {
            blocks, unwritten, ..
        } = filling;
        let logical = logical(blocks.start)?;
        let most = if unwritten {
            extent::MAX_UNWRITTEN_LENGTH
        } else {
            extent::MAX_WRITTEN_LENGTH
        };
        let mut length = u32::try_from(blocks.end - blocks.start)
            .unwrap_or(u32::MAX)
            .min(most);
        if !Self::uses_extents(inode) {
            length = length.min(self.room_in_map(inode, logical)?);
            if unwritten {
                // A block map cannot represent unwritten blocks.
                return Err(Refusal::NotSupported.into());
            }
            if self.cluster() > 1 {
                // With clusters of several blocks no file may have a block map.
                return Err(Refusal::NotSupported.into());
            }
        }
        let hole = u64::from(logical.get())..u64::from(logical.get()) + u64::from(length);
        let blocks = match self.place_in_clusters(inode, hole)? {
            Place::New(blocks) => blocks,
            Place::Own(start, length) => {
                let extent = Extent {
                    logical,
                    start,
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                    unwritten,
                };
                return self.fill_and_map(handle, inode, &mut map, (extent, 0), fill);
            }
        };
        let request = Request {
            goal: self.goal(inode, logical, filling.hole)?,
            stream_goal: map.stream_goal,
            ..self.request_for(inode, logical, &blocks)
        };
        let run = self
            .groups
            .allocate_for_file(handle, &request, &mut map.preallocation);
        inode.note_preallocation(&map);
        let run = run?;
        let own_goal = self.groups.own_stream_goal(&request, run);
        map.stream_goal = own_goal.or(map.stream_goal);
        let extent = self.part_of_clusters(run, blocks, unwritten)?;
        let mapped = self.fill_and_map(handle, inode, &mut map, (extent, run.length), fill);
        if mapped.is_err() {
            self.groups.free(handle, run.start, run.length)?;
        }
        mapped
    }

    /// A request for new clusters for these blocks of a file, the first of which is `logical`.
    fn request_for(&self, inode: &Inode, logical: LogicalBlock, blocks: &Range<u64>) -> Request {
        Request {
            inode: inode.number(),
            logical: LogicalBlock(logical.get() >> self.store.geometry.cluster_bits),
            length: self.clusters_for(blocks),
            goal: self.home_goal(inode),
            purpose: match inode.is_directory() {
                true => Purpose::Entries,
                false => Purpose::Data,
            },
            may_use_reserve: self.may_use_reserve(inode),
            size: inode.size(),
            stream_goal: None,
            zone: self.zone(!Self::uses_extents(inode)),
        }
    }

    /// Has the data of blocks written, and maps them; the file has got `clusters` for them. Returns
    /// what is mapped, as [`Inodes::fill_hole`].
    fn fill_and_map(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        map: &mut Map,
        (extent, clusters): (Extent, u32),
        fill: impl FnOnce(Extent) -> Result<Option<u64>>,
    ) -> Result<Extent> {
        let end = fill(extent)?;
        let mut spare = 0;
        loop {
            let length = extent.length - spare;
            let mapped = Extent { length, ..extent };
            let end = end.map(|end| end.min(self.extent_end(&mapped)));
            let new = NewRun {
                extent: mapped,
                clusters,
                spare,
                written: end.map(|end| self.written(handle, inode, end)),
            };
            match self.map(handle, inode, map, new) {
                Err(error) if error.is(Refusal::NoSpace) && spare < self.spare_of(&extent) => {
                    spare += 1;
                }
                result => return result.map(|()| mapped),
            }
        }
    }

    /// How many of a run's blocks may become nodes: all but one, and no more than a new extent
    /// adds, which is one in each level and a new level. None where a node takes a whole cluster.
    fn spare_of(&self, extent: &Extent) -> u32 {
        match self.cluster() {
            1 => (extent.length - 1).min(u32::from(extent::MAX_DEPTH) + 1),
            _ => 0,
        }
    }

    /// The number of clusters in which these blocks of a file are.
    fn clusters_for(&self, blocks: &Range<u64>) -> u32 {
        let first = self.cluster_start(blocks.start);
        let bits = self.store.geometry.cluster_bits;
        let count = (blocks.end - first + self.cluster() - 1) >> bits;
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The first of these blocks of a file, as far as new clusters hold them.
    fn part_of_clusters(&self, run: Run, blocks: Range<u64>, unwritten: bool) -> Result<Extent> {
        let before = blocks.start - self.cluster_start(blocks.start);
        let room = u64::from(run.length) * self.cluster() - before;
        let length = room.min(blocks.end - blocks.start);
        Ok(Extent {
            logical: logical(blocks.start)?,
            start: BlockNumber(run.start.get() + before),
            length: u32::try_from(length).map_err(|_| Refusal::FileTooLarge)?,
            unwritten,
        })
    }

    /// The goal for `logical`, which is not mapped: where it would be if it continued the extent
    /// before it in the file, or preceded the one after it; else the start of the inode's group.
    ///
    /// The kernel writes the pages of a file in several requests, which may be served in any order.
    /// With gaps between them as wide as what is still to come, they become one run.
    fn goal(
        &self,
        inode: &Inode,
        logical: LogicalBlock,
        hole: Option<Hole>,
    ) -> Result<BlockNumber> {
        if !Self::uses_extents(inode) {
            return self.goal_in_map(inode, logical);
        }
        let hole = match hole {
            Some(hole) => Mapping::Hole(hole),
            None => self.lookup(inode, logical)?,
        };
        let (before, after) = match hole {
            Mapping::Hole(hole) => (hole.before, hole.after),
            // The tree will refuse to map it again.
            Mapping::Mapped(extent) => (Some(extent), None),
        };
        if let Some(before) = before {
            self.check_extent(&before)
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
            Some(before) => self.lookup(inode, before)?,
            None => return Ok(self.home_goal(inode)),
        };
        Ok(match before {
            Mapping::Mapped(extent) => extent
                .start
                .checked_add(extent.length)
                .unwrap_or(extent.start),
            Mapping::Hole(_) => self.home_goal(inode),
        })
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
