//! Durability and totals.

use crate::error::Result;
use crate::types::{InodeNumber, Statistics};
use crate::volume::Volume;

impl Volume {
    /// Makes a file's content and attributes durable (`fsync`); with `data_only` just what reading
    /// the content back needs (`fdatasync`).
    ///
    /// # Errors
    ///
    /// The journal's, once it has stopped; `Io`.
    pub fn sync_file(&self, inode: InodeNumber, data_only: bool) -> Result<()> {
        self.run(|| {
            let inode = self.inodes.get(inode)?;
            let due = inode.state(|state| if data_only { state.datasync_tid } else { state.sync_tid });
            if self.inodes.store.is_read_only() {
                return Ok(());
            }
            let journal = self.inodes.store.journal();
            match due {
                Some(tid) if !journal.is_durable(tid) => journal.commit(tid)?,
                _ => journal.flush_data()?,
            }
            Ok(())
        })
    }

    /// Makes everything durable (`syncfs`).
    ///
    /// # Errors
    ///
    /// As [`Volume::sync_file`].
    pub fn sync(&self) -> Result<()> {
        self.run(|| {
            if self.inodes.store.is_read_only() {
                return Ok(());
            }
            Ok(self.inodes.store.journal().commit_running()?)
        })
    }

    /// `statfs`.
    ///
    /// # Errors
    ///
    /// None today; the volume's state may make it fail later.
    pub fn statistics(&self) -> Result<Statistics> {
        let store = &self.inodes.store;
        let groups = &self.inodes.groups;
        let free_blocks = groups.free_blocks();
        let reserved = store.superblock(|superblock| superblock.reserved_blocks);
        Ok(Statistics {
            block_size: store.block_size(),
            blocks: store.geometry.blocks_count.saturating_sub(self.overhead_blocks),
            free_blocks,
            available_blocks: free_blocks.saturating_sub(reserved),
            inodes: u64::from(store.geometry.inodes_count),
            free_inodes: groups.free_inodes(),
            name_length: 255,
        })
    }
}
