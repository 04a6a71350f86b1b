//! What a volume does about errors.
//!
//! Corruption follows the volume's policy (`errors=`): either the error is recorded in the
//! superblock in memory, which the next operation adds to the running transaction, or the journal
//! is aborted. An abort, or a device that fails, stops all writing: the volume is read-only from
//! then on, and the error is recorded in the superblock on the device.

use std::io::IoSlice;
use std::sync::Arc;

use pext4_ondisk::Corrupt;
use pext4_ondisk::superblock::{ERROR_CORRUPTED, ERROR_IO, OFFSET, SIZE, Superblock};
use pext4_sync::atomic::Ordering;

use super::{CorruptionObserver, Store, now};
use crate::error::{Error, Result, is_without_space};
use crate::options::OnError;

impl Store {
    /// Returns the error, after applying the volume's `errors=` policy if it is `Corrupt`. The
    /// policy is applied nowhere else.
    pub fn apply_error_policy(&self, error: Error) -> Error {
        if let Error::Corrupt(corrupt) = &error {
            self.note_corruption(corrupt);
        }
        error
    }

    /// Has `observer` told of corruption from now on, beside those that are told already.
    pub fn observe_corruption(&self, observer: Arc<CorruptionObserver>) {
        self.observers.write().push(observer);
    }

    fn note_corruption(&self, corrupt: &Corrupt) {
        // They are told without the lock: they may take locks of their own.
        let observers = self.observers.read().clone();
        for observer in observers {
            observer(corrupt);
        }
        if self.is_read_only() {
            return;
        }
        let continues = match self.options.on_error {
            Some(policy) => policy == OnError::Continue,
            None => self.superblock(Superblock::continues_on_error),
        };
        if continues {
            let seconds = now().seconds;
            self.superblock
                .record_error(corrupt, ERROR_CORRUPTED, seconds);
            self.has_noted_errors.store(true, Ordering::Relaxed);
            return;
        }
        // The journal's abort calls `stop`, which notes the error. Another reason may be first.
        let _ = self.stopped_for.set(corrupt.clone());
        match self.try_journal() {
            Some(journal) => journal.abort(&corrupt.to_string()),
            None => self.set_read_only(),
        }
    }

    /// Adds errors that were recorded in the superblock, while the mount continues, to the running
    /// transaction. Must be called without a handle. Before the journal is attached, they stay
    /// recorded.
    pub fn journal_noted_errors(&self) {
        // Called after every operation, so it writes nothing if nothing was noted.
        if !self.has_noted_errors.load(Ordering::Relaxed) || self.try_journal().is_none() {
            return;
        }
        if !self.has_noted_errors.swap(false, Ordering::Relaxed) {
            return;
        }
        // If the journal has stopped, its own error is noted already.
        if let Ok(mut handle) = self.start(1) {
            self.edit_superblock(&mut handle, |_| ());
        }
    }

    /// Writes data of files. If the device fails, the volume stops writing, and every thread that
    /// waits for durability gets the error. Only a host without space fails this write alone: no
    /// map has changed yet, so the volume is as it was, and what is removed from it gives the host
    /// space again. Part of the data may be there: where that is beyond the end of a file, in the
    /// block in which it ends, the caller notes it.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn write_data(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<()> {
        self.device
            .write_vectored_at(offset, parts)
            .map_err(|error| {
                if is_without_space(&error) {
                    return Error::Io(error);
                }
                let reason = format!("writing data failed: {error}");
                match self.try_journal() {
                    // Its abort calls `stop`.
                    Some(journal) => journal.abort_by_device(&reason),
                    None => self.stop(&reason, ERROR_IO),
                }
                Error::Io(error)
            })
    }

    /// Stops the journal because an operation failed between two changes; `what` describes it.
    pub fn stop_half_done(&self, what: &str, error: &Error) {
        let reason = format!("{what}: {error}");
        match error {
            Error::Io(_) => self.journal().abort_by_device(&reason),
            _ => self.journal().abort(&reason),
        }
    }

    /// Stops all writing after an error of the journal or the device; `code` is its kind in the
    /// superblock.
    pub fn stop(&self, reason: &str, code: u8) {
        self.set_read_only();
        match self.stopped_for.get() {
            Some(corrupt) => self.record_error(corrupt, code),
            None => self.record_error(&Corrupt::new("journal", reason.to_owned()), code),
        }
    }

    /// Records an error in the superblock after the journal has stopped: in memory, and in the
    /// version in the home block, since other changes in memory are not committed. A failure of the
    /// device is ignored here, since the error that stopped the journal was reported.
    fn record_error(&self, corrupt: &Corrupt, code: u8) {
        let time = now().seconds;
        self.superblock.record_error(corrupt, code, time);
        let mut bytes = [0; SIZE];
        if self.device.read_at(OFFSET, &mut bytes).is_err() {
            return;
        }
        if let Ok(mut superblock) = Superblock::decode(&bytes) {
            superblock.record_error(corrupt, code, time);
            let _ = self
                .device
                .write_at(OFFSET, &superblock.encode())
                .and_then(|()| self.device.flush());
        }
    }
}
