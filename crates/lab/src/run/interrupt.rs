//! Interruption by the user: a signal sets a flag, and everything that waits checks it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that all parts of a run check.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error of a run that the user interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// The flag itself, for a signal handler to set.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Requests the end of the run.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails if the end was requested.
    ///
    /// # Errors
    ///
    /// `Interrupted`.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }
}
