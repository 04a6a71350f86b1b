//! How far a resize is: numbers that other threads may read at any time. It also carries the wish to stop.

use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The state of a resize, shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    is_copying: AtomicBool,
    is_stopped: AtomicBool,
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// Whether the clone is still being made, which comes before anything is changed in it.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.is_copying.load(Ordering::Relaxed)
    }

    /// Bytes that were copied or written, and of how many.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        )
    }

    /// Begins to copy or to write so many bytes.
    pub(super) fn begin(&self, is_copying: bool, all: u64) {
        self.is_copying.store(is_copying, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    /// Asks the resize to stop, which it does while it works on a clone: it then fails and leaves nothing behind.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Fails if it is to stop.
    pub(super) fn check(&self) -> Result<()> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Notes more bytes of what was begun.
    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
