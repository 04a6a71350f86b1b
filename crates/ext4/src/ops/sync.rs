//! Durability: of one inode, and of everything.

use crate::error::Result;
use crate::inode::Reach;
use crate::types::{FileType, InodeNumber};
use crate::volume::Volume;

impl Volume {
    /// Makes a regular file's content and attributes durable. Of any other inode, a directory above
    /// all, everything that changed before the call, whatever it belongs to: as Linux commits the
    /// whole journal then, programs sync a directory for what they did below it.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`, the journal's once it has stopped.
    pub fn fsync(&self, inode: InodeNumber) -> Result<()> {
        self.sync_to(inode, Reach::Attributes)
    }

    /// Makes durable what reading a regular file's content back needs, and not its other
    /// attributes; of any other inode, what [`Volume::fsync`] does.
    ///
    /// # Errors
    ///
    /// As [`Volume::fsync`].
    pub fn fdatasync(&self, inode: InodeNumber) -> Result<()> {
        self.sync_to(inode, Reach::Data)
    }

    fn sync_to(&self, inode: InodeNumber, reach: Reach) -> Result<()> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            // A mount that never wrote has none. One that an error has stopped must not claim that
            // what it could not write is durable.
            let Some(journal) = self.inodes.store.try_journal() else {
                return Ok(());
            };
            if inode.file_type() != FileType::Regular {
                return Ok(journal.make_running_durable()?);
            }
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
}
