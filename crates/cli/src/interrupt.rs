//! The signals that ask a process to end, for commands that have something to clean up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pext4_fuse::ending_signals;

/// A flag that the first signal sets. The second one ends the process at once.
///
/// It is the standard library's atomic, not that of `sync`, since a signal handler writes to it.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers.
    ///
    /// # Errors
    ///
    /// The signals cannot be caught.
    pub fn catch() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in ending_signals() {
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&came))?;
            signal_hook::flag::register(signal, Arc::clone(&came))?;
        }
        Ok(Self(came))
    }

    /// As after a first signal.
    #[cfg(test)]
    pub fn sent() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
