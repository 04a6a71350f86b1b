//! Directories: maps from names to inodes.
//!
//! A directory is a file of blocks. A linear directory is searched from end to end; a larger one
//! has an index (htree) of name hashes whose leaves are ordinary linear blocks. Everything here
//! works on [`DirectoryBlocks`], one directory's file, and knows neither buffers nor journal, so
//! that it can be tested in memory. Implementations of the trait verify checksums on reading and
//! dirty blocks in a transaction on editing.
//!
//! Life cycle: [`init`] writes the first block with `.` and `..`; [`insert`] fills it. When it
//! overflows it becomes the root of an index over two leaves; full leaves split in two by hash,
//! full index nodes split likewise, and a full root moves its entries one level down. Blocks are
//! never freed: a directory only grows. A directory that is stored in its inode moves to a first
//! block when the inode is full (`inline`).
//!
//! Locking: the caller holds the directory's lock, exclusively for functions with `&mut`, shared
//! for the others. A single name of an indexed directory can be changed under the shared lock
//! together with the lock of its leaf ([`SeenLeaf`]). No state is kept between calls.
//!
//! No undo: each operation reads and checks everything that it is going to change, then calls
//! [`DirectoryBlocks::reserve`], and only then changes the first byte. So a full volume is detected
//! while the directory is unchanged.
//!
//! Impossible bytes give `Corrupt`, with the inode and the directory's block. An index that is
//! damaged or of an unknown kind (hash version, flags) hides no names: the leaves are searched one
//! by one and names can be removed, but not inserted. An index on a volume that has lost the
//! feature `dir_index` is dropped by the first insertion, as Linux does, unless blocks have
//! checksums, whose place is another in a leaf.

mod blocks;
mod file;
mod grow;
mod index;
mod inline;
mod leaf;
mod leaf_view;
mod linear;
mod listing;
mod locked_leaf;
mod name_leaf;
mod naming;
mod respell;
#[cfg(test)]
mod tests;

use pext4_ondisk::directory::{self, Entry};
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

pub use blocks::{BlockKind, DirectoryBlocks, DirectorySettings, kind_of};
pub use file::{DirectoryFile, is_indexed};
pub use leaf::{Sought, Vacancy};
pub use listing::list;
pub use locked_leaf::SeenLeaf;
pub use name_leaf::{leaf_of, seek};
pub use naming::VolumeDirectories;
pub use respell::respell;

use crate::error::{Error, Refusal, Result};
use crate::types::FileType;
use index::{Path, Seek};

/// Maximum number of blocks that one [`insert`] adds to a directory: a leaf, and a node on both
/// levels of the deepest index.
pub const MAX_BLOCKS_ADDED: u32 = 3;
/// Maximum number of blocks that one [`insert`] changes: those it adds, those they were split from,
/// and the root. Every other operation changes one.
pub const MAX_BLOCKS_CHANGED: u32 = 7;

/// The entry of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// The inode to which it refers.
    pub inode: InodeNumber,
    /// The kind of file, if the directory stores it.
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

/// Looks up a name, `.` and `..` included.
///
/// # Errors
///
/// `Corrupt` for impossible bytes on the path; errors of the blocks.
pub fn find<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<FoundEntry>> {
    if is_dot(name) {
        return find_dot(blocks, name).map(Some);
    }
    match Path::descend_if_sound(blocks, Seek::Name(name))? {
        Some(mut path) => path.find(blocks, name),
        None => linear::find(blocks, name),
    }
}

/// The number of blocks that [`find`] may read for a name: all of them, unless the index leads to
/// the one leaf where it is.
///
/// # Errors
///
/// As [`find`].
pub fn search_length<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<u32> {
    let is_short = is_dot(name) || leaf_of(blocks, name)?.is_some();
    Ok(if is_short { 1 } else { blocks.count() })
}

/// The parent directory's inode, that of `..`.
///
/// # Errors
///
/// `Corrupt` if there is no such entry; errors of the blocks.
pub fn parent<B: DirectoryBlocks>(blocks: &B) -> Result<InodeNumber> {
    Ok(find_dot(blocks, b"..")?.inode)
}

