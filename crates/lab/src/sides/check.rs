//! Checks the images of a run with e2fsck.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use pext4_block::RamDevice;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `e2fsck -fn` found nothing.
    Clean,
    /// The image was not checked; the reason.
    Unchecked(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => formatter.write_str("e2fsck -fn found nothing"),
            Self::Unchecked(why) => write!(formatter, "not checked: {why}"),
        }
    }
}

/// A system command, found even if the path lacks the administrator's folders. It gets a process
/// group of its own: the terminal's Ctrl-C is for the lab, and an interrupted tool's message would
/// be taken for a fault of the image.
#[must_use]
pub fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("LC_ALL", "C");
    command.process_group(0);
    command
}

/// Checks an image with e2fsck.
///
/// # Errors
///
/// If e2fsck finds a fault; its output.
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

/// Checks a device in memory, through a copy in a file.
///
/// # Errors
///
/// If the copy cannot be written or e2fsck finds a fault.
pub fn e2fsck_of_memory(device: &RamDevice) -> Result<Verdict> {
    let folder = super::image::scratch()?;
    let copy = folder.path().join("image");
    device.save(&copy)?;
    e2fsck(&copy)
}
