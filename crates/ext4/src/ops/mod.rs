//! The operations of a volume, each a composition of inodes, directories, attributes and orphans
//! in one handle where that is possible.
//!
//! Locks in every operation: directories first (an ancestor before its descendant; the key of the
//! lock is the step of the operation), then inodes by number, then the handle is started. Whatever
//! may wait for a commit (a full disk, the zeroing of a file's tail) happens without a handle.

mod attributes;
mod birth;
mod file;
mod listing;
mod namespace;
mod reap;
mod rename;
mod symlink;
mod sync;
mod xattr;

use std::sync::Arc;

use pext4_ondisk::inode::InodeFlags;

use crate::dir::{self, DirectoryFile};
use crate::error::{Error, Refusal, Result};
use crate::inode::Inode;
use crate::types::{Entry, InodeNumber};
use crate::volume::Volume;

/// Longest name in bytes.
pub const NAME_LENGTH: usize = 255;
/// Links an inode other than a directory may have.
const MOST_LINKS: u16 = 65_000;
/// How often an operation that met a full disk is tried again after a commit.
const FULL_RETRIES: u32 = 3;

/// Metadata blocks that a change of one directory may dirty: leaf splits and the index path, for
/// each new block its bitmap, descriptor and way through the extent tree, the directory's inode.
const DIRECTORY_CREDITS: u32 = dir::MOST_BLOCKS_CHANGED + 12 * dir::MOST_BLOCKS_ADDED + 1;
/// Metadata blocks that claiming or freeing an inode may dirty, its orphan entry included.
const INODE_CREDITS: u32 = 10;

impl Volume {
    /// Runs an operation; applies the volume's policy to corruption it meets, and tries again
    /// after a commit while the disk is full only because freed space is not yet durable.
    pub(crate) fn run<R>(&self, mut operation: impl FnMut() -> Result<R>) -> Result<R> {
        let mut tries = 0;
        loop {
            match operation() {
                Err(error) if error.is(Refusal::NoSpace) && tries < FULL_RETRIES && self.inodes.groups.has_pending_frees() => {
                    tries += 1;
                    self.inodes.store.journal().commit_running()?;
                }
                Err(error) => return Err(self.inodes.store.judge(error)),
                Ok(result) => return Ok(result),
            }
        }
    }

    /// An inode that must be a directory.
    pub(crate) fn directory(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        let inode = self.inodes.get(number)?;
        if !inode.is_directory() {
            return Err(Refusal::NotADirectory.into());
        }
        dir::check_form(&inode)?;
        Ok(inode)
    }

    /// The inode a directory entry leads to: entries to unused inodes are corruption.
    pub(crate) fn entry_inode(&self, directory: &Inode, number: InodeNumber) -> Result<Arc<Inode>> {
        if number < self.inodes.store.geometry.first_inode && number != InodeNumber::ROOT {
            return Err(bad_entry(directory, number, "a reserved inode"));
        }
        self.inodes.get(number).map_err(|error| {
            if error.is(Refusal::Stale) { bad_entry(directory, number, "an inode that is not in use") } else { error }
        })
    }

    /// The names of a directory, to look at.
    pub(crate) fn names<'a>(&'a self, directory: &'a Arc<Inode>) -> DirectoryFile<'a, 'a> {
        DirectoryFile::reading(&self.inodes, &self.directory_settings, directory)
    }

    /// An entry to give out, its inode held.
    pub(crate) fn hand_out(&self, inode: &Inode) -> Entry {
        self.inodes.hold(inode);
        Entry { inode: inode.number(), attributes: inode.attributes() }
    }
}

fn bad_entry(directory: &Inode, number: InodeNumber, what: &str) -> Error {
    pext4_ondisk::Corrupt::new("directory entry", format!("leads to {what}, {number}"))
        .in_inode(directory.number())
        .into()
}

/// The key under which an operation takes the lock of its only inode.
fn lock_key(inode: &Inode) -> u64 {
    if inode.is_directory() { 0 } else { u64::from(inode.number().get()) }
}

/// Refuses names that ext4 cannot hold.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_LENGTH {
        return Err(Refusal::NameTooLong.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Refusal::Invalid.into());
    }
    Ok(())
}

/// Refuses `.` and `..`, which cannot be made, removed or moved.
fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." {
        return Err(Refusal::Exists.into());
    }
    Ok(())
}

/// Refuses changes of a directory that was removed or is immutable.
fn check_directory(directory: &Inode, removes: bool) -> Result<()> {
    let (links, flags) = directory.state(|state| (state.slot.links, state.slot.flags));
    if links == 0 {
        return Err(Refusal::NotFound.into());
    }
    if flags.contains(InodeFlags::IMMUTABLE) || (removes && flags.contains(InodeFlags::APPEND)) {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}

/// Refuses to touch a file that is immutable or append-only.
fn check_changeable(inode: &Inode) -> Result<()> {
    let flags = inode.state(|state| state.slot.flags);
    if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}
