//! Which directories lie above the ends of a move, and the locks that a move takes.

use std::collections::HashSet;
use std::sync::Arc;

use pext4_ondisk::Corrupt;
use pext4_sync::BiasedWriteGuard;

use crate::dir;
use crate::error::Result;
use crate::inode::Inode;
use crate::ops::attempt::{Attempt, LockMode};
use crate::ops::{check_not_removed, lock_exclusive, lock_shared};
use crate::types::InodeNumber;
use crate::volume::Volume;

/// Both parents and all directories above them. Empty if there is one parent: then no directory can
/// be moved into itself.
pub(super) struct Ancestors {
    pub from: Vec<InodeNumber>,
    pub to: Vec<InodeNumber>,
    /// How further directories are locked.
    pub lock_mode: LockMode,
}

impl Ancestors {
    /// For a move inside one directory.
    pub fn same_parent(lock_mode: LockMode) -> Self {
        Self {
            from: Vec::new(),
            to: Vec::new(),
            lock_mode,
        }
    }
}

impl Volume {
    /// A directory and all directories above it, the root last. The caller holds the rename lock,
    /// so they do not change.
    pub(super) fn ancestors_of(&self, lower: &Inode) -> Result<Vec<InodeNumber>> {
        let mut ancestors = Vec::new();
        let mut visited = HashSet::new();
        let mut number = lower.number();
        loop {
            ancestors.push(number);
            if number == InodeNumber::ROOT {
                return Ok(ancestors);
            }
            if !visited.insert(number) {
                let corrupt = Corrupt::new("directory", "its parents never reach the root");
                return Err(corrupt.in_inode(lower.number()).into());
            }
            let directory = self.directory(number)?;
            let _names = lock_shared(&directory)?;
            check_not_removed(&directory)?;
            number = dir::parent(&self.names(&directory))?;
        }
    }
}

/// Locks both parents: an ancestor before its descendant, else by number.
pub(super) fn lock_parents<'a>(
    from: &'a Inode,
    to: &'a Inode,
    ancestors: &Ancestors,
) -> [BiasedWriteGuard<'a, ()>; 2] {
    let to_first = ancestors.from.contains(&to.number());
    let from_first =
        ancestors.to.contains(&from.number()) || (!to_first && from.number() < to.number());
    let (first, second) = if from_first { (from, to) } else { (to, from) };
    let outer = first.lock.write_keyed(0);
    [outer, second.lock.write_keyed(1)]
}

/// Locks the inodes that a move changes besides the parents: directories first, then by number.
pub(super) fn lock_inodes<'a>(
    inodes: &[&'a Arc<Inode>],
    lock_mode: LockMode,
) -> Attempt<Vec<BiasedWriteGuard<'a, ()>>> {
    const PARENTS: u64 = 1;
    let mut inodes = inodes.to_vec();
    inodes.sort_by_key(|inode| (!inode.is_directory(), inode.number()));
    let mut step = PARENTS;
    let lock = |inode: &'a Arc<Inode>| {
        step += 1;
        if inode.is_directory() {
            lock_mode.lock(inode, step)
        } else {
            Ok(lock_exclusive(inode)?)
        }
    };
    inodes.into_iter().map(lock).collect()
}
