//! The free blocks of an image.
//!
//! This describes the image on disk, before an edit: a block that is free there can be written at
//! any time, since nothing refers to it. Bitmaps are read without the file system, each when a
//! block of its group is first looked up. If in doubt, as where a bitmap does not have its
//! checksum, a block counts as used, which only costs space in the journal.

use std::collections::HashMap;
use std::io;

use pext4_block::Device;
use pext4_fs::Result;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, bitmap};
use rangemap::RangeSet;

/// Descriptors are read in pieces of this many blocks.
const BLOCKS_AT_ONCE: u64 = 64;

/// The free blocks of an image.
pub(crate) struct FreeMap {
    geometry: Geometry,
    /// The block bitmap of each group; `None` if it was never written.
    written: Vec<Option<WrittenBitmap>>,
    /// Blocks of the file system's metadata. Without a bitmap these are the used blocks.
    metadata: RangeSet<u64>,
    bitmaps: HashMap<u32, Box<[u8]>>,
}

/// What a descriptor says of a group's block bitmap.
#[derive(Clone, Copy)]
struct WrittenBitmap {
    block: BlockNumber,
    checksum: u32,
}

impl FreeMap {
    /// Reads the group descriptors.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn open(device: &dyn Device) -> Result<Self> {
        let geometry = Geometry::of(&read_superblock(device)?)?;
        let mut map = Self {
            written: Vec::new(),
            metadata: RangeSet::new(),
            bitmaps: HashMap::new(),
            geometry,
        };
        let mut window = DescriptorWindow::default();
        for group in geometry.groups() {
            map.add_superblock_copies(group);
            let descriptor = window.descriptor(device, &geometry, group)?;
            map.add_group(&descriptor);
        }
        Ok(map)
    }

    fn add_superblock_copies(&mut self, group: GroupNumber) {
        let first = self.geometry.first_block(group).get();
        let count = u64::from(self.geometry.superblock_overhead(group));
        self.add_metadata(first, count);
    }

    fn add_group(&mut self, descriptor: &GroupDescriptor) {
        let checksums = self.geometry.checksums;
        let is_written = !descriptor.flags.has_no_block_bitmap(checksums);
        self.written.push(is_written.then_some(WrittenBitmap {
            block: descriptor.block_bitmap,
            checksum: descriptor.block_bitmap_checksum,
        }));
        let table = u64::from(self.geometry.inode_table_blocks);
        for (start, count) in [
            (descriptor.block_bitmap, 1),
            (descriptor.inode_bitmap, 1),
            (descriptor.inode_table, table),
        ] {
            self.add_metadata(start.get(), count);
        }
    }

    fn add_metadata(&mut self, start: u64, count: u64) {
        let blocks = start..start.saturating_add(count);
        if !blocks.is_empty() {
            self.metadata.insert(blocks);
        }
    }

    /// Whether a block is free. A block outside the file system is not.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub(crate) fn is_free(&mut self, device: &dyn Device, block: u64) -> io::Result<bool> {
        let place = BlockNumber(block);
        let found = self
            .geometry
            .group_of(place)
            .zip(self.geometry.cluster_in_group(place));
        let Some((group, cluster)) = found.filter(|_| self.geometry.contains(place, 1)) else {
            return Ok(false);
        };
        let written = self.written.get(group.get() as usize).copied().flatten();
        let Some(written) = written else {
            return Ok(!self.metadata.contains(&block));
        };
        if !self.bitmaps.contains_key(&group.get()) {
            let bitmap = self.read_bitmap(device, written)?;
            self.bitmaps.insert(group.get(), bitmap);
        }
        Ok(!bitmap::test(&self.bitmaps[&group.get()], cluster) && !self.metadata.contains(&block))
    }

    /// The bitmap of a group, in which all blocks are used if it does not have its checksum.
    fn read_bitmap(&self, device: &dyn Device, written: WrittenBitmap) -> io::Result<Box<[u8]>> {
        let size = self.geometry.block_size;
        let mut bitmap = vec![0; size as usize].into_boxed_slice();
        let offset = written.block.get().checked_mul(u64::from(size));
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        device.read_at(offset, &mut bitmap)?;
        if !self.is_sound(&bitmap, written.checksum) {
            bitmap.fill(u8::MAX);
        }
        Ok(bitmap)
    }

    fn is_sound(&self, bitmap: &[u8], stored: u32) -> bool {
        let geometry = &self.geometry;
        geometry.checksum_seed().is_none_or(|seed| {
            let clusters = geometry.clusters_per_group;
            let computed = bitmap::block_bitmap_checksum(seed, bitmap, clusters);
            GroupDescriptor::matches(stored, computed, geometry)
        })
    }
}

