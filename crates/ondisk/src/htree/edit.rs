//! Changing index blocks: entries, levels, and the step from a linear directory to an index.

use super::{
    CONTINUED, ENTRY_SIZE, INFO_AT, INFO_LENGTH, Index, IndexEntry, LEVELS_AT, NODE_ENTRIES_AT,
    ROOT_ENTRIES_AT, capacity,
};
use crate::bytes::{write_u16, write_u32};
use crate::corrupt::Corrupt;
use crate::directory::{self, Entry, Format};
use crate::dirhash::HashVersion;
use crate::number::{InodeNumber, LogicalBlock};

/// The entries of a root or node, to be changed.
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

    /// The entries, to be read.
    #[must_use]
    pub fn as_index(&self) -> Index<'_> {
        Index {
            block: self.block,
            start: self.start,
            limit: self.limit,
            count: self.count,
        }
    }

    /// Adds an entry at `position` (at least 1: nothing comes before the first); false, and
    /// nothing changed, where the block is full.
    ///
    /// # Panics
    /// For position 0, or one past the end.
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

    /// Keeps the first `count` entries (at least 1). To split a node, write the others into a new
    /// one with [`write_node`]; the hash of the first of them goes into the parent.
    ///
    /// # Panics
    /// For a count of 0, or of more than there are.
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

/// Writes entries; the first one's hash is not written, its place has limit and count.
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

/// Makes a block a node that holds these entries.
///
/// # Panics
/// For no entries, and for more than fit.
pub fn write_node(block: &mut [u8], has_tail: bool, entries: &[IndexEntry]) {
    let room = capacity(block.len(), NODE_ENTRIES_AT, has_tail);
    assert!(
        (1..=room).contains(&entries.len()),
        "{} entries of {room}",
        entries.len()
    );
    block.fill(0);
    let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
    write_u16(block, 4, length);
    write_limit(block, NODE_ENTRIES_AT, has_tail);
    write_entries(block, NODE_ENTRIES_AT, entries);
}

/// Makes a block a root with one entry, `first`, and no levels below.
///
/// # Panics
/// For a block too short for it.
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
    write_limit(block, ROOT_ENTRIES_AT, format.has_tail);
    write_u32(block, ROOT_ENTRIES_AT + 4, first.get());
    write_count(block, ROOT_ENTRIES_AT, 1);
}

/// Makes the first block of a linear directory the root of an index: its entries, but for `.` and
/// `..`, move to `leaf`, which will be the directory's block `leaf_number`.
///
/// # Errors
/// [`Corrupt`] where the block does not start with `.` and `..` or a record cannot be true; both
/// blocks are as they were.
///
/// # Panics
/// Where the blocks differ in size.
pub fn root_from_linear(
    first: &mut [u8],
    leaf: &mut [u8],
    format: Format,
    hash_version: HashVersion,
    leaf_number: LogicalBlock,
) -> Result<(), Corrupt> {
    assert_eq!(
        first.len(),
        leaf.len(),
        "blocks of one directory have one size"
    );
    let (own, parent) = directory::dots(first)?;
    let entries: Vec<Entry<'_>> = directory::entries(first, format)
        .filter(|entry| {
            !matches!(
                entry,
                Ok(Entry {
                    name: b"." | b"..",
                    ..
                })
            )
        })
        .collect::<Result<_, _>>()?;
    let fits = directory::write_leaf(leaf, format, entries);
    assert!(
        fits,
        "what was in one block, less two entries, fits into one"
    );
    init_root(first, format, own, parent, hash_version, leaf_number);
    Ok(())
}

/// Adds a level: the root keeps a single entry, for a node in the directory's block `node` that
/// has taken over its entries (with [`write_node`]; a node has room for more than a root).
///
/// # Errors
/// [`Corrupt`] where the root's limit or count cannot be true; it is as it was.
pub fn deepen(root: &mut [u8], has_tail: bool, node: LogicalBlock) -> Result<(), Corrupt> {
    let mut index = IndexMut::root(root, has_tail)?;
    index.truncate(1);
    write_u32(root, ROOT_ENTRIES_AT + 4, node.get());
    root[LEVELS_AT] = root[LEVELS_AT].saturating_add(1);
    Ok(())
}

/// The hash to hold for a block whose names begin at `hash` (even), where `continued` tells
/// whether the block before ends with the same hash.
#[must_use]
pub(super) fn index_hash(hash: u32, continued: bool) -> u32 {
    hash | if continued { CONTINUED } else { 0 }
}
