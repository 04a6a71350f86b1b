//! A file or block device that somebody else has opened.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::OFlags;

use super::{Access, FileDevice, Kind, error};
use crate::claim::{claim_opened, leads_to};
use crate::range_lock::Bytes;

impl FileDevice {
    /// Uses a regular file or a block device that is open already, as the manager of a virtual
    /// machine or a sandbox is given one. Takes the locks that [`FileDevice::open`] takes; if they
    /// are in use, waits for that to end, up to `wait`. They end when the last duplicate of the
    /// descriptor is closed, and whoever has a duplicate is not excluded by them. The position in
    /// the file has no effect and may change.
    ///
    /// Only with `O_EXCL` is a block device, once it is open for writing, safe from being mounted
    /// by the kernel.
    ///
    /// # Errors
    ///
    /// It is not open for this access, or so that only some reads and writes are possible
    /// (`O_APPEND`, `O_DIRECT`); else as [`FileDevice::open`].
    pub fn from_file(file: File, access: Access, wait: Duration) -> io::Result<Self> {
        let path = path_of(&file);
        let failed = |source| error(&path, "use it", source);
        let kind = Kind::of_opened(&path, &file.metadata().map_err(failed)?)?;
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| failed(errno.into()))?;
        if let Some(obstacle) = obstacle(flags, access) {
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                obstacle,
            )));
        }
        let claim = claim_opened(file, &path, access, wait)?;
        Self::claimed(claim, &path, Bytes::All, access, kind)
    }
}

/// Why a file that is open with these flags cannot be used, if it cannot.
fn obstacle(flags: OFlags, access: Access) -> Option<&'static str> {
    let mode = flags & OFlags::RWMODE;
    if flags.contains(OFlags::PATH) || mode == OFlags::WRONLY {
        Some("it is not open for reading")
    } else if access == Access::ReadWrite && mode != OFlags::RDWR {
        Some("it is not open for writing")
    } else if flags.contains(OFlags::APPEND) {
        Some("it is open for appending (O_APPEND), so that writes go to its end")
    } else if flags.contains(OFlags::DIRECT) {
        Some("it is open for direct reads and writes (O_DIRECT)")
    } else {
        None
    }
}

/// The path at which an open file is, or that of its descriptor if there is none.
fn path_of(file: &File) -> PathBuf {
    let descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match fs::read_link(&descriptor) {
        Ok(path) if leads_to(&path, file).unwrap_or(false) => path,
        _ => descriptor,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::ErrorKind;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::{Access, FileDevice};
    use crate::device::Device;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn an_open_file_is_locked_and_unlocked() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("image");
        std::fs::write(&path, [7; 4096]).expect("there is room");
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).open(&path).expect("a file")
        };
        let file = open();
        let duplicate = file.try_clone().expect("a descriptor");
        let device = FileDevice::from_file(file, Access::ReadWrite, NOW).expect("it is free");
        assert_eq!((device.size(), device.path()), (4096, &*path));
        assert!(!device.is_read_only() && device.locks_whole_file());
        device.write_at(4000, b"there").expect("it fits");
        assert!(FileDevice::open(&path, Access::ReadOnly, NOW).is_err());
        let other = open();
        let other_duplicate = other.try_clone().expect("a descriptor");
        let refused = FileDevice::from_file(other, Access::ReadOnly, NOW).expect_err("in use");
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");
        drop((device, duplicate));
        // What was refused has left no lock, although the descriptor has a duplicate.
        let device = FileDevice::open(&path, Access::ReadWrite, NOW).expect("it is free again");
        let mut bytes = [0; 5];
        device.read_at(4000, &mut bytes).expect("it lies within");
        assert_eq!(&bytes, b"there");
        drop((device, other_duplicate));
    }

    #[test]
    fn a_file_without_a_path_is_a_device_too() {
        let file = tempfile::tempfile().expect("there is room");
        file.set_len(1 << 20).expect("there is room");
        let device = FileDevice::from_file(file, Access::ReadWrite, NOW).expect("it is free");
        device.write_at(77, &[1; 10]).expect("it fits");
        assert!(device.path().starts_with("/proc/self/fd"));
    }

    #[test]
    fn a_file_that_is_open_in_another_way_is_refused() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("image");
        std::fs::write(&path, [7; 4096]).expect("there is room");
        let with = |flags: OFlags, is_written: bool| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(is_written);
            options.custom_flags(flags.bits().cast_signed()).open(&path)
        };
        let refused = |file: File, access, word: &str| {
            let refused = FileDevice::from_file(file, access, NOW).expect_err(word);
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
            assert!(refused.to_string().contains(word), "{refused}");
        };
        let plain = with(OFlags::empty(), false).expect("a file");
        refused(plain, Access::ReadWrite, "open for writing");
        let appending = with(OFlags::APPEND, true).expect("a file");
        refused(appending, Access::ReadWrite, "O_APPEND");
        let named = with(OFlags::PATH, false).expect("a file");
        refused(named, Access::ReadOnly, "open for reading");
        let mut options = OpenOptions::new();
        let written = options.write(true).open(&path).expect("a file");
        refused(written, Access::ReadOnly, "open for reading");
        if let Ok(direct) = with(OFlags::DIRECT, true) {
            refused(direct, Access::ReadWrite, "O_DIRECT");
        }
        let folder = File::open(directory.path()).expect("it is there");
        refused(folder, Access::ReadOnly, "neither");
    }
}
