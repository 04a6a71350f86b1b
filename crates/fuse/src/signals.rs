//! SIGINT, SIGTERM and SIGHUP end a mount cleanly.

use std::io;

use pext4_sync::thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::mount::Unmounter;

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
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
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
