//! How far a build is: numbers that other threads may read at any time.

use pext4_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::error::{Error, Result};

/// What a build is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Names, sizes and attributes are read; of compressed sources the contents too.
    Reading,
    /// Everything gets its place.
    Planning,
    /// Contents are copied and structures written.
    Writing,
    /// The image is made durable.
    Syncing,
}

/// The state of a build, shared with whoever shows it. It also carries the wish to stop.
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
    /// What is being done.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Reading,
            1 => Phase::Planning,
            2 => Phase::Writing,
            _ => Phase::Syncing,
        }
    }

    /// Names that were read, or files that were written, and in the latter case of how many.
    #[must_use]
    pub fn files(&self) -> (u64, u64) {
        (
            self.files.load(Ordering::Relaxed),
            self.all_files.load(Ordering::Relaxed),
        )
    }

    /// Bytes of file contents that were written, of how many.
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

/// Where the first error of several threads is kept.
pub(super) struct Verdict {
    first: pext4_sync::Mutex<Option<Error>>,
    has_failed: AtomicBool,
}

impl Verdict {
    pub fn new() -> Self {
        Self {
            first: pext4_sync::Mutex::new(pext4_sync::Class::Leaf, None),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Keeps an error, if it is the first.
    pub fn note(&self, error: Error) {
        self.first.lock().get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Whether there is an error, so that the others may stop.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The first error, if there was one.
    pub fn finish(self) -> Result<()> {
        self.first.into_inner().map_or(Ok(()), Err)
    }
}
