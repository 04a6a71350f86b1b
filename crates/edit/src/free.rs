//! Which blocks of an image nobody uses.
//!
//! Asked of the image as it is on disk, before an edit: a block that is free there can be written
//! at any time, since nothing leads to it. Read without the file system, group by group when first
//! asked. What is in doubt counts as used: that only costs room in the journal.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use pext4_block::Device;
use pext4_fs::Result;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, bitmap};

/// Descriptors are read in pieces of this many blocks.
const BLOCKS_AT_ONCE: u64 = 64;

/// The free blocks of an image at one moment.
pub(crate) struct FreeMap {
    geometry: Geometry,
    /// Where each group's block bitmap lies; `None` where nobody has made one yet.
    homes: Vec<Option<BlockNumber>>,
    /// The file system's own blocks, sorted: what is used where there is no bitmap.
    own: Vec<Range<u64>>,
    bitmaps: HashMap<u32, Box<[u8]>>,
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
            homes: Vec::new(),
            own: Vec::new(),
            bitmaps: HashMap::new(),
            geometry,
        };
        let mut piece = Piece::default();
        for group in geometry.groups() {
            map.note_copies(group);
            let descriptor = piece.descriptor(device, &geometry, group)?;
            map.note_group(&descriptor);
        }
        map.own.sort_unstable_by_key(|run| run.start);
        Ok(map)
    }

    fn note_copies(&mut self, group: GroupNumber) {
        let first = self.geometry.first_block(group).get();
        let count = u64::from(self.geometry.superblock_overhead(group));
        self.own.push(first..first.saturating_add(count));
    }

    fn note_group(&mut self, descriptor: &GroupDescriptor) {
        // Without checksums nobody heeds the flag.
        let heeded = self.geometry.checksums.protects_descriptors();
        let made = !(heeded && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT));
        self.homes.push(made.then_some(descriptor.block_bitmap));
        let table = u64::from(self.geometry.inode_table_blocks);
        for (start, count) in [
            (descriptor.block_bitmap, 1),
            (descriptor.inode_bitmap, 1),
            (descriptor.inode_table, table),
        ] {
            let start = start.get();
            self.own.push(start..start.saturating_add(count));
        }
    }

    /// Whether nobody uses a block.
    ///
    /// # Errors
    ///
    /// The device's.
    pub(crate) fn is_free(&mut self, device: &dyn Device, block: u64) -> io::Result<bool> {
        let place = BlockNumber(block);
        let found = self
            .geometry
            .group_of(place)
            .zip(self.geometry.cluster_in_group(place));
        let Some((group, cluster)) = found.filter(|_| self.geometry.contains(place, 1)) else {
            return Ok(false);
        };
        let Some(home) = self.homes.get(group.get() as usize).copied().flatten() else {
            return Ok(!self.is_own(block));
        };
        if !self.bitmaps.contains_key(&group.get()) {
            let bitmap = self.read_bitmap(device, home)?;
            self.bitmaps.insert(group.get(), bitmap);
        }
        Ok(!bitmap::test(&self.bitmaps[&group.get()], cluster) && !self.is_own(block))
    }

    fn read_bitmap(&self, device: &dyn Device, home: BlockNumber) -> io::Result<Box<[u8]>> {
        let size = self.geometry.block_size;
        let mut bitmap = vec![0; size as usize].into_boxed_slice();
        let offset = home.get().checked_mul(u64::from(size));
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        device.read_at(offset, &mut bitmap)?;
        Ok(bitmap)
    }

    fn is_own(&self, block: u64) -> bool {
        let after = self.own.partition_point(|run| run.start <= block);
        after > 0 && self.own[after - 1].contains(&block)
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

/// Neighbouring blocks of descriptors.
#[derive(Default)]
struct Piece {
    first: u64,
    bytes: Vec<u8>,
}

impl Piece {
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
