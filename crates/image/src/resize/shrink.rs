//! Shrinking: moves everything that is behind the new end, then the end.
//!
//! The steps are: inodes of removed groups get numbers in the remaining groups, while their tables
//! are still readable ([`super::renumber`], [`super::entries`], [`super::values`]); the metadata of
//! removed groups is released; metadata of the other groups that is in the way moves
//! ([`super::tables`]); then blocks of files move ([`super::files`]). All of this happens in
//! memory: inode tables and data blocks are only recorded as moves.
//!
//! Released metadata blocks are reused at once, so the new layout cannot exist beside the old file
//! system: a shrink runs on a clone, or in place if the caller requests it.

use std::collections::BTreeMap;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::files::BAD_BLOCKS;
use super::files::Mover;
use super::grow::release_overhead;
use super::image::Image;
use super::plan::Plan;
use super::shape::Shape;
use super::smallest::Requirements;
use super::space::Cursor;
use super::vacate::Vacated;
use super::{entries, orphans, renumber, resize_inode, tables, values};
use crate::error::{Error, Result};
use crate::mkfs::Run;
use crate::mkfs::layout::metadata_runs;

/// Inodes that get another number: from the old to the new one.
pub(super) type Renumbered = BTreeMap<InodeNumber, InodeNumber>;

/// Plans the change of `image` to `shape`, which has fewer blocks.
pub(super) fn plan(mut image: Image<'_>, mut shape: Shape) -> Result<Plan> {
    Requirements::from_image(&image).check(&image, &shape)?;
    refuse_bad_blocks(&image)?;
    let old = image.geometry;
    let vacated = Vacated::between(&old, &shape.geometry);
    for run in vacated.new_copies() {
        image.mark(&shape.geometry, run.clone(), true)?;
    }
    let renumbered = renumber::plan(&mut image, &shape)?;
    entries::rewrite(&mut image, &shape, &renumbered)?;
    values::rewrite(&mut image, &shape, &renumbered)?;
    release_groups(&mut image, &shape, &vacated)?;
    tables::plan(&mut image, &shape, &vacated)?;
    release_overhead(&mut image, &shape)?;
    let mut mover = Mover::new(&shape, &vacated);
    mover.move_files(&mut image)?;
    let moves = mover.finish();
    move_mount_protection(&mut image, &mut shape, &vacated)?;
    let mut cursor = Cursor::default();
    let is_vacated = |block| vacated.contains(block);
    resize_inode::rewrite(&mut image, &shape, &mut cursor, &is_vacated)?;
    rename_in_superblock(&mut shape, &renumbered);
    refresh_journal_backup(&image, &mut shape)?;
    orphans::rewrite(&mut image, &shape)?;
    let last = GroupNumber(shape.geometry.group_count - 1);
    image.block_bitmap(last)?.is_changed = true;
    let mut plan = Plan::complete(image, shape, Vec::new(), moves)?;
    plan.moved_inodes = renumbered.len() as u64;
    Ok(plan)
}

/// Refuses a file system with bad blocks: one inside metadata that the shrink releases would become
/// free, and could be allocated.
fn refuse_bad_blocks(image: &Image<'_>) -> Result<()> {
    let list = image.inode(BAD_BLOCKS)?;
    if list.block.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let text =
        "it has a list of bad blocks: clear that with `e2fsck -L`, or copy the files elsewhere";
    Err(Error::Impossible(text.to_owned()))
}

/// Releases the metadata of removed groups that is located before the new end.
fn release_groups(image: &mut Image<'_>, shape: &Shape, vacated: &Vacated) -> Result<()> {
    let geometry = &shape.geometry;
    let dropped: Vec<Run> = image.descriptors[geometry.group_count as usize..]
        .iter()
        .flat_map(|descriptor| metadata_runs(descriptor, geometry))
        .collect();
    for run in dropped {
        release(image, shape, vacated, run)?;
    }
    Ok(())
}

/// Frees the blocks of a run, except those that must be vacated: their pending changes are dropped.
pub(super) fn release(
    image: &mut Image<'_>,
    shape: &Shape,
    vacated: &Vacated,
    run: Run,
) -> Result<()> {
    for (piece, is_vacated) in vacated.pieces(run) {
        if is_vacated {
            let stale = BlockNumber(piece.start)..BlockNumber(piece.end);
            image.changed.extract_if(stale, |_, _| true).for_each(drop);
        } else {
            image.mark(&shape.geometry, piece, false)?;
        }
    }
    Ok(())
}

/// Moves the block of multiple mount protection. Only the superblock refers to it, and its checksum
/// does not depend on its location.
fn move_mount_protection(
    image: &mut Image<'_>,
    shape: &mut Shape,
    vacated: &Vacated,
) -> Result<()> {
    let old = shape.superblock.mmp_block;
    let has_it = shape.superblock.features.has_incompat(Incompat::MMP);
    if !has_it || !vacated.contains(old.get()) {
        return Ok(());
    }
    let bytes = image.read(old)?;
    let place = image.allocate(&shape.geometry, &mut Cursor::default(), 1)?;
    let new = BlockNumber(place.ok_or_else(|| no_room(shape))?.start);
    image.put(new, bytes);
    shape.superblock.mmp_block = new;
    Ok(())
}

/// Updates the inode numbers in the superblock.
fn rename_in_superblock(shape: &mut Shape, renumbered: &Renumbered) {
    let superblock = &mut shape.superblock;
    for number in [
        &mut superblock.journal_inode,
        &mut superblock.lost_found_inode,
        &mut superblock.orphan_file_inode,
        &mut superblock.user_quota_inode,
        &mut superblock.group_quota_inode,
        &mut superblock.project_quota_inode,
    ] {
        if let Some(&new) = renumbered.get(number) {
            *number = new;
        }
    }
}

/// Updates the superblock's copy of the journal's block map.
fn refresh_journal_backup(image: &Image<'_>, shape: &mut Shape) -> Result<()> {
    let superblock = &mut shape.superblock;
    if superblock.journal_backup_type != 1 || superblock.journal_inode.get() == 0 {
        return Ok(());
    }
    let inode = image.inode(superblock.journal_inode)?;
    let (words, _) = inode.block.as_chunks::<4>();
    for (backup, word) in superblock.journal_backup.iter_mut().zip(words) {
        *backup = u32::from_le_bytes(*word);
    }
    Ok(())
}

/// The error if the search for free blocks fails although the estimate passed.
pub(super) fn no_room(shape: &Shape) -> Error {
    let bytes = shape
        .geometry
        .blocks_count
        .saturating_mul(u64::from(shape.geometry.block_size));
    Error::Impossible(format!(
        "{bytes} bytes are too few for what it holds; `min` finds out how many are needed"
    ))
}
