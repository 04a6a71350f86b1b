//! The layout of a file system: all sizes and counts that follow from a superblock, validated once.
//!
//! A [`Geometry`] exists only for a superblock whose numbers are consistent, so code that has one
//! may divide by its fields and multiply them safely: group counts, inode counts and block numbers
//! all fit their types. Every inconsistent number is refused with the name of its field.

mod validate;

use crate::checksum::{Checksums, InodeSeed};
use crate::corrupt::Corrupt;
use crate::extent::Bounds;
use crate::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use crate::number::{BlockNumber, GroupNumber, InodeNumber};
use crate::superblock::Superblock;
use validate::{
    BlockSizes, Groups, check_checksums, check_descriptor_size, check_flex, check_inode_counts,
    check_inode_size, require,
};

/// Most blocks that extents can address: 2^48.
pub const MAX_BLOCKS: u64 = 1 << 48;
/// Most clusters of a group: descriptors of 32 bytes count them with 16 bits, and a bitmap has
/// whole bytes.
pub const MAX_CLUSTERS_PER_GROUP: u32 = (1 << 16) - 8;

/// Most inodes of a group: descriptors of 32 bytes count them with 16 bits, a table has whole
/// blocks of `inodes_per_block`, and a bitmap is one block.
#[must_use]
pub fn max_inodes_per_group(block_size: u64, inodes_per_block: u64) -> u64 {
    (8 * block_size).min((1 << 16) - inodes_per_block)
}

/// The layout of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Base-2 logarithm of `block_size`, 10 to 16.
    pub block_bits: u32,
    /// Number of blocks of the file system.
    pub blocks_count: u64,
    /// The first block of group 0.
    pub first_data_block: u32,
    /// Blocks in a group, except the last one.
    pub blocks_per_group: u32,
    /// Blocks in a cluster; 1 without bigalloc.
    pub blocks_per_cluster: u32,
    /// Base-2 logarithm of `blocks_per_cluster`.
    pub cluster_bits: u32,
    /// Clusters in a group, except the last one: the bits of a block bitmap. A multiple of 8.
    pub clusters_per_group: u32,
    /// Inodes in a group: the bits of an inode bitmap. A multiple of 8.
    pub inodes_per_group: u32,
    /// Number of groups.
    pub group_count: u32,
    /// Number of inodes.
    pub inodes_count: u32,
    /// The first inode that is not reserved.
    pub first_inode: InodeNumber,
    /// Bytes in an inode: a power of two from 128 to the block size.
    pub inode_size: u16,
    /// Bytes in a group descriptor: 32, or a power of two from 64 to 1024.
    pub descriptor_size: u16,
    /// Group descriptors in a block.
    pub descriptors_per_block: u32,
    /// Blocks of all descriptors together.
    pub descriptor_blocks: u32,
    /// Blocks of a group's inode table.
    pub inode_table_blocks: u32,
    /// Blocks after the descriptors that are reserved for their growth.
    pub reserved_gdt_blocks: u32,
    /// From this descriptor block on, descriptors use the `meta_bg` layout (only with that
    /// feature).
    pub first_meta_bg: u32,
    /// Groups in a flexible group: a power of two, 1 without `flex_bg`.
    pub groups_per_flex: u32,
    /// The two groups with superblock copies with `sparse_super2`; 0 for none.
    pub backup_groups: [u32; 2],
    /// The features of the file system.
    pub features: Features,
    /// The checksum regime.
    pub checksums: Checksums,
    /// The seed for the hash of an attribute value in an inode: the seed that `metadata_csum` uses,
    /// with or without that feature.
    pub value_seed: u32,
}

/// What helps where a superblock contradicts itself.
const FROM_A_COPY: &str = "`e2fsck -f -b BLOCK` repairs it from a copy of the superblock, mostly at \
                           block 32768, or 8193 where blocks have 1 KiB (keep a copy of the image)";

impl Geometry {
    /// Derives the layout from a superblock.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the field, if a number is impossible or contradicts another.
    pub fn of(superblock: &Superblock) -> Result<Self, Corrupt> {
        Self::derive(superblock).map_err(|corrupt| corrupt.advising(FROM_A_COPY))
    }

