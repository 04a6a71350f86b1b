//! SIGINT, SIGTERM and SIGHUP end a mount cleanly.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pext4_sync::{thread, time};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::mount::Unmounter;

/// What lies between two signals of which the second is meant as such.
const APART: Duration = Duration::from_secs(1);

/// The signals that ask a process to end, without those that whoever started it had it ignore (`nohup`).
#[must_use]
pub fn ending_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_signals(&status);
    let heard = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(heard)
        .collect()
}

/// One bit a signal, from the text of `/proc/PID/status`.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Tells who is impatient from who asks once and is heard twice.
///
/// A service manager asks with SIGTERM and SIGHUP at once, and a terminal that closes sends SIGHUP to everybody, more
/// than once. So only who sends SIGINT or SIGTERM again, some time after the first of these, does not want to wait.
struct Patience {
    /// When the first of them came.
    asked: Option<Duration>,
}

impl Patience {
    /// Notes a signal that comes `now`; whether its sender is impatient.
    fn ends_with(&mut self, signal: i32, now: Duration) -> bool {
        let counts = matches!(signal, SIGINT | SIGTERM);
        counts && now.saturating_sub(*self.asked.get_or_insert(now)) >= APART
    }
}

/// Lets the first of the signals end the mount, as `umount` would, but also while files are open;
/// [`Server::wait`](crate::Server::wait) then closes the volume. A second SIGINT or SIGTERM, a second or more after the
/// first, calls `impatient`, which is meant to end the process: the journal makes the image good again.
///
/// # Errors
/// The signals cannot be caught.
pub fn end_on_signals(
    unmounter: Unmounter,
    say: impl Fn(&str) + Send + Sync + 'static,
    impatient: impl Fn() + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new(ending_signals())?;
    let end = Arc::new(move || {
        if let Err(error) = unmounter.end() {
            say(&format!(
                "{error}; the mount ends when the last file is closed"
            ));
        }
    });
    thread::try_spawn("pext4-signals", move || {
        let mut patience = Patience { asked: None };
        let mut has_begun = false;
        for signal in signals.forever() {
            if patience.ends_with(signal, time::now()) {
                return impatient();
            }
            if !has_begun {
                begin(&end);
                has_begun = true;
            }
        }
    })?;
    Ok(())
}

/// Unmounts on a thread of its own: it may wait for the server long, and the next signal is for whoever does not want
/// to. Where there is no room for a thread it is done right here.
fn begin(end: &Arc<impl Fn() + Send + Sync + 'static>) {
    let ending = Arc::clone(end);
    if thread::try_spawn("pext4-unmount", move || ending()).is_err() {
        end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{APART, Patience, SIGHUP, SIGINT, SIGTERM, ignored_signals};

    #[test]
    fn only_who_asks_again_and_later_is_impatient() {
        let start = Duration::from_secs(70);
        let soon = start + APART / 2;
        let later = start + APART;
        let is_impatient = |signals: &[(i32, Duration)]| {
            let mut patience = Patience { asked: None };
            let mut heard = signals.iter();
            heard.any(|&(signal, now)| patience.ends_with(signal, now))
        };
        assert!(is_impatient(&[(SIGTERM, start), (SIGTERM, later)]));
        assert!(is_impatient(&[
            (SIGINT, start),
            (SIGTERM, soon),
            (SIGINT, later)
        ]));
        assert!(!is_impatient(&[(SIGTERM, start), (SIGINT, soon)]));
        assert!(!is_impatient(&[
            (SIGTERM, start),
            (SIGHUP, start),
            (SIGHUP, later)
        ]));
        assert!(!is_impatient(&[(SIGHUP, start), (SIGHUP, later)]));
        assert!(!is_impatient(&[(SIGHUP, start), (SIGTERM, later)]));
    }

    #[test]
    fn what_is_ignored_is_read_from_the_status() {
        let status = "Name:\tpext4\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let ignored = ignored_signals(status);
        assert_eq!(ignored >> (SIGHUP - 1) & 1, 1);
        assert_eq!(ignored >> (SIGINT - 1) & 1, 0);
        assert_eq!(ignored_signals("no such line"), 0);
    }
}
