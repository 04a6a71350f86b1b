//! Durability and totals.

use std::time::Duration;

use pext4_ondisk::directory::NAME_MAX;
use pext4_ondisk::inode;

use crate::error::Result;
use crate::inode::Reach;
use crate::types::{InodeNumber, StatFs};
use crate::volume::Volume;

/// [`NAME_MAX`] as `statfs(2)` gives it.
const NAME_LENGTH: u32 = NAME_MAX as u32;

impl Volume {
    /// Makes a file's content and attributes durable; of a directory, its names.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`, the journal's once it has stopped.
    pub fn fsync(&self, inode: InodeNumber) -> Result<()> {
        self.sync_to(inode, Reach::Attributes)
    }

    /// Makes durable what reading a file's content back needs, and not its other attributes.
    ///
    /// # Errors
    ///
    /// As [`Volume::fsync`].
    pub fn fdatasync(&self, inode: InodeNumber) -> Result<()> {
        self.sync_to(inode, Reach::Data)
    }

    fn sync_to(&self, inode: InodeNumber, reach: Reach) -> Result<()> {
        self.run(|| {
            let inode = self.inodes.get(inode)?;
            // A mount that never wrote has none. One that an error has stopped must not claim that
            // what it could not write is durable.
            let Some(journal) = self.inodes.store.try_journal() else {
                return Ok(());
            };
            // The names of a directory are its content.
            let reach = match inode.is_directory() {
                true => Reach::Attributes,
                false => reach,
            };
            let due = inode.sync_tid(reach);
            let Some(tid) = due.filter(|&tid| !journal.is_durable(tid)) else {
                return Ok(journal.flush_data()?);
            };
            // The flush of a transaction that is being committed already may have begun before the
            // last data was written; that of the running one is yet to come.
            let is_covered = journal.running() == tid;
            journal.make_durable(tid)?;
            if !is_covered {
                journal.flush_data()?;
            }
            Ok(())
        })
    }

    /// Makes everything durable (`syncfs`).
    ///
    /// # Errors
    ///
    /// The journal's, once it has stopped; `Corrupt`, `Io`.
    pub fn sync(&self) -> Result<()> {
        self.inodes.store.journal_noted_errors();
        self.run(|| match self.inodes.store.try_journal() {
            Some(journal) => {
                journal.commit_running()?;
                if self.inodes.store.is_read_only() {
                    return Ok(());
                }
                self.inodes.zero_tails()
            }
            None => Ok(()),
        })
    }

    /// Makes everything durable and writes all that the journal holds to its place in the image.
    /// Unless operations run meanwhile the journal is empty afterwards, so that a reader which does
    /// not know journals sees the current state.
    ///
    /// # Errors
    ///
    /// As [`Volume::sync`].
    pub fn checkpoint(&self) -> Result<()> {
        self.sync()?;
        self.run(|| match self.inodes.store.try_journal() {
            Some(journal) if !self.inodes.store.is_read_only() => Ok(journal.checkpoint()?),
            _ => Ok(()),
        })
    }

    /// The smallest difference between two times of an inode that the image can hold: a second if
    /// its inodes have 128 bytes, else a nanosecond.
    #[must_use]
    pub fn time_granularity(&self) -> Duration {
        match usize::from(self.inodes.store.geometry.inode_size) {
            inode::BASE_SIZE => Duration::from_secs(1),
            _ => Duration::from_nanos(1),
        }
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
