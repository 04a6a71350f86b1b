//! The journal's superblock while the journal runs: where replay would have to begin.
//!
//! The committer says where the log starts, the checkpointer moves the start, an abort leaves an
//! error. Each change is durable before the call returns, and one happens at a time. None comes after
//! the error of an abort: whoever opens the image next begins at the start that it was found with.

use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::Tid;
use pext4_ondisk::journal::JournalSuperblock;
use pext4_sync::{Class, Mutex};

use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::recovery;

/// The journal's superblock, on the device and in memory.
pub(crate) struct SuperblockFile {
    device: Arc<dyn Device>,
    area: Arc<LogArea>,
    /// Held while writing, so it comes before the device's locks.
    current: Mutex<Current>,
}

struct Current {
    /// As on the device.
    superblock: JournalSuperblock,
    /// An abort has left its error; nothing else is written any more.
    is_over: bool,
}

impl SuperblockFile {
    /// `superblock` is what the device holds, but for features that the first write adds.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        area: Arc<LogArea>,
        superblock: JournalSuperblock,
    ) -> Self {
        Self {
            device,
            area,
            current: Mutex::new(
                Class::Checkpoint,
                Current {
                    superblock,
                    is_over: false,
                },
            ),
        }
    }

    /// Makes an empty log start at `start` with `tid`; does nothing if it has a start. Design rule
    /// 11: this is durable before the first commit record.
    pub(crate) fn begin(&self, start: u32, tid: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            let begins = superblock.start == 0;
            if begins {
                superblock.start = start;
                superblock.sequence = tid;
            }
            begins
        })
    }

    /// Moves the start: all before is home and flushed.
    pub(crate) fn move_start(&self, start: u32, tid: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            superblock.start = start;
            superblock.sequence = tid;
            true
        })
    }

    /// Declares the log empty: all is home and flushed. `next` comes next.
    pub(crate) fn finish(&self, next: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            let was_begun = superblock.start != 0;
            superblock.start = 0;
            superblock.sequence = next;
            was_begun
        })
    }

    /// Leaves the error of an abort for whoever opens the image next.
    pub(crate) fn record_error(&self, errno: i32) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        current.is_over = true;
        current.superblock.errno = errno;
        recovery::write_superblock(&*self.device, &self.area, &current.superblock)
    }

    /// Forgets the error that an earlier abort left.
    pub(crate) fn clear_error(&self) -> Result<(), JournalError> {
        self.change(|superblock| std::mem::take(&mut superblock.errno) != 0)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut JournalSuperblock) -> bool,
    ) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        if current.is_over {
            return Err(JournalError::ShutDown);
        }
        let mut changed = current.superblock.clone();
        if change(&mut changed) {
            recovery::write_superblock(&*self.device, &self.area, &changed)?;
            current.superblock = changed;
        }
        Ok(())
    }
}
