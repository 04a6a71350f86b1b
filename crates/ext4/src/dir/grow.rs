//! How a directory grows: a leaf splits in two, index nodes split, the root moves a level down.
//!
//! All of it happens in one call and in this order: the leaf's names are sorted and divided in
//! memory; blocks are reserved; a full root moves its entries to a node of their own; full nodes on
//! the path to the leaf are split from the top down, so that each finds room in its parent; last,
//! both halves of the leaf are written and the right one gets its index entry.

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::directory::{self, Entry};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::htree::{self, IndexEntry, IndexMut};

use super::blocks::{self, BlockKind, DirectoryBlocks, look};
use super::index::{Frame, Path, read_index};
use super::{CHANGED, corrupt_in, is_own_dot, leaf, parent};
use crate::error::{Refusal, Result};

const ROOT: LogicalBlock = LogicalBlock(0);

/// Names of one leaf and a new one, divided by hash.
struct Halves<'a> {
    left: Vec<Entry<'a>>,
    right: Vec<Entry<'a>>,
    /// The lowest hash of the right half; its low bit is set if the left half ends with the same.
    boundary: u32,
    lowest: u32,
    highest: u32,
}

impl Halves<'_> {
    /// Divides names so that both halves need about the same number of bytes; `None` below two
    /// names.
    fn of<'a>(entries: Vec<Entry<'a>>, hasher: &Hasher) -> Option<Halves<'a>> {
        let mut sorted: Vec<(u32, Entry<'a>)> = entries
            .into_iter()
            .map(|entry| (blocks::hash(hasher, entry.name), entry))
            .collect();
        sorted.sort_by_key(|&(hash, _)| hash);
        let at = middle(&sorted)?;
        let (first, last) = (sorted.first()?.0, sorted.last()?.0);
        let continued = sorted[at - 1].0 == sorted[at].0;
        let boundary = htree::index_hash(sorted[at].0, continued);
        let right = sorted.split_off(at);
        let packed = |half: Vec<(u32, Entry<'a>)>| half.into_iter().map(|(_, entry)| entry);
        Some(Halves {
            left: packed(sorted).collect(),
            right: packed(right).collect(),
            boundary,
            lowest: first,
            highest: last,
        })
    }
}

