//! Letting a directory go.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{Mount, MountError, fusermount, table};

/// Where the kernel shows the connections of FUSE, if somebody has mounted it there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

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
    /// The mount as the table showed it when it was made.
    made: Option<Mount>,
    /// Returns when the kernel has written what it has begun to write.
    write_out: Arc<dyn Fn() + Send + Sync>,
}

impl Unmounter {
    /// For the mount that was just made on `directory`.
    pub(crate) fn new(directory: &Path, write_out: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {
            directory: directory.to_owned(),
            made: table::ours_on(directory).ok().flatten(),
            write_out,
        }
    }

    /// Ends the mount. Where files are open, what the kernel has not written yet is written, the
    /// directory disappears, and whoever had files open gets errors.
    ///
    /// # Errors
    /// The mount could be made to disappear, but not to end: it does when the last file is closed.
    pub fn end(&self) -> Result<(), MountError> {
        let directories = self.directories();
        if directories.is_empty() {
            return self.end_elsewhere();
        }
        directories
            .iter()
            .rev()
            .try_for_each(|directory| self.end_on(directory))
    }

    fn end_on(&self, directory: &Path) -> Result<(), MountError> {
        match unmount(directory) {
            Err(MountError::Busy(_)) => {}
            // Not mounted any more: somebody else was faster.
            Err(MountError::System(..)) if !self.is_on(directory) => return Ok(()),
            result => return result,
        }
        self.write_back(directory);
        self.take_away(directory)
    }

    /// Ends a mount that nobody serves any more: who uses it would wait for ever, and so would who asks for what the
    /// kernel has not written. That is lost.
    ///
    /// # Errors
    /// As of [`Unmounter::end`].
    pub(crate) fn end_unserved(&self) -> Result<(), MountError> {
        let directories = self.directories();
        if directories.is_empty()
            && self
                .connection()
                .is_some_and(|connection| connection.exists())
        {
            return self.abort();
        }
        directories
            .iter()
            .rev()
            .try_for_each(|directory| self.take_away(directory))
    }

    fn take_away(&self, directory: &Path) -> Result<(), MountError> {
        let hard = UnmountFlags::FORCE | UnmountFlags::DETACH;
        match rustix::mount::unmount(directory, hard) {
            Err(Errno::PERM) => {
                fusermount::detach(directory, true)?;
                self.abort()
            }
            result => {
                result.map_err(|error| MountError::System(directory.to_owned(), error.into()))
            }
        }
    }

    /// Where the mount is on top: what covers it is not ours to take away. It is elsewhere than it was made when a
    /// directory above was renamed.
    fn directories(&self) -> Vec<PathBuf> {
        match (&self.made, table::mounts()) {
            (Some(made), Ok(mounts)) => table::places_of(made, &mounts),
            _ => vec![self.directory.clone()],
        }
    }

    fn is_on(&self, directory: &Path) -> bool {
        let directories = self.directories();
        directories.iter().any(|other| other == directory)
    }

    /// Ends a mount that was covered, or detached while files were open.
    fn end_elsewhere(&self) -> Result<(), MountError> {
        if self
            .connection()
            .is_some_and(|connection| connection.exists())
        {
            (self.write_out)();
            self.abort()
        } else if table::shows_connections(Path::new(CONNECTIONS)) {
            // The last file was closed, or somebody else was faster.
            Ok(())
        } else {
            Err(MountError::Detached(self.directory.clone()))
        }
    }

    /// The kernel writes its dirty pages to the server. When `syncfs` asks for that, recent kernels
    /// begin to and do not wait for the server to answer.
    fn write_back(&self, directory: &Path) {
        if let Ok(directory) = File::open(directory) {
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
        let (_, minor) = self.made.as_ref()?.device;
        Some(Path::new(CONNECTIONS).join(minor.to_string()))
    }
}
