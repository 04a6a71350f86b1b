//! A name of a casefolded directory that gets another spelling: other bytes that are the same name.
//!
//! Where the leaf has room for it, the name is removed and inserted again. Otherwise the directory
//! must grow, which may be refused and so comes before any change: the new spelling is inserted
//! beside the old one, which is then removed by its bytes. Nobody sees both, since the whole
//! directory is locked.

use pext4_ondisk::LogicalBlock;
use pext4_ondisk::directory::{self, Entry};

use super::blocks::{self, DirectoryBlocks};
use super::index::{Path, Seek};
use super::leaf_view::LeafView;
use super::{CHANGED, check_name, corrupt_in, find_changeable, insert, leaf, linear};
use crate::error::Result;
use crate::types::FileType;

/// Changes the spelling of a name. `new_name` is equal to it in this directory.
///
/// # Errors
///
/// As [`remove`](super::remove) and [`insert`]; after a refusal the directory is
/// unchanged.
pub fn respell<B: DirectoryBlocks>(
    blocks: &mut B,
    name: &[u8],
    new_name: &[u8],
    file_type: FileType,
) -> Result<()> {
    check_name(new_name)?;
    let found = find_changeable(blocks, name)?;
    let stored = leaf::stored_name(blocks, found.block, name)?;
    if stored == new_name {
        return Ok(());
    }
    if !fits_in_its_place(blocks, found.block, &stored, new_name)? {
        insert(blocks, new_name, found.inode, file_type)?;
        return remove_spelling(blocks, &stored);
    }
    leaf::remove(blocks, found.block, name)?;
    let new = Entry {
        inode: found.inode,
        file_type: Some(file_type),
        name: new_name,
    };
    match leaf::insert(blocks, found.block, &new)? {
        true => Ok(()),
        false => Err(corrupt_in(blocks, found.block, CHANGED)),
    }
}

/// Whether the leaf of a name has room for another one in its place. (Equal names have equal
/// hashes, so it is the right leaf for both.)
fn fits_in_its_place<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    stored: &[u8],
    new_name: &[u8],
) -> Result<bool> {
    let format = blocks.format();
    let mut copy = leaf::copy(blocks, block)?;
    directory::remove(&mut copy, format.by_bytes(), stored)
        .and_then(|_| LeafView::plain(&copy).room(format, new_name))
        .map(|room| room.is_some())
        .map_err(|corrupt| blocks::corrupt_at(blocks.inode(), block, corrupt))
}

/// Removes one spelling of a name that the directory has in two.
fn remove_spelling<B: DirectoryBlocks>(blocks: &mut B, spelling: &[u8]) -> Result<()> {
    let Some(mut path) = Path::descend(blocks, Seek::Name(spelling))? else {
        for block in linear::leaves(blocks) {
            if remove_from(blocks, block, spelling)? {
                return Ok(());
            }
        }
        return Err(corrupt_in(blocks, LogicalBlock(0), CHANGED));
    };
    for _ in 0..blocks.count() {
        if remove_from(blocks, path.leaf(), spelling)? {
            return Ok(());
        }
        if !path.hash_continues() {
            break;
        }
        path.advance(blocks)?;
    }
    Err(corrupt_in(blocks, path.leaf(), CHANGED))
}

/// Removes a name that is spelt so from a leaf; false if there is none.
fn remove_from<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    spelling: &[u8],
) -> Result<bool> {
    let format = blocks.format();
    let is_there = blocks::look_at_leaf(blocks, block, |leaf| {
        Ok(directory::find(leaf.bytes, format.by_bytes(), spelling)?.is_some())
    })?;
    if is_there {
        blocks::change_leaf(blocks, block, |mut leaf| {
            leaf.remove_spelling(format, spelling)
        })?;
    }
    Ok(is_there)
}
