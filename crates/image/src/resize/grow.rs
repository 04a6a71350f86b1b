//! Growing: extends the last group and adds new groups behind it.
//!
//! The bitmaps and inode tables of the new groups of one flexible group are contiguous from the
//! first of these groups on, except for superblock copies, as mkfs places them. Those of old groups
//! do not move, and no other block in use does.

use std::ops::Range;

use pext4_ondisk::GroupNumber;
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupFlags;

use super::image::Image;
use super::plan::Plan;
use super::resize_inode;
use super::shape::Shape;
use super::space::{Cursor, fresh_inode_bitmap};
use crate::error::{Error, Result};
use crate::mkfs::Run;
use crate::mkfs::layout::{fresh_block_bitmap, groups_of, metadata_runs, place_metadata};

/// Plans the change of `image` to `shape`, which has more blocks.
pub(super) fn plan(mut image: Image<'_>, shape: Shape) -> Result<Plan> {
    let clears = add_groups(&mut image, &shape)?;
    let is_vacated = |_| false;
    resize_inode::rewrite(&mut image, &shape, &mut Cursor::default(), &is_vacated)?;
    Plan::complete(image, shape, clears, Vec::new())
}

/// Adds the groups. Returns the inode tables that must be zeroed.
fn add_groups(image: &mut Image<'_>, shape: &Shape) -> Result<Vec<Run>> {
    fill_last_group(image, shape)?;
    release_overhead(image, shape)?;
    let geometry = &shape.geometry;
    let first_new = image.geometry.group_count;
    let mut clears: Vec<Run> = Vec::new();
    let mut start = first_new;
    while start < geometry.group_count {
        let flexible = start / geometry.groups_per_flex * geometry.groups_per_flex;
        let end = flexible
            .saturating_add(geometry.groups_per_flex)
            .min(geometry.group_count);
        add_flexible_group(image, shape, start..end, &mut clears)?;
        start = end;
    }
    finish_groups(image, shape, first_new);
    Ok(clears)
}

/// Frees the blocks behind the old end in the old last group.
fn fill_last_group(image: &mut Image<'_>, shape: &Shape) -> Result<()> {
    let last = GroupNumber(image.geometry.group_count - 1);
    let (old, new) = (
        image.geometry.blocks_in(last),
        shape.geometry.blocks_in(last),
    );
    if new > old {
        let map = image.block_bitmap(last)?;
        bitmap::clear_range(&mut map.bits, old..new);
        map.is_changed = true;
    }
    Ok(())
}

/// Frees blocks of superblock and descriptor copies that the groups do not need any more.
pub(super) fn release_overhead(image: &mut Image<'_>, shape: &Shape) -> Result<()> {
    let (old, new) = (image.geometry, &shape.geometry);
    for group in old.groups().take(new.group_count as usize) {
        let (had, needs) = (
            old.superblock_overhead(group),
            new.superblock_overhead(group).min(new.blocks_in(group)),
        );
        let had = had.min(new.blocks_in(group));
        if needs < had {
            let first = new.first_block(group).get();
            image.mark(new, first + u64::from(needs)..first + u64::from(had), false)?;
        }
    }
    Ok(())
}

/// Places the bitmaps and tables of some new groups.
fn add_flexible_group(
    image: &mut Image<'_>,
    shape: &Shape,
    groups: Range<u32>,
    clears: &mut Vec<Run>,
) -> Result<()> {
    let geometry = &shape.geometry;
    let placed = place_metadata(geometry, groups).ok_or_else(|| {
        Error::Impossible(
            "the last groups are too small for their inode tables: ask for a little more or less"
                .to_owned(),
        )
    })?;
    for descriptor in &placed {
        let [blocks, inodes, table] = metadata_runs(descriptor, geometry);
        match clears.last_mut() {
            Some(last) if last.end == table.start => last.end = table.end,
            _ => clears.push(table.clone()),
        }
        for run in [blocks, inodes, table] {
            for group in groups_of(geometry, &run) {
                if !image.block_bitmaps.contains_key(&group.get()) {
                    image.insert_block_bitmap(group, fresh_block_bitmap(geometry, group), true);
                }
            }
            image.mark(geometry, run, true)?;
        }
    }
    image.descriptors.extend(placed);
    Ok(())
}

/// Sets counts, flags and inode bitmaps of the new groups.
fn finish_groups(image: &mut Image<'_>, shape: &Shape, first_new: u32) {
    let geometry = &shape.geometry;
    let is_lazy = geometry.checksums.protects_descriptors();
    for group in (first_new..geometry.group_count).map(GroupNumber) {
        let is_last = group.get() == geometry.group_count - 1;
        if !image.block_bitmaps.contains_key(&group.get()) && (is_last || !is_lazy) {
            image.insert_block_bitmap(group, fresh_block_bitmap(geometry, group), true);
        }
        let descriptor = &mut image.descriptors[group.get() as usize];
        descriptor.free_clusters = geometry.blocks_in(group) - geometry.superblock_overhead(group);
        descriptor.free_inodes = geometry.inodes_per_group;
        if is_lazy {
            // An uninitialized group needs no bitmap on disk.
            descriptor.unused_inodes = geometry.inodes_per_group;
            descriptor.flags =
                GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_ZEROED;
        } else {
            let home = descriptor.inode_bitmap;
            image.put(home, fresh_inode_bitmap(geometry));
        }
    }
}

#[cfg(test)]
mod tests {
    use pext4_block::RamDevice;

    use super::super::image::Image;
    use super::super::shape::Shape;
    use super::add_groups;
    use crate::mkfs::layout::Layout;
    use crate::mkfs::{FileSystem, Options, mkfs};

    /// Grows a file system of whole flexible groups; the new groups must be those of mkfs.
    fn compare(file_system: FileSystem, features: &[&str], groups: [u64; 2]) {
        const GROUP: u64 = 8192;
        let device = RamDevice::new((1 + groups[0] * GROUP) << 10);
        let options = Options {
            file_system,
            block_size: Some(1024),
            features: features.iter().map(|&name| name.to_owned()).collect(),
            ..Options::default()
        };
        mkfs(&device, &options).expect("an image");
        let mut image = Image::open(&device).expect("a sound image");
        let blocks = 1 + groups[1] * GROUP;
        let shape = Shape::new(&image.superblock, &image.geometry, blocks).expect("a shape");
        let added = image.geometry.group_count..shape.geometry.group_count;
        add_groups(&mut image, &shape).expect("there is room");
        let layout = Layout::place(shape.geometry).expect("there is room");
        for group in added {
            let of = |one: &pext4_ondisk::group_descriptor::GroupDescriptor| {
                (one.block_bitmap, one.inode_bitmap, one.inode_table)
            };
            let made = &layout.descriptors[group as usize];
            let grown = &image.descriptors[group as usize];
            assert_eq!(of(grown), of(made), "group {group}, {features:?}");
            if let Some(bits) = layout.block_bitmaps.get(&group) {
                let grown = &image.block_bitmaps[&group].bits;
                assert_eq!(grown, bits, "group {group}, {features:?}");
            }
        }
    }

    #[test]
    fn new_groups_are_as_mkfs_makes_them() {
        compare(FileSystem::Ext4, &[], [16, 33]);
        compare(FileSystem::Ext4, &["^metadata_csum"], [16, 64]);
        compare(FileSystem::Ext4, &["^resize_inode"], [16, 80]);
        compare(FileSystem::Ext4, &["^flex_bg"], [3, 30]);
        compare(FileSystem::Ext2, &[], [2, 10]);
    }
}
