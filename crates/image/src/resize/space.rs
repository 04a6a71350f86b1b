//! Block and inode bitmaps, and block allocation.
//!
//! A bitmap is read (or created, if it is uninitialized) on first use. When the plan is complete,
//! [`Image::store_bitmaps`] encodes changed bitmaps and derives counts, checksums and flags from
//! them.
//!
//! A bitmap that contradicts its descriptor's count, or has a block of the file system's own
//! structures free, is refused when it is read: allocating by it would overwrite what is in use.

use std::ops::Range;

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, bitmap};

use super::image::{Bitmap, Image};
use super::structures::ADVICE;
use crate::error::{Error, Result};
use crate::mkfs::Run;
use crate::mkfs::layout::{fresh_block_bitmap, metadata_runs};

/// Where the search for free blocks continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    group: u32,
    bit: u32,
}

impl Image<'_> {
    /// A group's block bitmap.
    pub fn block_bitmap(&mut self, group: GroupNumber) -> Result<&mut Bitmap> {
        if !self.block_bitmaps.contains_key(&group.get()) {
            let bits = self.load_block_bitmap(group)?;
            self.insert_block_bitmap(group, bits, false);
        }
        Ok(self
            .block_bitmaps
            .get_mut(&group.get())
            .expect("it is there now"))
    }

    /// Sets the bitmap of a group.
    pub fn insert_block_bitmap(&mut self, group: GroupNumber, bits: Vec<u8>, is_changed: bool) {
        self.block_bitmaps
            .insert(group.get(), Bitmap { bits, is_changed });
    }

    fn load_block_bitmap(&self, group: GroupNumber) -> Result<Vec<u8>> {
        let geometry = &self.geometry;
        let descriptor = self.descriptor(group)?;
        if descriptor.flags.has_no_block_bitmap(geometry.checksums) {
            let bits = self.unwritten_block_bitmap(group, descriptor);
            return self.checked_block_bitmap(group, descriptor, bits);
        }
        let bits = self.read_unchanged(descriptor.block_bitmap)?;
        if let Some(seed) = geometry.checksum_seed() {
            let computed = bitmap::block_bitmap_checksum(seed, &bits, geometry.clusters_per_group);
            let stored = descriptor.block_bitmap_checksum;
            if !GroupDescriptor::matches(stored, computed, geometry) {
                let corrupt = Corrupt::checksum("block bitmap", stored, computed);
                let corrupt = corrupt.in_group(group).in_block(descriptor.block_bitmap);
                return Err(corrupt.into());
            }
        }
        self.checked_block_bitmap(group, descriptor, bits)
    }

    /// Refuses a block bitmap that contradicts what else is known about the group.
    fn checked_block_bitmap(
        &self,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
        bits: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let geometry = &self.geometry;
        if group.get() >= geometry.group_count {
            // A group that this resize adds; its metadata is marked as it is placed.
            return Ok(bits);
        }
        let refuse = |problem: String| {
            let corrupt = Corrupt::new("block bitmap", format!("{problem}; {ADVICE}"));
            let corrupt = corrupt.in_group(group).in_block(descriptor.block_bitmap);
            Err(Error::from(corrupt))
        };
        let first = geometry.first_block(group).get();
        let blocks = geometry.blocks_in(group);
        for run in self.structures.within(first..first + u64::from(blocks)) {
            let (start, end) = (offset(run.start - first), offset(run.end - first));
            if let Some(free) = bitmap::next_zero(&bits, start, end) {
                let block = first + u64::from(free);
                return refuse(format!(
                    "says that block {block} is free, which holds metadata of the file system"
                ));
            }
        }
        let (free, said) = (
            bitmap::count_zeros(&bits, 0..blocks),
            descriptor.free_clusters,
        );
        if free != said {
            return refuse(format!(
                "has {free} free blocks, the group descriptor says {said}"
            ));
        }
        Ok(bits)
    }

    /// The bitmap of an uninitialized group: only metadata is used.
    fn unwritten_block_bitmap(&self, group: GroupNumber, descriptor: &GroupDescriptor) -> Vec<u8> {
        let mut bits = fresh_block_bitmap(&self.geometry, group);
        let first = self.geometry.first_block(group).get();
        let blocks = u64::from(self.geometry.blocks_in(group));
        let present = self.structures.within(first..first + blocks);
        for run in present.chain(metadata_runs(descriptor, &self.geometry)) {
            for block in run.map(BlockNumber) {
                if self.geometry.group_of(block) == Some(group)
                    && let Some(bit) = self.geometry.offset_in_group(block)
                {
                    bitmap::set(&mut bits, bit);
                }
            }
        }
        bits
    }

    pub fn descriptor(&self, group: GroupNumber) -> Result<&GroupDescriptor> {
        self.descriptors.get(group.get() as usize).ok_or_else(|| {
            Corrupt::new("group descriptor", "there is no such group")
                .in_group(group)
                .into()
        })
    }

    /// Marks blocks as used or free, with the group boundaries of `geometry`. Pending changes of
    /// freed blocks are dropped.
    pub fn mark(&mut self, geometry: &Geometry, run: Run, used: bool) -> Result<()> {
        if !used {
            let stale = BlockNumber(run.start)..BlockNumber(run.end);
            self.changed.extract_if(stale, |_, _| true).for_each(drop);
        }
        let mut start = run.start;
        while start < run.end {
            let group = geometry.group_of(BlockNumber(start)).ok_or_else(|| {
                Error::from(
                    Corrupt::new("block", "lies outside every group").in_block(BlockNumber(start)),
                )
            })?;
            let first = geometry.first_block(group).get();
            let end = run.end.min(first + u64::from(geometry.blocks_in(group)));
            let range = offset(start - first)..offset(end - first);
            let map = self.block_bitmap(group)?;
            map.is_changed = true;
            if used {
                bitmap::set_range(&mut map.bits, range);
            } else {
                bitmap::clear_range(&mut map.bits, range);
            }
            start = end;
        }
        Ok(())
    }

    /// Allocates up to `max_blocks` contiguous blocks from the cursor on. `None` if no block is
    /// free.
    pub fn allocate(
        &mut self,
        geometry: &Geometry,
        cursor: &mut Cursor,
        max_blocks: u64,
    ) -> Result<Option<Run>> {
        for _ in 0..=geometry.group_count {
            let group = GroupNumber(cursor.group);
            let blocks = geometry.blocks_in(group);
            let from = cursor.bit;
            if let Some(range) = self.free_in(group, from..blocks)? {
                let max_blocks = u32::try_from(max_blocks).unwrap_or(u32::MAX);
                let range = range.start..range.end.min(range.start.saturating_add(max_blocks));
                cursor.bit = range.end;
                let first = geometry.first_block(group).get();
                let run = first + u64::from(range.start)..first + u64::from(range.end);
                self.mark(geometry, run.clone(), true)?;
                return Ok(Some(run));
            }
            *cursor = Cursor {
                group: (group.get() + 1) % geometry.group_count,
                bit: 0,
            };
        }
        Ok(None)
    }

    /// The first free bits of a group in a range.
    fn free_in(&mut self, group: GroupNumber, range: Range<u32>) -> Result<Option<Range<u32>>> {
        let is_loaded = self.block_bitmaps.contains_key(&group.get());
        if !is_loaded && self.descriptor(group)?.free_clusters == 0 {
            return Ok(None);
        }
        let bits = &self.block_bitmap(group)?.bits;
        let start = bitmap::next_zero(bits, range.start, range.end);
        Ok(start.map(|start| start..bitmap::next_one(bits, start, range.end).unwrap_or(range.end)))
    }

    /// Allocates `count` contiguous blocks in these groups. `None` if there is no such run.
    pub fn allocate_piece(
        &mut self,
        geometry: &Geometry,
        groups: impl Iterator<Item = u32>,
        count: u64,
    ) -> Result<Option<Run>> {
        for group in groups.map(GroupNumber) {
            let (first, blocks) = (geometry.first_block(group).get(), geometry.blocks_in(group));
            let mut from = 0;
            while let Some(range) = self.free_in(group, from..blocks)? {
                if u64::from(range.end - range.start) >= count {
                    let start = first + u64::from(range.start);
                    self.mark(geometry, start..start + count, true)?;
                    return Ok(Some(start..start + count));
                }
                from = range.end;
            }
        }
        Ok(None)
    }

    /// A group's inode bitmap.
    pub fn inode_bitmap(&mut self, group: GroupNumber) -> Result<&mut Bitmap> {
        if !self.inode_bitmaps.contains_key(&group.get()) {
            let bits = self.load_inode_bitmap(group)?;
            let map = Bitmap {
                bits,
                is_changed: false,
            };
            self.inode_bitmaps.insert(group.get(), map);
        }
        Ok(self
            .inode_bitmaps
            .get_mut(&group.get())
            .expect("it is there now"))
    }

    /// Reads an inode bitmap; refuses one that contradicts its descriptor, or has a reserved inode
    /// free.
    fn load_inode_bitmap(&self, group: GroupNumber) -> Result<Vec<u8>> {
        let geometry = &self.geometry;
        let descriptor = self.descriptor(group)?;
        let bits = match descriptor.flags.has_no_inode_bitmap(geometry.checksums) {
            true => fresh_inode_bitmap(geometry),
            false => self.read_unchanged(descriptor.inode_bitmap)?,
        };
        descriptor
            .check_inode_bitmap(&bits, geometry, group)
            .and_then(|()| check_reserved_inodes(&bits, geometry, group))
            .map_err(|corrupt| corrupt.in_block(descriptor.inode_bitmap).adding(ADVICE))?;
        Ok(bits)
    }

    /// The used inodes of a group.
    pub fn used_inodes(&mut self, group: GroupNumber) -> Result<Vec<InodeNumber>> {
        let geometry = self.geometry;
        let bits = &self.inode_bitmap(group)?.bits;
        let used = (0..geometry.inodes_per_group).filter(|&index| bitmap::test(bits, index));
        Ok(used
            .filter_map(|index| geometry.inode_at(group, index))
            .collect())
    }

    /// Stores changed bitmaps as changed blocks, and updates counts, flags and checksums, for
    /// `geometry`.
    pub fn store_bitmaps(&mut self, geometry: &Geometry) {
        for (group, map) in std::mem::take(&mut self.block_bitmaps) {
            if map.is_changed && group < geometry.group_count {
                self.store_block_bitmap(geometry, GroupNumber(group), map.bits);
            }
        }
        for (group, map) in std::mem::take(&mut self.inode_bitmaps) {
            if map.is_changed && group < geometry.group_count {
                self.store_inode_bitmap(geometry, group, map.bits);
            }
        }
    }

    fn store_block_bitmap(&mut self, geometry: &Geometry, group: GroupNumber, mut bits: Vec<u8>) {
        let blocks = geometry.blocks_in(group);
        bitmap::set_padding(&mut bits, blocks);
        let descriptor = &mut self.descriptors[group.get() as usize];
        descriptor.free_clusters = bitmap::count_zeros(&bits, 0..blocks);
        descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        if let Some(seed) = geometry.checksum_seed() {
            descriptor.block_bitmap_checksum =
                bitmap::block_bitmap_checksum(seed, &bits, geometry.clusters_per_group);
        }
        let home = descriptor.block_bitmap;
        self.put(home, bits);
    }

    fn store_inode_bitmap(&mut self, geometry: &Geometry, group: u32, mut bits: Vec<u8>) {
        let inodes = geometry.inodes_per_group;
        bitmap::set_padding(&mut bits, inodes);
        let descriptor = &mut self.descriptors[group as usize];
        descriptor.free_inodes = bitmap::count_zeros(&bits, 0..inodes);
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        if geometry.checksums.protects_descriptors() {
            let used = (0..inodes).rev().find(|&index| bitmap::test(&bits, index));
            let never_used = inodes - used.map_or(0, |index| index + 1);
            descriptor.unused_inodes = descriptor.unused_inodes.min(never_used);
        }
        if let Some(seed) = geometry.checksum_seed() {
            descriptor.inode_bitmap_checksum = bitmap::inode_bitmap_checksum(seed, &bits, inodes);
        }
        let home = descriptor.inode_bitmap;
        self.put(home, bits);
    }
}

/// The inode bitmap of a group without used inodes.
pub(super) fn fresh_inode_bitmap(geometry: &Geometry) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_size as usize];
    bitmap::set_padding(&mut bits, geometry.inodes_per_group);
    bits
}

/// Refuses an inode bitmap in which an inode is free that is reserved for the file system.
fn check_reserved_inodes(
    bits: &[u8],
    geometry: &Geometry,
    group: GroupNumber,
) -> std::result::Result<(), Corrupt> {
    let first = geometry.first_inode.get().saturating_sub(1);
    let reserved = first.min(geometry.inodes_per_group);
    if group.get() == 0
        && let Some(free) = bitmap::next_zero(bits, 0, reserved)
    {
        let number = free + 1;
        let problem =
            format!("says that inode {number} is free, which is reserved for the file system");
        return Err(Corrupt::new("inode bitmap", problem).in_group(group));
    }
    Ok(())
}

fn offset(blocks: u64) -> u32 {
    u32::try_from(blocks).expect("a group has fewer than 2^32 blocks")
}
