//! The hash index of a directory: a root in block 0 and, if that is full, nodes below it.
//!
//! A root starts with `.` and `..`, whose record covers the rest of the block. A node starts with a
//! free record that covers the whole block. A program without index support therefore sees free
//! space. After these records come the entries: pairs of a hash and a block, sorted by hash. The
//! first pair has no hash (in its place are the *limit* of entries and their *count*) and covers
//! all hashes below the second pair's. An odd hash means that the names of that hash (minus one)
//! *continue* from the block before.
//!
//! Limits are exact: the number of entries that fit into the block, after subtracting the 8 bytes
//! of the checksum, which follows the room for entries. Only the root has the number of levels
//! below it. Format: the kernel's `Documentation/filesystems/ext4/directory.rst`.

mod build;
mod edit;

pub use build::{BuiltBlock, Kind, Plan, TooMany};
pub use edit::{IndexMut, deepen, index_hash, init_root, write_node};

use crate::bytes::{read_u16, read_u32, write_u32};
use crate::checksum::{InodeSeed, crc32c};
use crate::corrupt::Corrupt;
use crate::directory;
use crate::dirhash::HashVersion;
use crate::number::LogicalBlock;

/// Bytes of an entry: a hash and a block number, 4 bytes each.
pub const ENTRY_SIZE: usize = 8;
/// Offset of limit and count in a root, in bytes.
pub const ROOT_ENTRIES_OFFSET: usize = 0x20;
/// Offset of limit and count in a node, in bytes.
pub const NODE_ENTRIES_OFFSET: usize = 0x08;
/// Mask of the 28 bits of a block number in an entry; the higher bits are ignored.
pub const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// Bytes of the checksum after the room for entries.
pub const TAIL_SIZE: usize = 8;
/// The bit of a hash in an index that marks a continuation.
pub const CONTINUED: u32 = 1;

/// The flag of an index of another kind.
const UNSUPPORTED_FLAG: u8 = 1;

const ROOT: &str = "htree root";
const NODE: &str = "htree node";
const INFO_AT: usize = 0x18;
const LEVELS_AT: usize = 0x1E;
const INFO_LENGTH: u8 = 8;

/// The root's description of the whole index, not validated: see [`RootInfo::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The hash version, as the number on disk.
    pub raw_version: u8,
    /// Levels of nodes between the root and the leaves: 0, 1, or 2 with `large_dir`.
    pub indirect_levels: u8,
    /// Flags. Only one has a meaning: that the index is of another kind. Linux ignores the others.
    pub flags: u8,
}

impl RootInfo {
    /// Decodes it from block 0.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the block is no root.
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        if directory::dot_dot_offset(block)? != directory::DOT_DOT_OFFSET {
            return Err(Corrupt::new(ROOT, "the record of '.' is too long"));
        }
        let Some(&[r0, r1, r2, r3, raw_version, length, indirect_levels, flags]) =
            block.get(INFO_AT..).and_then(|info| info.first_chunk())
        else {
            return Err(Corrupt::new(ROOT, format!("{} bytes", block.len())));
        };
        if [r0, r1, r2, r3] != [0; 4] || length != INFO_LENGTH {
            return Err(Corrupt::new(ROOT, format!("{length} bytes of information")));
        }
        Ok(Self {
            raw_version,
            indirect_levels,
            flags,
        })
    }

    /// The hash version; `None` if the number is unknown.
    #[must_use]
    pub fn hash_version(&self) -> Option<HashVersion> {
        HashVersion::from_raw(self.raw_version)
    }

    /// Whether the flags leave the index of a known kind: those without a meaning do.
    #[must_use]
    pub fn has_known_flags(&self) -> bool {
        self.flags & UNSUPPORTED_FLAG == 0
    }

    /// Checks that the index is of a known kind with at most `max_levels` levels of nodes (1, or 2
    /// with `large_dir`); returns the hash version.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the field with an unknown value.
    pub fn check(&self, max_levels: u8) -> Result<HashVersion, Corrupt> {
        if !self.has_known_flags() {
            return Err(Corrupt::new(ROOT, format!("flags are {:#x}", self.flags)));
        }
        if self.indirect_levels > max_levels {
            let problem = format!("{} levels of {max_levels}", self.indirect_levels);
            return Err(Corrupt::new(ROOT, problem));
        }
        self.hash_version()
            .ok_or_else(|| Corrupt::new(ROOT, format!("hash version {}", self.raw_version)))
    }
}

