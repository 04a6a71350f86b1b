//! Trees of the host as a source.
//!
//! Nothing is followed: a symbolic link is a link. A file that changes while it is read is an error
//! that names it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pext4_fs::{DeviceNumber, FileType, Time};
use pext4_ondisk::acl;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::{EditError, On, Result};
use crate::source::{Facts, Sink, Source};

/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Names and values of extended attributes are no longer than this in Linux.
const MOST_ATTRIBUTE_BYTES: usize = 1 << 16;
/// Namespaces of attributes that ext4 has.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The host's files.
pub(crate) struct Host {
    /// Whether extended attributes are wanted.
    pub(crate) xattrs: bool,
}

impl Source for Host {
    type Node = PathBuf;

    fn facts(&self, path: &PathBuf) -> Result<Facts> {
        let stat = fs::symlink_metadata(path).on(path, "look at it")?;
        let kind = kind_of(&stat).ok_or_else(|| EditError::Host {
            path: path.clone(),
            action: "take it",
            source: io::Error::other("it is of no kind that ext4 knows"),
        })?;
        let target = match kind {
            FileType::Symlink => fs::read_link(path)
                .on(path, "read the link")?
                .into_os_string()
                .into_vec(),
            _ => Vec::new(),
        };
        let xattrs = if self.xattrs {
            xattrs(path)?
        } else {
            Vec::new()
        };
        let many = stat.nlink() > 1 && kind != FileType::Directory;
        Ok(Facts {
            kind,
            permissions: u16::try_from(stat.mode() & 0o7777).expect("twelve bits"),
            uid: stat.uid(),
            gid: stat.gid(),
            accessed: time(stat.atime(), stat.atime_nsec()),
            modified: time(stat.mtime(), stat.mtime_nsec()),
            size: stat.len(),
            device: device_of(kind, stat.rdev()),
            target,
            xattrs,
            identity: many.then(|| (stat.dev(), stat.ino())),
        })
    }

    fn children(&self, path: &PathBuf) -> Result<Vec<(Vec<u8>, PathBuf)>> {
        let mut children = Vec::new();
        for entry in fs::read_dir(path).on(path, "list it")? {
            let entry = entry.on(path, "list it")?;
            children.push((entry.file_name().into_vec(), entry.path()));
        }
        children.sort_unstable();
        Ok(children)
    }

    fn content(&self, path: &PathBuf, facts: &Facts, sink: Sink<'_>) -> Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .on(path, "open it")?;
        let before = file.metadata().on(path, "look at it")?;
        let modified = time(before.mtime(), before.mtime_nsec());
        let is_same = before.len() == facts.size && modified == facts.modified;
        if !before.is_file() || !is_same {
            return Err(changed(path));
        }
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some((start, end)) = next_data(&file, at, before.len()).on(path, "read it")? {
            at = start;
            while at < end {
                let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = file.read_at(&mut piece[..length], at).on(path, "read it")?;
                if read == 0 {
                    return Err(changed(path));
                }
                sink(at, &piece[..read])?;
                at += read as u64;
            }
        }
        let after = file.metadata().on(path, "look at it")?;
        let stamp = |stat: &Metadata| (stat.len(), stat.mtime(), stat.mtime_nsec());
        if stamp(&before) == stamp(&after) {
            Ok(())
        } else {
            Err(changed(path))
        }
    }
}

fn changed(path: &Path) -> EditError {
    EditError::Host {
        path: path.to_owned(),
        action: "copy it",
        source: io::Error::other("it changed while it was read"),
    }
}

/// The next run of data at or after `at`.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A host that knows no holes has data everywhere.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    Ok((start < size).then_some((start, end.min(size))))
}

fn kind_of(stat: &Metadata) -> Option<FileType> {
    let kind = stat.file_type();
    Some(match () {
        () if kind.is_file() => FileType::Regular,
        () if kind.is_dir() => FileType::Directory,
        () if kind.is_symlink() => FileType::Symlink,
        () if kind.is_char_device() => FileType::CharacterDevice,
        () if kind.is_block_device() => FileType::BlockDevice,
        () if kind.is_fifo() => FileType::Fifo,
        () if kind.is_socket() => FileType::Socket,
        () => return None,
    })
}

fn device_of(kind: FileType, number: u64) -> DeviceNumber {
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => DeviceNumber {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        },
        _ => DeviceNumber::default(),
    }
}

fn time(seconds: i64, nanoseconds: i64) -> Time {
    Time {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}

/// The attributes of a file that ext4 can hold, sorted by name.
fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0; MOST_ATTRIBUTE_BYTES];
    let length = match rustix::fs::llistxattr(path, list.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno).on(path, "list its extended attributes"),
    };
    let names = list[..length].split(|&byte| byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| is_ours(name)) {
        let mut value = vec![0; MOST_ATTRIBUTE_BYTES];
        let key = OsStr::from_bytes(name);
        let length = rustix::fs::lgetxattr(path, key, value.as_mut_slice())
            .on(path, "read its extended attributes")?;
        value.truncate(length);
        if acl::is_list(name) {
            value = acl::call_to_stored(&value).map_err(|_| EditError::Host {
                path: path.to_owned(),
                action: "understand its access control list",
                source: io::ErrorKind::InvalidData.into(),
            })?;
        }
        found.push((name.to_vec(), value));
    }
    found.sort_unstable();
    Ok(found)
}

fn is_ours(name: &[u8]) -> bool {
    acl::is_list(name) || NAMESPACES.iter().any(|space| name.starts_with(space))
}

/// The last name of a host's path, also of `.` and `..`.
pub(crate) fn name_of(path: &Path) -> Result<Vec<u8>> {
    if let Some(name) = path.file_name() {
        return Ok(name.as_bytes().to_vec());
    }
    let whole = fs::canonicalize(path).on(path, "find it")?;
    let name = whole.file_name().map(OsString::from).unwrap_or_default();
    Ok(name.into_vec())
}

#[cfg(test)]
mod tests {
    use super::{Host, Source};

    #[test]
    fn a_file_that_grows_or_shrinks_before_it_is_opened_is_told() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        let host = Host { xattrs: false };
        for later in [&b"longer than before"[..], b"less"] {
            std::fs::write(&path, b"as it was").expect("it is ours");
            let facts = host.facts(&path).expect("it is there");
            let read = || host.content(&path, &facts, &mut |_, _| Ok(()));
            read().expect("it is as it was");
            std::fs::write(&path, later).expect("it is ours");
            let told = read().expect_err("it is another one").to_string();
            assert!(told.contains("it changed while it was read"), "{told}");
        }
    }
}
