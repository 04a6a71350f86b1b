//! Letting a directory go.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{MountError, fusermount, is_ours, table};

/// Unmounts `directory`, by the system call or, without the right, through the helper. Returns
/// when the directory is free; the server may still be closing its volume.
///
/// # Errors
/// [`MountError::Busy`] if it is in use; or what the system says.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    match rustix::mount::unmount(directory, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::detach(directory, false),
        Err(Errno::BUSY) => Err(MountError::Busy(directory.to_owned())),
        Err(error) => Err(MountError::System(directory.to_owned(), error.into())),
    }
}

/// Ends a mount from within its server, whoever uses it.
#[derive(Clone)]
pub struct Unmounter {
    directory: PathBuf,
    device_minor: Option<u32>,
    /// Returns when the kernel has written what it has begun to write.
    write_out: Arc<dyn Fn() + Send + Sync>,
}

impl Unmounter {
    /// For the mount that was just made on `directory`.
    pub(crate) fn new(directory: &Path, write_out: Arc<dyn Fn() + Send + Sync>) -> Self {
        let mount = table::ours_on(directory).ok().flatten();
        Self {
            directory: directory.to_owned(),
            device_minor: mount.map(|mount| mount.device.1),
            write_out,
        }
    }

    /// Ends the mount. Where files are open, what the kernel has not written yet is written, the
    /// directory disappears, and whoever had files open gets errors.
    ///
    /// # Errors
    /// The mount could be made to disappear, but not to end: it does when the last file is closed.
    pub fn end(&self) -> Result<(), MountError> {
        if self.is_elsewhere() {
            return self.end_elsewhere();
        }
        match unmount(&self.directory) {
            Err(MountError::Busy(_)) => {}
            // Not mounted any more: somebody else was faster.
            Err(MountError::System(..)) if self.is_gone() => return Ok(()),
            result => return result,
        }
        self.write_back();
        let hard = UnmountFlags::FORCE | UnmountFlags::DETACH;
        match rustix::mount::unmount(self.directory.as_path(), hard) {
            Err(Errno::PERM) => {
                fusermount::detach(&self.directory, true)?;
                self.abort()
            }
            result => {
                result.map_err(|error| MountError::System(self.directory.clone(), error.into()))
            }
        }
    }

    /// Whether something else is mounted on the directory now: it is not ours to take away.
    fn is_elsewhere(&self) -> bool {
        let top = table::top_of(&self.directory).ok().flatten();
        match (top, self.device_minor) {
            (Some(top), Some(minor)) => !is_ours(&top) || top.device.1 != minor,
            _ => false,
        }
    }

    /// Ends a mount that was covered, or detached while files were open. Where the kernel does not
    /// show the connection, it ends by itself with the last file.
    fn end_elsewhere(&self) -> Result<(), MountError> {
        match self.connection() {
            Some(connection) if connection.exists() => {
                (self.write_out)();
                self.abort()
            }
            _ => Ok(()),
        }
    }

    fn is_gone(&self) -> bool {
        table::ours_on(&self.directory).is_ok_and(|mount| mount.is_none())
    }

    /// The kernel writes its dirty pages to the server. When `syncfs` asks for that, recent kernels
    /// begin to and do not wait for the server to answer.
    fn write_back(&self) {
        if let Ok(directory) = File::open(&self.directory) {
            // What cannot be written now is lost with the connection; it was not synced.
            let _ = rustix::fs::syncfs(&directory);
        }
        (self.write_out)();
    }

    /// Tears the connection down; its owner may, where the kernel shows its connections.
    fn abort(&self) -> Result<(), MountError> {
        self.connection()
            .and_then(|connection| std::fs::write(connection.join("abort"), "1").ok())
            .ok_or_else(|| MountError::Busy(self.directory.clone()))
    }

    /// Where the kernel shows the connection, if it shows any.
    fn connection(&self) -> Option<PathBuf> {
        let minor = self.device_minor?;
        Some(PathBuf::from(format!("/sys/fs/fuse/connections/{minor}")))
    }
}
