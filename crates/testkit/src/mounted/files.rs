//! System calls on files that are reached through an `O_PATH` descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pext4_fs::{FileType, Time};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::Result;
use crate::errno::{EINVAL, EIO, ENOTDIR, Failure};
use crate::op::Name;
use crate::outcome::{Facts, Listed, PERMISSIONS};

/// Longest list of attribute names, and longest value, that Linux returns.
const LONGEST_XATTR: usize = 65_536;

pub(super) fn open_path(at: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        at,
        OsStr::from_bytes(name),
        flags,
        Mode::empty(),
    )?)
}

pub(super) fn open_root(directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

/// A path for opening a descriptor's file again.
pub(super) fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// An ordinary descriptor of a file or directory. Other files are never opened, since they may be
/// devices of this machine.
pub(super) fn reopen(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    match stat(file)?.kind {
        FileType::Regular | FileType::Directory => {}
        _ if flags.contains(OFlags::DIRECTORY) => return Err(Failure::new(ENOTDIR)),
        _ => return Err(Failure::new(EINVAL)),
    }
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOATIME;
    Ok(rustix::fs::open(proc_path(file), flags, Mode::empty())?)
}

/// The result of `stat` for a descriptor's file.
pub(super) fn stat(file: impl AsFd) -> Result<Facts> {
    let stat = rustix::fs::fstat(file)?;
    let kind = match stat.st_mode & 0o170_000 {
        0o010_000 => FileType::Fifo,
        0o020_000 => FileType::CharacterDevice,
        0o040_000 => FileType::Directory,
        0o060_000 => FileType::BlockDevice,
        0o120_000 => FileType::Symlink,
        0o140_000 => FileType::Socket,
        _ => FileType::Regular,
    };
    // The type of the nanoseconds depends on how `rustix` makes its system calls.
    macro_rules! time {
        ($seconds:ident, $nanoseconds:ident) => {
            Time {
                seconds: stat.$seconds,
                nanoseconds: stat.$nanoseconds as u32,
            }
        };
    }
    Ok(Facts {
        inode: stat.st_ino as u32,
        kind,
        permissions: stat.st_mode as u16 & PERMISSIONS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        links: stat.st_nlink as u32,
        device: (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        ),
        sectors: stat.st_blocks as u64,
        accessed: time!(st_atime, st_atime_nsec),
        modified: time!(st_mtime, st_mtime_nsec),
        changed: time!(st_ctime, st_ctime_nsec),
    })
}

/// A descriptor of a regular file in which data can be sought. In a file with a block map Linux
/// finds no data that is only in the page cache without a block: `SEEK_DATA` skips it, though a
/// read returns it. So the file is synced first.
pub(super) fn seekable(file: &OwnedFd) -> Result<OwnedFd> {
    const EXTENTS_OR_INLINE: u32 = 0x1008_0000;
    let file = reopen(file, OFlags::RDONLY)?;
    let flags = rustix::fs::ioctl_getflags(&file);
    let has_block_map = flags.is_ok_and(|flags| flags.bits() & EXTENTS_OR_INLINE == 0);
    if has_block_map {
        rustix::fs::fdatasync(&file)?;
    }
    Ok(file)
}

/// Seeks. Linux finds no data in a file that has just left its inode (`inline_data`) while its new
/// blocks are not allocated yet.
pub(super) fn seek_settled(file: &OwnedFd, to: SeekFrom) -> rustix::io::Result<u64> {
    match rustix::fs::seek(file, to) {
        Err(Errno::NOENT) => {
            rustix::fs::fsync(file)?;
            rustix::fs::seek(file, to)
        }
        found => found,
    }
}

pub(super) fn read_all(file: &OwnedFd, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match rustix::io::pread(file, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

pub(super) fn read_link(file: &OwnedFd) -> Result<Vec<u8>> {
    match rustix::fs::readlinkat(file, "", Vec::new()) {
        Ok(target) => Ok(target.into_bytes()),
        // The kernel returns ENOENT for a descriptor that is no link; for a path it returns EINVAL.
        Err(Errno::NOENT) => Err(Failure::new(EINVAL)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn xattr(file: &OwnedFd, name: &[u8]) -> Result<Vec<u8>> {
    let mut value = vec![0; LONGEST_XATTR];
    let length = rustix::fs::getxattr(proc_path(file), OsStr::from_bytes(name), &mut value)?;
    value.truncate(length);
    Ok(value)
}

pub(super) fn xattr_names(file: &OwnedFd) -> Result<Vec<Name>> {
    let mut list = vec![0; LONGEST_XATTR];
    let length = rustix::fs::listxattr(proc_path(file), &mut list)?;
    let names = list[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Lists a directory. If few entries are wanted at once, the buffer is small, so that the kernel
/// stops and continues between them.
pub(super) fn list(directory: &OwnedFd, at_once: usize) -> Result<Vec<Listed>> {
    let directory = reopen(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut buffer = Vec::with_capacity((at_once * 40).clamp(300, 65_536));
    let mut entries = Vec::new();
    let mut raw = RawDir::new(&directory, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let kind = match entry.file_type() {
                rustix::fs::FileType::Unknown => None,
                known => Some(kind_of(known)?),
            };
            entries.push(Listed {
                name: name.to_vec(),
                inode: entry.ino() as u32,
                kind,
            });
        }
    }
    Ok(entries)
}

fn kind_of(kind: rustix::fs::FileType) -> Result<FileType> {
    use rustix::fs::FileType as Kernel;
    Ok(match kind {
        Kernel::RegularFile => FileType::Regular,
        Kernel::Directory => FileType::Directory,
        Kernel::Symlink => FileType::Symlink,
        Kernel::Fifo => FileType::Fifo,
        Kernel::Socket => FileType::Socket,
        Kernel::CharacterDevice => FileType::CharacterDevice,
        Kernel::BlockDevice => FileType::BlockDevice,
        other => {
            return Err(Failure {
                errno: EIO,
                text: format!("an entry of type {other:?}"),
            });
        }
    })
}
