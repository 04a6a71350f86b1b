//! The block map of files without extents: 12 direct pointers, then trees of one to three levels.
//!
//! The 15 words of an inode's `block` area point to the first 12 blocks of the file, to a block of
//! pointers, to a block of pointers to such blocks, and to one more level. A pointer has 32 bits; 0
//! is a hole (at a higher level, of a whole subtree). Pointer blocks have no checksum. Format: the
//! kernel's `Documentation/filesystems/ext4/blockmap.rst`.

use crate::bytes::{read_u32, write_u32};
use crate::corrupt::Corrupt;
use crate::inode;
use crate::number::{BlockNumber, LogicalBlock};

/// Number of pointers in the inode that point to data.
pub const DIRECT: usize = 12;
/// Bytes of the map in the inode: 15 pointers.
pub const ROOT_SIZE: usize = inode::BLOCK_AREA;
/// Most levels of pointer blocks.
pub const MAX_DEPTH: usize = 3;

const POINTER_SIZE: usize = 4;

/// Number of pointers in a block of `block_size` bytes.
#[must_use]
pub const fn pointers_per_block(block_size: u32) -> u32 {
    block_size / 4
}

/// Blocks of a file below a pointer with so many levels of pointer blocks below it; 1 for none.
#[must_use]
pub fn span(fan_out: u64, levels: usize) -> u64 {
    (0..levels).fold(1, |span, _| span * fan_out)
}

/// The path from the inode to a block: the index of a pointer in the inode, then in each pointer
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    depth: usize,
    offset: u64,
    steps: [usize; MAX_DEPTH + 1],
}

impl Path {
    /// The path to a logical block, where a pointer block has `fan_out` pointers
    /// ([`pointers_per_block`]); `None` if the map cannot reach it.
    #[must_use]
    pub fn to(logical: LogicalBlock, fan_out: u64) -> Option<Self> {
        let mut offset = u64::from(logical.get());
        let mut reach = DIRECT as u64;
        for depth in 0..=MAX_DEPTH {
            if offset < reach {
                return Some(Self::below(depth, offset, fan_out));
            }
            offset -= reach;
            reach = span(fan_out, depth + 1);
        }
        None
    }

    fn below(depth: usize, offset: u64, fan_out: u64) -> Self {
        let index = |offset| usize::try_from(offset).expect("below the pointers of a block");
        let mut steps = [0; MAX_DEPTH + 1];
        let mut rest = offset;
        for step in steps[1..=depth].iter_mut().rev() {
            *step = index(rest % fan_out);
            rest /= fan_out;
        }
        steps[0] = match depth {
            0 => index(offset),
            depth => DIRECT + depth - 1,
        };
        Self {
            depth,
            offset,
            steps,
        }
    }

    /// Number of pointer blocks on the path: 0 for the first 12 blocks.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The index of the block among those below the same pointer of the inode, or of the first 12.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The index of the inode's pointer.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.steps[0]
    }

    /// The index of the pointer in the pointer block at `level`, from [`Path::depth`] below the
    /// inode down to 1, which points to data.
    ///
    /// # Panics
    ///
    /// If the path has no such level.
    #[must_use]
    pub fn step(&self, level: usize) -> usize {
        self.steps()[self.depth + 1 - level]
    }

    /// The indices of the pointers: the first in the inode, each further one in the block that the
    /// pointer before points to.
    #[must_use]
    pub fn steps(&self) -> &[usize] {
        &self.steps[..=self.depth]
    }
}

/// The first logical block that a map of this block size cannot reach.
#[must_use]
pub fn end(block_size: u32) -> u64 {
    let fan_out = u64::from(pointers_per_block(block_size));
    12 + fan_out + fan_out * fan_out + fan_out * fan_out * fan_out
}

/// The pointer at an index of the inode's map or of a pointer block; 0 past its end.
#[must_use]
pub fn entry(bytes: &[u8], index: usize) -> u32 {
    let at = index.saturating_mul(POINTER_SIZE);
    if at.saturating_add(POINTER_SIZE) > bytes.len() {
        0
    } else {
        read_u32(bytes, at)
    }
}

