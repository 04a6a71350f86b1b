//! Builds a whole directory from its names, with a balanced index.
//!
//! The same names give the same blocks in any order of the names. The order of blocks is: the root,
//! the nodes level by level from the top, the leaves by hash.

use std::ops::Range;

use super::edit::{index_hash, write_entries};
use super::{IndexEntry, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET, capacity};
use super::{init_root, write_node};
use crate::checksum::InodeSeed;
use crate::directory::{self, Entry, Format, record_length, usable_length};
use crate::dirhash::{Hash, Hasher};
use crate::number::{InodeNumber, LogicalBlock};

/// The kind of a block, which determines how its checksum is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Names; checksum by [`directory::stamp_leaf`].
    Leaf,
    /// A root or node; checksum by [`stamp`](super::stamp).
    Index,
}

/// A block; its checksum is missing until [`stamp`](Self::stamp).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltBlock {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl BuiltBlock {
    /// Stores the checksum for the block's kind.
    pub fn stamp(&mut self, seed: InodeSeed) {
        match self.kind {
            Kind::Leaf => directory::stamp_leaf(seed, &mut self.bytes),
            Kind::Index => super::stamp(seed, &mut self.bytes),
        }
    }
}

/// The names exceed an index of the allowed depth, or a hash cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the directory has more names than its index can hold")]
pub struct TooMany;

/// The parameters of a directory's blocks, except its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    block_size: usize,
    format: Format,
}

/// An index over names, laid out before any inode is known. It determines how many blocks the
/// directory has and which names are in each leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    hasher: Hasher,
    /// Positions of the names in the caller's order, sorted by hash.
    order: Vec<u32>,
    /// The end of every leaf in `order`; each leaf begins where the one before ends.
    leaf_ends: Vec<u32>,
    /// Number of nodes of each level below the root, from the top.
    widths: Vec<usize>,
    /// The index entry of every leaf.
    leaves: Vec<IndexEntry>,
}

/// A name and its position in the order of the index.
struct Sorted<'a> {
    hash: Hash,
    name: &'a [u8],
    position: u32,
}

impl Plan {
    /// Lays out an index over these names, at least one.
    ///
    /// # Errors
    ///
    /// [`TooMany`] if an index of `max_levels` levels below its root cannot hold them.
    pub fn of<'a>(
        block_size: usize,
        format: Format,
        names: impl Iterator<Item = &'a [u8]>,
        hasher: &Hasher,
        max_levels: u8,
    ) -> Result<Self, TooMany> {
        let shape = Shape { block_size, format };
        let sorted = sort(names, hasher)?;
        let ranges = shape.pack(sorted.iter().map(|sorted| record_length(sorted.name.len())));
        let widths = shape.level_widths(ranges.len(), max_levels)?;
        let first_leaf = 1 + widths.iter().sum::<usize>();
        let leaves = first_hashes(&sorted, &ranges, first_leaf)?;
        let end_of = |range: &Range<usize>| u32::try_from(range.end).map_err(|_| TooMany);
        Ok(Self {
            shape,
            hasher: *hasher,
            order: sorted.iter().map(|sorted| sorted.position).collect(),
            leaf_ends: ranges.iter().map(end_of).collect::<Result<_, _>>()?,
            widths,
            leaves,
        })
    }

    /// Number of blocks of the directory.
    #[must_use]
    pub fn blocks(&self) -> usize {
        1 + self.widths.iter().sum::<usize>() + self.leaves.len()
    }

    /// Builds the blocks in order. `entry` returns the entry of a name by its position among the
    /// names of the plan; `take` receives one block after another.
    ///
    /// # Panics
    ///
    /// If an entry has another name than in the plan, or no inode.
    pub fn write<'a>(
        &self,
        own: InodeNumber,
        parent: InodeNumber,
        entry: impl Fn(usize) -> Entry<'a>,
        mut take: impl FnMut(BuiltBlock),
    ) {
        let mut children = self.leaves.clone();
        let mut levels = Vec::new();
        let mut first = 1 + self.widths.iter().sum::<usize>();
        for &width in self.widths.iter().rev() {
            first -= width;
            let (nodes, above) = self.shape.nodes(&children, width, first);
            levels.push(nodes);
            children = above;
        }
        let depth = u8::try_from(self.widths.len()).expect("at most two levels");
        take(self.shape.root(own, parent, &self.hasher, &children, depth));
        levels.into_iter().rev().flatten().for_each(&mut take);
        let mut start = 0;
        for &end in &self.leaf_ends {
            let end = end as usize;
            let positions = self.order[start..end].iter();
            take(
                self.shape
                    .leaf(positions.map(|&position| entry(position as usize))),
            );
            start = end;
        }
    }
}

