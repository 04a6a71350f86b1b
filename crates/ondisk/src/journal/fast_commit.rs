//! Fast commits: small changes behind the last full commit, recorded as their outcomes.
//!
//! The area at the journal's end has one fast commit after the other, all of the transaction that
//! follows the last full commit. Each is a row of records of tag, length and value (little-endian,
//! unlike the rest of the journal) that begins at the start of a block and ends with a *tail*. The
//! first record of the area is a *head* with the number of the transaction: if it has another one,
//! the area is old. A record never crosses the end of a block; what is left there is padding, which
//! the tail includes in its length. The tail has the checksum of the commit: crc32c, from 0, of all
//! records up to the tail's own transaction number.
//!
//! pext4 never writes fast commits. A [`Scan`] reads those of others, up to the last whole one: a
//! crash may have interrupted the next. What the records mean, and in which order Linux writes
//! them, is told where they are replayed (`pext4-fs`, `ops/fast_commit`). Format: the kernel's
//! `Documentation/filesystems/ext4/journal.rst`, "Fast Commit Area", and areas that Linux 6.18
//! wrote.

mod area_writer;

use crate::bytes::{read_u16, read_u32};
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::extent::{ENTRY_SIZE, Extent};
use crate::inode::BASE_SIZE;
use crate::number::{InodeNumber, LogicalBlock, Tid};

pub use area_writer::AreaWriter;

const STRUCTURE: &str = "fast commit";

/// Bytes of tag and length of a record, two each.
const RECORD_HEADER: usize = 4;
/// Bytes of a head's value: features and transaction, four each.
const HEAD_LENGTH: usize = 8;
/// Bytes of a tail's value that mean something: transaction and checksum, four each.
const TAIL_LENGTH: usize = 8;
/// Bytes of a number of an inode, with which the value of every change begins.
const NUMBER: usize = 4;

/// The tags of records.
mod tag {
    pub const ADD_RANGE: u16 = 1;
    pub const DELETE_RANGE: u16 = 2;
    pub const CREATE: u16 = 3;
    pub const LINK: u16 = 4;
    pub const UNLINK: u16 = 5;
    pub const INODE: u16 = 6;
    pub const PADDING: u16 = 7;
    pub const TAIL: u16 = 8;
    pub const HEAD: u16 = 9;
}

/// A change that a fast commit records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks of a file are mapped.
    AddRange {
        /// The file.
        inode: InodeNumber,
        /// What is mapped where.
        extent: Extent,
    },
    /// Blocks of a file are not mapped.
    DeleteRange {
        /// The file.
        inode: InodeNumber,
        /// The first of them.
        logical: LogicalBlock,
        /// How many they are; they may reach beyond the last block that a file can have.
        length: u32,
    },
    /// A new inode has its first name.
    Create(NamedInode),
    /// An inode has one more name.
    Link(NamedInode),
    /// A name is gone.
    Unlink(NamedInode),
    /// An inode has these attributes.
    Inode {
        /// Which one.
        inode: InodeNumber,
        /// The bytes of its slot: at least the first 128, and not all of a longer slot.
        bytes: Box<[u8]>,
    },
}

/// A name and what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedInode {
    /// The directory.
    pub parent: InodeNumber,
    /// What the name refers to.
    pub inode: InodeNumber,
    /// The name, of any length and with any bytes.
    pub name: Box<[u8]>,
}

impl Record {
    /// The inode that changes: of a name, what it refers to.
    #[must_use]
    pub fn inode(&self) -> InodeNumber {
        match self {
            Self::AddRange { inode, .. }
            | Self::DeleteRange { inode, .. }
            | Self::Inode { inode, .. } => *inode,
            Self::Create(named) | Self::Link(named) | Self::Unlink(named) => named.inode,
        }
    }

