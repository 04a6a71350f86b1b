//! Orphans: inodes whose deletion or truncation a crash interrupted.
//!
//! A mount or an edit finishes them. A resize refuses an image with orphans: their list links
//! inodes that a shrink may renumber, and after a resize an image is sound. The checksums of the
//! orphan file's blocks depend on their location and inode number, so the blocks are rewritten when
//! either changes.

use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::orphan_file::{self, MAX_BLOCKS, OrphanBlock};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::image::Image;
use super::journal::runs;
use super::shape::Shape;
use crate::error::{Error, Result};

/// Refuses an image with orphans.
pub(super) fn check_none(image: &Image<'_>) -> Result<()> {
    let superblock = &image.superblock;
    let refusal = || {
        Error::Impossible(
            "deletions that a crash interrupted wait to be finished: let `pext4 edit IMAGE -f /dev/null` \
             do it, or mount it once"
                .to_owned(),
        )
    };
    if superblock.last_orphan.get() != 0 {
        return Err(refusal());
    }
    let may_have = superblock
        .features
        .has_read_only_compat(ReadOnlyCompat::ORPHAN_PRESENT);
    if !may_have || !superblock.features.has_compat(Compat::ORPHAN_FILE) {
        return Ok(());
    }
    let number = superblock.orphan_file_inode;
    let generation = image.inode(number)?.generation;
    for block in blocks(image, number)? {
        let seed = image.geometry.inode_seed(number, generation);
        let bytes = image.read(block)?;
        let decoded = OrphanBlock::decode(&bytes, number, block, seed)?;
        if decoded.slots.iter().any(|&slot| slot != 0) {
            return Err(refusal());
        }
    }
    Ok(())
}

fn blocks(image: &Image<'_>, number: InodeNumber) -> Result<Vec<BlockNumber>> {
    let runs = runs(image, number, MAX_BLOCKS)?;
    let count: u64 = runs.iter().map(|&(_, length)| u64::from(length)).sum();
    if count > MAX_BLOCKS {
        return Err(Error::Unsupported(format!(
            "an orphan file of {count} blocks: up to {MAX_BLOCKS} are read; `tune2fs -O \
             ^orphan_file` removes it"
        )));
    }
    Ok(runs
        .iter()
        .flat_map(|&(start, length)| (0..length).filter_map(move |step| start.checked_add(step)))
        .collect())
}

/// Rewrites the blocks of the orphan file, empty, at their current location.
pub(super) fn rewrite(image: &mut Image<'_>, shape: &Shape) -> Result<()> {
    if !shape.superblock.features.has_compat(Compat::ORPHAN_FILE) {
        return Ok(());
    }
    let number = shape.superblock.orphan_file_inode;
    let generation = image.inode(number)?.generation;
    let seed = image.geometry.inode_seed(number, generation);
    let slots = vec![0; orphan_file::slots_per_block(image.block_size())];
    for block in blocks(image, number)? {
        let mut bytes = vec![0; image.block_size()];
        orphan_file::encode(&mut bytes, &slots, block, seed);
        image.put(block, bytes);
    }
    Ok(())
}