/// The superblock of an image.
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes)?;
    Ok(Superblock::decode(&bytes)?)
}

/// Neighbouring blocks of descriptors, in memory.
#[derive(Default)]
struct DescriptorWindow {
    first: u64,
    bytes: Vec<u8>,
}

impl DescriptorWindow {
    fn descriptor(
        &mut self,
        device: &dyn Device,
        geometry: &Geometry,
        group: GroupNumber,
    ) -> Result<GroupDescriptor> {
        let (block, offset) = geometry.descriptor_location(group);
        let size = u64::from(geometry.block_size);
        let held = self.first..self.first + self.bytes.len() as u64 / size;
        if !held.contains(&block.get()) {
            self.read(device, geometry, block)?;
        }
        let start = (block.get() - self.first) * size + u64::from(offset);
        let start = usize::try_from(start).expect("within a piece in memory");
        let bytes = &self.bytes[start..start + usize::from(geometry.descriptor_size)];
        Ok(GroupDescriptor::decode(bytes, geometry, group)
            .map_err(|corrupt| corrupt.in_group(group).in_block(block))?)
    }

    fn read(&mut self, device: &dyn Device, geometry: &Geometry, block: BlockNumber) -> Result<()> {
        let left = geometry.blocks_count.saturating_sub(block.get());
        if left == 0 {
            let problem = "lie outside the file system";
            return Err(Corrupt::new("group descriptors", problem)
                .in_block(block)
                .into());
        }
        let count = left.min(BLOCKS_AT_ONCE) * u64::from(geometry.block_size);
        self.first = block.get();
        self.bytes = vec![0; usize::try_from(count).expect("a small piece")];
        let offset = block.get() * u64::from(geometry.block_size);
        Ok(device.read_at(offset, &mut self.bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use pext4_block::Device;
    use pext4_ondisk::BlockNumber;
    use pext4_ondisk::group_descriptor::GroupDescriptor;
    use pext4_testkit::oracle::format::{Features, Format};

    use super::FreeMap;

    /// A descriptor that places a bitmap in the middle of the inode table does not make the rest of
    /// the table free.
    #[test]
    fn metadata_that_overlaps_is_in_use_to_its_end() {
        let format = Format::new(4 << 20, 1024, Features::Debian12);
        let device = format.device().expect("mke2fs is there");
        let mut map = FreeMap::open(&device).expect("sound descriptors");
        let length = u64::from(map.geometry.inode_table_blocks);
        let is_free = |map: &mut FreeMap, block| map.is_free(&device, block).expect("memory");
        let mut run = |start: &u64| (*start..=start + length).all(|block| is_free(&mut map, block));
        let table = (1..4096).find(&mut run).expect("it is nearly empty");
        let mut descriptor = GroupDescriptor::default();
        descriptor.inode_table = BlockNumber(table);
        descriptor.block_bitmap = BlockNumber(table + 1);
        map.add_group(&descriptor);
        assert!(length > 3);
        for block in table..table + length {
            assert!(!is_free(&mut map, block), "{block}");
        }
        assert!(is_free(&mut map, table + length));
    }

    #[test]
    fn a_bitmap_with_a_wrong_checksum_has_no_free_blocks() {
        let format = Format::new(4 << 20, 1024, Features::Debian12);
        let device = format.device().expect("mke2fs is there");
        let blocks = device.size() / 1024;
        let free = || {
            let mut map = FreeMap::open(&device).expect("sound descriptors");
            let mut is_free = |block: &u64| map.is_free(&device, *block).expect("memory");
            (0..blocks).filter(|block| is_free(block)).count()
        };
        assert!(free() > 1000, "it is nearly empty");
        let map = FreeMap::open(&device).expect("sound descriptors");
        let written = map.written[0].expect("the group is in use");
        let at = written.block.get() * 1024;
        let mut byte = [0];
        device.read_at(at + 500, &mut byte).expect("memory");
        // Eight blocks near the end.
        device.write_at(at + 500, &[!byte[0]]).expect("memory");
        assert_eq!(free(), 0);
    }
}