    fn decode(tag: u16, value: &[u8]) -> Result<Self, Corrupt> {
        let short = || {
            let length = value.len();
            Corrupt::new(STRUCTURE, format!("record {tag} has only {length} bytes"))
        };
        let number = |at: usize| match value.len() >= at + NUMBER {
            true => Ok(read_u32(value, at)),
            false => Err(short()),
        };
        let inode = InodeNumber(number(0)?);
        let rest = &value[NUMBER..];
        let named = || {
            Ok(NamedInode {
                parent: inode,
                inode: InodeNumber(number(NUMBER)?),
                name: rest[NUMBER..].into(),
            })
        };
        Ok(match tag {
            tag::ADD_RANGE => Self::AddRange {
                inode,
                extent: Extent::decode(rest.first_chunk::<ENTRY_SIZE>().ok_or_else(short)?)
                    .map_err(|corrupt| corrupt.in_inode(inode))?,
            },
            tag::DELETE_RANGE => Self::DeleteRange {
                inode,
                logical: LogicalBlock(number(NUMBER)?),
                length: number(2 * NUMBER)?,
            },
            tag::CREATE => Self::Create(named()?),
            tag::LINK => Self::Link(named()?),
            tag::UNLINK => Self::Unlink(named()?),
            _ if rest.len() < BASE_SIZE => return Err(short()),
            _ => Self::Inode {
                inode,
                bytes: rest.into(),
            },
        })
    }
}

/// Reads the fast commits of an area, block by block.
///
/// Memory is bounded by the blocks that are read, which end with the first one that continues
/// nothing.
#[derive(Debug)]
pub struct Scan {
    expected: Tid,
    features: u32,
    has_head: bool,
    /// The checksum of the commit that is being read, so far.
    sum: u32,
    /// The bytes of its records, not to be believed before its tail.
    unsure: Vec<u8>,
    commits: Vec<Vec<Record>>,
}

/// What a block was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It continues the commits.
    Part,
    /// The commits end in it, or before it.
    End,
}

impl Scan {
    /// A scan for the fast commits of transaction `expected`, the first that has no full commit.
    #[must_use]
    pub fn new(expected: Tid) -> Self {
        Self {
            expected,
            features: 0,
            has_head: false,
            sum: 0,
            unsure: Vec::new(),
            commits: Vec::new(),
        }
    }

    /// Reads the next block of the area; false if no other need be read.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the first commit has a wrong checksum, and if records of a whole one mean
    /// nothing: something that an `fsync` has acknowledged would be lost.
    pub fn block(&mut self, bytes: &[u8]) -> Result<bool, Corrupt> {
        let mut rest = bytes;
        while rest.len() >= RECORD_HEADER {
            let Some((header, value, next)) = split(rest) else {
                return Ok(false);
            };
            if self.record(header, value)? == Seen::End {
                return Ok(false);
            }
            rest = next;
        }
        Ok(true)
    }

    /// The features that the head of the area names; 0 in all areas of today. With others the
    /// records may mean something else.
    #[must_use]
    pub fn features(&self) -> u32 {
        self.features
    }

    /// The records of the whole commits, in their order.
    #[must_use]
    pub fn into_commits(self) -> Vec<Vec<Record>> {
        self.commits
    }

    fn record(&mut self, header: &[u8], value: &[u8]) -> Result<Seen, Corrupt> {
        let tag = read_u16(header, 0);
        if !self.has_head && tag != tag::HEAD {
            return Ok(Seen::End);
        }
        match tag {
            tag::HEAD if !self.is_own_head(value) => return Ok(Seen::End),
            tag::HEAD => {
                self.has_head = true;
                self.features |= read_u32(value, 0);
            }
            tag::TAIL => return self.tail(header, value),
            tag::ADD_RANGE..=tag::INODE => {
                self.unsure.extend_from_slice(header);
                self.unsure.extend_from_slice(value);
            }
            tag::PADDING => {}
            // Zeroes, or what an earlier transaction left.
            _ => return Ok(Seen::End),
        }
        self.sum = crc32c(crc32c(self.sum, header), value);
        Ok(Seen::Part)
    }

    fn is_own_head(&self, value: &[u8]) -> bool {
        value.len() >= HEAD_LENGTH && read_u32(value, 4) == self.expected.0
    }

