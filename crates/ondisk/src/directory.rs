//! Directory blocks: records of names, one after another up to the end of the block.
//!
//! A record is a header of 8 bytes and a name, padded to a multiple of 4, and stores the distance
//! to the next record. A record whose inode is 0 is free space, and so is the part of a record
//! beyond its own need. With metadata checksums the last 12 bytes of a leaf are the *tail*, which
//! looks like a free record. The functions here access only the bytes before it, so that no record
//! ever overlaps it.
//!
//! Every length is checked on every visit; an impossible one is [`Corrupt`], never a panic. A
//! region may also be a part of an inode with inline data; such regions have no tail.
//!
//! Index blocks (see [`htree`](crate::htree)) look like blocks of free space to a program without
//! index support. They are no leaves: their "record" covers the tail. Format: the kernel's
//! `Documentation/filesystems/ext4/directory.rst`.

mod file_type;
mod split;
mod tail;

pub use file_type::FileType;
pub use split::{Split, split_by_hash};
use tail::init_tail;
pub use tail::{has_tail, stamp_leaf, verify_leaf};

use crate::bytes::{read_u16, read_u32, write_u16, write_u32};
use crate::corrupt::Corrupt;
use crate::feature::{Features, Incompat, ReadOnlyCompat};
use crate::number::InodeNumber;

/// Bytes of a record before its name.
pub const HEADER_SIZE: usize = 8;
/// Longest name in bytes (`EXT4_NAME_LEN`).
pub const NAME_MAX: usize = 255;
/// Bytes of the tail.
pub const TAIL_SIZE: usize = 12;

/// Offset of the record of `..` in a new first block.
pub(crate) const DOT_DOT_OFFSET: usize = 12;
const STRUCTURE: &str = "directory block";

/// The format of directory blocks in one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Leaves end in a tail with a checksum (`metadata_csum`).
    pub has_tail: bool,
    /// Records have the kind of file (`filetype`).
    pub has_file_types: bool,
}

impl Format {
    /// The format of directory blocks with these features.
    #[must_use]
    pub fn of(features: &Features) -> Self {
        Self {
            has_tail: features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM),
            has_file_types: features.has_incompat(Incompat::FILETYPE),
        }
    }

    /// The format of a directory that is inline data: without tails.
    #[must_use]
    pub fn inline(self) -> Self {
        Self {
            has_tail: false,
            ..self
        }
    }
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode.
    pub inode: InodeNumber,
    /// The kind of file; `None` if records do not have it.
    pub file_type: Option<FileType>,
    /// The name's bytes.
    pub name: &'a [u8],
}

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
    name: &'a [u8],
}

impl<'a> Record<'a> {
    /// Its entry; `None` for free space.
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'a>> {
        (self.inode.get() != 0).then(|| Entry {
            inode: self.inode,
            file_type: FileType::from_entry(self.kind),
            name: self.name,
        })
    }

    /// Whether its entry has this name. The last bytes are compared first, since names in one
    /// directory often begin alike.
    #[inline]
    #[must_use]
    pub fn is_named(&self, name: &[u8]) -> bool {
        let is_equal =
            |own: &[u8]| own.len() == name.len() && own.last() == name.last() && own == name;
        is_equal(self.name) && self.inode.get() != 0
    }

    /// Bytes that its entry needs.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes that another entry could use. None before `..`, which must stay the second entry.
    #[must_use]
    pub fn free(&self) -> usize {
        match self.name {
            b"." => 0,
            _ => self.length - self.used,
        }
    }
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry was inserted; the offset of its record.
    At(usize),
    /// There is no room; the block is unchanged.
    Full,
}

/// Bytes that a record needs for a name of this length in bytes.
#[must_use]
pub const fn record_length(name_length: usize) -> usize {
    // `next_multiple_of` takes twice as many instructions, for each record that is looked at.
    (HEADER_SIZE + name_length + 3) & !3
}

/// Bytes of a leaf that records may use: all except the tail.
#[must_use]
pub const fn usable_length(block_length: usize, format: Format) -> usize {
    if format.has_tail {
        block_length.saturating_sub(TAIL_SIZE)
    } else {
        block_length
    }
}

