//! Extended attributes, as they lie in an inode's tail and in a block of their own.
//!
//! Both places hold a list: entries with their names from the front, ended by a zero word, and
//! values from the back, everything at multiples of 4. In a block a header of 32 bytes comes first,
//! entries are sorted, and values are placed relative to the start of the block; in an inode a
//! magic word comes first and values are placed relative to the first entry. A block may serve many
//! inodes and counts them.
//!
//! A list is decoded whole, changed as a list, and encoded whole. The value of an attribute may
//! also be the content of an inode of its own (`ea_inode`); such an entry is kept as it is.
//!
//! Names are stored as a prefix number and the rest: see [`split_name`].

mod name;
pub mod pax;

use std::cmp::Ordering;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::number::{BlockNumber, InodeNumber};

pub use name::{INDEX_SYSTEM, full_name, is_bare_prefix, is_visible, split_name};

/// First word of a block and of an inode's list.
pub const MAGIC: u32 = 0xEA02_0000;
/// Longest stored name in bytes.
pub const MAX_NAME: usize = 255;
/// Most inodes that may share a block.
pub const MAX_REFERENCES: u32 = 1024;

const BLOCK_STRUCTURE: &str = "attribute block";
const INODE_STRUCTURE: &str = "attributes in the inode";
const BLOCK_HEADER_SIZE: usize = 32;
const INODE_HEADER_SIZE: usize = 4;
const ENTRY_SIZE: usize = 16;
/// The zero word behind the last entry.
const TERMINATOR_SIZE: usize = 4;
const CHECKSUM_AT: usize = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    h_magic: U32,
    h_refcount: U32,
    h_blocks: U32,
    h_hash: U32,
    h_checksum: U32,
    h_reserved: [U32; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    e_name_len: u8,
    e_name_index: u8,
    e_value_offs: U16,
    e_value_inum: U32,
    e_value_size: U32,
    e_hash: U32,
}

const _: () = assert!(size_of::<RawHeader>() == BLOCK_HEADER_SIZE);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_SIZE);

/// A list does not fit into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extended attributes do not fit")]
pub struct Full;

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The number that stands for the name's prefix.
    pub index: u8,
    /// The name behind the prefix, at most [`MAX_NAME`] bytes.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Value,
    /// Hash of name and value; 0 where none was made.
    pub hash: u32,
}

/// Where an attribute's value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Beside its entry.
    Here(Box<[u8]>),
    /// It is the content of an inode (`ea_inode`).
    Inode {
        /// That inode.
        inode: InodeNumber,
        /// Bytes of the value.
        size: u32,
    },
}

impl Attribute {
    /// An attribute with its hash made.
    #[must_use]
    pub fn new(index: u8, name: &[u8], value: &[u8]) -> Self {
        let hash = entry_hash(name, value);
        Self {
            index,
            name: name.into(),
            value: Value::Here(value.into()),
            hash,
        }
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is_named(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && *self.name == *name
    }

    /// Whether the hash, if there is one, is that of name and value. Old systems hashed name bytes
    /// as signed numbers; that is right as well. For a value in an inode it cannot be told here.
    #[must_use]
    pub fn has_sound_hash(&self) -> bool {
        match &self.value {
            Value::Here(value) => {
                self.hash == 0
                    || self.hash == entry_hash(&self.name, value)
                    || self.hash == signed_entry_hash(&self.name, value)
            }
            Value::Inode { .. } => true,
        }
    }

    /// Bytes that name and entry take.
    fn entry_space(&self) -> usize {
        ENTRY_SIZE + padded(self.name.len())
    }

    /// Bytes that the value takes beside its entry.
    fn value_space(&self) -> usize {
        match &self.value {
            Value::Here(value) => padded(value.len()),
            Value::Inode { .. } => 0,
        }
    }

    /// The order in which blocks keep entries.
    fn order(&self, other: &Self) -> Ordering {
        let key = |this: &Self| (this.index, this.name.len());
        key(self)
            .cmp(&key(other))
            .then_with(|| self.name.cmp(&other.name))
    }
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The hash of an attribute whose value lies beside its entry.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_value(
        name.iter()
            .fold(0, |hash, &byte| hash_name_byte(hash, u32::from(byte))),
        value,
    )
}

/// The hash of an attribute whose value lies in an inode; see [`value_hash`].
#[must_use]
pub fn entry_hash_of_value_inode(name: &[u8], value_hash: u32) -> u32 {
    entry_hash(name, &value_hash.to_le_bytes())
}

/// The hash that an inode keeps of the attribute value it holds. The seed is that of metadata
/// checksums (`Geometry::value_seed`), whether or not there are any.
#[must_use]
pub fn value_hash(seed: u32, value: &[u8]) -> u32 {
    crc32c(seed, value)
}

/// The same as systems made it whose `char` is signed.
fn signed_entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let extended = |byte: u8| i32::from(byte.cast_signed()).cast_unsigned();
    hash_value(
        name.iter()
            .fold(0, |hash, &byte| hash_name_byte(hash, extended(byte))),
        value,
    )
}