impl Shape {
    /// Divides records of these lengths into ranges that each fit into a leaf.
    fn pack(&self, lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
        let room = usable_length(self.block_size, self.format);
        let (mut ranges, mut start, mut used, mut end) = (Vec::new(), 0, 0, 0);
        for length in lengths {
            if used + length > room {
                ranges.push(start..end);
                (start, used) = (end, 0);
            }
            used += length;
            end += 1;
        }
        ranges.push(start..end);
        ranges
    }

    /// Number of nodes of each level, from the top, of an index over `leaves` leaves.
    fn level_widths(&self, leaves: usize, max_levels: u8) -> Result<Vec<usize>, TooMany> {
        let root_room = capacity(self.block_size, ROOT_ENTRIES_OFFSET, self.format.has_tail);
        let node_room = capacity(self.block_size, NODE_ENTRIES_OFFSET, self.format.has_tail);
        let (mut widths, mut width) = (Vec::new(), leaves);
        while width > root_room {
            if widths.len() == usize::from(max_levels) {
                return Err(TooMany);
            }
            width = width.div_ceil(node_room);
            widths.insert(0, width);
        }
        Ok(widths)
    }

    /// Builds one level: `width` nodes over `children`, evenly filled, in the blocks from `first`
    /// on.
    fn nodes(
        &self,
        children: &[IndexEntry],
        width: usize,
        first: usize,
    ) -> (Vec<BuiltBlock>, Vec<IndexEntry>) {
        let (mut blocks, mut above) = (Vec::new(), Vec::new());
        for node in 0..width {
            let range = node * children.len() / width..(node + 1) * children.len() / width;
            let own = &children[range];
            above.push(IndexEntry {
                hash: own[0].hash,
                block: block_number(first + node).expect("nodes lie before the numbered leaves"),
            });
            let mut bytes = vec![0; self.block_size];
            write_node(&mut bytes, self.format.has_tail, own);
            blocks.push(BuiltBlock {
                kind: Kind::Index,
                bytes,
            });
        }
        (blocks, above)
    }

    fn root(
        &self,
        own: InodeNumber,
        parent: InodeNumber,
        hasher: &Hasher,
        children: &[IndexEntry],
        levels: u8,
    ) -> BuiltBlock {
        let mut bytes = vec![0; self.block_size];
        init_root(
            &mut bytes,
            self.format,
            own,
            parent,
            hasher.version,
            children[0].block,
        );
        bytes[super::LEVELS_AT] = levels;
        write_entries(&mut bytes, ROOT_ENTRIES_OFFSET, children);
        BuiltBlock {
            kind: Kind::Index,
            bytes,
        }
    }

    fn leaf<'a>(&self, entries: impl IntoIterator<Item = Entry<'a>>) -> BuiltBlock {
        let mut bytes = vec![0; self.block_size];
        let fits = directory::write_leaf(&mut bytes, self.format, entries);
        assert!(fits, "runs of records are cut to fit");
        BuiltBlock {
            kind: Kind::Leaf,
            bytes,
        }
    }
}

fn sort<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    hasher: &Hasher,
) -> Result<Vec<Sorted<'a>>, TooMany> {
    let hashed = |(position, name): (usize, &'a [u8])| {
        Some(Sorted {
            hash: hasher.hash(name)?,
            name,
            position: u32::try_from(position).ok()?,
        })
    };
    let mut sorted = names
        .enumerate()
        .map(hashed)
        .collect::<Option<Vec<_>>>()
        .ok_or(TooMany)?;
    sorted.sort_unstable_by(|a, b| (a.hash, a.name).cmp(&(b.hash, b.name)));
    Ok(sorted)
}

fn first_hashes(
    sorted: &[Sorted<'_>],
    leaves: &[Range<usize>],
    first_leaf: usize,
) -> Result<Vec<IndexEntry>, TooMany> {
    let child = |(position, range): (usize, &Range<usize>)| {
        let hash = sorted[range.start].hash.major;
        let continued = range.start > 0 && sorted[range.start - 1].hash.major == hash;
        let block = block_number(first_leaf + position)?;
        Ok(IndexEntry {
            hash: index_hash(hash, continued),
            block,
        })
    };
    leaves.iter().enumerate().map(child).collect()
}

fn block_number(number: usize) -> Result<LogicalBlock, TooMany> {
    let number = u32::try_from(number)
        .ok()
        .filter(|&number| number <= super::BLOCK_MASK);
    number.map(LogicalBlock).ok_or(TooMany)
}
