//! The loop devices that the system shows in `/sys`, and what is behind each.
//!
//! `/sys` has the path of the file behind a device, as the mount namespace in which it was set up
//! knows it. Here that path may lead elsewhere or nowhere, and the file may have lost that name. So
//! the driver is asked which file it is; the path only counts where it does not tell.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::status;
use crate::mountinfo;
use crate::range_lock::Bytes;

/// The unit of a partition's `start` in `/sys`, whatever the sectors of the device are.
const SYSFS_SECTOR: u64 = 512;

/// What stores bytes, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A file that is no block device: the device that it is on, as `stat` has it, and its inode
    /// number.
    File { device: u64, inode: u64 },
    /// A block device: its major and minor number.
    Device(u32, u32),
}

impl Identity {
    pub(crate) fn of(file: &Metadata) -> Self {
        match file.file_type().is_block_device() {
            true => Self::Device(major(file.rdev()), minor(file.rdev())),
            false => Self::File {
                device: file.dev(),
                inode: file.ino(),
            },
        }
    }

    /// The file itself, or the node of the device below `/dev`: the device that it is on, and its
    /// inode number.
    pub(crate) fn place(self) -> Option<(u64, u64)> {
        match self {
            Self::File { device, inode } => Some((device, inode)),
            Self::Device(major, minor) => {
                let node = fs::metadata(node(&folder(major, minor))?).ok()?;
                Some((node.dev(), node.ino()))
            }
        }
    }

    /// What is behind a loop device or a partition of one; `None` for all others.
    pub(crate) fn backing(self) -> Option<Backing> {
        match self {
            Self::File { .. } => None,
            Self::Device(major, minor) => backing(&folder(major, minor)),
        }
    }
}

/// What is behind a loop device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    /// The file, or another device, where it was when the device was set up.
    pub(crate) path: PathBuf,
    /// Which one it is, if that can be seen.
    pub(crate) identity: Option<Identity>,
    /// The byte in it at which the device begins.
    pub(crate) offset: u64,
}

impl Backing {
    /// Where bytes of the loop device are in the file behind it.
    pub(crate) fn translate(&self, bytes: Bytes) -> Bytes {
        match (self.offset, bytes) {
            (0, bytes) => bytes,
            (offset, Bytes::All) => Bytes::From(offset),
            (offset, Bytes::From(start)) => Bytes::From(offset.saturating_add(start)),
        }
    }
}

/// The folder of a block device in `/sys`.
pub(super) fn folder(major: u32, minor: u32) -> PathBuf {
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// The node below `/dev` of the device with a folder in `/sys`.
pub(super) fn node(folder: &Path) -> Option<PathBuf> {
    let number = mountinfo::device_number(&fs::read(folder.join("dev")).ok()?)?;
    let folder = fs::canonicalize(folder).ok()?;
    let node = Path::new("/dev").join(folder.file_name()?);
    let is_it = Identity::of(&fs::metadata(&node).ok()?) == Identity::Device(number.0, number.1);
    is_it.then_some(node)
}

/// The content of a file in `/sys`, without the newline.
pub(super) fn read_attribute(path: &Path) -> Option<Vec<u8>> {
    let mut attribute = fs::read(path).ok()?;
    attribute.pop_if(|&mut last| last == b'\n');
    Some(attribute)
}

fn read_number(path: &Path) -> Option<u64> {
    String::from_utf8(read_attribute(path)?).ok()?.parse().ok()
}

/// What is behind the device with this folder in `/sys`.
fn backing(folder: &Path) -> Option<Backing> {
    let (disk, start) = match folder.join("partition").exists() {
        // The folder of a partition is in that of its disk.
        true => {
            let sectors = read_number(&folder.join("start"))?;
            (folder.join(".."), sectors.checked_mul(SYSFS_SECTOR)?)
        }
        false => (folder.to_owned(), 0),
    };
    let path = PathBuf::from(OsString::from_vec(read_attribute(
        &disk.join("loop/backing_file"),
    )?));
    let offset = read_number(&disk.join("loop/offset"))?;
    let open = node(&disk).and_then(|node| File::open(node).ok());
    let told = open.and_then(|device| status::backing(&device));
    let identity = told.or_else(|| fs::metadata(&path).ok().as_ref().map(Identity::of));
    Some(Backing {
        path,
        identity,
        offset: offset.checked_add(start)?,
    })
}

/// The number of each loop device and each partition of one, and what is behind it.
pub(super) fn all() -> Vec<((u32, u32), Backing)> {
    let loops = folders_in(Path::new("/sys/block")).filter(|device| device.join("loop").exists());
    let devices = loops.flat_map(|device| {
        let partitions = folders_in(&device).filter(|folder| folder.join("partition").exists());
        let partitions: Vec<_> = partitions.collect();
        std::iter::once(device).chain(partitions)
    });
    let described = devices.filter_map(|device| {
        let number = mountinfo::device_number(&fs::read(device.join("dev")).ok()?)?;
        Some((number, backing(&device)?))
    });
    described.collect()
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path())
}
