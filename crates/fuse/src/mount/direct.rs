//! Mounting by the system call.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pext4_fs::AccessTimes;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::{FILE_SYSTEM_TYPE, MountError, open_device};
use crate::options::KernelOptions;

/// Attaches the directory; `None` if the caller lacks the right.
pub(super) fn attach(
    directory: &Path,
    source: &Path,
    options: &KernelOptions,
) -> Result<Option<OwnedFd>, MountError> {
    let device = open_device()?;
    let at = |error| MountError::Directory(directory.to_owned(), error);
    let kind = directory.metadata().map_err(at)?.mode() & 0o170_000;
    let mut data = format!(
        "fd={},rootmode={kind:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("numbers and names without a zero byte");
    match rustix::mount::mount(
        source,
        directory,
        FILE_SYSTEM_TYPE,
        flags(options),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::INVAL) if contains_zero(source) => Err(MountError::Path(source.to_owned())),
        Err(error) => Err(MountError::System(directory.to_owned(), error.into())),
    }
}

fn contains_zero(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&0)
}

fn flags(options: &KernelOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.set_id);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOEXEC, !options.execute);
    let times = options.access_times;
    flags.set(MountFlags::NOATIME, times == AccessTimes::Never);
    flags.set(MountFlags::STRICTATIME, times == AccessTimes::Strict);
    flags.set(MountFlags::NODIRATIME, !options.directory_access_times);
    flags.set(MountFlags::DIRSYNC, options.synchronous_directories);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags
}

#[cfg(test)]
mod tests {
    use super::{KernelOptions, MountFlags, flags};

    #[test]
    fn set_id_and_devices_count_only_when_asked_for() {
        let safe = flags(&KernelOptions::default());
        assert_eq!(safe, MountFlags::NOSUID | MountFlags::NODEV);
        let open = KernelOptions {
            set_id: true,
            devices: true,
            execute: false,
            read_only: true,
            ..KernelOptions::default()
        };
        assert_eq!(flags(&open), MountFlags::NOEXEC | MountFlags::RDONLY);
    }
}
