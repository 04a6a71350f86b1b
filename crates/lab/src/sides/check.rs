//! Letting e2fsck judge what a run leaves.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use pext4_block::RamDevice;

/// What e2fsck said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `e2fsck -fn` found nothing.
    Clean,
    /// Nobody looked, and why.
    Unchecked(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => formatter.write_str("e2fsck -fn is content"),
            Self::Unchecked(why) => write!(formatter, "not checked: {why}"),
        }
    }
}

/// A command of the system, also where the path does not name the administrator's folders. It is in a group of its
/// own: the terminal's Ctrl-C is for us, and what a tool says then would be blamed on the image.
#[must_use]
pub fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("LC_ALL", "C");
    command.process_group(0);
    command
}

/// Has an image checked.
///
/// # Errors
/// e2fsck is not content; its words.
pub fn e2fsck(image: &Path) -> Result<Verdict> {
    let told = match tool("e2fsck").arg("-fn").arg(image).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Verdict::Unchecked("e2fsck is not installed".to_owned()));
        }
        told => told?,
    };
    if told.status.success() {
        return Ok(Verdict::Clean);
    }
    let words = String::from_utf8_lossy(&told.stdout);
    bail!("e2fsck is not content with {}:\n{words}", image.display())
}

/// Has a device in memory checked, by a copy in a file.
///
/// # Errors
/// The copy cannot be written; e2fsck is not content.
pub fn e2fsck_of_memory(device: &RamDevice) -> Result<Verdict> {
    let folder = super::image::scratch()?;
    let copy = folder.path().join("image");
    device.save(&copy)?;
    e2fsck(&copy)
}
