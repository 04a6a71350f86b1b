//! Directories: which name leads to which inode.
//!
//! A directory is a file of blocks. Linear ones are searched from end to end; larger ones carry an
//! index (htree) of name hashes whose leaves are ordinary linear blocks. Everything here works on
//! [`DirectoryBlocks`], one directory's file, and knows neither buffers nor journal, so that it is
//! tested in memory; whoever implements the trait verifies checksums on reading and dirties blocks
//! in a transaction on editing.
//!
//! Life cycle: [`init`] writes the first block with `.` and `..`; [`insert`] fills it; when it
//! overflows it becomes the root of an index over two leaves, leaves split in two by hash, full
//! index nodes split likewise, and a full root moves its entries one level down. Blocks are never
//! given back: a directory only grows. One that begins in its inode leaves it for a first block
//! when it is full (`inline`).
//!
//! Locking: the caller holds the directory's lock, exclusive for what takes `&mut`, shared for the
//! rest. A single name of an indexed directory can be changed with the lock held shared and that of
//! its leaf beside it ([`Spot`]). Nothing is remembered between calls.
//!
//! No undo: each operation reads and checks all that it is going to change, then calls
//! [`DirectoryBlocks::reserve`], and only then changes the first byte. A full volume is thus
//! noticed while the directory is still as it was.
//!
//! Bytes that cannot be true give `Corrupt`, with the inode and the directory's block. An index of
//! an unknown kind (hash version, flags, or without the `dir_index` feature) is no error: its
//! leaves are searched one by one and names can be removed, but none inserted.

mod blocks;
mod file;
mod grow;
mod index;
mod inline;
mod leaf;
mod linear;
mod listing;
mod spot;
#[cfg(test)]
mod tests;

use pext4_ondisk::directory::{self, Entry};
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

pub use blocks::{BlockKind, DirectoryBlocks, DirectorySettings, kind_of};
pub use file::{DirectoryFile, SeenLeaf, is_indexed};
pub use listing::list;
pub use spot::{Spot, Vacancy, spot, vacancy};

use crate::error::{Error, Refusal, Result};
use crate::types::FileType;
use index::{Path, Seek};

/// The most blocks that one [`insert`] adds to a directory: a leaf, and a node on both levels of the
/// deepest index.
pub const MOST_BLOCKS_ADDED: u32 = 3;
/// The most blocks that one [`insert`] changes: those it adds, those they were split from, and the
/// root. Every other operation changes one.
pub const MOST_BLOCKS_CHANGED: u32 = 7;

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode it leads to.
    pub inode: InodeNumber,
    /// The kind of file, where the directory remembers it.
    pub file_type: Option<FileType>,
    /// The directory's block that holds the entry.
    pub block: LogicalBlock,
}

/// Writes the first block of a new, empty directory, whose file has no block yet.
///
/// # Errors
///
/// Those of the blocks, `Refused(NoSpace)` among them.
pub fn init<B: DirectoryBlocks>(blocks: &mut B, parent: InodeNumber) -> Result<()> {
    blocks.reserve(1)?;
    let first = blocks.append(BlockKind::Leaf)?;
    leaf::init_first(blocks, first, parent)
}

/// Looks a name up, `.` and `..` included.
///
/// # Errors
///
/// `Corrupt` for impossible bytes on the way; those of the blocks.
pub fn find<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<Found>> {
    if is_dot(name) {
        return find_dot(blocks, name).map(Some);
    }
    match Path::descend(blocks, Seek::Name(name))? {
        Some(mut path) => path.find(blocks, name),
        None => linear::find(blocks, name),
    }
}

/// The parent directory's inode, that of `..`.
///
/// # Errors
///
/// `Corrupt` if there is no such entry; those of the blocks.
pub fn parent<B: DirectoryBlocks>(blocks: &B) -> Result<InodeNumber> {
    Ok(find_dot(blocks, b"..")?.inode)
}

