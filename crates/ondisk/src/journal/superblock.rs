//! The journal's superblock: block 0 of the log, 1024 bytes.
//!
//! `start` is the block of the log at which replay begins, or 0 if there is nothing to replay;
//! `sequence` is the transaction expected there (or the next to use). Version 1 ends at `errno`:
//! later bytes are undefined in it.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::journal::feature::{JournalCompat, JournalIncompat, JournalReadOnlyCompat};
use crate::journal::header::{BlockType, MAGIC, RawHeader};
use crate::number::Tid;

/// Bytes of the superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
const STRUCTURE: &str = "journal superblock";
/// The value of `s_checksum_type` for crc32c.
const CHECKSUM_CRC32C: u8 = 4;
/// Blocks of the fast-commit area if the superblock has 0.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
const CHECKSUM_OFFSET: usize = 0xFC;
/// Length of version 1 in bytes.
const VERSION_1_END: usize = 0x24;

/// `journal_superblock_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    s_header: RawHeader,
    s_blocksize: U32,
    s_maxlen: U32,
    s_first: U32,
    s_sequence: U32,
    s_start: U32,
    s_errno: U32,
    s_feature_compat: U32,
    s_feature_incompat: U32,
    s_feature_ro_compat: U32,
    s_uuid: [u8; 16],
    s_nr_users: U32,
    s_dynsuper: U32,
    s_max_transaction: U32,
    s_max_trans_data: U32,
    s_checksum_type: u8,
    s_padding2: [u8; 3],
    s_num_fc_blks: U32,
    s_head: U32,
    s_padding: [U32; 40],
    s_checksum: U32,
    s_users: [u8; 768],
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_feature_compat) == VERSION_1_END);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_head) == 0x58);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, s_checksum) == CHECKSUM_OFFSET);

/// A decoded journal superblock. Bytes without a field here are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// Bytes in a block.
    pub block_size: u32,
    /// Number of blocks of the journal, including this one.
    pub max_len: u32,
    /// The first block of the log.
    pub first: u32,
    /// The transaction expected at `start`, or the next to be used if the log is empty.
    pub sequence: Tid,
    /// The block at which replay begins; 0 if there is nothing to replay.
    pub start: u32,
    /// The error that stopped the journal, as a negative errno; 0 for none.
    pub errno: i32,
    /// Features that a reader may ignore.
    pub compat: JournalCompat,
    /// Features that a reader must know.
    pub incompat: JournalIncompat,
    /// Features that a writer must know.
    pub read_only_compat: JournalReadOnlyCompat,
    /// UUID, the seed of the checksums of all records.
    pub uuid: [u8; 16],
    /// Number of file systems that use the journal; an external one may have several.
    users: u32,
    /// Blocks of the fast-commit area; 0 selects the default.
    pub num_fast_commit_blocks: u32,
    block_type: BlockType,
    raw: [u8; SUPERBLOCK_SIZE],
}

impl JournalSuperblock {
    /// A new, empty journal of `max_len` blocks, as mke2fs creates it.
    #[must_use]
    pub fn new(block_size: u32, max_len: u32, uuid: [u8; 16]) -> Self {
        Self {
            block_size,
            max_len,
            first: 1,
            sequence: Tid(1),
            start: 0,
            errno: 0,
            compat: JournalCompat::empty(),
            incompat: JournalIncompat::empty(),
            read_only_compat: JournalReadOnlyCompat::empty(),
            uuid,
            users: 1,
            num_fast_commit_blocks: 0,
            block_type: BlockType::SuperblockV2,
            raw: [0; SUPERBLOCK_SIZE],
        }
    }

