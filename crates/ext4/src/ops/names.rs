//! Which part of a directory an operation on one name locks.
//!
//! - *Whole*: the directory, exclusively.
//! - *Leaf*: the directory shared, and the leaf that has the name, or would have it, while it is
//!   changed. Others make and remove names in other leaves meanwhile. It needs an index, a name
//!   whose hash does not go on in the next leaf, and room in the leaf. Splits, renames and
//!   everything else that reaches beyond a leaf lock the whole.
//!
//! An operation on a leaf first looks for the name without the leaf's lock, does all that it can do
//! without it (starts its handle, makes the inode), takes the lock, looks again if others changed
//! the leaf meanwhile, and changes it. The leaf's lock is thus held for a small part of the
//! operation. It looks as the leaf's writer and keeps hold of its buffer until the change, so that
//! the lines of the leaf come to its core once and the cache is asked for it once. Whoever finds
//! under the lock that the name has come or gone, or that the room is no more, and whoever cannot do
//! with a leaf from the beginning, takes back what it did and begins again with the whole directory
//! (`Refused(Busy)`, within this module's callers alone).

use std::cell::Cell;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_sync::{BiasedReadGuard, BiasedWriteGuard, Near};

use super::{DIRECTORY_CREDITS, ENTRY_CREDITS, check_directory, lock_exclusive, lock_shared};
use crate::dir::{self, DirectoryBlocks as _, Found, SeenLeaf, Spot, Vacancy};
use crate::error::{Refusal, Result};
use crate::inode::leaves::{Leaf, LeafGuard};
use crate::inode::{Inode, present};
use crate::options::DirectoryLocks;
use crate::statistics::Event;
use crate::volume::Volume;

/// What is to be done with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is entered.
    Enter,
    /// It is removed.
    Remove,
}

/// What of the directory is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The leaf of the name, for the change.
    Leaf,
    /// All of it, from the look to the end.
    Whole,
}

/// A name that was looked for, in a directory that is locked as far as is needed.
pub(super) struct Located<'a> {
    /// What it leads to.
    pub found: Option<Found>,
    vacancy: Option<Vacancy>,
    locks: Locks<'a>,
}

/// What keeps others away.
enum Locks<'a> {
    Whole {
        _directory: BiasedWriteGuard<'a, ()>,
    },
    Leaf(InLeaf<'a>),
}

/// Where a name was located without the lock of its leaf.
struct InLeaf<'a> {
    spot: Spot,
    leaf: Leaf<'a>,
    /// Of the leaf, before it was looked at.
    changes: u64,
    /// The leaf itself, for who changes it.
    seen: Cell<Option<SeenLeaf>>,
    /// Whether this very operation took the name out of it.
    is_own_removal: Cell<bool>,
    _directory: BiasedReadGuard<'a, ()>,
}

impl InLeaf<'_> {
    fn has_changed(&self) -> bool {
        self.leaf.changes() != self.changes
    }
}

impl Located<'_> {
    /// Metadata blocks that entering the name may dirty: where a leaf has room, that and the
    /// directory's inode.
    pub(super) fn entering_credits(&self) -> u32 {
        match self.vacancy {
            Some(_) => ENTRY_CREDITS,
            None => DIRECTORY_CREDITS,
        }
    }

    /// What was found out about the inode of the name. The name may have gone meanwhile and its
    /// inode ended, which would explain any refusal: then `Refused(Busy)`.
    pub(super) fn unless_changed<R>(&self, result: Result<R>) -> Result<R> {
        match &self.locks {
            Locks::Leaf(place)
                if result.is_err() && !place.is_own_removal.get() && place.has_changed() =>
            {
                Err(Refusal::Busy.into())
            }
            _ => result,
        }
    }
}

impl Volume {
    /// Runs an operation on one name: with its leaf, and if that does not do (the operation refuses
    /// with `Busy`, for no other reason), with the whole directory.
    pub(super) fn in_leaf_or_whole<R>(
        &self,
        directory: &Inode,
        mut operation: impl FnMut(Part) -> Result<R>,
    ) -> Result<R> {
        let tally = &self.inodes.store.tally;
        if self.has_leaf_locks(directory) {
            match operation(Part::Leaf) {
                Err(error) if error.is(Refusal::Busy) => tally.count(Event::LeafRestarts),
                done => {
                    tally.count(Event::NamesInLeaf);
                    return done;
                }
            }
        }
        tally.count(Event::NamesInWhole);
        operation(Part::Whole)
    }

    pub(super) fn has_leaf_locks(&self, directory: &Inode) -> bool {
        let options = &self.inodes.store.options;
        options.scaling.directory == DirectoryLocks::Leaves
            && !options.read_only
            && dir::is_indexed(directory)
    }

