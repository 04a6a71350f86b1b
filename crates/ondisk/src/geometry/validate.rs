//! Validation of a superblock's numbers, field by field; every refusal names the field.

use super::{MAX_BLOCKS, MAX_CLUSTERS_PER_GROUP, max_inodes_per_group};
use crate::checksum::Checksums;
use crate::corrupt::Corrupt;
use crate::feature::{Incompat, ReadOnlyCompat};
use crate::superblock::{CHECKSUM_CRC32C, Superblock};

/// Fails with `problem` unless `condition` holds.
pub(super) fn require(condition: bool, problem: impl FnOnce() -> String) -> Result<(), Corrupt> {
    if condition {
        Ok(())
    } else {
        Err(Corrupt::new("superblock", problem()))
    }
}

pub(super) struct BlockSizes {
    pub block_size: u32,
    pub blocks_per_cluster: u32,
}

impl BlockSizes {
    pub(super) fn of(superblock: &Superblock) -> Result<Self, Corrupt> {
        let (block, cluster) = (superblock.log_block_size, superblock.log_cluster_size);
        require(block <= 6, || format!("block size is 1024 << {block}"))?;
        let bigalloc = superblock
            .features
            .has_read_only_compat(ReadOnlyCompat::BIGALLOC);
        let blocks_per_cluster = if bigalloc {
            require((block..=20).contains(&cluster), || {
                format!("cluster size is 1024 << {cluster}, block size 1024 << {block}")
            })?;
            1 << (cluster - block)
        } else {
            require(cluster == block, || {
                format!("cluster size 1024 << {cluster} differs from block size without bigalloc")
            })?;
            1
        };
        let block_size = 1024 << block;
        let expected = u32::from(block_size == 1024 && blocks_per_cluster == 1);
        require(superblock.first_data_block == expected, || {
            format!(
                "first data block is {}, not {expected}",
                superblock.first_data_block
            )
        })?;
        Ok(Self {
            block_size,
            blocks_per_cluster,
        })
    }
}

pub(super) struct Groups {
    pub group_count: u32,
    pub clusters_per_group: u32,
}

impl Groups {
    pub(super) fn of(superblock: &Superblock, sizes: &BlockSizes) -> Result<Self, Corrupt> {
        let blocks_per_group = superblock.blocks_per_group;
        let clusters_per_group = blocks_per_group / sizes.blocks_per_cluster;
        let max_clusters = MAX_CLUSTERS_PER_GROUP.min(8 * sizes.block_size);
        require(
            clusters_per_group > 0
                && clusters_per_group <= max_clusters
                && clusters_per_group.is_multiple_of(8)
                && blocks_per_group.is_multiple_of(sizes.blocks_per_cluster),
            || format!("{blocks_per_group} blocks in a group"),
        )?;
        let bigalloc = sizes.blocks_per_cluster > 1;
        require(
            !bigalloc || superblock.clusters_per_group == clusters_per_group,
            || format!("{} clusters in a group", superblock.clusters_per_group),
        )?;
        let first = u64::from(superblock.first_data_block);
        let count = superblock.blocks_count;
        require(count > first && count <= MAX_BLOCKS, || {
            format!("{count} blocks")
        })?;
        let group_count = u32::try_from((count - first).div_ceil(u64::from(blocks_per_group)))
            .map_err(|_| {
                Corrupt::new("superblock", format!("{count} blocks are too many groups"))
            })?;
        Ok(Self {
            group_count,
            clusters_per_group,
        })
    }
}

pub(super) fn check_inode_size(superblock: &Superblock, block_size: u32) -> Result<u16, Corrupt> {
    let size = superblock.effective_inode_size();
    require(
        size.is_power_of_two() && size >= 128 && u32::from(size) <= block_size,
        || format!("inode size is {size}"),
    )?;
    Ok(size)
}

/// Checks the inode counts; returns the number of blocks of a group's inode table.
pub(super) fn check_inode_counts(
    superblock: &Superblock,
    block_size: u32,
    inode_size: u16,
    group_count: u32,
) -> Result<u32, Corrupt> {
    let per_group = superblock.inodes_per_group;
    let per_block = block_size / u32::from(inode_size);
    let most = max_inodes_per_group(block_size.into(), per_block.into());
    require(
        per_group > 0 && per_group.is_multiple_of(8) && u64::from(per_group) <= most,
        || format!("{per_group} inodes in a group"),
    )?;
    let total = u64::from(per_group) * u64::from(group_count);
    require(total == u64::from(superblock.inodes_count), || {
        format!(
            "{} inodes, but its groups have {total}",
            superblock.inodes_count
        )
    })?;
    let first = superblock.effective_first_inode().get();
    require((11..=superblock.inodes_count).contains(&first), || {
        format!("first free inode is {first}")
    })?;
    let table_blocks = per_group.div_ceil(per_block);
    require(table_blocks < superblock.blocks_per_group, || {
        format!("an inode table takes {table_blocks} blocks, a group has no more")
    })?;
    Ok(table_blocks)
}

pub(super) fn check_descriptor_size(
    superblock: &Superblock,
    block_size: u32,
) -> Result<u16, Corrupt> {
    if !superblock.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        return Ok(32);
    }
    let size = superblock.desc_size;
    require(
        size.is_power_of_two() && (64..=1024).contains(&size) && u32::from(size) <= block_size,
        || format!("descriptor size is {size}"),
    )?;
    Ok(size)
}

pub(super) fn check_flex(superblock: &Superblock) -> Result<u32, Corrupt> {
    if !superblock.features.has_incompat(Incompat::FLEX_BG) {
        return Ok(1);
    }
    let log = superblock.log_groups_per_flex;
    1u32.checked_shl(u32::from(log)).ok_or_else(|| {
        Corrupt::new(
            "superblock",
            format!("a flexible group has 1 << {log} groups"),
        )
    })
}

pub(super) fn check_checksums(superblock: &Superblock) -> Result<Checksums, Corrupt> {
    let checksums = Checksums::of(superblock);
    require(
        checksums.seed().is_none() || superblock.checksum_type == CHECKSUM_CRC32C,
        || format!("checksum type is {}, not 1", superblock.checksum_type),
    )?;
    Ok(checksums)
}
