//! The signals that ask a process to end, for commands that have something to clean up.

#[allow(unsafe_code)]
mod handler;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pext4_fuse::ending_signals;

/// The status of a process that another signal ended.
const STATUS: i32 = 1;

/// A flag that the first signal sets. Another one, half a second later or more, ends the process at
/// once, unless that would do damage.
///
/// It is the standard library's atomic, not that of `sync`, since a signal handler writes to it.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers. Another signal ends the process with status 1.
    ///
    /// # Errors
    ///
    /// The signals cannot be caught.
    pub fn catch() -> io::Result<Self> {
        let came = Arc::default();
        handler::install(&came, STATUS)?;
        Ok(Self(came))
    }

    /// As [`Self::catch`], for work that leaves nothing behind: the second signal ends the process
    /// with this status, however soon it comes.
    ///
    /// # Errors
    ///
    /// As [`Self::catch`].
    pub fn catch_and_end_with(status: u8) -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in ending_signals() {
            let came = || Arc::clone(&came);
            signal_hook::flag::register_conditional_shutdown(signal, status.into(), came())?;
            signal_hook::flag::register(signal, came())?;
        }
        Ok(Self(came))
    }

    /// As [`Self::catch`], but no signal ends the process, for work that would leave damage.
    ///
    /// # Errors
    ///
    /// As [`Self::catch`].
    pub fn catch_all() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in ending_signals() {
            signal_hook::flag::register(signal, Arc::clone(&came))?;
        }
        Ok(Self(came))
    }

    /// As after a first signal.
    #[cfg(test)]
    pub fn sent() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// The flag itself, for work that looks at it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Interrupt;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn no_signal_ends_work_that_would_leave_damage() {
        let interrupt = Interrupt::catch_all().expect("signals can be caught");
        if !pext4_fuse::ending_signals().contains(&Signal::TERM.as_raw()) {
            return crate::output::print_error("SKIPPED: SIGTERM is ignored here");
        }
        for _ in 0..2 {
            kill_process(getpid(), Signal::TERM).expect("it is ours");
        }
        // Another thread may get it, a moment later.
        while !interrupt.came() {
            pext4_sync::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
