//! Reads tar archives: the old, the POSIX and the GNU format, with their extensions.
//!
//! An archive is read once, from its start to its end mark, or to the end of an input without one.
//! The [`Reader`] takes blocks from an implementation of [`Blocks`], decodes a header and the
//! extension headers before it to an [`Entry`], and stops at the start of the entry's content. The
//! caller reads or skips the content before it asks for the next entry. Sizes are not trusted:
//! every stated length is bounded, numbers are checked, and the segments of a sparse file must be
//! in order and add up. If an entry of a kind without content states a size, the reader finds the
//! next header all the same. Names are returned as in the archive; [`checked`] judges them, and
//! what else a file system must hold.

#![forbid(unsafe_code)]

pub mod checked;
mod header;
pub mod marks;
mod reader;
mod records;
mod sparse;

use std::ops::Range;

use pext4_ondisk::shown::Shown;
use pext4_ondisk::time::Time;
use pext4_ondisk::xattr::pax;
use thiserror::Error;

pub use header::checksum;
pub use reader::Reader;
pub use sparse::MAX_SEGMENTS;

/// Bytes of a block: the size of a header, and the unit to which contents are padded.
pub const BLOCK: usize = 512;

/// The source of an archive's blocks.
pub trait Blocks {
    /// An error of the source.
    type Error;

    /// Reads the next block, and returns the number of bytes that were left for it: less than
    /// [`BLOCK`] only at the end of the source.
    ///
    /// # Errors
    ///
    /// Those of the source.
    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<usize, Self::Error>;

    /// Skips a content of `length` bytes and its padding; false if the source ends before that.
    ///
    /// # Errors
    ///
    /// Those of the source.
    fn skip(&mut self, length: u64) -> Result<bool, Self::Error>;

    /// Called when the end mark was read. The reader reads the following blocks only to see whether
    /// another archive follows.
    fn note_end(&mut self) {}
}

/// Why the next entry could not be read.
#[derive(Debug, Error)]
pub enum ReadError<E> {
    /// The source failed.
    #[error(transparent)]
    Input(E),
    /// The archive is malformed or not supported.
    #[error(transparent)]
    Malformed(Malformed),
}

/// What is wrong with an archive or with one of its entries.
#[derive(Debug, Error)]
#[error("{}{problem}", place(entry))]
pub struct Malformed {
    /// The name of the entry with the problem; empty if it concerns the archive.
    pub entry: Vec<u8>,
    /// A description of the problem.
    pub problem: String,
}

impl Malformed {
    /// A problem of the entry of this name.
    pub fn new(entry: &[u8], problem: impl Into<String>) -> Self {
        Self {
            entry: entry.to_vec(),
            problem: problem.into(),
        }
    }
}

fn place(entry: &[u8]) -> String {
    match entry {
        b"" => String::new(),
        _ => format!("{}: ", Shown(entry)),
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file with content.
    File,
    /// Another name of a file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// One entry of an archive.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name, as in the archive.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
    /// The target of a link, as in the archive; empty for other kinds.
    pub link: Vec<u8>,
    /// Permissions with the set-id and sticky bits, 12 bits.
    pub permissions: u16,
    /// The owner's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
    /// Time of the last modification.
    pub modified: Time,
    /// Time of the last access, if the archive has it.
    pub accessed: Option<Time>,
    /// Major and minor number of a device; 0 for other kinds.
    pub device: (u32, u32),
    /// Bytes of the file, including holes; 0 for other kinds.
    pub size: u64,
    /// Bytes of the file's content in the archive, which are the next of the source.
    pub stored: u64,
    /// The ranges of the file that contain these bytes, in order; `None` if the file is not sparse.
    pub segments: Option<Box<[Range<u64>]>>,
    /// Extended attributes.
    pub attributes: pax::Records,
    /// The access control list as text; empty for none.
    pub access_list: Vec<u8>,
    /// The default access control list of a directory as text; empty for none.
    pub default_list: Vec<u8>,
}

impl Entry {
    /// The approximate memory in bytes that it takes to keep the entry, without the ranges of a
    /// sparse file.
    #[must_use]
    pub fn memory(&self) -> usize {
        let texts = [
            &self.name,
            &self.link,
            &self.access_list,
            &self.default_list,
        ];
        let texts: usize = texts.into_iter().map(Vec::len).sum();
        size_of::<Self>() + texts + records::memory_of(&self.attributes)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Malformed, ReadError};

    #[test]
    fn an_error_names_the_entry_and_shows_what_is_strange_in_it() {
        let malformed = |entry: &[u8]| {
            ReadError::<io::Error>::Malformed(Malformed::new(entry, "it has no size"))
        };
        assert_eq!(malformed(b"").to_string(), "it has no size");
        assert_eq!(malformed(b"a/b").to_string(), "a/b: it has no size");
        assert!(!malformed(b"a\x1b[2J").to_string().contains('\x1b'));
        let failed = ReadError::Input(io::Error::other("no answer"));
        assert_eq!(failed.to_string(), "no answer");
    }
}
