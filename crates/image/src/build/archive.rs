//! Archives as sources: converts their entries to records for the tree.
//!
//! An archive is read once, from its start to its end (`pext4_tar`). Each entry becomes a
//! *record*. The content of a file stays in a plain archive, or is copied from a stream to the
//! spool; the record contains its offset. A content that is shorter than announced is an error.
//!
//! A record's path is relative to the root of the image and consists of valid names.

pub(super) mod apply;
pub(super) mod input;
pub(super) mod spool;
mod xattrs;

use std::ops::Range;
use std::path::Path;

use pext4_ondisk::inode::{MAX_MAJOR, MAX_MINOR};
use pext4_ondisk::shown::Shown;
use pext4_ondisk::xattr::Attribute;
use pext4_tar::{Entry, Kind, ReadError, checked};

use super::error::{Error, Result};
use super::rules::Rules;
use super::tree::Metadata;
use input::Input;

/// Limits of an archive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Maximum number of bytes of contents, without holes.
    pub bytes: Option<u64>,
    /// Maximum number of names.
    pub files: Option<u64>,
}

/// One entry of an archive.
pub(super) struct Record {
    /// Names from the root, joined by slashes; empty for the root itself.
    pub path: Vec<u8>,
    /// `content` is the offset of the content.
    pub metadata: Metadata,
    /// For a hard link, the path of the target.
    pub link: Option<Vec<u8>>,
    /// For a symbolic link, its target.
    pub target: Option<Vec<u8>>,
    pub segments: Option<Box<[Range<u64>]>>,
    pub attributes: Vec<Attribute>,
}

/// How an archive ended.
pub(super) struct ArchiveEnd<I> {
    pub input: I,
    /// It has an end mark.
    pub has_mark: bool,
}

/// Reads an archive.
pub(super) struct Reader<'a, I> {
    /// Its name for messages.
    path: &'a Path,
    entries: pext4_tar::Reader<I>,
    rules: &'a Rules,
    limits: Limits,
    /// Whether the archive is a container's layer, in which some names are marks.
    is_layer: bool,
    bytes: u64,
    files: u64,
}

impl<'a, I: Input> Reader<'a, I> {
    pub fn new(path: &'a Path, input: I, rules: &'a Rules, limits: Limits) -> Self {
        Self {
            path,
            entries: pext4_tar::Reader::new(input),
            rules,
            limits,
            is_layer: false,
            bytes: 0,
            files: 0,
        }
    }

    /// Marks the archive as a layer of a container image, whose size and digest are verified: it
    /// is complete, with or without an end mark.
    pub fn container_layer(mut self) -> Self {
        self.is_layer = true;
        self.entries = self.entries.complete();
        self
    }

    /// Reads all entries and passes their records to `take`.
    pub fn read(mut self, mut take: impl FnMut(Record) -> Result<()>) -> Result<ArchiveEnd<I>> {
        loop {
            match self.entries.next_entry() {
                Ok(None) => {
                    return Ok(ArchiveEnd {
                        has_mark: !self.entries.lacks_end_mark(),
                        input: self.entries.into_input(),
                    });
                }
                Ok(Some(entry)) => {
                    if let Some(record) = self.record(entry)? {
                        take(record)?;
                    }
                }
                Err(ReadError::Input(error)) => return Err(error),
                Err(ReadError::Malformed(malformed)) => {
                    return Err(Error::unsound(self.path, malformed.to_string()));
                }
            }
        }
    }

    /// An error that names archive and entry.
    fn unsound_entry(&self, name: &[u8], problem: impl AsRef<str>) -> Error {
        let problem = format!("{}: {}", Shown(name), problem.as_ref());
        Error::unsound(self.path, problem)
    }

    /// Converts an entry to a record and skips its content. `None` if the rules exclude it.
    fn record(&mut self, entry: Entry) -> Result<Option<Record>> {
        let failed = |problem: String| self.unsound_entry(&entry.name, problem);
        let path = checked::path(&entry, self.is_layer).map_err(failed)?;
        if self.is_left_out(&path, entry.kind) {
            // The other fields of an excluded entry may be invalid.
            if entry.kind == Kind::File && !self.entries.input().skip(entry.stored)? {
                return Err(self.ends_inside(&entry.name));
            }
            return Ok(None);
        }
        let mut record = Record {
            path,
            metadata: metadata(&entry).map_err(failed)?,
            link: None,
            target: None,
            segments: None,
            attributes: Vec::new(),
        };
        if entry.kind != Kind::HardLink {
            set_attributes(&entry, self.rules, &mut record).map_err(failed)?;
        }
        match entry.kind {
            Kind::Symlink => {
                let target = checked::symlink_target(&entry).map_err(failed)?;
                record.target = Some(target.to_vec());
            }
            Kind::HardLink => {
                record.link = Some(checked::hard_link(&entry, self.is_layer).map_err(failed)?);
            }
            _ => {}
        }
        self.count(&entry)?;
        if entry.kind == Kind::File {
            let Some(place) = self.entries.input().take_content(entry.stored)? else {
                return Err(self.ends_inside(&entry.name));
            };
            record.metadata.content = place;
            record.segments = entry.segments;
        }
        Ok(Some(record))
    }

