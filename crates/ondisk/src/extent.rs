//! Nodes of an extent tree: header, leaf entries (extents), index entries, tail checksum.
//!
//! A node is a header of 12 bytes and entries of 12 bytes each. The root is in the inode's 60 bytes
//! of `i_block`; every other node fills a block and, with metadata checksums, has its checksum
//! directly after the room for entries. Entries are sorted by logical block, extents do not
//! overlap, and depth decreases by one from a node to its children; leaves have depth 0. Format:
//! the kernel's `Documentation/filesystems/ext4/ifork.rst`.
//!
//! [`Node::parse`] checks a header in constant time and [`Node::check_entries`] the entries in
//! linear time. A decoded entry is checked once more by itself, so that no caller depends on an
//! earlier check for memory safety. The caller checks how a node relates to its parent.

mod build;
mod node;

use std::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::Corrupt;
use crate::inode;
use crate::number::{BlockNumber, LogicalBlock};

pub use node::{
    Node, empty_root, is_empty_root, set_entry, set_logical, splice, stamp_node, verify_node,
    write_node,
};

/// First two bytes of every node (`EXT4_EXT_MAGIC`).
pub const MAGIC: u16 = 0xF30A;
/// Bytes of a node's header.
pub const HEADER_SIZE: usize = 12;
/// Bytes of an entry, in leaves and in index nodes.
pub const ENTRY_SIZE: usize = 12;
/// Bytes of the root, which is the inode's `i_block`.
pub const ROOT_SIZE: usize = inode::BLOCK_AREA;
/// Depth of the tallest tree: a root above five levels of blocks.
pub const MAX_DEPTH: u16 = 5;
/// Most blocks in a written extent (`EXT_INIT_MAX_LEN`).
pub const MAX_WRITTEN_LENGTH: u32 = 32768;
/// Most blocks in an unwritten extent (`EXT_UNWRITTEN_MAX_LEN`).
pub const MAX_UNWRITTEN_LENGTH: u32 = 32767;
/// No extent reaches this logical block or beyond.
pub const LOGICAL_END: u64 = u32::MAX as u64;

pub use build::{Built, Run, build, extents_of, nodes_needed};

const STRUCTURE: &str = "extent node";

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    eh_magic: U16,
    eh_entries: U16,
    eh_max: U16,
    eh_depth: U16,
    eh_generation: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtent {
    ee_block: U32,
    ee_len: U16,
    ee_start_hi: U16,
    ee_start_lo: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawIndex {
    ei_block: U32,
    ei_leaf_lo: U32,
    ei_leaf_hi: U16,
    ei_unused: U16,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_SIZE);
const _: () = assert!(size_of::<RawExtent>() == ENTRY_SIZE);
const _: () = assert!(size_of::<RawIndex>() == ENTRY_SIZE);

/// The bytes of an entry.
pub type EntryBytes = [u8; ENTRY_SIZE];

/// Number of entries in a node of `bytes` bytes. Every legal block size leaves at least the 4 bytes
/// that the checksum after the entries needs.
#[must_use]
pub const fn capacity(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER_SIZE) / ENTRY_SIZE
}

/// The blocks that extents and index entries may point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The first block of the file system.
    pub first: BlockNumber,
    /// The first block after the file system.
    pub end: BlockNumber,
}

impl Bounds {
    /// Whether all of `length` blocks from `start` on are inside.
    #[must_use]
    pub fn contains(&self, start: BlockNumber, length: u32) -> bool {
        start >= self.first && start.checked_add(length).is_some_and(|end| end <= self.end)
    }
}

/// A node's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Entries in use.
    pub entries: u16,
    /// Most entries that fit.
    pub max: u16,
    /// Levels below this node; 0 for a leaf.
    pub depth: u16,
    /// Unused by Linux.
    pub generation: u32,
}

impl Header {
    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// If there are too few bytes or the magic number is wrong.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (raw, _) = RawHeader::read_from_prefix(bytes)
            .map_err(|_| Corrupt::new(STRUCTURE, "shorter than its header"))?;
        if raw.eh_magic.get() != MAGIC {
            return Err(wrong_magic(raw.eh_magic.get()));
        }
        Ok(Self {
            entries: raw.eh_entries.get(),
            max: raw.eh_max.get(),
            depth: raw.eh_depth.get(),
            generation: raw.eh_generation.get(),
        })
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than a header.
    pub fn encode(&self, bytes: &mut [u8]) {
        RawHeader {
            eh_magic: U16::new(MAGIC),
            eh_entries: U16::new(self.entries),
            eh_max: U16::new(self.max),
            eh_depth: U16::new(self.depth),
            eh_generation: U32::new(self.generation),
        }
        .write_to_prefix(bytes)
        .expect("a node is longer than its header");
    }
}

#[cold]
fn wrong_magic(magic: u16) -> Corrupt {
    let problem = format!("magic is {magic:#06x}, not {MAGIC:#06x}");
    Corrupt::new(STRUCTURE, problem)
}

#[cold]
fn impossible(extent: &Extent) -> Corrupt {
    Corrupt::new(STRUCTURE, format!("impossible extent {extent}"))
}

