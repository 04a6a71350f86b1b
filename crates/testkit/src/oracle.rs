//! Independent programs as references: mke2fs, e2fsck, debugfs, and the kernel.
//!
//! The first three are part of e2fsprogs and are required. The kernel's mount needs privileges that
//! are not always available, so it is probed, and tests that need it report when they are skipped.

pub mod check;
pub mod debugfs;
pub mod format;
pub mod mount;

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// Folders in which the tools may be even if the path does not contain them.
const TOOL_FOLDERS: &str = "/usr/sbin:/sbin";

/// A command of e2fsprogs or util-linux, with English messages and without local configuration.
#[must_use]
pub fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{path}:{TOOL_FOLDERS}");
    // By its absolute path: for a program that must be searched in another `PATH`, the library uses
    // fork, which copies the page tables of all memory of a test.
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    let program = places.find(|place| place.is_file());
    let mut command = Command::new(program.as_deref().unwrap_or(Path::new(name)));
    command.env("PATH", &path);
    command
        .env("LC_ALL", "C")
        .env("MKE2FS_CONFIG", "/dev/null")
        .env("E2FSCK_CONFIG", "/dev/null");
    command
}

/// Runs a command and returns its output, whatever its exit status.
pub fn output(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .output()
        .with_context(|| format!("running {name}; is e2fsprogs installed?"))
}

/// Runs a command that must succeed; returns its standard output.
pub fn run(command: &mut Command) -> Result<String> {
    let told = output(command)?;
    if !told.status.success() {
        bail!("{command:?} ended with {}:\n{}", told.status, text(&told));
    }
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

/// Everything that a command printed.
#[must_use]
pub fn text(told: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr),
    );
    format!("{out}{err}")
}
