//! A list of attributes as bytes: entries with their names from the front, ended by a zero word,
//! and values from the back, both at multiples of 4. The gap between them is ignored when it is
//! read. A new list gets one of zeroes, and a list that replaces another leaves nothing of that in
//! it, so a block that was written here has only zeroes there.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Attribute, BLOCK_HEADER_SIZE, Full, NameBytes, Value, ValueBytes, entry_hash, padded,
    signed_entry_hash,
};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// Bytes of an entry without its name.
pub(super) const ENTRY_SIZE: usize = 16;
/// Names and values are padded to multiples of this, in bytes.
const WORD: usize = 4;
/// The problem of values that share bytes.
const OVERLAP: &str = "values overlap";
/// Bytes of the zero word after the last entry.
pub(super) const TERMINATOR_SIZE: usize = 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawEntry {
    e_name_len: u8,
    pub(super) e_name_index: u8,
    pub(super) e_value_offs: U16,
    pub(super) e_value_inum: U32,
    pub(super) e_value_size: U32,
    pub(super) e_hash: U32,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY_SIZE);

/// An encoded list without its gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    /// The bytes before the gap, followed by those after it.
    bytes: Vec<u8>,
    /// Number of bytes before the gap.
    front: usize,
    /// Bytes of the whole list, including the gap.
    size: usize,
}

impl Encoded {
    /// Encodes these attributes for a region of `size` bytes; the `start` bytes before the entries,
    /// at most those of a block's header, are zero.
    ///
    /// # Errors
    ///
    /// If they do not fit.
    pub fn new<'a>(
        attributes: impl DoubleEndedIterator<Item = &'a Attribute> + Clone,
        start: usize,
        size: usize,
    ) -> Result<Self, Full> {
        let entries: usize = attributes.clone().map(Attribute::entry_space).sum();
        let values: usize = attributes.clone().map(Attribute::value_space).sum();
        let front = start + entries + TERMINATOR_SIZE;
        if front + values > size {
            return Err(Full);
        }
        // Not allocated as zeroes: the C library takes such memory from a pool that all threads
        // share.
        let mut bytes = Vec::with_capacity(front + values);
        bytes.extend_from_slice(&[0; BLOCK_HEADER_SIZE][..start]);
        let mut value_at = size;
        for attribute in attributes.clone() {
            value_at -= attribute.value_space();
            bytes.extend_from_slice(encode_entry(attribute, value_at).as_bytes());
            extend_padded(&mut bytes, &attribute.name);
        }
        bytes.extend_from_slice(&[0; TERMINATOR_SIZE]);
        for attribute in attributes.rev() {
            if let Value::Inline(value) = &attribute.value {
                extend_padded(&mut bytes, value);
            }
        }
        Ok(Self { bytes, front, size })
    }

    /// A list of these bytes, of which the first `front` are before the gap, for a region of `size`
    /// bytes.
    pub fn from_parts(bytes: Vec<u8>, front: usize, size: usize) -> Self {
        Self { bytes, front, size }
    }

    /// The bytes before the gap.
    pub fn front(&self) -> &[u8] {
        &self.bytes[..self.front]
    }

    /// The bytes before the gap.
    pub fn front_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.front]
    }

    /// The list, for decoding.
    pub fn region(&self) -> Region<'_> {
        Region {
            bytes: &self.bytes,
            front: self.front,
            gap: self.size - self.bytes.len(),
        }
    }

    /// Whether both lists are equal after their first `start` bytes.
    pub fn is_same(&self, other: &Self, start: usize) -> bool {
        self.size == other.size
            && self.front == other.front
            && self.bytes[start..] == other.bytes[start..]
    }

    /// Whether a region contains this list, except for its first `start` bytes and the gap.
    pub fn is_in(&self, region: &[u8], start: usize) -> bool {
        let (front, back) = self.bytes.split_at(self.front);
        region.len() == self.size
            && region[start..self.front] == front[start..]
            && region[self.size - back.len()..] == *back
    }

    /// Writes the list into a region, with zeroes in the gap.
    ///
    /// # Panics
    ///
    /// If the region has another size.
    pub fn put_into(&self, region: &mut [u8]) {
        self.put_over(region.len()..region.len(), region);
    }

    /// Writes the list into a region in place of the one whose entries begin at `start`. The gap is
    /// most of a block and usually the same, so only what the old list had there is cleared.
    ///
    /// # Panics
    ///
    /// As [`Self::put_into`].
    pub fn replace_in(&self, region: &mut [u8], start: usize) {
        match gap(region, start) {
            Some(gap) => self.put_over(gap, region),
            None => self.put_into(region),
        }
    }

    /// Writes the list into a region, except for what the new gap and `old_gap` have in common.
    fn put_over(&self, old_gap: Range<usize>, region: &mut [u8]) {
        assert_eq!(region.len(), self.size, "the size that it was made for");
        let (front, back) = self.bytes.split_at(self.front);
        let gap = self.front..self.size - back.len();
        region[..gap.start].copy_from_slice(front);
        region[gap.end..].copy_from_slice(back);
        let inside = |at: usize| at.clamp(gap.start, gap.end);
        region[gap.start..inside(old_gap.start)].fill(0);
        region[inside(old_gap.end)..gap.end].fill(0);
    }
}