/// Whether a name is valid for a file: 1 to [`NAME_MAX`] bytes, without NUL and slash. (Names in
/// encrypted directories are ciphertext and may contain any bytes.)
#[must_use]
pub fn is_valid_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Why a directory can have no new file of this name, which contains no slash; `None` if it can.
#[must_use]
pub fn name_problem(name: &[u8]) -> Option<String> {
    match name {
        b"" => Some("an empty name".to_owned()),
        b"." | b".." => Some("a name that means another directory".to_owned()),
        _ if name.len() > NAME_MAX => Some(format!(
            "its name has {} bytes, ext4 holds {NAME_MAX}",
            name.len()
        )),
        _ if name.contains(&0) => Some("its name holds a NUL byte".to_owned()),
        _ => None,
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
pub fn record_at(block: &[u8], format: Format, offset: usize) -> Result<Record<'_>, Corrupt> {
    let mut records = records(block, format);
    records.offset = offset.min(records.region.len());
    let behind = || Corrupt::new(STRUCTURE, "a record is looked for behind the last");
    records.next().unwrap_or_else(|| Err(behind()))
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
    /// The record at the start of `rest`, which is not empty; `None` if it is impossible. A leaf is
    /// read for each change of a name in it: not inlined into its reader's loop, this costs a
    /// creation or removal 8 % more instructions.
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

fn encode_length(length: usize) -> u16 {
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
    for record in records(block, format) {
        let record = record?;
        if record.is_named(name) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// The offset of the first record with at least `need` bytes that another entry could use.
fn gap(block: &[u8], format: Format, need: usize) -> Result<Option<usize>, Corrupt> {
    for record in records(block, format) {
        let record = record?;
        if record.free() >= need {
            return Ok(Some(record.offset));
        }
    }
    Ok(None)
}

/// Inserts an entry into the first space that is large enough. The caller must ensure that the name
/// does not exist.
///
/// # Errors
///
/// [`Corrupt`] if a record before that space is impossible; the block is unchanged.
///
/// # Panics
///
/// If the name is empty or too long, or the inode is 0.
pub fn insert(block: &mut [u8], format: Format, entry: &Entry<'_>) -> Result<Inserted, Corrupt> {
    match gap(block, format, record_length(entry.name.len()))? {
        Some(offset) => insert_at(block, format, offset, entry),
        None => Ok(Inserted::Full),
    }
}

/// Inserts an entry into the space of the record at `offset`, if that is large enough. The caller
/// must ensure that a record starts there and that the name does not exist.
///
/// # Errors
///
/// [`Corrupt`] if there can be no record; the block is unchanged.
///
/// # Panics
///
/// If the name is empty or too long, or the inode is 0.
pub fn insert_at(
    block: &mut [u8],
    format: Format,
    offset: usize,
    entry: &Entry<'_>,
) -> Result<Inserted, Corrupt> {
    check_entry(entry);
    let record = record_at(block, format, offset)?;
    let (length, free) = (record.length, record.free());
    if free < record_length(entry.name.len()) {
        return Ok(Inserted::Full);
    }
    let used = length - free;
    if used > 0 {
        write_u16(block, offset + 4, encode_length(used));
    }
    write_record(block, format, offset + used, free, entry);
    Ok(Inserted::At(offset + used))
}

fn check_entry(entry: &Entry<'_>) {
    assert!(
        (1..=NAME_MAX).contains(&entry.name.len()),
        "names have 1 to 255 bytes"
    );
    assert!(entry.inode.get() != 0, "inode 0 marks free space");
}

fn write_record(block: &mut [u8], format: Format, at: usize, length: usize, entry: &Entry<'_>) {
    write_u32(block, at, entry.inode.get());
    write_u16(block, at + 4, encode_length(length));
    block[at + 6] = u8::try_from(entry.name.len()).expect("names have at most 255 bytes");
    block[at + 7] = kind_byte(format, entry.file_type);
    let end = at + HEADER_SIZE + entry.name.len();
    block[at + HEADER_SIZE..end].copy_from_slice(entry.name);
    block[end..at + record_length(entry.name.len())].fill(0);
}

fn write_free(block: &mut [u8], at: usize, length: usize) {
    block[at..at + HEADER_SIZE].fill(0);
    write_u16(block, at + 4, encode_length(length));
}

fn kind_byte(format: Format, file_type: Option<FileType>) -> u8 {
    match file_type {
        Some(file_type) if format.has_file_types => file_type.to_entry(),
        _ => 0,
    }
}

/// Removes a name and returns its entry; `None` if the leaf does not have it. The record before
/// absorbs the space, or it becomes a free record at the start of the block; the name is wiped.
///
/// # Errors
///
/// [`Corrupt`] if a record before it or its own is impossible; the block is unchanged.
pub fn remove(
    block: &mut [u8],
    format: Format,
    name: &[u8],
) -> Result<Option<(InodeNumber, Option<FileType>)>, Corrupt> {
    let mut before: Option<(usize, usize)> = None;
    let mut found = None;
    for record in records(block, format) {
        let record = record?;
        if record.is_named(name) {
            let entry = record.entry();
            found = entry.map(|entry| (record.offset, record.length, entry.inode, entry.file_type));
            break;
        }
        before = Some((record.offset, record.length));
    }
    let Some((offset, length, inode, file_type)) = found else {
        return Ok(None);
    };
    block[offset..offset + record_length(name.len())].fill(0);
    match before {
        Some((start, before_length)) => {
            write_u16(block, start + 4, encode_length(before_length + length));
        }
        None => write_free(block, offset, length),
    }
    Ok(Some((inode, file_type)))
}

/// Changes the inode of a name; false if the leaf does not have it.
///
/// # Errors
///
/// [`Corrupt`] if a record before it or its own is impossible; the block is unchanged.
pub fn set_inode_of(
    block: &mut [u8],
    format: Format,
    name: &[u8],
    inode: InodeNumber,
    file_type: Option<FileType>,
) -> Result<bool, Corrupt> {
    let Some(at) = find(block, format, name)?.map(|record| record.offset) else {
        return Ok(false);
    };
    write_u32(block, at, inode.get());
    if format.has_file_types {
        block[at + 7] = kind_byte(format, file_type);
    }
    Ok(true)
}

/// Makes a block a leaf without entries.
///
/// # Panics
///
/// If the block is shorter than a record and a tail.
pub fn init_empty(block: &mut [u8], format: Format) {
    let usable = usable_length(block.len(), format);
    block.fill(0);
    write_free(block, 0, usable);
    init_tail(block, format);
}

/// Makes a block the first of a new directory, with `.` and `..`.
///
/// # Panics
///
/// If the block is too short for them.
pub fn init_first_block(block: &mut [u8], format: Format, own: InodeNumber, parent: InodeNumber) {
    let usable = usable_length(block.len(), format);
    block.fill(0);
    write_dots(block, format, own, parent, usable);
    init_tail(block, format);
}

/// Writes `.` and then `..`, whose record ends at `end`.
pub(crate) fn write_dots(
    block: &mut [u8],
    format: Format,
    own: InodeNumber,
    parent: InodeNumber,
    end: usize,
) {
    let file_type = Some(FileType::Directory);
    let dot = Entry {
        inode: own,
        file_type,
        name: b".",
    };
    let dot_dot = Entry {
        inode: parent,
        file_type,
        name: b"..",
    };
    write_record(block, format, 0, DOT_DOT_OFFSET, &dot);
    write_record(
        block,
        format,
        DOT_DOT_OFFSET,
        end - DOT_DOT_OFFSET,
        &dot_dot,
    );
}

/// Makes a block a leaf with these entries, in this order; if they do not fit, returns false and
/// the content is unspecified. The last record gets the remaining space.
///
/// # Panics
///
/// As [`insert`].
#[must_use]
pub fn write_leaf<'a>(
    block: &mut [u8],
    format: Format,
    entries: impl IntoIterator<Item = Entry<'a>>,
) -> bool {
    init_empty(block, format);
    let usable = usable_length(block.len(), format);
    let (mut last, mut end) = (0, 0);
    for entry in entries {
        check_entry(&entry);
        let length = record_length(entry.name.len());
        if end + length > usable {
            return false;
        }
        write_record(block, format, end, length, &entry);
        (last, end) = (end, end + length);
    }
    write_u16(block, last + 4, encode_length(usable - last));
    true
}

/// The directory's own inode and its parent, from `.` and `..` at the start of a first block, which
/// may be a leaf or an index root.
///
/// # Errors
///
/// [`Corrupt`] if the block does not start with the two.
pub fn dots(block: &[u8]) -> Result<(InodeNumber, InodeNumber), Corrupt> {
    let dot_dot = dot_dot_offset(block)?;
    Ok((
        InodeNumber(read_u32(block, 0)),
        InodeNumber(read_u32(block, dot_dot)),
    ))
}

/// Offset of the record of `..`: after that of `.`, which is longer than needed in some
/// directories.
pub(crate) fn dot_dot_offset(block: &[u8]) -> Result<usize, Corrupt> {
    let corrupt = || Corrupt::new(STRUCTURE, "does not start with '.' and '..'");
    let start = block.first_chunk::<DOT_DOT_OFFSET>().ok_or_else(corrupt)?;
    let length = usize::from(read_u16(start, 4));
    let dot_dot = block
        .get(length..)
        .and_then(|rest| rest.first_chunk::<DOT_DOT_OFFSET>());
    let is_dot = start[6] == 1 && start[8] == b'.' && length >= DOT_DOT_OFFSET;
    let is_dot_dot = dot_dot.is_some_and(|record| record[6] == 2 && record[8..10] == *b"..");
    if is_dot && is_dot_dot {
        Ok(length)
    } else {
        Err(corrupt())
    }
}

/// Changes the inode of `..` at the start of a first block, leaf or index root.
///
/// # Errors
///
/// As [`dots`]; the block is unchanged.
pub fn set_parent(block: &mut [u8], parent: InodeNumber) -> Result<(), Corrupt> {
    let dot_dot = dot_dot_offset(block)?;
    write_u32(block, dot_dot, parent.get());
    Ok(())
}

/// Whether a leaf contains no entries except `.` and `..`.
///
/// # Errors
///
/// [`Corrupt`] if a record is impossible.
pub fn is_empty(block: &[u8], format: Format) -> Result<bool, Corrupt> {
    for entry in entries(block, format) {
        if !matches!(entry?.name, b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Most blocks of a directory: 2 GiB unless it may be `large` (`large_dir`), and what an index can
/// address.
#[must_use]
pub fn max_blocks(large: bool, block_size: u32) -> u32 {
    const ADDRESSABLE: u32 = 1 << 28;
    const SMALL: u32 = 1 << 31;
    if large {
        ADDRESSABLE
    } else {
        ADDRESSABLE.min(SMALL / block_size)
    }
}

#[cfg(test)]
mod tests;
