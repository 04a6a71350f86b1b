//! The progress of a build, which other threads can read at any time.

use pext4_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::error::{Error, Result};

/// The phase of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reads names, sizes and attributes, and the contents of streams and compressed archives.
    Reading,
    /// Assigns blocks to everything.
    Planning,
    /// Copies contents and writes metadata.
    Writing,
    /// Makes the image durable.
    Syncing,
}

/// The progress of a build, shared with the thread that displays it. That thread can also stop the
/// build.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    files: AtomicU64,
    all_files: AtomicU64,
    bytes: AtomicU64,
    all_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl Progress {
    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Reading,
            1 => Phase::Planning,
            2 => Phase::Writing,
            _ => Phase::Syncing,
        }
    }

    /// The number of names that were read, or while writing, of files that were written; and the
    /// total, which is 0 while it is unknown.
    #[must_use]
    pub fn files(&self) -> (u64, u64) {
        (
            self.files.load(Ordering::Relaxed),
            self.all_files.load(Ordering::Relaxed),
        )
    }

    /// The number of bytes of file contents that were written, and the total.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.bytes.load(Ordering::Relaxed),
            self.all_bytes.load(Ordering::Relaxed),
        )
    }

    /// Asks the build to stop; it ends with [`Error::Interrupted`] and leaves nothing behind.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    pub(super) fn enter(&self, phase: Phase, files: u64, bytes: u64) {
        self.files.store(0, Ordering::Relaxed);
        self.all_files.store(files, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.all_bytes.store(bytes, Ordering::Relaxed);
        let number = match phase {
            Phase::Reading => 0,
            Phase::Planning => 1,
            Phase::Writing => 2,
            Phase::Syncing => 3,
        };
        self.phase.store(number, Ordering::Relaxed);
    }

    pub(super) fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
