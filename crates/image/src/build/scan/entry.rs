//! The metadata and attributes of one name of the host.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pext4_block::next_data;
use pext4_ondisk::directory::FileType;
use rustix::fs::{Stat, major, minor};
use rustix::io::Errno;

use super::super::attributes::RawAttribute;
use super::super::error::{Error, Result};
use super::super::rules::Rules;
use super::super::tree::Metadata;

/// Initial buffer size for attribute names and values; few files need more.
const FIRST_LIST_BYTES: usize = 256;
/// Maximum size that Linux returns.
const MAX_LIST_BYTES: usize = 64 << 10;
/// Maximum length of a path that Linux accepts, in bytes.
const MAX_PATH_BYTES: usize = 4095;

/// Identifies a file of the host: device and inode number.
pub(in crate::build) type LinkKey = (u64, u64);

/// The scan result for a name. Millions of them can wait in memory, so they are small.
#[derive(Default)]
pub(in crate::build) struct ScannedEntry {
    /// The range of the name in `Batch::names`.
    pub name: Range<u32>,
    pub metadata: Metadata,
    /// For a directory, the number that the scan gave it.
    pub directory: Option<u32>,
    pub extras: Option<Box<Extras>>,
}

/// What few entries have.
#[derive(Default)]
pub(in crate::build) struct Extras {
    /// For a file with several names.
    pub link: Option<LinkKey>,
    /// For a symbolic link, its target.
    pub target: Option<Box<[u8]>>,
    /// For a file with holes, the ranges that contain data.
    pub segments: Option<Box<[Range<u64>]>>,
    pub attributes: Vec<RawAttribute>,
}

/// The file to which a result of stat(2) belongs.
pub(super) fn key(stat: &Stat) -> LinkKey {
    (stat.st_dev, stat.st_ino)
}

/// The size that stat(2) tells, which is never negative.
pub(super) fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

impl ScannedEntry {
    /// The entry with the results of stat(2); the rest is empty.
    pub fn from_stat(stat: &Stat) -> Self {
        let mode = u16::try_from(stat.st_mode).expect("kind and permissions have 16 bits");
        let kind = FileType::from_mode(mode);
        let size = match kind {
            Some(FileType::Regular) => size_of(stat),
            Some(FileType::CharacterDevice | FileType::BlockDevice) => {
                let number = stat.st_rdev;
                u64::from(major(number)) << 32 | u64::from(minor(number))
            }
            _ => 0,
        };
        let has_more_names = kind != Some(FileType::Directory) && stat.st_nlink > 1;
        let mut entry = Self {
            metadata: Metadata {
                mode,
                uid: stat.st_uid,
                gid: stat.st_gid,
                size,
                seconds: stat.st_mtime,
                nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
                ..Metadata::default()
            },
            ..Self::default()
        };
        if has_more_names {
            entry.extras().link = Some(key(stat));
        }
        entry
    }

    /// What only some entries have, to set it.
    pub fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Moves out what only some entries have.
    pub fn take_extras(&mut self) -> Extras {
        self.extras
            .take()
            .map_or_else(Extras::default, |extras| *extras)
    }

    /// Sets the extended attributes.
    pub fn set_attributes(&mut self, attributes: Vec<RawAttribute>) {
        if !attributes.is_empty() {
            self.extras().attributes = attributes;
        }
    }
}

/// The entry of a source's root.
pub(super) fn from_root(path: &Path, stat: &Stat, rules: &Rules) -> Result<ScannedEntry> {
    let mut found = ScannedEntry::from_stat(stat);
    // If the path is a symbolic link, the source is its target.
    let own = CString::new(path.join(".").as_os_str().as_bytes())
        .map_err(|_| Error::unsound(path, "its name holds a NUL byte"))?;
    let attributes = Buffers::new()
        .read(&own, rules)
        .map_err(|errno| Error::source(path, "read its extended attributes", errno))?;
    found.set_attributes(attributes);
    Ok(found)
}

/// Joins the path of a directory and a name.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        (b"", name) => name.to_vec(),
        (directory, b"") => directory.to_vec(),
        (directory, name) => [directory, b"/", name].concat(),
    }
}