    /// Ends a commit, if this tail is its own.
    fn tail(&mut self, header: &[u8], value: &[u8]) -> Result<Seen, Corrupt> {
        if value.len() < TAIL_LENGTH || read_u32(value, 0) != self.expected.0 {
            return Ok(Seen::End);
        }
        let computed = crc32c(crc32c(self.sum, header), &value[..4]);
        let stored = read_u32(value, 4);
        if stored != computed {
            // A later one was not durable when the machine stopped.
            return match self.commits.is_empty() {
                true => Err(Corrupt::checksum(STRUCTURE, stored, computed)),
                false => Ok(Seen::End),
            };
        }
        self.sum = 0;
        let mut records = Vec::new();
        let bytes = std::mem::take(&mut self.unsure);
        let mut rest = &bytes[..];
        while let Some((header, value, next)) = split(rest) {
            records.push(Record::decode(read_u16(header, 0), value)?);
            rest = next;
        }
        self.commits.push(records);
        Ok(Seen::Part)
    }
}

/// The header and the value of the first record, and what follows; `None` if it leads out of these
/// bytes.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (header, behind) = bytes.split_at_checked(RECORD_HEADER)?;
    let (value, next) = behind.split_at_checked(usize::from(read_u16(header, 2)))?;
    Some((header, value, next))
}

#[cfg(test)]
mod tests {
    use super::{AreaWriter, NamedInode, Record, Scan, tag};
    use crate::extent::Extent;
    use crate::number::{BlockNumber, InodeNumber, LogicalBlock, Tid};

    const BLOCK: usize = 1024;
    const TID: Tid = Tid(70);

    /// An area that begins with its head.
    fn area() -> AreaWriter {
        let mut area = AreaWriter::new(BLOCK);
        area.head(0, TID);
        area
    }

