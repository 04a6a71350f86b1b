//! Encodes and writes a file system: contents first, the primary superblock last, so that an
//! interrupted mkfs leaves nothing that looks like a file system.

use std::collections::BTreeMap;

use pext4_block::Device;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::contents::Files;
use super::layout::Layout;
use crate::error::{Error, Result};

/// Writes everything and makes it durable.
pub(super) fn write(
    device: &dyn Device,
    layout: &Layout,
    superblock: &Superblock,
    files: &Files,
    is_stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let writer = Writer {
        device,
        layout,
        is_stopped,
    };
    writer.write_inodes(files)?;
    writer.write_metadata(superblock, files)?;
    device.flush()?;
    writer.check()?;
    device.write_at(superblock::OFFSET, &superblock.encode())?;
    device.flush()?;
    Ok(())
}

/// Writes everything except inodes and the primary superblock.
pub(crate) fn write_metadata(
    device: &dyn Device,
    layout: &Layout,
    superblock: &Superblock,
    files: &Files,
) -> Result<()> {
    let writer = Writer {
        device,
        layout,
        is_stopped: &|| false,
    };
    writer.write_metadata(superblock, files)
}

struct Writer<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    /// Whether the caller wants no more to be written.
    is_stopped: &'a dyn Fn() -> bool,
}

impl Writer<'_> {
    fn check(&self) -> Result<()> {
        match (self.is_stopped)() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    fn write_metadata(&self, superblock: &Superblock, files: &Files) -> Result<()> {
        for (block, bytes) in &files.blocks {
            self.write_block(*block, bytes)?;
        }
        self.write_bitmaps()?;
        self.write_descriptors()?;
        self.write_backups(superblock)
    }

    fn write_block(&self, block: BlockNumber, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let offset = block.get() * u64::from(self.layout.geometry.block_size);
        Ok(self.device.write_at(offset, bytes)?)
    }

    fn write_inodes(&self, files: &Files) -> Result<()> {
        let geometry = &self.layout.geometry;
        let mut blocks: BTreeMap<BlockNumber, Vec<u8>> = BTreeMap::new();
        for (number, inode) in &files.inodes {
            let (group, index) = geometry
                .inode_group(*number)
                .expect("a number that was given out");
            let table = self.layout.descriptors[group.get() as usize].inode_table;
            let (block, offset) = geometry.inode_slot(table, index).expect("inside the table");
            let bytes = blocks
                .entry(block)
                .or_insert_with(|| vec![0; geometry.block_size as usize]);
            let start = offset as usize;
            let slot = &mut bytes[start..start + usize::from(geometry.inode_size)];
            inode.encode(slot, *number, geometry.checksum_seed());
        }
        blocks
            .iter()
            .try_for_each(|(block, bytes)| self.write_block(*block, bytes))
    }

    fn write_bitmaps(&self) -> Result<()> {
        for (&group, bits) in &self.layout.block_bitmaps {
            self.write_block(self.layout.descriptors[group as usize].block_bitmap, bits)?;
        }
        for group in self.layout.groups_with_inode_bitmap() {
            let bits = self.layout.inode_bitmap(group);
            self.write_block(self.layout.descriptors[group as usize].inode_bitmap, &bits)?;
        }
        Ok(())
    }

    /// Writes all descriptors and their copies: each copy in one call, but for those in meta groups
    /// (`meta_bg`), which are a block each.
    fn write_descriptors(&self) -> Result<()> {
        let geometry = &self.layout.geometry;
        let block_size = geometry.block_size as usize;
        let size = usize::from(geometry.descriptor_size);
        let mut table = vec![0; geometry.descriptor_blocks as usize * block_size];
        for (group, (descriptor, slot)) in (0..).zip(
            self.layout
                .descriptors
                .iter()
                .zip(table.chunks_exact_mut(size)),
        ) {
            descriptor.encode(slot, geometry, GroupNumber(group));
        }
        if !geometry.has_meta_bg() {
            return self.write_descriptor_table(&table, 0);
        }
        let blocks = table.chunks_exact(block_size);
        (0..)
            .zip(blocks)
            .try_for_each(|(index, block)| self.write_descriptor_table(block, index))
    }

    /// Writes contiguous descriptor blocks from `index` on, and their copies.
    fn write_descriptor_table(&self, table: &[u8], index: u32) -> Result<()> {
        let geometry = &self.layout.geometry;
        self.write_block(geometry.descriptor_block(index), table)?;
        let copies = geometry.descriptor_block_copies(index);
        copies
            .into_iter()
            .try_for_each(|copy| self.write_block(copy, table))
    }

    fn write_backups(&self, superblock: &Superblock) -> Result<()> {
        let geometry = &self.layout.geometry;
        for group in geometry.groups().skip(1) {
            if let Some(block) = geometry.superblock_copy(group) {
                let mut copy = superblock.clone();
                copy.set_copy_group(group);
                self.write_block(block, &copy.encode())?;
            }
        }
        Ok(())
    }
}
