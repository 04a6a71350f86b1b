//! Mapping blocks into a hole.

use std::ops::Range;

use pext4_ondisk::extent::{self, Bounds, Extent, Node, ROOT_SIZE};
use pext4_ondisk::{Corrupt, LogicalBlock};

use super::Few;
use super::NodeStore;
use super::edit::Editor;
use super::path::{Path, descend};
use crate::error::{Refusal, Result};

/// Maps `extent` into a hole of the file, merging it with its neighbours in the leaf if they are
/// contiguous. If it merges both, the tree may lose a level.
///
/// # Errors
///
/// `Refused(NoSpace)` from the store, with nothing changed; `Refused(FileTooLarge)` if the tree
/// cannot grow; `Refused(Invalid)` if the extent is impossible; `Corrupt` if some block of it is
/// mapped already; those of reading.
pub fn insert<S: NodeStore>(
    root: &mut [u8; ROOT_SIZE],
    store: &mut S,
    extent: Extent,
) -> Result<()> {
    let bounds = store.bounds();
    if !extent.is_valid() || !bounds.contains(extent.start, extent.length) {
        return Err(Refusal::Invalid.into());
    }
    if continues_last(root, &bounds, &extent)? {
        return Ok(());
    }
    let mut path = Path::start();
    let (slot, left, right, end) = descend(root, store, extent.logical, &mut path, |leaf| {
        let left = leaf.before()?;
        let taken = left.is_some_and(|left| left.end() > u64::from(extent.logical.get()));
        if taken || extent.end() > leaf.next_logical() {
            let problem = format!("{extent} is mapped already");
            return Err(Corrupt::new("extent tree", problem).into());
        }
        Ok((leaf.slot, left, leaf.get(leaf.slot)?, leaf.end))
    })?;
    let first = slot - usize::from(left.is_some());
    let slots = first..slot + usize::from(right.is_some());
    let extents = join([left, Some(extent), right].into_iter().flatten());
    let is_at_end = right.is_none();
    if !has_room(&path, &slots, &extents)
        && is_at_end
        && begins_next_leaf(root, store, extent, end)?
    {
        return Ok(());
    }
    Editor { root, store }.replace_and_collapse(&mut path, slots, &extents)
}

/// Maps an extent that continues the last one of a tree without index nodes, as an append to most
/// files does. Returns whether it is done. This needs no path, and no other entry moves.
fn continues_last(root: &mut [u8; ROOT_SIZE], bounds: &Bounds, extent: &Extent) -> Result<bool> {
    let node = Node::parse(root)?;
    let Some(slot) = node.len().checked_sub(1).filter(|_| node.depth() == 0) else {
        return Ok(false);
    };
    node.check_entries(bounds)?;
    let Some(both) = node.extent(slot, bounds)?.joined(extent) else {
        return Ok(false);
    };
    extent::set_entry(root, slot, &both.encode())?;
    Ok(true)
}

/// Whether the leaf at the end of a path has room for extents in the place of those in `slots`.
fn has_room(path: &Path, slots: &Range<usize>, extents: &[Extent]) -> bool {
    let leaf = path.level(path.leaf());
    leaf.entries - slots.len() + extents.len() <= leaf.max
}

/// Maps an extent at the beginning of the leaf for logical block `next`, if there is one, and it
/// has room: the leaf before it is full, and would otherwise split for an extent at its end.
/// Returns whether it is done. A leaf that cannot be read stays as it is: who needs what it maps
/// will report it.
fn begins_next_leaf<S: NodeStore>(
    root: &mut [u8; ROOT_SIZE],
    store: &mut S,
    extent: Extent,
    next: u64,
) -> Result<bool> {
    let Ok(next) = u32::try_from(next) else {
        return Ok(false);
    };
    let mut path = Path::start();
    let first = descend(root, store, LogicalBlock(next), &mut path, |leaf| {
        leaf.get(0)
    });
    let Ok(first) = first else {
        return Ok(false);
    };
    let slots = 0..usize::from(first.is_some());
    let extents = join([Some(extent), first].into_iter().flatten());
    if !has_room(&path, &slots, &extents) {
        return Ok(false);
    }
    Editor { root, store }.replace(&mut path, slots, &extents)?;
    Ok(true)
}

/// The same extents, with contiguous neighbours merged where allowed.
pub(super) fn join(extents: impl IntoIterator<Item = Extent>) -> Few<Extent> {
    let mut joined: Few<Extent> = Few::new();
    for extent in extents {
        match joined.last_mut().map(|last| (last.joined(&extent), last)) {
            Some((Some(both), last)) => *last = both,
            _ => joined.push(extent),
        }
    }
    joined
}
