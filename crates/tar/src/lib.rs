//! Reading tar archives: the old, the POSIX and the GNU kind, with their extensions.
//!
//! An archive is passed over once, from its start to its end mark. The [`Reader`] takes blocks from
//! whoever has them ([`Blocks`]), turns headers and what goes before them into an [`Entry`], and
//! stops where the entry's content begins; the caller takes the content, or passes over it, before it
//! asks for the next entry. Nothing about sizes is taken on trust: every stated length has a bound,
//! numbers are judged, and the pieces of a file with holes must be in order and add up. What states a
//! size and has no content is passed over, so that the next entry is found. Names are given as they
//! stand there: what may be made of them is the caller's to say.

#![forbid(unsafe_code)]

mod header;
mod reader;
mod records;
mod sparse;

use std::ops::Range;

use pext4_ondisk::time::Time;
use pext4_ondisk::xattr::pax;

pub use header::checksum;
pub use reader::Reader;

/// Bytes of a block: a header, and what everything is padded to.
pub const BLOCK: usize = 512;

/// Where an archive's blocks come from.
pub trait Blocks {
    /// Why there are none.
    type Error;

    /// The next block; false at the end.
    ///
    /// # Errors
    /// What reading them comes to.
    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, Self::Error>;

    /// Passes over a content that nobody wants and the padding behind it; false where the archive
    /// ends before it does.
    ///
    /// # Errors
    /// What reading them comes to.
    fn skip(&mut self, length: u64) -> Result<bool, Self::Error>;

    /// The end mark was read. What is asked for from now on only shows whether anything follows.
    fn note_end(&mut self) {}
}

/// Why there is no next entry.
#[derive(Debug)]
pub enum Fault<E> {
    /// Its blocks could not be read.
    Input(E),
    /// What is wrong with the archive, and with which entry, if it is one's.
    Unsound {
        /// The entry's name; empty for the archive.
        entry: Vec<u8>,
        /// What is wrong.
        problem: String,
    },
}

/// What an entry is.
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

/// What an archive says of one entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// As it stands in the archive.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Where a link leads, as it stands there; empty for none.
    pub link: Vec<u8>,
    /// Permissions with the bits above them, 12 bits.
    pub permissions: u16,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// When it was written.
    pub modified: Time,
    /// When it was read, where that is said.
    pub accessed: Option<Time>,
    /// A device's numbers, major and minor.
    pub device: (u32, u32),
    /// Bytes of the file, holes included; 0 for what is none.
    pub size: u64,
    /// Bytes that the archive holds of the file, from where the reader stopped.
    pub stored: u64,
    /// Where those bytes lie in the file, in order; all of it at its start where there is no map.
    pub segments: Option<Box<[Range<u64>]>>,
    /// Extended attributes.
    pub attributes: pax::Records,
    /// The access control list about access, as text; empty for none.
    pub access_list: Vec<u8>,
    /// The one for what is made inside.
    pub default_list: Vec<u8>,
}