    fn derive(superblock: &Superblock) -> Result<Self, Corrupt> {
        require(superblock.revision <= 1, || {
            format!("revision is {}", superblock.revision)
        })?;
        let blocks = BlockSizes::of(superblock)?;
        let groups = Groups::of(superblock, &blocks)?;
        let inode_size = check_inode_size(superblock, blocks.block_size)?;
        let inode_table_blocks = check_inode_counts(
            superblock,
            blocks.block_size,
            inode_size,
            groups.group_count,
        )?;
        let descriptor_size = check_descriptor_size(superblock, blocks.block_size)?;
        let descriptors_per_block = blocks.block_size / u32::from(descriptor_size);
        let geometry = Self {
            block_size: blocks.block_size,
            block_bits: blocks.block_size.ilog2(),
            blocks_count: superblock.blocks_count,
            first_data_block: superblock.first_data_block,
            blocks_per_group: superblock.blocks_per_group,
            blocks_per_cluster: blocks.blocks_per_cluster,
            cluster_bits: blocks.blocks_per_cluster.ilog2(),
            clusters_per_group: groups.clusters_per_group,
            inodes_per_group: superblock.inodes_per_group,
            group_count: groups.group_count,
            inodes_count: superblock.inodes_count,
            first_inode: superblock.effective_first_inode(),
            inode_size,
            descriptor_size,
            descriptors_per_block,
            descriptor_blocks: groups.group_count.div_ceil(descriptors_per_block),
            inode_table_blocks,
            reserved_gdt_blocks: u32::from(superblock.reserved_gdt_blocks),
            first_meta_bg: superblock.first_meta_bg,
            groups_per_flex: check_flex(superblock)?,
            backup_groups: superblock.backup_groups,
            features: superblock.features,
            checksums: check_checksums(superblock)?,
            value_seed: superblock.metadata_checksum_seed(),
        };
        geometry.check_descriptor_placement()?;
        Ok(geometry)
    }

    fn check_descriptor_placement(&self) -> Result<(), Corrupt> {
        require(self.reserved_gdt_blocks <= self.block_size / 4, || {
            format!("{} reserved descriptor blocks", self.reserved_gdt_blocks)
        })?;
        if self.has_meta_bg() {
            require(self.first_meta_bg <= self.descriptor_blocks, || {
                format!(
                    "first meta group is {} of {} descriptor blocks",
                    self.first_meta_bg, self.descriptor_blocks
                )
            })?;
        }
        let last = GroupNumber(self.group_count - 1);
        let start = self.first_block(last).get();
        let ends = u64::from(self.superblock_overhead(last)) + start;
        require(ends <= self.blocks_count, || {
            format!("the last group, at block {start}, has no room for its descriptors")
        })?;
        let overhead = self.superblock_overhead(GroupNumber(0));
        require(overhead < self.blocks_in(GroupNumber(0)), || {
            format!("descriptors take {overhead} blocks, group 0 has no more")
        })
    }

    /// Whether the file system has `meta_bg`.
    #[must_use]
    pub fn has_meta_bg(&self) -> bool {
        self.features.has_incompat(Incompat::META_BG)
    }

    /// Whether space is allocated in clusters of several blocks (`bigalloc`).
    #[must_use]
    pub fn has_bigalloc(&self) -> bool {
        self.features.has_read_only_compat(ReadOnlyCompat::BIGALLOC)
    }

    /// The crc32c seed; `None` without `metadata_csum`.
    #[must_use]
    pub fn checksum_seed(&self) -> Option<u32> {
        self.checksums.seed()
    }

    /// What the checksums of an inode and of its blocks begin with; `None` without
    /// `metadata_csum`.
    #[must_use]
    pub fn inode_seed(&self, inode: InodeNumber, generation: u32) -> Option<InodeSeed> {
        let seed = self.checksum_seed()?;
        Some(InodeSeed::new(seed, inode, generation))
    }

