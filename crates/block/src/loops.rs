//! Finds other users of a file system's bytes: loop devices, and mounts by the kernel.
//!
//! A loop device is another name for its backing file, but a lock of one does not lock the other,
//! and the kernel takes no lock on a file that it has mounted. So before a write the tables of the
//! system are read: `/sys` shows the file of a loop device, and `/proc/self/mountinfo` which
//! devices are mounted where. A table that cannot be read is taken for empty. The partitions that
//! the kernel finds on a loop device (`losetup -P`) are devices of their own, and count as loop
//! devices here. A device that begins inside the file (a partition, `losetup -o`) holds a different
//! file system from one that begins at byte 0, and the same one as every device that begins at the
//! same byte.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

use crate::mountinfo::{self, Mount};
use crate::range_lock::Bytes;

/// How many loop devices on files of loop devices are followed.
pub(crate) const MAX_LOOP_DEPTH: usize = 8;

/// The unit of a partition's `start` in `/sys`, whatever the sectors of the device are.
const SYSFS_SECTOR: u64 = 512;

/// Major and minor number of a block device.
fn number(device: &Metadata) -> Option<(u32, u32)> {
    let number = device.rdev();
    device
        .file_type()
        .is_block_device()
        .then(|| (major(number), minor(number)))
}

/// The folder of a block device in `/sys`.
fn sysfs_folder(device: &Metadata) -> Option<PathBuf> {
    let (major, minor) = number(device)?;
    Some(format!("/sys/dev/block/{major}:{minor}").into())
}

/// The content of a file in `/sys`, without the newline.
fn read_attribute(path: &Path) -> Option<Vec<u8>> {
    let mut attribute = fs::read(path).ok()?;
    attribute.pop_if(|&mut last| last == b'\n');
    Some(attribute)
}

fn read_number(path: &Path) -> Option<u64> {
    String::from_utf8(read_attribute(path)?).ok()?.parse().ok()
}

/// Whether a block device refuses writes even if it was opened for writing.
pub(crate) fn is_read_only(device: &Metadata) -> bool {
    let read_only = sysfs_folder(device).and_then(|folder| read_attribute(&folder.join("ro")));
    read_only.as_deref() == Some(b"1")
}

/// What is behind a loop device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    /// The file, or another device.
    pub(crate) file: PathBuf,
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

/// What is behind a block device, if it is a loop device or a partition of one.
pub(crate) fn backing_of(device: &Metadata) -> Option<Backing> {
    backing(&sysfs_folder(device)?)
}

/// As [`backing_of`], by the device's folder in `/sys`.
fn backing(folder: &Path) -> Option<Backing> {
    let (disk, start) = match folder.join("partition").exists() {
        // The folder of a partition is in that of its disk.
        true => {
            let sectors = read_number(&folder.join("start"))?;
            (folder.join(".."), sectors.checked_mul(SYSFS_SECTOR)?)
        }
        false => (folder.to_owned(), 0),
    };
    let file = read_attribute(&disk.join("loop/backing_file"))?;
    let offset = read_number(&disk.join("loop/offset"))?;
    Some(Backing {
        file: OsString::from_vec(file).into(),
        offset: offset.checked_add(start)?,
    })
}

/// The innermost file behind a path, through loop devices, and the byte in it at which the
/// outermost one begins.
pub(crate) fn innermost_backing(path: &Path) -> Option<(Metadata, u64)> {
    let mut metadata = fs::metadata(path).ok()?;
    let mut start = 0u64;
    for _ in 0..MAX_LOOP_DEPTH {
        let Some(backing) = backing_of(&metadata) else {
            break;
        };
        let Ok(behind) = fs::metadata(&backing.file) else {
            break;
        };
        metadata = behind;
        start = start.saturating_add(backing.offset);
    }
    Some((metadata, start))
}

/// Whether two paths are names of the same bytes: the same file, a loop device and its file, or two
/// loop devices.
#[must_use]
pub fn are_same(one: &Path, other: &Path) -> bool {
    are_same_place((one, 0), (other, 0))
}

