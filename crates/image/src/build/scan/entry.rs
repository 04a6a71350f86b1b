//! What is found out about one name of the host.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{SeekFrom, Statx};
use rustix::io::Errno;

use super::super::attributes::Named;
use super::super::error::{Error, Result};
use super::super::rules::Rules;
use super::super::tree::Facts;

/// Bytes of attribute names that are asked for first; few files have more.
const FIRST_LIST: usize = 256;
/// The most that the system gives.
const LONGEST_LIST: usize = 64 << 10;
/// Longest path that the system takes.
const LONGEST_PATH: usize = 4095;

/// Which file of the host a name leads to: device and inode.
pub(in crate::build) type LinkKey = (u64, u64);

/// What is known about a name.
pub(in crate::build) struct Found {
    /// Where the name lies in its batch.
    pub name: Range<usize>,
    pub facts: Facts,
    pub device: u64,
    /// Of a file with several names.
    pub link: Option<LinkKey>,
    /// Of a directory: the number it goes by.
    pub directory: Option<u32>,
    /// Of a symbolic link.
    pub target: Option<Box<[u8]>>,
    /// Of a file with holes: what holds data.
    pub segments: Option<Box<[Range<u64>]>>,
    pub attributes: Vec<Named>,
}

impl Found {
    /// What one call tells.
    pub fn of(stat: &Statx) -> Self {
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let kind = stat.stx_mode & 0o170_000;
        let size = match kind {
            0o100_000 => stat.stx_size,
            0o020_000 | 0o060_000 => {
                u64::from(stat.stx_rdev_major) << 32 | u64::from(stat.stx_rdev_minor)
            }
            _ => 0,
        };
        let has_more_names = kind != 0o040_000 && stat.stx_nlink > 1;
        Self {
            name: 0..0,
            facts: Facts {
                mode: stat.stx_mode,
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                size,
                seconds: stat.stx_mtime.tv_sec,
                nanoseconds: stat.stx_mtime.tv_nsec,
                ..Facts::default()
            },
            device,
            link: has_more_names.then_some((device, stat.stx_ino)),
            directory: None,
            target: None,
            segments: None,
            attributes: Vec::new(),
        }
    }
}

/// What a source's root is.
pub(super) fn of_root(path: &Path, stat: &Statx, rules: &Rules) -> Result<Found> {
    let mut found = Found::of(stat);
    // Behind a symbolic link it is what that leads to.
    let own = CString::new(path.join(".").as_os_str().as_bytes())
        .map_err(|_| Error::unsound(path, "its name holds a NUL byte"))?;
    found.attributes = Buffers::new()
        .read(&own, rules)
        .map_err(|errno| Error::source(path, "read its extended attributes", errno))?;
    Ok(found)
}

/// A directory's path and a name in it as one path.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        (b"", name) => name.to_vec(),
        (directory, b"") => directory.to_vec(),
        (directory, name) => [directory, b"/", name].concat(),
    }
}

/// How a name is reached by calls that take a path and nothing else.
pub(super) enum Reach<'a> {
    /// The thread stands in the directory: the name alone leads to it, and no link on the way can lead elsewhere.
    Standing(&'a CStr),
    /// By its path.
    Path(Context<'a>),
}

/// The name whose attributes are asked for, in both ways to say it.
pub(super) struct Context<'a> {
    pub source: &'a Path,
    pub folder: &'a [u8],
    pub fd: &'a OwnedFd,
    pub name: &'a CStr,
}

impl Context<'_> {
    /// The path; through the open directory where it is too long.
    fn write_path(&self, path: &mut Vec<u8>) {
        path.clear();
        path.extend_from_slice(self.source.as_os_str().as_bytes());
        for part in [self.folder, self.name.to_bytes()] {
            if !part.is_empty() {
                path.push(b'/');
                path.extend_from_slice(part);
            }
        }
        if path.len() > LONGEST_PATH {
            path.clear();
            path.extend(format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).into_bytes());
            path.extend_from_slice(self.name.to_bytes());
        }
        path.push(0);
    }
}

/// Memory of one thread for asking, kept from one name to the next.
pub(super) struct Buffers {
    path: Vec<u8>,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    pub fn new() -> Self {
        Self {
            path: Vec::new(),
            list: vec![0; FIRST_LIST],
            value: vec![0; FIRST_LIST],
        }
    }

    /// All extended attributes of a name but those that the rules leave out.
    pub fn attributes(
        &mut self,
        reach: &Reach<'_>,
        rules: &Rules,
    ) -> rustix::io::Result<Vec<Named>> {
        let context = match reach {
            Reach::Standing(name) => return self.read(name, rules),
            Reach::Path(context) => context,
        };
        let mut path = std::mem::take(&mut self.path);
        context.write_path(&mut path);
        let own = CStr::from_bytes_with_nul(&path).expect("paths of the system hold no NUL byte");
        let answer = self.read(own, rules);
        self.path = path;
        answer
    }

    fn read(&mut self, path: &CStr, rules: &Rules) -> rustix::io::Result<Vec<Named>> {
        let listed = with_room(&mut self.list, |list| rustix::fs::llistxattr(path, list));
        let length = match listed {
            // It has none. That says nothing of other files of the device: where file systems lie over one
            // another, each of its files may be another one's.
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

/// The length of a value; `None` where a name was listed that is not there (any more) for us, or that only
/// others can ask for. The other names of the file are there all the same.
fn if_there(value: rustix::io::Result<usize>) -> rustix::io::Result<Option<usize>> {
    match value {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        value => value.map(Some),
    }
}

/// Calls with a little room, which costs the system least, and with all there can be if that was
/// too small.
fn with_room(
    buffer: &mut Vec<u8>,
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    match call(&mut buffer[..FIRST_LIST]) {
        Err(Errno::RANGE) => {
            buffer.resize(LONGEST_LIST, 0);
            call(buffer)
        }
        answer => answer,
    }
}

/// The ranges of a file that hold data; `None` if all of it does.
pub(super) fn segments(file: &File, size: u64) -> io::Result<Option<Box<[Range<u64>]>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // The file system cannot tell.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    let is_whole = matches!(ranges.as_slice(), [range] if *range == (0..size));
    Ok((!is_whole).then(|| ranges.into_boxed_slice()))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::if_there;

    #[test]
    fn a_name_that_cannot_be_asked_for_is_no_matter_of_the_others() {
        assert_eq!(if_there(Ok(7)), Ok(Some(7)));
        assert_eq!(if_there(Err(Errno::NODATA)), Ok(None));
        assert_eq!(if_there(Err(Errno::OPNOTSUPP)), Ok(None));
        assert_eq!(if_there(Err(Errno::IO)), Err(Errno::IO));
    }
}
