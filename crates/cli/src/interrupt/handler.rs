//! What happens when a signal comes. It is a module of its own for its `unsafe` call: no library
//! tells apart how soon signals follow one another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pext4_fuse::ending_signals;
use rustix::time::{ClockId, clock_gettime};

/// How long after the first signal another one is meant to end the process at once. What comes
/// sooner is the first again: `timeout` signals its child and then the group that it is in.
pub(super) const APART: Duration = Duration::from_millis(500);

/// The first of the ending signals.
pub(super) struct First {
    /// When it came, in milliseconds of a clock that is past 0; 0 before it comes.
    at: AtomicU64,
}

impl First {
    pub(super) const fn new() -> Self {
        Self {
            at: AtomicU64::new(0),
        }
    }

    /// Notes a signal that comes `now`; whether it is another one.
    pub(super) fn is_followed(&self, now: u64) -> bool {
        let noted = self
            .at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let apart = u64::try_from(APART.as_millis()).unwrap_or(u64::MAX);
        noted.is_err_and(|first| now.saturating_sub(first) >= apart)
    }
}

/// Has every ending signal set the flag, and one that follows the first after [`APART`] or later
/// end the process with this status.
pub(super) fn install(came: &Arc<AtomicBool>, status: i32) -> io::Result<()> {
    let first = Arc::new(First::new());
    for signal in ending_signals() {
        let (came, first) = (Arc::clone(came), Arc::clone(&first));
        let act = move || {
            came.store(true, Ordering::Relaxed);
            if first.is_followed(now()) {
                signal_hook::low_level::exit(status);
            }
        };
        // SAFETY: the handler reads a clock, uses atomics and may end the process by `_exit`, all
        // of which a signal handler may do. It takes no lock, allocates nothing and cannot panic.
        unsafe { signal_hook::low_level::register(signal, act) }?;
    }
    Ok(())
}

/// Milliseconds since the system was started, and one more, so never 0.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let milliseconds = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    seconds
        .saturating_mul(1000)
        .saturating_add(milliseconds)
        .saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::{APART, First};

    #[test]
    fn what_comes_later_is_another_signal() {
        let apart = u64::try_from(APART.as_millis()).expect("short");
        let first = First::new();
        assert!(!first.is_followed(7));
        assert!(!first.is_followed(7) && !first.is_followed(6 + apart));
        assert!(first.is_followed(7 + apart));
    }
}