    /// The range of blocks in which files may have blocks.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds {
            first: BlockNumber(u64::from(self.first_data_block)),
            end: BlockNumber(self.blocks_count),
        }
    }

    /// Whether `count` blocks from `start` are all in the file system.
    #[must_use]
    pub fn contains(&self, start: BlockNumber, count: u64) -> bool {
        start.get() >= u64::from(self.first_data_block)
            && start
                .get()
                .checked_add(count)
                .is_some_and(|end| end <= self.blocks_count)
    }

    /// The group of a block; `None` outside the file system, and for the boot block before group 0.
    #[must_use]
    pub fn group_of(&self, block: BlockNumber) -> Option<GroupNumber> {
        if block.get() >= self.blocks_count {
            return None;
        }
        let from_start = block.get().checked_sub(u64::from(self.first_data_block))?;
        u32::try_from(from_start / u64::from(self.blocks_per_group))
            .ok()
            .map(GroupNumber)
    }

    /// Offset of a block in its group, in blocks; `None` as for [`group_of`](Self::group_of).
    #[must_use]
    pub fn offset_in_group(&self, block: BlockNumber) -> Option<u32> {
        self.group_of(block)?;
        let from_start = block.get() - u64::from(self.first_data_block);
        u32::try_from(from_start % u64::from(self.blocks_per_group)).ok()
    }

    /// The bit of a block in its group's bitmap; `None` as for [`group_of`](Self::group_of).
    #[must_use]
    pub fn cluster_in_group(&self, block: BlockNumber) -> Option<u32> {
        self.offset_in_group(block)
            .map(|offset| offset >> self.cluster_bits)
    }

    /// Bytes in a cluster, the unit in which space is allocated.
    #[must_use]
    pub fn cluster_size(&self) -> u32 {
        self.block_size << self.cluster_bits
    }

    /// The first block of the cluster of a block, of the device or of a file.
    #[must_use]
    pub fn cluster_start(&self, block: u64) -> u64 {
        block & !(u64::from(self.blocks_per_cluster) - 1)
    }

    /// The first block of the cluster with this bit in a group's bitmap.
    #[must_use]
    pub fn block_of_cluster(&self, group: GroupNumber, bit: u32) -> BlockNumber {
        BlockNumber(self.first_block(group).get() + (u64::from(bit) << self.cluster_bits))
    }

    /// A group's first block.
    #[must_use]
    pub fn first_block(&self, group: GroupNumber) -> BlockNumber {
        let from_start = u64::from(group.get()) * u64::from(self.blocks_per_group);
        BlockNumber(from_start + u64::from(self.first_data_block))
    }

    /// Blocks in a group; 0 past the last group.
    #[must_use]
    pub fn blocks_in(&self, group: GroupNumber) -> u32 {
        let left = self
            .blocks_count
            .saturating_sub(self.first_block(group).get());
        u32::try_from(left)
            .unwrap_or(u32::MAX)
            .min(self.blocks_per_group)
    }

    /// Clusters in a group, including a partial one at the end.
    #[must_use]
    pub fn clusters_in(&self, group: GroupNumber) -> u32 {
        self.blocks_in(group).div_ceil(self.blocks_per_cluster)
    }

    /// All groups.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = GroupNumber> + use<> {
        (0..self.group_count).map(GroupNumber)
    }

    /// Whether a group starts with a superblock: a copy, or in group 0 the primary.
    #[must_use]
    pub fn has_superblock(&self, group: GroupNumber) -> bool {
        let number = group.get();
        if number == 0 {
            return true;
        }
        if self.features.has_compat(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&number);
        }
        if !self
            .features
            .has_read_only_compat(ReadOnlyCompat::SPARSE_SUPER)
        {
            return true;
        }
        number == 1 || [3, 5, 7].into_iter().any(|base| is_power_of(base, number))
    }

    /// The block of a group's superblock copy, if it has one. In group 0 the superblock starts at
    /// byte 1024 of the device, in other groups at byte 0 of the block.
    #[must_use]
    pub fn superblock_copy(&self, group: GroupNumber) -> Option<BlockNumber> {
        if !self.has_superblock(group) {
            return None;
        }
        self.first_block(group)
            .checked_add(self.boot_blocks_of(group))
    }

    /// Blocks of a group before the superblock's: 1 in group 0 with 1 KiB blocks and bigalloc,
    /// otherwise 0.
    fn boot_blocks_of(&self, group: GroupNumber) -> u32 {
        u32::from(group.get() == 0 && self.block_size == 1024 && self.first_data_block == 0)
    }

    /// The location of a group's descriptor: its block and the byte offset in the block.
    #[must_use]
    pub fn descriptor_location(&self, group: GroupNumber) -> (BlockNumber, u32) {
        let index = group.get() / self.descriptors_per_block;
        let slot = group.get() % self.descriptors_per_block;
        (
            self.descriptor_block(index),
            slot * u32::from(self.descriptor_size),
        )
    }

    /// The location of descriptor block `index`, the primary copy.
    #[must_use]
    pub fn descriptor_block(&self, index: u32) -> BlockNumber {
        if self.is_meta_index(index) {
            let group = GroupNumber(index.saturating_mul(self.descriptors_per_block));
            return self.meta_descriptor_block(group);
        }
        let boot = self.boot_blocks_of(GroupNumber(0));
        let start = u64::from(self.first_data_block) + u64::from(boot);
        BlockNumber(start + 1 + u64::from(index))
    }

    /// The block of the `meta_bg` descriptors in a group that has them: after the superblock, if
    /// any.
    fn meta_descriptor_block(&self, group: GroupNumber) -> BlockNumber {
        let start = self.first_block(group).get() + u64::from(self.boot_blocks_of(group));
        BlockNumber(start + u64::from(self.has_superblock(group)))
    }

    /// The locations of the copies of descriptor block `index`, without the primary.
    #[must_use]
    pub fn descriptor_block_copies(&self, index: u32) -> Vec<BlockNumber> {
        if self.is_meta_index(index) {
            let first = u64::from(index) * u64::from(self.descriptors_per_block);
            let last = first + u64::from(self.descriptors_per_block) - 1;
            let mut groups = vec![first + 1, last];
            groups.dedup();
            return groups
                .into_iter()
                .filter(|&group| group > first && group < u64::from(self.group_count))
                .filter_map(|group| u32::try_from(group).ok())
                .map(|group| self.meta_descriptor_block(GroupNumber(group)))
                .collect();
        }
        self.groups()
            .skip(1)
            .filter(|&group| self.has_superblock(group) && !self.is_in_meta_group(group))
            .filter_map(|group| self.first_block(group).checked_add(1 + index))
            .collect()
    }

    /// Whether a group's descriptors use the `meta_bg` layout: its superblock copy, if any, is not
    /// followed by copies of all descriptors.
    fn is_in_meta_group(&self, group: GroupNumber) -> bool {
        self.is_meta_index(group.get() / self.descriptors_per_block)
    }

    /// Whether descriptor block `index` is where the `meta_bg` layout has it.
    fn is_meta_index(&self, index: u32) -> bool {
        self.has_meta_bg() && index >= self.first_meta_bg
    }

    /// Blocks of the superblocks, the descriptors, the bitmaps and the inode tables of all groups,
    /// including copies.
    #[must_use]
    pub fn metadata_blocks(&self) -> u64 {
        let copies: u64 = self
            .groups()
            .map(|group| u64::from(self.superblock_overhead(group)))
            .sum();
        copies + u64::from(self.group_count) * (2 + u64::from(self.inode_table_blocks))
    }

    /// Blocks at the start of a group for the superblock, the descriptors and the blocks reserved
    /// for their growth (and the boot block, if it belongs to group 0).
    #[must_use]
    pub fn superblock_overhead(&self, group: GroupNumber) -> u32 {
        let has_superblock = self.has_superblock(group);
        let own = self.boot_blocks_of(group) + u32::from(has_superblock);
        let index = group.get() / self.descriptors_per_block;
        if self.is_meta_index(index) {
            let slot = group.get() % self.descriptors_per_block;
            let holds = slot <= 1 || slot == self.descriptors_per_block - 1;
            return own + u32::from(holds);
        }
        match (has_superblock, self.has_meta_bg()) {
            (false, _) => own,
            (true, true) => own + self.first_meta_bg,
            (true, false) => own + self.descriptor_blocks + self.reserved_gdt_blocks,
        }
    }

    /// The group of an inode and its index in the group's table; `None` for 0 and past the last
    /// inode.
    #[must_use]
    pub fn inode_group(&self, inode: InodeNumber) -> Option<(GroupNumber, u32)> {
        let index = inode.get().checked_sub(1)?;
        (inode.get() <= self.inodes_count).then(|| {
            (
                GroupNumber(index / self.inodes_per_group),
                index % self.inodes_per_group,
            )
        })
    }

    /// The inode at an index of a group's table.
    #[must_use]
    pub fn inode_at(&self, group: GroupNumber, index: u32) -> Option<InodeNumber> {
        let before = group.get().checked_mul(self.inodes_per_group)?;
        let number = before.checked_add(index)?.checked_add(1)?;
        (index < self.inodes_per_group && number <= self.inodes_count)
            .then_some(InodeNumber(number))
    }

    /// The block and byte offset of a slot in the inode table that starts at `table`; `None` if the
    /// block number overflows.
    #[must_use]
    pub fn inode_slot(&self, table: BlockNumber, index: u32) -> Option<(BlockNumber, u32)> {
        let per_block = self.inodes_per_block();
        let block = table.checked_add(index / per_block)?;
        Some((block, index % per_block * u32::from(self.inode_size)))
    }

    /// Inodes in a block of an inode table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / u32::from(self.inode_size)
    }
}

fn is_power_of(base: u32, number: u32) -> bool {
    let mut power = base;
    while power < number {
        let Some(next) = power.checked_mul(base) else {
            return false;
        };
        power = next;
    }
    power == number
}

#[cfg(test)]
mod tests;
