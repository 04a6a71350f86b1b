//! The operations of a volume, each a composition of inodes, directories, attributes and orphans
//! in one handle where that is possible.
//!
//! Lock order of every operation: directories first (an ancestor before its descendant; the key of
//! the lock is the step of the operation), then inodes by number, then the operation starts its
//! handle, then it locks a leaf of a directory that it holds shared (`names`). Whatever may wait
//! for a commit (a full disk, the zeroing of a file's tail) happens without a handle.

mod access;
mod attempt;
mod attributes;
mod casefold;
mod encrypted;
mod fast_commit;
mod file;
pub(crate) mod kept_content;
mod label;
mod listing;
mod names;
mod namespace;
mod new_inode;
mod projects;
mod ready_lists;
mod reap;
mod rename;
mod statfs;
mod symlink;
mod sync;
mod trim;
mod usage;
mod values;
mod walk;
mod xattr;

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::directory::NAME_MAX;
use pext4_ondisk::inode::InodeFlags;
use pext4_sync::{BiasedReadGuard, BiasedWriteGuard, ShardRef};

use crate::dir::{self, DirectoryFile};
use crate::error::{Error, Refusal, Result};
use crate::groups::SpaceActivity;
use crate::inode::Inode;
use crate::statistics::Event;
use crate::types::{Entry, InodeNumber};
use crate::volume::Volume;
use names::Change;

/// How often an operation that failed with a full disk is retried after a commit.
const FULL_RETRIES: u32 = 3;
/// How often it is retried where blocks are free, if only with the next commit: each time, others
/// have taken what the last commit released.
const CROWDED_RETRIES: u32 = 100;

/// Metadata blocks that a change of one directory may dirty: leaf splits and the index path, for
/// each new block its bitmap, descriptor and way through the extent tree, the directory's inode.
const DIRECTORY_CREDITS: u32 = dir::MAX_BLOCKS_CHANGED + 12 * dir::MAX_BLOCKS_ADDED + 1;
/// Metadata blocks that changing one name in its leaf may dirty: the leaf and the directory's
/// inode.
const ENTRY_CREDITS: u32 = 2;
/// Metadata blocks that claiming or freeing an inode may dirty, its orphan entry included.
const INODE_CREDITS: u32 = 10;

impl Volume {
    /// Runs an operation and applies the volume's error policy to corruption that it finds. If the
    /// operation fails with a full disk although a commit would release freed space, it is retried
    /// after that commit. It is also retried if space became free while it searched. Where others
    /// take that space first, it goes on for many commits, but not forever. The caller holds no
    /// lock, and the operation has released its own at its end.
    pub(crate) fn run<R>(&self, operation: impl FnMut() -> Result<R>) -> Result<R> {
        let result = self.run_locked(operation);
        self.reap_forgotten();
        result
    }

    /// As [`Volume::run`], for a part of an operation during which the caller holds locks. The
    /// caller calls [`Volume::reap_forgotten`] without them.
    fn run_locked<R>(&self, mut operation: impl FnMut() -> Result<R>) -> Result<R> {
        let store = &self.inodes.store;
        let mut tries = 0;
        let mut activity = SpaceActivity::default();
        loop {
            let result = operation();
            if let Err(error) = &result
                && error.is(Refusal::NoSpace)
                && tries < self.retries_of_full()
            {
                tries += 1;
                if self.inodes.may_free_by_commit() {
                    store.tally.count(Event::FullWaits);
                    store.journal().commit_running()?;
                    continue;
                }
                if self.inodes.groups.has_new_space(&mut activity) {
                    continue;
                }
            }
            let result = result.map_err(|error| store.apply_error_policy(error));
            store.journal_noted_errors();
            return result;
        }
    }

    /// How often an operation may be retried with the space that there is now.
    fn retries_of_full(&self) -> u32 {
        match self.inodes.groups.has_free_blocks() {
            true => CROWDED_RETRIES,
            false => FULL_RETRIES,
        }
    }

    /// The inode of a number that comes from a caller. He gets none that belongs to the file system
    /// itself (`Refused(Stale)`): no name leads there, and a change of one may destroy the image.
    pub(crate) fn user_inode(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        let store = &self.inodes.store;
        let is_there = number.get() <= store.geometry.inodes_count;
        if number != InodeNumber::ROOT && !(is_there && store.may_have_name(number)) {
            return Err(Refusal::Stale.into());
        }
        let inode = self.inodes.get(number)?;
        if self.is_value(&inode) {
            return Err(Refusal::Stale.into());
        }
        Ok(inode)
    }

    /// Whether an inode is the value of an attribute.
    fn is_value(&self, inode: &Inode) -> bool {
        self.inodes.has_values() && inode.flags().contains(InodeFlags::EA_INODE)
    }

    /// The inode of this number, which must be a directory.
    pub(crate) fn directory(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        let inode = self.user_inode(number)?;
        if !inode.is_directory() {
            return Err(Refusal::NotADirectory.into());
        }
        Ok(inode)
    }

    /// Refuses to change a file that is immutable or append-only, or the journal.
    fn check_changeable(&self, inode: &Inode) -> Result<()> {
        let flags = inode.flags();
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            || self.inodes.store.is_named_journal(inode.number())
        {
            return Err(Refusal::NotPermitted.into());
        }
        Ok(())
    }

