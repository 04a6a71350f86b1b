//! Rewrites the resize inode, which reserves blocks behind the descriptors for their growth.
//!
//! All that it maps follows from the geometry (see [`Content`]), so it is rewritten rather than
//! edited. A missing double-indirect block is created: early versions left it out if nothing was
//! reserved. If descriptors grow with `meta_bg` from now on, the inode is removed.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, indirect};

use super::image::Image;
use super::shape::Shape;
use super::space::Cursor;
use crate::error::{Error, Result};
use crate::mkfs::resize_inode::{Content, DOUBLE};

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
    check(&inode)?;
    let content = Content::of(geometry).ok_or_else(too_far)?;
    let old = double_block(image, &inode.block)?;
    let double = match old.filter(|block| !is_vacated(block.get())) {
        Some(block) => block,
        None => low_block(image, geometry, cursor)?,
    };
    for (block, copies) in content.reserved {
        image.put(block, copies);
    }
    image.put(double, content.map);
    let pointer = u32::try_from(double.get()).map_err(|_| too_far())?;
    indirect::set_entry(&mut inode.block, DOUBLE, pointer);
    let sectors = content.count * u64::from(geometry.block_size / 512);
    let huge = shape
        .superblock
        .features
        .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
    if !inode.set_sectors(sectors, geometry.block_size, huge) {
        return Err(too_far());
    }
    image.put_inode(InodeNumber::RESIZE, &inode)
}

/// Refuses an inode of which more than its map would have to be made anew.
fn check(inode: &Inode) -> Result<()> {
    let is_file = inode.file_type() == Some(FileType::Regular) && inode.links > 0;
    let mut slots = 0..indirect::DIRECT + indirect::MAX_DEPTH;
    let is_other = |slot| slot != DOUBLE && indirect::entry(&inode.block, slot) != 0;
    let problem = if !is_file {
        format!("mode {:06o}, {} links", inode.mode, inode.links)
    } else if inode.attribute_block.get() != 0 {
        "it has a block of attributes".to_owned()
    } else if slots.any(is_other) {
        "it has other blocks than the double-indirect one".to_owned()
    } else {
        return Ok(());
    };
    Err(Corrupt::new("resize inode", problem)
        .in_inode(InodeNumber::RESIZE)
        .into())
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

fn too_far() -> Error {
    Error::Impossible("the resize inode cannot name blocks that far".to_owned())
}