    fn unlink<'a>(area: &'a mut AreaWriter, inode: u32, name: &[u8]) -> &'a mut AreaWriter {
        area.unlink(InodeNumber(2), InodeNumber(inode), name)
    }

    fn scan(area: &AreaWriter, expected: u32) -> Result<Vec<Vec<Record>>, String> {
        let mut scan = Scan::new(Tid(expected));
        for block in area.bytes().chunks(BLOCK).chain([&[0; BLOCK][..]]) {
            match scan.block(block) {
                Ok(true) => {}
                Ok(false) => break,
                Err(corrupt) => return Err(corrupt.to_string()),
            }
        }
        Ok(scan.into_commits())
    }

    fn named(inode: u32, name: &[u8]) -> NamedInode {
        NamedInode {
            parent: InodeNumber(2),
            inode: InodeNumber(inode),
            name: name.into(),
        }
    }

    fn unlinked(inode: u32, name: &[u8]) -> Record {
        Record::Unlink(named(inode, name))
    }

    /// The block that Linux 6.18 wrote for `rm n2`, in a journal of blocks of 1 KiB; it was not the
    /// first of its area.
    #[test]
    fn a_commit_of_linux_is_read() {
        let mut block = [0; BLOCK];
        let unlink = [5, 0, 10, 0, 2, 0, 0, 0, 17, 0, 0, 0, b'n', b'2'];
        let tail = [8, 0, 0xEE, 3, 4, 0, 0, 0, 0x1C, 0x40, 0x78, 0xA8];
        block[..14].copy_from_slice(&unlink);
        block[14..26].copy_from_slice(&tail);
        let mut area = AreaWriter::new(BLOCK);
        area.head(0, Tid(4)).tail(Tid(4)).bytes_mut().extend(block);
        assert_eq!(scan(&area, 4), Ok(vec![vec![], vec![unlinked(17, b"n2")]]));
    }

    #[test]
    fn every_kind_of_record_is_decoded() {
        let extent = Extent {
            logical: LogicalBlock(80),
            start: BlockNumber(4387),
            length: 944,
            unwritten: true,
        };
        let mut area = area();
        let (inode, root, new) = (InodeNumber(15), InodeNumber(2), InodeNumber(16));
        area.add_range(inode, &extent);
        area.delete_range(inode, 4, 2_147_483_647);
        area.create(root, new, b"new").link(root, new, b"new");
        area.inode(new, &[7; 160]).tail(TID);
        let expected = [
            Record::AddRange { inode, extent },
            Record::DeleteRange {
                inode,
                logical: LogicalBlock(4),
                length: 2_147_483_647,
            },
            Record::Create(named(16, b"new")),
            Record::Link(named(16, b"new")),
            Record::Inode {
                inode: new,
                bytes: [7; 160].into(),
            },
        ];
        assert_eq!(scan(&area, 70), Ok(vec![expected.to_vec()]));
    }

    #[test]
    fn commits_of_many_blocks_and_several_commits_are_read_in_order() {
        let mut area = area();
        let name = [b'x'; 200];
        for inode in 100..120 {
            unlink(&mut area, inode, &name);
        }
        area.tail(TID).tail(TID);
        unlink(&mut area, 9, b"last").tail(TID);
        assert!(area.bytes().len() > 6 * BLOCK, "they fill several blocks");
        let many = (100..120).map(|inode| unlinked(inode, &name)).collect();
        let expected = vec![many, vec![], vec![unlinked(9, b"last")]];
        assert_eq!(scan(&area, 70), Ok(expected));
    }

    #[test]
    fn an_area_of_another_transaction_has_no_commits() {
        let mut area = area();
        unlink(&mut area, 9, b"old").tail(TID);
        assert_eq!(scan(&area, 71), Ok(vec![]));
        let zeroes = AreaWriter::new(BLOCK);
        assert_eq!(scan(&zeroes, 0), Ok(vec![]), "zeroes are no head");
    }

    #[test]
    fn what_a_crash_interrupted_does_not_count() {
        let expected = Ok(vec![vec![unlinked(9, b"whole")]]);
        let torn: [fn(&mut AreaWriter); 4] = [
            |area| {
                unlink(area, 10, b"without a tail");
            },
            |area| {
                unlink(area, 10, b"of before").tail(TID.previous());
            },
            |area| unlink(area, 10, b"damaged").tail(TID).bytes_mut()[BLOCK + 15] ^= 1,
            // A record that leads out of its block.
            |area| {
                area.bytes_mut()
                    .extend([tag::UNLINK as u8, 0, 0xFF, 0xFF].repeat(BLOCK / 4))
            },
        ];
        for (case, tear) in torn.into_iter().enumerate() {
            let mut area = area();
            unlink(&mut area, 9, b"whole").tail(TID);
            tear(&mut area);
            assert_eq!(scan(&area, 70), expected, "case {case}");
        }
        let mut first = area();
        unlink(&mut first, 9, b"without a tail");
        assert_eq!(scan(&first, 70), Ok(vec![]));
    }

    #[test]
    fn what_was_acknowledged_and_cannot_be_read_is_an_error() {
        let mut damaged = area();
        unlink(&mut damaged, 9, b"whole").tail(TID).bytes_mut()[20] ^= 1;
        let told = scan(&damaged, 70).expect_err("the sum is wrong");
        assert!(told.contains("corrupt fast commit"), "{told}");
        assert!(told.contains("checksum is"), "{told}");
        let short: [(u16, &[u8]); 5] = [
            (tag::UNLINK, &[1; 7]),
            (tag::ADD_RANGE, &[1; 15]),
            (tag::DELETE_RANGE, &[1; 11]),
            (tag::INODE, &[1; 131]),
            (tag::LINK, &[]),
        ];
        for (tag, value) in short {
            let mut area = area();
            area.record(tag, value).tail(TID);
            let told = scan(&area, 70).expect_err("too short");
            assert!(told.contains("has only"), "{told}");
        }
        let mut empty = area();
        empty.record(tag::ADD_RANGE, &[0; 16]).tail(TID);
        assert!(scan(&empty, 70).is_err(), "an extent of no blocks");
    }

    #[test]
    fn features_are_told() {
        let mut area = AreaWriter::new(BLOCK);
        area.head(2, TID).tail(TID);
        let mut scan = Scan::new(TID);
        assert_eq!(scan.block(area.bytes()), Ok(true));
        assert_eq!(scan.features(), 2);
    }
}
