//! `pext4 cat`: the content of files of an image.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use pext4_fs::{Attributes, FileType};

use crate::mode;
use crate::reader::Reader;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Write the content of files of an image to standard output
#[derive(Args)]
pub struct Arguments {
    /// The image or block device
    image: PathBuf,
    /// The files in it
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The image cannot be read; a path leads to no regular file.
pub fn run(arguments: &Arguments) -> Result<()> {
    let reader = Reader::open(&arguments.image)?;
    let mut output = io::stdout().lock();
    for path in &arguments.paths {
        reader.with(path, true, |attributes| {
            copy(&reader, attributes, &mut output)
        })?;
    }
    Ok(output.flush()?)
}

fn copy(reader: &Reader, attributes: &Attributes, to: &mut dyn Write) -> Result<()> {
    if attributes.file_type != FileType::Regular {
        bail!("it is a {}, not a file", mode::word(attributes.file_type));
    }
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let length = reader.volume.read(attributes.inode, offset, &mut piece)?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&piece[..length])?;
        offset += length as u64;
    }
}
