//! Descriptor blocks: tags with the home locations of the blocks that follow in the log.
//!
//! A tag's layout depends on the features (see [`RecordFormat`]): v3 tags have flags and checksums
//! at other offsets than older ones. The first tag of a block is followed by the UUID.

use bitflags::bitflags;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::journal::format::{RecordChecksum, RecordFormat, UUID_SIZE};
use crate::journal::header::{BlockType, HEADER_SIZE, Header};
use crate::number::{BlockNumber, Tid};

bitflags! {
    /// The flags of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct TagFlags: u32 {
        /// The block begins with the journal's magic number; the log has zeroes in its place.
        const ESCAPE = 1;
        /// No UUID follows the tag.
        const SAME_UUID = 2;
        /// Unused by every known writer.
        const DELETED = 4;
        /// The last tag of this descriptor.
        const LAST = 8;
    }
}

/// The description of one logged block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The home location of the block.
    pub block: BlockNumber,
    /// See [`TagFlags`].
    pub flags: TagFlags,
    /// Checksum of the block, made by [`RecordFormat::data_checksum`].
    pub checksum: u32,
}

/// `journal_block_tag3_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTag3 {
    t_blocknr: U32,
    t_flags: U32,
    t_blocknr_high: U32,
    t_checksum: U32,
}

/// `journal_block_tag_t` without its optional last field.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTag {
    t_blocknr: U32,
    t_checksum: U16,
    t_flags: U16,
}

const _: () = assert!(size_of::<RawTag3>() == 16 && size_of::<RawTag>() == 8);

impl Tag {
    /// Decodes a tag from `bytes`, of exactly [`RecordFormat::tag_size`].
    fn decode(format: &RecordFormat, bytes: &[u8]) -> Option<Self> {
        let (low, high, flags, checksum) = if format.checksum == RecordChecksum::V3 {
            let (raw, _) = RawTag3::read_from_prefix(bytes).ok()?;
            let high = if format.wide {
                raw.t_blocknr_high.get()
            } else {
                0
            };
            (
                raw.t_blocknr.get(),
                high,
                raw.t_flags.get(),
                raw.t_checksum.get(),
            )
        } else {
            let (raw, rest) = RawTag::read_from_prefix(bytes).ok()?;
            let high = if format.wide {
                U32::read_from_prefix(rest).ok()?.0.get()
            } else {
                0
            };
            let checksum = match format.checksum {
                RecordChecksum::V2 => u32::from(raw.t_checksum.get()),
                RecordChecksum::None | RecordChecksum::V3 => 0,
            };
            (
                raw.t_blocknr.get(),
                high,
                u32::from(raw.t_flags.get()),
                checksum,
            )
        };
        Some(Self {
            block: BlockNumber(u64::from(high) << 32 | u64::from(low)),
            flags: TagFlags::from_bits_retain(flags),
            checksum,
        })
    }

    /// Writes the tag to `bytes`, of exactly [`RecordFormat::tag_size`].
    fn encode(&self, format: &RecordFormat, bytes: &mut [u8]) {
        let [h3, h2, h1, h0, low @ ..] = self.block.get().to_be_bytes();
        let (high, low) = (U32::from_bytes([h3, h2, h1, h0]), U32::from_bytes(low));
        let fits = "the caller made room for the tag";
        if format.checksum == RecordChecksum::V3 {
            let raw = RawTag3 {
                t_blocknr: low,
                t_flags: U32::new(self.flags.bits()),
                t_blocknr_high: high,
                t_checksum: U32::new(self.checksum),
            };
            raw.write_to_prefix(bytes).expect(fits);
            return;
        }
        let narrow = |word: u32| U16::new(u16::try_from(word & 0xFFFF).expect("16 bits"));
        let raw = RawTag {
            t_blocknr: low,
            t_checksum: narrow(self.checksum),
            t_flags: narrow(self.flags.bits()),
        };
        raw.write_to_prefix(bytes).expect(fits);
        if format.wide {
            high.write_to_prefix(&mut bytes[size_of::<RawTag>()..])
                .expect(fits);
        }
    }
}

