//! A lease of a file: whoever opens it waits until its holder has closed it (`fcntl(2)`, "Leases").
//!
//! Unmounting does not wait for a server, which may write for a moment longer. A program that then
//! opens the file with the file system, and looks at no lock, is kept waiting by a lease.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Chooses the signal by which the system tells of waiting openers (`F_SETSIG` of the system's
/// `asm-generic/fcntl.h`, which `libc` lacks).
const SET_SIGNAL: libc::c_int = 10;

/// Takes a write lease of a regular file that is open nowhere else: others that open it wait until
/// it is closed here, but no longer than `/proc/sys/fs/lease-break-time` says (45 seconds by
/// default).
///
/// # Errors
///
/// Somebody else has it open; it is not a regular file, or not the caller's, who lacks
/// `CAP_LEASE`; its file system has no leases.
pub fn delay_openers(file: impl AsFd) -> io::Result<()> {
    let file = file.as_fd().as_raw_fd();
    // One that nobody notices; by default, it would end the process.
    control(file, SET_SIGNAL, libc::SIGURG)?;
    control(file, libc::F_SETLEASE, libc::F_WRLCK)
}

/// Gives up the lease that [`delay_openers`] has taken: those who wait go on, as do all others.
///
/// # Errors
///
/// There is no lease.
pub fn admit_openers(file: impl AsFd) -> io::Result<()> {
    control(file.as_fd().as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK)
}

/// A command of `fcntl(2)` with a number.
fn control(file: RawFd, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these commands take a number and touch no memory of the process; the descriptor is
    // borrowed for the call.
    match unsafe { libc::fcntl(file, command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc;
    use std::thread;

    use super::delay_openers;

    #[test]
    fn who_opens_a_leased_file_waits_until_it_is_closed() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("file");
        let file = File::create(&path).expect("a free name");
        if let Err(error) = delay_openers(&file) {
            return eprintln!("SKIPPED: no leases here: {error}");
        }
        let (sender, events) = mpsc::channel();
        thread::scope(|scope| {
            let opened = sender.clone();
            let path = &path;
            scope.spawn(move || {
                let opened_file = File::open(path);
                let _ = opened.send("opened");
                opened_file.expect("it is there");
            });
            // It cannot be seen that another thread waits; that it does not go on can.
            thread::sleep(std::time::Duration::from_millis(50));
            let _ = sender.send("closed");
            drop(file);
        });
        assert_eq!(events.try_iter().collect::<Vec<_>>(), ["closed", "opened"]);
    }

    #[test]
    fn a_file_that_somebody_has_open_is_not_leased() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("file");
        let file = File::create(&path).expect("a free name");
        let _other = File::open(&path).expect("it is there");
        assert!(delay_openers(&file).is_err());
    }
}
