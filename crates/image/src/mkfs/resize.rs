//! The resize inode, which reserves blocks behind the descriptors for their growth.
//!
//! It has only a double-indirect block. That block points to the reserved descriptor blocks of
//! group 0, each at the index of its number among all descriptor blocks; each of those, interpreted
//! as an indirect block, points to its own copies in the backup groups. The size of the inode is
//! what 12 direct, one indirect and one double-indirect block could map. If no block is reserved,
//! the double-indirect block exists nevertheless, empty.

use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::contents::{Files, new_inode};
use super::layout::Layout;
use crate::error::{Error, Result};

const DIRECT: u64 = 12;
/// Byte offset of the double-indirect pointer in `i_block`.
const DOUBLE_AT: usize = 13 * 4;

/// Places the double-indirect block and fills the reserved blocks.
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
    // Even if nothing is reserved the double-indirect block must exist: checkers consider a resize
    // inode without it damaged.
    let double = layout.allocate(0, 1)?[0].start;
    let mut map = vec![0; block_size];
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    for (index, block) in (first..first + reserved).enumerate() {
        let slot = (geometry.descriptor_blocks as usize + index) % pointers;
        set_pointer(&mut map, slot, block)?;
        let mut copies = vec![0; block_size];
        for (slot, backup) in backups.iter().enumerate() {
            set_pointer(&mut copies, slot, block + backup)?;
        }
        files.blocks.push((BlockNumber(block), copies));
    }
    files.blocks.push((BlockNumber(double), map));
    set_pointer(&mut inode.block, DOUBLE_AT / 4, double)?;
    let blocks = 1 + reserved * (1 + backups.len() as u64);
    let per_block = pointers as u64;
    inode.size = (DIRECT + per_block + per_block * per_block) * u64::from(geometry.block_size);
    inode.blocks = blocks * u64::from(geometry.block_size / 512);
    files.inodes.push((InodeNumber::RESIZE, inode));
    Ok(())
}

/// Writes a pointer of an indirect block.
fn set_pointer(map: &mut [u8], slot: usize, block: u64) -> Result<()> {
    let block = u32::try_from(block).map_err(|_| {
        Error::Impossible(
            "too large for resize_inode: turn it off with -O ^resize_inode".to_owned(),
        )
    })?;
    map[4 * slot..4 * slot + 4].copy_from_slice(&block.to_le_bytes());
    Ok(())
}
