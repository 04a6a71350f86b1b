//! Nodes of an extent tree: header, leaf entries (extents), index entries, tail checksum.
//!
//! A node is a header of 12 bytes and entries of 12 bytes each. The root lies in the inode's 60
//! bytes of `i_block`; every other node fills a block and, with metadata checksums, has its
//! checksum directly behind the room for entries. Entries are sorted by logical block, extents do
//! not overlap, and depth falls by one from a node to its children; leaves have depth 0.
//!
//! [`Node::parse`] checks a header in constant time and [`Node::check_entries`] the entries in
//! linear time; a decoded entry is checked for itself once more, so that no caller depends on an
//! earlier check for its safety. What ties a node to its parent is the caller's to check.

use std::fmt;
use std::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{crc32c, inode_state};
use crate::corrupt::Corrupt;
use crate::number::{BlockNumber, InodeNumber, LogicalBlock};

/// First two bytes of every node.
pub const MAGIC: u16 = 0xF30A;
/// Bytes of a node's header.
pub const HEADER_SIZE: usize = 12;
/// Bytes of an entry, in leaves and in index nodes.
pub const ENTRY_SIZE: usize = 12;
/// Bytes of the root, which is the inode's `i_block`.
pub const ROOT_SIZE: usize = 60;
/// Depth of the tallest tree: a root above five levels of blocks.
pub const MAX_DEPTH: u16 = 5;
/// Most blocks in a written extent.
pub const MAX_WRITTEN_LENGTH: u32 = 32768;
/// Most blocks in an unwritten extent.
pub const MAX_UNWRITTEN_LENGTH: u32 = 32767;
/// No extent reaches this logical block or beyond.
pub const LOGICAL_END: u64 = u32::MAX as u64;

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

/// An entry as it lies in a node.
pub type EntryBytes = [u8; ENTRY_SIZE];

/// How many entries fit into a node of `bytes` bytes. Every legal block size leaves at least the 4
/// bytes that the checksum behind the entries needs.
#[must_use]
pub const fn capacity(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER_SIZE) / ENTRY_SIZE
}

/// The blocks that extents and index entries may point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The first block of the file system.
    pub first: BlockNumber,
    /// The first block behind it.
    pub end: BlockNumber,
}

impl Bounds {
    /// Whether all of `length` blocks from `start` on lie inside.
    #[must_use]
    pub fn contain(&self, start: BlockNumber, length: u32) -> bool {
        start >= self.first && start.checked_add(length).is_some_and(|end| end <= self.end)
    }
}

/// A node's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Entries in use.
    pub entries: u16,
    /// Room for entries.
    pub max: u16,
    /// Levels below this node; 0 for a leaf.
    pub depth: u16,
    /// Unused by Linux.
    pub generation: u32,
}

impl Header {
    /// The header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// If there are too few bytes or the magic is missing.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (raw, _) = RawHeader::read_from_prefix(bytes)
            .map_err(|_| Corrupt::new(STRUCTURE, "shorter than its header"))?;
        if raw.eh_magic.get() != MAGIC {
            let problem = format!("magic is {:#06x}, not {MAGIC:#06x}", raw.eh_magic.get());
            return Err(Corrupt::new(STRUCTURE, problem));
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

/// A run of blocks of a file that lie one behind the other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block in the file.
    pub logical: LogicalBlock,
    /// The first block on the device.
    pub start: BlockNumber,
    /// Blocks; at least 1, at most [`Extent::limit`].
    pub length: u32,
    /// Allocated but never written: reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// An extent from its entry.
    ///
    /// # Errors
    ///
    /// If its length is zero or it reaches beyond the last logical block.
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
            return Err(Corrupt::new(
                STRUCTURE,
                format!("impossible extent {extent}"),
            ));
        }
        Ok(extent)
    }

    /// The entry of a valid extent.
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

    /// Most blocks that an extent of this state may have.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        if self.unwritten {
            MAX_UNWRITTEN_LENGTH
        } else {
            MAX_WRITTEN_LENGTH
        }
    }

    /// Whether length and position can be stored.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let device_end = self.start.get().checked_add(u64::from(self.length));
        (1..=self.limit()).contains(&self.length)
            && self.end() <= LOGICAL_END
            && device_end.is_some_and(|end| end <= 1 << 48)
    }

    /// The first logical block behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.logical.get()) + u64::from(self.length)
    }

    /// Whether it maps this logical block.
    #[must_use]
    pub fn covers(&self, logical: LogicalBlock) -> bool {
        logical >= self.logical && u64::from(logical.get()) < self.end()
    }

    /// What of it lies in the logical blocks `from` up to but not including `to`.
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

    /// This extent and the one behind it as one, if they are neighbours in the file and on the
    /// device, of the same state, and together not too long.
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
    /// The block that holds the child.
    pub child: BlockNumber,
}

