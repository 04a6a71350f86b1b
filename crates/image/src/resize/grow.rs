//! Growing: extends the last group and adds new groups behind it.
//!
//! The bitmaps and inode tables of the new groups of one flexible group are contiguous from the
//! first of these groups on, except for superblock copies, as mkfs places them. Those of old groups
//! do not move, and no other block in use does.

use std::ops::Range;

use pext4_ondisk::GroupNumber;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{BlockNumber, bitmap};

use super::image::Image;
use super::plan::Plan;
use super::resize_inode;
use super::shape::Shape;
use super::space::{Cursor, Run, fresh_block_bitmap, fresh_inode_bitmap};
use crate::error::{Error, Result};

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

/// Places the bitmaps and tables of some new groups contiguously.
fn add_flexible_group(
    image: &mut Image<'_>,
    shape: &Shape,
    groups: Range<u32>,
    clears: &mut Vec<Run>,
) -> Result<()> {
    let geometry = &shape.geometry;
    let tables = u64::from(geometry.inode_table_blocks);
    let mut places = MetadataPlacer {
        shape,
        position: geometry.first_block(GroupNumber(groups.start)).get(),
    };
    let mut descriptors = vec![GroupDescriptor::default(); groups.len()];
    for descriptor in &mut descriptors {
        descriptor.block_bitmap = BlockNumber(places.next(image, 1)?);
    }
    for descriptor in &mut descriptors {
        descriptor.inode_bitmap = BlockNumber(places.next(image, 1)?);
    }
    for descriptor in &mut descriptors {
        let start = places.next(image, tables)?;
        descriptor.inode_table = BlockNumber(start);
        match clears.last_mut() {
            Some(last) if last.end == start => last.end = start + tables,
            _ => clears.push(start..start + tables),
        }
    }
    image.descriptors.append(&mut descriptors);
    Ok(())
}

/// Allocates metadata in the new groups.
struct MetadataPlacer<'a> {
    shape: &'a Shape,
    position: u64,
}

impl MetadataPlacer<'_> {
    /// Allocates the next `count` contiguous blocks that contain no superblock copy.
    fn next(&mut self, image: &mut Image<'_>, count: u64) -> Result<u64> {
        let geometry = &self.shape.geometry;
        let mut start = self.position;
        while let Some(behind) = self.copy_in(start..start + count) {
            start = behind;
        }
        let run = start..start + count;
        if run.end > geometry.blocks_count {
            return Err(Error::Impossible(
                "the last groups are too small for their inode tables: ask for a little more or less"
                    .to_owned(),
            ));
        }
        for group in groups_of(geometry, &run) {
            if !image.block_bitmaps.contains_key(&group.get()) {
                image.insert_block_bitmap(group, fresh_block_bitmap(geometry, group), true);
            }
        }
        image.mark(geometry, run, true)?;
        self.position = start + count;
        Ok(start)
    }

    /// The end of a copy of the superblock and descriptors that overlaps the run.
    fn copy_in(&self, run: Run) -> Option<u64> {
        let geometry = &self.shape.geometry;
        groups_of(geometry, &run).find_map(|group| {
            let copy = geometry.first_block(group).get();
            let end = copy + u64::from(geometry.superblock_overhead(group));
            (copy < run.end && run.start < end).then_some(end)
        })
    }
}

/// The groups that a run overlaps.
fn groups_of(
    geometry: &pext4_ondisk::geometry::Geometry,
    run: &Run,
) -> impl Iterator<Item = GroupNumber> + use<> {
    let group = |block| geometry.group_of(BlockNumber(block)).map(GroupNumber::get);
    let first = group(run.start).unwrap_or(geometry.group_count);
    let last = group(run.end.saturating_sub(1)).unwrap_or(geometry.group_count - 1);
    (first..=last).map(GroupNumber)
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
