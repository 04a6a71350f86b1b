//! Helpers of the tests.

use std::process::Command;

/// A command of e2fsprogs, even if the path lacks its folder.
pub fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C");
    command
}