impl Index {
    /// An index entry from its bytes.
    #[must_use]
    pub fn decode(entry: &EntryBytes) -> Self {
        let raw = RawIndex::read_from_bytes(entry).expect("sizes are equal by type");
        let low = u64::from(raw.ei_leaf_lo.get());
        Self {
            logical: LogicalBlock(raw.ei_block.get()),
            child: BlockNumber(u64::from(raw.ei_leaf_hi.get()) << 32 | low),
        }
    }

    /// The bytes of an index entry.
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

/// The upper 16 and the lower 32 of a block number's 48 bits.
fn split_block(block: BlockNumber) -> (u16, u32) {
    let high = u16::try_from(block.get() >> 32).expect("block numbers have 48 bits");
    let low = u32::try_from(block.get() & u64::from(u32::MAX)).expect("masked to 32 bits");
    (high, low)
}

/// A node whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    header: Header,
    entries: &'a [EntryBytes],
}

impl<'a> Node<'a> {
    /// The node in `bytes`: the root's 60 or a whole block.
    ///
    /// # Errors
    ///
    /// If magic, depth or counts cannot be true. A node other than an empty leaf root has entries;
    /// whether an empty leaf is a root is the caller's to know.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        let header = Header::decode(bytes)?;
        let room = capacity(bytes.len());
        let max = usize::from(header.max);
        if max > room || max + 2 < room {
            let problem = format!("claims room for {max} entries where {room} fit");
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        if header.entries > header.max {
            let problem = format!("{} entries in room for {max}", header.entries);
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        if header.depth > MAX_DEPTH || (header.entries == 0 && header.depth > 0) {
            let problem = format!("depth {} with {} entries", header.depth, header.entries);
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        let (entries, _) = bytes[HEADER_SIZE..].as_chunks();
        Ok(Self {
            header,
            entries: &entries[..usize::from(header.entries)],
        })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// Levels below this node.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.header.depth
    }

    /// Entries in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in use, as they lie there.
    #[must_use]
    pub fn entries(&self) -> &'a [EntryBytes] {
        self.entries
    }

    /// First logical block of entry `slot`.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    #[must_use]
    pub fn logical(&self, slot: usize) -> LogicalBlock {
        first_logical(&self.entries[slot])
    }

    /// How many entries begin at `logical` or before it.
    #[must_use]
    pub fn count_up_to(&self, logical: LogicalBlock) -> usize {
        self.entries
            .partition_point(|entry| first_logical(entry) <= logical)
    }

    /// Extent `slot` of a leaf.
    ///
    /// # Errors
    ///
    /// If it is no possible extent or leaves `bounds`.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn extent(&self, slot: usize, bounds: &Bounds) -> Result<Extent, Corrupt> {
        let extent = Extent::decode(&self.entries[slot])?;
        if !bounds.contain(extent.start, extent.length) {
            return Err(Corrupt::new(
                STRUCTURE,
                format!("{extent} leaves the file system"),
            ));
        }
        Ok(extent)
    }

    /// Index entry `slot` of an index node.
    ///
    /// # Errors
    ///
    /// If it points outside `bounds`.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn index(&self, slot: usize, bounds: &Bounds) -> Result<Index, Corrupt> {
        let index = Index::decode(&self.entries[slot]);
        if !bounds.contain(index.child, 1) {
            let problem = format!("child {} lies outside the file system", index.child);
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        Ok(index)
    }