/// Sets the pointer at an index of the inode's map or of a pointer block.
///
/// # Panics
///
/// If the index is past its end.
pub fn set_entry(bytes: &mut [u8], index: usize, pointer: u32) {
    write_u32(bytes, index * POINTER_SIZE, pointer);
}

/// The device block of a logical block, or `None` for a hole. `read` returns one pointer of a
/// pointer block, and must check that this block is in the file system.
///
/// # Errors
///
/// Errors of `read`, and [`Corrupt`] for a block that the map cannot reach.
pub fn lookup<E: From<Corrupt>>(
    root: &[u8; ROOT_SIZE],
    block_size: u32,
    logical: LogicalBlock,
    mut read: impl FnMut(BlockNumber, usize) -> Result<u32, E>,
) -> Result<Option<BlockNumber>, E> {
    let fan_out = u64::from(pointers_per_block(block_size));
    let Some(path) = Path::to(logical, fan_out) else {
        let problem = format!("{logical:?} is past what it can reach");
        return Err(Corrupt::new("block map", problem).into());
    };
    let mut pointer = entry(root, path.slot());
    for &step in &path.steps()[1..] {
        if pointer == 0 {
            return Ok(None);
        }
        pointer = read(BlockNumber(u64::from(pointer)), step)?;
    }
    Ok((pointer != 0).then_some(BlockNumber(u64::from(pointer))))
}

#[cfg(test)]
mod tests {
    use super::{Path, ROOT_SIZE, end, entry, lookup, pointers_per_block, set_entry, span};
    use crate::corrupt::Corrupt;
    use crate::number::{BlockNumber, LogicalBlock};
    use proptest::prelude::*;

    #[test]
    fn paths_change_depth_where_the_format_says() {
        let steps =
            |logical| Path::to(LogicalBlock(logical), 256).map(|path| path.steps().to_vec());
        assert_eq!(steps(11), Some(vec![11]));
        assert_eq!(steps(12), Some(vec![12, 0]));
        assert_eq!(steps(12 + 255), Some(vec![12, 255]));
        assert_eq!(steps(12 + 256), Some(vec![13, 0, 0]));
        assert_eq!(steps(12 + 256 + 65536), Some(vec![14, 0, 0, 0]));
        assert_eq!(steps(12 + 256 + 65536 + 257), Some(vec![14, 0, 1, 1]));
        let last = u32::try_from(end(1024) - 1).expect("small");
        assert_eq!(steps(last), Some(vec![14, 255, 255, 255]));
        assert_eq!(steps(last + 1), None);
    }

    #[test]
    fn a_lookup_stops_at_holes() {
        let mut root = [0; ROOT_SIZE];
        set_entry(&mut root, 3, 77);
        set_entry(&mut root, 12, 500);
        let read = |block: BlockNumber, index| {
            assert_eq!(block, BlockNumber(500));
            Ok::<u32, Corrupt>(if index == 5 { 78 } else { 0 })
        };
        let find = |logical| lookup(&root, 1024, LogicalBlock(logical), read);
        assert_eq!(find(3), Ok(Some(BlockNumber(77))));
        assert_eq!(find(4), Ok(None));
        assert_eq!(find(17), Ok(Some(BlockNumber(78))));
        assert_eq!(find(18), Ok(None));
        assert_eq!(find(400), Ok(None));
        assert!(find(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn paths_ascend_with_the_blocks(logical in 0u32..20_000_000, power in 10u32..17) {
            let fan_out = u64::from(pointers_per_block(1 << power));
            let path = |logical| Path::to(LogicalBlock(logical), fan_out);
            if let (Some(here), Some(next)) = (path(logical), path(logical + 1)) {
                prop_assert!(here.steps() < next.steps());
                for (level, &step) in (1..=here.depth()).rev().zip(&here.steps()[1..]) {
                    prop_assert_eq!(here.step(level), step);
                    let of_each = span(fan_out, level - 1);
                    prop_assert_eq!(here.offset() / of_each % fan_out, step as u64);
                }
            }
            let _ = entry(&[0; 7], usize::MAX);
        }
    }
}