/// The index at which to divide the entries so that the larger half is smallest; `None` below two
/// entries.
fn middle(sorted: &[(u32, Entry<'_>)]) -> Option<usize> {
    let space = |(_, entry): &(u32, Entry<'_>)| directory::record_length(entry.name.len());
    let total: usize = sorted.iter().map(space).sum();
    let mut before = 0;
    (1..sorted.len()).min_by_key(|&at| {
        before += space(&sorted[at - 1]);
        before.max(total - before)
    })
}

/// Turns the one full block of a directory into the root of an index over two leaves, and inserts a
/// name into one of them.
pub(super) fn index_and_insert<B: DirectoryBlocks>(
    blocks: &mut B,
    hasher: Hasher,
    new: &Entry<'_>,
) -> Result<()> {
    let (inode, parent) = (blocks.inode(), parent(blocks)?);
    let content = leaf::copy(blocks, ROOT)?;
    let entries = leaf::unpack(blocks, ROOT, &content)?
        .into_iter()
        .enumerate();
    let mut entries: Vec<_> = entries
        .filter(|(index, entry)| !is_own_dot(blocks, ROOT, *index, entry.name))
        .map(|(_, entry)| entry)
        .collect();
    entries.push(*new);
    let halves = Halves::of(entries, &hasher)
        .ok_or_else(|| corrupt_in(blocks, ROOT, "is full without names"))?;
    blocks.reserve(2)?;
    // A changed block stays in memory. Otherwise it could be evicted and read again half way, and
    // would then be verified as the index root that it is about to become.
    blocks.edit(ROOT, BlockKind::Leaf, |_| ())?;
    let left = blocks.append(BlockKind::Leaf)?;
    let right = blocks.append(BlockKind::Leaf)?;
    leaf::write(blocks, left, &halves.left)?;
    leaf::write(blocks, right, &halves.right)?;
    let format = blocks.settings().format;
    blocks.edit(ROOT, BlockKind::Index, |bytes| {
        htree::init_root(bytes, format, inode, parent, hasher.version, left);
    })?;
    insert_child(blocks, ROOT, 1, halves.boundary, right)?;
    blocks.set_indexed(true);
    Ok(())
}

/// Splits the full leaf at the end of a path, and inserts a name into one of its halves.
pub(super) fn split_and_insert<B: DirectoryBlocks>(
    blocks: &mut B,
    mut path: Path,
    new: &Entry<'_>,
) -> Result<()> {
    let leaf = path.leaf();
    let content = leaf::copy(blocks, leaf)?;
    let mut entries = leaf::unpack(blocks, leaf, &content)?;
    entries.push(*new);
    let halves = Halves::of(entries, &path.hasher())
        .ok_or_else(|| corrupt_in(blocks, leaf, "is full without names"))?;
    let (lowest, highest) = path.leaf_range(blocks)?;
    if halves.lowest < lowest || halves.highest > highest {
        return Err(corrupt_in(
            blocks,
            leaf,
            "holds names that belong to another leaf",
        ));
    }
    make_room(blocks, &mut path)?;
    let right = blocks.append(BlockKind::Leaf)?;
    leaf::write(blocks, right, &halves.right)?;
    leaf::write(blocks, leaf, &halves.left)?;
    let bottom = path.frames.last().expect("a path has a root");
    insert_child(
        blocks,
        bottom.block,
        bottom.position + 1,
        halves.boundary,
        right,
    )
}

/// Reserves all blocks of a split, and makes room for one entry in the last block of the path.
fn make_room<B: DirectoryBlocks>(blocks: &mut B, path: &mut Path) -> Result<()> {
    let is_full = |frame: &&Frame| frame.is_full;
    let full = path.frames.iter().rev().take_while(is_full).count();
    let settings = blocks.settings();
    let deepens = full == path.frames.len();
    if deepens && path.frames.len() > usize::from(settings.max_levels()) {
        return Err(Refusal::DirectoryFull.into());
    }
    let added = u32::try_from(full + 1).expect("a path is short");
    if blocks.count() > settings.max_blocks().saturating_sub(added) {
        return Err(Refusal::DirectoryFull.into());
    }
    blocks.reserve(added)?;
    let mut level = path.frames.len() - full;
    if deepens {
        deepen(blocks, path)?;
        level = 2;
    }
    for level in level..path.frames.len() {
        split_node(blocks, path, level)?;
    }
    Ok(())
}

/// Adds a child to a root or node that has room.
fn insert_child<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    position: usize,
    hash: u32,
    child: LogicalBlock,
) -> Result<()> {
    let has_tail = blocks.settings().format.has_tail;
    let inserted = blocks::change(blocks, block, BlockKind::Index, |bytes| {
        let mut index = if block == ROOT {
            IndexMut::root(bytes, has_tail)?
        } else {
            IndexMut::node(bytes, has_tail)?
        };
        Ok(position <= index.as_index().count() && index.insert(position, hash, child))
    })?;
    // There was room before: it can only be gone if two places of the image use the same block.
    match inserted {
        true => Ok(()),
        false => Err(corrupt_in(blocks, block, CHANGED)),
    }
}

/// Moves the root's entries to a new node, the root's only child. A node has room for three more
/// entries than the root, so it is not full.
fn deepen<B: DirectoryBlocks>(blocks: &mut B, path: &mut Path) -> Result<()> {
    let has_tail = blocks.settings().format.has_tail;
    let entries = entries_of(blocks, ROOT)?;
    let node = blocks.append(BlockKind::Index)?;
    blocks.edit(node, BlockKind::Index, |bytes| {
        htree::write_node(bytes, has_tail, &entries)
    })?;
    blocks::change(blocks, ROOT, BlockKind::Index, |bytes| {
        htree::deepen(bytes, has_tail, node)
    })?;
    path.enter_level(node);
    Ok(())
}

/// Moves the upper half of a full node to a new one; the parent has room for its entry.
fn split_node<B: DirectoryBlocks>(blocks: &mut B, path: &mut Path, level: usize) -> Result<()> {
    let has_tail = blocks.settings().format.has_tail;
    let full = path.frames[level].block;
    let entries = entries_of(blocks, full)?;
    let half = entries.len() / 2;
    let (_, upper) = entries.split_at(half);
    let right = blocks.append(BlockKind::Index)?;
    blocks.edit(right, BlockKind::Index, |bytes| {
        htree::write_node(bytes, has_tail, upper)
    })?;
    let has_half = blocks::change(blocks, full, BlockKind::Index, |bytes| {
        let mut node = IndexMut::node(bytes, has_tail)?;
        let has_half = (1..=node.as_index().count()).contains(&half);
        if has_half {
            node.truncate(half);
        }
        Ok(has_half)
    })?;
    if !has_half {
        return Err(corrupt_in(blocks, full, CHANGED));
    }
    let above = path.frames[level - 1];
    insert_child(
        blocks,
        above.block,
        above.position + 1,
        upper[0].hash,
        right,
    )?;
    path.choose_half(level, half, right);
    Ok(())
}

fn entries_of<B: DirectoryBlocks>(blocks: &B, block: LogicalBlock) -> Result<Vec<IndexEntry>> {
    let has_tail = blocks.settings().format.has_tail;
    look(blocks, block, BlockKind::Index, |bytes| {
        Ok(read_index(bytes, block, has_tail)?.entries().collect())
    })
}
