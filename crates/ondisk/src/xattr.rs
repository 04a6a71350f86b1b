//! Extended attributes, as an inode's tail and an attribute block store them.
//!
//! Both places contain a list: entries with their names from the front, ended by a zero word, and
//! values from the back, all at multiples of 4. A block starts with a header of 32 bytes, its
//! entries are sorted, and value offsets are relative to the start of the block. In an inode the
//! list starts with a magic word, and value offsets are relative to the first entry. Several inodes
//! may share a block, which has a reference count.
//!
//! A list is decoded, changed and encoded as a whole, unless only a value is replaced
//! ([`replace_value`]). The value of an attribute may also be the content of an inode of its own
//! (`ea_inode`); the entry of such an attribute is kept unchanged.
//!
//! Names are stored as a prefix number and the rest: see [`split_name`]. Format: the kernel's
//! `Documentation/filesystems/ext4/attributes.rst`.

mod content;
mod list;
mod name;
pub mod pax;
mod replace;

use std::cmp::Ordering;

use smallvec::SmallVec;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::read_u32;
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::number::{BlockNumber, InodeNumber};

pub use content::Content;
use list::{ENTRY_SIZE, Encoded, Region, TERMINATOR_SIZE, decode_list};
pub use name::{
    INDEX_SYSTEM, MAX_FULL_NAME, callable_name, full_name, is_bare_prefix, is_placed,
    is_unnameable, is_visible, split_name,
};
pub use replace::{Replaced, replace_value};

/// First word of a block and of an inode's list (`EXT4_XATTR_MAGIC`).
pub const MAGIC: u32 = 0xEA02_0000;
/// Longest stored name in bytes.
pub const MAX_NAME: usize = 255;
/// Most inodes that may share a block (`EXT4_XATTR_REFCOUNT_MAX`).
pub const MAX_REFERENCES: u32 = 1024;

const BLOCK_STRUCTURE: &str = "attribute block";
const INODE_STRUCTURE: &str = "attributes in the inode";
const BLOCK_HEADER_SIZE: usize = 32;
const INODE_HEADER_SIZE: usize = 4;
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

const _: () = assert!(size_of::<RawHeader>() == BLOCK_HEADER_SIZE);

/// The error of a list that does not fit into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extended attributes do not fit")]
pub struct Full;

/// The bytes of a name. Few are longer than what needs no memory of its own.
pub type NameBytes = SmallVec<[u8; 16]>;
/// The bytes of a value that lies beside its entry. Labels, capabilities and access lists of a few
/// entries need no memory of their own.
pub type ValueBytes = SmallVec<[u8; 64]>;

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The number of the name's prefix.
    pub index: u8,
    /// The name without the prefix, at most [`MAX_NAME`] bytes.
    pub name: NameBytes,
    /// The value.
    pub value: Value,
    /// Hash of name and value; 0 if there is none.
    pub hash: u32,
}

/// The value of an attribute, or its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value, stored in the same place as the entry.
    Inline(ValueBytes),
    /// The value is the content of an inode (`ea_inode`).
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// Bytes of the value.
        size: u32,
    },
}

impl Attribute {
    /// An attribute with its hash.
    #[must_use]
    pub fn new(index: u8, name: &[u8], value: &[u8]) -> Self {
        let hash = entry_hash(name, value);
        Self {
            index,
            name: NameBytes::from_slice(name),
            value: Value::Inline(ValueBytes::from_slice(value)),
            hash,
        }
    }

    /// Whether it has this name.
    #[must_use]
    pub fn is_named(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && *self.name == *name
    }

    /// Whether the hash matches name and value, as it must in a block. A hash of name bytes as
    /// signed numbers, which old systems made, is accepted as well. For a value in an inode, use
    /// [`Attribute::has_valid_hash_of_value_inode`].
    #[must_use]
    pub fn has_valid_hash(&self) -> bool {
        match &self.value {
            Value::Inline(value) => self.is_hash_of(value),
            Value::Inode { .. } => true,
        }
    }

    /// The same for an attribute that lies in its inode, where old systems left the hash 0.
    #[must_use]
    pub fn has_valid_hash_in_inode(&self) -> bool {
        self.hash == 0 || self.has_valid_hash()
    }

    /// The same for a value in an inode with this hash; see [`value_hash`].
    #[must_use]
    pub fn has_valid_hash_of_value_inode(&self, value_hash: u32) -> bool {
        self.is_hash_of(&value_hash.to_le_bytes())
    }

    fn is_hash_of(&self, value: &[u8]) -> bool {
        self.hash == entry_hash(&self.name, value)
            || self.hash == signed_entry_hash(&self.name, value)
    }

    /// Bytes that the attribute takes in a list.
    #[must_use]
    pub fn space(&self) -> usize {
        self.entry_space() + self.value_space()
    }

    /// Bytes of the entry and its name.
    fn entry_space(&self) -> usize {
        ENTRY_SIZE + padded(self.name.len())
    }

    /// Bytes of the value in the list.
    fn value_space(&self) -> usize {
        match &self.value {
            Value::Inline(value) => padded(value.len()),
            Value::Inode { .. } => 0,
        }
    }