    /// Locks a directory, which must be one that can be changed, and looks for a name.
    pub(super) fn locate<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
        part: Part,
    ) -> Result<Located<'a>> {
        if part == Part::Leaf {
            return self.locate_in_leaf(directory, name, change);
        }
        let guard = lock_exclusive(directory)?;
        check_directory(directory, change == Change::Remove)?;
        let names = self.names(directory);
        let found = dir::find(&names, name)?;
        let vacancy = match (change, &found) {
            (Change::Enter, None) => dir::vacancy(&names, name)?,
            _ => None,
        };
        Ok(Located {
            found,
            vacancy,
            locks: Locks::Whole { _directory: guard },
        })
    }

    fn locate_in_leaf<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
    ) -> Result<Located<'a>> {
        let guard = lock_shared(directory)?;
        check_directory(directory, change == Change::Remove)?;
        let names = self.names(directory);
        let spot = dir::spot(&names, name)?.ok_or(Refusal::Busy)?;
        let leaf = directory.leaves().leaf(spot.leaf(), names.count());
        let changes = leaf.changes_before_one();
        let names = names.before_a_change();
        let found = spot.find(&names, name)?;
        let vacancy = match (change, &found) {
            (Change::Enter, None) => Some(spot.vacancy(&names, name)?.ok_or(Refusal::Busy)?),
            _ => None,
        };
        Ok(Located {
            found,
            vacancy,
            locks: Locks::Leaf(InLeaf {
                spot,
                leaf,
                changes,
                seen: Cell::new(names.into_seen()),
                is_own_removal: Cell::new(false),
                _directory: guard,
            }),
        })
    }

    /// Enters the name, which led nowhere when it was located, and notes the directory's times.
    pub(super) fn enter_located(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let place = match (&located.locks, located.vacancy) {
            (Locks::Whole { .. }, None) => {
                return self.insert_name(handle, directory, name, inode);
            }
            (Locks::Whole { .. }, Some(_)) => None,
            (Locks::Leaf(place), _) => Some(place),
        };
        let mut vacancy = located.vacancy;
        let guard = place.map(|place| place.leaf.lock());
        let mut names = self
            .names_to_change(directory, handle)
            .having_seen(place.and_then(|place| place.seen.take()));
        if let Some(place) = place.filter(|place| place.has_changed()) {
            vacancy = match place.spot.find(&names, name)? {
                Some(_) => None,
                None => place.spot.vacancy(&names, name)?,
            };
        }
        let vacancy = vacancy.ok_or(Refusal::Busy)?;
        let filled = vacancy.fill(&mut names, name, inode.number(), inode.file_type());
        guard.inspect(LeafGuard::note_entry);
        filled?;
        directory.note_names_changed(handle, present());
        Ok(())
    }

    /// Removes the name, which was found, and notes the directory's times.
    pub(super) fn remove_located(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        let Locks::Leaf(place) = &located.locks else {
            return self.remove_name(handle, directory, name);
        };
        let guard = place.leaf.lock();
        let mut names = self
            .names_to_change(directory, handle)
            .having_seen(place.seen.take());
        if place.has_changed() && place.spot.find(&names, name)? != located.found {
            return Err(Refusal::Busy.into());
        }
        let removed = place.spot.remove(&mut names, name);
        guard.note_removal();
        place.is_own_removal.set(true);
        drop(guard);
        removed?;
        directory.note_names_changed(handle, present());
        Ok(())
    }

    /// Looks a name up and holds its inode, which is returned; the caller has the directory's lock,
    /// shared.
    pub(super) fn hold_named(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<Near<Inode>>> {
        let hold = |inode: &Inode| self.inodes.hold(inode);
        let release = |inode: &Inode| self.forget(inode.number(), 1);
        self.look_up(directory, name, hold, release)
    }

    /// As [`Volume::hold_named`], without a hold.
    pub(super) fn find_named(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<Near<Inode>>> {
        self.look_up(directory, name, |_| (), |_| ())
    }

    /// Looks a name up and does `hold` with its inode. If a name is removed from the leaf meanwhile,
    /// which needs the leaf's lock only, this is undone with `release` and repeated under that lock.
    fn look_up(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        hold: impl Fn(&Inode),
        release: impl Fn(&Inode),
    ) -> Result<Option<Near<Inode>>> {
        let entry_inode = |found: Option<Found>| {
            let Some(found) = found else {
                return Ok(None);
            };
            let inode = self.entry_inode(directory, found.inode)?;
            hold(&inode);
            Ok(Some(inode))
        };
        let names = self.names(directory);
        let spot = if self.has_leaf_locks(directory) {
            dir::spot(&names, name)?
        } else {
            None
        };
        let Some(spot) = spot else {
            return entry_inode(dir::find(&names, name)?);
        };
        let leaf = directory.leaves().leaf(spot.leaf(), names.count());
        let before = leaf.removals();
        let inode = entry_inode(spot.find(&names, name)?);
        if leaf.removals() == before {
            return inode;
        }
        if let Ok(Some(inode)) = &inode {
            release(inode);
        }
        let _leaf = leaf.lock();
        entry_inode(spot.find(&names, name)?)
    }
}
