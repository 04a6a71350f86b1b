//! Rewrites the resize inode, which reserves blocks behind the descriptors for their growth.
//!
//! It has only a double-indirect block. That block points to the reserved blocks of group 0, each
//! at the index of its number among all descriptor blocks; each of these, interpreted as an
//! indirect block, points to its own copies in the groups with a superblock copy. All of it follows
//! from the geometry, so it is rewritten rather than edited. A missing double-indirect block is
//! created: early versions left it out if nothing was reserved. If descriptors grow with `meta_bg`
//! from now on, the inode is removed.

use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, indirect};

use super::image::Image;
use super::shape::Shape;
use super::space::Cursor;
use crate::error::{Error, Result};

/// Index of the double-indirect pointer in `i_block`.
const DOUBLE: usize = 13;

/// Rewrites the inode for the new shape. Its double-indirect block moves if `is_vacated`.
pub(super) fn rewrite(
    image: &mut Image<'_>,
    shape: &Shape,
    cursor: &mut Cursor,
    is_vacated: &dyn Fn(u64) -> bool,
) -> Result<()> {
    let had = image.superblock.features.has_compat(Compat::RESIZE_INODE);
    let has = shape.superblock.features.has_compat(Compat::RESIZE_INODE);
    match (had, has) {
        (_, true) => refill(image, shape, cursor, is_vacated),
        (true, false) => remove(image, &shape.geometry),
        (false, false) => Ok(()),
    }
}

fn double_block(image: &Image<'_>, map: &[u8]) -> Result<Option<BlockNumber>> {
    let pointer = BlockNumber(u64::from(indirect::entry(map, DOUBLE)));
    if pointer.get() == 0 {
        return Ok(None);
    }
    if !image.geometry.contains(pointer, 1) {
        let problem = "its double-indirect block lies outside the file system";
        return Err(Corrupt::new("resize inode", problem)
            .in_inode(InodeNumber::RESIZE)
            .in_block(pointer)
            .into());
    }
    Ok(Some(pointer))
}

fn remove(image: &mut Image<'_>, geometry: &Geometry) -> Result<()> {
    let inode = image.inode(InodeNumber::RESIZE)?;
    if let Some(double) = double_block(image, &inode.block)?
        && geometry.contains(double, 1)
    {
        image.mark(geometry, double.get()..double.get() + 1, false)?;
    }
    image.clear_inode(InodeNumber::RESIZE)
}

fn refill(
    image: &mut Image<'_>,
    shape: &Shape,
    cursor: &mut Cursor,
    is_vacated: &dyn Fn(u64) -> bool,
) -> Result<()> {
    let geometry = &shape.geometry;
    let mut inode = image.inode(InodeNumber::RESIZE)?;
    let reserved = geometry.reserved_gdt_blocks;
    let old = double_block(image, &inode.block)?;
    let double = match old.filter(|block| !is_vacated(block.get())) {
        Some(block) => block,
        None => low_block(image, geometry, cursor)?,
    };
    let pointers = image.block_size() / 4;
    let backups: Vec<u64> = geometry
        .groups()
        .skip(1)
        .filter(|&group| geometry.has_superblock(group))
        .map(|group| distance(geometry, group))
        .collect();
    let mut map = vec![0; image.block_size()];
    for index in geometry.descriptor_blocks..geometry.descriptor_blocks + reserved {
        let block = geometry.descriptor_block(index).get();
        indirect::set_entry(&mut map, index as usize % pointers, pointer(block)?);
        let mut copies = vec![0; image.block_size()];
        for (slot, backup) in backups.iter().enumerate() {
            indirect::set_entry(&mut copies, slot, pointer(block + backup)?);
        }
        image.put(BlockNumber(block), copies);
    }
    image.put(double, map);
    indirect::set_entry(&mut inode.block, DOUBLE, pointer(double.get())?);
    let blocks = 1 + u64::from(reserved) * (1 + backups.len() as u64);
    let sectors = blocks * u64::from(geometry.block_size / 512);
    let huge = shape
        .superblock
        .features
        .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
    if !inode.set_sectors(sectors, geometry.block_size, huge) {
        return Err(too_far());
    }
    image.put_inode(InodeNumber::RESIZE, &inode)
}

/// The distance in blocks between the originals in group 0 and a group's copies. With 1 KiB blocks
/// both are one block later, like group 0.
fn distance(geometry: &Geometry, group: GroupNumber) -> u64 {
    u64::from(group.get()) * u64::from(geometry.blocks_per_group)
}

/// Allocates a block. Low numbers, which fit into a pointer, are tried first.
fn low_block(
    image: &mut Image<'_>,
    geometry: &Geometry,
    cursor: &mut Cursor,
) -> Result<BlockNumber> {
    let run = image.allocate(geometry, cursor, 1)?;
    let run =
        run.ok_or_else(|| Error::Impossible("no block is free for the resize inode".to_owned()))?;
    Ok(BlockNumber(run.start))
}

fn pointer(block: u64) -> Result<u32> {
    u32::try_from(block).map_err(|_| too_far())
}

fn too_far() -> Error {
    Error::Impossible("the resize inode cannot name blocks that far".to_owned())
}
