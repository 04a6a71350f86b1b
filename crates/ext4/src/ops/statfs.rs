//! What the file system is as a whole: its totals, and how exact its times are.

use std::time::Duration;

use pext4_ondisk::directory::NAME_MAX;
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::inode;

use crate::types::StatFs;
use crate::volume::Volume;

/// [`NAME_MAX`] as `statfs(2)` gives it.
const NAME_LENGTH: u32 = NAME_MAX as u32;

impl Volume {
    /// The smallest difference between two times of an inode that the image can hold: a second if
    /// its inodes have 128 bytes, else a nanosecond.
    #[must_use]
    pub fn time_granularity(&self) -> Duration {
        match usize::from(self.inodes.store.geometry.inode_size) {
            inode::BASE_SIZE => Duration::from_secs(1),
            _ => Duration::from_nanos(1),
        }
    }

    /// The size of the file system in bytes, its own blocks included.
    #[must_use]
    pub fn size(&self) -> u64 {
        let geometry = &self.inodes.store.geometry;
        let block_size = u64::from(geometry.block_size);
        geometry.blocks_count.saturating_mul(block_size)
    }

    /// Whether files may share blocks (`shared_blocks`), as in images that store equal blocks once.
    #[must_use]
    pub fn may_share_blocks(&self) -> bool {
        let features = &self.inodes.store.geometry.features;
        features.has_read_only_compat(ReadOnlyCompat::SHARED_BLOCKS)
    }

    /// What `statfs(2)` tells.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let store = &self.inodes.store;
        let groups = &self.inodes.groups;
        let free_blocks = groups.free_blocks();
        let reserved = store.superblock(|superblock| superblock.reserved_blocks);
        StatFs {
            block_size: store.block_size(),
            blocks: store
                .geometry
                .blocks_count
                .saturating_sub(self.overhead_blocks),
            free_blocks,
            available_blocks: free_blocks.saturating_sub(reserved),
            inodes: u64::from(store.geometry.inodes_count),
            free_inodes: groups.free_inodes(),
            name_length: NAME_LENGTH,
        }
    }
}
