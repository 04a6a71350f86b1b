//! The journal's superblock while the journal runs: where replay has to begin.
//!
//! The committer sets the start of the log, the checkpointer moves it, and an abort records an
//! error. Each change is durable before the call returns; changes are serialised. The error of an
//! abort is the last change, so the next recovery begins at the start that was valid at the abort.

use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::Tid;
use pext4_ondisk::journal::{JournalIncompat, JournalSuperblock};
use pext4_sync::{Class, Mutex};

use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::recovery;

/// The journal's superblock, on the device and in memory.
pub(crate) struct SuperblockFile {
    device: Arc<dyn Device>,
    area: Arc<LogArea>,
    /// See [`Log`](crate::Log).
    keeps_checksums: bool,
    /// Held while writing, so it precedes the device's locks in the order.
    current: Mutex<Current>,
}

struct Current {
    /// As on the device, except for the checksums of an empty log.
    superblock: JournalSuperblock,
    /// An abort has recorded its error; nothing else is written any more.
    is_aborted: bool,
}

impl SuperblockFile {
    /// `superblock` is the one on the device, except for features that the first write adds.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        area: Arc<LogArea>,
        superblock: JournalSuperblock,
        keeps_checksums: bool,
    ) -> Self {
        Self {
            device,
            area,
            keeps_checksums,
            current: Mutex::new(
                Class::Checkpoint,
                Current {
                    superblock,
                    is_aborted: false,
                },
            ),
        }
    }

    /// Makes an empty log start at `start` with `tid`; does nothing if the log has a start already.
    /// Rule 11: this is durable before the first commit record.
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

    /// Moves the start: everything before it is home and flushed.
    pub(crate) fn move_start(&self, start: u32, tid: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            superblock.start = start;
            superblock.sequence = tid;
            true
        })
    }

    /// Declares the log empty: everything is home and flushed. `next` is the number that it names;
    /// the next mount begins behind it.
    pub(crate) fn finish(&self, next: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            let was_begun = superblock.start != 0;
            superblock.start = 0;
            superblock.sequence = next;
            was_begun
        })
    }

    /// Records the error of an abort for the next mount of the image.
    pub(crate) fn record_error(&self, errno: i32) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        current.is_aborted = true;
        current.superblock.errno = errno;
        recovery::write_superblock(&*self.device, &self.area, &current.superblock)
    }

    /// Clears the error that an earlier abort recorded.
    pub(crate) fn clear_error(&self) -> Result<(), JournalError> {
        self.change(|superblock| std::mem::take(&mut superblock.errno) != 0)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut JournalSuperblock) -> bool,
    ) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        if current.is_aborted {
            return Err(JournalError::ShutDown);
        }
        let mut changed = current.superblock.clone();
        if change(&mut changed) {
            let mut written = changed.clone();
            if written.start == 0 && !self.keeps_checksums {
                written.incompat.remove(JournalIncompat::CSUM_V3);
            }
            recovery::write_superblock(&*self.device, &self.area, &written)?;
            current.superblock = changed;
        }
        Ok(())
    }
}
