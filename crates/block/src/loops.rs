//! Who else has a file system's bytes: under loop devices, and mounted by the kernel.
//!
//! A loop device is another name for its backing file, but locks of the one say nothing of the other,
//! and the kernel takes none on a file that it has mounted. So whoever is about to write asks the
//! tables of the system: `/sys` says which file a loop device has, and `/proc/self/mountinfo` which
//! devices are mounted where. What cannot be read says nothing. A loop device that begins inside its
//! file (a partition, `losetup -o`) is another file system than the file, and the same as every other
//! that begins there: its twins.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::mountinfo::{self, Mount};

/// Loop devices on files of loop devices are followed this far.
pub(crate) const DEEPEST: usize = 8;

/// The device as the kernel's tables number it; of a block device only.
fn number(device: &Metadata) -> Option<(u32, u32)> {
    let number = device.rdev();
    device
        .file_type()
        .is_block_device()
        .then(|| (major(number), minor(number)))
}

/// What `/sys` says of a block device, without the line's end.
fn told(device: &Metadata, what: &str) -> Option<Vec<u8>> {
    let (major, minor) = number(device)?;
    let mut told = fs::read(format!("/sys/dev/block/{major}:{minor}/{what}")).ok()?;
    told.pop_if(|&mut last| last == b'\n');
    Some(told)
}

/// Whether nothing can be written to a block device, whoever may open it for that.
pub(crate) fn is_read_only(device: &Metadata) -> bool {
    told(device, "ro").as_deref() == Some(b"1")
}

/// The file (or device) whose first byte is the first one of a loop device.
pub(crate) fn backing_of(device: &Metadata) -> Option<PathBuf> {
    let path = told(device, "loop/backing_file")?;
    let starts_there = told(device, "loop/offset")? == b"0";
    starts_there.then(|| PathBuf::from(OsString::from_vec(path)))
}

/// Where a loop device begins inside a file: the file's device and number, and the offset as told.
/// None where it begins with the file.
fn inner_start(device: &Metadata) -> Option<(u64, u64, Vec<u8>)> {
    let path = told(device, "loop/backing_file")?;
    let offset = told(device, "loop/offset").filter(|offset| offset != b"0")?;
    let backing = fs::metadata(OsString::from_vec(path)).ok()?;
    Some((backing.dev(), backing.ino(), offset))
}

/// The other loop devices that begin at the same byte inside the same file.
pub(crate) fn twins_of(device: &Metadata) -> Vec<PathBuf> {
    let Some(start) = inner_start(device) else {
        return Vec::new();
    };
    let devices = fs::read_dir("/sys/block").into_iter().flatten();
    let paths = devices.filter_map(Result::ok);
    let paths = paths.map(|entry| Path::new("/dev").join(entry.file_name()));
    let is_twin = |path: &PathBuf| {
        let facts = fs::metadata(path);
        facts.is_ok_and(|facts| {
            facts.rdev() != device.rdev() && inner_start(&facts).as_ref() == Some(&start)
        })
    };
    paths.filter(is_twin).collect()
}

/// What a path leads to in the end, through loop devices.
pub(crate) fn ground(path: &Path) -> Option<Metadata> {
    let mut facts = fs::metadata(path).ok()?;
    for _ in 0..DEEPEST {
        match backing_of(&facts).and_then(|backing| fs::metadata(backing).ok()) {
            Some(behind) => facts = behind,
            None => break,
        }
    }
    Some(facts)
}

/// Whether two paths are names of the same bytes: the same file, a loop device and its file, or two
/// loop devices.
#[must_use]
pub fn are_same(one: &Path, other: &Path) -> bool {
    let bytes = |path| {
        let facts = ground(path)?;
        let is_device = facts.file_type().is_block_device();
        let whole = match is_device {
            true => (facts.rdev(), 0, Vec::new()),
            false => (facts.dev(), facts.ino(), Vec::new()),
        };
        Some(inner_start(&facts).unwrap_or(whole))
    };
    one == other || bytes(one).is_some_and(|of_one| bytes(other) == Some(of_one))
}

/// The directory on which the kernel has mounted a file, by a loop device, or a block device.
pub(crate) fn mounted_on(file: &Metadata) -> Option<PathBuf> {
    let mounts = mountinfo::mounts().ok()?;
    match number(file) {
        Some(number) => mount_of(&mounts, number),
        None => loops_of(file).find_map(|number| mount_of(&mounts, number)),
    }
}

/// The loop devices that have a file.
fn loops_of(file: &Metadata) -> impl Iterator<Item = (u32, u32)> {
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