/// A run of blocks that are contiguous both in a file and on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block in the file.
    pub logical: LogicalBlock,
    /// The first block on the device.
    pub start: BlockNumber,
    /// Number of blocks, from 1 to [`Extent::limit`].
    pub length: u32,
    /// Allocated but never written: reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// Decodes an entry of a leaf.
    ///
    /// # Errors
    ///
    /// If its length is zero or it reaches beyond the last logical block.
    #[inline]
    pub fn decode(entry: &EntryBytes) -> Result<Self, Corrupt> {
        let raw = RawExtent::read_from_bytes(entry).expect("sizes are equal by type");
        let stored = u32::from(raw.ee_len.get());
        let unwritten = stored > MAX_WRITTEN_LENGTH;
        let low = u64::from(raw.ee_start_lo.get());
        let extent = Self {
            logical: LogicalBlock(raw.ee_block.get()),
            start: BlockNumber(u64::from(raw.ee_start_hi.get()) << 32 | low),
            length: if unwritten {
                stored - MAX_WRITTEN_LENGTH
            } else {
                stored
            },
            unwritten,
        };
        if !extent.is_valid() {
            return Err(impossible(&extent));
        }
        Ok(extent)
    }

    /// Encodes a valid extent.
    #[must_use]
    pub fn encode(&self) -> EntryBytes {
        debug_assert!(self.is_valid(), "{self}");
        let mark = if self.unwritten {
            MAX_WRITTEN_LENGTH
        } else {
            0
        };
        let (high, low) = split_block(self.start);
        let raw = RawExtent {
            ee_block: U32::new(self.logical.get()),
            ee_len: U16::new(u16::try_from(self.length + mark).expect("length within its limit")),
            ee_start_hi: U16::new(high),
            ee_start_lo: U32::new(low),
        };
        zerocopy::transmute!(raw)
    }

    /// Most blocks of an extent of this kind, written or unwritten.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        if self.unwritten {
            MAX_UNWRITTEN_LENGTH
        } else {
            MAX_WRITTEN_LENGTH
        }
    }

    /// Whether length and position can be encoded.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let device_end = self.start.get().checked_add(u64::from(self.length));
        (1..=self.limit()).contains(&self.length)
            && self.end() <= LOGICAL_END
            && device_end.is_some_and(|end| end <= 1 << 48)
    }

    /// The first logical block after the extent.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.logical.get()) + u64::from(self.length)
    }

    /// Whether the extent maps this logical block.
    #[must_use]
    pub fn covers(&self, logical: LogicalBlock) -> bool {
        logical >= self.logical && u64::from(logical.get()) < self.end()
    }

    /// The part of the extent in the logical blocks `from..to`; `None` if it is empty.
    #[must_use]
    pub fn part(&self, from: u64, to: u64) -> Option<Self> {
        let first = u64::from(self.logical.get());
        let (start, end) = (from.max(first), to.min(self.end()));
        if start >= end {
            return None;
        }
        Some(Self {
            logical: LogicalBlock(u32::try_from(start).expect("inside an extent")),
            start: self
                .start
                .checked_add(start - first)
                .expect("inside an extent"),
            length: u32::try_from(end - start).expect("not longer than the extent"),
            unwritten: self.unwritten,
        })
    }

    /// This extent joined with `next`, if they are contiguous in the file and on the device, of the
    /// same kind, and together not too long.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let length = self.length.checked_add(next.length)?;
        let fits = self.unwritten == next.unwritten
            && self.end() == u64::from(next.logical.get())
            && self.start.checked_add(self.length) == Some(next.start)
            && length <= self.limit();
        fits.then_some(Self { length, ..*self })
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.unwritten { " unwritten" } else { "" };
        let (logical, start, length) = (self.logical, self.start, self.length);
        write!(formatter, "{logical}+{length} at {start}{state}")
    }
}

/// An index entry: a child node and the first logical block it maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// The first logical block that the child maps.
    pub logical: LogicalBlock,
    /// The block of the child.
    pub child: BlockNumber,
}

impl Index {
    /// Decodes an entry of an index node.
    #[must_use]
    pub fn decode(entry: &EntryBytes) -> Self {
        let raw = RawIndex::read_from_bytes(entry).expect("sizes are equal by type");
        let low = u64::from(raw.ei_leaf_lo.get());
        Self {
            logical: LogicalBlock(raw.ei_block.get()),
            child: BlockNumber(u64::from(raw.ei_leaf_hi.get()) << 32 | low),
        }
    }

    /// Encodes the entry.
    #[must_use]
    pub fn encode(&self) -> EntryBytes {
        let (high, low) = split_block(self.child);
        let raw = RawIndex {
            ei_block: U32::new(self.logical.get()),
            ei_leaf_lo: U32::new(low),
            ei_leaf_hi: U16::new(high),
            ei_unused: U16::new(0),
        };
        zerocopy::transmute!(raw)
    }
}

/// The upper 16 and the lower 32 bits of a 48-bit block number.
fn split_block(block: BlockNumber) -> (u16, u32) {
    let high = u16::try_from(block.get() >> 32).expect("block numbers have 48 bits");
    let low = u32::try_from(block.get() & u64::from(u32::MAX)).expect("masked to 32 bits");
    (high, low)
}

/// The first logical block of an entry, an extent or an index entry.
fn first_logical(entry: &EntryBytes) -> LogicalBlock {
    let [a, b, c, d, ..] = *entry;
    LogicalBlock(u32::from_le_bytes([a, b, c, d]))
}

#[cfg(test)]
mod tests;