fn hash_name_byte(hash: u32, byte: u32) -> u32 {
    hash.rotate_left(5) ^ byte
}

fn hash_value(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// The hash of a block from those of its entries; 0 if one of them has none.
fn block_hash<'a>(attributes: impl Iterator<Item = &'a Attribute>) -> u32 {
    let mut hash: u32 = 0;
    for attribute in attributes {
        if attribute.hash == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ attribute.hash;
    }
    hash
}

/// A decoded attribute block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// How many inodes it serves.
    pub references: u32,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

impl Block {
    /// The attributes in a block; the checksum is [`verify_block`]'s to check.
    ///
    /// # Errors
    ///
    /// What is wrong with the header or an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let references = references(bytes)?;
        let attributes = decode_list(bytes, BLOCK_HEADER_SIZE, BLOCK_STRUCTURE)?;
        Ok(Self {
            references,
            attributes,
        })
    }

    /// Makes `bytes`, a whole block, hold these attributes; the checksum is left zero.
    ///
    /// # Errors
    ///
    /// If they do not fit; `bytes` is unchanged then.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), Full> {
        let mut sorted: Vec<&Attribute> = self.attributes.iter().collect();
        sorted.sort_by(|left, right| left.order(right));
        encode_list(&sorted, bytes, BLOCK_HEADER_SIZE)?;
        RawHeader {
            h_magic: U32::new(MAGIC),
            h_refcount: U32::new(self.references),
            h_blocks: U32::new(1),
            h_hash: U32::new(block_hash(sorted.iter().copied())),
            h_checksum: U32::new(0),
            h_reserved: [U32::new(0); 3],
        }
        .write_to_prefix(bytes)
        .expect("the list was placed behind a header");
        Ok(())
    }
}

/// How many inodes an attribute block serves.
///
/// # Errors
///
/// If the header is not sound.
pub fn references(bytes: &[u8]) -> Result<u32, Corrupt> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes)
        .map_err(|_| Corrupt::new(BLOCK_STRUCTURE, "shorter than its header"))?;
    if raw.h_magic.get() != MAGIC {
        let problem = format!("magic is {:#010x}, not {MAGIC:#010x}", raw.h_magic.get());
        return Err(Corrupt::new(BLOCK_STRUCTURE, problem));
    }
    if raw.h_blocks.get() != 1 {
        let problem = format!("claims {} blocks", raw.h_blocks.get());
        return Err(Corrupt::new(BLOCK_STRUCTURE, problem));
    }
    if raw.h_refcount.get() == 0 {
        return Err(Corrupt::new(BLOCK_STRUCTURE, "serves no inode"));
    }
    Ok(raw.h_refcount.get())
}

/// Stores how many inodes an attribute block serves.
///
/// # Panics
///
/// If `bytes` is shorter than a header.
pub fn set_references(bytes: &mut [u8], references: u32) {
    let (raw, _) = RawHeader::mut_from_prefix(bytes).expect("a block is longer than its header");
    raw.h_refcount = U32::new(references);
}

/// The hash of its content that an attribute block carries; 0 if it is not to be shared.
#[must_use]
pub fn content_hash(bytes: &[u8]) -> u32 {
    RawHeader::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.h_hash.get())
}

/// Whether a block holds the attributes of `content`, a block as well: how many inodes they serve, their
/// checksums, and what lies between entries and values does not count. That gap is most of a block, and not
/// looked at.
#[must_use]
pub fn is_same_content(block: &[u8], content: &[u8]) -> bool {
    let pair = (
        RawHeader::ref_from_prefix(block),
        RawHeader::ref_from_prefix(content),
    );
    let (Ok((one, _)), Ok((other, _))) = pair else {
        return false;
    };
    let (front, back) = used(content).unwrap_or((content.len(), content.len()));
    one.h_magic.get() == MAGIC
        && one.h_magic == other.h_magic
        && one.h_blocks == other.h_blocks
        && one.h_hash == other.h_hash
        && block.len() == content.len()
        && block[BLOCK_HEADER_SIZE..front] == content[BLOCK_HEADER_SIZE..front]
        && block[back..] == content[back..]
}

