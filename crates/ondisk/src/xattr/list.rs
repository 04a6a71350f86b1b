//! A list of attributes as bytes: entries with their names from the front, ended by a zero word, and values
//! from the back, both at multiples of 4. The gap between them is zero when it is written, and nobody's
//! business when it is read.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Attribute, BLOCK_HEADER_SIZE, Full, Value, entry_hash, padded, signed_entry_hash};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// Bytes of an entry without its name.
pub(super) const ENTRY_SIZE: usize = 16;
/// Names and values end at multiples of this.
const WORD: usize = 4;
/// The zero word behind the last entry.
pub(super) const TERMINATOR_SIZE: usize = 4;

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

const _: () = assert!(size_of::<RawEntry>() == ENTRY_SIZE);

/// A list as it is written, without its gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    /// What is before the gap, and what is behind it.
    bytes: Vec<u8>,
    /// Bytes before the gap.
    front: usize,
    /// Bytes of the whole, gap included.
    size: usize,
}

impl Encoded {
    /// The list of these attributes in a region of `size` bytes; `start` bytes before the entries,
    /// at most those of a block's header, are zero.
    ///
    /// # Errors
    ///
    /// If they do not fit.
    pub fn new(attributes: &[&Attribute], start: usize, size: usize) -> Result<Self, Full> {
        let entries: usize = attributes.iter().map(|one| one.entry_space()).sum();
        let values: usize = attributes.iter().map(|one| one.value_space()).sum();
        let front = start + entries + TERMINATOR_SIZE;
        if front + values > size {
            return Err(Full);
        }
        // Not asked for as zeroes: such memory the C library takes from what all threads share.
        let mut bytes = Vec::with_capacity(front + values);
        bytes.extend_from_slice(&[0; BLOCK_HEADER_SIZE][..start]);
        let mut value_at = size;
        for attribute in attributes {
            value_at -= attribute.value_space();
            bytes.extend_from_slice(encode_entry(attribute, value_at).as_bytes());
            extend_padded(&mut bytes, &attribute.name);
        }
        bytes.extend_from_slice(&[0; TERMINATOR_SIZE]);
        for attribute in attributes.iter().rev() {
            if let Value::Here(value) = &attribute.value {
                extend_padded(&mut bytes, value);
            }
        }
        Ok(Self { bytes, front, size })
    }

    /// What lies before the gap.
    pub fn front(&self) -> &[u8] {
        &self.bytes[..self.front]
    }

    /// What lies before the gap.
    pub fn front_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.front]
    }

    /// It, to be decoded.
    pub fn region(&self) -> Region<'_> {
        Region {
            bytes: &self.bytes,
            front: self.front,
            gap: self.size - self.bytes.len(),
        }
    }

    /// Whether this is the same list, but for its first `start` bytes.
    pub fn is_same(&self, other: &Self, start: usize) -> bool {
        self.size == other.size
            && self.front == other.front
            && self.bytes[start..] == other.bytes[start..]
    }

    /// Whether a region holds this, but for its first `start` bytes and the gap.
    pub fn is_in(&self, region: &[u8], start: usize) -> bool {
        let (front, back) = self.bytes.split_at(self.front);
        region.len() == self.size
            && region[start..self.front] == front[start..]
            && region[self.size - back.len()..] == *back
    }

    /// Makes a region hold this, and zeroes in the gap.
    ///
    /// # Panics
    ///
    /// If the region has another size.
    pub fn put_into(&self, region: &mut [u8]) {
        assert_eq!(region.len(), self.size, "the size that it was made for");
        let (front, back) = self.bytes.split_at(self.front);
        let (before, rest) = region.split_at_mut(self.front);
        let (gap, behind) = rest.split_at_mut(rest.len() - back.len());
        before.copy_from_slice(front);
        gap.fill(0);
        behind.copy_from_slice(back);
    }
}

