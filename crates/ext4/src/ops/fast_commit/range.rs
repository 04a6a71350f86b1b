//! Blocks of files: the ranges of fast commits.

use std::sync::Arc;

use pext4_ondisk::extent::{Extent, LOGICAL_END};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::inode::has_map;
use super::{Application, contradiction};
use crate::error::Result;
use crate::inode::data::MAP_CREDITS;
use crate::inode::extents::{BlockState, Mapping};
use crate::inode::mapping::NewRun;
use crate::inode::{Inode, Runs};
use crate::ops::lock_exclusive;

impl Application<'_> {
    /// Claims the blocks of a range.
    pub(super) fn claim(&mut self, extent: &Extent) -> Result<()> {
        let inodes = &self.volume.inodes;
        if !inodes.store.contains(extent.start, extent.length.into()) {
            let problem = "maps blocks outside the file system";
            let corrupt = Corrupt::new("fast commit", problem);
            return Err(corrupt.in_block(extent.start).into());
        }
        inodes.check_not_metadata(extent.start, extent.length)?;
        let mut handle = inodes.store.start(self.group_credits(extent.length))?;
        let groups = &inodes.groups;
        for run in groups.claim_free(&mut handle, extent.start, extent.length)? {
            let start = run.start.get();
            self.undecided.insert(start..start + u64::from(run.length));
        }
        Ok(())
    }

    /// Makes a range of a file lie where the record says.
    pub(super) fn add_range(&mut self, inode: &Arc<Inode>, extent: &Extent) -> Result<()> {
        // What Linux maps in a directory was not written: its names are told one by one.
        if inode.is_directory() {
            return Ok(());
        }
        let inodes = &self.volume.inodes;
        if !inode.state(|state| has_map(&state.slot))
            || extent.unwritten && inodes.uses_block_map(inode)
        {
            let problem = "maps blocks in a file that can have none of that kind";
            return Err(contradiction(problem, inode.number()).into());
        }
        let _lock = lock_exclusive(inode)?;
        let mut at = extent.logical;
        while let Some(wanted) = extent.part(at.get().into(), extent.end()) {
            let passed = self.map_first(inode, &wanted)?;
            match LogicalBlock(at.get()).checked_add(passed) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Makes the first blocks of `wanted` lie there; returns how many.
    fn map_first(&mut self, inode: &Arc<Inode>, wanted: &Extent) -> Result<u32> {
        let inodes = &self.volume.inodes;
        let first = u64::from(wanted.logical.get());
        let found = inodes.lookup(inode, wanted.logical)?;
        let found_end = match &found {
            Mapping::Mapped(extent) => extent.end(),
            Mapping::Hole(hole) => hole.end(),
        };
        let room = inodes.room_in_map(inode, wanted.logical)?;
        let piece = wanted.part(first, found_end.min(first + u64::from(room)));
        let piece = piece.expect("it begins in what was found");
        if let Mapping::Mapped(extent) = found {
            let there = extent.part(first, piece.end()).expect("it was found there");
            if there.start == piece.start {
                if there.unwritten != piece.unwritten {
                    self.convert(inode, &piece)?;
                }
                return Ok(piece.length);
            }
            let detached = inodes.detach_in_steps(inode, first..piece.end())?;
            self.undecide(detached);
        }
        self.take(inode, &piece)?;
        let mut handle = inodes.store.start(MAP_CREDITS)?;
        let mut map = inode.map.lock();
        let new = NewRun {
            extent: piece,
            clusters: piece.length,
            spare: 0,
            written: None,
        };
        inodes.map(&mut handle, inode, &mut map, new)?;
        Ok(piece.length)
    }

    /// Takes blocks for a file that no other has.
    fn take(&mut self, inode: &Inode, piece: &Extent) -> Result<()> {
        let start = piece.start.get();
        let blocks = start..start + u64::from(piece.length);
        if let Some(gap) = self.undecided.gaps(&blocks).next() {
            let corrupt = contradiction("maps a block that is in use", inode.number());
            return Err(corrupt.in_block(BlockNumber(gap.start)).into());
        }
        self.undecided.remove(blocks);
        Ok(())
    }

    fn convert(&self, inode: &Arc<Inode>, piece: &Extent) -> Result<()> {
        let inodes = &self.volume.inodes;
        let state = match piece.unwritten {
            true => BlockState::Unwritten,
            false => BlockState::Written,
        };
        let mut handle = inodes.store.start(MAP_CREDITS)?;
        let mut map = inode.map.lock();
        let range = (piece.logical, piece.length);
        inodes.convert(&mut handle, inode, &mut map, range, state)
    }

    /// Unmaps a range of a file.
    pub(super) fn delete_range(
        &mut self,
        inode: &Arc<Inode>,
        logical: LogicalBlock,
        length: u32,
    ) -> Result<()> {
        let inodes = &self.volume.inodes;
        if !inode.state(|state| has_map(&state.slot)) {
            return Ok(());
        }
        let start = u64::from(logical.get());
        let end = (start + u64::from(length)).min(LOGICAL_END);
        if start < end {
            let _lock = lock_exclusive(inode)?;
            let detached = inodes.detach_in_steps(inode, start..end)?;
            self.undecide(detached);
        }
        Ok(())
    }

    /// Unmaps all blocks of a file.
    pub(super) fn detach_all(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let detached = self.volume.inodes.detach_in_steps(inode, 0..LOGICAL_END)?;
        self.undecide(detached);
        Ok(())
    }

    fn undecide(&mut self, runs: Runs) {
        for (start, length) in runs {
            let start = start.get();
            self.undecided.insert(start..start + u64::from(length));
        }
    }
}
