//! Changes of a leaf: entries that are added, removed and redirected, and leaves that are written
//! anew.

use super::records::{Place, Record, encode_length, record_at, records};
use super::tail::init_tail;
use super::{
    DOT_DOT_OFFSET, Entry, FileType, Format, HEADER_SIZE, NAME_MAX, record_length, usable_length,
};
use crate::bytes::{write_u16, write_u32};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry was inserted; the offset of its record.
    At(usize),
    /// There is no room; the block is unchanged.
    Full,
}

/// The offset of the first record with at least `need` bytes that another entry could use.
pub(super) fn gap(block: &[u8], format: Format, need: usize) -> Result<Option<usize>, Corrupt> {
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
    let record = record_at(block, format, offset)?;
    let (place, free) = (record.place(), record.free());
    Ok(insert_in(block, format, &place, free, entry))
}

/// As [`insert_at`], in the space of `free` bytes of a record that was read.
pub(super) fn insert_in(
    block: &mut [u8],
    format: Format,
    record: &Place,
    free: usize,
    entry: &Entry<'_>,
) -> Inserted {
    check_entry(entry);
    if free < record_length(entry.name.len()) {
        return Inserted::Full;
    }
    let (offset, used) = (record.offset, record.length - free);
    if used > 0 {
        write_u16(block, offset + 4, encode_length(used));
    }
    write_record(block, format, offset + used, free, entry);
    Inserted::At(offset + used)
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

pub(super) fn write_free(block: &mut [u8], at: usize, length: usize) {
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
    let wanted = format.naming.wanted(name);
    let mut before = None;
    for record in records(block, format) {
        let record = record?;
        if record.is_named(&wanted)
            && let Some(entry) = record.entry()
        {
            let answer = (entry.inode, entry.file_type);
            let (before, removed) = (
                before.map(|record: Record<'_>| record.place()),
                record.place(),
            );
            absorb(block, before, &removed);
            return Ok(Some(answer));
        }
        before = Some(record);
    }
    Ok(None)
}

/// Wipes a record; the one before it gets its space, or it becomes a free record.
pub(super) fn absorb(block: &mut [u8], before: Option<Place>, removed: &Place) {
    block[removed.offset..removed.offset + removed.used].fill(0);
    match before {
        Some(before) => {
            let length = encode_length(before.length + removed.length);
            write_u16(block, before.offset + 4, length);
        }
        None => write_free(block, removed.offset, removed.length),
    }
}

/// Changes the inode of the entry whose record was found at `offset`.
///
/// # Panics
///
/// If the block ends before the record's header does.
pub fn set_inode_at(
    block: &mut [u8],
    format: Format,
    offset: usize,
    inode: InodeNumber,
    file_type: Option<FileType>,
) {
    write_u32(block, offset, inode.get());
    if format.has_file_types {
        block[offset + 7] = kind_byte(format, file_type);
    }
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
