//! `pext4 get`: copies files and trees of an image to the host.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use pext4_edit::{Copied, GetOptions, Reader};
use serde::Serialize;

use crate::count::count;
use crate::device::ImageArgument;
use crate::failure::Misuse;
use crate::names::PathName;
use crate::output::{print_error, print_result};
use crate::progress::{self, ProgressState};

/// Copy a file or a tree out of an image
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// What to copy; a symbolic link is copied as a link
    path: OsString,
    /// Where to; a directory that is there takes it in under its own name (`pext4 cat` writes files
    /// to standard output)
    #[arg(default_value = ".")]
    destination: PathBuf,
    /// Replace a file that is there (never a directory)
    #[arg(short, long)]
    force: bool,
    /// Do not keep owners, set-id bits and system attributes (the default unless root)
    #[arg(long)]
    no_owners: bool,
    /// Leave devices out; others than root cannot make them
    #[arg(long)]
    skip_devices: bool,
    /// Leave out what cannot be read, and say so
    #[arg(long)]
    skip_unreadable: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    path: PathName,
    files: u64,
    bytes: u64,
    devices_left: u64,
    attributes_left: u64,
    unreadable_left: u64,
}

/// Runs the command.
///
/// # Errors
///
/// A file cannot be read or created. The copy is removed then.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.destination.as_os_str() == "-" {
        let problem = "a copy does not go to standard output: `pext4 cat` writes files there, and \
                       `pext4 export` trees, as a tar; a file called `-` is `./-`";
        return Err(Misuse(problem.to_owned()).into());
    }
    let reader = Reader::from_file(arguments.image.open_to_read(arguments.quiet)?)?;
    let usual = GetOptions::default();
    let options = GetOptions {
        owners: usual.owners && !arguments.no_owners,
        skip_devices: arguments.skip_devices,
        force: arguments.force,
        ..usual
    };
    let progress = &options.progress;
    let is_wanted = progress::is_wanted(arguments.quiet, arguments.json);
    let state = || ProgressState::of("copying", progress);
    let got = progress::watch_until(
        is_wanted,
        state,
        || progress.stop(),
        || get(arguments, &reader, &options),
    )??;
    if arguments.json {
        let report = Report {
            path: PathName::of(&got.path),
            files: got.files,
            bytes: got.bytes,
            devices_left: got.devices_skipped,
            attributes_left: got.attributes_skipped,
            unreadable_left: got.unreadable_skipped,
        };
        print_result(serde_json::to_string_pretty(&report)?, "the copy was made")?;
        return Ok(());
    }
    if arguments.quiet {
        return Ok(());
    }
    let devices = ("device was left out", "devices were left out");
    let attributes = (
        "extended attribute was not kept",
        "extended attributes were not kept",
    );
    let skipped = [
        (got.devices_skipped, devices),
        (got.attributes_skipped, attributes),
    ];
    for (number, (one, many)) in skipped.into_iter().filter(|(number, _)| *number > 0) {
        print_error(format_args!("pext4: {}", count(number, one, many)));
    }
    Ok(())
}

fn get(arguments: &Arguments, reader: &Reader, options: &GetOptions) -> pext4_edit::Result<Copied> {
    let (path, destination) = (arguments.path.as_bytes(), &arguments.destination);
    if !arguments.skip_unreadable {
        return reader.get(path, destination, options);
    }
    reader.get_readable(path, destination, options, &mut progress::report_skipped)
}
