//! Attaches a directory to `/dev/fuse`, and detaches it.
//!
//! If the process may mount (root, or root of its own user namespace), `mount(2)` does it, else the
//! helper `fusermount3` of the package `fuse3`, which is set-user-id root. Errors say in one line
//! what is missing.

mod direct;
mod fusermount;
mod server_process;
mod source;
mod table;
mod unmount;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use crate::access_policy::AccessPolicy;
use crate::options::KernelOptions;

pub use server_process::ServerProcess;
pub use source::Source;
pub use table::{Mount, in_another_namespace, is_covered, is_ours, mounts, same_elsewhere};
pub(crate) use unmount::Connection;
pub use unmount::{UnmountMode, Unmounter, unmount, unmount_by};

/// The type that `mount` shows for our mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.pext4";
const SUBTYPE: &str = "pext4";

const DEVICE: &str = "/dev/fuse";

/// Why a directory could not be attached or detached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The device file does not exist.
    #[error(
        "/dev/fuse is missing; load the kernel module `fuse`, or give the container the device \
         and the right to mount (--device /dev/fuse --cap-add SYS_ADMIN)"
    )]
    NoDevice,
    /// The device file cannot be opened.
    #[error("/dev/fuse is not accessible ({}); it should have mode 0666, or you be root", .0.kind())]
    DeviceRefused(io::Error),
    /// The process is not root, and there is no helper.
    #[error("only root may mount and unmount without `fusermount3`; install the package fuse3")]
    NoHelper,
    /// The helper failed, with this message.
    #[error("fusermount3 refuses: {0}")]
    Helper(String),
    /// The directory does not exist.
    #[error("{0}: there is no such directory; `mkdir {0}` makes it")]
    Missing(PathBuf),
    /// The path is not a directory, or cannot be accessed.
    #[error("{0}: {1}")]
    Directory(PathBuf, #[source] io::Error),
    /// The mounted directory is in use.
    #[error("{0} is in use; `fuser -vm {0}` shows by whom")]
    Busy(PathBuf),
    /// The mount is covered, was detached while in use, or is left in another mount namespace, and
    /// there is no control file to abort its connection.
    #[error(
        "{0}: it is covered, detached or in another namespace, and the kernel shows no connection \
         to end \
         (`mount -t fusectl none /sys/fs/fuse/connections` has it show them)"
    )]
    Detached(PathBuf),
    /// The path cannot be part of the options of a mount.
    #[error("{0}: a path with a zero byte cannot be mounted")]
    Path(PathBuf),
    /// The server of the mount on this directory has ended.
    #[error("{0}: a mount whose server is gone is still there; `pext4 umount {0}` takes it away")]
    Dead(PathBuf),
    /// The system call failed otherwise.
    #[error("{0}: {1}")]
    System(PathBuf, #[source] io::Error),
    /// The kernel and the server could not agree on the protocol.
    #[error("the kernel's side of FUSE: {0}")]
    Handshake(#[source] io::Error),
}

/// Checks early whether `directory` can be mounted on, and returns its path without symbolic links.
///
/// # Errors
///
/// What is missing for a mount.
pub fn check(directory: &Path) -> Result<PathBuf, MountError> {
    let at = |error: io::Error| match error.kind() {
        io::ErrorKind::NotConnected => MountError::Dead(directory.to_owned()),
        io::ErrorKind::NotFound => MountError::Missing(directory.to_owned()),
        _ => MountError::Directory(directory.to_owned(), error),
    };
    let path = directory.canonicalize().map_err(at)?;
    // Of a mount without a server the kernel may still know the attributes, but not these.
    rustix::fs::statfs(&path).map_err(|errno| at(errno.into()))?;
    if !path.metadata().map_err(at)?.is_dir() {
        return Err(at(io::ErrorKind::NotADirectory.into()));
    }
    open_device()?;
    if !rustix::process::geteuid().is_root() {
        fusermount::find()?;
    }
    Ok(path)
}

/// The numbers of all processes that `/proc` shows.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn open_device() -> Result<File, MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        // No file, or no driver behind it.
        Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => MountError::NoDevice,
        _ => MountError::DeviceRefused(error),
    })
}

/// Attaches `directory` (a path without symbolic links) and returns the open `/dev/fuse`. `mount`
/// and `df` show `source` as the device.
pub(crate) fn attach(
    directory: &Path,
    source: &Source,
    options: &KernelOptions,
    access_policy: AccessPolicy,
) -> Result<OwnedFd, MountError> {
    let source = source.text();
    match direct::attach(directory, &source, options, access_policy)? {
        Some(device) => Ok(device),
        None => fusermount::attach(directory, &source, options),
    }
}
