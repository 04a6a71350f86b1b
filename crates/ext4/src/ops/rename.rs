//! Moving names.
//!
//! Locks, in this order: a move between two directories takes the volume's rename lock, which keeps
//! the tree above both unchanged while this thread walks it to find out which directory is above
//! which and whether a directory would be moved into itself. Then the two parents, an ancestor
//! before its descendant; then directories that are moved or replaced (see
//! [`attempt`](super::attempt)); then other inodes by number. One handle changes both directories,
//! both entries and all counts: after a crash the names are the old ones or the new ones.

mod exchange;
mod locks;

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_sync::ShardRef;

use super::attempt::{Attempt, LockMode, last_attempt};
use super::encrypted::check_makes_names;
use super::names::Change;
use super::new_inode::NewInode;
use super::{
    DIRECTORY_CREDITS, ENTRY_CREDITS, INODE_CREDITS, check_directory, check_name, lock_exclusive,
    projects,
};
use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{Acls, CreateAttributes, FileType, InodeNumber, RenameMode, Whiteout};
use crate::volume::Volume;
use locks::{Ancestors, lock_inodes, lock_parents};

/// One end of a move.
struct End<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
}

impl End<'_> {
    fn is_elsewhere(&self, other: &Self) -> bool {
        self.directory.number() != other.directory.number()
    }

    /// Refuses a move unless the names of both directories can change.
    fn check_makes_names(&self, other: &Self) -> Result<()> {
        check_makes_names(self.directory)?;
        check_makes_names(other.directory)
    }
}

/// A move that leaves one name less, unless it leaves a whiteout.
struct Move<'a> {
    source: &'a End<'a>,
    target: &'a End<'a>,
    moved: &'a Arc<Inode>,
    /// The inode that is replaced, if any.
    other: Option<&'a Arc<Inode>>,
}

impl Move<'_> {
    fn crosses(&self) -> bool {
        self.source.is_elsewhere(self.target)
    }
}

/// What kind of move it is.
#[derive(Clone, Copy)]
struct RenameOptions<'a> {
    mode: RenameMode,
    /// The whiteout to leave under the old name, if any.
    whiteout: Option<&'a Whiteout<'a>>,
}

