//! `pext4 stat`: shows everything that an image stores about a file.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, ensure};
use clap::Args;
use pext4_fs::{Attributes, FileType, MappedRange};
use pext4_ondisk::acl::{self, Acl};
use serde::Serialize;

use super::record::{self, Record};
use crate::columns::{self, Align};
use crate::count::count;
use crate::device::ImageArgument;
use crate::viewer::Viewer;
use crate::{mode, moment, names, output, size};

/// The number of ranges that are requested at a time.
const RANGES: usize = 1024;

/// Show all that an image knows of a file
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The file in it; a symbolic link stands for itself
    path: OsString,
    /// List where the content lies on the device
    #[arg(long)]
    extents: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The file in JSON.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    record: Record,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<u32>,
    flags: Vec<String>,
    xattrs: Vec<Xattr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extents: Option<Vec<Extent>>,
}

#[derive(Serialize)]
struct Xattr {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    value_hex: String,
}

#[derive(Serialize)]
struct Extent {
    offset: u64,
    device_offset: u64,
    length: u64,
    unwritten: bool,
}

/// The data to show.
struct Found {
    attributes: Attributes,
    target: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ranges: Option<Vec<MappedRange>>,
}

/// Runs the command.
///
/// # Errors
///
/// The image cannot be read; the path does not exist.
pub fn run(arguments: &Arguments) -> Result<()> {
    let viewer = Viewer::open(&arguments.image)?;
    let found = viewer.with_link(&arguments.path, |attributes| {
        state(&viewer, attributes, arguments.extents)
    })?;
    let mut output = output::buffered();
    if arguments.json {
        record::write(&mut output, &whole(arguments.path.as_bytes(), &found))?;
    } else {
        show(&mut output, arguments.path.as_bytes(), &found)?;
    }
    Ok(output.flush()?)
}

fn state(viewer: &Viewer, attributes: &Attributes, extents: bool) -> Result<Found> {
    let inode = attributes.inode;
    let mut xattrs = viewer.volume().xattrs(inode)?;
    for (name, value) in &mut xattrs {
        *value = as_of_calls(name, std::mem::take(value));
    }
    let ranges = extents.then(|| ranges(viewer, attributes)).transpose()?;
    Ok(Found {
        attributes: *attributes,
        target: viewer.target(attributes)?,
        xattrs,
        ranges,
    })
}

/// The project of the file, if it has one.
fn project(attributes: &Attributes) -> Option<u32> {
    (attributes.project != 0).then_some(attributes.project)
}

/// The value of an attribute as getxattr(2) returns it and `setxattr` takes it: ext4 stores access
/// control lists in another form. What is no list stays as it is stored.
fn as_of_calls(name: &[u8], stored: Vec<u8>) -> Vec<u8> {
    let list = acl::is_list(name)
        .then(|| Acl::from_disk(&stored))
        .flatten();
    list.map_or(stored, |list| list.to_call())
}

fn ranges(viewer: &Viewer, attributes: &Attributes) -> Result<Vec<MappedRange>> {
    let mut all: Vec<MappedRange> = Vec::new();
    if !matches!(
        attributes.file_type,
        FileType::Regular | FileType::Directory
    ) {
        return Ok(all);
    }
    // The map of a damaged file may lead to the same blocks again and again.
    let size = viewer.volume().statfs();
    let most = size.blocks.saturating_mul(u64::from(size.block_size));
    let (mut from, mut mapped) = (0, 0u64);
    loop {
        let more = viewer.volume().extents(attributes.inode, from, RANGES)?;
        let Some(last) = more.last() else {
            return Ok(all);
        };
        from = last.logical.saturating_add(last.length);
        let lengths = more.iter().map(|range| range.length);
        mapped = lengths.fold(mapped, u64::saturating_add);
        ensure!(
            mapped <= most,
            "the map of inode {} leads to more blocks than the file system has",
            attributes.inode
        );
        all.extend(more);
    }
}

