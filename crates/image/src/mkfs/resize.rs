//! The inode that keeps blocks behind the descriptors for their growth.
//!
//! It is mapped by indirect blocks, its double-indirect one only. That block points to the reserved
//! descriptor blocks of group 0, each at the index its number among all descriptor blocks has; each
//! of those, read as an indirect block, points to its own copies in the backup groups. Its size is
//! what 12 direct, one indirect and one double-indirect block could map. Where no block is reserved
//! the double-indirect block is there all the same, empty.

use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::contents::{Files, new_inode};
use super::layout::Layout;
use crate::error::{Error, Result};

const DIRECT: u64 = 12;
/// Place of the double-indirect pointer in the inode's map.
const DOUBLE_AT: usize = 13 * 4;

/// Places the inode's own block and fills the reserved ones.
pub(super) fn place(layout: &mut Layout, superblock: &Superblock, files: &mut Files) -> Result<()> {
    let geometry = layout.geometry;
    let block_size = geometry.block_size as usize;
    let pointers = block_size / 4;
    let backups: Vec<u64> = (1..geometry.group_count)
        .map(GroupNumber)
        .filter(|&group| geometry.has_superblock(group))
        .map(|group| u64::from(group.get()) * u64::from(geometry.blocks_per_group))
        .collect();
    if backups.len() > pointers {
        return Err(Error::Impossible(
            "too many groups for resize_inode: turn it off with -O ^resize_inode".to_owned(),
        ));
    }
    let mut inode = new_inode(superblock, 0o100_600, 1);
    let reserved = u64::from(geometry.reserved_gdt_blocks);
    // Even where nothing is reserved the map's block must be there: a resize inode without it is
    // taken for damaged.
    let double = layout.allocate(0, 1)?[0].start;
    let mut map = vec![0; block_size];
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    for (index, block) in (first..first + reserved).enumerate() {
        let slot = (geometry.descriptor_blocks as usize + index) % pointers;
        put(&mut map, slot, block)?;
        let mut copies = vec![0; block_size];
        for (slot, backup) in backups.iter().enumerate() {
            put(&mut copies, slot, block + backup)?;
        }
        files.blocks.push((BlockNumber(block), copies));
    }
    files.blocks.push((BlockNumber(double), map));
    put(&mut inode.block, DOUBLE_AT / 4, double)?;
    let blocks = 1 + reserved * (1 + backups.len() as u64);
    let per_block = pointers as u64;
    inode.size = (DIRECT + per_block + per_block * per_block) * u64::from(geometry.block_size);
    inode.blocks = blocks * u64::from(geometry.block_size / 512);
    files.inodes.push((InodeNumber::RESIZE, inode));
    Ok(())
}

/// Writes one pointer of an indirect block.
fn put(map: &mut [u8], slot: usize, block: u64) -> Result<()> {
    let block = u32::try_from(block).map_err(|_| {
        Error::Impossible(
            "too large for resize_inode: turn it off with -O ^resize_inode".to_owned(),
        )
    })?;
    map[4 * slot..4 * slot + 4].copy_from_slice(&block.to_le_bytes());
    Ok(())
}
