//! A file system as workloads see it: a volume in this process, or a directory of any mounted one.
//!
//! The calls are those of POSIX, relative to an open directory. The library is called without
//! system calls; on a path, every call is a system call.

mod library;
mod path;

use std::os::fd::OwnedFd;

use anyhow::{Result, bail};
use pext4_fs::InodeNumber;

use crate::show::{size, tasks};
use crate::workloads::{Plan, Workload};

pub use library::{HOME, Library};
pub use path::MountedPath;

const MEBIBYTE: u64 = 1 << 20;

/// An open file or directory; release it with [`Target::close`].
#[derive(Debug)]
pub enum Node {
    /// An inode that the volume in this process keeps in use.
    Held(InodeNumber),
    /// A file descriptor.
    Open(OwnedFd),
}

/// The free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes available to the lab.
    pub bytes: u64,
    /// Free inodes; `None` if the file system creates them as needed.
    pub inodes: Option<u64>,
}

/// The calls of workloads. Files are named by an open directory and a name in it. Every call may be
/// made from many threads at once.
pub trait Target: Send + Sync {
    /// The lab's directory.
    fn root(&self) -> &Node;

    /// Opens an existing directory.
    ///
    /// # Errors
    ///
    /// Errors of the file system, as for every call below.
    fn directory(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Creates a directory and opens it.
    ///
    /// # Errors
    ///
    /// As above.
    fn make_directory(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Creates a file, which must not exist, and opens it for reading and writing.
    ///
    /// # Errors
    ///
    /// As above.
    fn create(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Opens an existing file.
    ///
    /// # Errors
    ///
    /// As above.
    fn open(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Closes a file or a directory.
    fn close(&self, node: Node);

    /// Removes a file's name.
    ///
    /// # Errors
    ///
    /// As above.
    fn unlink(&self, parent: &Node, name: &str) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// As above.
    fn remove_directory(&self, parent: &Node, name: &str) -> Result<()>;

    /// Renames a file; an existing one at the new name is replaced.
    ///
    /// # Errors
    ///
    /// As above.
    fn rename(&self, parent: &Node, name: &str, new_parent: &Node, new_name: &str) -> Result<()>;

    /// Size in bytes of the file at a path below `from`, as `stat` reports it.
    ///
    /// # Errors
    ///
    /// As above.
    fn stat(&self, from: &Node, path: &str) -> Result<u64>;

    /// Names in a directory, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// As above.
    fn list(&self, directory: &Node) -> Result<Vec<String>>;

    /// Truncates or extends a file to `size` bytes.
    ///
    /// # Errors
    ///
    /// As above.
    fn truncate(&self, file: &Node, size: u64) -> Result<()>;

    /// Allocates blocks for a range in bytes; the file grows to cover it (`fallocate` without
    /// flags).
    ///
    /// # Errors
    ///
    /// As above.
    fn allocate(&self, file: &Node, offset: u64, length: u64) -> Result<()>;

    /// Punches a hole into a file, whose size stays (`fallocate` with `PUNCH_HOLE`).
    ///
    /// # Errors
    ///
    /// As above.
    fn punch(&self, file: &Node, offset: u64, length: u64) -> Result<()>;

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// As above.
    fn write(&self, file: &Node, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Fills `into` from a range that lies within the file.
    ///
    /// # Errors
    ///
    /// As above.
    fn read(&self, file: &Node, offset: u64, into: &mut [u8]) -> Result<()>;

    /// The free space.
    ///
    /// # Errors
    ///
    /// As above.
    fn room(&self) -> Result<Room>;

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// As above.
    fn sync_all(&self) -> Result<()>;

    /// Makes a file durable (`fsync`).
    ///
    /// # Errors
    ///
    /// As above.
    fn sync(&self, file: &Node) -> Result<()>;

    /// Sets an extended attribute, by its full name (`user.x`).
    ///
    /// # Errors
    ///
    /// As above.
    fn set_attribute(&self, file: &Node, name: &str, value: &[u8]) -> Result<()>;
}

/// Removes everything in a directory, but not the directory.
///
/// # Errors
///
/// The first error.
pub fn empty(target: &dyn Target, directory: &Node) -> Result<()> {
    for name in target.list(directory)? {
        if target.unlink(directory, &name).is_ok() {
            continue;
        }
        let below = target.directory(directory, &name)?;
        let done = empty(target, &below);
        target.close(below);
        done?;
        target.remove_directory(directory, &name)?;
    }
    Ok(())
}

/// Checks that a workload fits.
///
/// # Errors
///
/// If it does not; the message has the needed and the free space.
pub fn check_room(target: &dyn Target, workload: &dyn Workload, plan: &Plan) -> Result<()> {
    let (needs, room) = (workload.needs(plan), target.room()?);
    let (name, tasks) = (workload.name(), tasks(plan.tasks));
    if room.bytes < needs.bytes {
        // Rounded up, since what is free is rounded down.
        let needed = needs.bytes.checked_next_multiple_of(MEBIBYTE);
        bail!(
            "no room: {name} with {tasks} needs {}, {} are free",
            size(needed.unwrap_or(needs.bytes)),
            size(room.bytes)
        );
    }
    match room.inodes {
        Some(free) if free < needs.inodes => bail!(
            "no room: {name} with {tasks} needs {} inodes, {free} are free",
            needs.inodes
        ),
        _ => Ok(()),
    }
}

/// The error of a read beyond the end of the file.
fn short_read<T>() -> Result<T> {
    bail!("a read met the end of a file that should be longer")
}