/// The gap of a list: behind its entries and before its values, which may cross in a list from
/// elsewhere. `None` if the entries are damaged.
fn gap(region: &[u8], start: usize) -> Option<Range<usize>> {
    let mut entries = Entries::new(Region::whole(region), start, "");
    let mut values_from = region.len();
    while let Some((raw, _)) = entries.read_next().ok()? {
        let value = value_range(&raw).map_or(values_from, |(start, _)| start);
        values_from = values_from.min(value);
    }
    Some(entries.at + TERMINATOR_SIZE..values_from)
}

/// Appends bytes, padded with zeroes to a multiple of [`WORD`].
fn extend_padded(bytes: &mut Vec<u8>, something: &[u8]) {
    bytes.extend_from_slice(something);
    let padding = padded(something.len()) - something.len();
    bytes.extend_from_slice(&[0; WORD][..padding]);
}

/// A list for decoding: whole, or without its gap.
#[derive(Clone, Copy)]
pub(super) struct Region<'a> {
    bytes: &'a [u8],
    /// Offset of the gap, if it is left out.
    front: usize,
    /// Bytes of the gap.
    gap: usize,
}

impl<'a> Region<'a> {
    /// A region with all of its bytes.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            front: bytes.len(),
            gap: 0,
        }
    }

    /// Bytes of the region, including its gap.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.gap
    }

    /// The bytes before the gap from this offset on.
    pub fn from(&self, at: usize) -> &'a [u8] {
        self.bytes[..self.front].get(at..).unwrap_or_default()
    }

    /// The bytes behind the gap at these offsets.
    pub fn value(&self, start: usize, end: usize) -> Option<&'a [u8]> {
        let (start, end) = (start.checked_sub(self.gap)?, end.checked_sub(self.gap)?);
        self.bytes.get(start..end)
    }
}

/// An iterator over the entries of a list; ends at the terminator or the first error.
pub(super) struct Entries<'a> {
    region: Region<'a>,
    at: usize,
    structure: &'static str,
}

impl<'a> Entries<'a> {
    /// The entries that begin at `at`.
    pub fn new(region: Region<'a>, at: usize, structure: &'static str) -> Self {
        Self {
            region,
            at,
            structure,
        }
    }

    /// Offset of the next entry, or of the terminator.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The next entry and its name.
    pub fn read_next(&mut self) -> Result<Option<(RawEntry, &'a [u8])>, Corrupt> {
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
        // Every entry has a positive size, so the loop ends.
        self.at += ENTRY_SIZE + padded(name.len());
        Ok(Some((raw, name)))
    }
}

/// Decodes the list whose entries begin at `start`; value offsets are relative to the start of
/// `region`.
pub(super) fn decode_list(
    region: Region<'_>,
    start: usize,
    structure: &'static str,
) -> Result<Vec<Attribute>, Corrupt> {
    let mut entries = Entries::new(region, start, structure);
    let mut list = Vec::new();
    let mut ranges = SmallVec::<[(usize, usize); 8]>::new();
    let mut room = region.len();
    while let Some((raw, name)) = entries.read_next()? {
        if let Some((start, end)) = padded_range(&raw) {
            // Before they are copied: many entries may name one large range.
            let left = room.checked_sub(end - start);
            room = left.ok_or_else(|| Corrupt::new(structure, OVERLAP))?;
            ranges.push((start, end));
        }
        list.push(decode_entry(&raw, name, region, structure)?);
    }
    check_ranges(&mut ranges, entries.at + TERMINATOR_SIZE, structure)?;
    Ok(list)
}

