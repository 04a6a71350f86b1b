//! A file as an object of JSON.

use std::io::{self, Write};

use pext4_fs::Attributes;
use serde::Serialize;

use crate::{mode, moment, names};

/// The attributes of a file.
#[derive(Serialize)]
pub struct Record {
    /// Its name or path, as text.
    pub name: String,
    /// The name's bytes in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    #[serde(rename = "type")]
    file_type: &'static str,
    inode: u32,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    accessed: String,
    modified: String,
    changed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

impl Record {
    /// The record of a file, from its name, attributes and, for a link, target.
    pub fn new(name: &[u8], attributes: &Attributes, target: Option<&[u8]>) -> Self {
        let device = attributes.device;
        Self {
            name: names::text(name),
            name_hex: names::hexadecimal_unless_text(name),
            file_type: mode::word(attributes.file_type),
            inode: attributes.inode.get(),
            mode: format!("{:04o}", attributes.permissions()),
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            allocated: attributes.sectors.saturating_mul(512),
            accessed: moment::show_rfc3339(attributes.accessed),
            modified: moment::show_rfc3339(attributes.modified),
            changed: moment::show_rfc3339(attributes.changed),
            created: attributes.created.map(moment::show_rfc3339),
            device: is_device(attributes).then(|| format!("{}:{}", device.major, device.minor)),
            target: target.map(names::text),
            target_hex: target.and_then(names::hexadecimal_unless_text),
        }
    }
}

/// Whether the file has a device number.
pub fn is_device(attributes: &Attributes) -> bool {
    use pext4_fs::FileType::{BlockDevice, CharacterDevice};
    matches!(attributes.file_type, BlockDevice | CharacterDevice)
}

/// Writes JSON and a line end.
///
/// # Errors
///
/// Errors of the writer.
pub fn write(to: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, value)?;
    writeln!(to)
}
