//! Ends a mount cleanly on SIGINT, SIGTERM and SIGHUP.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pext4_sync::{thread, time};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::mount::Unmounter;

/// Minimal time between two signals for the second to count as a repetition.
const MIN_REPEAT_DELAY: Duration = Duration::from_secs(1);

/// The signals that ask a process to end, without those that it has inherited as ignored (`nohup`).
#[must_use]
pub fn ending_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_signals(&status);
    let is_handled = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(is_handled)
        .collect()
}

/// The ignored signals, one bit each, from the text of `/proc/PID/status`.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Detects a deliberate repetition of the request to end.
///
/// A service manager sends SIGTERM and SIGHUP at once, and a terminal that closes sends SIGHUP to
/// all its processes, more than once. So only a SIGINT or SIGTERM some time after the first of
/// these means that the user does not want to wait.
struct RepeatDetector {
    /// When the first SIGINT or SIGTERM arrived.
    first: Option<Duration>,
}

impl RepeatDetector {
    /// Notes a signal that arrives at `now`; true if it repeats an earlier one.
    fn is_repeated(&mut self, signal: i32, now: Duration) -> bool {
        let counts = matches!(signal, SIGINT | SIGTERM);
        counts && now.saturating_sub(*self.first.get_or_insert(now)) >= MIN_REPEAT_DELAY
    }
}

/// The signals that ask a process to end, which do not end it any more. They are caught before the
/// directory is mounted: a process that ended right after would leave a mount without a server.
#[derive(Debug)]
pub struct CaughtSignals(Signals);

impl CaughtSignals {
    /// Catches the signals.
    ///
    /// # Errors
    ///
    /// They cannot be caught.
    pub fn catch() -> io::Result<Self> {
        Signals::new(ending_signals()).map(Self)
    }

    /// Starts a thread that ends the mount on the first of the signals, as `umount` would, but even
    /// while files are open; [`Server::wait`](crate::Server::wait) then closes the volume. A second
    /// SIGINT or SIGTERM, a second or more after the first, calls `on_repeat`, which should end the
    /// process: the next mount replays the journal. Signals that came before this call count.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn end_mount_on_signal(
        self,
        unmounter: Unmounter,
        say: impl Fn(&str) + Send + Sync + 'static,
        on_repeat: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let Self(mut signals) = self;
        let end = Arc::new(move || {
            if let Err(error) = unmounter.end() {
                say(&format!(
                    "{error}; the mount ends when the last file is closed"
                ));
            }
        });
        thread::try_spawn("pext4-signals", move || {
            let mut detector = RepeatDetector { first: None };
            let mut has_begun = false;
            for signal in signals.forever() {
                if detector.is_repeated(signal, time::now()) {
                    return on_repeat();
                }
                if !has_begun {
                    begin(&end);
                    has_begun = true;
                }
            }
        })?;
        Ok(())
    }
}

/// Unmounts on a thread of its own, since that may wait long for the server, and this thread must
/// receive the next signal. If no thread can be started, the calling thread unmounts.
fn begin(end: &Arc<impl Fn() + Send + Sync + 'static>) {
    let ending = Arc::clone(end);
    if thread::try_spawn("pext4-unmount", move || ending()).is_err() {
        end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        CaughtSignals, MIN_REPEAT_DELAY, RepeatDetector, SIGHUP, SIGINT, SIGTERM, ignored_signals,
    };

    #[test]
    fn a_signal_that_comes_before_the_mount_is_kept() {
        let CaughtSignals(mut signals) = CaughtSignals::catch().expect("they can be caught");
        signal_hook::low_level::raise(SIGTERM).expect("this process exists");
        let came: Vec<_> = signals.pending().collect();
        assert_eq!(came, [SIGTERM]);
    }

    #[test]
    fn only_a_later_sigint_or_sigterm_is_a_repetition() {
        let start = Duration::from_secs(70);
        let soon = start + MIN_REPEAT_DELAY / 2;
        let later = start + MIN_REPEAT_DELAY;
        let is_repeated = |signals: &[(i32, Duration)]| {
            let mut detector = RepeatDetector { first: None };
            let mut received = signals.iter();
            received.any(|&(signal, now)| detector.is_repeated(signal, now))
        };
        assert!(is_repeated(&[(SIGTERM, start), (SIGTERM, later)]));
        assert!(is_repeated(&[
            (SIGINT, start),
            (SIGTERM, soon),
            (SIGINT, later)
        ]));
        assert!(!is_repeated(&[(SIGTERM, start), (SIGINT, soon)]));
        assert!(!is_repeated(&[
            (SIGTERM, start),
            (SIGHUP, start),
            (SIGHUP, later)
        ]));
        assert!(!is_repeated(&[(SIGHUP, start), (SIGHUP, later)]));
        assert!(!is_repeated(&[(SIGHUP, start), (SIGTERM, later)]));
    }

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tpext4\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let ignored = ignored_signals(status);
        assert_eq!(ignored >> (SIGHUP - 1) & 1, 1);
        assert_eq!(ignored >> (SIGINT - 1) & 1, 0);
        assert_eq!(ignored_signals("no such line"), 0);
    }
}
