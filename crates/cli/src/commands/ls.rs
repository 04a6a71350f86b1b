//! `pext4 ls`: lists a directory of an image. After a file that cannot be read it continues.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};
use clap::Args;
use pext4_fs::{Attributes, FileType};

use super::record::{self, Record};
use crate::columns::{self, Align};
use crate::device::ImageArgument;
use crate::failure::ReadErrors;
use crate::viewer::{ListedName, Viewer};
use crate::{mode, moment, names, output};

/// List a directory of an image, without mounting it
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The directory or file in it
    #[arg(default_value = "/")]
    path: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the listing.
struct File {
    name: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

/// Runs the command.
///
/// # Errors
///
/// The image, or a file in the directory, cannot be read; the path does not exist.
pub fn run(arguments: &Arguments) -> Result<()> {
    let viewer = Viewer::open(&arguments.image)?;
    let mut read_errors = ReadErrors::default();
    let files = viewer.with(&arguments.path, |attributes| {
        if attributes.file_type == FileType::Directory {
            return Ok(children(&viewer, attributes, &mut read_errors));
        }
        let name = arguments.path.as_bytes().to_vec();
        Ok(vec![File {
            name,
            attributes: *attributes,
            target: None,
        }])
    })?;
    read_errors.end(write(&files, arguments.json))
}

fn write(files: &[File], as_json: bool) -> Result<()> {
    let mut output = output::buffered();
    if as_json {
        let records: Vec<_> = files
            .iter()
            .map(|file| Record::new(&file.name, &file.attributes, file.target.as_deref()))
            .collect();
        record::write(&mut output, &records)?;
    } else {
        let aligns = [
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
        ];
        let rows: Vec<_> = files.iter().map(row).collect();
        columns::write(&mut output, &aligns, &rows)?;
    }
    Ok(output.flush()?)
}

fn children(viewer: &Viewer, directory: &Attributes, read_errors: &mut ReadErrors) -> Vec<File> {
    let (names, read) = viewer.names(directory.inode);
    read_errors.skip(read);
    let state = |name: ListedName| {
        let found = viewer
            .child(directory.inode, &name)
            .and_then(|attributes| Ok((attributes, viewer.target(&attributes)?)));
        let found = found.with_context(|| names::show(&name.bytes));
        let (attributes, target) = read_errors.skip(found)?;
        Some(File {
            name: name.bytes,
            attributes,
            target,
        })
    };
    names.into_iter().filter_map(state).collect()
}

fn row(file: &File) -> Vec<String> {
    let attributes = &file.attributes;
    let size = if record::is_device(attributes) {
        format!("{},{}", attributes.device.major, attributes.device.minor)
    } else {
        attributes.size.to_string()
    };
    let name = match &file.target {
        Some(target) => format!("{} -> {}", names::show(&file.name), names::show(target)),
        None => names::show(&file.name),
    };
    vec![
        mode::show(attributes.file_type, attributes.mode),
        attributes.links.to_string(),
        attributes.uid.to_string(),
        attributes.gid.to_string(),
        size,
        format!("{}  {name}", moment::show(attributes.modified.seconds)),
    ]
}
