//! Directory blocks: records of names, one after another up to the end of the block.
//!
//! A record is a header of 8 bytes and a name, padded to a multiple of 4, and stores the distance
//! to the next record. A record whose inode is 0 is free space, and so is the part of a record
//! beyond its own need. With metadata checksums the last 12 bytes of a leaf are the *tail*, which
//! looks like a free record. The functions here access only the bytes before it, so that no record
//! ever overlaps it.
//!
//! Every length is checked on every visit; an impossible one is [`Corrupt`], never a panic. A
//! region may also be a part of an inode with inline data; such regions have no tail. Names of a
//! leaf that is used often are found by [`Fingerprints`], which exist only in memory.
//!
//! Index blocks (see [`htree`](crate::htree)) look like blocks of free space to a program without
//! index support. They are no leaves: their "record" covers the tail. Format: the kernel's
//! `Documentation/filesystems/ext4/directory.rst`.

mod changes;
mod file_type;
mod fingerprints;
mod records;
mod tail;

pub(crate) use changes::write_dots;
pub use changes::{
    Inserted, init_empty, init_first_block, insert, insert_at, remove, set_inode_at, write_leaf,
};
pub use file_type::{FileType, KIND_MASK, PERMISSIONS, SET_GROUP_ID, SET_USER_ID};
pub use fingerprints::Fingerprints;
pub use records::{Record, Records, entries, find, has_more_records, record_at, records};
pub use tail::{has_tail, stamp_leaf, verify_leaf};

use crate::bytes::{read_u16, read_u32, write_u32};
use crate::casefold::Naming;
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

/// The format of directory blocks: the same in one file system, except for the naming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Leaves end in a tail with a checksum (`metadata_csum`).
    pub has_tail: bool,
    /// Records have the kind of file (`filetype`).
    pub has_file_types: bool,
    /// How names are compared.
    pub naming: Naming,
}

impl Format {
    /// The format of directory blocks with these features, where names are compared by their bytes.
    #[must_use]
    pub fn of(features: &Features) -> Self {
        Self {
            has_tail: features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM),
            has_file_types: features.has_incompat(Incompat::FILETYPE),
            naming: Naming::Exact,
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

    /// The same format, but names are compared by their bytes.
    #[must_use]
    pub fn by_bytes(self) -> Self {
        Self {
            naming: Naming::Exact,
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
