//! The twelve bytes at the start of every block of the log except logged blocks.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::Tid;

/// The first word of every journal block. A logged block that begins with it is escaped.
pub const MAGIC: u32 = 0xC03B_3998;

/// Bytes of a header.
pub const HEADER_SIZE: usize = size_of::<RawHeader>();

/// `journal_header_t`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) h_magic: U32,
    pub(super) h_blocktype: U32,
    pub(super) h_sequence: U32,
}

const _: () = assert!(size_of::<RawHeader>() == 12);

/// The kind of a journal block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Describes the blocks that follow it.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// The journal's superblock in its first version (ext3).
    SuperblockV1,
    /// The journal's superblock.
    SuperblockV2,
    /// Lists blocks that must not be replayed.
    Revoke,
    /// A number that no version of the format defines.
    Unknown(u32),
}

impl BlockType {
    /// The type of a number on disk.
    #[must_use]
    pub const fn of(number: u32) -> Self {
        match number {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            other => Self::Unknown(other),
        }
    }

    /// The number on disk.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
            Self::Unknown(other) => other,
        }
    }
}

/// The header of a journal block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the block.
    pub block_type: BlockType,
    /// The transaction it belongs to.
    pub sequence: Tid,
}

impl Header {
    /// Decodes the header of `block`; `None` if the block has no header, which is possible past the
    /// end of a log.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::read_from_prefix(block).ok()?;
        (raw.h_magic.get() == MAGIC).then(|| Self {
            block_type: BlockType::of(raw.h_blocktype.get()),
            sequence: Tid(raw.h_sequence.get()),
        })
    }

    /// Writes the header to the front of `block`, which must be long enough.
    pub fn encode(self, block: &mut [u8]) {
        self.raw()
            .write_to_prefix(block)
            .expect("a journal block is longer than its header");
    }

    pub(super) fn raw(self) -> RawHeader {
        RawHeader {
            h_magic: U32::new(MAGIC),
            h_blocktype: U32::new(self.block_type.number()),
            h_sequence: U32::new(self.sequence.0),
        }
    }
}

/// Whether a logged block begins with the journal's magic number, and must therefore be escaped.
#[must_use]
pub fn begins_with_magic(block: &[u8]) -> bool {
    block.starts_with(&MAGIC.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::{BlockType, Header, Tid, begins_with_magic};

    #[test]
    fn goes_round_and_refuses_other_bytes() {
        let header = Header {
            block_type: BlockType::Revoke,
            sequence: Tid(0xDEAD_BEEF),
        };
        let mut block = [0; 1024];
        assert_eq!(Header::decode(&block), None);
        header.encode(&mut block);
        assert_eq!(Header::decode(&block), Some(header));
        assert_eq!(block[..8], [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 5]);
        assert!(begins_with_magic(&block));
        assert_eq!(Header::decode(&block[..11]), None);
    }

    #[test]
    fn types_keep_their_numbers() {
        for number in 0..10 {
            assert_eq!(BlockType::of(number).number(), number);
        }
    }
}
