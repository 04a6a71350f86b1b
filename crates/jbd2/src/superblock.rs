//! The journal's superblock while the journal runs: where replay would have to begin.
//!
//! The committer says where the log starts, the checkpointer moves the start, an abort leaves an
//! error. Each change is durable before the call returns, and one happens at a time.

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
    /// As on the device. Held while writing, so it comes before the device's locks.
    current: Mutex<JournalSuperblock>,
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
            current: Mutex::new(Class::Checkpoint, superblock),
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

    /// Leaves the error for whoever opens the image next.
    pub(crate) fn record_error(&self, errno: i32) -> Result<(), JournalError> {
        self.change(|superblock| {
            superblock.errno = errno;
            true
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut JournalSuperblock) -> bool,
    ) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        let mut changed = current.clone();
        if change(&mut changed) {
            recovery::write_superblock(&*self.device, &self.area, &changed)?;
            *current = changed;
        }
        Ok(())
    }
}