/// The tags of a descriptor block, up to the last one: marked as such or, in a full block, followed
/// by too little room for another.
#[must_use]
pub fn tags(format: &RecordFormat, block: &[u8]) -> Vec<Tag> {
    let mut room = &block[..block.len().saturating_sub(format.tail_size())];
    room = room.get(HEADER_SIZE..).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((bytes, rest)) = room.split_at_checked(format.tag_size()) {
        let Some(tag) = Tag::decode(format, bytes) else {
            break;
        };
        found.push(tag);
        if tag.flags.contains(TagFlags::LAST) {
            break;
        }
        let uuid = if tag.flags.contains(TagFlags::SAME_UUID) {
            0
        } else {
            UUID_SIZE
        };
        room = rest.get(uuid..).unwrap_or_default();
    }
    found
}

/// Builds one descriptor block.
#[derive(Debug)]
pub struct DescriptorWriter {
    format: RecordFormat,
    block: Vec<u8>,
    used: usize,
    uuid: [u8; UUID_SIZE],
    last: Option<(usize, Tag)>,
}

impl DescriptorWriter {
    /// An empty block of this transaction, for the journal with this UUID.
    #[must_use]
    pub fn new(format: &RecordFormat, sequence: Tid, uuid: [u8; UUID_SIZE]) -> Self {
        let mut block = vec![0; format.block_size];
        Header {
            block_type: BlockType::Descriptor,
            sequence,
        }
        .encode(&mut block);
        Self {
            format: *format,
            block,
            used: HEADER_SIZE,
            uuid,
            last: None,
        }
    }

    /// Adds a tag; the writer sets the flags for UUID and end. Returns false if there is no room.
    #[must_use]
    pub fn push(&mut self, block: BlockNumber, escaped: bool, checksum: u32) -> bool {
        let size = self.format.tag_size();
        let uuid_size = if self.last.is_none() { UUID_SIZE } else { 0 };
        if self.used + size + uuid_size > self.block.len() - self.format.tail_size() {
            return false;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, self.last.is_some());
        let tag = Tag {
            block,
            flags,
            checksum,
        };
        tag.encode(&self.format, &mut self.block[self.used..self.used + size]);
        self.last = Some((self.used, tag));
        self.used += size;
        self.block[self.used..self.used + uuid_size].copy_from_slice(&self.uuid[..uuid_size]);
        self.used += uuid_size;
        true
    }

    /// Returns the finished block with its last tag marked; there must be one.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let (at, mut tag) = self
            .last
            .expect("a descriptor is begun for a block to describe");
        tag.flags.insert(TagFlags::LAST);
        tag.encode(
            &self.format,
            &mut self.block[at..at + self.format.tag_size()],
        );
        self.format.stamp_tail(&mut self.block);
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::all_formats;
    use super::{BlockNumber, DescriptorWriter, TagFlags, Tid, tags};

    #[test]
    fn a_full_block_goes_round() {
        for format in all_formats() {
            let mut writer = DescriptorWriter::new(&format, Tid(9), [7; 16]);
            let home = |number: usize| {
                let low = 0xFFFF_0000 + number as u64;
                BlockNumber(if format.wide { 1 << 40 | low } else { low })
            };
            let mut count = 0;
            while writer.push(home(count), count % 3 == 0, 0xABCD_0000 + count as u32) {
                count += 1;
            }
            assert_eq!(count, format.tags_per_block(), "{format:?}");
            let block = writer.finish();
            assert!(format.verify_tail(&block));
            let read = tags(&format, &block);
            assert_eq!(read.len(), count);
            for (number, tag) in read.iter().enumerate() {
                assert_eq!(tag.block, home(number));
                assert_eq!(tag.flags.contains(TagFlags::ESCAPE), number % 3 == 0);
                assert_eq!(tag.flags.contains(TagFlags::SAME_UUID), number != 0);
                assert_eq!(tag.flags.contains(TagFlags::LAST), number + 1 == count);
            }
        }
    }

    #[test]
    fn garbage_gives_a_bounded_list() {
        for format in all_formats() {
            let found = tags(&format, &vec![0xF7; format.block_size]);
            assert!(found.len() <= format.block_size / format.tag_size());
            assert!(tags(&format, &[0; 5]).is_empty());
        }
    }
}
