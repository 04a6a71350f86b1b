//! The progress of an edit or a copy, which other threads may read at any time, and the flag by
//! which they stop it.

use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{EditError, Result};

/// What a session or a reader has done so far.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    is_copying: AtomicBool,
    is_stopped: AtomicBool,
}

impl Progress {
    /// The number of files that were created, changed, removed or copied. Each name of a file
    /// counts.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// The number of bytes of data that were written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the image itself is being copied. Neither number grows meanwhile.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.is_copying.load(Ordering::Relaxed)
    }

    /// Stops the work: it ends with [`EditError::Interrupted`] and leaves no files behind.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Counts a file. Fails if the work is to stop.
    pub(crate) fn add_file(&self) -> Result<()> {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    /// Counts bytes. Fails if the work is to stop.
    pub(crate) fn add_bytes(&self, count: usize) -> Result<()> {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        self.check()
    }

    /// Fails if the work is to stop.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_stopped() {
            true => Err(EditError::Interrupted),
            false => Ok(()),
        }
    }

    /// Sets [`Self::is_copying`] while `copy` runs.
    pub(crate) fn copying<R>(&self, copy: impl FnOnce() -> R) -> R {
        self.is_copying.store(true, Ordering::Relaxed);
        let copied = copy();
        self.is_copying.store(false, Ordering::Relaxed);
        copied
    }
}
