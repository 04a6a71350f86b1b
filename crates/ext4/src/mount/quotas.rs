//! The quota files of a volume that will be written.

use std::ops::Range;
use std::sync::Arc;

use pext4_ondisk::quota::OwnerKind;
use pext4_ondisk::{BlockNumber, Corrupt};

use super::raw_files;
use crate::error::Result;
use crate::groups::{Groups, metadata};
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
    let mut blocks = Vec::new();
    for (file, kind) in files.iter_mut().zip(OwnerKind::ALL) {
        *file = open_one(groups, kind, &mut blocks)?;
    }
    if let (_, Some(shared)) = metadata::merge(blocks) {
        let corrupt = Corrupt::new("quota file", "has a block twice, or shares it with another");
        return Err(corrupt.in_block(BlockNumber(shared)).into());
    }
    Ok(Some(Arc::new(Quotas::new(files))))
}

/// Reads one quota file, and adds its blocks to those of the others.
fn open_one(
    groups: &Groups,
    kind: OwnerKind,
    blocks: &mut Vec<Range<u64>>,
) -> Result<Option<File>> {
    let store = &groups.store;
    let Some(number) = store.quota_inode(kind) else {
        return Ok(None);
    };
    let mut slot = raw_files::raw_slot(store, number)?;
    let size = slot.size;
    // Its last block may be used in part.
    let rounded = size.checked_next_multiple_of(store.block_size().into());
    slot.size = rounded.unwrap_or(size);
    let runs = raw_files::file_blocks(store, number, &slot, "quota file")?;
    blocks.extend(runs.iter().map(|run| {
        let start = run.start.get();
        start..start.saturating_add(run.length.into())
    }));
    File::open(groups, (kind, number), size, &runs).map(Some)
}
