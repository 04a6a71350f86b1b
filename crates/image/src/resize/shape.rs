//! The superblock and geometry of a file system of another size, before anything is counted or
//! moved.
//!
//! Growing needs room for more descriptors. They use the blocks that the resize inode reserves
//! behind the descriptors. If these do not suffice, `meta_bg` is turned on: the descriptors of
//! additional groups are then located in those groups. In both cases the superblock and descriptor
//! copies in existing groups take no additional blocks, so nothing has to move out of their way.
//! Shrinking returns descriptor blocks to the resize inode, if there is one.
//!
//! A last group with room for little more than its own metadata is left out.

use pext4_ondisk::GroupNumber;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::{Geometry, MAX_BLOCKS};
use pext4_ondisk::superblock::Superblock;

use crate::error::{Error, Result};
use crate::mkfs::layout::min_blocks;

/// A superblock and its geometry.
#[derive(Clone)]
pub(super) struct Shape {
    pub superblock: Superblock,
    pub geometry: Geometry,
}

impl Shape {
    /// The same file system with `blocks` blocks, or fewer if the last group would be too small;
    /// but not fewer than now, unless that is what `blocks` asks for.
    pub fn new(old: &Superblock, geometry: &Geometry, blocks: u64) -> Result<Self> {
        check_limit(old, geometry, blocks)?;
        let superblock = resized_superblock(old, geometry, blocks)?;
        let rough = approximate_geometry(&superblock, geometry);
        let last = GroupNumber(rough.group_count - 1);
        if rough.blocks_in(last) >= min_blocks(&rough, last) {
            return Self::from_superblock(superblock);
        }
        if last.get() == 0 {
            return Err(too_small(&rough));
        }
        let without_last = rough.first_block(last).get();
        // It may have such a group now, and who asks for growth wants nothing moved.
        let least = if blocks < old.blocks_count {
            0
        } else {
            old.blocks_count
        };
        let superblock = resized_superblock(old, geometry, without_last.max(least))?;
        Self::from_superblock(superblock)
    }

    fn from_superblock(superblock: Superblock) -> Result<Self> {
        let geometry = Geometry::of(&superblock).map_err(|corrupt| {
            Error::Impossible(format!("{} blocks: {corrupt}", superblock.blocks_count))
        })?;
        Ok(Self {
            superblock,
            geometry,
        })
    }
}

/// The superblock for `blocks` blocks, without the free counts.
fn resized_superblock(old: &Superblock, geometry: &Geometry, blocks: u64) -> Result<Superblock> {
    let groups = groups_of(geometry, blocks)?;
    let inodes = geometry.inodes_per_group.checked_mul(groups);
    let inodes = inodes.ok_or_else(|| {
        let max_bytes = u64::from(u32::MAX / geometry.inodes_per_group)
            * u64::from(geometry.blocks_per_group)
            * u64::from(geometry.block_size);
        Error::Impossible(format!(
            "{groups} groups would have more inodes than the format can count: {max_bytes} bytes are the \
             most for this file system"
        ))
    })?;
    let mut superblock = old.clone();
    superblock.blocks_count = blocks;
    superblock.inodes_count = inodes;
    // To the nearest, so that they do not become fewer with every change of the size.
    let before = u128::from(old.blocks_count.max(1));
    let reserved = (u128::from(old.reserved_blocks) * u128::from(blocks) + before / 2) / before;
    superblock.reserved_blocks = u64::try_from(reserved).unwrap_or(0).min(blocks / 2);
    move_backups(&mut superblock, geometry.group_count, groups);
    place_descriptors(&mut superblock, geometry, groups)?;
    Ok(superblock)
}

fn groups_of(geometry: &Geometry, blocks: u64) -> Result<u32> {
    let data = blocks.checked_sub(u64::from(geometry.first_data_block));
    let data = data
        .filter(|&data| data > 0)
        .ok_or_else(|| too_small(geometry))?;
    u32::try_from(data.div_ceil(u64::from(geometry.blocks_per_group)))
        .map_err(|_| Error::Impossible(format!("{blocks} blocks are too many groups")))
}

/// The geometry of a superblock whose last group may be too small for its own descriptors, which
/// `Geometry::of` rejects.
fn approximate_geometry(superblock: &Superblock, old: &Geometry) -> Geometry {
    let groups = superblock.inodes_count / old.inodes_per_group;
    Geometry {
        blocks_count: superblock.blocks_count,
        group_count: groups,
        inodes_count: superblock.inodes_count,
        descriptor_blocks: groups.div_ceil(old.descriptors_per_block),
        reserved_gdt_blocks: u32::from(superblock.reserved_gdt_blocks),
        first_meta_bg: superblock.first_meta_bg,
        backup_groups: superblock.backup_groups,
        features: superblock.features,
        ..*old
    }
}

