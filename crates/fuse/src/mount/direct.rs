//! Mounting by `mount(2)`.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pext4_fs::AccessTimes;
use pext4_ondisk::directory::KIND_MASK;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::{FILE_SYSTEM_TYPE, MountError, open_device};
use crate::access_policy::AccessPolicy;
use crate::options::KernelOptions;

/// Attaches the directory; `None` if the process may not mount.
pub(super) fn attach(
    directory: &Path,
    source: &Path,
    options: &KernelOptions,
    access_policy: AccessPolicy,
) -> Result<Option<OwnedFd>, MountError> {
    let device = open_device()?;
    let at = |error| MountError::Directory(directory.to_owned(), error);
    let held = held(directory)?;
    let kind = held.metadata().map_err(at)?.mode() & u32::from(KIND_MASK);
    let target = by_descriptor(&held);
    let mut data = format!(
        "fd={},rootmode={kind:o},user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if access_policy.is_checked_by_kernel() {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("numbers and names without a zero byte");
    match rustix::mount::mount(
        source,
        &target,
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

/// Opens the directory. The owner of a directory above it may have replaced part of the path by a
/// symbolic link since the path was resolved; then this fails, since another place must not be
/// mounted on.
fn held(directory: &Path) -> Result<File, MountError> {
    let at = |error| MountError::Directory(directory.to_owned(), error);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(|error| at(error.into()))?;
    let held = File::from(held);
    if fs::read_link(by_descriptor(&held)).map_err(at)? != directory {
        return Err(at(io::Error::other(
            "it was moved while the image was opened",
        )));
    }
    Ok(held)
}

fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
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
    flags.set(MountFlags::NOSYMFOLLOW, !options.follow_links);
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
    use super::{KernelOptions, MountError, MountFlags, flags, held};

    #[test]
    fn a_link_that_replaced_part_of_the_path_is_not_followed() {
        let folder = tempfile::tempdir().expect("a place for temporary files");
        let folder = folder.path().canonicalize().expect("it is there");
        let directory = folder.join("above/mount");
        std::fs::create_dir_all(&directory).expect("free names");
        assert!(held(&directory).is_ok());
        std::fs::rename(folder.join("above"), folder.join("away")).expect("ours");
        std::os::unix::fs::symlink("away", folder.join("above")).expect("a free name");
        let refused = held(&directory).expect_err("it leads elsewhere now");
        assert!(matches!(refused, MountError::Directory(..)), "{refused}");
        std::fs::remove_file(folder.join("above")).expect("ours");
        std::fs::create_dir(folder.join("above")).expect("a free name");
        std::os::unix::fs::symlink("../away/mount", &directory).expect("a free name");
        assert!(held(&directory).is_err(), "the last name is a link");
    }

    #[test]
    fn set_id_and_devices_count_only_when_asked_for() {
        let safe = flags(&KernelOptions::default());
        assert_eq!(safe, MountFlags::NOSUID | MountFlags::NODEV);
        let open = KernelOptions {
            set_id: true,
            devices: true,
            execute: false,
            follow_links: false,
            read_only: true,
            ..KernelOptions::default()
        };
        let expected = MountFlags::NOEXEC | MountFlags::NOSYMFOLLOW | MountFlags::RDONLY;
        assert_eq!(flags(&open), expected);
    }
}
