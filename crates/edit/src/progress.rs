//! How far an edit or a copy is: numbers that other threads may read at any time. It also carries the wish to
//! stop.

use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{EditError, Result};

/// What a session or a reader has done so far, shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    is_copying: AtomicBool,
    is_stopped: AtomicBool,
}

impl Progress {
    /// Files that were made, changed, removed or copied; other names of a file count.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes of data that were written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the image itself is being copied, so that neither number grows.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.is_copying.load(Ordering::Relaxed)
    }

    /// Asks the work to stop: it ends with [`EditError::Interrupted`] and leaves nothing behind.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Counts a file that is begun.
    pub(crate) fn add_file(&self) -> Result<()> {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    /// Counts bytes that are written.
    pub(crate) fn add_bytes(&self, count: usize) -> Result<()> {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        self.check()
    }

    /// Fails if it is to stop.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_stopped() {
            true => Err(EditError::Interrupted),
            false => Ok(()),
        }
    }

    /// Notes that the image is being copied while `copy` runs.
    pub(crate) fn copying<R>(&self, copy: impl FnOnce() -> R) -> R {
        self.is_copying.store(true, Ordering::Relaxed);
        let copied = copy();
        self.is_copying.store(false, Ordering::Relaxed);
        copied
    }
}