/// How system calls that accept only a path reach a file.
pub(super) enum AttributePath<'a> {
    /// Relative to the thread's working directory: no symbolic link on the way can redirect it.
    Relative(&'a CStr),
    /// By its full path.
    Full(Context<'a>),
}

/// A file by its path and by its open directory.
pub(super) struct Context<'a> {
    pub source: &'a Path,
    pub folder: &'a [u8],
    pub fd: &'a OwnedFd,
    pub name: &'a CStr,
}

impl Context<'_> {
    /// Writes the path, or one through the open directory if it is too long.
    fn write_path(&self, path: &mut Vec<u8>) {
        path.clear();
        path.extend_from_slice(self.source.as_os_str().as_bytes());
        for part in [self.folder, self.name.to_bytes()] {
            if !part.is_empty() {
                path.push(b'/');
                path.extend_from_slice(part);
            }
        }
        if path.len() > MAX_PATH_BYTES {
            path.clear();
            path.extend(format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).into_bytes());
            path.extend_from_slice(self.name.to_bytes());
        }
        path.push(0);
    }
}

/// The buffers of one thread, reused for every name.
pub(super) struct Buffers {
    path: Vec<u8>,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    pub fn new() -> Self {
        Self {
            path: Vec::new(),
            list: vec![0; FIRST_LIST_BYTES],
            value: vec![0; FIRST_LIST_BYTES],
        }
    }

    /// All extended attributes of a file, except those that the rules exclude.
    pub fn attributes(
        &mut self,
        attribute_path: &AttributePath<'_>,
        rules: &Rules,
    ) -> rustix::io::Result<Vec<RawAttribute>> {
        let context = match attribute_path {
            AttributePath::Relative(name) => return self.read(name, rules),
            AttributePath::Full(context) => context,
        };
        let mut path = std::mem::take(&mut self.path);
        context.write_path(&mut path);
        let own = CStr::from_bytes_with_nul(&path).expect("paths of the system hold no NUL byte");
        let answer = self.read(own, rules);
        self.path = path;
        answer
    }

    fn read(&mut self, path: &CStr, rules: &Rules) -> rustix::io::Result<Vec<RawAttribute>> {
        // Most files have none, and the length alone costs the system no memory for a list.
        let probed = rustix::fs::llistxattr_query(path);
        let listed = match probed {
            Ok(1..) => with_room(&mut self.list, |list| rustix::fs::llistxattr(path, list)),
            probed => probed,
        };
        let length = match listed {
            // Other files of the same device may have some: in a stacked file system, each file may
            // come from another one.
            Err(Errno::OPNOTSUPP) => 0,
            listed => listed?,
        };
        let mut attributes = Vec::new();
        for name in self.list[..length].split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            if rules.excludes_attribute(name.to_bytes()) {
                continue;
            }
            let value = with_room(&mut self.value, |value| {
                rustix::fs::lgetxattr(path, name, value)
            });
            if let Some(length) = if_there(value)? {
                attributes.push((name.to_bytes().to_vec(), self.value[..length].to_vec()));
            }
        }
        Ok(attributes)
    }
}

/// The length of a value; `None` if the attribute is listed but does not exist (any more) for this
/// process. The other attributes are still readable.
fn if_there(value: rustix::io::Result<usize>) -> rustix::io::Result<Option<usize>> {
    match value {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        value => value.map(Some),
    }
}

/// Calls with a small buffer, which is fastest, and again with the maximum if that was too small.
fn with_room(
    buffer: &mut Vec<u8>,
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    match call(&mut buffer[..FIRST_LIST_BYTES]) {
        Err(Errno::RANGE) => {
            buffer.resize(MAX_LIST_BYTES, 0);
            call(buffer)
        }
        answer => answer,
    }
}

/// The ranges of a file that contain data; `None` if it has no holes.
pub(super) fn segments(file: &File, size: u64) -> io::Result<Option<Box<[Range<u64>]>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(data) = next_data(file, at, size)? {
        at = data.end;
        ranges.push(data);
    }
    let is_whole = matches!(ranges.as_slice(), [range] if *range == (0..size));
    Ok((!is_whole).then(|| ranges.into_boxed_slice()))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::if_there;

    #[test]
    fn unreadable_attributes_do_not_hide_others() {
        assert_eq!(if_there(Ok(7)), Ok(Some(7)));
        assert_eq!(if_there(Err(Errno::NODATA)), Ok(None));
        assert_eq!(if_there(Err(Errno::OPNOTSUPP)), Ok(None));
        assert_eq!(if_there(Err(Errno::IO)), Err(Errno::IO));
    }
}
