//! An image that is read from the device and changed only in memory.
//!
//! Changed blocks are kept by number, and reads return them. Nothing here writes: [`super::run`]
//! writes the changes of a complete plan. An image is opened after the journal replay, changed by
//! growing or shrinking, and then consumed by the plan.

use std::collections::BTreeMap;

use pext4_block::Device;
use pext4_ondisk::extent::Bounds;
use pext4_ondisk::feature::Compat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, orphan_file};

use super::journal::{self, runs};
use super::plan::Move;
use super::structures::Structures;
use super::tables::MovedTables;
use crate::error::{Error, Result};
use crate::holes::blocks_to_read;

/// An image and its pending changes.
pub(super) struct Image<'d> {
    device: &'d dyn Device,
    /// As on the device.
    pub superblock: Superblock,
    /// As on the device.
    pub geometry: Geometry,
    /// The descriptors of all groups, with pending changes.
    pub descriptors: Vec<GroupDescriptor>,
    /// The blocks of the file system's own structures on the device.
    pub(super) structures: Structures,
    /// Changed blocks.
    pub changed: BTreeMap<BlockNumber, Vec<u8>>,
    /// Inode tables that were moved.
    pub moved_tables: MovedTables,
    /// Bitmaps that were loaded, with pending changes.
    pub(super) block_bitmaps: BTreeMap<u32, Bitmap>,
    pub(super) inode_bitmaps: BTreeMap<u32, Bitmap>,
}

/// A bitmap in memory.
pub(super) struct Bitmap {
    pub bits: Vec<u8>,
    pub is_changed: bool,
}

/// Reads and checks the superblock.
pub(super) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let mut bytes = [0; superblock::SIZE];
    if device.size() < superblock::OFFSET + superblock::SIZE as u64 {
        let problem = format!("a device of {} bytes has no room for one", device.size());
        return Err(Corrupt::new("superblock", problem).into());
    }
    device.read_at(superblock::OFFSET, &mut bytes)?;
    Ok(Superblock::decode(&bytes)?)
}

impl<'d> Image<'d> {
    /// Opens an image and checks all its descriptors, also against each other.
    pub fn open(device: &'d dyn Device) -> Result<Self> {
        let mut image = Self::without_descriptors(device)?;
        let geometry = image.geometry;
        image.read_descriptors(geometry.group_count, |slot, group| {
            let descriptor = GroupDescriptor::decode(slot, &geometry, group)?;
            descriptor.check(&geometry, group)?;
            Ok(descriptor)
        })?;
        image.structures = Structures::new(&image.descriptors, &geometry)?;
        for (number, max_blocks) in image.own_files() {
            let runs = runs(&image, number, max_blocks)?;
            image.structures.add_file(number, &runs)?;
        }
        Ok(image)
    }

    /// The journal and the orphan file, if there are any, with their maximum numbers of blocks.
    fn own_files(&self) -> Vec<(InodeNumber, u64)> {
        let superblock = &self.superblock;
        let (journal, orphans) = (superblock.journal_inode, superblock.orphan_file_inode);
        let files = [
            (Compat::HAS_JOURNAL, journal, journal::MAX_BLOCKS),
            (Compat::ORPHAN_FILE, orphans, orphan_file::MAX_BLOCKS),
        ];
        files
            .into_iter()
            .filter(|&(feature, number, _)| {
                superblock.features.has_compat(feature) && number.get() != 0
            })
            .map(|(_, number, max_blocks)| (number, max_blocks))
            .collect()
    }

    /// Opens an image whose journal is not replayed yet, with the descriptors of its first `groups`
    /// groups. They may be newer than the superblock, or torn, so they are not checked.
    pub fn open_unreplayed(device: &'d dyn Device, groups: u32) -> Result<Self> {
        let mut image = Self::without_descriptors(device)?;
        let geometry = image.geometry;
        image.read_descriptors(groups.min(geometry.group_count), |slot, group| {
            GroupDescriptor::decode_unverified(slot, &geometry, group)
        })?;
        Ok(image)
    }

    fn without_descriptors(device: &'d dyn Device) -> Result<Self> {
        let superblock = read_superblock(device)?;
        let geometry = Geometry::of(&superblock)?;
        let bytes = geometry
            .blocks_count
            .checked_mul(u64::from(geometry.block_size));
        if bytes.is_none_or(|bytes| bytes > device.size()) {
            let problem = format!(
                "{} blocks of {} bytes do not fit the device's {} bytes",
                geometry.blocks_count,
                geometry.block_size,
                device.size()
            );
            return Err(Corrupt::new("superblock", problem).into());
        }
        Ok(Self {
            device,
            superblock,
            geometry,
            descriptors: Vec::new(),
            structures: Structures::default(),
            changed: BTreeMap::new(),
            moved_tables: MovedTables::default(),
            block_bitmaps: BTreeMap::new(),
            inode_bitmaps: BTreeMap::new(),
        })
    }

