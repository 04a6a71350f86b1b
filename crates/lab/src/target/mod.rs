//! A file system as workloads see it: a volume in this process, or a directory of any mounted one.
//!
//! Calls are those of POSIX, relative to an open directory, and each costs what the side behind it
//! costs: the library is called without system calls, a path with one a call.

mod library;
mod path;

use std::os::fd::OwnedFd;

use anyhow::{Result, bail};
use pext4_fs::InodeNumber;

use crate::workloads::{Plan, Workload};

pub use library::{HOME, Library};
pub use path::MountedPath;

/// An open file or directory; given back by [`Target::close`].
#[derive(Debug)]
pub enum Node {
    /// An inode that a volume in this process holds for us.
    Held(InodeNumber),
    /// A descriptor.
    Open(OwnedFd),
}

/// What is free on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that we may take.
    pub bytes: u64,
    /// Inodes; `None` where they are made as needed.
    pub inodes: Option<u64>,
}

/// What a workload may do. Files are named by an open directory and a name in it; every call may be
/// made from many threads at once.
pub trait Target: Send + Sync {
    /// The directory below which all is ours.
    fn root(&self) -> &Node;

    /// Opens a directory that is there.
    ///
    /// # Errors
    /// The file system's, for this and every call below.
    fn directory(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Makes a directory and opens it.
    ///
    /// # Errors
    /// As above.
    fn make_directory(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Makes a file, which must not be there, and opens it for reading and writing.
    ///
    /// # Errors
    /// As above.
    fn create(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// As above.
    fn open(&self, parent: &Node, name: &str) -> Result<Node>;

    /// Closes what was opened.
    fn close(&self, node: Node);

    /// Removes a file's name.
    ///
    /// # Errors
    /// As above.
    fn unlink(&self, parent: &Node, name: &str) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As above.
    fn remove_directory(&self, parent: &Node, name: &str) -> Result<()>;

    /// Moves a name; one that is there is replaced.
    ///
    /// # Errors
    /// As above.
    fn rename(&self, parent: &Node, name: &str, new_parent: &Node, new_name: &str) -> Result<()>;

    /// Size of the file at a path of names below `from`, as `stat` tells it.
    ///
    /// # Errors
    /// As above.
    fn stat(&self, from: &Node, path: &str) -> Result<u64>;

    /// Names in a directory, without the two of every directory.
    ///
    /// # Errors
    /// As above.
    fn list(&self, directory: &Node) -> Result<Vec<String>>;

    /// Cuts or extends a file.
    ///
    /// # Errors
    /// As above.
    fn truncate(&self, file: &Node, size: u64) -> Result<()>;

    /// Blocks for a range of a file, which grows to cover it (`fallocate` without flags).
    ///
    /// # Errors
    /// As above.
    fn allocate(&self, file: &Node, offset: u64, length: u64) -> Result<()>;

    /// Makes a hole in a file, which stays as long as it is (`fallocate` with `PUNCH_HOLE`).
    ///
    /// # Errors
    /// As above.
    fn punch(&self, file: &Node, offset: u64, length: u64) -> Result<()>;

    /// Writes all bytes.
    ///
    /// # Errors
    /// As above.
    fn write(&self, file: &Node, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Fills `into`, which lies within the file.
    ///
    /// # Errors
    /// As above.
    fn read(&self, file: &Node, offset: u64, into: &mut [u8]) -> Result<()>;

    /// What is free.
    ///
    /// # Errors
    /// As above.
    fn room(&self) -> Result<Room>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// As above.
    fn sync_all(&self) -> Result<()>;

    /// Makes a file durable.
    ///
    /// # Errors
    /// As above.
    fn sync(&self, file: &Node) -> Result<()>;

    /// Sets an extended attribute in the `user.` namespace.
    ///
    /// # Errors
    /// As above.
    fn set_attribute(&self, file: &Node, name: &str, value: &[u8]) -> Result<()>;
}

/// Removes everything below a directory, but not the directory.
///
/// # Errors
/// The first that was met.
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

/// Whether a workload fits.
///
/// # Errors
/// It does not; what it needs and what there is.
pub fn check_room(target: &dyn Target, workload: &dyn Workload, plan: &Plan) -> Result<()> {
    let (needs, room) = (workload.needs(plan), target.room()?);
    let (name, tasks) = (workload.name(), plan.tasks);
    if room.bytes < needs.bytes {
        bail!(
            "no room: {name} with {tasks} tasks needs {} bytes, {} are free",
            needs.bytes,
            room.bytes
        );
    }
    match room.inodes {
        Some(free) if free < needs.inodes => bail!(
            "no room: {name} with {tasks} tasks needs {} inodes, {free} are free",
            needs.inodes
        ),
        _ => Ok(()),
    }
}

/// A read that met the end of the file.
fn short_read<T>() -> Result<T> {
    bail!("a read met the end of a file that should be longer")
}
