//! Finds other users of a file system's bytes: loop devices, and mounts by the kernel.
//!
//! A loop device is another name for its backing file, but a lock of one does not lock the other,
//! and the kernel takes no lock on a file that it has mounted. So before a write the tables of the
//! system are read: `/sys` shows the file of a loop device, and `/proc/self/mountinfo` which
//! devices are mounted where. A table that cannot be read is taken for empty. A loop device that
//! begins inside its file (a partition, `losetup -o`) contains another file system than the file,
//! and the same as every other loop device that begins at the same byte: its aliases.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::mountinfo::{self, Mount};

/// How many loop devices on files of loop devices are followed.
pub(crate) const MAX_LOOP_DEPTH: usize = 8;

/// Major and minor number of a block device.
fn number(device: &Metadata) -> Option<(u32, u32)> {
    let number = device.rdev();
    device
        .file_type()
        .is_block_device()
        .then(|| (major(number), minor(number)))
}

/// An attribute of a block device in `/sys`, without the newline.
fn sysfs_attribute(device: &Metadata, what: &str) -> Option<Vec<u8>> {
    let (major, minor) = number(device)?;
    let mut sysfs_attribute = fs::read(format!("/sys/dev/block/{major}:{minor}/{what}")).ok()?;
    sysfs_attribute.pop_if(|&mut last| last == b'\n');
    Some(sysfs_attribute)
}

/// Whether a block device refuses writes even if it was opened for writing.
pub(crate) fn is_read_only(device: &Metadata) -> bool {
    sysfs_attribute(device, "ro").as_deref() == Some(b"1")
}

/// The file (or device) behind a loop device, if both begin at the same byte.
pub(crate) fn backing_of(device: &Metadata) -> Option<PathBuf> {
    let path = sysfs_attribute(device, "loop/backing_file")?;
    let starts_there = sysfs_attribute(device, "loop/offset")? == b"0";
    starts_there.then(|| PathBuf::from(OsString::from_vec(path)))
}

/// Where a loop device begins inside a file: the file's device and inode number, and the offset as
/// `/sys` shows it. `None` if it begins at the file's first byte.
fn inner_start(device: &Metadata) -> Option<(u64, u64, Vec<u8>)> {
    let path = sysfs_attribute(device, "loop/backing_file")?;
    let offset = sysfs_attribute(device, "loop/offset").filter(|offset| offset != b"0")?;
    let backing = fs::metadata(OsString::from_vec(path)).ok()?;
    Some((backing.dev(), backing.ino(), offset))
}

/// The other loop devices that begin at the same byte inside the same file.
pub(crate) fn aliases_of(device: &Metadata) -> Vec<PathBuf> {
    let Some(start) = inner_start(device) else {
        return Vec::new();
    };
    let devices = fs::read_dir("/sys/block").into_iter().flatten();
    let paths = devices.filter_map(Result::ok);
    let paths = paths.map(|entry| Path::new("/dev").join(entry.file_name()));
    let is_alias = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|metadata| {
            metadata.rdev() != device.rdev() && inner_start(&metadata).as_ref() == Some(&start)
        })
    };
    paths.filter(is_alias).collect()
}

/// The innermost file behind a path, through loop devices.
pub(crate) fn innermost_backing(path: &Path) -> Option<Metadata> {
    let mut metadata = fs::metadata(path).ok()?;
    for _ in 0..MAX_LOOP_DEPTH {
        match backing_of(&metadata).and_then(|backing| fs::metadata(backing).ok()) {
            Some(backing) => metadata = backing,
            None => break,
        }
    }
    Some(metadata)
}

/// Whether two paths are names of the same bytes: the same file, a loop device and its file, or two
/// loop devices.
#[must_use]
pub fn are_same(one: &Path, other: &Path) -> bool {
    let bytes = |path| {
        let metadata = innermost_backing(path)?;
        let is_device = metadata.file_type().is_block_device();
        let whole = match is_device {
            true => (metadata.rdev(), 0, Vec::new()),
            false => (metadata.dev(), metadata.ino(), Vec::new()),
        };
        Some(inner_start(&metadata).unwrap_or(whole))
    };
    one == other || bytes(one).is_some_and(|of_one| bytes(other) == Some(of_one))
}

/// The directory on which the kernel has mounted a block device, or a file through a loop device.
pub(crate) fn mounted_on(file: &Metadata) -> Option<PathBuf> {
    let mounts = mountinfo::mounts().ok()?;
    match number(file) {
        Some(number) => mount_of(&mounts, number),
        None => loop_devices_of(file).find_map(|number| mount_of(&mounts, number)),
    }
}

/// The loop devices on a file.
fn loop_devices_of(file: &Metadata) -> impl Iterator<Item = (u32, u32)> {
    let same = (file.dev(), file.ino());
    let devices = fs::read_dir("/sys/block").into_iter().flatten();
    devices.filter_map(Result::ok).filter_map(move |device| {
        let device = device.path();
        let mut backing = fs::read(device.join("loop/backing_file")).ok()?;
        backing.pop_if(|&mut last| last == b'\n');
        let backing = fs::metadata(OsString::from_vec(backing)).ok()?;
        let number = mountinfo::device_number(&fs::read(device.join("dev")).ok()?)?;
        ((backing.dev(), backing.ino()) == same).then_some(number)
    })
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
