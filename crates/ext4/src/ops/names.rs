//! Which part of a directory an operation on one name locks.
//!
//! - *Whole*: the directory, exclusively.
//! - *Leaf*: the directory shared, and, while the leaf changes, the one leaf that contains the name
//!   or would contain it. Other threads add and remove names in other leaves at the same time. This
//!   needs an index, a name whose hash does not continue in the next leaf, and room in the leaf.
//!   Splits, renames and everything else that affects more than one leaf lock the whole directory.
//!
//! An operation on a leaf first looks for the name without the leaf's lock and does everything that
//! it can do without it (starts its handle, creates the inode). Then it takes the lock, looks again
//! if another thread has changed the leaf meanwhile, and changes the leaf. So the leaf is locked
//! for a small part of the operation.
//!
//! In either case the first look takes the leaf's lock for writing and keeps a reference to its
//! buffer until the change: the leaf's cache lines move to this core once, and the buffer cache is
//! searched once.
//!
//! An operation on a leaf restarts with the whole directory ([`AttemptError::Restart`]) if a leaf
//! is not enough from the start, or if under the leaf's lock the name has appeared or disappeared
//! or the room is gone.

use std::cell::Cell;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::directory::Entry;
use pext4_sync::{BiasedReadGuard, BiasedWriteGuard, ShardRef};

use super::attempt::{Attempt, AttemptError, last_attempt};
use super::{DIRECTORY_CREDITS, ENTRY_CREDITS, check_directory, lock_exclusive, lock_shared};
use crate::dir::{self, FoundEntry, SeenLeaf, Sought, Vacancy};
use crate::error::{Error, Refusal, Result};
use crate::inode::Inode;
use crate::options::DirectoryLocks;
use crate::statistics::Event;
use crate::store::now;
use crate::volume::Volume;

/// What an operation does with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Adds it.
    Add,
    /// Removes it.
    Remove,
}

/// The part of the directory that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The leaf of the name, while it is changed.
    Leaf,
    /// All of it, from the lookup to the end of the operation.
    Whole,
}

/// The result of a lookup, and the locks that keep it valid until the change.
pub(super) struct Located<'a> {
    /// The name's entry, if it exists.
    pub found: Option<FoundEntry>,
    vacancy: Option<Vacancy>,
    locks: Locks<'a>,
}

/// The locks of an operation on one name, and the leaf that was read.
enum Locks<'a> {
    Whole {
        leaf: Cell<Option<SeenLeaf>>,
        _directory: BiasedWriteGuard<'a, ()>,
    },
    Leaf(InLeaf<'a>),
}

/// A name that was looked up and whose leaf other threads may change until it is locked.
struct InLeaf<'a> {
    leaf: SeenLeaf,
    /// Whether this operation has removed the name itself.
    is_own_removal: Cell<bool>,
    _directory: BiasedReadGuard<'a, ()>,
}

impl Located<'_> {
    /// Metadata blocks that adding the name may dirty: if a leaf has room, the leaf and the
    /// directory's inode.
    pub(super) fn adding_credits(&self) -> u32 {
        match self.vacancy {
            Some(_) => ENTRY_CREDITS,
            None => DIRECTORY_CREDITS,
        }
    }

    /// Passes on what an operation returned about the name's inode. If it failed and another thread
    /// has changed the leaf, the name may be gone and its inode freed, which could be the reason:
    /// then the attempt restarts.
    pub(super) fn restart_if_changed<R>(&self, result: Attempt<R>) -> Attempt<R> {
        match &self.locks {
            Locks::Leaf(place)
                if result.is_err() && !place.is_own_removal.get() && place.leaf.has_changed() =>
            {
                Err(AttemptError::Restart)
            }
            _ => result,
        }
    }
}

fn entry_or_vacancy(sought: Sought) -> (Option<FoundEntry>, Option<Vacancy>) {
    match sought {
        Sought::Entry(entry) => (Some(entry), None),
        Sought::Vacancy(vacancy) => (None, Some(vacancy)),
        Sought::Full => (None, None),
    }
}

impl Volume {
    /// Runs an operation on one name: with the lock of its leaf, and if that attempt restarts, with
    /// the lock of the whole directory.
    pub(super) fn in_leaf_or_whole<R>(
        &self,
        directory: &Inode,
        mut operation: impl FnMut(Part) -> Attempt<R>,
    ) -> Result<R> {
        let tally = &self.inodes.store.tally;
        if self.has_leaf_locks(directory) {
            match operation(Part::Leaf) {
                Err(AttemptError::Restart) => tally.count(Event::LeafRestarts),
                done => {
                    tally.count(Event::NamesInLeaf);
                    return last_attempt(done);
                }
            }
        }
        tally.count(Event::NamesInWhole);
        last_attempt(operation(Part::Whole))
    }

    pub(super) fn has_leaf_locks(&self, directory: &Inode) -> bool {
        let options = &self.inodes.store.options;
        options.scaling.directory == DirectoryLocks::Leaves
            && !options.read_only
            && dir::is_indexed(directory)
    }

