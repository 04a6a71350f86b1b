//! Finds other users of a file system's bytes: loop devices, and mounts by the kernel.
//!
//! A loop device is another name for its backing file, but a lock of one does not lock the other,
//! and the kernel takes no lock on a file that it has mounted. So before a write the tables of the
//! system are read: `/sys` shows the loop devices (`table`), and `/proc/self/mountinfo` which
//! devices are mounted where. A table that cannot be read is taken for empty. The partitions that
//! the kernel finds on a loop device (`losetup -P`) are devices of their own, and count as loop
//! devices here. A device that begins inside the file (a partition, `losetup -o`) holds a different
//! file system from one that begins at byte 0, and the same one as every device that begins at the
//! same byte. A loop device may be the file of another one.

#[allow(unsafe_code)]
mod status;
mod table;

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::mountinfo::{self, Mount};
use crate::range_lock::Bytes;
pub(crate) use table::{Backing, Identity};

/// How many loop devices on files of loop devices are followed.
pub(crate) const MAX_LOOP_DEPTH: usize = 8;

/// Whether a block device refuses writes even if it was opened for writing.
pub(crate) fn is_read_only(device: &Metadata) -> bool {
    let Identity::Device(major, minor) = Identity::of(device) else {
        return false;
    };
    let read_only = table::read_attribute(&table::folder(major, minor).join("ro"));
    read_only.as_deref() == Some(b"1")
}

/// The innermost file behind a path, through loop devices, and the byte in it at which the
/// outermost one begins.
pub(crate) fn innermost_backing(path: &Path) -> Option<(Identity, u64)> {
    let mut identity = Identity::of(&fs::metadata(path).ok()?);
    let mut start = 0u64;
    for _ in 0..MAX_LOOP_DEPTH {
        let Some(backing) = identity.backing() else {
            break;
        };
        let Some(behind) = backing.identity else {
            break;
        };
        identity = behind;
        start = start.saturating_add(backing.offset);
    }
    Some((identity, start))
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
        let (identity, start) = innermost_backing(path)?;
        Some((identity, start.saturating_add(offset)))
    };
    one == other || place(one).is_some_and(|of_one| place(other) == Some(of_one))
}

/// The directory on which the kernel has mounted a block device, or these bytes of a file or of a
/// device through a loop device.
pub(crate) fn mounted_on(file: Identity, bytes: Bytes) -> Option<PathBuf> {
    among(&mountinfo::mounts().ok()?, file, bytes)
}

/// The directory on which the kernel has mounted for writing what begins at a byte of a file, also
/// through loop devices. What it has not written yet is not in the file.
#[must_use]
pub fn written_by_kernel(file: &Path, offset: u64) -> Option<PathBuf> {
    let mut mounts = mountinfo::mounts().ok()?;
    mounts.retain(|mount| !mount.read_only);
    let identity = Identity::of(&fs::metadata(file).ok()?);
    among_those_of_all(&mounts, identity, Bytes::beginning_at(offset))
}

/// As [`mounted_on`], also for the files behind a device.
pub(crate) fn mounted_with_backing(file: Identity, bytes: Bytes) -> Option<PathBuf> {
    among_those_of_all(&mountinfo::mounts().ok()?, file, bytes)
}

/// As [`mounted_with_backing`], among these mounts.
fn among_those_of_all(
    mounts: &[Mount],
    mut identity: Identity,
    mut bytes: Bytes,
) -> Option<PathBuf> {
    for _ in 0..=MAX_LOOP_DEPTH {
        let directory = among(mounts, identity, bytes);
        if directory.is_some() {
            return directory;
        }
        let backing = identity.backing()?;
        bytes = backing.translate(bytes);
        identity = backing.identity?;
    }
    None
}

/// As [`mounted_on`], among these mounts.
fn among(mounts: &[Mount], file: Identity, bytes: Bytes) -> Option<PathBuf> {
    let itself = match file {
        Identity::Device(major, minor) => mount_of(mounts, (major, minor)),
        Identity::File { .. } => None,
    };
    itself.or_else(|| {
        let mut devices = devices_on(file, bytes).into_iter();
        devices.find_map(|number| mount_of(mounts, number))
    })
}

/// A loop device on these bytes of a file, or of another device, that the kernel uses: one that is
/// mounted in another namespace, or a part of a mapped device, an array or the swap space. `None`
/// also if the devices cannot be opened.
pub(crate) fn used_device_on(file: Identity, bytes: Bytes) -> Option<PathBuf> {
    devices_on(file, bytes)
        .into_iter()
        .find_map(|(major, minor)| {
            let device = table::node(&table::folder(major, minor))?;
            // Who has it exclusively keeps others from doing so.
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            let opened = rustix::fs::open(&device, flags, Mode::empty());
            (opened.err() == Some(Errno::BUSY)).then_some(device)
        })
}

/// The loop devices on a file, their partitions, and the loop devices on these, that have these
/// bytes of it.
fn devices_on(file: Identity, bytes: Bytes) -> Vec<(u32, u32)> {
    let table = table::all();
    let mut found = Vec::new();
    let mut level = vec![(file, bytes)];
    for _ in 0..MAX_LOOP_DEPTH {
        let mut next = Vec::new();
        for (below, bytes) in level {
            let above = table.iter().filter(|(_, one)| one.identity == Some(below));
            for &((major, minor), ref backing) in above {
                let Some(inside) = inside(bytes, backing.offset) else {
                    continue;
                };
                if inside == Bytes::All {
                    found.push((major, minor));
                }
                next.push((Identity::Device(major, minor), inside));
            }
        }
        level = next;
    }
    found
}

/// Where bytes of a file are in a device that begins at this byte of it; `None` if they begin
/// before the device.
fn inside(bytes: Bytes, device: u64) -> Option<Bytes> {
    match bytes {
        Bytes::All => Some(Bytes::All),
        Bytes::From(start) => start.checked_sub(device).map(Bytes::beginning_at),
    }
}

fn mount_of(mounts: &[Mount], number: (u32, u32)) -> Option<PathBuf> {
    let mount = mounts.iter().find(|mount| mount.device == number);
    mount.map(|mount| mount.directory.clone())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Bytes, Path, are_same, inside};

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

    #[test]
    fn a_device_has_the_bytes_behind_its_beginning() {
        assert_eq!(inside(Bytes::All, 4096), Some(Bytes::All));
        assert_eq!(inside(Bytes::From(4096), 4096), Some(Bytes::All));
        assert_eq!(inside(Bytes::From(8192), 4096), Some(Bytes::From(4096)));
        assert_eq!(inside(Bytes::From(512), 4096), None);
    }
}
