//! Quotas: the space and the inodes that each user, group and project uses, kept right in the quota
//! files of images with the feature `quota`. Limits are not enforced, as in Linux without the mount
//! options that ask for it.
//!
//! - *While a transaction runs*, each change of an inode notes in its handle what it means for the
//!   inode's owners (`inode/account.rs`). Nobody reads or writes a quota file for it.
//! - *When the transaction closes*, [`Quotas::store_sums`] adds the sums to the owners' entries. So
//!   a crash leaves usage and inodes of the same transaction.
//! - *Before an inode can get an owner*, the owner has an entry ([`Quotas::prepare`]): a new one
//!   may need blocks, and a transaction that closes cannot find the volume full. Entries are never
//!   removed here.
//!
//! A volume that is written has all places of entries in memory; a mount reads the quota files for
//! that. One that cannot be true prevents a mount for writing, as in Linux.
//!
//! Locking: the tree of a file changes under its lock of class `QuotaFile`, which comes before the
//! start of a handle. The map of places has a lock of class `Leaf`, which the committer takes as
//! well. The owners that a core knows to have entries are in memory of its own, so that owners who
//! have entries cost no shared lock.

mod file;
mod tree;
mod usage;

use std::collections::HashSet;

use pext4_jbd2::Handle;
use pext4_ondisk::Corrupt;
use pext4_ondisk::quota::{self, OwnerKind};
use pext4_sync::hash::NumberHash;
use pext4_sync::{Class, Mutex, Sharded};

pub(crate) use self::file::{File, Place};
pub(crate) use self::usage::read_usage;
use crate::error::{Error, Result};
use crate::inode::inodes::Inodes;
use crate::inode::{key_of, owner_of};
use crate::store::Store;

/// Most owners that a core remembers.
const MAX_REMEMBERED: usize = 4096;

/// The quota files of a volume that is written.
pub struct Quotas {
    /// By kind of owner, in the order of [`OwnerKind::ALL`].
    files: [Option<File>; 3],
    /// Owners that are known to have entries, by core.
    remembered: Sharded<Mutex<HashSet<u64, NumberHash>>>,
}

impl Quotas {
    /// Quotas that are counted in these files.
    pub(crate) fn new(files: [Option<File>; 3]) -> Self {
        let remembered = |_| Mutex::new(Class::Leaf, HashSet::default());
        Self {
            files,
            remembered: Sharded::new(remembered),
        }
    }

    /// Gives the user, the group and the project entries, where they have none and are counted. The
    /// caller has no handle.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)`, `Corrupt`, `Io`; nothing is changed then.
    pub(crate) fn prepare(&self, inodes: &Inodes, owners: [u32; 3]) -> Result<()> {
        let kinds = self.files.iter().zip(OwnerKind::ALL).zip(owners);
        for ((file, kind), id) in kinds {
            if let Some(file) = file {
                self.prepare_one(inodes, file, (kind, id))?;
            }
        }
        Ok(())
    }

    fn prepare_one(
        &self,
        inodes: &Inodes,
        file: &File,
        (kind, id): (OwnerKind, u32),
    ) -> Result<()> {
        let key = key_of(kind, id);
        let shard = self.remembered.local();
        if shard.lock().contains(&key) {
            return Ok(());
        }
        if file.place(id).is_none() {
            file.give_entry(inodes, id)?;
        }
        let mut remembered = shard.lock();
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(key);
        Ok(())
    }

    /// Adds what a closing transaction has noted to the owners' entries. `handle` is its last one.
    pub(crate) fn store_sums(&self, store: &Store, handle: &mut Handle<'_>) {
        for (key, [space, inodes]) in handle.take_sums() {
            if [space, inodes] == [0, 0] {
                continue;
            }
            match self.store_sum(store, handle, key, space, inodes) {
                Err(error @ Error::Io(_)) => {
                    store.stop_half_done("usage could not be stored in a quota file", &error);
                }
                Err(error) => drop(store.apply_error_policy(error)),
                Ok(()) => {}
            }
        }
    }

    fn store_sum(
        &self,
        store: &Store,
        handle: &mut Handle<'_>,
        key: u64,
        space: i64,
        inodes: i64,
    ) -> Result<()> {
        let owner = owner_of(key).and_then(|(kind, id)| {
            let file = self.files[kind as usize].as_ref()?;
            Some((kind, id, file))
        });
        let Some((kind, id, file)) = owner else {
            return Ok(());
        };
        let Place { block, offset } = file.place(id).ok_or_else(|| {
            let problem = format!("has no entry for {} {id}, who owns files", kind.name());
            Corrupt::new("quota file", problem).in_inode(file.number())
        })?;
        let buffer = store.read_block(block)?;
        handle.edit(&buffer, pext4_block::Stamp::NONE, |page| {
            quota::add_usage(page, offset as usize, space, inodes);
        });
        Ok(())
    }
}
