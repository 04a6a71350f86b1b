//! The signals that ask a process to end, for commands that have something to clean up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pext4_fuse::ending_signals;

/// What a first signal sets; the second one does not wait.
///
/// The standard library's own flag, not the watched one of `sync`: a handler of signals writes to it.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first signal only tells.
    ///
    /// # Errors
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