    /// Decodes a superblock and checks everything that does not depend on the rest of the journal.
    ///
    /// # Errors
    ///
    /// If it is no superblock, its checksum is wrong, or its numbers contradict each other.
    pub fn decode(bytes: &[u8; SUPERBLOCK_SIZE]) -> Result<Self, Corrupt> {
        let raw = RawSuperblock::read_from_bytes(bytes).expect("the array has the size");
        if raw.s_header.h_magic.get() != MAGIC {
            return Err(corrupt(format!(
                "magic is {:#010x}",
                raw.s_header.h_magic.get()
            )));
        }
        let block_type = BlockType::of(raw.s_header.h_blocktype.get());
        let superblock = match block_type {
            BlockType::SuperblockV1 => Self::of_version_1(&raw, bytes),
            BlockType::SuperblockV2 => Self::of_version_2(&raw, bytes),
            other => return Err(corrupt(format!("block type is {}", other.number()))),
        };
        superblock.check_checksum(&raw)?;
        superblock.check_shape()?;
        Ok(superblock)
    }

    fn of_version_1(raw: &RawSuperblock, bytes: &[u8; SUPERBLOCK_SIZE]) -> Self {
        Self {
            block_size: raw.s_blocksize.get(),
            max_len: raw.s_maxlen.get(),
            first: raw.s_first.get(),
            sequence: Tid(raw.s_sequence.get()),
            start: raw.s_start.get(),
            errno: raw.s_errno.get().cast_signed(),
            compat: JournalCompat::empty(),
            incompat: JournalIncompat::empty(),
            read_only_compat: JournalReadOnlyCompat::empty(),
            uuid: [0; 16],
            users: 1,
            num_fast_commit_blocks: 0,
            block_type: BlockType::SuperblockV1,
            raw: *bytes,
        }
    }

    fn of_version_2(raw: &RawSuperblock, bytes: &[u8; SUPERBLOCK_SIZE]) -> Self {
        Self {
            compat: JournalCompat::from_bits_retain(raw.s_feature_compat.get()),
            incompat: JournalIncompat::from_bits_retain(raw.s_feature_incompat.get()),
            read_only_compat: JournalReadOnlyCompat::from_bits_retain(
                raw.s_feature_ro_compat.get(),
            ),
            uuid: raw.s_uuid,
            users: raw.s_nr_users.get(),
            num_fast_commit_blocks: raw.s_num_fc_blks.get(),
            block_type: BlockType::SuperblockV2,
            ..Self::of_version_1(raw, bytes)
        }
    }

    fn check_checksum(&self, raw: &RawSuperblock) -> Result<(), Corrupt> {
        let (v2, v3) = (JournalIncompat::CSUM_V2, JournalIncompat::CSUM_V3);
        if self.incompat.contains(v2 | v3)
            || self.is_summed() && self.compat.contains(JournalCompat::CHECKSUM)
        {
            return Err(corrupt("more than one version of checksums is set"));
        }
        if !self.is_summed() {
            return Ok(());
        }
        if raw.s_checksum_type != CHECKSUM_CRC32C {
            return Err(corrupt(format!("checksum type is {}", raw.s_checksum_type)));
        }
        let (stored, computed) = (raw.s_checksum.get(), checksum(&self.raw));
        if stored != computed {
            return Err(Corrupt::checksum(STRUCTURE, stored, computed));
        }
        Ok(())
    }

    fn check_shape(&self) -> Result<(), Corrupt> {
        if !self.block_size.is_power_of_two() || !(1024..=65536).contains(&self.block_size) {
            return Err(corrupt(format!("block size is {}", self.block_size)));
        }
        let end = self.log_end();
        if self.first == 0 || self.first >= end {
            return Err(corrupt(format!(
                "log runs from block {} to {end}",
                self.first
            )));
        }
        if self.start != 0 && !(self.first..end).contains(&self.start) {
            return Err(corrupt(format!(
                "log starts at block {}, outside itself",
                self.start
            )));
        }
        Ok(())
    }

    /// Number of file systems that use the journal; an external one may have several.
    #[must_use]
    pub const fn users(&self) -> u32 {
        self.users
    }

