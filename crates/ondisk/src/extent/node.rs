//! Whole nodes: parsing with a checked header, writing, editing in place, checksums.

use std::ops::Range;

use super::{
    Bounds, ENTRY_SIZE, EntryBytes, Extent, HEADER_SIZE, Header, Index, MAGIC, MAX_DEPTH,
    ROOT_SIZE, STRUCTURE, capacity, first_logical,
};
use crate::bytes::read_u32;
use crate::checksum::{InodeSeed, crc32c};
use crate::corrupt::Corrupt;
use crate::number::LogicalBlock;

/// A node with a valid header.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    header: Header,
    entries: &'a [EntryBytes],
}

impl<'a> Node<'a> {
    /// Parses a node: the 60 bytes of a root, or a whole block.
    ///
    /// # Errors
    ///
    /// If the magic number, the depth or the counts are impossible. A node has entries unless it is
    /// an empty root of depth 0; the caller checks whether an empty leaf is a root.
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

    /// The bytes of the entries in use.
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

    /// Number of entries that begin at `logical` or before it.
    #[must_use]
    pub fn count_up_to(&self, logical: LogicalBlock) -> usize {
        self.entries
            .partition_point(|entry| first_logical(entry) <= logical)
    }

    /// Decodes extent `slot` of a leaf.
    ///
    /// # Errors
    ///
    /// If it is invalid or exceeds `bounds`.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    #[inline]
    pub fn extent(&self, slot: usize, bounds: &Bounds) -> Result<Extent, Corrupt> {
        let extent = Extent::decode(&self.entries[slot])?;
        if !bounds.contains(extent.start, extent.length) {
            return Err(outside(&extent));
        }
        Ok(extent)
    }

    /// Decodes index entry `slot` of an index node.
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
        if !bounds.contains(index.child, 1) {
            let problem = format!("child {} lies outside the file system", index.child);
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        Ok(index)
    }

    /// Checks every entry by itself and against the one before it.
    ///
    /// # Errors
    ///
    /// The problem of the first bad entry.
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

#[cold]
fn outside(extent: &Extent) -> Corrupt {
    Corrupt::new(STRUCTURE, format!("{extent} leaves the file system"))
}

/// Makes `bytes` a node of this depth with `entries` and room for as many as fit; the bytes after
/// the entries become zero.
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

/// Replaces the entries in `slots` with `new` ones, in place; entries after them move.
///
/// # Errors
///
/// If the node is invalid, has fewer entries than `slots`, or too little room.
pub fn splice(bytes: &mut [u8], slots: Range<usize>, new: &[EntryBytes]) -> Result<(), Corrupt> {
    let mut header = Node::parse(bytes)?.header();
    let old = usize::from(header.entries);
    if slots.start > slots.end || slots.end > old {
        return Err(lost_entries());
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

#[cold]
fn lost_entries() -> Corrupt {
    Corrupt::new(STRUCTURE, "has fewer entries than a moment ago")
}

/// Where entry `slot` begins, which the node must have.
fn entry_place(bytes: &[u8], slot: usize) -> Result<usize, Corrupt> {
    if slot >= Node::parse(bytes)?.len() {
        return Err(lost_entries());
    }
    Ok(HEADER_SIZE + slot * ENTRY_SIZE)
}

/// Changes the first logical block of entry `slot`, in place.
///
/// # Errors
///
/// If the node is invalid or has no such entry.
pub fn set_logical(bytes: &mut [u8], slot: usize, logical: LogicalBlock) -> Result<(), Corrupt> {
    let at = entry_place(bytes, slot)?;
    bytes[at..at + 4].copy_from_slice(&logical.get().to_le_bytes());
    Ok(())
}

/// Replaces entry `slot`, in place.
///
/// # Errors
///
/// If the node is invalid or has no such entry.
pub fn set_entry(bytes: &mut [u8], slot: usize, entry: &EntryBytes) -> Result<(), Corrupt> {
    let at = entry_place(bytes, slot)?;
    bytes[at..at + ENTRY_SIZE].copy_from_slice(entry);
    Ok(())
}

/// Bytes of the checksum after the room for entries.
const CHECKSUM_SIZE: usize = 4;

/// Offset of a block's checksum: after the room that the header claims, not at the block's end.
fn checksum_place(bytes: &[u8]) -> Result<usize, Corrupt> {
    let place = HEADER_SIZE + ENTRY_SIZE * usize::from(Header::decode(bytes)?.max);
    if place + CHECKSUM_SIZE > bytes.len() {
        return Err(Corrupt::new(STRUCTURE, "no room for the checksum"));
    }
    Ok(place)
}

/// Stores the checksum of a node that fills a block; a block with an invalid header is unchanged.
pub fn stamp_node(seed: InodeSeed, bytes: &mut [u8]) {
    if let Ok(place) = checksum_place(bytes) {
        let (summed, rest) = bytes.split_at_mut(place);
        let sum = crc32c(seed.state(), summed);
        rest[..CHECKSUM_SIZE].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Checks the checksum of a node that fills a block.
///
/// # Errors
///
/// If it is wrong, or the header leaves no room for one.
pub fn verify_node(seed: InodeSeed, bytes: &[u8]) -> Result<(), Corrupt> {
    let (summed, rest) = bytes.split_at(checksum_place(bytes)?);
    let (stored, computed) = (read_u32(rest, 0), crc32c(seed.state(), summed));
    if stored != computed {
        return Err(Corrupt::checksum(STRUCTURE, stored, computed).in_inode(seed.inode));
    }
    Ok(())
}

/// Whether a root has no entries. What lies behind the header does not matter, nor what the
/// generation is: some implementations leave entries there that are gone.
#[must_use]
pub fn is_empty_root(root: &[u8; ROOT_SIZE]) -> bool {
    const KEPT: usize = 8;
    root.first_chunk::<KEPT>() == empty_root().first_chunk()
}

/// An empty root, as a new file has.
#[must_use]
pub const fn empty_root() -> [u8; ROOT_SIZE] {
    let mut root = [0; ROOT_SIZE];
    [root[0], root[1]] = MAGIC.to_le_bytes();
    [root[4], root[5]] = (capacity(ROOT_SIZE) as u16).to_le_bytes();
    root
}
