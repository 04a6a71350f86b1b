//! The resize inode, which reserves blocks behind the descriptors for their growth.
//!
//! It has only a double-indirect block. That block points to the reserved descriptor blocks of
//! group 0, each at the index of its number among all descriptor blocks; each of those, interpreted
//! as an indirect block, points to its own copies in the backup groups. All of it follows from the
//! geometry. The size of the inode is what 12 direct, one indirect and one double-indirect block
//! could map. If no block is reserved, the double-indirect block exists nevertheless, empty.

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, indirect};

use super::contents::{Files, new_inode};
use super::layout::Layout;
use crate::error::{Error, Result};

/// Index of the double-indirect pointer in `i_block`.
pub(crate) const DOUBLE: usize = 13;

/// The blocks that the inode maps.
pub(crate) struct Content {
    /// The double-indirect block.
    pub map: Vec<u8>,
    /// The reserved blocks of group 0, each with its pointers to its copies.
    pub reserved: Vec<(BlockNumber, Vec<u8>)>,
    /// The number of all its blocks, copies included.
    pub count: u64,
}

impl Content {
    /// `None` if the inode cannot point to everything: pointers have 32 bits, and those to the
    /// copies of a block must fit into one block.
    pub fn of(geometry: &Geometry) -> Option<Self> {
        let block_size = geometry.block_size as usize;
        let pointers = block_size / 4;
        let backups: Vec<u64> = (1..geometry.group_count)
            .map(GroupNumber)
            .filter(|&group| geometry.has_superblock(group))
            .map(|group| distance(geometry, group))
            .collect();
        if backups.len() > pointers {
            return None;
        }
        let (first, count) = (geometry.descriptor_blocks, geometry.reserved_gdt_blocks);
        let mut map = vec![0; block_size];
        let mut reserved = Vec::new();
        for index in first..first + count {
            let block = geometry.descriptor_block(index);
            let pointer = u32::try_from(block.get()).ok()?;
            indirect::set_entry(&mut map, index as usize % pointers, pointer);
            let mut copies = vec![0; block_size];
            for (slot, backup) in backups.iter().enumerate() {
                let pointer = u32::try_from(block.get() + backup).ok()?;
                indirect::set_entry(&mut copies, slot, pointer);
            }
            reserved.push((block, copies));
        }
        Some(Self {
            map,
            reserved,
            count: 1 + u64::from(count) * (1 + backups.len() as u64),
        })
    }
}

/// The distance in blocks between the originals in group 0 and a group's copies. With 1 KiB blocks
/// both are one block later, like group 0.
fn distance(geometry: &Geometry, group: GroupNumber) -> u64 {
    u64::from(group.get()) * u64::from(geometry.blocks_per_group)
}

/// Places the double-indirect block and fills the reserved blocks.
pub(super) fn place(layout: &mut Layout, superblock: &Superblock, files: &mut Files) -> Result<()> {
    let geometry = layout.geometry;
    let content = Content::of(&geometry).ok_or_else(too_large)?;
    // Even if nothing is reserved the double-indirect block must exist: checkers consider a resize
    // inode without it damaged.
    let double = layout.allocate(0, 1)?[0].start;
    files.blocks.extend(content.reserved);
    files.blocks.push((BlockNumber(double), content.map));
    let mut inode = new_inode(superblock, 0o100_600, 1);
    let pointer = u32::try_from(double).map_err(|_| too_large())?;
    indirect::set_entry(&mut inode.block, DOUBLE, pointer);
    let per_block = u64::from(geometry.block_size) / 4;
    let direct = indirect::DIRECT as u64;
    inode.size = (direct + per_block + per_block * per_block) * u64::from(geometry.block_size);
    inode.blocks = content.count * u64::from(geometry.block_size / 512);
    files.inodes.push((InodeNumber::RESIZE, inode));
    Ok(())
}

fn too_large() -> Error {
    let text = "too large for resize_inode: turn it off with -O ^resize_inode";
    Error::Impossible(text.to_owned())
}
