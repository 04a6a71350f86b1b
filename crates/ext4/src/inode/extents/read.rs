//! Looking at a tree: one block, a range, the end, the number of nodes.

use std::ops::{ControlFlow, Range};

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::extent::{Extent, Index, LOGICAL_END, ROOT_SIZE};

use super::path::{Leaf, descend, in_block, parse_placed, parse_root};
use super::{Mapping, NodeStore};
use crate::error::Result;

/// What `logical` maps to.
///
/// # Errors
///
/// `Corrupt`, or what reading says.
pub fn lookup<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    logical: LogicalBlock,
) -> Result<Mapping> {
    let (_, mapping) = descend(root, store, logical, |leaf| {
        if let Some(extent) = leaf.before()?
            && extent.covers(logical)
        {
            return Ok(Mapping::Mapped(extent));
        }
        let length = leaf.next_logical() - u64::from(logical.get());
        Ok(Mapping::Hole {
            logical,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        })
    })?;
    Ok(mapping)
}

/// Shows every extent that has a block in `range` of logical blocks, whole, in order, until `visit`
/// breaks.
///
/// # Errors
///
/// `Corrupt`, or what reading says.
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
        let (path, extents) = descend(root, store, target, |leaf| extents_in(leaf, position, end))?;
        for extent in extents {
            if visit(extent).is_break() {
                return Ok(());
            }
        }
        position = path.end;
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

/// The last extent of the file.
///
/// # Errors
///
/// `Corrupt`, or what reading says.
pub fn last_extent<S: NodeStore>(root: &[u8; ROOT_SIZE], store: &S) -> Result<Option<Extent>> {
    let (_, last) = descend(root, store, LogicalBlock(u32::MAX), |leaf| leaf.before())?;
    Ok(last)
}

/// How many blocks the tree's nodes take.
///
/// # Errors
///
/// `Corrupt`, or what reading says.
pub fn count_nodes<S: NodeStore>(root: &[u8; ROOT_SIZE], store: &S) -> Result<u64> {
    let bounds = store.bounds();
    let node = parse_root(root, &bounds)?;
    if node.depth() == 0 {
        return Ok(0);
    }
    let children = (0..node.len())
        .map(|slot| Ok(node.index(slot, &bounds)?))
        .collect::<Result<_>>()?;
    count_children(store, children, u64::from(u32::MAX), node.depth() - 1)
}

/// Counts the nodes under the index entries of one node, which ends at `end`; the entries lead to
/// nodes of `depth`. Each child must begin where its entry says, so no node is counted twice.
fn count_children<S: NodeStore>(
    store: &S,
    children: Vec<Index>,
    end: u64,
    depth: u16,
) -> Result<u64> {
    let mut total = children.len() as u64;
    if depth == 0 {
        return Ok(total);
    }
    let bounds = store.bounds();
    for (slot, child) in children.iter().enumerate() {
        let child_end = children
            .get(slot + 1)
            .map_or(end, |next| u64::from(next.logical.get()));
        let below = store
            .read(child.child, depth, |bytes| {
                let node = parse_placed(bytes, depth, child, child_end, &bounds)?;
                (0..node.len())
                    .map(|slot| Ok(node.index(slot, &bounds)?))
                    .collect()
            })
            .map_err(|error| in_block(error, child.child))?;
        total += count_children(store, below, child_end, depth - 1)?;
    }
    Ok(total)
}