    /// Encodes the superblock, with a checksum if the features require one. Version 1 stays version
    /// 1 until [`JournalSuperblock::upgrade`].
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = RawSuperblock::read_from_bytes(&self.raw).expect("the array has the size");
        raw.s_header.h_magic = U32::new(MAGIC);
        raw.s_header.h_blocktype = U32::new(self.block_type.number());
        raw.s_blocksize = U32::new(self.block_size);
        raw.s_maxlen = U32::new(self.max_len);
        raw.s_first = U32::new(self.first);
        raw.s_sequence = U32::new(self.sequence.0);
        raw.s_start = U32::new(self.start);
        raw.s_errno = U32::new(self.errno.cast_unsigned());
        if self.block_type == BlockType::SuperblockV2 {
            raw.s_feature_compat = U32::new(self.compat.bits());
            raw.s_feature_incompat = U32::new(self.incompat.bits());
            raw.s_feature_ro_compat = U32::new(self.read_only_compat.bits());
            raw.s_uuid = self.uuid;
            raw.s_nr_users = U32::new(self.users);
            raw.s_num_fc_blks = U32::new(self.num_fast_commit_blocks);
        }
        if self.is_summed() {
            raw.s_checksum_type = CHECKSUM_CRC32C;
        }
        let mut bytes: [u8; SUPERBLOCK_SIZE] = zerocopy::transmute!(raw);
        if self.is_summed() {
            let sum = checksum(&bytes);
            bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// Turns on the features that our own log needs: revokes, checksums v3, and 64-bit numbers if
    /// `wide`. The log must be empty. Turns off other checksum versions, asynchronous commits, and
    /// fast commits, of which we write none: with their feature, e2fsck 1.47.0 assumes a longer log
    /// than its writers do, and loses the blocks at its end.
    pub fn upgrade(&mut self, wide: bool) {
        if self.block_type == BlockType::SuperblockV1 {
            self.block_type = BlockType::SuperblockV2;
            self.raw[VERSION_1_END..].fill(0);
        }
        self.compat.remove(JournalCompat::CHECKSUM);
        self.incompat.remove(
            JournalIncompat::CSUM_V2 | JournalIncompat::ASYNC_COMMIT | JournalIncompat::FAST_COMMIT,
        );
        self.incompat
            .insert(JournalIncompat::REVOKE | JournalIncompat::CSUM_V3);
        if wide {
            self.incompat.insert(JournalIncompat::BIT64);
        }
    }

    /// Whether records and this superblock have crc32c checksums.
    #[must_use]
    pub fn is_summed(&self) -> bool {
        self.incompat
            .intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
    }

    /// Blocks at the journal's end that are reserved for fast commits.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u32 {
        match (
            self.incompat.contains(JournalIncompat::FAST_COMMIT),
            self.num_fast_commit_blocks,
        ) {
            (false, _) => 0,
            (true, 0) => DEFAULT_FAST_COMMIT_BLOCKS,
            (true, blocks) => blocks,
        }
    }

    /// The block after the last of the log: the log is the ring from `first` to here.
    #[must_use]
    pub fn log_end(&self) -> u32 {
        self.max_len.saturating_sub(self.fast_commit_blocks())
    }

    /// The first block of the fast-commit area; `None` if there is no room for one. Linux leaves
    /// the block at the log's end unused and starts the area after it (observed in journals that it
    /// wrote).
    #[must_use]
    pub fn first_fast_commit(&self) -> Option<u32> {
        (self.fast_commit_blocks() > 1).then(|| self.log_end().saturating_add(1))
    }
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("JournalSuperblock")
            .field("block_size", &self.block_size)
            .field("max_len", &self.max_len)
            .field("first", &self.first)
            .field("sequence", &self.sequence)
            .field("start", &self.start)
            .field("errno", &self.errno)
            .field("incompat", &self.incompat)
            .finish_non_exhaustive()
    }
}

fn corrupt(problem: impl Into<std::borrow::Cow<'static, str>>) -> Corrupt {
    Corrupt::new(STRUCTURE, problem)
}

