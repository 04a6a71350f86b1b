//! Reading a tree: one block, a range.

use std::ops::{ControlFlow, Range};

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::extent::{Extent, LOGICAL_END, ROOT_SIZE};

use super::path::{Leaf, find};
use super::{Hole, Mapping, NodeStore};
use crate::error::Result;

/// What `logical` maps to.
///
/// # Errors
///
/// `Corrupt`; those of reading.
pub fn lookup<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    logical: LogicalBlock,
) -> Result<Mapping> {
    find(root, store, logical, |leaf| {
        let before = leaf.before()?;
        if let Some(extent) = before
            && extent.covers(logical)
        {
            return Ok(Mapping::Mapped(extent));
        }
        let length = leaf.next_logical() - u64::from(logical.get());
        Ok(Mapping::Hole(Hole {
            logical,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            before,
            after: leaf.get(leaf.slot)?,
        }))
    })
}

/// The logical block after the last mapped one of a range; `None` if none is mapped.
///
/// # Errors
///
/// `Corrupt`; those of reading.
pub fn last_end<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    range: &Range<u64>,
) -> Result<Option<u64>> {
    let end = range.end.min(LOGICAL_END);
    if range.start >= end {
        return Ok(None);
    }
    let last = LogicalBlock(u32::try_from(end - 1).expect("the end was cut to 32 bits"));
    let extent = find(root, store, last, |leaf| leaf.before())?;
    Ok(extent
        .map(|extent| extent.end().min(end))
        .filter(|&end| end > range.start))
}

/// Calls `visit` with every extent that has a block in `range` of logical blocks, in order and not
/// cut to the range, until `visit` breaks.
///
/// # Errors
///
/// `Corrupt`; those of reading.
pub fn walk<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    range: Range<u64>,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
) -> Result<()> {
    let end = range.end.min(LOGICAL_END);
    let mut position = range.start;
    while position < end {
        let target = LogicalBlock(u32::try_from(position).expect("below the end of numbers"));
        let (extents, leaf_end) = find(root, store, target, |leaf| {
            Ok((extents_in(leaf, position, end)?, leaf.end))
        })?;
        for extent in extents {
            if visit(extent).is_break() {
                return Ok(());
            }
        }
        position = leaf_end;
    }
    Ok(())
}

/// The extents of a leaf that have a block from `position` up to `end`.
fn extents_in(leaf: &Leaf<'_>, position: u64, end: u64) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    for slot in leaf.slot.saturating_sub(1)..leaf.len() {
        let extent = leaf.extent(slot)?;
        if u64::from(extent.logical.get()) >= end {
            break;
        }
        if extent.end() > position {
            extents.push(extent);
        }
    }
    Ok(extents)
}