/// Adds something, and zeroes up to the end of its last word.
fn extend_padded(bytes: &mut Vec<u8>, something: &[u8]) {
    bytes.extend_from_slice(something);
    let padding = padded(something.len()) - something.len();
    bytes.extend_from_slice(&[0; WORD][..padding]);
}

/// A list as it is read: whole, or without its gap.
#[derive(Clone, Copy)]
pub(super) struct Region<'a> {
    bytes: &'a [u8],
    /// Where the gap is, if it is left out.
    front: usize,
    /// Bytes of it.
    gap: usize,
}

impl<'a> Region<'a> {
    /// All of its bytes are there.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            front: bytes.len(),
            gap: 0,
        }
    }

    fn from(&self, at: usize) -> &'a [u8] {
        self.bytes[..self.front].get(at..).unwrap_or_default()
    }

    fn value(&self, start: usize, end: usize) -> Option<&'a [u8]> {
        let (start, end) = (start.checked_sub(self.gap)?, end.checked_sub(self.gap)?);
        self.bytes.get(start..end)
    }
}

/// The entries of a list, one after the other; it ends with the terminator or the first error.
struct Entries<'a> {
    region: Region<'a>,
    at: usize,
    structure: &'static str,
}

impl<'a> Entries<'a> {
    /// The next entry and its name.
    fn next(&mut self) -> Result<Option<(RawEntry, &'a [u8])>, Corrupt> {
        let rest = self.region.from(self.at);
        let Some(word) = rest.first_chunk::<TERMINATOR_SIZE>() else {
            let problem = "the list of entries has no end";
            return Err(Corrupt::new(self.structure, problem));
        };
        if *word == [0; TERMINATOR_SIZE] {
            return Ok(None);
        }
        let entry = RawEntry::read_from_prefix(rest)
            .ok()
            .and_then(|(raw, rest)| {
                let name = rest.get(..usize::from(raw.e_name_len))?;
                Some((raw, name))
            });
        let Some((raw, name)) = entry else {
            let problem = "an entry reaches beyond the end";
            return Err(Corrupt::new(self.structure, problem));
        };
        if name.contains(&0) {
            return Err(Corrupt::new(self.structure, "a name holds a NUL byte"));
        }
        // An entry has a size, so this ends.
        self.at += ENTRY_SIZE + padded(name.len());
        Ok(Some((raw, name)))
    }
}

/// Reads the list whose entries begin at `start` and whose values are placed relative to the start
/// of `region`.
pub(super) fn decode_list(
    region: Region<'_>,
    start: usize,
    structure: &'static str,
) -> Result<Vec<Attribute>, Corrupt> {
    let entries = || Entries {
        region,
        at: start,
        structure,
    };
    let mut all = entries();
    let mut count = 0;
    while all.next()?.is_some() {
        count += 1;
    }
    let values_from = all.at + TERMINATOR_SIZE;
    let (mut list, mut ranges) = (Vec::with_capacity(count), Vec::new());
    let mut again = entries();
    while let Some((raw, name)) = again.next()? {
        list.push(decode_entry(&raw, name, region, values_from, structure)?);
        // One value alone has nothing to overlap with.
        if count > 1 {
            ranges.extend(value_range(&raw));
        }
    }
    check_disjoint(ranges, structure)?;
    Ok(list)
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
    region: Region<'_>,
    values_from: usize,
    structure: &'static str,
) -> Result<Attribute, Corrupt> {
    let value = match (raw.e_value_inum.get(), value_range(raw)) {
        (0, None) => Value::Here(Box::default()),
        (0, Some((start, end))) => match region.value(start, end) {
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

/// The hash, of which a value that ends inside a word has the bytes behind it up to the word's end.
/// They are zero but where somebody left others there; they are not kept, so one that is right with
/// them becomes the one that is right without.
fn without_padding(raw: &RawEntry, name: &[u8], region: Region<'_>, hash: u32) -> u32 {
    let Some((start, end)) = value_range(raw).filter(|_| raw.e_value_inum.get() == 0) else {
        return hash;
    };
    let bytes = region.value(start, start.saturating_add(padded(end - start)));
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
