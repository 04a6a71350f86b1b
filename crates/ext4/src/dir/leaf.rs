//! One leaf of a directory: the codec's operations on a block of [`DirectoryBlocks`].

use pext4_ondisk::directory::{self, Entry, Format};
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

use super::blocks::{self, BlockKind, DirectoryBlocks, look, look_at_leaf};
use super::leaf_view::{LeafEdit, LeafView, Room, Search};
use super::{CHANGED, FoundEntry, corrupt_in, kind_of};
use crate::error::Result;

type Decoded<T> = std::result::Result<T, Corrupt>;

/// Writes the first block of a new directory.
pub(super) fn init_first<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    parent: InodeNumber,
) -> Result<()> {
    let (format, inode) = (blocks.format(), blocks.inode());
    blocks.edit(block, BlockKind::Leaf, |bytes| {
        directory::init_first_block(bytes, format, inode, parent);
    })
}

/// Looks up a name in a block of this kind; index nodes have none.
pub(super) fn find<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    kind: BlockKind,
    name: &[u8],
) -> Result<Option<FoundEntry>> {
    let format = blocks.format();
    if kind == BlockKind::Leaf {
        return look_at_leaf(blocks, block, |leaf| find_in(leaf, format, block, name));
    }
    look(blocks, block, kind, |bytes| {
        if is_node(bytes, kind) {
            return Ok(None);
        }
        find_in(LeafView::plain(bytes), format, block, name)
    })
}

/// As [`find`], in the leaf that is in `block`.
pub(super) fn find_in(
    leaf: LeafView<'_>,
    format: Format,
    block: LogicalBlock,
    name: &[u8],
) -> Decoded<Option<FoundEntry>> {
    let entry = leaf.find(format, name)?.and_then(|record| record.entry());
    Ok(entry.map(|entry| found(&entry, block)))
}

fn found(entry: &Entry<'_>, block: LogicalBlock) -> FoundEntry {
    FoundEntry {
        inode: entry.inode,
        file_type: entry.file_type,
        block,
    }
}

/// Calls `visit` with every entry of a block of this kind; index nodes have none.
pub(super) fn for_each<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    kind: BlockKind,
    mut visit: impl FnMut(&Entry<'_>),
) -> Result<()> {
    let format = blocks.format();
    look(blocks, block, kind, |bytes| {
        if is_node(bytes, kind) {
            return Ok(());
        }
        for entry in directory::entries(bytes, format) {
            visit(&entry?);
        }
        Ok(())
    })
}

fn is_node(bytes: &[u8], kind: BlockKind) -> bool {
    kind == BlockKind::Either && kind_of(bytes) == BlockKind::Index
}

/// Room for a name in the leaf to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacancy {
    leaf: LogicalBlock,
    room: Room,
}

/// What was found for a name that is to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Its entry: it exists.
    Entry(FoundEntry),
    /// Room for it, without growing.
    Vacancy(Vacancy),
    /// Nothing: the directory, or the leaf, must grow first or cannot take names.
    Full,
}

/// The entry of a name in a leaf, or the leaf's room for it, in one pass.
pub(super) fn seek<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    name: &[u8],
) -> Result<Sought> {
    let format = blocks.format();
    look_at_leaf(blocks, block, |leaf| seek_in(leaf, format, block, name))
}

/// As [`seek`], in the leaf that is in `block`.
pub(super) fn seek_in(
    leaf: LeafView<'_>,
    format: Format,
    block: LogicalBlock,
    name: &[u8],
) -> Decoded<Sought> {
    let vacancy = |room| Sought::Vacancy(Vacancy { leaf: block, room });
    Ok(match leaf.search(format, name)? {
        Search::Record(record) => record
            .entry()
            .map_or(Sought::Full, |entry| Sought::Entry(found(&entry, block))),
        Search::Room(room) => room.map_or(Sought::Full, vacancy),
    })
}

