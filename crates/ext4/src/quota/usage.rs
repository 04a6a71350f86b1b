//! The usage that quota files tell, for who asks.

use std::sync::Arc;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::quota::{self, Header, OwnerKind};

use super::Quotas;
use super::file::{Blocks, Place};
use super::tree::{Tree, corrupt};
use crate::error::{Error, Result};
use crate::inode::inodes::Inodes;
use crate::store::Store;
use crate::types::Usage;

impl Quotas {
    /// The usage of all owners of a kind that is counted, by their numbers: as of the last
    /// transaction that has closed.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub(crate) fn usage(&self, store: &Store, kind: OwnerKind) -> Result<Option<Vec<Usage>>> {
        let file = self.files[kind as usize].as_ref();
        file.map(|file| told(store, file.number(), file.places()))
            .transpose()
    }
}

/// The same from a volume that is only read, whose file is in this inode.
///
/// # Errors
///
/// `Corrupt` or `Io`.
pub(crate) fn read_usage(
    inodes: &Inodes,
    kind: OwnerKind,
    number: InodeNumber,
) -> Result<Vec<Usage>> {
    let inode = Arc::clone(&*inodes.get(number)?);
    let blocks = Blocks::new(inodes, &inode);
    let places = || -> Result<Vec<Place>> {
        let header = Header::decode(&blocks.read(0)?.0, kind, inode.size())?;
        let (_, places) = Tree::read(header, &|number| blocks.read(number))?;
        Ok(places.into_values().collect())
    };
    let places = places().map_err(|error| error.in_inode(number))?;
    told(&inodes.store, number, places)
}

fn told(store: &Store, number: InodeNumber, places: Vec<Place>) -> Result<Vec<Usage>> {
    let mut usage = Vec::with_capacity(places.len());
    for Place { block, offset } in places {
        let buffer = store.read_block(block)?;
        let state = buffer.read();
        let (entry, limits) = quota::entry_at(state.page(), offset as usize)
            .ok_or_else(|| Error::from(corrupt("is cut short").in_inode(number)))?;
        usage.push(Usage {
            id: entry.id,
            space: entry.space,
            inodes: entry.inodes,
            limits,
        });
    }
    usage.sort_unstable_by_key(|usage| usage.id);
    Ok(usage)
}