/// Enters a name, which must not be in the directory yet: the caller has looked it up under the
/// same hold of the lock.
///
/// # Errors
///
/// `Refused(NoSpace | DirectoryFull)` when the volume or the index is full, `Refused(NameTooLong)` or
/// `Refused(Invalid)` for names that no entry can hold, `Unsupported` where the index is of an
/// unknown kind, `Corrupt`, and those of the blocks. After a refusal the directory is unchanged.
pub fn insert<B: DirectoryBlocks>(
    blocks: &mut B,
    name: &[u8],
    inode: InodeNumber,
    file_type: FileType,
) -> Result<()> {
    check_name(name)?;
    let new = Entry {
        inode,
        file_type: Some(file_type),
        name,
    };
    if !blocks.is_indexed() {
        return linear::insert(blocks, &new);
    }
    let Some(path) = Path::descend(blocks, Seek::Name(name))? else {
        return Err(Error::Unsupported(format!(
            "a new name in directory inode {}, whose index is of an unknown kind",
            blocks.inode()
        )));
    };
    if leaf::insert(blocks, path.leaf(), &new)? {
        return Ok(());
    }
    grow::split_and_insert(blocks, path, &new)
}

/// Removes a name and tells what it led to.
///
/// # Errors
///
/// `Refused(NotFound)`, `Refused(Invalid)` for `.` and `..`, `Corrupt`, and those of the blocks.
pub fn remove<B: DirectoryBlocks>(blocks: &mut B, name: &[u8]) -> Result<Found> {
    let found = find_changeable(blocks, name)?;
    leaf::remove(blocks, found.block, name)?;
    Ok(found)
}

/// Lets a name lead to another inode and tells what it led to before.
///
/// # Errors
///
/// As [`remove`].
pub fn replace<B: DirectoryBlocks>(
    blocks: &mut B,
    name: &[u8],
    inode: InodeNumber,
    file_type: FileType,
) -> Result<Found> {
    let found = find_changeable(blocks, name)?;
    let entry = Entry {
        inode,
        file_type: Some(file_type),
        name,
    };
    leaf::replace(blocks, found.block, &entry)?;
    Ok(found)
}

/// Lets `..` lead to another directory.
///
/// # Errors
///
/// `Corrupt` if there is no such entry; those of the blocks.
pub fn set_parent<B: DirectoryBlocks>(blocks: &mut B, inode: InodeNumber) -> Result<()> {
    parent(blocks)?;
    if blocks.is_inline() {
        return blocks.set_inline_parent(inode);
    }
    let kind = first_kind(blocks);
    blocks::change(blocks, LogicalBlock(0), kind, |bytes| {
        directory::set_parent(bytes, inode)
    })
}

/// Whether there is no name but `.` and `..`.
///
/// # Errors
///
/// `Corrupt`, and those of the blocks.
pub fn is_empty<B: DirectoryBlocks>(blocks: &B) -> Result<bool> {
    parent(blocks)?;
    linear::is_empty(blocks)
}

fn find_changeable<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Found> {
    if is_dot(name) {
        return Err(Refusal::Invalid.into());
    }
    find(blocks, name)?.ok_or_else(|| Refusal::NotFound.into())
}

/// `.` or `..`, which begin the first block, be it a leaf or an index's root.
/// A directory in its inode names its parent alone.
fn find_dot<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Found> {
    let block = LogicalBlock(0);
    let (own, parent) = if blocks.is_inline() {
        (blocks.inode(), blocks.inline_parent())
    } else {
        blocks::look(blocks, block, first_kind(blocks), directory::dots)?
    };
    let inode = if name == b"." { own } else { parent };
    if inode.get() == 0 {
        return Err(corrupt_in(blocks, block, "'.' or '..' leads nowhere"));
    }
    let file_types = blocks.settings().format.has_file_types;
    Ok(Found {
        inode,
        file_type: file_types.then_some(FileType::Directory),
        block,
    })
}

fn first_kind<B: DirectoryBlocks>(blocks: &B) -> BlockKind {
    if blocks.is_indexed() {
        BlockKind::Index
    } else {
        BlockKind::Leaf
    }
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > directory::NAME_MAX {
        return Err(Refusal::NameTooLong.into());
    }
    if is_dot(name) || !directory::is_valid_name(name) {
        return Err(Refusal::Invalid.into());
    }
    Ok(())
}

/// The problem of a block that changed while its directory was locked.
const CHANGED: &str = "is not what it was a moment ago: another place has the same block";

/// `problem` in a block of this directory, as an error.
fn corrupt_in<B: DirectoryBlocks>(blocks: &B, block: LogicalBlock, problem: &'static str) -> Error {
    blocks::place(blocks.inode(), block, Corrupt::new("directory", problem))
}
