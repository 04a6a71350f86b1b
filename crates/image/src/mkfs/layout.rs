//! The locations of metadata and files, and the block bitmaps.
//!
//! The bitmaps and inode tables of a flexible group are contiguous from its first free block on,
//! except for superblock copies. A group's block bitmap exists here only if the group contains more
//! than its superblock copy; all other groups stay uninitialized, if the features allow that.
//! [`place_metadata`] decides where metadata goes for `resize` as well, so that a group that was
//! added has it where one that was made has it.

use std::collections::BTreeMap;
use std::ops::Range;

use pext4_ondisk::checksum::Checksums;
use pext4_ondisk::extent::MAX_WRITTEN_LENGTH;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, bitmap};

use super::Run;
use crate::error::{Error, Result};

/// The maximum number of blocks in an extent with data.
pub(crate) const MAX_EXTENT_BLOCKS: u64 = MAX_WRITTEN_LENGTH as u64;
/// The minimum number of blocks in the last group besides its metadata.
const MIN_DATA: u32 = 50;

/// The minimum number of blocks in a last group: its metadata and some data.
pub(crate) fn min_blocks(geometry: &Geometry, group: GroupNumber) -> u32 {
    let bitmaps = 2;
    geometry
        .inode_table_blocks
        .saturating_add(bitmaps)
        .saturating_add(geometry.superblock_overhead(group))
        .saturating_add(MIN_DATA)
}

/// Places the bitmaps and inode tables of some groups of one flexible group, contiguously from the
/// first block of these groups on, except for superblock copies. The descriptors have nothing but
/// the locations. `None` if the groups have too few blocks: the next flexible group begins with its
/// own metadata behind them.
pub(crate) fn place_metadata(
    geometry: &Geometry,
    groups: Range<u32>,
) -> Option<Vec<GroupDescriptor>> {
    let mut left = blocks_of(geometry, &groups);
    let mut placed = vec![GroupDescriptor::default(); groups.len()];
    for descriptor in &mut placed {
        descriptor.block_bitmap = take_run(geometry, &mut left, 1)?;
    }
    for descriptor in &mut placed {
        descriptor.inode_bitmap = take_run(geometry, &mut left, 1)?;
    }
    for descriptor in &mut placed {
        let blocks = u64::from(geometry.inode_table_blocks);
        descriptor.inode_table = take_run(geometry, &mut left, blocks)?;
    }
    Some(placed)
}

fn blocks_of(geometry: &Geometry, groups: &Range<u32>) -> Run {
    let first = |group| geometry.first_block(GroupNumber(group)).get();
    let end = if groups.end < geometry.group_count {
        first(groups.end)
    } else {
        geometry.blocks_count
    };
    first(groups.start)..end
}

/// Takes the next `count` contiguous blocks of `left` that contain no superblock copy.
fn take_run(geometry: &Geometry, left: &mut Run, count: u64) -> Option<BlockNumber> {
    let mut start = left.start;
    while let Some(behind) = copy_in(geometry, start..start + count) {
        start = behind;
    }
    if start + count > left.end {
        return None;
    }
    left.start = start + count;
    Some(BlockNumber(start))
}

/// The end of a copy of the superblock and descriptors that overlaps the run.
fn copy_in(geometry: &Geometry, run: Run) -> Option<u64> {
    groups_of(geometry, &run).find_map(|group| {
        let copy = geometry.first_block(group).get();
        let end = copy + u64::from(geometry.superblock_overhead(group));
        (copy < run.end && run.start < end).then_some(end)
    })
}

/// The groups that a run overlaps.
pub(crate) fn groups_of(
    geometry: &Geometry,
    run: &Run,
) -> impl Iterator<Item = GroupNumber> + use<> {
    let group = |block| geometry.group_of(BlockNumber(block)).map(GroupNumber::get);
    let first = group(run.start).unwrap_or(geometry.group_count);
    let last = group(run.end.saturating_sub(1)).unwrap_or(geometry.group_count - 1);
    (first..=last).map(GroupNumber)
}

/// The runs of a group's bitmaps and inode table.
pub(crate) fn metadata_runs(descriptor: &GroupDescriptor, geometry: &Geometry) -> [Run; 3] {
    let run = |start: BlockNumber, count: u32| start.get()..start.get() + u64::from(count);
    [
        run(descriptor.block_bitmap, 1),
        run(descriptor.inode_bitmap, 1),
        run(descriptor.inode_table, geometry.inode_table_blocks),
    ]
}

/// The block bitmap of a group that contains only superblock and descriptor copies.
pub(crate) fn fresh_block_bitmap(geometry: &Geometry, group: GroupNumber) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_size as usize];
    bitmap::set_range(&mut bits, 0..geometry.superblock_overhead(group));
    bitmap::set_padding(&mut bits, geometry.blocks_in(group));
    bits
}

