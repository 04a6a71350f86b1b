//! The limit of a walk through the map of a file.
//!
//! Nothing in a damaged map keeps its pointers from leading to the same blocks again and again: an
//! image of a few blocks can then pretend to map 2^30 of them, one by one. But a sound file maps no
//! block twice, so a walk is told that the map is damaged once it has passed more blocks than the
//! file system has. The file system may claim to be large, too. So a walk through a block map,
//! whose pointer blocks do not say to which part of the file they belong, also remembers the first
//! block that each of them maps: the same one again comes from the same pointer block, or one like
//! it.
//!
//! Memory: one number for each pointer block that a walk passes.

use std::collections::HashSet;

use pext4_ondisk::indirect::{DIRECT, pointers_per_block};
use pext4_ondisk::{BlockNumber, Corrupt};

use super::Inode;
use super::extents::{Extent, Mapping};
use super::inodes::Inodes;
use crate::error::{Error, Result};
use crate::store::Store;

/// Between two mapped blocks, or nodes of the map, lies one hole, and each node ends one: in all
/// fewer than this for each block of data or of the map.
const HOLES_PER_BLOCK: u64 = 4;

/// What a walk may still pass.
pub(super) struct WalkLimit<'a> {
    inode: &'a Inode,
    blocks: u64,
    holes: u64,
    /// In a block map only.
    seen: Option<SeenPointers>,
}

/// The pointer blocks that a walk has passed.
struct SeenPointers {
    /// The number of pointers in one of them.
    fan_out: u64,
    /// The index of the last one, among those that point to data.
    last: Option<u64>,
    /// The first block that each of them maps.
    first_blocks: HashSet<BlockNumber>,
}

impl<'a> WalkLimit<'a> {
    /// For a walk from its beginning.
    pub fn new(store: &Store, inode: &'a Inode) -> Self {
        let blocks = store.geometry.blocks_count;
        let has_pointers = !Inodes::uses_extents(inode);
        Self {
            inode,
            blocks,
            holes: blocks.saturating_mul(HOLES_PER_BLOCK),
            seen: has_pointers.then(|| SeenPointers::new(store.block_size())),
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
        let Some(rest) = left.checked_sub(passed) else {
            return Err(self.corrupt("leads to more blocks than the file system has"));
        };
        *left = rest;
        if let (Some(seen), Mapping::Mapped(extent)) = (&mut self.seen, mapping)
            && !seen.pass(extent)
        {
            return Err(self.corrupt("leads to the same blocks again"));
        }
        Ok(())
    }

    fn corrupt(&self, problem: &'static str) -> Error {
        let corrupt = Corrupt::new("map of a file", problem);
        corrupt.in_inode(self.inode.number()).into()
    }
}

impl SeenPointers {
    fn new(block_size: u32) -> Self {
        Self {
            fan_out: u64::from(pointers_per_block(block_size)),
            last: None,
            first_blocks: HashSet::new(),
        }
    }

    /// Passes a run of blocks; false if it begins a pointer block that was passed before.
    fn pass(&mut self, extent: &Extent) -> bool {
        let behind_direct = u64::from(extent.logical.get()).checked_sub(DIRECT as u64);
        let index = behind_direct.map(|position| position / self.fan_out);
        if index == self.last {
            return true;
        }
        self.last = index;
        self.first_blocks.insert(extent.start)
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::LogicalBlock;

    use super::{BlockNumber, Extent, SeenPointers};

    /// The number of runs of one block that a walk passes before it is told.
    fn passed(start_of: impl Fn(u32) -> u64) -> u32 {
        let mut seen = SeenPointers::new(4096);
        let is_told = |logical: &u32| {
            !seen.pass(&Extent {
                logical: LogicalBlock(*logical),
                start: BlockNumber(start_of(*logical)),
                length: 1,
                unwritten: false,
            })
        };
        (0..1 << 20).find(is_told).unwrap_or(1 << 20)
    }

    #[test]
    fn the_second_pass_of_a_pointer_block_is_told() {
        assert_eq!(passed(|logical| 5000 + 2 * u64::from(logical)), 1 << 20);
        // All pointers lead to one block, or all pointer blocks are the same.
        assert_eq!(passed(|_| 77), 12 + 1024);
        assert_eq!(
            passed(|logical| 100 + u64::from((logical.max(12) - 12) % 1024)),
            12 + 1024
        );
        // Three pointer blocks in turn.
        assert_eq!(
            passed(|logical| 100 + u64::from((logical.max(12) - 12) % 3072)),
            12 + 3072
        );
    }
}
