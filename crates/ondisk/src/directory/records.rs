//! The records of a leaf, as they are read: every length is checked on every visit.

use super::{Entry, FileType, Format, HEADER_SIZE, STRUCTURE, record_length, usable_length};
use crate::bytes::{read_u16, read_u32};
use crate::casefold::Wanted;
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// A record of a block: an entry with the free space after it, or free space alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its offset in the block, in bytes.
    pub offset: usize,
    /// Bytes from its start to the next record.
    pub length: usize,
    used: usize,
    inode: InodeNumber,
    /// The byte of the kind of file; 0 if records do not have it.
    kind: u8,
    /// Empty for free space.
    pub(super) name: &'a [u8],
}

/// Where a record is, without the bytes that it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) used: usize,
}

impl<'a> Record<'a> {
    pub(super) fn place(&self) -> Place {
        Place {
            offset: self.offset,
            length: self.length,
            used: self.used,
        }
    }

    /// Its entry; `None` for free space.
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'a>> {
        (self.inode.get() != 0).then(|| Entry {
            inode: self.inode,
            file_type: FileType::from_entry(self.kind),
            name: self.name,
        })
    }

    /// Whether its entry has this name.
    #[inline]
    #[must_use]
    pub fn is_named(&self, wanted: &Wanted<'_>) -> bool {
        wanted.is(self.name) && self.inode.get() != 0
    }

    /// Bytes that its entry needs.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes that another entry could use. None before `..`, which must stay the second entry.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free_of(self.length)
    }

    /// As [`Record::free`], if it were this long.
    pub(super) fn free_of(&self, length: usize) -> usize {
        match self.name {
            b"." => 0,
            _ => length - self.used,
        }
    }
}

/// The records of a leaf, in order. The iterator ends after the first impossible record.
#[must_use]
pub fn records(block: &[u8], format: Format) -> Records<'_> {
    let usable = usable_length(block.len(), format);
    Records {
        region: &block[..usable],
        format,
        long: block.len() >= 1 << 16,
        offset: 0,
    }
}

/// The record that starts there, where one was seen before.
///
/// # Errors
///
/// [`Corrupt`] where there can be none.
#[inline]
pub fn record_at(block: &[u8], format: Format, offset: usize) -> Result<Record<'_>, Corrupt> {
    let mut records = records(block, format);
    records.offset = offset;
    let rest = records.region.get(offset..).unwrap_or_default();
    match records.read(rest) {
        Some(record) => Ok(record),
        None => Err(records.problem(rest)),
    }
}

/// Whether a leaf has more than `count` records, by their lengths alone.
#[must_use]
pub fn has_more_records(block: &[u8], format: Format, count: usize) -> bool {
    let Records { region, long, .. } = records(block, format);
    let mut offset = 0;
    for _ in 0..count {
        let rest = region.get(offset..).unwrap_or_default();
        let Some(header) = rest.first_chunk::<HEADER_SIZE>() else {
            return false;
        };
        // A damaged leaf must not lead to a place in it twice.
        offset += decode_length(read_u16(header, 4), long).max(HEADER_SIZE);
    }
    offset < region.len()
}

/// The entries of a leaf, in order.
pub fn entries(block: &[u8], format: Format) -> impl Iterator<Item = Result<Entry<'_>, Corrupt>> {
    records(block, format).filter_map(|record| match record {
        Ok(record) => record.entry().map(Ok),
        Err(corrupt) => Some(Err(corrupt)),
    })
}

/// Iterator over the records of a leaf.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    region: &'a [u8],
    format: Format,
    /// The block has 64 KiB, so that a length may need 17 bits.
    long: bool,
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Corrupt>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.region[self.offset..];
        if rest.is_empty() {
            return None;
        }
        let Some(record) = self.read(rest) else {
            let problem = self.problem(rest);
            self.offset = self.region.len();
            return Some(Err(problem));
        };
        self.offset += record.length;
        Some(Ok(record))
    }
}

impl<'a> Records<'a> {
    /// The record at the start of `rest`; `None` if it is impossible. A leaf is read for each
    /// change of a name in it: not inlined into its reader's loop, this costs a creation or removal
    /// 8 % more instructions.
    #[inline(always)]
    fn read(&self, rest: &'a [u8]) -> Option<Record<'a>> {
        let (header, behind) = rest.split_first_chunk::<HEADER_SIZE>()?;
        let length = decode_length(read_u16(header, 4), self.long);
        let inode = InodeNumber(read_u32(header, 0));
        let (name_length, used) = match (inode.get(), usize::from(header[6])) {
            (0, _) => (0, 0),
            (_, 0) => return None,
            (_, name_length) => (name_length, record_length(name_length)),
        };
        let is_possible = (used.max(HEADER_SIZE)..=rest.len()).contains(&length);
        if !is_possible || !length.is_multiple_of(4) {
            return None;
        }
        Some(Record {
            offset: self.offset,
            length,
            used,
            inode,
            kind: if self.format.has_file_types {
                header[7]
            } else {
                0
            },
            name: behind.get(..name_length)?,
        })
    }

    /// What is wrong with the record at the start of `rest`.
    #[cold]
    fn problem(&self, rest: &[u8]) -> Corrupt {
        let left = rest.len();
        let problem = match rest.first_chunk::<HEADER_SIZE>() {
            None => format!("{left} bytes are left for a record"),
            Some(header) => {
                let length = decode_length(read_u16(header, 4), self.long);
                let inode = read_u32(header, 0);
                let is_nameless = inode != 0 && header[6] == 0;
                let has_room = (HEADER_SIZE..=left).contains(&length);
                match is_nameless && has_room && length.is_multiple_of(4) {
                    true => format!("inode {inode} has an empty name"),
                    false => format!("record of {length} bytes, {left} are left"),
                }
            }
        };
        Corrupt::new(STRUCTURE, format!("at byte {}: {problem}", self.offset))
    }
}

fn decode_length(stored: u16, long: bool) -> usize {
    match stored {
        0 | u16::MAX if long => 1 << 16,
        stored => usize::from(stored),
    }
}

pub(super) fn encode_length(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// Finds the record of a name.
///
/// # Errors
///
/// [`Corrupt`] if a record before it or its own is impossible.
pub fn find<'a>(
    block: &'a [u8],
    format: Format,
    name: &[u8],
) -> Result<Option<Record<'a>>, Corrupt> {
    let wanted = format.naming.wanted(name);
    for record in records(block, format) {
        let record = record?;
        if record.is_named(&wanted) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}
