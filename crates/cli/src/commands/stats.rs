//! `pext4 stats`: shows the statistics of a mounted volume.
//!
//! They are the value of an extended attribute that the mount does not list. Any user can read it
//! from any file of the mount, and nothing appears in the directory. So are the messages of the
//! server, which otherwise are only in the system's log, and a list of the groups.

mod groups;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::Args;
use pext4_fuse::report::{MAX_VALUE, MESSAGES, OPTIMIZE_SCAN, REPORT, REPORT_JSON};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::{names, output};

/// The line in place of the section of locks. The mount may be of another build than this command.
const NO_METERS: &str = "locks: not counted; a build with `cargo build --release --features meter` \
                         does, on a mount with `--meter`";

/// Show what the mechanisms of a mounted volume did: allocator, frees, inodes, orphans, journal
#[derive(Args)]
pub struct Arguments {
    /// The directory it is mounted on, or anything below
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show the free space of each group instead, a line each, as /proc/fs/ext4/*/mb_groups does
    /// in Linux
    #[arg(long)]
    groups: bool,
    /// First let searches for blocks go by the index of groups (1) or one by one (0); on the
    /// mount's own directory
    #[arg(long, value_name = "0|1", value_parser = ["0", "1"])]
    mb_optimize_scan: Option<String>,
}

/// Runs the command.
///
/// # Errors
///
/// The directory is not on a mount of pext4.
pub fn run(arguments: &Arguments) -> Result<()> {
    let directory = &arguments.directory;
    let name = || directory.display().to_string();
    if let Some(value) = &arguments.mb_optimize_scan {
        setxattr(
            directory,
            OPTIMIZE_SCAN,
            value.as_bytes(),
            XattrFlags::empty(),
        )
        .map_err(|errno| match errno {
            Errno::ROFS => anyhow!("mb_optimize_scan cannot be set: the mount is read-only"),
            errno => Error::from(errno)
                .context("mb_optimize_scan cannot be set; is it the mount's own directory?"),
        })
        .with_context(name)?;
    }
    if arguments.groups {
        return groups::print(directory, arguments.json).with_context(name);
    }
    let read = |attribute| read(directory, attribute).with_context(name);
    let messages = read(MESSAGES)?;
    let messages: Vec<&str> = messages.lines().collect();
    let mut output = output::standard();
    if arguments.json {
        let report = read(REPORT_JSON)?;
        let counters = report.strip_suffix('}').unwrap_or(&report);
        let messages = serde_json::to_string(&messages)?;
        writeln!(output, "{counters},\"messages\":{messages}}}")?;
    } else {
        let report = read(REPORT)?;
        output.write_all(report.as_bytes())?;
        if !report.contains("\nlocks\n") {
            writeln!(output, "\n{NO_METERS}")?;
        }
        write_messages(&mut output, &messages)?;
    }
    Ok(output.flush()?)
}

fn write_messages(output: &mut impl Write, messages: &[&str]) -> io::Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    writeln!(output, "\nmessages")?;
    for message in messages {
        writeln!(output, "  {}", names::show(message.as_bytes()))?;
    }
    Ok(())
}

fn read(directory: &Path, attribute: &str) -> Result<String> {
    let mut bytes = vec![0; MAX_VALUE];
    let length = match getxattr(directory, attribute, bytes.as_mut_slice()) {
        Err(Errno::NODATA | Errno::NOTSUP) => bail!("it is on no mount of pext4"),
        length => length?,
    };
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
