//! Directories, after inodes got other numbers: entries that name one are rewritten, `.` and `..`
//! among them, and blocks of directories that have another number themselves are stamped anew.

use pext4_ondisk::directory::{self, FileType, Format};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, htree};

use super::image::Image;
use super::map;
use super::shape::Shape;
use super::shrink::Renumbered;
use crate::error::{Error, Result};

/// Rewrites all directories that need it.
pub(super) fn rewrite(image: &mut Image<'_>, shape: &Shape, renumbered: &Renumbered) -> Result<()> {
    if renumbered.is_empty() {
        return Ok(());
    }
    let origins = renumbered.iter().map(|(&old, &new)| (new, old)).collect();
    let mut rewriter = Rewriter {
        format: Format::of(&image.superblock.features),
        renumbered,
        origins,
        left: image.geometry.blocks_count,
    };
    for group in shape.geometry.groups() {
        for number in image.used_inodes(group)? {
            let inode = image.inode(number)?;
            if inode.file_type() == Some(FileType::Directory) && inode.links > 0 {
                rewriter.directory(image, number, &inode)?;
            }
        }
    }
    Ok(())
}

struct Rewriter<'a> {
    format: Format,
    renumbered: &'a Renumbered,
    /// From the new number to the old one.
    origins: Renumbered,
    /// Blocks that may still be visited.
    left: u64,
}

/// A directory that is being rewritten.
struct Directory {
    number: InodeNumber,
    /// The number that its blocks are stamped with.
    old_number: InodeNumber,
    generation: u32,
    is_indexed: bool,
}

impl Rewriter<'_> {
    fn directory(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &Inode,
    ) -> Result<()> {
        let directory = Directory {
            number,
            old_number: self.origins.get(&number).copied().unwrap_or(number),
            generation: inode.generation,
            is_indexed: inode.flags.contains(InodeFlags::INDEX),
        };
        for (logical, block) in blocks(image, number, inode)? {
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                Error::from(
                    Corrupt::new("directory", "uses blocks that others use").in_inode(number),
                )
            })?;
            self.block(image, &directory, logical, block)
                .map_err(|error| placed(error, number, block))?;
        }
        Ok(())
    }

    fn block(
        &self,
        image: &mut Image<'_>,
        directory: &Directory,
        logical: u64,
        block: BlockNumber,
    ) -> Result<()> {
        let bytes = image.read(block)?;
        let is_index = directory.is_indexed && (logical == 0 || htree::looks_like_node(&bytes));
        // The fake entries of an index reach over where a leaf has its checksum.
        let format = if is_index {
            self.format.inline()
        } else {
            self.format
        };
        let mut hits = Vec::new();
        for record in directory::records(&bytes, format) {
            let record = record?;
            let new = record
                .entry
                .and_then(|entry| self.renumbered.get(&entry.inode));
            if let Some(new) = new {
                hits.push((record.offset, *new));
            }
        }
        if hits.is_empty() && directory.number == directory.old_number {
            return Ok(());
        }
        let seed = image.geometry.checksum_seed();
        if let Some(seed) = seed {
            directory.verify(seed, is_index, &bytes)?;
        }
        image.edit(block, |bytes| {
            for (offset, new) in hits {
                bytes[offset..offset + 4].copy_from_slice(&new.get().to_le_bytes());
            }
            if let Some(seed) = seed {
                directory.stamp(seed, is_index, bytes);
            }
        })
    }
}

impl Directory {
    fn verify(&self, seed: u32, is_index: bool, bytes: &[u8]) -> Result<()> {
        if is_index {
            htree::verify(seed, self.old_number, self.generation, bytes)?;
        } else {
            directory::verify_leaf(seed, self.old_number, self.generation, bytes)?;
        }
        Ok(())
    }

    fn stamp(&self, seed: u32, is_index: bool, bytes: &mut [u8]) {
        if is_index {
            htree::stamp(seed, self.number, self.generation, bytes);
        } else {
            directory::stamp_leaf(seed, self.number, self.generation, bytes);
        }
    }
}

/// The blocks of a directory with their places in it.
fn blocks(
    image: &Image<'_>,
    number: InodeNumber,
    inode: &Inode,
) -> Result<Vec<(u64, BlockNumber)>> {
    if !inode.has_extents() {
        let found = map::pointers(image, number, inode)?;
        return Ok(found
            .into_iter()
            .map(|(logical, block)| (u64::from(logical.get()), block))
            .collect());
    }
    let found = map::extents(image, number, inode)?;
    let written = found.extents.iter().filter(|extent| !extent.unwritten);
    Ok(written
        .flat_map(|extent| {
            let (logical, start) = (u64::from(extent.logical.get()), extent.start.get());
            (0..u64::from(extent.length))
                .map(move |step| (logical + step, BlockNumber(start + step)))
        })
        .collect())
}

fn placed(error: Error, number: InodeNumber, block: BlockNumber) -> Error {
    match error {
        Error::Corrupt(corrupt) => corrupt.in_inode(number).in_block(block).into(),
        other => other,
    }
}
