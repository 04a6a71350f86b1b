//! Which part of a directory an operation on one name locks.
//!
//! - *Whole*: the directory, exclusively.
//! - *Leaf*: the directory shared, and the leaf that has the name, or would have it. Others make and
//!   remove names in other leaves meanwhile. It needs an index, a name whose hash does not go on in
//!   the next leaf, and room in the leaf; who finds that something is missing gives the locks back
//!   and begins again with the whole directory. Splits, renames and everything else that reaches
//!   beyond a leaf lock the whole.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_sync::{BiasedReadGuard, BiasedWriteGuard, Near};

use super::{DIRECTORY_CREDITS, ENTRY_CREDITS, check_directory, lock_exclusive, lock_shared};
use crate::dir::{self, DirectoryFile, Found, Spot, Vacancy};
use crate::error::Result;
use crate::inode::leaves::LeafGuard;
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

/// A name that nobody else can change meanwhile.
pub(super) struct LockedName<'a> {
    /// What it leads to.
    pub found: Option<Found>,
    place: Place,
    _locks: Locks<'a>,
}

/// Where the name is, or is to be.
#[derive(Clone, Copy)]
enum Place {
    Anywhere,
    There(Spot),
    Vacant(Vacancy),
}

/// What keeps others away. The leaf's lock goes before the directory's.
enum Locks<'a> {
    Whole {
        _directory: BiasedWriteGuard<'a, ()>,
    },
    Leaf {
        leaf: LeafGuard<'a>,
        _directory: BiasedReadGuard<'a, ()>,
    },
}

impl LockedName<'_> {
    /// Metadata blocks that entering the name may dirty: where a leaf has room, that and the
    /// directory's inode.
    pub(super) fn entering_credits(&self) -> u32 {
        match self.place {
            Place::Vacant(_) => ENTRY_CREDITS,
            Place::Anywhere | Place::There(_) => DIRECTORY_CREDITS,
        }
    }
}

impl Volume {
    /// Locks a name of a directory, which must be one that can be changed.
    pub(super) fn lock_name<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
    ) -> Result<LockedName<'a>> {
        let tally = &self.inodes.store.tally;
        if self.inodes.store.options.scaling.directory == DirectoryLocks::Leaves
            && dir::is_indexed(directory)
        {
            if let Some(locked) = self.lock_in_leaf(directory, name, change)? {
                tally.count(Event::NamesInLeaf);
                return Ok(locked);
            }
            tally.count(Event::LeafRestarts);
        }
        tally.count(Event::NamesInWhole);
        let guard = lock_exclusive(directory)?;
        check_directory(directory, change == Change::Remove)?;
        let names = self.names(directory);
        let found = dir::find(&names, name)?;
        let vacancy = match (change, &found) {
            (Change::Enter, None) => dir::vacancy(&names, name)?,
            _ => None,
        };
        Ok(LockedName {
            found,
            place: vacancy.map_or(Place::Anywhere, Place::Vacant),
            _locks: Locks::Whole { _directory: guard },
        })
    }

    fn lock_in_leaf<'a>(
        &self,
        directory: &'a Arc<Inode>,
        name: &[u8],
        change: Change,
    ) -> Result<Option<LockedName<'a>>> {
        let guard = lock_shared(directory)?;
        check_directory(directory, change == Change::Remove)?;
        let names = self.names(directory);
        let Some(spot) = dir::spot(&names, name)? else {
            return Ok(None);
        };
        let leaf = directory.leaves().lock(spot.leaf());
        let found = spot.find(&names, name)?;
        let place = match (change, &found) {
            (Change::Enter, None) => match spot.vacancy(&names, name)? {
                Some(vacancy) => Place::Vacant(vacancy),
                None => return Ok(None),
            },
            _ => Place::There(spot),
        };
        let locks = Locks::Leaf {
            leaf,
            _directory: guard,
        };
        Ok(Some(LockedName {
            found,
            place,
            _locks: locks,
        }))
    }

    /// Enters the name, which leads nowhere yet, and notes the directory's times.
    pub(super) fn enter_locked(
        &self,
        handle: &mut Handle<'_>,
        locked: &LockedName<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let Place::Vacant(vacancy) = locked.place else {
            return self.insert_name(handle, directory, name, inode);
        };
        let mut names =
            DirectoryFile::changing(&self.inodes, &self.directory_settings, directory, handle);
        vacancy.fill(&mut names, name, inode.number(), inode.file_type())?;
        directory.note_names_changed(handle, present());
        Ok(())
    }

    /// Removes the name, which was found, and notes the directory's times.
    pub(super) fn remove_locked(
        &self,
        handle: &mut Handle<'_>,
        locked: &LockedName<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        let (Place::There(spot), Locks::Leaf { leaf, .. }) = (locked.place, &locked._locks) else {
            return self.remove_name(handle, directory, name);
        };
        leaf.note_removal();
        let mut names =
            DirectoryFile::changing(&self.inodes, &self.directory_settings, directory, handle);
        spot.remove(&mut names, name)?;
        directory.note_names_changed(handle, present());
        Ok(())
    }

    /// Looks a name up and takes a hold of its inode, the directory's lock held shared; the answer
    /// is the inode. A name that goes meanwhile, from under the lock of its leaf, is looked for
    /// again under that lock.
    pub(super) fn hold_named(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<Option<Near<Inode>>> {
        let names = self.names(directory);
        let is_by_leaf = self.inodes.store.options.scaling.directory == DirectoryLocks::Leaves
            && dir::is_indexed(directory);
        let spot = if is_by_leaf {
            dir::spot(&names, name)?
        } else {
            None
        };
        let Some(spot) = spot else {
            return self.hold_found(directory, dir::find(&names, name)?);
        };
        let leaves = directory.leaves();
        let before = leaves.removals(spot.leaf());
        let held = self.hold_found(directory, spot.find(&names, name)?);
        if leaves.removals(spot.leaf()) == before {
            return held;
        }
        if let Ok(Some(inode)) = &held {
            self.forget(inode.number(), 1);
        }
        let _leaf = leaves.lock(spot.leaf());
        self.hold_found(directory, spot.find(&names, name)?)
    }

    fn hold_found(&self, directory: &Inode, found: Option<Found>) -> Result<Option<Near<Inode>>> {
        let Some(found) = found else {
            return Ok(None);
        };
        let inode = self.entry_inode(directory, found.inode)?;
        self.inodes.hold(&inode);
        Ok(Some(inode))
    }
}
