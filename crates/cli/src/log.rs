//! Messages of a running mount: on standard error in the foreground, in the system's log in the
//! background.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output::print_error;

/// The socket of the system's log, and the priority "daemon, warning".
const SYSTEM_LOG: &str = "/dev/log";
const PRIORITY: u32 = 3 << 3 | 4;

static BACKGROUND: AtomicBool = AtomicBool::new(false);

/// Sends all later messages, and panics too, to the system's log.
pub fn switch_to_system_log() {
    BACKGROUND.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(|panic| message(&panic.to_string())));
}

/// Prints or logs one line.
pub fn message(text: &str) {
    if !BACKGROUND.load(Ordering::Relaxed) {
        print_error(format_args!("pext4: {text}"));
        return;
    }
    let line = format!("<{PRIORITY}>pext4[{}]: {text}", std::process::id());
    if let Ok(socket) = UnixDatagram::unbound() {
        // A system without a log loses the message.
        let _ = socket.send_to(line.as_bytes(), SYSTEM_LOG);
    }
}
