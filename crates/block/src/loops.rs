//! Files that the kernel has mounted through a loop device. It takes no lock on them that others see,
//! so whoever is about to write asks the tables of the system: `/sys/block/loop*/loop/backing_file`
//! says which file a loop device has, and `/proc/self/mountinfo` which devices are mounted where.
//! What cannot be read says nothing.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The directory on which the kernel has mounted a file, by a loop device.
pub fn mounted_on(file: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    devices.filter_map(Result::ok).find_map(|device| {
        let device = device.path();
        let mut backing = fs::read(device.join("loop/backing_file")).ok()?;
        backing.pop_if(|&mut last| last == b'\n');
        let backing = PathBuf::from(std::ffi::OsString::from_vec(backing));
        let backing = fs::metadata(backing).ok()?;
        let is_it = (backing.dev(), backing.ino()) == (file.dev(), file.ino());
        let number = fs::read_to_string(device.join("dev")).ok()?;
        is_it.then(|| mount_of(&mounts, number.trim()))?
    })
}

/// Where a device (`MAJOR:MINOR`) is mounted, by the lines of `mountinfo`.
fn mount_of(mounts: &str, number: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        // Its number, its parent's, the device, the root within it, the place.
        let mut words = line.split(' ').skip(2);
        let is_it = words.next() == Some(number);
        is_it.then(|| words.nth(1).map(PathBuf::from)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::{PathBuf, mount_of};

    #[test]
    fn a_device_is_found_by_its_number() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      90 22 7:3 / /mnt/there rw,relatime - ext4 /dev/loop3 rw\n";
        assert_eq!(mount_of(mounts, "7:3"), Some(PathBuf::from("/mnt/there")));
        assert_eq!(mount_of(mounts, "7:0"), None);
    }
}