/// Allocation state of all groups.
pub(crate) struct Layout {
    pub geometry: Geometry,
    pub descriptors: Vec<GroupDescriptor>,
    /// Block bitmaps of the groups that are not uninitialized.
    pub block_bitmaps: BTreeMap<u32, Vec<u8>>,
    /// The last inode in use: all numbers up to it are.
    used_inodes: u32,
    /// Number of directories, by the group of their inode.
    used_directories: BTreeMap<u32, u32>,
}

impl Layout {
    /// Places the metadata of all groups.
    pub fn place(geometry: Geometry) -> Result<Self> {
        let mut layout = Self {
            geometry,
            descriptors: vec![GroupDescriptor::default(); geometry.group_count as usize],
            block_bitmaps: BTreeMap::new(),
            used_inodes: geometry.first_inode.get() - 1,
            used_directories: BTreeMap::new(),
        };
        let mut first = 0;
        while first < geometry.group_count {
            let end = first
                .saturating_add(geometry.groups_per_flex)
                .min(geometry.group_count);
            layout.place_flexible_group(first..end)?;
            first = end;
        }
        if !layout.is_lazy() {
            for group in 0..geometry.group_count {
                layout.bitmap(group);
            }
        }
        Ok(layout)
    }

    fn place_flexible_group(&mut self, groups: Range<u32>) -> Result<()> {
        let geometry = self.geometry;
        let placed = place_metadata(&geometry, groups.clone()).ok_or_else(|| {
            let text = "too small for this many inodes: ask for fewer, or for a larger image";
            Error::Impossible(text.to_owned())
        })?;
        for (group, descriptor) in groups.zip(placed) {
            for run in metadata_runs(&descriptor, &geometry) {
                self.mark(run);
            }
            self.descriptors[group as usize] = descriptor;
        }
        Ok(())
    }

    /// The bitmap of a group. Creates it if necessary.
    fn bitmap(&mut self, group: u32) -> &mut Vec<u8> {
        let geometry = self.geometry;
        let bits = self.block_bitmaps.entry(group);
        bits.or_insert_with(|| fresh_block_bitmap(&geometry, GroupNumber(group)))
    }

    /// Marks free blocks as used.
    pub fn mark(&mut self, run: Run) {
        let geometry = self.geometry;
        let mut start = run.start;
        while start < run.end {
            let group = geometry
                .group_of(BlockNumber(start))
                .expect("inside the file system");
            let first = geometry.first_block(group).get();
            let end = run.end.min(first + u64::from(geometry.blocks_in(group)));
            let bits = in_group(start - first)..in_group(end - first);
            bitmap::set_range(self.bitmap(group.get()), bits);
            start = end;
        }
    }

    /// Allocates `count` blocks from group `goal` on, in as few runs as possible.
    pub fn allocate(&mut self, goal: u32, count: u64) -> Result<Vec<Run>> {
        let geometry = self.geometry;
        let mut runs: Vec<Run> = Vec::new();
        let mut left = count;
        for step in 0..geometry.group_count {
            let group = (goal + step) % geometry.group_count;
            let first = geometry.first_block(GroupNumber(group)).get();
            let blocks = geometry.blocks_in(GroupNumber(group));
            let mut bit = 0;
            while left > 0 {
                let Some(start) = bitmap::next_zero(self.bitmap(group), bit, blocks) else {
                    break;
                };
                let end = bitmap::next_one(self.bitmap(group), start, blocks).unwrap_or(blocks);
                let length = u64::from(end - start).min(left);
                append(&mut runs, first + u64::from(start), length);
                left -= length;
                bit = end;
            }
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            let text = format!(
                "too small: {left} blocks are missing for the journal and the other files of the system"
            );
            return Err(Error::Impossible(text));
        }
        runs.iter().for_each(|run| self.mark(run.clone()));
        Ok(runs)
    }

    /// Allocates the next inode.
    pub fn allocate_inode(&mut self) -> InodeNumber {
        self.used_inodes += 1;
        InodeNumber(self.used_inodes)
    }

    /// Allocates the next `count` inodes, which must exist.
    pub fn allocate_inodes(&mut self, count: u32) {
        self.used_inodes += count;
    }

    /// Counts a directory in the group of its inode, which must be in use.
    pub fn count_directory(&mut self, inode: InodeNumber) {
        let (group, _) = self
            .geometry
            .inode_group(inode)
            .expect("an inode that was given out");
        *self.used_directories.entry(group.get()).or_default() += 1;
    }

    /// Number of used inodes in a group. They are the first of its table.
    fn inodes_used_in(&self, group: u32) -> u32 {
        let before = u64::from(group) * u64::from(self.geometry.inodes_per_group);
        let left = u64::from(self.used_inodes).saturating_sub(before);
        u32::try_from(left)
            .unwrap_or(u32::MAX)
            .min(self.geometry.inodes_per_group)
    }

    /// The inode bitmap of a group.
    pub fn inode_bitmap(&self, group: u32) -> Vec<u8> {
        let mut bits = vec![0; self.geometry.block_size as usize];
        bitmap::set_range(&mut bits, 0..self.inodes_used_in(group));
        bitmap::set_padding(&mut bits, self.geometry.inodes_per_group);
        bits
    }