    /// Locks a directory, refuses one that cannot be changed, and looks up a name.
    pub(super) fn locate<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
        part: Part,
    ) -> Attempt<Located<'a>> {
        if part == Part::Leaf {
            return self.locate_in_leaf(directory, name, change);
        }
        let guard = lock_exclusive(directory)?;
        check_directory(directory, change)?;
        let names = self.names(directory).for_update();
        let (found, vacancy) = match change {
            Change::Add => entry_or_vacancy(dir::seek(&names, name)?),
            Change::Remove => (dir::find(&names, name)?, None),
        };
        Ok(Located {
            found,
            vacancy,
            locks: Locks::Whole {
                leaf: Cell::new(names.into_last_leaf()),
                _directory: guard,
            },
        })
    }

    fn locate_in_leaf<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
    ) -> Attempt<Located<'a>> {
        let guard = lock_shared(directory)?;
        check_directory(directory, change)?;
        let names = self.names(directory);
        let name_leaf = dir::leaf_of(&names, name)?.ok_or(AttemptError::Restart)?;
        let names = names.for_update();
        let (found, vacancy) = match change {
            Change::Add => match name_leaf.seek(&names, name)? {
                Sought::Full => return Err(AttemptError::Restart),
                sought => entry_or_vacancy(sought),
            },
            Change::Remove => (name_leaf.find(&names, name)?, None),
        };
        let leaf = names.into_last_leaf().ok_or(AttemptError::Restart)?;
        Ok(Located {
            found,
            vacancy,
            locks: Locks::Leaf(InLeaf {
                leaf,
                is_own_removal: Cell::new(false),
                _directory: guard,
            }),
        })
    }

    /// Adds the name, which did not exist when it was located, and sets the directory's times.
    pub(super) fn add_located(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Inode,
    ) -> Attempt<()> {
        let new = Entry {
            inode: inode.number(),
            file_type: Some(inode.file_type()),
            name,
        };
        match (&located.locks, located.vacancy) {
            (Locks::Whole { .. }, None) => {
                return Ok(self.insert_name(handle, directory, name, inode)?);
            }
            (Locks::Whole { leaf, .. }, Some(vacancy)) => {
                let names = self.names_to_change(directory, handle);
                vacancy.fill(&mut names.with_last_leaf(leaf.take()), &new)?;
            }
            (Locks::Leaf(place), vacancy) => {
                let mut names = self.names_to_change(directory, handle);
                if !names.lock_leaf(&place.leaf).add(vacancy, &new)? {
                    return Err(AttemptError::Restart);
                }
            }
        }
        directory.note_names_changed(handle, now());
        Ok(())
    }

    /// Removes the name, which existed when it was located, and sets the directory's times.
    pub(super) fn remove_located(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Attempt<()> {
        let mut names = self.names_to_change(directory, handle);
        match &located.locks {
            Locks::Whole { leaf, .. } => {
                let found = located.found.ok_or(Error::from(Refusal::NotFound))?;
                dir::remove_found(&mut names.with_last_leaf(leaf.take()), name, &found)?;
            }
            Locks::Leaf(place) => {
                let removed = names.lock_leaf(&place.leaf).remove(located.found, name);
                place.is_own_removal.set(!matches!(removed, Ok(false)));
                if !removed? {
                    return Err(AttemptError::Restart);
                }
            }
        }
        directory.note_names_changed(handle, now());
        Ok(())
    }

    /// Looks up a name, holds its inode and returns it. The caller holds the directory's lock
    /// shared.
    pub(super) fn hold_named(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<ShardRef<Inode>>> {
        let hold = |inode: &Inode| self.inodes.hold(inode);
        let release = |inode: &Inode| self.forget_under_lock(inode.number());
        self.look_up(directory, name, hold, release)
    }

    /// As [`Volume::hold_named`], without a hold.
    pub(super) fn find_named(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<ShardRef<Inode>>> {
        self.look_up(directory, name, |_| (), |_| ())
    }

    /// Looks up a name and calls `hold` with its inode. If another thread removes a name from the
    /// leaf meanwhile, which needs the leaf's lock only, this is undone with `release` and
    /// repeated. A search of one leaf is shorter than a removal from it, so each turn is likely to
    /// be the last one, whatever others do.
    fn look_up(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        hold: impl Fn(&Inode),
        release: impl Fn(&Inode),
    ) -> Result<Option<ShardRef<Inode>>> {
        let entry_inode = |found: Option<FoundEntry>| {
            let Some(found) = found else {
                return Ok(None);
            };
            let inode = self.entry_inode(directory, found.inode)?;
            hold(&inode);
            Ok(Some(inode))
        };
        let names = self.names(directory);
        let name_leaf = if self.has_leaf_locks(directory) {
            dir::leaf_of(&names, name)?
        } else {
            None
        };
        let Some(name_leaf) = name_leaf else {
            return entry_inode(dir::find(&names, name)?);
        };
        loop {
            let names = self.names(directory);
            let inode = entry_inode(name_leaf.find(&names, name)?);
            let leaf = names.into_last_leaf();
            if !leaf.is_some_and(|leaf| leaf.has_lost_names()) {
                return inode;
            }
            if let Ok(Some(inode)) = &inode {
                release(inode);
            }
        }
    }
}
