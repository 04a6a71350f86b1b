//! Edits of index blocks: entries, levels, and the conversion of a linear directory to an index.

use super::{
    CONTINUED, ENTRY_SIZE, INFO_AT, INFO_LENGTH, Index, IndexEntry, LEVELS_AT, NODE_ENTRIES_OFFSET,
    ROOT_ENTRIES_OFFSET, capacity,
};
use crate::bytes::{write_u16, write_u32};
use crate::corrupt::Corrupt;
use crate::directory::{self, Format};
use crate::dirhash::HashVersion;
use crate::number::{InodeNumber, LogicalBlock};

/// The entries of a root or node, for changes.
#[derive(Debug)]
pub struct IndexMut<'a> {
    block: &'a mut [u8],
    start: usize,
    limit: usize,
    count: usize,
}

impl<'a> IndexMut<'a> {
    /// The entries of a root.
    ///
    /// # Errors
    ///
    /// As [`Index::root`].
    pub fn root(block: &'a mut [u8], has_tail: bool) -> Result<Self, Corrupt> {
        let Index {
            start,
            limit,
            count,
            ..
        } = Index::root(block, has_tail)?;
        Ok(Self {
            block,
            start,
            limit,
            count,
        })
    }

    /// The entries of a node.
    ///
    /// # Errors
    ///
    /// As [`Index::node`].
    pub fn node(block: &'a mut [u8], has_tail: bool) -> Result<Self, Corrupt> {
        let Index {
            start,
            limit,
            count,
            ..
        } = Index::node(block, has_tail)?;
        Ok(Self {
            block,
            start,
            limit,
            count,
        })
    }

    /// The entries, for reading.
    #[must_use]
    pub fn as_index(&self) -> Index<'_> {
        Index {
            block: self.block,
            start: self.start,
            limit: self.limit,
            count: self.count,
        }
    }

    /// Inserts an entry at `position` (at least 1: the first entry stays first); returns false and
    /// changes nothing if the block is full.
    ///
    /// # Panics
    ///
    /// If the position is 0 or past the end.
    #[must_use]
    pub fn insert(&mut self, position: usize, hash: u32, block: LogicalBlock) -> bool {
        assert!(
            (1..=self.count).contains(&position),
            "behind the first and not past the end"
        );
        if self.count == self.limit {
            return false;
        }
        let at = self.start + position * ENTRY_SIZE;
        let end = self.start + self.count * ENTRY_SIZE;
        self.block.copy_within(at..end, at + ENTRY_SIZE);
        write_u32(self.block, at, hash);
        write_u32(self.block, at + 4, block.get());
        self.set_count(self.count + 1);
        true
    }

    /// Keeps the first `count` entries (at least 1). To split a node, write the other entries into
    /// a new node with [`write_node`]; the hash of the first of them goes into the parent.
    ///
    /// # Panics
    ///
    /// If the count is 0 or above the number of entries.
    pub fn truncate(&mut self, count: usize) {
        assert!(
            (1..=self.count).contains(&count),
            "an index block has entries"
        );
        let end = self.start + self.count * ENTRY_SIZE;
        self.block[self.start + count * ENTRY_SIZE..end].fill(0);
        self.set_count(count);
    }

    fn set_count(&mut self, count: usize) {
        self.count = count;
        write_count(self.block, self.start, count);
    }
}

fn write_count(block: &mut [u8], start: usize, count: usize) {
    let count = u16::try_from(count).expect("a block holds fewer than 65536 entries");
    write_u16(block, start + 2, count);
}

fn write_limit(block: &mut [u8], start: usize, has_tail: bool) {
    let limit = capacity(block.len(), start, has_tail);
    write_u16(
        block,
        start,
        u16::try_from(limit).expect("fewer than 65536 entries"),
    );
}

/// Writes entries; limit and count take the place of the first one's hash.
pub(super) fn write_entries(block: &mut [u8], start: usize, entries: &[IndexEntry]) {
    for (position, entry) in entries.iter().enumerate() {
        let at = start + position * ENTRY_SIZE;
        if position > 0 {
            write_u32(block, at, entry.hash);
        }
        write_u32(block, at + 4, entry.block.get());
    }
    write_count(block, start, entries.len());
}

/// Makes a block a node with these entries.
///
/// # Panics
///
/// If there are no entries, or more than fit.
pub fn write_node(block: &mut [u8], has_tail: bool, entries: &[IndexEntry]) {
    let room = capacity(block.len(), NODE_ENTRIES_OFFSET, has_tail);
    assert!(
        (1..=room).contains(&entries.len()),
        "{} entries of {room}",
        entries.len()
    );
    block.fill(0);
    let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
    write_u16(block, 4, length);
    write_limit(block, NODE_ENTRIES_OFFSET, has_tail);
    write_entries(block, NODE_ENTRIES_OFFSET, entries);
}

/// Makes a block a root with one entry for block `first`, and no levels below.
///
/// # Panics
///
/// If the block is too short.
pub fn init_root(
    block: &mut [u8],
    format: Format,
    own: InodeNumber,
    parent: InodeNumber,
    hash_version: HashVersion,
    first: LogicalBlock,
) {
    let length = block.len();
    block.fill(0);
    directory::write_dots(block, format, own, parent, length);
    block[INFO_AT + 4] = hash_version.to_raw();
    block[INFO_AT + 5] = INFO_LENGTH;
    write_limit(block, ROOT_ENTRIES_OFFSET, format.has_tail);
    write_u32(block, ROOT_ENTRIES_OFFSET + 4, first.get());
    write_count(block, ROOT_ENTRIES_OFFSET, 1);
}

/// Adds a level: the root keeps a single entry, for a node in the directory's block `node`. The
/// caller has written the root's entries there with [`write_node`]; a node has room for more than a
/// root.
///
/// # Errors
///
/// [`Corrupt`] if the root's limit or count is impossible; it is unchanged.
pub fn deepen(root: &mut [u8], has_tail: bool, node: LogicalBlock) -> Result<(), Corrupt> {
    let mut index = IndexMut::root(root, has_tail)?;
    index.truncate(1);
    write_u32(root, ROOT_ENTRIES_OFFSET + 4, node.get());
    root[LEVELS_AT] = root[LEVELS_AT].saturating_add(1);
    Ok(())
}

/// The hash in the index entry of a block whose names begin at `hash` (even); `continued` is
/// whether the block before ends with the same hash.
#[must_use]
pub fn index_hash(hash: u32, continued: bool) -> u32 {
    hash | if continued { CONTINUED } else { 0 }
}
