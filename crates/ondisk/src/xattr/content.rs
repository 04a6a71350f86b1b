//! What an attribute block contains, as bytes without the gap between entries and values: to
//! compare it with other blocks, and to write it into one.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::list::{Encoded, decode_list};
use super::replace::{Replaced, replace_in_list};
use super::{Attribute, BLOCK_HEADER_SIZE, BLOCK_STRUCTURE, MAGIC, RawHeader, content_hash};
use crate::corrupt::Corrupt;

/// The content of an attribute block without the gap between entries and values, most of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub(super) list: Encoded,
}

impl Content {
    /// A list that begins behind the room for the block's header, and this header; its checksum is
    /// zero.
    pub(super) fn new(mut list: Encoded, references: u32, hash: u32) -> Self {
        RawHeader {
            h_magic: U32::new(MAGIC),
            h_refcount: U32::new(references),
            h_blocks: U32::new(1),
            h_hash: U32::new(hash),
            h_checksum: U32::new(0),
            h_reserved: [U32::new(0); 3],
        }
        .write_to_prefix(list.front_mut())
        .expect("the list was placed behind a header");
        Self { list }
    }

    /// The hash of the block; 0 if the block must not be shared.
    #[must_use]
    pub fn hash(&self) -> u32 {
        content_hash(self.list.front())
    }

    /// The attributes.
    ///
    /// # Errors
    ///
    /// None for content that was made here.
    pub fn attributes(&self) -> Result<Vec<Attribute>, Corrupt> {
        decode_list(self.list.region(), BLOCK_HEADER_SIZE, BLOCK_STRUCTURE)
    }

    /// This content with another value of an attribute: as [`super::replace_value`] on the block.
    #[must_use]
    pub fn replace_value(&self, new: &Attribute) -> Option<Replaced> {
        replace_in_list(self.list.region(), new)
    }

    /// Whether another content has the same attributes; the reference counts may differ.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.hash() == other.hash() && self.list.is_same(&other.list, BLOCK_HEADER_SIZE)
    }

    /// Whether a block contains these attributes at the offsets of [`Self::put_into`]; the
    /// reference counts, the checksums and the gaps may differ.
    #[must_use]
    pub fn is_in(&self, block: &[u8]) -> bool {
        let pair = (
            RawHeader::ref_from_prefix(block),
            RawHeader::ref_from_prefix(self.list.front()),
        );
        let (Ok((one, _)), Ok((other, _))) = pair else {
            return false;
        };
        one.h_magic == other.h_magic
            && one.h_blocks == other.h_blocks
            && one.h_hash == other.h_hash
            && self.list.is_in(block, BLOCK_HEADER_SIZE)
    }

    /// Writes the content into a new block.
    ///
    /// # Panics
    ///
    /// If the block has another size than the content was made for.
    pub fn put_into(&self, block: &mut [u8]) {
        self.list.put_into(block);
    }

    /// Writes the content into an attribute block in place of what is there.
    ///
    /// # Panics
    ///
    /// As [`Self::put_into`].
    pub fn replace_in(&self, block: &mut [u8]) {
        self.list.replace_in(block, BLOCK_HEADER_SIZE);
    }
}