/// Whether two file systems, each in a file from a byte on, begin at the same byte.
#[must_use]
pub fn are_same_place(one: (&Path, u64), other: (&Path, u64)) -> bool {
    let place = |(path, offset): (&Path, u64)| {
        let (metadata, start) = innermost_backing(path)?;
        let file = match metadata.file_type().is_block_device() {
            true => (metadata.rdev(), 0),
            false => (metadata.dev(), metadata.ino()),
        };
        Some((file, start.saturating_add(offset)))
    };
    one == other || place(one).is_some_and(|of_one| place(other) == Some(of_one))
}

/// The directory on which the kernel has mounted a block device, or these bytes of a file through a
/// loop device.
pub(crate) fn mounted_on(file: &Metadata, bytes: Bytes) -> Option<PathBuf> {
    among(&mountinfo::mounts().ok()?, file, bytes)
}

/// The directory on which the kernel has mounted for writing what begins at a byte of a file, also
/// through loop devices. What it has not written yet is not in the file.
#[must_use]
pub fn written_by_kernel(file: &Path, offset: u64) -> Option<PathBuf> {
    let mut mounts = mountinfo::mounts().ok()?;
    mounts.retain(|mount| !mount.read_only);
    let mut metadata = fs::metadata(file).ok()?;
    let mut bytes = Bytes::beginning_at(offset);
    for _ in 0..=MAX_LOOP_DEPTH {
        let directory = among(&mounts, &metadata, bytes);
        if directory.is_some() {
            return directory;
        }
        let backing = backing_of(&metadata)?;
        bytes = backing.translate(bytes);
        metadata = fs::metadata(&backing.file).ok()?;
    }
    None
}

/// As [`mounted_on`], among these mounts.
fn among(mounts: &[Mount], file: &Metadata, bytes: Bytes) -> Option<PathBuf> {
    match number(file) {
        Some(number) => mount_of(mounts, number),
        None => loop_devices_of(file, bytes).find_map(|number| mount_of(mounts, number)),
    }
}

/// A loop device on these bytes of a file that the kernel uses: one that is mounted in another
/// namespace, or a part of a mapped device, an array or the swap space. `None` also if the devices
/// cannot be opened.
pub(crate) fn used_device_on(file: &Metadata, bytes: Bytes) -> Option<PathBuf> {
    if number(file).is_some() {
        return None;
    }
    loop_devices_of(file, bytes).find_map(|(major, minor)| {
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let device = Path::new("/dev").join(folder.file_name()?);
        let is_it = number(&fs::metadata(&device).ok()?) == Some((major, minor));
        // Who has it exclusively keeps others from doing so.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&device, flags, Mode::empty());
        (is_it && opened.err() == Some(Errno::BUSY)).then_some(device)
    })
}

/// The loop devices on a file, and their partitions, that have these bytes of it.
fn loop_devices_of(file: &Metadata, bytes: Bytes) -> impl Iterator<Item = (u32, u32)> {
    let same = (file.dev(), file.ino());
    let loops = folders_in(Path::new("/sys/block")).filter(|device| device.join("loop").exists());
    let devices = loops.flat_map(|device| {
        let partitions = folders_in(&device).filter(|folder| folder.join("partition").exists());
        let partitions: Vec<_> = partitions.collect();
        std::iter::once(device).chain(partitions)
    });
    devices.filter_map(move |device| {
        let backing = backing(&device)?;
        let behind = fs::metadata(&backing.file).ok()?;
        let has_bytes = match bytes {
            Bytes::All => true,
            Bytes::From(start) => backing.offset == start,
        };
        let number = mountinfo::device_number(&fs::read(device.join("dev")).ok()?)?;
        ((behind.dev(), behind.ino()) == same && has_bytes).then_some(number)
    })
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path())
}

fn mount_of(mounts: &[Mount], number: (u32, u32)) -> Option<PathBuf> {
    let mount = mounts.iter().find(|mount| mount.device == number);
    mount.map(|mount| mount.directory.clone())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Path, are_same};

    #[test]
    fn a_file_is_itself_under_all_its_names() {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let [one, two, other] = ["one", "two", "other"].map(|name| directory.path().join(name));
        std::fs::write(&one, b"1").expect("it is made");
        std::fs::write(&other, b"1").expect("it is made");
        std::fs::hard_link(&one, &two).expect("it has two names");
        assert!(are_same(&one, &two) && !are_same(&one, &other));
        let missing = Path::new("/there/is/no/such/file");
        assert!(are_same(missing, missing) && !are_same(missing, &one));
    }
}
