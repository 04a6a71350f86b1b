//! Where a mount says what nobody is there to hear: on its terminal in the foreground, in the
//! system's log from the background.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::say::aside;

/// The socket of the system's log, and the priority "daemon, warning".
const SYSTEM_LOG: &str = "/dev/log";
const PRIORITY: u32 = 3 << 3 | 4;

static BACKGROUND: AtomicBool = AtomicBool::new(false);

/// From now on the terminal is gone. Panics, too, go to the log.
pub fn go_to_background() {
    BACKGROUND.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(|panic| say(&panic.to_string())));
}

/// Says one line.
pub fn say(text: &str) {
    if !BACKGROUND.load(Ordering::Relaxed) {
        aside(format_args!("pext4: {text}"));
        return;
    }
    let line = format!("<{PRIORITY}>pext4[{}]: {text}", std::process::id());
    if let Ok(socket) = UnixDatagram::unbound() {
        // A system without a log does not hear it.
        let _ = socket.send_to(line.as_bytes(), SYSTEM_LOG);
    }
}