    /// The inode that a directory entry other than `.` and `..` refers to. Entries that refer to
    /// the directory itself, the root, an inode of the file system itself or an unused one are
    /// corrupt.
    pub(crate) fn entry_inode(
        &self,
        directory: &Inode,
        number: InodeNumber,
    ) -> Result<ShardRef<Inode>> {
        self.checked_entry(directory, number, || self.inodes.get(number))
    }

    /// As [`Volume::entry_inode`], for a caller that removes the entry.
    pub(crate) fn entry_inode_to_remove(
        &self,
        directory: &Inode,
        number: InodeNumber,
    ) -> Result<ShardRef<Inode>> {
        self.checked_entry(directory, number, || self.inodes.get_to_remove(number))
    }

    fn checked_entry(
        &self,
        directory: &Inode,
        number: InodeNumber,
        get: impl FnOnce() -> Result<ShardRef<Inode>>,
    ) -> Result<ShardRef<Inode>> {
        if !self.inodes.store.may_have_name(number) {
            return Err(bad_entry(directory, number, "a reserved inode"));
        }
        if number == directory.number() {
            return Err(bad_entry(directory, number, "the directory itself"));
        }
        let inode = get().map_err(|error| {
            if error.is(Refusal::Stale) {
                bad_entry(directory, number, "an inode that is not in use")
            } else {
                error
            }
        })?;
        if inode.links() == 0 {
            return Err(bad_entry(directory, number, "an inode without links"));
        }
        if self.is_value(&inode) {
            return Err(bad_entry(directory, number, "the value of an attribute"));
        }
        Ok(inode)
    }

    /// Passes on the result of an operation under `handle`, which had made `before` changes when
    /// the operation began. There is no undo: if the device or the image made the operation fail
    /// after its first change, a commit would make half of it durable, so this stops the journal.
    /// (Refusals happen before the first change, or after the changes were reverted.)
    pub(crate) fn stop_if_half_done<R>(
        &self,
        handle: &Handle<'_>,
        before: u64,
        result: Result<R>,
    ) -> Result<R> {
        if let Err(error) = &result
            && handle.changes() > before
            && matches!(error, Error::Io(_) | Error::Corrupt(_))
        {
            let what = "an operation was left half done";
            self.inodes.store.stop_half_done(what, error);
        }
        result
    }

    /// The names of a directory, for reading.
    pub(crate) fn names<'a>(&'a self, directory: &'a Arc<Inode>) -> DirectoryFile<'a, 'a> {
        DirectoryFile::reading(&self.inodes, self.directories.of(directory), directory)
    }

    /// The names of a directory, for changes.
    pub(crate) fn names_to_change<'a, 'h>(
        &'a self,
        directory: &'a Arc<Inode>,
        handle: &'a mut Handle<'h>,
    ) -> DirectoryFile<'a, 'h> {
        let settings = self.directories.of(directory);
        DirectoryFile::changing(&self.inodes, settings, directory, handle)
    }

    /// An entry to return to the caller, who holds its inode from now on.
    pub(crate) fn hand_out(&self, inode: &Inode) -> Entry {
        self.inodes.hold(inode);
        Entry {
            inode: inode.number(),
            attributes: inode.attributes(),
        }
    }
}

fn bad_entry(directory: &Inode, number: InodeNumber, what: &str) -> Error {
    pext4_ondisk::Corrupt::new("directory entry", format!("leads to {what}, {number}"))
        .in_inode(directory.number())
        .into()
}

/// Takes the lock of an operation's only inode, shared. An inode is marked dead under this lock, so
/// one that was freed while the caller waited is refused (`Refused(Stale)`).
pub(crate) fn lock_shared(inode: &Inode) -> Result<BiasedReadGuard<'_, ()>> {
    let guard = inode.lock.read_keyed(lock_key(inode));
    check_alive(inode)?;
    Ok(guard)
}

/// As [`lock_shared`], exclusive.
pub(crate) fn lock_exclusive(inode: &Inode) -> Result<BiasedWriteGuard<'_, ()>> {
    let guard = inode.lock.write_keyed(lock_key(inode));
    check_alive(inode)?;
    Ok(guard)
}

fn check_alive(inode: &Inode) -> Result<()> {
    if inode.is_dead() {
        return Err(Refusal::Stale.into());
    }
    Ok(())
}

/// Refuses to read a directory that was removed while it is held: it has no names any more, not
/// even `.` and `..`.
fn check_not_removed(directory: &Inode) -> Result<()> {
    if directory.links() == 0 {
        return Err(Refusal::NotFound.into());
    }
    Ok(())
}

/// The key under which an operation takes the lock of its only inode.
pub(crate) fn lock_key(inode: &Inode) -> u64 {
    if inode.is_directory() {
        0
    } else {
        u64::from(inode.number().get())
    }
}

/// Refuses names that ext4 cannot hold.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Refusal::NameTooLong.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Refusal::Invalid.into());
    }
    Ok(())
}

/// Refuses `.` and `..`, which always exist, and names that ext4 cannot hold.
fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." {
        return Err(Refusal::Exists.into());
    }
    Ok(())
}

/// Refuses this change of names in a directory that was removed or is immutable, and a removal from
/// one that is append-only.
fn check_directory(directory: &Inode, change: Change) -> Result<()> {
    let flags = directory.flags();
    if directory.links() == 0 {
        return Err(Refusal::NotFound.into());
    }
    let is_kept = match change {
        Change::Add => flags.contains(InodeFlags::IMMUTABLE),
        Change::Remove => flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
    };
    if is_kept {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}
