//! `pext4 cat`: writes the content of files of an image.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_fs::{Attributes, FileType};

use crate::device::ImageArgument;
use crate::failure::{self, ReadErrors};
use crate::viewer::Viewer;
use crate::{mode, names, output};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Write the content of files of an image to standard output
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The files in it
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
///
/// The image cannot be read; a path leads to no regular file, or to one that cannot be read: then
/// the others are written all the same.
pub fn run(arguments: &Arguments) -> Result<()> {
    let viewer = Viewer::open(&arguments.image)?;
    let mut output = output::standard();
    let mut read_errors = ReadErrors::default();
    let mut write = || {
        for path in &arguments.paths {
            let copied = viewer.with(path, |attributes| {
                copy(&viewer, path, attributes, &mut output)
            });
            read_errors.skip(copied).transpose()?;
        }
        Ok(output.flush()?)
    };
    let written = write();
    read_errors.end(written).map_err(failure::of_data)
}

/// Copies a file. The error is one of reading; the value, what became of the output.
fn copy(
    viewer: &Viewer,
    path: &OsStr,
    attributes: &Attributes,
    to: &mut dyn Write,
) -> Result<io::Result<()>> {
    let shown = || names::show(path.as_bytes());
    if attributes.file_type != FileType::Regular {
        let word = mode::word(attributes.file_type);
        bail!("{}: it is a {word}, not a file", shown());
    }
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let read = viewer.volume().read(attributes.inode, offset, &mut piece);
        let length = read.with_context(shown)?;
        if length == 0 {
            return Ok(Ok(()));
        }
        if let Err(error) = to.write_all(&piece[..length]) {
            return Ok(Err(error));
        }
        offset += length as u64;
    }
}
