//! Updates directories after inodes were renumbered: rewrites entries that contain an old number,
//! including `.` and `..`, in blocks and in inodes, and updates the checksums of the blocks of
//! renumbered directories.

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{self, FileType, Format};
use pext4_ondisk::extent::Extent;
use pext4_ondisk::inode::{Inode, InodeFlags, inline};
use pext4_ondisk::xattr::Full;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, htree};

use super::image::Image;
use super::map;
use super::shape::Shape;
use super::shrink::Renumbered;
use crate::error::{Error, Result};

/// Updates all directories that contain renumbered inodes or are renumbered.
pub(super) fn rewrite(image: &mut Image<'_>, shape: &Shape, renumbered: &Renumbered) -> Result<()> {
    if renumbered.is_empty() {
        return Ok(());
    }
    let mut rewriter = Rewriter::new(image, renumbered);
    for group in shape.geometry.groups() {
        for number in image.used_inodes(group)? {
            let inode = image.inode(number)?;
            if inode.file_type() == Some(FileType::Directory) && inode.links > 0 {
                rewriter.update_directory(image, number, &inode)?;
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
    /// How many more blocks of all directories together may be visited.
    left: u64,
}

/// A directory that is being updated.
struct Directory {
    number: InodeNumber,
    /// The number in the checksums of its blocks.
    old_number: InodeNumber,
    generation: u32,
    is_indexed: bool,
}

impl<'a> Rewriter<'a> {
    fn new(image: &Image<'_>, renumbered: &'a Renumbered) -> Self {
        Self {
            format: Format::of(&image.superblock.features),
            renumbered,
            origins: renumbered.iter().map(|(&old, &new)| (new, old)).collect(),
            left: image.blocks_to_read(),
        }
    }

    fn update_directory(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &Inode,
    ) -> Result<()> {
        if inode.has_inline_data() {
            return self.update_inline(image, number, inode);
        }
        let directory = Directory {
            number,
            old_number: self.origins.get(&number).copied().unwrap_or(number),
            generation: inode.generation,
            is_indexed: inode.flags.contains(InodeFlags::INDEX),
        };
        let mut blocks = Blocks::new(image, number, inode)?;
        while let Some((logical, block)) = blocks.next(image, number, &mut self.left)? {
            self.update_block(image, &directory, logical, block)
                .map_err(|error| with_location(error, number, block))?;
        }
        Ok(())
    }

    /// Updates a directory that is stored in its inode. Only the inode has a checksum.
    fn update_inline(
        &self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &Inode,
    ) -> Result<()> {
        let wrong = |corrupt: Corrupt| Error::from(corrupt.in_inode(number));
        let mut content = inode.inline_content().map_err(wrong)?;
        let mut is_changed = false;
        if let Some(new) = self.renumbered.get(&inline::parent(&inode.block)) {
            inline::set_parent(&mut content, *new);
            is_changed = true;
        }
        for part in 0..2 {
            let Ok(region) = inline::region(&content, part) else {
                break;
            };
            let records = &mut content[region];
            let matches = self
                .find_renumbered(records, self.format.inline())
                .map_err(wrong)?;
            is_changed |= !matches.is_empty();
            write_numbers(records, &matches);
        }
        if !is_changed {
            return Ok(());
        }
        let mut inode = inode.clone();
        inode
            .set_inline_content(&content)
            .map_err(|Full| wrong(Corrupt::new("inline data", "does not fit where it was")))?;
        image.put_inode(number, &inode)
    }

    /// The offsets of records with renumbered inodes, and the new numbers.
    fn find_renumbered(
        &self,
        bytes: &[u8],
        format: Format,
    ) -> std::result::Result<Vec<(usize, InodeNumber)>, Corrupt> {
        let mut matches = Vec::new();
        for record in directory::records(bytes, format) {
            let record = record?;
            let named = record.entry().map(|entry| entry.inode);
            if let Some(new) = named.and_then(|inode| self.renumbered.get(&inode)) {
                matches.push((record.offset, *new));
            }
        }
        Ok(matches)
    }

    fn update_block(
        &self,
        image: &mut Image<'_>,
        directory: &Directory,
        logical: u64,
        block: BlockNumber,
    ) -> Result<()> {
        let bytes = image.read(block)?;
        let is_index = directory.is_indexed && (logical == 0 || htree::looks_like_node(&bytes));
        // The fake entries of an index block extend over the leaf checksum.
        let format = if is_index {
            self.format.inline()
        } else {
            self.format
        };
        let matches = self.find_renumbered(&bytes, format)?;
        if matches.is_empty() && directory.number == directory.old_number {
            return Ok(());
        }
        let seed = image.geometry.checksum_seed();
        if let Some(seed) = seed {
            directory.verify(seed, is_index, &bytes)?;
        }
        image.edit(block, |bytes| {
            write_numbers(bytes, &matches);
            if let Some(seed) = seed {
                directory.stamp(seed, is_index, bytes);
            }
        })
    }
}

/// Writes the new inode numbers into the records.
fn write_numbers(bytes: &mut [u8], matches: &[(usize, InodeNumber)]) {
    for &(offset, new) in matches {
        bytes[offset..offset + 4].copy_from_slice(&new.get().to_le_bytes());
    }
}

impl Directory {
    fn verify(&self, seed: u32, is_index: bool, bytes: &[u8]) -> Result<()> {
        if is_index {
            htree::verify(
                InodeSeed::new(seed, self.old_number, self.generation),
                bytes,
            )?;
        } else {
            directory::verify_leaf(
                InodeSeed::new(seed, self.old_number, self.generation),
                bytes,
            )?;
        }
        Ok(())
    }

    fn stamp(&self, seed: u32, is_index: bool, bytes: &mut [u8]) {
        if is_index {
            htree::stamp(InodeSeed::new(seed, self.number, self.generation), bytes);
        } else {
            directory::stamp_leaf(InodeSeed::new(seed, self.number, self.generation), bytes);
        }
    }
}

/// The blocks of a directory, with their logical block numbers, one after the other: an extent of
/// twelve bytes names 32,768 of them.
enum Blocks {
    /// The written extents that remain, the next one last, and how much of that is done.
    Extents(Vec<Extent>, u32),
    Map(map::IndirectWalk),
}

impl Blocks {
    fn new(image: &Image<'_>, number: InodeNumber, inode: &Inode) -> Result<Self> {
        if !inode.has_extents() {
            return Ok(Self::Map(map::IndirectWalk::new(number, inode)));
        }
        let mut extents = map::extents(image, number, inode)?.extents;
        extents.retain(|extent| !extent.unwritten);
        extents.reverse();
        Ok(Self::Extents(extents, 0))
    }

    /// The next block. Each that is visited is taken from `left`.
    fn next(
        &mut self,
        image: &Image<'_>,
        number: InodeNumber,
        left: &mut u64,
    ) -> Result<Option<(u64, BlockNumber)>> {
        let (extents, done) = match self {
            Self::Extents(extents, done) => (extents, done),
            Self::Map(walk) => {
                let next = walk.next(image, left)?;
                return Ok(next.map(|(logical, block)| (u64::from(logical.get()), block)));
            }
        };
        let Some(extent) = extents.last() else {
            return Ok(None);
        };
        *left = left.checked_sub(1).ok_or_else(|| {
            Error::from(Corrupt::new("directory", "uses blocks that others use").in_inode(number))
        })?;
        let step = u64::from(*done);
        let logical = u64::from(extent.logical.get()) + step;
        let block = BlockNumber(extent.start.get() + step);
        *done += 1;
        if *done >= extent.length {
            extents.pop();
            *done = 0;
        }
        Ok(Some((logical, block)))
    }
}

fn with_location(error: Error, number: InodeNumber, block: BlockNumber) -> Error {
    match error {
        Error::Corrupt(corrupt) => corrupt.in_inode(number).in_block(block).into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use pext4_block::{Device, RamDevice};
    use pext4_ondisk::extent::{self, Run};
    use pext4_ondisk::inode::{Inode, InodeFlags};
    use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock, directory};

    use super::super::image::Image;
    use super::super::shrink::Renumbered;
    use super::Rewriter;
    use crate::mkfs::{Options, mkfs};

    const BLOCK: usize = 1024;
    /// Where the blocks of all directories are, in an image of four million blocks.
    const START: u64 = 2_000_000;
    const LENGTH: u32 = 1000;

    /// An inode of a directory with these blocks.
    fn with_blocks() -> Inode {
        let runs = [Run {
            logical: LogicalBlock(0),
            start: BlockNumber(START),
            length: LENGTH,
            unwritten: false,
        }];
        let extents = extent::extents_of(&runs).expect("a short one");
        let built = extent::build(&extents, BLOCK, || None).expect("it fits the inode");
        let mut inode = Inode::new(256, 32);
        inode.mode = 0o040_755;
        inode.flags = InodeFlags::EXTENTS;
        inode.block = built.root;
        inode
    }

    #[test]
    fn directories_share_no_more_blocks_than_hold_something() {
        let device = RamDevice::new(4 << 30);
        let options = Options {
            block_size: Some(1024),
            features: vec!["^has_journal".to_owned()],
            ..Options::default()
        };
        mkfs(&device, &options).expect("it fits");
        let mut image = Image::open(&device).expect("a sound image");
        let renumbered = Renumbered::from([(InodeNumber(5000), InodeNumber(13))]);
        let mut rewriter = Rewriter::new(&image, &renumbered);
        let mut block = vec![0; BLOCK];
        directory::init_empty(&mut block, rewriter.format);
        let blocks = block.repeat(LENGTH as usize);
        device
            .write_at(START * BLOCK as u64, &blocks)
            .expect("it fits");
        let inode = with_blocks();
        let mut update = |_: &u32| {
            let updated = rewriter.update_directory(&mut image, InodeNumber(12), &inode);
            let told = updated.map_err(|error| error.to_string());
            assert!(
                told.as_ref()
                    .err()
                    .is_none_or(|told| told.contains("others use"))
            );
            told.is_ok()
        };
        let updated = (0..1000).take_while(&mut update).count();
        assert!(updated > 60 && updated < 300, "{updated} of 1000");
    }
}
