//! The layout and the checksums of the records of one journal, derived once from its features.

use crate::checksum::crc32c;
use crate::journal::feature::JournalIncompat;
use crate::journal::header::HEADER_SIZE;
use crate::journal::superblock::JournalSuperblock;
use crate::number::Tid;

/// Bytes of the checksum at the end of descriptor and revoke blocks.
const TAIL_SIZE: usize = 4;
/// Bytes of the UUID that follows the first tag of a descriptor.
pub(super) const UUID_SIZE: usize = 16;
/// Bytes of a revoke block before its first record.
pub(super) const REVOKE_HEADER_SIZE: usize = 16;

/// The checksums of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordChecksum {
    /// None (with checksum v1, only the commit block has one).
    None,
    /// crc32c on every record; tags have the low 16 bits.
    V2,
    /// crc32c on every record; tags have all 32 bits.
    V3,
}

/// The layout of the records of one journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFormat {
    /// Bytes in a block of the journal, the same as of the file system.
    pub block_size: usize,
    /// Whether block numbers have 64 bits.
    pub wide: bool,
    /// The checksums of records.
    pub checksum: RecordChecksum,
    /// The initial state of all checksums: crc32c of the journal's UUID.
    pub seed: u32,
}

impl RecordFormat {
    /// The format that a journal's superblock selects.
    #[must_use]
    pub fn of(superblock: &JournalSuperblock) -> Self {
        let features = superblock.incompat;
        let checksum = if features.contains(JournalIncompat::CSUM_V3) {
            RecordChecksum::V3
        } else if features.contains(JournalIncompat::CSUM_V2) {
            RecordChecksum::V2
        } else {
            RecordChecksum::None
        };
        Self {
            block_size: superblock.block_size as usize,
            wide: features.contains(JournalIncompat::BIT64),
            checksum,
            seed: crc32c(u32::MAX, &superblock.uuid),
        }
    }

    /// Whether descriptor, revoke and commit blocks have checksums.
    #[must_use]
    pub fn is_summed(&self) -> bool {
        self.checksum != RecordChecksum::None
    }

    /// Bytes at the end of a descriptor or revoke block that records must not use.
    #[must_use]
    pub fn tail_size(&self) -> usize {
        if self.is_summed() { TAIL_SIZE } else { 0 }
    }

    /// Bytes of one tag.
    #[must_use]
    pub fn tag_size(&self) -> usize {
        let narrow = if self.wide { 12 } else { 8 };
        match self.checksum {
            RecordChecksum::None => narrow,
            RecordChecksum::V2 => narrow + 2,
            RecordChecksum::V3 => 16,
        }
    }

    /// Tags in a descriptor block in which only the first tag has the UUID, as pext4 writes them.
    #[must_use]
    pub fn tags_per_block(&self) -> usize {
        (self.block_size - HEADER_SIZE - UUID_SIZE - self.tail_size()) / self.tag_size()
    }

    /// Bytes of one revoke record.
    #[must_use]
    pub fn revoke_size(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Revoke records in a block.
    #[must_use]
    pub fn revokes_per_block(&self) -> usize {
        (self.block_size - REVOKE_HEADER_SIZE - self.tail_size()) / self.revoke_size()
    }

    /// The log blocks of a transaction as pext4 writes it: those that it logs, the descriptor and
    /// revoke blocks for what it logs and revokes, and the commit block.
    #[must_use]
    pub fn footprint(&self, blocks: usize, revokes: usize) -> usize {
        blocks
            .saturating_add(blocks.div_ceil(self.tags_per_block()))
            .saturating_add(revokes.div_ceil(self.revokes_per_block()))
            .saturating_add(1)
    }

    /// The checksum of a logged block *as it is in the log*, that is, after escaping, in the form
    /// of a tag's field: 0 without checksums, 16 bits with v2.
    #[must_use]
    pub fn data_checksum(&self, tid: Tid, logged: &[u8]) -> u32 {
        let sum = || crc32c(crc32c(self.seed, &tid.0.to_be_bytes()), logged);
        match self.checksum {
            RecordChecksum::None => 0,
            RecordChecksum::V2 => sum() & 0xFFFF,
            RecordChecksum::V3 => sum(),
        }
    }

    /// Stores the checksum at the end of a descriptor or revoke block, if the format has one.
    pub fn stamp_tail(&self, block: &mut [u8]) {
        if self.is_summed() {
            let at = block.len() - TAIL_SIZE;
            let sum = self.tail_checksum(&block[..at]);
            block[at..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right, or not required.
    #[must_use]
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        if !self.is_summed() {
            return true;
        }
        block
            .split_last_chunk()
            .is_some_and(|(body, tail): (&[u8], &[u8; TAIL_SIZE])| {
                self.tail_checksum(body) == u32::from_be_bytes(*tail)
            })
    }

    /// The checksum of the whole block with the tail as zeroes.
    fn tail_checksum(&self, body: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, body), &[0; TAIL_SIZE])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{RecordChecksum, RecordFormat, Tid};

    /// All layouts, with 1 KiB blocks.
    pub(in crate::journal) fn all_formats() -> Vec<RecordFormat> {
        let mut formats = Vec::new();
        for wide in [false, true] {
            for checksum in [RecordChecksum::None, RecordChecksum::V2, RecordChecksum::V3] {
                formats.push(RecordFormat {
                    block_size: 1024,
                    wide,
                    checksum,
                    seed: 77,
                });
            }
        }
        formats
    }

    #[test]
    fn tags_have_the_documented_sizes() {
        let sizes: Vec<_> = all_formats().iter().map(RecordFormat::tag_size).collect();
        assert_eq!(sizes, [8, 10, 16, 12, 14, 16]);
    }

    #[test]
    fn a_footprint_counts_what_describes_the_blocks() {
        let format = RecordFormat {
            block_size: 4096,
            wide: true,
            checksum: RecordChecksum::V3,
            seed: 0,
        };
        assert_eq!(
            (format.tags_per_block(), format.revokes_per_block()),
            (254, 509)
        );
        assert_eq!(format.footprint(0, 0), 1);
        assert_eq!(format.footprint(254, 1), 254 + 1 + 1 + 1);
        assert_eq!(format.footprint(255, 510), 255 + 2 + 2 + 1);
    }

    #[test]
    fn a_tail_notices_every_byte() {
        for format in all_formats().into_iter().filter(RecordFormat::is_summed) {
            let mut block = vec![5; format.block_size];
            format.stamp_tail(&mut block);
            assert!(format.verify_tail(&block));
            for at in 0..block.len() {
                block[at] ^= 1;
                assert!(!format.verify_tail(&block), "byte {at} of {format:?}");
                block[at] ^= 1;
            }
        }
    }

    #[test]
    fn a_data_sum_depends_on_the_transaction() {
        for format in all_formats().into_iter().filter(RecordFormat::is_summed) {
            let logged = [9; 1024];
            assert_ne!(
                format.data_checksum(Tid(1), &logged),
                format.data_checksum(Tid(2), &logged)
            );
        }
    }
}