    /// Whether descriptors have flags, so that bitmaps need not be initialized. These need a
    /// checksum of the descriptor.
    fn is_lazy(&self) -> bool {
        self.geometry.checksums != Checksums::None
    }

    /// The groups whose inode bitmap must be written: without checksums, all.
    pub fn groups_with_inode_bitmap(&self) -> impl Iterator<Item = u32> + '_ {
        let lazy = self.is_lazy();
        (0..self.geometry.group_count)
            .take_while(move |&group| !lazy || self.inodes_used_in(group) > 0)
    }

    /// The free blocks as maximal runs, in order.
    pub fn free_runs(&self) -> Vec<Run> {
        let geometry = &self.geometry;
        let mut runs: Vec<Run> = Vec::new();
        for group in geometry.groups() {
            let first = geometry.first_block(group).get();
            let blocks = geometry.blocks_in(group);
            let mut add = |bits: Range<u32>| {
                let run = first + u64::from(bits.start)..first + u64::from(bits.end);
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            };
            let Some(bits) = self.block_bitmaps.get(&group.get()) else {
                add(geometry.superblock_overhead(group)..blocks);
                continue;
            };
            let mut from = 0;
            while let Some(start) = bitmap::next_zero(bits, from, blocks) {
                let end = bitmap::next_one(bits, start, blocks).unwrap_or(blocks);
                add(start..end);
                from = end;
            }
        }
        runs
    }

    /// Sets counts, flags and bitmap checksums in the descriptors and the superblock.
    pub fn finish(&mut self, superblock: &mut Superblock, journal_blocks: u32) {
        let lazy = self.is_lazy();
        let last = self.geometry.group_count - 1;
        if lazy {
            // The last group must not be uninitialized.
            self.bitmap(last);
        }
        for group in 0..self.geometry.group_count {
            self.describe(group, lazy);
        }
        superblock.free_blocks = self
            .descriptors
            .iter()
            .map(|group| u64::from(group.free_clusters))
            .sum();
        let overhead = u64::from(self.geometry.first_data_block)
            + self.geometry.metadata_blocks()
            + u64::from(journal_blocks);
        // Zero means that a mount computes it.
        superblock.overhead_clusters = u32::try_from(overhead).unwrap_or(0);
        superblock.free_inodes = self.descriptors.iter().map(|group| group.free_inodes).sum();
    }

    fn describe(&mut self, group: u32, lazy: bool) {
        let geometry = self.geometry;
        let number = GroupNumber(group);
        let blocks = geometry.blocks_in(number);
        let free = match self.block_bitmaps.get(&group) {
            Some(bits) => bitmap::count_zeros(bits, 0..blocks),
            None => blocks - geometry.superblock_overhead(number),
        };
        let used_inodes = self.inodes_used_in(group);
        let inode_bits = (used_inodes > 0).then(|| self.inode_bitmap(group));
        let used_directories = self.used_directories.get(&group).copied().unwrap_or(0);
        let descriptor = &mut self.descriptors[group as usize];
        descriptor.free_clusters = free;
        descriptor.free_inodes = geometry.inodes_per_group - used_inodes;
        descriptor.used_directories = used_directories;
        descriptor.flags = GroupFlags::empty();
        if !lazy {
            return;
        }
        descriptor.unused_inodes = descriptor.free_inodes;
        descriptor.flags |= GroupFlags::INODE_ZEROED;
        let bits = self.block_bitmaps.get(&group);
        let uninitialized = [
            (bits.is_none(), GroupFlags::BLOCK_UNINIT),
            (inode_bits.is_none(), GroupFlags::INODE_UNINIT),
        ];
        for (_, flag) in uninitialized.into_iter().filter(|(is_so, _)| *is_so) {
            descriptor.flags |= flag;
        }
        let Some(seed) = geometry.checksum_seed() else {
            return;
        };
        if let Some(bits) = bits {
            descriptor.block_bitmap_checksum =
                bitmap::block_bitmap_checksum(seed, bits, geometry.clusters_per_group);
        }
        if let Some(bits) = inode_bits {
            descriptor.inode_bitmap_checksum =
                bitmap::inode_bitmap_checksum(seed, &bits, geometry.inodes_per_group);
        }
    }
}

fn in_group(offset: u64) -> u32 {
    u32::try_from(offset).expect("a group has fewer than 2^32 blocks")
}

/// Appends blocks, and extends the last run if they continue it and fit into one extent.
fn append(runs: &mut Vec<Run>, start: u64, length: u64) {
    let mut start = start;
    let end = start + length;
    if let Some(last) = runs.last_mut()
        && last.end == start
    {
        last.end = end.min(last.start + MAX_EXTENT_BLOCKS);
        start = last.end;
    }
    while start < end {
        let stop = end.min(start + MAX_EXTENT_BLOCKS);
        runs.push(start..stop);
        start = stop;
    }
}
