//! SIGINT, SIGTERM and SIGHUP end a mount cleanly.

use std::fs;
use std::io;

use pext4_sync::thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::mount::Unmounter;

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

/// Lets the first of the signals end the mount, as `umount` would, but also while files are open;
/// [`Server::wait`](crate::Server::wait) then closes the volume. A second one calls `impatient`,
/// which is meant to end the process: the journal makes the image good again.
///
/// # Errors
/// The signals cannot be caught.
pub fn end_on_signals(
    unmounter: Unmounter,
    say: impl Fn(&str) + Send + Sync + 'static,
    impatient: impl Fn() + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new(ending_signals())?;
    thread::try_spawn("pext4-signals", move || {
        let mut caught = signals.forever();
        if caught.next().is_none() {
            return;
        }
        // Unmounting asks the server, which must not be this thread, and may wait for it long;
        // the second signal is for whoever does not want to.
        let ending = thread::try_spawn("pext4-unmount", move || {
            if let Err(error) = unmounter.end() {
                say(&format!(
                    "{error}; the mount ends when the last file is closed"
                ));
            }
        });
        if ending.is_err() || caught.next().is_some() {
            impatient();
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{SIGHUP, SIGINT, ignored_signals};

    #[test]
    fn what_is_ignored_is_read_from_the_status() {
        let status = "Name:\tpext4\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        let ignored = ignored_signals(status);
        assert_eq!(ignored >> (SIGHUP - 1) & 1, 1);
        assert_eq!(ignored >> (SIGINT - 1) & 1, 0);
        assert_eq!(ignored_signals("no such line"), 0);
    }
}