/// The range of an entry's value up to the end of its last word, which belongs to it.
fn padded_range(raw: &RawEntry) -> Option<(usize, usize)> {
    value_range(raw).map(|(start, end)| (start, start.saturating_add(padded(end - start))))
}

/// The range of an entry's value, if it has bytes in the list.
fn value_range(raw: &RawEntry) -> Option<(usize, usize)> {
    let size = usize::try_from(raw.e_value_size.get()).ok()?;
    let start = usize::from(raw.e_value_offs.get());
    (size > 0 && raw.e_value_inum.get() == 0).then_some((start, start.saturating_add(size)))
}

/// Checks that no value is before `values_from`, and that none overlaps another.
fn check_ranges(
    ranges: &mut [(usize, usize)],
    values_from: usize,
    structure: &'static str,
) -> Result<(), Corrupt> {
    ranges.sort_unstable();
    if let Some(&(start, end)) = ranges.first().filter(|(start, _)| *start < values_from) {
        return Err(leaves_room(start, end, structure));
    }
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(Corrupt::new(structure, OVERLAP));
    }
    Ok(())
}

#[cold]
fn leaves_room(start: usize, end: usize, structure: &'static str) -> Corrupt {
    let problem = format!("a value at {start}..{end} leaves the room for values");
    Corrupt::new(structure, problem)
}

fn decode_entry(
    raw: &RawEntry,
    name: &[u8],
    region: Region<'_>,
    structure: &'static str,
) -> Result<Attribute, Corrupt> {
    let value = match (raw.e_value_inum.get(), value_range(raw)) {
        (0, None) => Value::Inline(ValueBytes::new()),
        (0, Some((start, end))) => match region.value(start, end) {
            Some(bytes) if has_padding(raw, region) => Value::Inline(ValueBytes::from_slice(bytes)),
            _ => return Err(leaves_room(start, end, structure)),
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
        name: NameBytes::from_slice(name),
        value,
        hash,
    })
}

/// Whether the room for values reaches to the end of a value's last word.
fn has_padding(raw: &RawEntry, region: Region<'_>) -> bool {
    padded_range(raw).is_none_or(|(start, end)| region.value(start, end).is_some())
}

/// Corrects a hash that includes bytes after a value that ends inside a word, up to the end of the
/// word. These bytes are usually zero and are not kept. A hash that is right with them is replaced
/// by the one that is right without them, and one that is right only without them by a wrong one.
fn without_padding(raw: &RawEntry, name: &[u8], region: Region<'_>, hash: u32) -> u32 {
    let Some((start, end)) = value_range(raw).filter(|_| raw.e_value_inum.get() == 0) else {
        return hash;
    };
    let bytes = region.value(start, start.saturating_add(padded(end - start)));
    match bytes {
        Some(bytes) if bytes[end - start..].iter().any(|&byte| byte != 0) => {
            let is_right =
                hash == entry_hash(name, bytes) || hash == signed_entry_hash(name, bytes);
            let without = &bytes[..end - start];
            let looks_right =
                hash == entry_hash(name, without) || hash == signed_entry_hash(name, without);
            match (is_right, looks_right) {
                (true, _) => entry_hash(name, without),
                (false, true) => !hash,
                (false, false) => hash,
            }
        }
        _ => hash,
    }
}

fn encode_entry(attribute: &Attribute, value_at: usize) -> RawEntry {
    // Nobody looks at the place of a value that is not here, but four zero bytes would end the
    // list.
    let nowhere = match (attribute.index, &*attribute.name) {
        (0, b"") => TERMINATOR_SIZE,
        _ => 0,
    };
    let (place, inode, size) = match &attribute.value {
        Value::Inline(value) if value.is_empty() => (nowhere, 0, 0),
        Value::Inline(value) => (
            value_at,
            0,
            u32::try_from(value.len()).expect("shorter than a block"),
        ),
        Value::Inode { inode, size } => (nowhere, inode.get(), *size),
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
