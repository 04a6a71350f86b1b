//! The tail of a leaf: a record without an inode that contains the checksum.

use super::changes::write_free;
use super::{Format, STRUCTURE, TAIL_SIZE};
use crate::bytes::{read_u32, write_u32};
use crate::checksum::{InodeSeed, crc32c};
use crate::corrupt::Corrupt;

/// The file type that marks a tail (`EXT4_FT_DIR_CSUM`).
const TAIL_KIND: u8 = 0xDE;

pub(super) fn init_tail(block: &mut [u8], format: Format) {
    if format.has_tail {
        let at = block.len() - TAIL_SIZE;
        write_free(block, at, TAIL_SIZE);
        block[at + 7] = TAIL_KIND;
    }
}

/// Whether the block ends in a tail, with any checksum.
#[must_use]
pub fn has_tail(block: &[u8]) -> bool {
    let Some(tail) = block.last_chunk::<TAIL_SIZE>() else {
        return false;
    };
    tail[..8] == [0, 0, 0, 0, 12, 0, 0, TAIL_KIND]
}

/// Stores the checksum of a leaf in its tail.
///
/// # Panics
///
/// If the block is shorter than a tail.
pub fn stamp_leaf(seed: InodeSeed, block: &mut [u8]) {
    let at = block.len() - 4;
    let computed = leaf_checksum(seed, block);
    write_u32(block, at, computed);
}

/// Checks the tail and the checksum of a leaf.
///
/// # Errors
///
/// [`Corrupt`] if the tail is missing or the checksum is wrong.
pub fn verify_leaf(seed: InodeSeed, block: &[u8]) -> Result<(), Corrupt> {
    if !has_tail(block) {
        return Err(Corrupt::new(STRUCTURE, "has no checksum tail").in_inode(seed.inode));
    }
    let stored = read_u32(block, block.len() - 4);
    let computed = leaf_checksum(seed, block);
    if stored != computed {
        return Err(Corrupt::checksum(STRUCTURE, stored, computed).in_inode(seed.inode));
    }
    Ok(())
}

fn leaf_checksum(seed: InodeSeed, block: &[u8]) -> u32 {
    crc32c(seed.state(), &block[..block.len() - TAIL_SIZE])
}