    /// Checks every entry for itself and against the one before it.
    ///
    /// # Errors
    ///
    /// What is wrong with the first bad entry.
    pub fn check_entries(&self, bounds: &Bounds) -> Result<(), Corrupt> {
        let mut least = 0;
        for slot in 0..self.len() {
            let logical = u64::from(self.logical(slot).get());
            if logical < least {
                let problem = format!("entry {slot} ({logical}) is out of order or overlaps");
                return Err(Corrupt::new(STRUCTURE, problem));
            }
            least = if self.depth() == 0 {
                self.extent(slot, bounds)?.end()
            } else {
                self.index(slot, bounds)?;
                logical + 1
            };
        }
        Ok(())
    }
}

fn first_logical(entry: &EntryBytes) -> LogicalBlock {
    let [a, b, c, d, ..] = *entry;
    LogicalBlock(u32::from_le_bytes([a, b, c, d]))
}

/// Makes `bytes` a node of this depth that holds `entries` and has room for all that fit; bytes
/// behind the entries become zero.
///
/// # Panics
///
/// If the entries do not fit.
pub fn write_node(bytes: &mut [u8], depth: u16, entries: &[EntryBytes]) {
    let max = capacity(bytes.len());
    assert!(entries.len() <= max, "the caller splits what does not fit");
    let header = Header {
        entries: u16::try_from(entries.len()).expect("not more than the capacity"),
        max: u16::try_from(max).expect("a block holds fewer than 65536 entries"),
        depth,
        generation: 0,
    };
    bytes.fill(0);
    header.encode(bytes);
    bytes[HEADER_SIZE..][..entries.len() * ENTRY_SIZE].copy_from_slice(entries.as_flattened());
}

/// Replaces the entries in `slots` by `new` ones, in place; entries behind them move.
///
/// # Errors
///
/// If the node is not sound, has fewer entries than `slots` says, or too little room.
pub fn splice(bytes: &mut [u8], slots: Range<usize>, new: &[EntryBytes]) -> Result<(), Corrupt> {
    let mut header = Node::parse(bytes)?.header();
    let old = usize::from(header.entries);
    if slots.start > slots.end || slots.end > old {
        return Err(Corrupt::new(
            STRUCTURE,
            "has fewer entries than a moment ago",
        ));
    }
    let count = old - slots.len() + new.len();
    if count > usize::from(header.max) {
        return Err(Corrupt::new(STRUCTURE, "has less room than a moment ago"));
    }
    let (entries, _) = bytes[HEADER_SIZE..].as_chunks_mut::<ENTRY_SIZE>();
    let moved = slots.start + new.len();
    entries.copy_within(slots.end..old, moved);
    entries[slots.start..moved].copy_from_slice(new);
    if count < old {
        entries[count..old].fill([0; ENTRY_SIZE]);
    }
    header.entries = u16::try_from(count).expect("not more than the room");
    header.encode(bytes);
    Ok(())
}

/// Changes the first logical block that entry `slot` names, in place.
///
/// # Errors
///
/// If the node is not sound or has no such entry.
pub fn set_logical(bytes: &mut [u8], slot: usize, logical: LogicalBlock) -> Result<(), Corrupt> {
    if slot >= Node::parse(bytes)?.len() {
        return Err(Corrupt::new(
            STRUCTURE,
            "has fewer entries than a moment ago",
        ));
    }
    let at = HEADER_SIZE + slot * ENTRY_SIZE;
    bytes[at..at + 4].copy_from_slice(&logical.get().to_le_bytes());
    Ok(())
}

/// Bytes of the checksum behind the room for entries.
const CHECKSUM_SIZE: usize = 4;

/// Where a block's checksum lies: behind the room that the header claims, not at the block's end.
fn checksum_place(bytes: &[u8]) -> Result<usize, Corrupt> {
    let place = HEADER_SIZE + ENTRY_SIZE * usize::from(Header::decode(bytes)?.max);
    if place + CHECKSUM_SIZE > bytes.len() {
        return Err(Corrupt::new(STRUCTURE, "no room for the checksum"));
    }
    Ok(place)
}