/// Inserts a name, which must not be in the directory yet: the caller has looked it up without
/// releasing the lock since.
///
/// # Errors
///
/// `Refused(NoSpace | DirectoryFull)` when the volume or the index is full, `Refused(NameTooLong)`
/// or `Refused(Invalid)` for names that no entry can have, `Unsupported` if the index is of an
/// unknown kind, `Corrupt`, and errors of the blocks. After a refusal the directory is unchanged.
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
    if blocks.is_indexed() && !blocks.settings().indexing && !blocks.settings().format.has_tail {
        blocks.set_indexed(false);
    }
    if !blocks.is_indexed() {
        return linear::insert(blocks, &new);
    }
    let Some(path) = Path::descend(blocks, Seek::Name(name))? else {
        return Err(Error::unsupported(format!(
            "a new name in directory inode {}, whose index is of an unknown kind",
            blocks.inode()
        )));
    };
    if leaf::insert(blocks, path.leaf(), &new)? {
        return Ok(());
    }
    grow::split_and_insert(blocks, path, &new)
}

/// Removes a name and returns its entry.
///
/// # Errors
///
/// `Refused(NotFound)`, `Refused(Invalid)` for `.` and `..`, `Corrupt`, and errors of the blocks.
pub fn remove<B: DirectoryBlocks>(blocks: &mut B, name: &[u8]) -> Result<FoundEntry> {
    let found = find_changeable(blocks, name)?;
    leaf::remove(blocks, found.block, name)?;
    Ok(found)
}

/// Removes a name whose entry was found by [`find`] under the lock that the caller still holds.
///
/// # Errors
///
/// `Refused(Invalid)` for `.` and `..`, `Corrupt`, and errors of the blocks.
pub fn remove_found<B: DirectoryBlocks>(
    blocks: &mut B,
    name: &[u8],
    found: &FoundEntry,
) -> Result<()> {
    if is_dot(name) {
        return Err(Refusal::Invalid.into());
    }
    leaf::remove(blocks, found.block, name)
}

/// Makes a name refer to another inode and returns its old entry.
///
/// # Errors
///
/// As [`remove`].
pub fn replace<B: DirectoryBlocks>(
    blocks: &mut B,
    name: &[u8],
    inode: InodeNumber,
    file_type: FileType,
) -> Result<FoundEntry> {
    let found = find_changeable(blocks, name)?;
    let entry = Entry {
        inode,
        file_type: Some(file_type),
        name,
    };
    leaf::replace(blocks, found.block, &entry)?;
    Ok(found)
}

/// Makes `..` refer to another directory.
///
/// # Errors
///
/// `Corrupt` if there is no such entry; errors of the blocks.
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

/// Whether there are no names except `.` and `..`.
///
/// # Errors
///
/// `Corrupt`, and errors of the blocks.
pub fn is_empty<B: DirectoryBlocks>(blocks: &B) -> Result<bool> {
    parent(blocks)?;
    linear::is_empty(blocks)
}

fn find_changeable<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<FoundEntry> {
    if is_dot(name) {
        return Err(Refusal::Invalid.into());
    }
    find(blocks, name)?.ok_or_else(|| Refusal::NotFound.into())
}

/// The entry of `.` or `..`, which are at the start of the first block, whether it is a leaf or an
/// index's root. A directory stored in its inode stores only the number of its parent.
fn find_dot<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<FoundEntry> {
    let block = LogicalBlock(0);
    let (own, parent) = if blocks.is_inline() {
        (blocks.inode(), blocks.inline_parent())
    } else {
        let kind = match first_kind(blocks) {
            BlockKind::Index => BlockKind::Dots,
            kind => kind,
        };
        blocks::look(blocks, block, kind, directory::dots)?
    };
    let inode = if name == b"." { own } else { parent };
    if inode.get() == 0 {
        return Err(corrupt_in(blocks, block, "'.' or '..' leads nowhere"));
    }
    let file_types = blocks.settings().format.has_file_types;
    Ok(FoundEntry {
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

/// Whether the entry with this index in a block is one of the two with which a directory begins. An
/// entry of such a name in any other place refers to a file that nothing else shows: it is listed,
/// kept, and reported.
fn is_own_dot<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    index: usize,
    name: &[u8],
) -> bool {
    block == LogicalBlock(0)
        && !blocks.is_inline()
        && matches!((index, name), (0, b".") | (1, b".."))
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

/// The error text for a block that changed while its directory was locked.
const CHANGED: &str = "is not what it was a moment ago: another place has the same block";

/// `problem` in a block of this directory, as an error.
fn corrupt_in<B: DirectoryBlocks>(blocks: &B, block: LogicalBlock, problem: &'static str) -> Error {
    blocks::corrupt_at(blocks.inode(), block, Corrupt::new("directory", problem))
}
