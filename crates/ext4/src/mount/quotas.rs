//! The quota files of a volume that will be written.

use std::sync::Arc;

use pext4_ondisk::quota::Owner;

use super::raw_files;
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::groups::open::with_advice;
use crate::quota::{File, Quotas};

/// Reads the quota files; `None` if usage is not counted.
///
/// # Errors
///
/// `Corrupt` if one cannot be used: then usage cannot be kept right.
pub(super) fn open(groups: &Groups) -> Result<Option<Arc<Quotas>>> {
    let store = &groups.store;
    if store.quota_kinds().is_none() {
        return Ok(None);
    }
    let mut files = [None, None, None];
    for (file, owner) in files.iter_mut().zip(Owner::ALL) {
        *file = open_one(groups, owner).map_err(|error| match error {
            Error::Corrupt(corrupt) => with_advice(corrupt),
            other => other,
        })?;
    }
    Ok(Some(Arc::new(Quotas::new(files))))
}

fn open_one(groups: &Groups, owner: Owner) -> Result<Option<File>> {
    let store = &groups.store;
    let Some(number) = store.quota_inode(owner) else {
        return Ok(None);
    };
    let mut slot = raw_files::raw_slot(store, number)?;
    let size = slot.size;
    // Its last block may be used in part.
    let rounded = size.checked_next_multiple_of(store.block_size().into());
    slot.size = rounded.unwrap_or(size);
    let runs = raw_files::file_blocks(store, number, &slot, "quota file")?;
    File::open(groups, (owner, number), size, &runs).map(Some)
}