    fn ends_inside(&self, name: &[u8]) -> Error {
        self.unsound_entry(name, "the archive ends inside it: it was cut short")
    }

    /// Whether the rules exclude an entry by its path in the archive; that at which it lands is
    /// known only when it is applied. For a whiteout the name of the hidden file counts, since the
    /// whiteout's own name is never in the image.
    fn is_left_out(&self, path: &[u8], kind: Kind) -> bool {
        let is_directory = kind == Kind::Directory;
        self.rules.needs_paths()
            && match self.is_layer {
                true => is_hidden_left_out(self.rules, path, is_directory),
                false => is_left_out(self.rules, path, is_directory),
            }
    }

    /// Counts an entry against the limits, before its content is read. The map of a sparse file
    /// counts too: it is kept in memory, and can be many times as large as what it maps.
    fn count(&mut self, entry: &Entry) -> Result<()> {
        let (name, bytes) = (&entry.name, entry.stored);
        let pieces = entry.segments.as_ref().map_or(0, |segments| segments.len());
        let map = pieces as u64 * size_of::<Range<u64>>() as u64;
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(map);
        if self
            .limits
            .files
            .is_some_and(|max_files| self.files > max_files)
        {
            return Err(self.unsound_entry(name, "more entries than the image may have inodes"));
        }
        if let Some(max_bytes) = self
            .limits
            .bytes
            .filter(|&max_bytes| self.bytes > max_bytes)
        {
            let map = match pieces {
                0 => String::new(),
                _ => format!(" and the {map} bytes of its map of holes"),
            };
            let problem =
                format!("with its {bytes} bytes{map} the contents exceed the limit of {max_bytes}");
            return Err(self.unsound_entry(name, problem));
        }
        Ok(())
    }
}

/// The metadata of an entry.
fn metadata(entry: &Entry) -> std::result::Result<Metadata, String> {
    let (type_bits, size) = match entry.kind {
        Kind::File | Kind::HardLink => (0o100_000, entry.size),
        Kind::Symlink => (0o120_000, 0),
        Kind::CharacterDevice => (0o020_000, device(entry.device)?),
        Kind::BlockDevice => (0o060_000, device(entry.device)?),
        Kind::Directory => (0o040_000, 0),
        Kind::Fifo => (0o010_000, 0),
    };
    let permissions = match entry.kind {
        Kind::Symlink => 0o777,
        _ => entry.permissions,
    };
    Ok(Metadata {
        mode: type_bits | permissions,
        uid: entry.uid,
        gid: entry.gid,
        size,
        seconds: entry.modified.seconds,
        nanoseconds: entry.modified.nanoseconds,
        ..Metadata::default()
    })
}

/// A device number in the form of `Metadata::size`.
fn device((major, minor): (u32, u32)) -> std::result::Result<u64, String> {
    if major > MAX_MAJOR || minor > MAX_MINOR {
        return Err(format!("ext4 holds no device {major}:{minor}"));
    }
    Ok(u64::from(major) << 32 | u64::from(minor))
}

/// Sets the extended attributes of a record, and the mode that follows from its access control
/// list.
fn set_attributes(
    entry: &Entry,
    rules: &Rules,
    record: &mut Record,
) -> std::result::Result<(), String> {
    let found = xattrs::attributes(entry, rules)?;
    if let Some(permissions) = found.permissions {
        record.metadata.mode = record.metadata.mode & !0o777 | permissions;
    }
    record.attributes = found.all;
    Ok(())
}

/// Whether the rules exclude a path or a directory above it.
pub(super) fn is_left_out(rules: &Rules, path: &[u8], is_directory: bool) -> bool {
    let ends = (0..path.len()).filter(|&end| path[end] == b'/');
    ends.chain([path.len()])
        .any(|end| end > 0 && rules.excludes(&path[..end], || is_directory || end < path.len()))
}

/// As [`is_left_out`], for an entry of a layer, of which that counts which it hides. A whiteout is
/// that of a file: if it hides a directory, the rules have left that out of the layers below.
fn is_hidden_left_out(rules: &Rules, path: &[u8], is_directory: bool) -> bool {
    let is_directory = is_directory || apply::hides_directory(path);
    is_left_out(rules, &apply::hidden_path(path), is_directory)
}