    fn read_descriptors(
        &mut self,
        groups: u32,
        decode: impl Fn(&[u8], GroupNumber) -> std::result::Result<GroupDescriptor, Corrupt>,
    ) -> Result<()> {
        let geometry = self.geometry;
        let size = usize::from(geometry.descriptor_size);
        for index in 0..groups.div_ceil(geometry.descriptors_per_block) {
            let home = geometry.descriptor_block(index);
            let block = self.read(home)?;
            let first = index * geometry.descriptors_per_block;
            for (group, slot) in (first..groups).zip(block.chunks_exact(size)) {
                let descriptor = decode(slot, GroupNumber(group));
                self.descriptors
                    .push(descriptor.map_err(|corrupt| corrupt.in_block(home))?);
            }
        }
        Ok(())
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// The number of blocks that may be read where each is read once: those that hold something on
    /// the device or are changed, and some more.
    pub fn blocks_to_read(&self) -> u64 {
        let geometry = &self.geometry;
        let (block_size, blocks) = (geometry.block_size, geometry.blocks_count);
        let present = blocks_to_read(self.device, block_size, blocks, &|| false);
        present.saturating_add(self.changed.len() as u64)
    }

    /// The valid range of file blocks.
    pub fn bounds(&self) -> Bounds {
        self.geometry.bounds()
    }

    /// A block, with pending changes.
    pub fn read(&self, block: BlockNumber) -> Result<Vec<u8>> {
        if let Some(bytes) = self.changed.get(&block) {
            return Ok(bytes.clone());
        }
        self.read_unchanged(block)
    }

    /// A block, without pending changes. One of a moved table is still where it was.
    pub fn read_unchanged(&self, block: BlockNumber) -> Result<Vec<u8>> {
        let block = self.moved_tables.source(block);
        let size = u64::from(self.geometry.block_size);
        let offset = block.get().checked_mul(size).ok_or_else(|| {
            Error::from(Corrupt::new("block", "its number is absurd").in_block(block))
        })?;
        let mut bytes = vec![0; self.block_size()];
        self.device.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Changes a block.
    pub fn edit<R>(
        &mut self,
        block: BlockNumber,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        if !self.changed.contains_key(&block) {
            let bytes = self.read_unchanged(block)?;
            self.changed.insert(block, bytes);
        }
        let bytes = self.changed.get_mut(&block).expect("it is there now");
        Ok(change(bytes))
    }

    /// Replaces a block.
    pub fn put(&mut self, block: BlockNumber, bytes: Vec<u8>) {
        debug_assert_eq!(bytes.len(), self.block_size());
        self.changed.insert(block, bytes);
    }

    /// Moves the pending changes of blocks with them.
    pub fn move_changed(&mut self, moved: &Move) {
        let blocks = BlockNumber(moved.from)..BlockNumber(moved.from + moved.count);
        let changed: Vec<_> = self.changed.extract_if(blocks, |_, _| true).collect();
        for (block, bytes) in changed {
            self.put(BlockNumber(moved.to + (block.get() - moved.from)), bytes);
        }
    }

    /// Moves an inode table: inodes are read from its new place from now on. A table may be long,
    /// and a hole of the image for the most part; so only its changed blocks are in memory.
    pub fn move_table(&mut self, moved: Move) {
        let there = BlockNumber(moved.to)..BlockNumber(moved.to + moved.count);
        self.changed.extract_if(there, |_, _| true).for_each(drop);
        self.move_changed(&moved);
        self.moved_tables.add(moved);
    }

    /// The block of an inode and the offset in it.
    fn slot(&self, number: InodeNumber) -> Result<(BlockNumber, usize)> {
        let place = self
            .geometry
            .inode_group(number)
            .and_then(|(group, index)| {
                let descriptor = self.descriptors.get(group.get() as usize)?;
                self.geometry.inode_slot(descriptor.inode_table, index)
            });
        let (block, offset) = place.ok_or_else(|| {
            let problem = "there is no inode of this number";
            Error::from(Corrupt::new("inode table", problem).in_inode(number))
        })?;
        Ok((block, offset as usize))
    }

    /// An inode, with pending changes.
    pub fn inode(&self, number: InodeNumber) -> Result<Inode> {
        let (block, offset) = self.slot(number)?;
        let bytes = self.read(block)?;
        let slot = &bytes[offset..offset + usize::from(self.geometry.inode_size)];
        let decoded = Inode::decode(slot, number, self.geometry.checksum_seed());
        decoded
            .map(|inode| inode.as_read_with(&self.superblock.features))
            .map_err(|corrupt| corrupt.in_block(block).into())
    }

    /// Replaces an inode.
    pub fn put_inode(&mut self, number: InodeNumber, inode: &Inode) -> Result<()> {
        let (block, offset) = self.slot(number)?;
        let size = usize::from(self.geometry.inode_size);
        let seed = self.geometry.checksum_seed();
        self.edit(block, |bytes| {
            inode.encode(&mut bytes[offset..offset + size], number, seed);
        })
    }

    /// Zeroes an inode, as if it had never been used.
    pub fn clear_inode(&mut self, number: InodeNumber) -> Result<()> {
        let (block, offset) = self.slot(number)?;
        let size = usize::from(self.geometry.inode_size);
        self.edit(block, |bytes| bytes[offset..offset + size].fill(0))
    }
}