    /// The order of entries in blocks.
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

/// The hash of an attribute whose value is in the list.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_value(
        name.iter()
            .fold(0, |hash, &byte| hash_name_byte(hash, u32::from(byte))),
        value,
    )
}

/// The hash of an attribute whose value is in an inode; see [`value_hash`].
#[must_use]
pub fn entry_hash_of_value_inode(name: &[u8], value_hash: u32) -> u32 {
    entry_hash(name, &value_hash.to_le_bytes())
}

/// The hash of an attribute value that an inode stores: crc32c from the seed of metadata checksums
/// (`Geometry::value_seed`), with or without `metadata_csum`.
#[must_use]
pub fn value_hash(seed: u32, value: &[u8]) -> u32 {
    crc32c(seed, value)
}

/// The same as systems with a signed `char` make it.
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
    let add = |hash: u32, word: &[u8; 4]| hash.rotate_left(16) ^ u32::from_le_bytes(*word);
    let (words, rest) = value.as_chunks();
    let hash = words.iter().fold(hash, add);
    if rest.is_empty() {
        return hash;
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    add(hash, &last)
}

/// The hash of a block from those of its entries; 0 if one of them has none.
fn block_hash(entries: impl Iterator<Item = u32>) -> u32 {
    let mut hash: u32 = 0;
    for entry in entries {
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
    }
    hash
}

/// A decoded attribute block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of inodes that share the block.
    pub references: u32,
    /// The attributes.
    pub attributes: Vec<Attribute>,
}

impl Block {
    /// Decodes the attributes of a block; [`verify_block`] checks the checksum.
    ///
    /// # Errors
    ///
    /// The problem of the header or of an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let references = references(bytes)?;
        let attributes = decode_list(Region::whole(bytes), BLOCK_HEADER_SIZE, BLOCK_STRUCTURE)?;
        Ok(Self {
            references,
            attributes,
        })
    }

    /// Encodes these attributes into `bytes`, a whole block; the checksum is left zero.
    ///
    /// # Errors
    ///
    /// If they do not fit; `bytes` is unchanged then.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), Full> {
        self.content(bytes.len())?.put_into(bytes);
        Ok(())
    }

    /// The content of a block of `size` bytes with these attributes; its checksum is zero.
    ///
    /// # Errors
    ///
    /// If they do not fit.
    pub fn content(&self, size: usize) -> Result<Content, Full> {
        let attributes = &self.attributes;
        if attributes.is_sorted_by(|left, right| left.order(right).is_le()) {
            return self.sorted_content(attributes.iter(), size);
        }
        let mut sorted: Vec<&Attribute> = attributes.iter().collect();
        sorted.sort_by(|left, right| left.order(right));
        self.sorted_content(sorted.iter().copied(), size)
    }

    /// As [`Self::content`], of the attributes in their order.
    fn sorted_content<'a>(
        &self,
        sorted: impl DoubleEndedIterator<Item = &'a Attribute> + Clone,
        size: usize,
    ) -> Result<Content, Full> {
        let list = Encoded::new(sorted.clone(), BLOCK_HEADER_SIZE, size)?;
        let hash = block_hash(sorted.map(|attribute| attribute.hash));
        Ok(Content::new(list, self.references, hash))
    }
}

/// The number of inodes that share an attribute block.
///
/// # Errors
///
/// If the header is invalid.
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

/// Stores the number of inodes that share an attribute block.
///
/// # Panics
///
/// If `bytes` is shorter than a header.
pub fn set_references(bytes: &mut [u8], references: u32) {
    let (raw, _) = RawHeader::mut_from_prefix(bytes).expect("a block is longer than its header");
    raw.h_refcount = U32::new(references);
}

/// The hash in the header of an attribute block; 0 if the block must not be shared.
#[must_use]
pub fn content_hash(bytes: &[u8]) -> u32 {
    RawHeader::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.h_hash.get())
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
    let (stored, computed) = (
        read_u32(bytes, CHECKSUM_AT),
        block_checksum(seed, block, bytes),
    );
    if stored != computed {
        return Err(Corrupt::checksum(BLOCK_STRUCTURE, stored, computed).in_block(block));
    }
    Ok(())
}

/// Decodes the attributes of an inode's tail; none without the magic number.
///
/// # Errors
///
/// The problem of an entry.
pub fn decode_inode_area(area: &[u8]) -> Result<Vec<Attribute>, Corrupt> {
    match area.strip_prefix(&MAGIC.to_le_bytes()) {
        Some(list) => decode_list(Region::whole(list), 0, INODE_STRUCTURE),
        None => Ok(Vec::new()),
    }
}

/// Encodes attributes into an inode's tail; zeroes if there are none.
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
    Encoded::new(attributes.iter(), 0, list.len())?.put_into(list);
    header.copy_from_slice(&MAGIC.to_le_bytes());
    Ok(())
}

/// Bytes that these attributes need in an inode's tail; meaningful if the list is not empty.
#[must_use]
pub fn inode_area_used(attributes: &[Attribute]) -> usize {
    let each = attributes.iter().map(Attribute::space);
    INODE_HEADER_SIZE + each.sum::<usize>() + TERMINATOR_SIZE
}

#[cfg(test)]
mod replace_tests;
#[cfg(test)]
mod tests;
