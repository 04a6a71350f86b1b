//! The progress of a resize, which other threads can read at any time.

use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The progress of a resize, shared with the thread that displays it. That thread can also stop the
/// resize.
#[derive(Debug, Default)]
pub struct Progress {
    is_copying: AtomicBool,
    is_stopped: AtomicBool,
    done: AtomicU64,
    all: AtomicU64,
}

impl Progress {
    /// Whether the clone is still being copied. It is changed afterwards.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.is_copying.load(Ordering::Relaxed)
    }

    /// The number of bytes that were copied or written, and the total.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        )
    }

    /// Starts copying or writing `all` bytes.
    pub(super) fn begin(&self, is_copying: bool, all: u64) {
        self.is_copying.store(is_copying, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    /// Requests a stop. A resize that works on a clone then fails and leaves nothing behind; other
    /// ways ignore the request.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Fails if a stop was requested.
    pub(super) fn check(&self) -> Result<()> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Adds completed bytes.
    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
