//! Searching a directory block by block: for directories without an index or with an index of an
//! unknown kind, and for the test whether a directory is empty.

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::directory::Entry;

use super::blocks::{BlockKind, DirectoryBlocks};
use super::{FoundEntry, corrupt_in, grow, inline, is_own_dot, leaf};
use crate::error::{Refusal, Result};

/// Looks up a name in every leaf.
pub(super) fn find<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<FoundEntry>> {
    for block in leaves(blocks) {
        if let Some(found) = leaf::find(blocks, block, leaf_kind(blocks), name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether no leaf contains a name except the directory's own `.` and `..`.
pub(super) fn is_empty<B: DirectoryBlocks>(blocks: &B) -> Result<bool> {
    for block in leaves(blocks) {
        let mut empty = true;
        for_each_in(blocks, block, |_| empty = false)?;
        if !empty {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `visit` with every entry of a block except the directory's own `.` and `..`.
pub(super) fn for_each_in<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    mut visit: impl FnMut(&Entry<'_>),
) -> Result<()> {
    let mut index = 0;
    leaf::for_each(blocks, block, leaf_kind(blocks), |entry| {
        if !is_own_dot(blocks, block, index, entry.name) {
            visit(entry);
        }
        index += 1;
    })
}

/// Inserts a name into the first block with room. If there is none, the directory gets another
/// block, or an index if it has a single block. A directory stored in its inode grows there first.
pub(super) fn insert<B: DirectoryBlocks>(blocks: &mut B, new: &Entry<'_>) -> Result<()> {
    for block in 0..blocks.count() {
        if leaf::insert(blocks, LogicalBlock(block), new)? {
            return Ok(());
        }
    }
    if blocks.is_inline() {
        return inline::grow_and_insert(blocks, new);
    }
    let hasher_of_new = blocks.settings().hasher_of_new();
    match (blocks.count(), hasher_of_new) {
        (0, _) => Err(corrupt_in(blocks, LogicalBlock(0), "has no blocks")),
        (1, Some(hasher)) => grow::index_and_insert(blocks, hasher, new),
        (count, _) if count >= blocks.settings().max_blocks() => Err(Refusal::DirectoryFull.into()),
        _ => {
            blocks.reserve(1)?;
            let block = blocks.append(BlockKind::Leaf)?;
            leaf::write(blocks, block, &[*new])
        }
    }
}

/// Blocks that may be leaves.
pub(super) fn leaves<B: DirectoryBlocks>(
    blocks: &B,
) -> impl Iterator<Item = LogicalBlock> + use<B> {
    let first = u32::from(blocks.is_indexed());
    (first..blocks.count()).map(LogicalBlock)
}

/// How blocks that may be leaves are read.
pub(super) fn leaf_kind<B: DirectoryBlocks>(blocks: &B) -> BlockKind {
    if blocks.is_indexed() {
        BlockKind::Either
    } else {
        BlockKind::Leaf
    }
}