/// Where the entries of a block end, their terminator included, and where its values begin; none if it is
/// not sound.
fn used(bytes: &[u8]) -> Option<(usize, usize)> {
    let (mut front, mut back) = (BLOCK_HEADER_SIZE, bytes.len());
    // An entry has a size, so this ends.
    loop {
        let rest = bytes.get(front..back)?;
        if *rest.first_chunk::<TERMINATOR_SIZE>()? == [0; TERMINATOR_SIZE] {
            return Some((front + TERMINATOR_SIZE, back));
        }
        let (entry, _) = RawEntry::ref_from_prefix(rest).ok()?;
        if entry.e_value_inum.get() == 0 && entry.e_value_size.get() > 0 {
            back = back.min(usize::from(entry.e_value_offs.get()));
        }
        front += ENTRY_SIZE + padded(usize::from(entry.e_name_len));
    }
}

fn block_checksum(seed: u32, block: BlockNumber, bytes: &[u8]) -> u32 {
    let state = crc32c(seed, &block.get().to_le_bytes());
    let state = crc32c(crc32c(state, &bytes[..CHECKSUM_AT]), &[0; 4]);
    crc32c(state, &bytes[CHECKSUM_AT + 4..])
}

/// Stores the checksum of an attribute block.
///
/// # Panics
///
/// If `bytes` is shorter than a header.
pub fn stamp_block(seed: u32, block: BlockNumber, bytes: &mut [u8]) {
    let sum = block_checksum(seed, block, bytes);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Checks the checksum of an attribute block.
///
/// # Errors
///
/// If it is wrong.
pub fn verify_block(seed: u32, block: BlockNumber, bytes: &[u8]) -> Result<(), Corrupt> {
    if bytes.len() < BLOCK_HEADER_SIZE {
        return Err(Corrupt::new(BLOCK_STRUCTURE, "shorter than its header"));
    }
    let sum = block_checksum(seed, block, bytes).to_le_bytes();
    if bytes[CHECKSUM_AT..CHECKSUM_AT + 4] != sum {
        return Err(Corrupt::new(BLOCK_STRUCTURE, "wrong checksum").in_block(block));
    }
    Ok(())
}

/// The attributes in an inode's tail; none where the magic is missing.
///
/// # Errors
///
/// What is wrong with an entry.
pub fn decode_inode_area(area: &[u8]) -> Result<Vec<Attribute>, Corrupt> {
    match area.strip_prefix(&MAGIC.to_le_bytes()) {
        Some(list) => decode_list(list, 0, INODE_STRUCTURE),
        None => Ok(Vec::new()),
    }
}

/// Makes an inode's tail hold these attributes; zeroes if there are none.
///
/// # Errors
///
/// If they do not fit; `area` is unchanged then.
pub fn encode_inode_area(attributes: &[Attribute], area: &mut [u8]) -> Result<(), Full> {
    if attributes.is_empty() {
        area.fill(0);
        return Ok(());
    }
    let (header, list) = area.split_at_mut_checked(INODE_HEADER_SIZE).ok_or(Full)?;
    encode_list(&attributes.iter().collect::<Vec<_>>(), list, 0)?;
    header.copy_from_slice(&MAGIC.to_le_bytes());
    Ok(())
}

/// Bytes that these attributes need in an inode's tail, as a list that is not empty.
#[must_use]
pub fn inode_area_used(attributes: &[Attribute]) -> usize {
    let each = attributes
        .iter()
        .map(|attribute| attribute.entry_space() + attribute.value_space());
    INODE_HEADER_SIZE + each.sum::<usize>() + TERMINATOR_SIZE
}

/// Reads the list whose entries begin at `start` and whose values are placed relative to the start
/// of `region`.
fn decode_list(
    region: &[u8],
    start: usize,
    structure: &'static str,
) -> Result<Vec<Attribute>, Corrupt> {
    let mut raws = Vec::new();
    let mut at = start;
    loop {
        let rest = region.get(at..).unwrap_or_default();
        let Some(word) = rest.first_chunk::<4>() else {
            return Err(Corrupt::new(structure, "the list of entries has no end"));
        };
        if *word == [0; 4] {
            break;
        }
        let entry = RawEntry::read_from_prefix(rest)
            .ok()
            .and_then(|(raw, rest)| {
                let name = rest.get(..usize::from(raw.e_name_len))?;
                Some((raw, name))
            });
        let Some((raw, name)) = entry else {
            return Err(Corrupt::new(structure, "an entry reaches beyond the end"));
        };
        if name.contains(&0) {
            return Err(Corrupt::new(structure, "a name holds a NUL byte"));
        }
        at += ENTRY_SIZE + padded(name.len());
        raws.push((raw, name));
    }
    let values_from = at + TERMINATOR_SIZE;
    check_disjoint(
        raws.iter()
            .filter_map(|(raw, _)| value_range(raw))
            .collect(),
        structure,
    )?;
    raws.iter()
        .map(|(raw, name)| decode_entry(raw, name, region, values_from, structure))
        .collect()
}

/// Where the value of an entry lies, if it has bytes beside the entry.
fn value_range(raw: &RawEntry) -> Option<(usize, usize)> {
    let size = usize::try_from(raw.e_value_size.get()).ok()?;
    let start = usize::from(raw.e_value_offs.get());
    (size > 0 && raw.e_value_inum.get() == 0).then_some((start, start.saturating_add(size)))
}

fn check_disjoint(mut ranges: Vec<(usize, usize)>, structure: &'static str) -> Result<(), Corrupt> {
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(Corrupt::new(structure, "values overlap"));
    }
    Ok(())
}

