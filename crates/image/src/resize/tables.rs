//! Moves bitmaps and inode tables of remaining groups out of blocks that must be vacated.

use std::ops::Range;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::image::Image;
use super::shape::Shape;
use super::shrink::release;
use super::vacate::Vacated;
use crate::error::{Error, Result};
use crate::mkfs::Run;
use crate::mkfs::layout::metadata_runs;

/// Relocates all such metadata.
pub(super) fn plan(image: &mut Image<'_>, shape: &Shape, vacated: &Vacated) -> Result<()> {
    for group in shape.geometry.groups() {
        let descriptor = image.descriptor(group)?;
        let [blocks, inodes, table] = metadata_runs(descriptor, &shape.geometry);
        if vacated.overlaps(&blocks) {
            // The bitmap is read from the old block and later written to the new one.
            image.block_bitmap(group)?.is_changed = true;
            let place = allocate(image, shape, group, 1)?;
            image.descriptors[group.get() as usize].block_bitmap = BlockNumber(place.start);
        }
        if vacated.overlaps(&inodes) {
            image.inode_bitmap(group)?.is_changed = true;
            let place = allocate(image, shape, group, 1)?;
            image.descriptors[group.get() as usize].inode_bitmap = BlockNumber(place.start);
        }
        if vacated.overlaps(&table) {
            move_table(image, shape, vacated, group, table)?;
        }
    }
    Ok(())
}

fn move_table(
    image: &mut Image<'_>,
    shape: &Shape,
    vacated: &Vacated,
    group: GroupNumber,
    table: Run,
) -> Result<()> {
    let place = allocate(image, shape, group, table.end - table.start)?;
    for (from, to) in table.clone().zip(place.clone()) {
        // Kept in memory, since inodes are read from the new location from now on.
        let bytes = image.read(BlockNumber(from))?;
        image.put(BlockNumber(to), bytes);
    }
    image.descriptors[group.get() as usize].inode_table = BlockNumber(place.start);
    release(image, shape, vacated, table)
}

/// Allocates contiguous blocks: anywhere, or without `flex_bg` in the group itself.
fn allocate(image: &mut Image<'_>, shape: &Shape, group: GroupNumber, count: u64) -> Result<Run> {
    let geometry = &shape.geometry;
    let flexible = shape.superblock.features.has_incompat(Incompat::FLEX_BG);
    let own = group.get();
    let candidates: [Range<u32>; 2] = if flexible {
        let first = own / geometry.groups_per_flex * geometry.groups_per_flex;
        [first..geometry.group_count, 0..first]
    } else {
        [own..own + 1, 0..0]
    };
    let found = image.allocate_piece(geometry, candidates.into_iter().flatten(), count)?;
    found.ok_or_else(|| {
        Error::Impossible(format!(
            "no {count} blocks in one piece are free for the metadata of group {own}: take a little more"
        ))
    })
}