impl Volume {
    /// Moves a name.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | Exists | NotEmpty | IsADirectory | NotADirectory | Invalid | Busy |
    /// TooManyLinks | NoSpace | DirectoryFull | NameTooLong | NotPermitted | OtherProject | NoKey |
    /// ReadOnly)`, `Corrupt`, `Io`. `Busy` is `.` or `..`, `NotPermitted` a file or directory that
    /// is immutable or append-only, `OtherProject` an inode whose project is not that which its new
    /// directory passes on, `NoKey` an encrypted parent.
    pub fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_with(
            (parent, name),
            (new_parent, new_name),
            RenameOptions {
                mode,
                whiteout: None,
            },
        )
    }

    /// Moves a name and leaves a whiteout in its place (`RENAME_WHITEOUT`): a character device 0:0
    /// without permissions. An overlay file system uses it to hide the name in the layers below.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`]; `Refused(Invalid)` for an exchange, `Refused(NoInodes)`, and
    /// `Refused(AttributesFull | TooBig)` for a list that is too large.
    pub fn rename_leaving_whiteout(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
        whiteout: &Whiteout<'_>,
    ) -> Result<()> {
        if mode == RenameMode::Exchange {
            return Err(Refusal::Invalid.into());
        }
        self.rename_with(
            (parent, name),
            (new_parent, new_name),
            RenameOptions {
                mode,
                whiteout: Some(whiteout),
            },
        )
    }

    fn rename_with(
        &self,
        (parent, name): (InodeNumber, &[u8]),
        (new_parent, new_name): (InodeNumber, &[u8]),
        options: RenameOptions<'_>,
    ) -> Result<()> {
        self.run(|| {
            check_movable(name)?;
            check_movable(new_name)?;
            self.inodes.store.check_writable()?;
            let from = self.directory(parent)?;
            let to = self.directory(new_parent)?;
            let source = End {
                directory: &from,
                name,
            };
            let target = End {
                directory: &to,
                name: new_name,
            };
            let replaced = self.rename_under_locks(&source, &target, options);
            self.reap_unused_values();
            match replaced? {
                Some(inode) => self.reap_unnamed(&inode),
                None => Ok(()),
            }
        })
    }

    /// Locks the parents and moves the name. Returns the inode that lost its last name, if any.
    fn rename_under_locks(
        &self,
        source: &End<'_>,
        target: &End<'_>,
        options: RenameOptions<'_>,
    ) -> Result<Option<Arc<Inode>>> {
        let (from, to) = (source.directory, target.directory);
        if !source.is_elsewhere(target) {
            return self.retry_under_rename_lock(|lock_mode| {
                let _names = lock_exclusive(from)?;
                self.rename_locked(source, target, options, &Ancestors::same_parent(lock_mode))
            });
        }
        let _tree = self.rename_lock.lock();
        let ancestors = Ancestors {
            from: self.ancestors_of(from)?,
            to: self.ancestors_of(to)?,
            lock_mode: LockMode::Wait,
        };
        let _names = lock_parents(from, to, &ancestors);
        last_attempt(self.rename_locked(source, target, options, &ancestors))
    }

    /// Moves the name; both parents are locked. Returns the inode that lost its last name, if any.
    fn rename_locked(
        &self,
        source: &End<'_>,
        target: &End<'_>,
        options: RenameOptions<'_>,
        ancestors: &Ancestors,
    ) -> Attempt<Option<Arc<Inode>>> {
        check_directory(source.directory, Change::Remove)?;
        let of_target = match options.mode {
            RenameMode::Exchange => Change::Remove,
            _ => Change::Add,
        };
        check_directory(target.directory, of_target)?;
        self.check_encoded(source.directory, source.name)?;
        self.check_encoding_of_new(target.directory, target.name)?;
        let found =
            dir::find(&self.names(source.directory), source.name)?.ok_or(Refusal::NotFound)?;
        let moved = self.entry_inode(source.directory, found.inode)?;
        let other = match dir::find(&self.names(target.directory), target.name)? {
            Some(other) => Some(self.entry_inode(target.directory, other.inode)?),
            None => None,
        };
        if ancestors.to.contains(&moved.number()) {
            return Err(Refusal::Invalid.into());
        }
        if other
            .as_ref()
            .is_some_and(|other| ancestors.from.contains(&other.number()))
        {
            let refusal = if options.mode == RenameMode::Exchange {
                Refusal::Invalid
            } else {
                Refusal::NotEmpty
            };
            return Err(refusal.into());
        }
        if self.is_respelling(source, target, options) {
            self.respell(source, target, &moved, ancestors.lock_mode)?;
            return Ok(None);
        }
        match (options.mode, other) {
            (RenameMode::NoReplace, Some(_)) => Err(Refusal::Exists.into()),
            (RenameMode::Exchange, None) => Err(Refusal::NotFound.into()),
            (RenameMode::Exchange, Some(other)) => {
                self.exchange(source, target, [&moved, &other], ancestors.lock_mode)?;
                Ok(None)
            }
            (_, Some(other)) if other.number() == moved.number() => Ok(None),
            (_, other) => {
                if other.is_some() {
                    check_directory(target.directory, Change::Remove)?;
                }
                let other = other.map(ShardRef::into_own);
                let change = Move {
                    source,
                    target,
                    moved: &moved,
                    other: other.as_ref(),
                };
                let has_ended = self.replace(&change, options.whiteout, ancestors.lock_mode)?;
                Ok(other.filter(|_| has_ended))
            }
        }
    }

    /// Whether a move changes only how a name of a casefolded directory is written. (Nothing is
    /// replaced then.)
    fn is_respelling(
        &self,
        source: &End<'_>,
        target: &End<'_>,
        options: RenameOptions<'_>,
    ) -> bool {
        !source.is_elsewhere(target)
            && options.mode != RenameMode::Exchange
            && options.whiteout.is_none()
            && self.is_other_spelling(source.directory, source.name, target.name)
    }

    fn respell(
        &self,
        source: &End<'_>,
        target: &End<'_>,
        moved: &Arc<Inode>,
        lock_mode: LockMode,
    ) -> Attempt<()> {
        self.check_changeable(moved)?;
        source.check_makes_names(target)?;
        let _locks = lock_inodes(&[moved], lock_mode)?;
        let credits = DIRECTORY_CREDITS + ENTRY_CREDITS + INODE_CREDITS;
        let mut handle = self.inodes.store.start(credits)?;
        let mut names = self.names_to_change(source.directory, &mut handle);
        let done = dir::respell(&mut names, source.name, target.name, moved.file_type());
        if done.is_ok() {
            source.directory.note_names_changed(&mut handle, now());
            self.note_moved(&mut handle, moved);
        }
        Ok(self.stop_if_half_done(&handle, 0, done)?)
    }

    /// Returns whether the replaced inode has lost its last name.
    fn replace(
        &self,
        change: &Move<'_>,
        whiteout: Option<&Whiteout<'_>>,
        lock_mode: LockMode,
    ) -> Attempt<bool> {
        let (moved, other) = (change.moved, change.other);
        self.check_changeable(moved)?;
        if let Some(other) = other {
            check_kinds(moved, other)?;
            self.check_changeable(other)?;
        }
        change.source.check_makes_names(change.target)?;
        let locked: Vec<&Arc<Inode>> = std::iter::once(moved).chain(other).collect();
        let locks = lock_inodes(&locked, lock_mode)?;
        projects::check_enters(change.target.directory, moved)?;
        if let Some(other) = other {
            self.check_replaceable(other)?;
        }
        if change.crosses() {
            self.check_parent_entry(moved)?;
            if moved.is_directory() && other.is_none() {
                self.check_room_for_subdirectory(change.target.directory)?;
            }
        }
        if let Some(whiteout) = whiteout {
            self.prepare_owners_of_new(change.source.directory, &whiteout.owner)?;
        }
        let (mut handle, left) = self.start_move(change, whiteout)?;
        let before = handle.changes();
        let done = self.move_name(&mut handle, change, left.as_ref());
        let done = self.stop_if_half_done(&handle, before, done);
        if let (Err(_), Some(left)) = (&done, &left) {
            self.discard_new_inode(&mut handle, left)?;
        }
        let has_ended = done?;
        drop((handle, locks));
        if let Some(left) = left {
            self.forget_under_lock(left.number());
        }
        Ok(has_ended)
    }

    /// Refuses to move a directory whose `..`, which has to change, cannot be read: before anything
    /// is changed.
    fn check_parent_entry(&self, moved: &Arc<Inode>) -> Result<()> {
        if moved.is_directory() {
            dir::parent(&self.names(moved))?;
        }
        Ok(())
    }

    /// Refuses to replace a directory that has names.
    fn check_replaceable(&self, other: &Arc<Inode>) -> Result<()> {
        if other.is_directory() && !dir::is_empty(&self.names(other))? {
            return Err(Refusal::NotEmpty.into());
        }
        Ok(())
    }

    /// Changes the entries and counts; true if the replaced inode has lost its last name.
    fn move_name(
        &self,
        handle: &mut Handle<'_>,
        change: &Move<'_>,
        left: Option<&Arc<Inode>>,
    ) -> Result<bool> {
        let &Move {
            source,
            target,
            moved,
            other,
        } = change;
        match other {
            Some(_) => self.replace_name(handle, target, moved)?,
            None => self.insert_name(handle, target.directory, target.name, moved)?,
        }
        match left {
            Some(left) => self.replace_name(handle, source, left)?,
            None => self.remove_name(handle, source.directory, source.name)?,
        }
        let crosses = change.crosses();
        if crosses {
            self.set_parent_entry(handle, target.directory, moved)?;
        }
        // If the move replaces a directory, the target's parent has as many subdirectories as
        // before, so the count does not have to be checked against the limit.
        if moved.is_directory() && (crosses || other.is_some()) {
            self.drop_subdirectory(handle, source.directory);
        }
        if moved.is_directory() && crosses && other.is_none() {
            self.add_subdirectory(handle, target.directory);
        }
        self.note_moved(handle, moved);
        match other {
            Some(other) if other.is_directory() => {
                self.drop_directory(handle, other)?;
                Ok(true)
            }
            Some(other) => self.drop_link(handle, other),
            None => Ok(false),
        }
    }

    /// Starts a handle for the move of a name and creates the whiteout, if any, to be left under
    /// the old name; it has no name yet.
    fn start_move(
        &self,
        change: &Move<'_>,
        whiteout: Option<&Whiteout<'_>>,
    ) -> Result<(Handle<'_>, Option<Arc<Inode>>)> {
        let ending = change.other.map_or(0, |other| self.reaping_credits(other));
        // A directory that is moved names its parent in a block of its own. The whiteout is another
        // new inode.
        let credits = DIRECTORY_CREDITS + 2 * ENTRY_CREDITS + 2 * INODE_CREDITS + ending;
        let Some(whiteout) = whiteout else {
            return Ok((self.inodes.store.start(credits)?, None));
        };
        let new = CreateAttributes {
            permissions: 0,
            ..whiteout.owner
        };
        let new_inode = NewInode {
            acls: Acls {
                access: whiteout.access_list,
                default: None,
            },
            ..NewInode::new(FileType::CharacterDevice, &new)
        };
        let directory = change.source.directory;
        let credits = credits + new_inode.acl_credits();
        self.create_with_lists(directory, &new_inode, |ready| {
            let mut handle = self.inodes.store.start(credits + ready.credits())?;
            let left = self.create_inode(&mut handle, directory, &new_inode, ready)?;
            Ok((handle, Some(left)))
        })
    }

    /// Makes an existing name refer to `inode`.
    fn replace_name(&self, handle: &mut Handle<'_>, end: &End<'_>, inode: &Inode) -> Result<()> {
        let mut names = self.names_to_change(end.directory, handle);
        dir::replace(&mut names, end.name, inode.number(), inode.file_type())?;
        end.directory.note_names_changed(handle, now());
        Ok(())
    }

    /// Makes the `..` of a directory that moved refer to its new parent; does nothing for other
    /// files.
    fn set_parent_entry(
        &self,
        handle: &mut Handle<'_>,
        to: &Arc<Inode>,
        moved: &Arc<Inode>,
    ) -> Result<()> {
        if !moved.is_directory() {
            return Ok(());
        }
        let mut names = self.names_to_change(moved, handle);
        dir::set_parent(&mut names, to.number())
    }

    fn note_moved(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) {
        let time = now();
        inode.edit(handle, Reach::Attributes, |state| state.slot.changed = time);
    }
}

fn check_movable(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." {
        return Err(Refusal::Busy.into());
    }
    Ok(())
}

/// A directory replaces only a directory, another file only another file.
fn check_kinds(moved: &Inode, other: &Inode) -> Result<()> {
    match (moved.is_directory(), other.is_directory()) {
        (true, false) => Err(Refusal::NotADirectory.into()),
        (false, true) => Err(Refusal::IsADirectory.into()),
        _ => Ok(()),
    }
}
