//! Renumbers the inodes of removed groups: each gets a free number in a remaining group.
//!
//! An inode's number is part of its own checksum and of those of its tree nodes and directory
//! blocks. This module updates the tree nodes; [`super::entries`] updates directories, and
//! [`super::values`] attributes whose values are inodes.

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::Compat;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{GroupNumber, InodeNumber, bitmap, extent};

use super::image::Image;
use super::map;
use super::shape::Shape;
use super::shrink::Renumbered;
use crate::error::{Error, Result};

/// Assigns new numbers and copies the inodes to their new slots.
pub(super) fn plan(image: &mut Image<'_>, shape: &Shape) -> Result<Renumbered> {
    let mut renumbered = Renumbered::new();
    let mut from = 0;
    for group in shape.geometry.group_count..image.geometry.group_count {
        let group = GroupNumber(group);
        for number in image.used_inodes(group)? {
            let inode = image.inode(number)?;
            check_movable(image, number)?;
            let new = allocate(image, shape, &mut from, &inode)?;
            image.put_inode(new, &inode)?;
            stamp_nodes(image, number, new, &inode)?;
            renumbered.insert(number, new);
        }
    }
    Ok(renumbered)
}

fn check_movable(image: &Image<'_>, number: InodeNumber) -> Result<()> {
    if !image.superblock.features.has_compat(Compat::STABLE_INODES) {
        return Ok(());
    }
    Err(Error::Impossible(format!(
        "inode {number} needs another number at this size, but the feature stable_inodes forbids that"
    )))
}

/// Allocates the first free inode from group `from` on.
fn allocate(
    image: &mut Image<'_>,
    shape: &Shape,
    from: &mut u32,
    inode: &Inode,
) -> Result<InodeNumber> {
    let geometry = &shape.geometry;
    while *from < geometry.group_count {
        let group = GroupNumber(*from);
        let map = image.inode_bitmap(group)?;
        if let Some(index) = bitmap::next_zero(&map.bits, 0, geometry.inodes_per_group) {
            bitmap::set(&mut map.bits, index);
            map.is_changed = true;
            let descriptor = &mut image.descriptors[group.get() as usize];
            if inode.file_type() == Some(FileType::Directory) {
                descriptor.used_directories += 1;
            }
            // As a mount does: a group with inodes has both bitmaps.
            if descriptor.flags.has_no_block_bitmap(geometry.checksums) {
                image.block_bitmap(group)?.is_changed = true;
            }
            return Ok(geometry.inode_at(group, index).expect("inside the group"));
        }
        *from += 1;
    }
    Err(Error::Impossible(
        "too few inodes are left at this size for those in use".to_owned(),
    ))
}

fn stamp_nodes(
    image: &mut Image<'_>,
    old: InodeNumber,
    new: InodeNumber,
    inode: &Inode,
) -> Result<()> {
    let Some(seed) = image.geometry.checksum_seed() else {
        return Ok(());
    };
    if !inode.has_extents() || inode.has_inline_data() {
        return Ok(());
    }
    for node in map::extents(image, old, inode)?.nodes {
        image.edit(node, |bytes| {
            extent::stamp_node(InodeSeed::new(seed, new, inode.generation), bytes);
        })?;
    }
    Ok(())
}
