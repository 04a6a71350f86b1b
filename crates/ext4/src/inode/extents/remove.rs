//! Unmapping, for truncation and hole punching: from the end backwards, in steps that fit a
//! transaction.

use std::ops::Range;

use pext4_ondisk::extent::{Extent, LOGICAL_END, ROOT_SIZE};
use pext4_ondisk::{BlockNumber, LogicalBlock};

use super::edit::Editor;
use super::path::{Leaf, Path, descend};
use super::{Few, NodeStore};
use crate::error::Result;

/// The extents of one leaf that a step unmaps, all or in part.
struct Found {
    slots: Range<usize>,
    extents: Few<Extent>,
}

/// Unmaps the logical blocks of `range`, from its end backwards, and calls `freed` with each run of
/// unmapped blocks. `budget` bounds the work: every extent costs one, and every leaf costs one.
/// Returns the end of the range for the next call, or `None` when everything is unmapped.
///
/// A leaf that loses all its extents is freed, with ancestors that lose all their entries. The tree
/// loses a level when the rest fits into the root.
///
/// A step that meets damage after it has unmapped something ends before it: what is unmapped so far
/// is consistent, and the next step fails before it changes anything.
///
/// # Errors
///
/// `Refused(NoSpace)` from the store if a hole in the middle of an extent needs a node; `Corrupt`;
/// those of reading. Nothing is changed then.
pub fn remove<S: NodeStore>(
    root: &mut [u8; ROOT_SIZE],
    store: &mut S,
    range: Range<u64>,
    budget: u32,
    freed: &mut dyn FnMut(BlockNumber, u32),
) -> Result<Option<u64>> {
    let mut range = range.start..range.end.min(LOGICAL_END);
    let mut budget = budget;
    let mut changed = false;
    let mut path = Path::start();
    while !range.is_empty() {
        let last = u32::try_from(range.end - 1).expect("the end was cut to 32 bits");
        let most = budget.saturating_sub(1).max(1);
        let found = descend(root, store, LogicalBlock(last), &mut path, |leaf| {
            find(leaf, &range, most)
        });
        let checked = found.and_then(|found| {
            check_extents(store, &found.extents, &range)?;
            Ok(found)
        });
        let found = match checked {
            Err(_) if changed => return Ok(Some(range.end)),
            checked => checked?,
        };
        let Some(leftmost) = found.extents.last() else {
            break;
        };
        if changed && budget < 2 {
            Editor { root, store }.collapse()?;
            return Ok(Some(range.end));
        }
        let end = u64::from(leftmost.logical.get()).max(range.start);
        let count = u32::try_from(found.extents.len()).unwrap_or(u32::MAX);
        budget = budget.saturating_sub(count).saturating_sub(1);
        let left = remains(&found.extents, &range);
        Editor { root, store }.replace(&mut path, found.slots, &left)?;
        changed = true;
        for part in parts(&found.extents, &range) {
            freed(part.start, part.length);
        }
        range.end = end;
    }
    if changed {
        Editor { root, store }.collapse()?;
    }
    Ok(None)
}

/// The last extents of the leaf that have blocks in the range, at most `most`, in reverse order.
fn find(leaf: &Leaf<'_>, range: &Range<u64>, most: u32) -> Result<Found> {
    let mut extents = Few::new();
    let mut first = leaf.slot;
    for _ in 0..most {
        let Some(slot) = first.checked_sub(1) else {
            break;
        };
        let extent = leaf.extent(slot)?;
        if extent.end() <= range.start {
            break;
        }
        extents.push(extent);
        first = slot;
    }
    Ok(Found {
        slots: first..leaf.slot,
        extents,
    })
}

/// The parts of the extents in the range.
fn parts(extents: &[Extent], range: &Range<u64>) -> impl Iterator<Item = Extent> {
    let (start, end) = (range.start, range.end);
    extents
        .iter()
        .filter_map(move |extent| extent.part(start, end))
}

fn check_extents<S: NodeStore>(store: &S, extents: &[Extent], range: &Range<u64>) -> Result<()> {
    parts(extents, range).try_for_each(|part| store.check_extent(&part))
}

/// The parts of the extents outside the range: the head of the first and the tail of the last.
fn remains(backwards: &[Extent], range: &Range<u64>) -> Few<Extent> {
    let head = backwards
        .last()
        .and_then(|first| first.part(0, range.start));
    let tail = backwards
        .first()
        .and_then(|last| last.part(range.end, LOGICAL_END));
    [head, tail].into_iter().flatten().collect()
}
