//! Unmounting a directory.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{Mount, MountError, Source, fusermount, table};

/// Where the kernel shows the connections of FUSE, if `fusectl` is mounted there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How a directory is unmounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnmountMode {
    /// Detached at once, also while it is in use; it ends when the last user has let it go.
    pub lazily: bool,
    /// The connection to the server is aborted first, so that a server that does not answer keeps
    /// nobody waiting. What the kernel has not sent to it is lost. Only root can have this; for
    /// others it is an ordinary unmount.
    pub by_force: bool,
}

/// Unmounts `directory`, by `umount(2)` or, if the process may not call that, by the helper.
/// Returns when the directory is unmounted; the server may still be closing its volume.
///
/// # Errors
///
/// [`MountError::Busy`] if it is in use; or the system's error.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    unmount_by(directory, UnmountMode::default())
}

/// The same in another mode.
///
/// # Errors
///
/// As for [`unmount`].
pub fn unmount_by(directory: &Path, mode: UnmountMode) -> Result<(), MountError> {
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, mode.lazily);
    flags.set(UnmountFlags::FORCE, mode.by_force);
    match rustix::mount::unmount(directory, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::detach(directory, mode.lazily),
        Err(Errno::BUSY) => Err(MountError::Busy(directory.to_owned())),
        Err(error) => Err(MountError::System(directory.to_owned(), error.into())),
    }
}

/// The connection of a mount, as its server has it.
pub(crate) trait Connection: Send + Sync {
    /// Whether it has not ended.
    fn is_connected(&self) -> bool;

    /// Returns when the kernel has written its dirty pages.
    fn flush_pages(&self);
}

/// Ends a mount from within its server, even while it is in use.
///
/// The system's tables name a connection by a number that the kernel uses again as soon as it has
/// ended, perhaps for a mount of another server. So what they show is ours only while our own
/// `/dev/fuse` is connected.
#[derive(Clone)]
pub struct Unmounter {
    directory: PathBuf,
    /// The mount as the table showed it when it was made; `None` if the table did not show it.
    made: Option<Mount>,
    connection: Arc<dyn Connection>,
}

impl fmt::Debug for Unmounter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unmounter = formatter.debug_struct("Unmounter");
        unmounter.field("directory", &self.directory);
        unmounter.finish_non_exhaustive()
    }
}

impl Unmounter {
    /// For the mount of `source` that was just made on `directory`.
    pub(crate) fn new(directory: &Path, source: &Source, connection: Arc<dyn Connection>) -> Self {
        Self {
            directory: directory.to_owned(),
            made: table::made_on(directory, source),
            connection,
        }
    }

    /// Whether the table, which had the mount when it was made, has it no more: it was unmounted,
    /// or detached while it is in use. The table is that of this process's mount namespace.
    pub(crate) fn is_gone_from_table(&self) -> bool {
        match (&self.made, table::mounts()) {
            (Some(made), Ok(mounts)) => table::same_elsewhere(made, &mounts).is_none(),
            _ => false,
        }
    }

    /// Ends the mount. If files are open, the kernel writes its dirty pages, the directory is
    /// detached, and further calls on the open files fail.
    ///
    /// # Errors
    ///
    /// The system or `fusermount3` refuses. Or the mount was detached, but its connection could not
    /// be aborted: it ends when the last file is closed.
    pub fn end(&self) -> Result<(), MountError> {
        if !self.connection.is_connected() {
            return Ok(());
        }
        let directories = self.directories();
        directories
            .iter()
            .rev()
            .try_for_each(|directory| self.end_on(directory))?;
        match self.connection.is_connected() {
            true => self.end_elsewhere(),
            false => Ok(()),
        }
    }

    fn end_on(&self, directory: &Path) -> Result<(), MountError> {
        match unmount(directory) {
            Err(MountError::Busy(_)) => {}
            // Not mounted any more: another process has unmounted it.
            Err(MountError::System(..) | MountError::Helper(_)) if !self.is_on(directory) => {
                return Ok(());
            }
            result => return result,
        }
        self.write_back(directory);
        // Another process may have unmounted it meanwhile, and mounted something else there.
        match self.is_on(directory) {
            true => self.detach(directory),
            false => Ok(()),
        }
    }

    /// Ends a mount that nobody serves any more, or soon will not. Its users would wait for ever,
    /// as would a request to write the kernel's dirty pages, so these are lost.
    ///
    /// # Errors
    ///
    /// As for [`Unmounter::end`].
    pub fn end_unserved(&self) -> Result<(), MountError> {
        if !self.connection.is_connected() {
            return Ok(());
        }
        let directories = self.directories();
        if directories.is_empty() && self.is_shown() {
            return self.abort();
        }
        directories
            .iter()
            .rev()
            .try_for_each(|directory| self.detach(directory))
    }

    fn detach(&self, directory: &Path) -> Result<(), MountError> {
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

    /// The directories on which the mount is on top; a mount that covers it is not ours to unmount.
    /// The mount has another path than before if a directory above it was renamed.
    fn directories(&self) -> Vec<PathBuf> {
        match (&self.made, table::mounts()) {
            (Some(made), Ok(mounts)) => table::places_of(made, &mounts),
            (None, Ok(_)) => Vec::new(),
            (_, Err(_)) => vec![self.directory.clone()],
        }
    }

    fn is_on(&self, directory: &Path) -> bool {
        let directories = self.directories();
        directories.iter().any(|other| other == directory)
    }

    /// Ends a mount that is covered, was detached while files were open, or is left in a mount
    /// namespace that this process does not see.
    fn end_elsewhere(&self) -> Result<(), MountError> {
        if self.is_shown() {
            self.connection.flush_pages();
            self.abort()
        } else if self.connection.is_connected() {
            Err(MountError::Detached(self.directory.clone()))
        } else {
            // The last file was closed, or another process has ended it.
            Ok(())
        }
    }

    /// Makes the kernel write its dirty pages to the server. On `syncfs` recent kernels begin that
    /// but do not wait for the server's replies.
    fn write_back(&self, directory: &Path) {
        if let Ok(directory) = File::open(directory) {
            // Pages that cannot be written now are lost with the connection; they were not synced.
            let _ = rustix::fs::syncfs(&directory);
        }
        self.connection.flush_pages();
    }

    /// Aborts the connection. Its owner may do so if `fusectl` is mounted.
    fn abort(&self) -> Result<(), MountError> {
        let control = self.folder().map(|folder| folder.join("abort"));
        let control = control.map(|path| OpenOptions::new().write(true).open(path));
        // An open control file stays that of the connection which had the number when it was
        // opened. This one still has its number if it is still connected.
        if !self.connection.is_connected() {
            return Ok(());
        }
        control
            .and_then(|control| control.ok()?.write_all(b"1").ok())
            .ok_or_else(|| MountError::Busy(self.directory.clone()))
    }

    /// Whether the kernel shows the connection in `fusectl`.
    fn is_shown(&self) -> bool {
        self.folder().is_some_and(|folder| folder.exists())
    }

    /// The connection's folder in `fusectl`, if the mount's device number is known.
    fn folder(&self) -> Option<PathBuf> {
        let (_, minor) = self.made.as_ref()?.device;
        Some(Path::new(CONNECTIONS).join(minor.to_string()))
    }
}