/// crc32c from ~0 over all bytes with the checksum's own field as zeroes.
fn checksum(bytes: &[u8; SUPERBLOCK_SIZE]) -> u32 {
    let (before, rest) = bytes.split_at(CHECKSUM_OFFSET);
    crc32c(crc32c(crc32c(u32::MAX, before), &[0; 4]), &rest[4..])
}

#[cfg(test)]
mod tests {
    use super::{JournalCompat, JournalIncompat, JournalSuperblock};

    fn fresh() -> JournalSuperblock {
        JournalSuperblock::new(4096, 1024, [3; 16])
    }

    #[test]
    fn a_fresh_one_goes_round_without_sums() {
        let bytes = fresh().encode();
        assert_eq!(bytes[4..8], 4u32.to_be_bytes());
        assert_eq!(bytes[0xFC..0x100], [0; 4]);
        assert_eq!(JournalSuperblock::decode(&bytes).expect("well formed"), {
            let mut expected = fresh();
            expected.raw = bytes;
            expected
        });
    }

    #[test]
    fn upgrading_sums_it_and_keeps_unknown_bytes_and_features() {
        let mut superblock = fresh();
        superblock.raw[0x5B] = 9;
        superblock.raw[0x3F0] = 8;
        superblock.compat = JournalCompat::from_bits_retain(0x80 | 1);
        superblock.upgrade(true);
        let bytes = superblock.encode();
        let read = JournalSuperblock::decode(&bytes).expect("well formed");
        assert_eq!(read.compat.bits(), 0x80, "checksum v1 gives way");
        assert_eq!(read.incompat.bits(), 0x13);
        assert_eq!((bytes[0x5B], bytes[0x3F0], bytes[0x50]), (9, 8, 4));
        for at in (0..1024).filter(|at| !(0x24..0x2C).contains(at)) {
            let mut damaged = bytes;
            damaged[at] ^= 0x40;
            assert!(JournalSuperblock::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn version_1_is_read_without_features_and_upgraded() {
        let mut bytes = fresh().encode();
        bytes[7] = 3;
        bytes[0x28..0x2C].copy_from_slice(&0x10u32.to_be_bytes());
        let mut read = JournalSuperblock::decode(&bytes).expect("well formed");
        assert_eq!((read.incompat.bits(), read.uuid), (0, [0; 16]));
        assert_eq!(read.encode(), bytes, "untouched");
        read.upgrade(false);
        let again = JournalSuperblock::decode(&read.encode()).expect("well formed");
        assert_eq!(
            again.incompat,
            JournalIncompat::REVOKE | JournalIncompat::CSUM_V3
        );
    }

    #[test]
    fn absurd_shapes_are_refused() {
        let cases: [fn(&mut JournalSuperblock); 6] = [
            |superblock| superblock.block_size = 512,
            |superblock| superblock.block_size = 4097,
            |superblock| superblock.first = 0,
            |superblock| superblock.first = 1024,
            |superblock| superblock.start = 1024,
            |superblock| {
                superblock.incompat = JournalIncompat::FAST_COMMIT;
                superblock.num_fast_commit_blocks = 2000;
            },
        ];
        for (number, spoil) in cases.iter().enumerate() {
            let mut superblock = fresh();
            spoil(&mut superblock);
            assert!(
                JournalSuperblock::decode(&superblock.encode()).is_err(),
                "case {number}"
            );
        }
    }

    #[test]
    fn the_fast_commit_area_is_not_log() {
        let mut superblock = fresh();
        superblock.incompat.insert(JournalIncompat::FAST_COMMIT);
        assert_eq!(superblock.log_end(), 1024 - 256);
        superblock.num_fast_commit_blocks = 100;
        assert_eq!(superblock.log_end(), 924);
        assert_eq!(superblock.first_fast_commit(), Some(925));
        superblock.num_fast_commit_blocks = 1;
        assert_eq!(superblock.first_fast_commit(), None);
    }
}
