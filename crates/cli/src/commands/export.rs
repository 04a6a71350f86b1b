//! `pext4 export`: an image as a tar archive.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, IntoInnerError, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_block::{Progress, copy_owner_and_permissions, loops, temporary_name};
use pext4_edit::{ExportOptions, Exported, Reader};
use serde::Serialize;

use crate::count::count;
use crate::device::ImageArgument;
use crate::failure::{self, Misuse};
use crate::names::PathName;
use crate::output::{print_error, print_result};
use crate::progress::{self, ProgressState};

/// The size of the write buffer in bytes.
const BUFFER: usize = 1 << 20;

/// Write an image as a tar archive from which `pext4 build` makes the same tree
///
/// The archive has no sockets and no flags of chattr, and a build keeps at most 8 KiB of attributes
/// a file.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The directory in it that becomes the archive's root
    #[arg(default_value = "/")]
    path: OsString,
    /// The archive; else standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out what cannot be read, and say so
    #[arg(long)]
    skip_unreadable: bool,
    /// Write holes of files as zeroes, for readers that do not know GNU's sparse form
    #[arg(long)]
    no_sparse: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON; the archive goes to a file (-o)
    #[arg(long)]
    json: bool,
}

/// What was written, for programs.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    path: PathName,
    files: u64,
    bytes: u64,
    sockets_left: u64,
    flags_left: u64,
    unreadable_left: u64,
}

impl Report {
    fn of(output: &Path, exported: Exported) -> Self {
        Self {
            path: PathName::of(output),
            files: exported.files,
            bytes: exported.bytes,
            sockets_left: exported.sockets_skipped,
            flags_left: exported.flags_skipped,
            unreadable_left: exported.unreadable_skipped,
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// A file cannot be read, or the archive not written. An incomplete archive is removed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let output = arguments.output.as_deref();
    let output = output.filter(|output| *output != Path::new("-"));
    if arguments.json && output.is_none() {
        let problem = "--json: standard output is for the archive: give -o FILE";
        return Err(Misuse(problem.to_owned()).into());
    }
    let work = Work {
        arguments,
        reader: Reader::from_file(arguments.image.open_to_read(arguments.quiet)?)?,
        progress: Arc::default(),
    };
    let target = Target::of(output);
    let is_wanted = progress::is_wanted(arguments.quiet, arguments.json);
    let state = || ProgressState::of("exporting", &work.progress);
    let stop = || work.progress.stop();
    let export = || work.exported(&target);
    let exported = match target {
        Target::File(_) => progress::watch_until(is_wanted, state, stop, export)?,
        // Here is nothing to remove, and a reader that stalls must not hold up a signal.
        Target::Special(_) | Target::Output => progress::watch(is_wanted, state, export),
    };
    let exported = exported.map_err(failure::of_data)?;
    if let Some(output) = output.filter(|_| arguments.json) {
        let text = serde_json::to_string_pretty(&Report::of(output, exported))?;
        print_result(text, "the archive was written")?;
    } else if !arguments.quiet {
        print_omissions(exported);
    }
    Ok(())
}

/// Says what is not in the archive.
fn print_omissions(exported: Exported) {
    if exported.sockets_skipped > 0 {
        print_error(format_args!(
            "pext4: {} left out: tar has no form for them",
            count(exported.sockets_skipped, "socket was", "sockets were")
        ));
    }
    if exported.flags_skipped > 0 {
        print_error(format_args!(
            "pext4: {} flags of chattr, which are not in the archive",
            count(exported.flags_skipped, "file has", "files have")
        ));
    }
}

/// Where the archive goes.
enum Target {
    /// To a file, which is new or replaced.
    File(PathBuf),
    /// Into an existing device or pipe.
    Special(PathBuf),
    /// To standard output.
    Output,
}

impl Target {
    fn of(output: Option<&Path>) -> Self {
        let Some(output) = output else {
            return Self::Output;
        };
        // A symbolic link stays, and the file it leads to is replaced.
        let output = fs::canonicalize(output).unwrap_or_else(|_| output.to_owned());
        match fs::metadata(&output) {
            Ok(there) if !there.is_file() => Self::Special(output),
            _ => Self::File(output),
        }
    }
}

/// An export under way.
struct Work<'a> {
    arguments: &'a Arguments,
    reader: Reader,
    progress: Arc<Progress>,
}

impl Work<'_> {
    fn exported(&self, target: &Target) -> Result<Exported> {
        if let Target::File(output) | Target::Special(output) = target {
            check_apart(&self.arguments.image.file, output)?;
        }
        match target {
            Target::File(output) => self.to_file(output),
            Target::Special(output) => self.to_special(output),
            Target::Output => self.to_output(),
        }
    }

    fn to_output(&self) -> Result<Exported> {
        let output = io::stdout().lock();
        if output.is_terminal() {
            bail!("a tar archive is not for a terminal: give -o FILE or a pipe");
        }
        let mut output = BufWriter::with_capacity(BUFFER, output);
        let name = Path::new("standard output");
        self.write(name, &mut output)
    }

    fn write(&self, name: &Path, output: &mut dyn Write) -> Result<Exported> {
        let mut on_skipped = progress::report_skipped;
        let options = ExportOptions {
            whole_files: self.arguments.no_sparse,
            name: Some(name),
            on_skipped: match self.arguments.skip_unreadable {
                true => Some(&mut on_skipped),
                false => None,
            },
            progress: Arc::clone(&self.progress),
        };
        Ok(self
            .reader
            .export_with(self.arguments.path.as_bytes(), output, options)?)
    }

    /// Writes into an existing device or pipe, which must not be replaced by a file.
    fn to_special(&self, output: &Path) -> Result<Exported> {
        let shown = || format!("{}: cannot write it", output.display());
        let file = OpenOptions::new().write(true).open(output);
        let mut file = BufWriter::with_capacity(BUFFER, file.with_context(shown)?);
        let exported = self.write(output, &mut file)?;
        file.flush().with_context(shown)?;
        Ok(exported)
    }

    /// Writes to a temporary file beside the output, and renames it at the end.
    fn to_file(&self, output: &Path) -> Result<Exported> {
        let shown = || format!("{}: cannot write it", output.display());
        let name = output.file_name().unwrap_or_default();
        let name = temporary_name(name, &format!(".pext4-{}", std::process::id()));
        let temporary = output.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // The new file has the owner and the permissions of the one that it replaces.
        let replaced = fs::metadata(output).ok();
        if replaced.is_some() {
            options.mode(0o600);
        }
        let file = options.open(&temporary).with_context(shown)?;
        let write = || {
            let mut file = BufWriter::with_capacity(BUFFER, file);
            let exported = self.write(output, &mut file)?;
            let file = file.into_inner().map_err(IntoInnerError::into_error);
            let file = file.with_context(shown)?;
            if replaced.is_some() {
                copy_owner_and_permissions(output, &file).with_context(shown)?;
            }
            // The content must be durable before the name is.
            file.sync_all().with_context(shown)?;
            fs::rename(&temporary, output).with_context(shown)?;
            Ok(exported)
        };
        let written = write();
        if written.is_err() {
            // If this fails, the file stays under its temporary name.
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// Refuses to overwrite the image with its own archive.
fn check_apart(image: &Path, output: &Path) -> Result<()> {
    if !loops::are_same(image, output) {
        return Ok(());
    }
    bail!(
        "{}: it is the image itself, which the archive would destroy; give another file",
        output.display()
    )
}
