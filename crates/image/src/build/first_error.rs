//! The first error of threads that work on one build together.

use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Mutex};

use super::error::{Error, Result};

/// Keeps the first error of several threads.
pub(super) struct FirstError {
    first: Mutex<Option<Error>>,
    has_failed: AtomicBool,
}

impl FirstError {
    pub fn new() -> Self {
        Self {
            first: Mutex::new(Class::Leaf, None),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Records an error, if it is the first.
    pub fn record(&self, error: Error) {
        self.first.lock().get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Whether there is an error. The other threads then stop.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The first error, if there was one.
    pub fn finish(self) -> Result<()> {
        self.first.into_inner().map_or(Ok(()), Err)
    }
}