fn whole(path: &[u8], found: &Found) -> Whole {
    let xattr = |(name, value): &(Vec<u8>, Vec<u8>)| Xattr {
        name: names::text(name),
        name_hex: names::hexadecimal_unless_text(name),
        value: std::str::from_utf8(value).ok().map(str::to_owned),
        value_hex: names::hexadecimal(value),
    };
    let extent = |range: &MappedRange| Extent {
        offset: range.logical,
        device_offset: range.physical,
        length: range.length,
        unwritten: range.unwritten,
    };
    Whole {
        record: Record::new(path, &found.attributes, found.target.as_deref()),
        generation: found.attributes.generation,
        project: project(&found.attributes),
        flags: mode::flags(found.attributes.flags),
        xattrs: found.xattrs.iter().map(xattr).collect(),
        extents: found
            .ranges
            .as_ref()
            .map(|ranges| ranges.iter().map(extent).collect()),
    }
}

fn show(to: &mut dyn Write, path: &[u8], found: &Found) -> io::Result<()> {
    let attributes = &found.attributes;
    let mut rows = Vec::new();
    let mut line = |label: &str, value: String| rows.push(vec![label.to_owned(), value]);
    line("Path", names::show(path));
    let inode = format!(
        "inode {}, generation {}",
        attributes.inode, attributes.generation
    );
    line(
        "Kind",
        format!("{}, {inode}", mode::word(attributes.file_type)),
    );
    if let Some(target) = &found.target {
        line("Target", names::show(target));
    }
    if record::is_device(attributes) {
        line(
            "Device",
            format!("{}:{}", attributes.device.major, attributes.device.minor),
        );
    }
    let allocated = size::show(attributes.sectors.saturating_mul(512));
    line(
        "Size",
        format!(
            "{}, {allocated} allocated",
            count(attributes.size, "byte", "bytes")
        ),
    );
    let mode_text = mode::show(attributes.file_type, attributes.mode);
    line(
        "Mode",
        format!("{:04o} {mode_text}", attributes.permissions()),
    );
    line(
        "Owner",
        format!("user {}, group {}", attributes.uid, attributes.gid),
    );
    if let Some(project) = project(attributes) {
        line("Project", project.to_string());
    }
    line("Links", attributes.links.to_string());
    line(
        "Accessed",
        moment::show_with_nanoseconds(attributes.accessed),
    );
    line(
        "Modified",
        moment::show_with_nanoseconds(attributes.modified),
    );
    line("Changed", moment::show_with_nanoseconds(attributes.changed));
    if let Some(created) = attributes.created {
        line("Created", moment::show_with_nanoseconds(created));
    }
    let flags = mode::flags(attributes.flags);
    if !flags.is_empty() {
        line("Flags", flags.join(" "));
    }
    for (name, value) in &found.xattrs {
        let text = format!("{} = {}", names::show(name), show_value(value));
        line("Attribute", text);
    }
    columns::write(to, &[Align::Left, Align::Left], &rows)?;
    found
        .ranges
        .as_ref()
        .map_or(Ok(()), |ranges| show_ranges(to, ranges))
}

fn show_value(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains('\0') => format!("\"{}\"", names::show(value)),
        _ => format!("0x{}", names::hexadecimal(value)),
    }
}

fn show_ranges(to: &mut dyn Write, ranges: &[MappedRange]) -> io::Result<()> {
    let mut rows = vec![
        ["Offset", "Length", "On the device"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(ranges.iter().map(|range| {
        let numbers = [range.logical, range.length, range.physical];
        let mut row = numbers.map(|number| number.to_string()).to_vec();
        row.extend(range.unwritten.then(|| "unwritten".to_owned()));
        row
    }));
    writeln!(to)?;
    columns::write(
        to,
        &[Align::Right, Align::Right, Align::Right, Align::Left],
        &rows,
    )
}