fn decode_entry(
    raw: &RawEntry,
    name: &[u8],
    region: &[u8],
    values_from: usize,
    structure: &'static str,
) -> Result<Attribute, Corrupt> {
    let value = match (raw.e_value_inum.get(), value_range(raw)) {
        (0, None) => Value::Here(Box::default()),
        (0, Some((start, end))) => match region.get(start..end) {
            Some(bytes) if start >= values_from => Value::Here(bytes.into()),
            _ => {
                let problem = format!("a value at {start}..{end} leaves the room for values");
                return Err(Corrupt::new(structure, problem));
            }
        },
        (inode, _) => Value::Inode {
            inode: InodeNumber(inode),
            size: raw.e_value_size.get(),
        },
    };
    let (index, hash) = (raw.e_name_index, raw.e_hash.get());
    let hash = without_padding(raw, name, region, hash);
    Ok(Attribute {
        index,
        name: name.into(),
        value,
        hash,
    })
}

/// Writes a list, as [`decode_list`] reads it; bytes between entries and values become zero.
fn encode_list(attributes: &[&Attribute], region: &mut [u8], start: usize) -> Result<(), Full> {
    let entries: usize = attributes
        .iter()
        .map(|attribute| attribute.entry_space())
        .sum();
    let values: usize = attributes
        .iter()
        .map(|attribute| attribute.value_space())
        .sum();
    if start + entries + TERMINATOR_SIZE + values > region.len() {
        return Err(Full);
    }
    region[start..].fill(0);
    let (mut at, mut value_at) = (start, region.len());
    for attribute in attributes {
        value_at -= attribute.value_space();
        let raw = encode_entry(attribute, value_at);
        raw.write_to_prefix(&mut region[at..])
            .expect("space was counted before");
        region[at + ENTRY_SIZE..][..attribute.name.len()].copy_from_slice(&attribute.name);
        if let Value::Here(value) = &attribute.value {
            region[value_at..][..value.len()].copy_from_slice(value);
        }
        at += attribute.entry_space();
    }
    Ok(())
}

/// The hash, of which a value that ends inside a word has the bytes behind it up to the word's end.
/// They are zero but where somebody left others there; they are not kept, so one that is right with
/// them becomes the one that is right without.
fn without_padding(raw: &RawEntry, name: &[u8], region: &[u8], hash: u32) -> u32 {
    let Some((start, end)) = value_range(raw).filter(|_| raw.e_value_inum.get() == 0) else {
        return hash;
    };
    let bytes = region
        .get(start..)
        .and_then(|rest| rest.get(..padded(end - start)));
    match bytes {
        Some(bytes) if bytes[end - start..].iter().any(|&byte| byte != 0) => {
            let is_right =
                hash == entry_hash(name, bytes) || hash == signed_entry_hash(name, bytes);
            if is_right {
                entry_hash(name, &bytes[..end - start])
            } else {
                hash
            }
        }
        _ => hash,
    }
}

fn encode_entry(attribute: &Attribute, value_at: usize) -> RawEntry {
    let (place, inode, size) = match &attribute.value {
        Value::Here(value) if value.is_empty() => (0, 0, 0),
        Value::Here(value) => (
            value_at,
            0,
            u32::try_from(value.len()).expect("shorter than a block"),
        ),
        Value::Inode { inode, size } => (0, inode.get(), *size),
    };
    RawEntry {
        e_name_len: u8::try_from(attribute.name.len()).expect("names have at most 255 bytes"),
        e_name_index: attribute.index,
        e_value_offs: U16::new(u16::try_from(place).expect("values begin inside a block")),
        e_value_inum: U32::new(inode),
        e_value_size: U32::new(size),
        e_hash: U32::new(attribute.hash),
    }
}

#[cfg(test)]
mod tests;