fn too_small(geometry: &Geometry) -> Error {
    let least =
        u64::from(min_blocks(geometry, GroupNumber(0))) + u64::from(geometry.first_data_block);
    let bytes = least * u64::from(geometry.block_size);
    Error::Impossible(format!(
        "too small: the first group alone needs {bytes} bytes"
    ))
}

fn check_limit(old: &Superblock, geometry: &Geometry, blocks: u64) -> Result<()> {
    let wide = old.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
    let max_blocks = if wide {
        MAX_BLOCKS
    } else {
        u64::from(u32::MAX)
    };
    if blocks <= max_blocks {
        return Ok(());
    }
    let bytes = max_blocks * u64::from(geometry.block_size);
    let hint = if wide {
        ""
    } else {
        " without the feature 64bit"
    };
    Err(Error::Impossible(format!(
        "{blocks} blocks: {max_blocks} are the most{hint} ({bytes} bytes)"
    )))
}

/// With `sparse_super2`, moves the copy of the old last group to the new last group.
fn move_backups(superblock: &mut Superblock, old_groups: u32, groups: u32) {
    if !superblock.features.has_compat(Compat::SPARSE_SUPER2) {
        return;
    }
    let last = groups - 1;
    let [first, second] = superblock.backup_groups;
    let keep = |group: u32| {
        if group == 0 || (group < groups && group + 1 != old_groups) {
            group
        } else {
            last
        }
    };
    // A copy in group 1 stays there while group 1 exists, even if it is the last group.
    let first = if first == 1 && groups > 1 {
        1
    } else {
        keep(first)
    };
    let second = keep(second);
    superblock.backup_groups = [first, if second == first { 0 } else { second }];
}

/// Sets the layout of the descriptors of `groups` groups.
fn place_descriptors(superblock: &mut Superblock, old: &Geometry, groups: u32) -> Result<()> {
    let needed = groups.div_ceil(old.descriptors_per_block);
    if old.has_meta_bg() {
        superblock.first_meta_bg = superblock.first_meta_bg.min(needed);
        return Ok(());
    }
    let room = old.descriptor_blocks + old.reserved_gdt_blocks;
    if superblock.features.has_compat(Compat::RESIZE_INODE) {
        if needed <= room && resize_inode_reaches(superblock, old, groups) {
            let reserved = (room - needed).min(old.block_size / 4);
            superblock.reserved_gdt_blocks =
                u16::try_from(reserved).expect("at most a quarter of a block");
            return Ok(());
        }
    } else if old.reserved_gdt_blocks > 0 {
        let text =
            "blocks are reserved for descriptors, but there is no resize_inode: run `e2fsck -f`";
        return Err(Error::Impossible(text.to_owned()));
    }
    if needed > old.descriptor_blocks {
        superblock.features.compat.remove(Compat::RESIZE_INODE);
        superblock.features.incompat.insert(Incompat::META_BG);
        superblock.raise_revision();
        superblock.first_meta_bg = room.min(needed);
        superblock.reserved_gdt_blocks = 0;
    }
    Ok(())
}

/// Whether the resize inode can point to its copies in all groups: its pointers have 32 bits, and
/// the copies of a block must fit into one block of pointers.
fn resize_inode_reaches(superblock: &Superblock, old: &Geometry, groups: u32) -> bool {
    let pointers = old.block_size / 4;
    let grown = approximate_geometry(superblock, old);
    let copies = (1..groups)
        .map(GroupNumber)
        .filter(|&group| grown.has_superblock(group))
        .take(pointers as usize + 1)
        .count();
    copies <= pointers as usize && superblock.blocks_count <= 1 << 32
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::geometry::Geometry;

    use super::Shape;
    use crate::mkfs::Options;
    use crate::mkfs::plan::plan;

    /// mke2fs makes no last group as small as this, but others may.
    #[test]
    fn a_small_last_group_that_is_there_stays() {
        let options = Options {
            block_size: Some(4096),
            ..Options::default()
        };
        let (mut superblock, geometry) = plan(256 << 20, &options).expect("sound");
        assert_eq!(geometry.group_count, 2);
        let whole = superblock.blocks_count;
        superblock.blocks_count += 40;
        superblock.inodes_count += geometry.inodes_per_group;
        let geometry = Geometry::of(&superblock).expect("sound");
        assert_eq!(geometry.group_count, 3);
        for (wanted, expected) in [
            (whole - 1, whole - 1),
            (whole + 39, whole),
            (whole + 40, whole + 40),
            (whole + 41, whole + 40),
            (whole + 5000, whole + 5000),
        ] {
            let shape = Shape::new(&superblock, &geometry, wanted).expect("possible");
            assert_eq!(shape.geometry.blocks_count, expected, "{wanted}");
        }
    }
}