/// Stores the checksum of a node that fills a block; a block without a sound header stays as it is.
pub fn stamp_node(seed: u32, inode: InodeNumber, generation: u32, bytes: &mut [u8]) {
    if let Ok(place) = checksum_place(bytes) {
        let (summed, rest) = bytes.split_at_mut(place);
        let sum = crc32c(inode_state(seed, inode, generation), summed);
        rest[..CHECKSUM_SIZE].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Checks the checksum of a node that fills a block.
///
/// # Errors
///
/// If it is wrong, or the header leaves no room for one.
pub fn verify_node(
    seed: u32,
    inode: InodeNumber,
    generation: u32,
    bytes: &[u8],
) -> Result<(), Corrupt> {
    let (summed, rest) = bytes.split_at(checksum_place(bytes)?);
    let sum = crc32c(inode_state(seed, inode, generation), summed);
    if !rest.starts_with(&sum.to_le_bytes()) {
        return Err(Corrupt::new(STRUCTURE, "wrong checksum").in_inode(inode));
    }
    Ok(())
}

/// An empty root, as a new file has it.
#[must_use]
pub fn empty_root() -> [u8; ROOT_SIZE] {
    let mut root = [0; ROOT_SIZE];
    write_node(&mut root, 0, &[]);
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        first: BlockNumber(1),
        end: BlockNumber(1 << 40),
    };

    fn extent(logical: u32, start: u64, length: u32, unwritten: bool) -> Extent {
        Extent {
            logical: LogicalBlock(logical),
            start: BlockNumber(start),
            length,
            unwritten,
        }
    }

    #[test]
    fn lengths_tell_the_state() {
        let full = extent(7, 0x1234_5678_9ABC, 32768, false);
        assert_eq!(
            full.encode(),
            [7, 0, 0, 0, 0, 0x80, 0x34, 0x12, 0xBC, 0x9A, 0x78, 0x56]
        );
        assert_eq!(Extent::decode(&full.encode()), Ok(full));
        for length in [1, 32767] {
            let unwritten = extent(7, 9, length, true);
            assert_eq!(Extent::decode(&unwritten.encode()), Ok(unwritten));
        }
        assert!(Extent::decode(&[0; 12]).is_err(), "length zero");
        assert!(Extent::decode(&extent(u32::MAX - 1, 9, 1, false).encode()).is_ok());
        let mut beyond = extent(u32::MAX - 1, 9, 1, false).encode();
        beyond[4] = 2;
        assert!(Extent::decode(&beyond).is_err(), "reaches the last number");
    }

    #[test]
    fn index_entries_keep_48_bits() {
        let index = Index {
            logical: LogicalBlock(5),
            child: BlockNumber(0xFFFF_0000_0001),
        };
        assert_eq!(index.encode(), [5, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
        assert_eq!(Index::decode(&index.encode()), index);
    }

    #[test]
    fn neighbours_join_within_the_limit() {
        let left = extent(10, 100, 5, false);
        assert_eq!(
            left.joined(&extent(15, 105, 3, false)),
            Some(extent(10, 100, 8, false))
        );
        assert_eq!(
            left.joined(&extent(16, 105, 3, false)),
            None,
            "a hole between"
        );
        assert_eq!(
            left.joined(&extent(15, 106, 3, false)),
            None,
            "elsewhere on the device"
        );
        assert_eq!(
            left.joined(&extent(15, 105, 3, true)),
            None,
            "another state"
        );
        let long = extent(0, 100, 32767, false);
        assert!(long.joined(&extent(32767, 32867, 1, false)).is_some());
        let unwritten = extent(0, 100, 32767, true);
        assert_eq!(unwritten.joined(&extent(32767, 32867, 1, true)), None);
    }

    #[test]
    fn parts_keep_the_mapping() {
        let whole = extent(10, 100, 10, true);
        assert_eq!(whole.part(12, 15), Some(extent(12, 102, 3, true)));
        assert_eq!(whole.part(0, 11), Some(extent(10, 100, 1, true)));
        assert_eq!(whole.part(20, 30), None);
    }

    #[test]
    fn room_follows_the_block_size() {
        let rooms = [60, 1024, 2048, 4096, 65536].map(capacity);
        assert_eq!(rooms, [4, 84, 169, 340, 5460]);
    }

    #[test]
    fn an_empty_root_is_a_leaf_with_room_for_four() {
        let root = empty_root();
        assert_eq!(root[..12], [0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert!(Node::parse(&root).expect("sound").is_empty());
    }

    #[test]
    fn the_checksum_lies_behind_the_room_that_the_header_claims() {
        let mut bytes = [0; 1024];
        write_node(&mut bytes, 0, &[extent(1, 9, 1, false).encode()]);
        bytes[4] = 83;
        bytes[1020..].fill(0xEE);
        stamp_node(1, InodeNumber(12), 5, &mut bytes);
        assert_ne!(bytes[12 + 83 * 12..][..4], [0; 4]);
        assert_eq!(bytes[1020..], [0xEE; 4]);
        assert!(verify_node(1, InodeNumber(12), 5, &bytes).is_ok());
        assert!(verify_node(1, InodeNumber(12), 6, &bytes).is_err());
        assert!(verify_node(1, InodeNumber(13), 5, &bytes).is_err());
        bytes[20] ^= 1;
        assert!(verify_node(1, InodeNumber(12), 5, &bytes).is_err());
        bytes[4] = 200;
        assert!(
            verify_node(1, InodeNumber(12), 5, &bytes).is_err(),
            "beyond the block"
        );
    }

    #[test]
    fn splices_move_what_follows() {
        let entry = |logical| {
            Index {
                logical: LogicalBlock(logical),
                child: BlockNumber(9),
            }
            .encode()
        };
        let mut bytes = [0; 64];
        write_node(&mut bytes, 1, &[1, 2, 3].map(entry));
        splice(&mut bytes, 1..2, &[10, 11].map(entry)).expect("there is room");
        let logicals = |bytes: &[u8]| {
            let node = Node::parse(bytes).expect("sound");
            (0..node.len())
                .map(|slot| node.logical(slot).get())
                .collect::<Vec<_>>()
        };
        assert_eq!(logicals(&bytes), [1, 10, 11, 3]);
        assert!(splice(&mut bytes, 0..0, &[entry(0)]).is_err(), "no room");
        assert!(splice(&mut bytes, 3..5, &[]).is_err(), "no such entry");
        splice(&mut bytes, 0..3, &[]).expect("removals fit");
        set_logical(&mut bytes, 0, LogicalBlock(4)).expect("it is there");
        assert_eq!(logicals(&bytes), [4]);
        assert_eq!(bytes[24..], [0; 40], "no remains of old entries");
        assert!(set_logical(&mut bytes, 1, LogicalBlock(5)).is_err());
    }

    #[test]
    fn refuses_headers_that_lie() {
        let mut leaf = [0; 64];
        write_node(&mut leaf, 0, &[extent(1, 9, 1, false).encode()]);
        assert!(Node::parse(&leaf).is_ok());
        for (at, value) in [(0, 0), (2, 5), (4, 5), (4, 1), (6, 6)] {
            let mut bad = leaf;
            bad[at] = value;
            assert!(Node::parse(&bad).is_err(), "byte {at} = {value}");
        }
        let mut empty_index = leaf;
        empty_index[2] = 0;
        empty_index[6] = 1;
        assert!(Node::parse(&empty_index).is_err());
    }

    #[test]
    fn refuses_entries_that_lie() {
        let sound = [extent(1, 9, 2, false), extent(3, 20, 1, true)];
        let overlap = [extent(1, 9, 3, false), extent(3, 20, 1, true)];
        let disorder = [extent(3, 20, 1, true), extent(1, 9, 2, false)];
        let outside = [extent(1, 0, 2, false), extent(3, 20, 1, true)];
        let verdict = |extents: [Extent; 2]| {
            let mut bytes = [0; 64];
            write_node(&mut bytes, 0, &extents.map(|extent| extent.encode()));
            Node::parse(&bytes).and_then(|node| node.check_entries(&BOUNDS))
        };
        assert_eq!(verdict(sound), Ok(()));
        assert!(verdict(overlap).is_err());
        assert!(verdict(disorder).is_err());
        assert!(verdict(outside).is_err());
        let mut twins = [0; 64];
        let twin = Index {
            logical: LogicalBlock(4),
            child: BlockNumber(7),
        }
        .encode();
        write_node(&mut twins, 1, &[twin, twin]);
        let node = Node::parse(&twins).expect("a sound header");
        assert!(
            node.check_entries(&BOUNDS).is_err(),
            "index entries ascend strictly"
        );
    }
}
