//! What the tests share.

use std::process::Command;

/// A command of e2fsprogs, wherever it is.
pub fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C");
    command
}
