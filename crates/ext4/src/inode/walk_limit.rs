//! The limit of a walk through the map of a file.
//!
//! Nothing in a damaged map keeps its pointers from leading to the same blocks again and again: an
//! image of a few blocks can then pretend to map 2^30 of them, one by one. But a sound file maps no
//! block twice, so a walk that has passed more blocks than the file system has is told that the map
//! is damaged.

use pext4_ondisk::Corrupt;

use super::Inode;
use super::extents::Mapping;
use crate::error::Result;
use crate::store::Store;

/// Between two mapped blocks, or nodes of the map, lies one hole, and each node ends one: in all
/// fewer than this for each block of data or of the map.
const HOLES_PER_BLOCK: u64 = 4;

/// What a walk may still pass.
pub(super) struct WalkLimit<'a> {
    inode: &'a Inode,
    blocks: u64,
    holes: u64,
}

impl<'a> WalkLimit<'a> {
    /// For a walk from its beginning.
    pub fn new(store: &Store, inode: &'a Inode) -> Self {
        let blocks = store.geometry.blocks_count;
        Self {
            inode,
            blocks,
            holes: blocks.saturating_mul(HOLES_PER_BLOCK),
        }
    }

    /// Passes a mapping.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the walk has passed more than a sound file has.
    pub fn pass(&mut self, mapping: &Mapping) -> Result<()> {
        let (left, passed) = match mapping {
            Mapping::Mapped(extent) => (&mut self.blocks, u64::from(extent.length)),
            Mapping::Hole(_) => (&mut self.holes, 1),
        };
        match left.checked_sub(passed) {
            Some(rest) => {
                *left = rest;
                Ok(())
            }
            None => {
                let problem = "leads to more blocks than the file system has";
                let corrupt = Corrupt::new("map of a file", problem);
                Err(corrupt.in_inode(self.inode.number()).into())
            }
        }
    }
}