/// One entry of an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The lowest hash of its names; odd if they continue from the entry before. 0 for the first
    /// entry.
    pub hash: u32,
    /// The directory's block with the names, or with the entries of the next level.
    pub block: LogicalBlock,
}

/// The entries of a root or node, whose limit and count are valid for their block.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    block: &'a [u8],
    start: usize,
    limit: usize,
    count: usize,
}

impl<'a> Index<'a> {
    /// The entries of a root. [`RootInfo::decode`] decodes the other fields.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if limit or count is impossible.
    pub fn root(block: &'a [u8], has_tail: bool) -> Result<Self, Corrupt> {
        Self::at(block, ROOT_ENTRIES_OFFSET, has_tail, ROOT)
    }

    /// The entries of a node.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the block does not look like a node, or limit or count is impossible.
    pub fn node(block: &'a [u8], has_tail: bool) -> Result<Self, Corrupt> {
        if !looks_like_node(block) {
            return Err(Corrupt::new(
                NODE,
                "does not start with free space over the whole block",
            ));
        }
        Self::at(block, NODE_ENTRIES_OFFSET, has_tail, NODE)
    }

    fn at(
        block: &'a [u8],
        start: usize,
        has_tail: bool,
        structure: &'static str,
    ) -> Result<Self, Corrupt> {
        let room = capacity(block.len(), start, has_tail);
        if room < 2 {
            return Err(Corrupt::new(structure, format!("{} bytes", block.len())));
        }
        let limit = usize::from(read_u16(block, start));
        let count = usize::from(read_u16(block, start + 2));
        if limit != room || count == 0 || count > limit {
            let problem = format!("{count} entries of {limit} where {room} fit");
            return Err(Corrupt::new(structure, problem));
        }
        Ok(Self {
            block,
            start,
            limit,
            count,
        })
    }

    /// Most entries that fit.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Entries in use; at least 1.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is no room for another entry.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == self.limit
    }

    /// The entry at a position.
    ///
    /// # Panics
    ///
    /// If the position is past the last entry.
    #[must_use]
    #[inline]
    pub fn entry(&self, position: usize) -> IndexEntry {
        let (hash, block) = pair(&self.pairs()[position]);
        IndexEntry {
            hash: if position == 0 { 0 } else { hash },
            block: LogicalBlock(block & BLOCK_MASK),
        }
    }

    /// The entries as they are in the block. The first one's hash is limit and count.
    #[inline]
    fn pairs(&self) -> &'a [[u8; ENTRY_SIZE]] {
        let (pairs, _) = self.block[self.start..].as_chunks();
        &pairs[..self.count]
    }

    /// All entries, in order.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = IndexEntry> + use<'a> {
        let index = *self;
        (0..index.count).map(move |position| index.entry(position))
    }

    /// The position of the last entry whose hash is at most `hash`, where a name with that hash
    /// belongs. The name may also be in the following entries whose hash is this one with
    /// [`CONTINUED`].
    #[must_use]
    pub fn search(&self, hash: u32) -> usize {
        let behind_first = &self.pairs()[1..];
        behind_first.partition_point(|entry| pair(entry).0 <= hash)
    }

    /// Checks that hashes do not decrease, and that every block is below `blocks`, the directory's
    /// number of blocks.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the first wrong entry.
    pub fn check(&self, blocks: u32) -> Result<(), Corrupt> {
        let structure = if self.start == ROOT_ENTRIES_OFFSET {
            ROOT
        } else {
            NODE
        };
        let mut least = 0;
        for (position, entry) in self.entries().enumerate() {
            if entry.hash < least {
                let problem = format!("hash {:#x} of entry {position} falls", entry.hash);
                return Err(Corrupt::new(structure, problem));
            }
            if entry.block.get() >= blocks || entry.block.get() == 0 {
                let problem = format!("entry {position} leads to {:?} of {blocks}", entry.block);
                return Err(Corrupt::new(structure, problem));
            }
            least = entry.hash;
        }
        Ok(())
    }
}