/// Inserts a name into a leaf if it has room, compacting the leaf if needed; returns whether it
/// had.
pub(super) fn insert<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    new: &Entry<'_>,
) -> Result<bool> {
    let format = blocks.format();
    let room = look_at_leaf(blocks, block, |leaf| leaf.room(format, new.name))?;
    let Some(room) = room else {
        return Ok(false);
    };
    insert_into(blocks, block, room, new).map(|()| true)
}

/// Inserts a name into a leaf that has this room for it, and has not changed since that was seen.
pub(super) fn insert_into<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    room: Room,
    new: &Entry<'_>,
) -> Result<()> {
    let format = blocks.format();
    blocks::change_leaf(blocks, block, |mut leaf| {
        insert_in(&mut leaf, format, room, new)
    })
}

/// As [`insert_into`], in a leaf that was locked.
fn insert_in(leaf: &mut LeafEdit<'_>, format: Format, room: Room, new: &Entry<'_>) -> Decoded<()> {
    match leaf.insert(format, room, new)? {
        true => Ok(()),
        false => Err(Corrupt::new("directory", CHANGED)),
    }
}

impl Vacancy {
    /// Inserts the name.
    ///
    /// # Errors
    ///
    /// `Corrupt`, and errors of the blocks.
    pub fn fill<B: DirectoryBlocks>(&self, blocks: &mut B, new: &Entry<'_>) -> Result<()> {
        insert_into(blocks, self.leaf, self.room, new)
    }

    /// As [`Vacancy::fill`], in the leaf, which was locked.
    pub(super) fn fill_in(
        &self,
        leaf: &mut LeafEdit<'_>,
        format: Format,
        new: &Entry<'_>,
    ) -> Decoded<()> {
        insert_in(leaf, format, self.room, new)
    }
}

/// Removes a name from the leaf in which it was found.
pub(super) fn remove<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    name: &[u8],
) -> Result<()> {
    let format = blocks.format();
    blocks::change_leaf(blocks, block, |mut leaf| leaf.remove(format, name)).map(|_| ())
}

/// A name as it is stored in the leaf in which it was found.
pub(super) fn stored_name<B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    name: &[u8],
) -> Result<Vec<u8>> {
    let format = blocks.format();
    let stored = look_at_leaf(blocks, block, |leaf| {
        let record = leaf.find(format, name)?;
        let entry = record.and_then(|record| record.entry());
        Ok(entry.map(|entry| entry.name.to_vec()))
    })?;
    stored.ok_or_else(|| corrupt_in(blocks, block, CHANGED))
}

/// Changes the inode to which a name refers, in the leaf in which it was found.
pub(super) fn replace<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    entry: &Entry<'_>,
) -> Result<()> {
    let format = blocks.format();
    blocks::change_leaf(blocks, block, |mut leaf| leaf.set_inode(format, entry)).map(|_| ())
}

/// The bytes of a leaf.
pub(super) fn copy<B: DirectoryBlocks>(blocks: &B, block: LogicalBlock) -> Result<Vec<u8>> {
    look(blocks, block, BlockKind::Leaf, |bytes| Ok(bytes.to_vec()))
}

/// The entries in a copy of a leaf.
pub(super) fn unpack<'a, B: DirectoryBlocks>(
    blocks: &B,
    block: LogicalBlock,
    content: &'a [u8],
) -> Result<Vec<Entry<'a>>> {
    directory::entries(content, blocks.format())
        .collect::<Decoded<_>>()
        .map_err(|corrupt| blocks::corrupt_at(blocks.inode(), block, corrupt))
}

/// Writes a leaf with exactly these entries. They fit, unless the image uses the block in two
/// places.
pub(super) fn write<B: DirectoryBlocks>(
    blocks: &mut B,
    block: LogicalBlock,
    entries: &[Entry<'_>],
) -> Result<()> {
    let format = blocks.format();
    let fits = blocks.edit(block, BlockKind::Leaf, |bytes| {
        directory::write_leaf(bytes, format, entries.iter().copied())
    })?;
    match fits {
        true => Ok(()),
        false => Err(corrupt_in(blocks, block, CHANGED)),
    }
}
