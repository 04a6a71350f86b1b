//! The signals that ask a process to end, for commands that have something to clean up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pext4_fuse::ending_signals;
use pext4_sync::time;

/// How long after the first signal another one is meant to end the process at once. What comes
/// sooner is the first again: `timeout` signals its child and then the group that it is in.
const APART: Duration = Duration::from_millis(500);

/// The status of a process that a further signal ended.
const STATUS: i32 = 1;

/// A flag that the first signal sets. A later one ends the process at once, unless that would do
/// damage. The caller looks at the flag again and again, which is how the time is noticed.
///
/// The flags are the standard library's atomics, not those of `sync`, since a signal handler uses
/// them.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    /// When the signal was seen first, on the clock of [`time::now`].
    seen: OnceLock<Duration>,
    /// Whether the next signal ends the process.
    is_last: Option<Arc<AtomicBool>>,
}

impl Interrupt {
    /// Installs the signal handlers. Another signal, half a second after the first was seen, ends
    /// the process with status 1.
    ///
    /// # Errors
    ///
    /// The signals cannot be caught.
    pub fn catch() -> io::Result<Self> {
        let is_last = Arc::<AtomicBool>::default();
        for signal in ending_signals() {
            let is_last = Arc::clone(&is_last);
            signal_hook::flag::register_conditional_shutdown(signal, STATUS, is_last)?;
        }
        Ok(Self {
            is_last: Some(is_last),
            ..Self::catch_all()?
        })
    }

    /// As [`Self::catch`], for work that leaves nothing behind: the second signal ends the process
    /// with this status, however soon it comes.
    ///
    /// # Errors
    ///
    /// As [`Self::catch`].
    pub fn catch_and_end_with(status: u8) -> io::Result<Self> {
        let came = Arc::<AtomicBool>::default();
        end_with_second(status.into(), &came)?;
        Ok(Self::of(came))
    }

    /// As [`Self::catch`], but no signal ends the process, for work that would leave damage.
    ///
    /// # Errors
    ///
    /// As [`Self::catch`].
    pub fn catch_all() -> io::Result<Self> {
        let came = Arc::<AtomicBool>::default();
        for signal in ending_signals() {
            signal_hook::flag::register(signal, Arc::clone(&came))?;
        }
        Ok(Self::of(came))
    }

    fn of(came: Arc<AtomicBool>) -> Self {
        Self {
            came,
            seen: OnceLock::new(),
            is_last: None,
        }
    }

    /// From now on nobody may look at the flag. So the second signal ends the process, however soon
    /// it comes, unless that would do damage.
    pub fn is_unwatched(&self) {
        if self.is_last.is_some() {
            // Without it, only signals that cannot be caught end the process.
            let _ = end_with_second(STATUS, &Arc::default());
        }
    }

    /// As after a first signal.
    #[cfg(test)]
    pub fn sent() -> Self {
        Self::of(Arc::new(AtomicBool::new(true)))
    }

    /// The flag itself, for work that looks at it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.came)
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.came_by(time::now())
    }

    fn came_by(&self, now: Duration) -> bool {
        let came = self.came.load(Ordering::Relaxed);
        if let (true, Some(is_last)) = (came, &self.is_last) {
            let seen = *self.seen.get_or_init(|| now);
            is_last.store(now.saturating_sub(seen) > APART, Ordering::Relaxed);
        }
        came
    }
}

/// Has the first signal set this flag, and the next one end the process with this status.
fn end_with_second(status: i32, came: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in ending_signals() {
        signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(came))?;
        signal_hook::flag::register(signal, Arc::clone(came))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{APART, Arc, AtomicBool, Duration, Interrupt, Ordering};
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn what_comes_later_is_another_signal() {
        let is_last = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt {
            is_last: Some(Arc::clone(&is_last)),
            ..Interrupt::sent()
        };
        let first = Duration::from_secs(7);
        for (later, is_another) in [(0, false), (1, false), (3, true)] {
            assert!(interrupt.came_by(first + APART * later / 2));
            assert_eq!(is_last.load(Ordering::Relaxed), is_another, "{later}");
        }
    }

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
