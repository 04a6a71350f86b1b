//! Converting blocks between unwritten and written: to written ones after their data has reached
//! the device, and to unwritten ones where they must read as zeroes.

use std::ops::Range;

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::extent::{self, Extent, LOGICAL_END, Node, ROOT_SIZE};

use super::edit::Editor;
use super::insert::join;
use super::path::{Leaf, Path, descend, find};
use super::split::nodes_for_two_splits;
use super::{Mapping, NodeStore, lookup};
use crate::error::Result;

/// What blocks are converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Their data is what the file has there.
    Written,
    /// They are allocated, and the file has zeroes there.
    Unwritten,
}

impl BlockState {
    fn is_of(self, extent: &Extent) -> bool {
        extent.unwritten == (self == Self::Unwritten)
    }
}

/// An extent in the other state that overlaps the range, and its neighbours.
struct Found {
    slots: Range<usize>,
    left: Option<Extent>,
    extent: Extent,
    right: Option<Extent>,
}

/// What to do in a leaf.
enum Step {
    /// An extent to convert.
    Convert(Found),
    /// Nothing to do before this logical block.
    Skip(u64),
}

/// Converts the blocks among the `length` blocks from `logical` on that are not in `state`. Extents
/// that extend beyond the range are split, and merged with neighbours that have become alike, so
/// the tree may lose a level; holes stay as they are. An unwritten extent has at most
/// [`MAX_UNWRITTEN_LENGTH`](extent::MAX_UNWRITTEN_LENGTH) blocks, so at most as many are converted
/// to that at a time.
///
/// # Errors
///
/// `Refused(NoSpace)` from the store and `Corrupt`, with nothing changed; those of reading.
pub fn convert<S: NodeStore>(
    root: &mut [u8; ROOT_SIZE],
    store: &mut S,
    logical: LogicalBlock,
    length: u32,
    state: BlockState,
) -> Result<()> {
    debug_assert!(state == BlockState::Written || length <= extent::MAX_UNWRITTEN_LENGTH);
    let from = u64::from(logical.get());
    let range = from..(from + u64::from(length)).min(LOGICAL_END);
    if splits_late(root, store, &range, state)? {
        let depth = u32::from(Node::parse(root)?.depth());
        let capacity = extent::capacity(store.block_size());
        store.reserve(nodes_for_two_splits(depth, capacity))?;
    }
    let mut is_checked = false;
    let mut position = range.start;
    let mut path = Path::start();
    while position < range.end {
        let step = descend(root, store, block(position), &mut path, |leaf| {
            next_step(leaf, position, range.end, state)
        })?;
        position = match step {
            Step::Skip(next) => next,
            Step::Convert(found) => {
                let end = found.extent.end();
                if !is_checked && end < range.end {
                    check(root, store, end..range.end)?;
                    is_checked = true;
                }
                let mut editor = Editor { root, store };
                convert_one(&mut editor, &mut path, &found, &range, state)?;
                end
            }
        };
    }
    Ok(())
}

/// Reads everything that maps a range, so that damage is met before the first change.
fn check<S: NodeStore>(root: &[u8; ROOT_SIZE], store: &S, range: Range<u64>) -> Result<()> {
    let mut position = range.start;
    while position < range.end {
        position = find(root, store, block(position), |leaf| {
            for slot in leaf.slot.saturating_sub(1)..leaf.len() {
                if u64::from(leaf.extent(slot)?.logical.get()) >= range.end {
                    break;
                }
            }
            Ok(leaf.end)
        })?;
    }
    Ok(())
}

/// A position below [`LOGICAL_END`] as a block number.
fn block(position: u64) -> LogicalBlock {
    LogicalBlock(u32::try_from(position).expect("inside the range, which ends with 32 bits"))
}

/// Whether the range ends inside an extent to be converted that starts inside the range. Then other
/// changes may precede the one that splits this extent, and the nodes for the split must be
/// reserved first.
fn splits_late<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    range: &Range<u64>,
    state: BlockState,
) -> Result<bool> {
    if range.is_empty() {
        return Ok(false);
    }
    Ok(match lookup(root, store, block(range.end - 1))? {
        Mapping::Mapped(last) => {
            !state.is_of(&last)
                && last.end() > range.end
                && u64::from(last.logical.get()) > range.start
        }
        Mapping::Hole(_) => false,
    })
}

/// The first thing to do in a leaf from `position` on.
fn next_step(leaf: &Leaf<'_>, position: u64, end: u64, state: BlockState) -> Result<Step> {
    for slot in leaf.slot.saturating_sub(1)..leaf.len() {
        let extent = leaf.extent(slot)?;
        if u64::from(extent.logical.get()) >= end {
            return Ok(Step::Skip(end));
        }
        if extent.end() <= position || state.is_of(&extent) {
            continue;
        }
        let left = slot
            .checked_sub(1)
            .map(|slot| leaf.extent(slot))
            .transpose()?;
        let right = leaf.get(slot + 1)?;
        let first = slot - usize::from(left.is_some());
        let slots = first..slot + 1 + usize::from(right.is_some());
        return Ok(Step::Convert(Found {
            slots,
            left,
            extent,
            right,
        }));
    }
    Ok(Step::Skip(leaf.end))
}

fn convert_one<S: NodeStore>(
    editor: &mut Editor<'_, S>,
    path: &mut Path,
    found: &Found,
    range: &Range<u64>,
    state: BlockState,
) -> Result<()> {
    let extent = &found.extent;
    let before = extent.part(0, range.start);
    let inside = extent.part(range.start, range.end);
    let behind = extent.part(range.end, LOGICAL_END);
    let converted = inside.map(|part| Extent {
        unwritten: state == BlockState::Unwritten,
        ..part
    });
    let parts = [found.left, before, converted, behind, found.right];
    editor.replace_and_collapse(
        path,
        found.slots.clone(),
        &join(parts.into_iter().flatten()),
    )
}