/// The two words of an entry: the hash and the block.
#[inline]
fn pair(&[h0, h1, h2, h3, b0, b1, b2, b3]: &[u8; ENTRY_SIZE]) -> (u32, u32) {
    let word = u32::from_le_bytes;
    (word([h0, h1, h2, h3]), word([b0, b1, b2, b3]))
}

/// Number of entries that fit into a block whose entries start at byte `start`.
#[must_use]
pub const fn capacity(block_length: usize, start: usize, has_tail: bool) -> usize {
    let behind = start + if has_tail { TAIL_SIZE } else { 0 };
    block_length.saturating_sub(behind) / ENTRY_SIZE
}

/// Whether a block starts like a node: with a free record as long as the block. The record's file
/// type may have any value, as for Linux and e2fsck. An empty leaf without a checksum tail looks
/// the same.
#[must_use]
pub fn looks_like_node(block: &[u8]) -> bool {
    let Some(start) = block.first_chunk::<8>() else {
        return false;
    };
    let length = match read_u16(start, 4) {
        0 | u16::MAX if block.len() == 1 << 16 => block.len(),
        length => usize::from(length),
    };
    start[..4] == [0; 4] && length == block.len() && start[6] == 0
}

/// Offset of limit and count in an index block with a checksum, root or node. e2fsck does not find
/// the checksum of a node whose free record has a file type.
fn entries_start(block: &[u8]) -> usize {
    if looks_like_node(block) && block[7] == 0 {
        NODE_ENTRIES_OFFSET
    } else {
        ROOT_ENTRIES_OFFSET
    }
}

/// Stores the checksum of a root or node in its tail; a block that cannot be an index block is
/// unchanged.
pub fn stamp(seed: InodeSeed, block: &mut [u8]) {
    let start = entries_start(block);
    let Ok(index) = Index::at(block, start, true, NODE) else {
        return;
    };
    let tail = start + index.limit * ENTRY_SIZE;
    let computed = checksum(&index, seed);
    write_u32(block, tail + 4, computed);
}

/// Checks the checksum of a root or node.
///
/// # Errors
///
/// [`Corrupt`] if limit, count or checksum is wrong.
pub fn verify(seed: InodeSeed, block: &[u8]) -> Result<(), Corrupt> {
    let start = entries_start(block);
    let structure = if start == NODE_ENTRIES_OFFSET {
        NODE
    } else {
        ROOT
    };
    let index = Index::at(block, start, true, structure).map_err(|c| c.in_inode(seed.inode))?;
    let stored = read_u32(block, start + index.limit * ENTRY_SIZE + 4);
    let computed = checksum(&index, seed);
    if stored == computed {
        return Ok(());
    }
    Err(Corrupt::checksum(structure, stored, computed).in_inode(seed.inode))
}

/// crc32c over the block up to the last entry in use, then the tail with its checksum field as 0.
fn checksum(index: &Index<'_>, seed: InodeSeed) -> u32 {
    let used = index.start + index.count * ENTRY_SIZE;
    let tail = index.start + index.limit * ENTRY_SIZE;
    let state = crc32c(seed.state(), &index.block[..used]);
    crc32c(crc32c(state, &index.block[tail..tail + 4]), &[0; 4])
}

#[cfg(test)]
mod tests;
