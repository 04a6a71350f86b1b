//! Maps that lead to a block twice.
//!
//! A sound map never does. In a damaged one a few blocks can stand for as many as a directory may
//! have, and a search would read all of them, each time. So the map of a large directory is walked
//! once, when it is first used, and the directory is refused if a block has two places in it. What
//! is added later comes from the allocator.
//!
//! Blocks of directories and of symbolic links are forgotten one by one when they are freed, and in
//! a damaged map they can be 2^32. So such a map is walked before that, and an inode whose map has
//! a block in two places keeps all its blocks.

use pext4_ondisk::extent::LOGICAL_END;
use pext4_ondisk::{Corrupt, LogicalBlock};
use pext4_sync::atomic::Ordering;

use super::Inode;
use super::extents::{Extent, Mapping};
use super::inodes::Inodes;
use super::walk_limit::WalkLimit;
use crate::error::{Error, Result};
use crate::types::FileType;

/// Directories of at most so many blocks are not walked: all of them are soon read.
const MAX_UNCHECKED: u32 = 1000;

/// A directory with more damaged places in its map is refused. Two pointer blocks of 64 KiB in
/// which each pointer is bad have so many.
const MAX_DAMAGED: u32 = 1 << 15;

/// What is known of a directory's map.
pub(super) mod map_is {
    pub const UNCHECKED: u8 = 0;
    pub const SOUND: u8 = 1;
    pub const SHARED: u8 = 2;
    pub const BROKEN: u8 = 3;
}

/// Whether runs overlap.
pub(crate) fn share_blocks(runs: &[Extent]) -> bool {
    let mut places: Vec<(u64, u64)> = runs
        .iter()
        .map(|run| (run.start.get(), u64::from(run.length)))
        .collect();
    places.sort_unstable();
    places
        .windows(2)
        .any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
}

impl Inodes {
    /// Refuses a directory of `blocks` blocks if it is large and its map has a block in two places,
    /// or is damaged in very many. The caller holds the directory's lock.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn check_map_of_directory(&self, directory: &Inode, blocks: u32) -> Result<()> {
        if blocks <= MAX_UNCHECKED {
            return Ok(());
        }
        let mut known = directory.map_is.load(Ordering::Relaxed);
        if known == map_is::UNCHECKED {
            known = self.judge_map(directory, blocks)?;
            directory.map_is.store(known, Ordering::Relaxed);
        }
        let problem = match known {
            map_is::SOUND => return Ok(()),
            map_is::BROKEN => "has a map that is damaged in very many places",
            _ => "has a block in two places",
        };
        let corrupt = Corrupt::new("directory", problem);
        Err(corrupt.in_inode(directory.number()).into())
    }

    /// Refuses to free the blocks of an inode, other than a regular file, whose map has a block in
    /// two places or cannot be read to its end. What one step frees needs no walk. The caller holds
    /// the inode's lock.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`; the inode must stay an orphan then.
    pub(crate) fn check_map_to_free(&self, inode: &Inode) -> Result<()> {
        let is_file = inode.file_type() == FileType::Regular;
        if is_file || self.is_freed_in_one_step(inode)? {
            return Ok(());
        }
        let runs = self.runs_of_map(inode, LOGICAL_END, Err)?;
        if share_blocks(&runs) {
            let corrupt = Corrupt::new("map of a file", "has a block in two places");
            return Err(corrupt.in_inode(inode.number()).into());
        }
        Ok(())
    }

    /// Walks the map of the first blocks of a directory, without what is below nodes that are
    /// damaged: no search reads that.
    fn judge_map(&self, directory: &Inode, blocks: u32) -> Result<u8> {
        let mut damaged = 0;
        let runs = self.runs_of_map(directory, u64::from(blocks), |error| {
            damaged += u32::from(matches!(error, Error::Corrupt(_)));
            match error {
                Error::Corrupt(_) if damaged <= MAX_DAMAGED => Ok(()),
                error => Err(error),
            }
        });
        match runs {
            Ok(runs) if !share_blocks(&runs) => Ok(map_is::SOUND),
            Err(Error::Corrupt(_)) if damaged > MAX_DAMAGED => Ok(map_is::BROKEN),
            Ok(_) | Err(Error::Corrupt(_)) => Ok(map_is::SHARED),
            Err(error) => Err(error),
        }
    }

    /// The runs that the map of an inode has for its blocks before `end`, which is at most
    /// [`LOGICAL_END`]. Of a block that cannot be looked up `judge` gets the error; if it returns
    /// none, the blocks for which the same is true are left out.
    ///
    /// # Errors
    ///
    /// Those of `judge`; `Corrupt` if the map leads to more blocks than a sound one does.
    fn runs_of_map(
        &self,
        inode: &Inode,
        end: u64,
        mut judge: impl FnMut(Error) -> Result<()>,
    ) -> Result<Vec<Extent>> {
        let root = inode.root();
        let mut limit = WalkLimit::new(&self.store, inode);
        let mut runs = Vec::new();
        let mut block = 0;
        while block < end {
            let logical = LogicalBlock(u32::try_from(block).expect("below a number of 32 bits"));
            let mapping = match self.lookup_unchecked(inode, &root, logical) {
                Ok(mapping) => mapping,
                Err(error) => {
                    judge(error)?;
                    block = self.end_of_damage(inode, &root, logical);
                    continue;
                }
            };
            limit.pass(&mapping)?;
            block = match mapping {
                Mapping::Hole(hole) => hole.end(),
                Mapping::Mapped(extent) => {
                    runs.push(extent);
                    extent.end()
                }
            };
        }
        Ok(runs)
    }
}
