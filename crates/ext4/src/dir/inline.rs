//! Directories stored in their inode (`inline_data`): how they grow, and how they move out of it.
//!
//! Such a directory has no `.`, and the number of its parent is stored separately. Its names are in
//! one or two *regions*, which are leaves in everything except their size and their checksum:
//! through [`DirectoryBlocks`] they look like blocks 0 and 1, so the functions that find, insert,
//! replace and remove names in leaves work on them. The second region grows by the space that a
//! name needs, as long as the inode has room. After that all names move to a first block, and the
//! directory is like any other.

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::directory::{Entry, record_length};

use super::blocks::{BlockKind, DirectoryBlocks};
use super::{corrupt_in, leaf, linear};
use crate::error::Result;
use crate::types::FileType;

/// The region that grows.
const SECOND: LogicalBlock = LogicalBlock(1);

/// Inserts a name for which no region has room.
pub(super) fn grow_and_insert<B: DirectoryBlocks>(blocks: &mut B, new: &Entry<'_>) -> Result<()> {
    if !blocks.widen_inline(record_length(new.name.len()))? {
        move_out(blocks)?;
        return linear::insert(blocks, new);
    }
    if leaf::insert(blocks, SECOND, new)? {
        return Ok(());
    }
    Err(corrupt_in(blocks, SECOND, "has no room where it was made"))
}

/// Moves all names to a first block.
fn move_out<B: DirectoryBlocks>(blocks: &mut B) -> Result<()> {
    let parent = blocks.inline_parent();
    let regions = (0..blocks.count()).map(LogicalBlock);
    let contents: Vec<_> = regions
        .map(|region| Ok((region, leaf::copy(blocks, region)?)))
        .collect::<Result<_>>()?;
    let file_type = Some(FileType::Directory);
    let dot = |inode, name| Entry {
        inode,
        file_type,
        name,
    };
    let mut entries = vec![dot(blocks.inode(), b".".as_slice()), dot(parent, b"..")];
    for (region, content) in &contents {
        entries.extend(leaf::unpack(blocks, *region, content)?);
    }
    blocks.end_inline()?;
    let first = blocks.append(BlockKind::Leaf)?;
    leaf::write(blocks, first, &entries)
}
