//! Revoke blocks: numbers of blocks whose earlier versions in the log must not be replayed.
//!
//! A record in transaction N suppresses versions of N and before. It is written when a metadata
//! block is freed, since the block may then be reused for data that is not logged.

use crate::corrupt::Corrupt;
use crate::journal::format::{REVOKE_HEADER_SIZE, RecordFormat};
use crate::journal::header::{BlockType, HEADER_SIZE, Header};
use crate::number::{BlockNumber, Tid};

/// The block numbers in a revoke block.
///
/// # Errors
///
/// If the byte count is impossible.
pub fn records<'a>(
    format: &RecordFormat,
    block: &'a [u8],
) -> Result<impl Iterator<Item = BlockNumber> + use<'a>, Corrupt> {
    let used = block
        .get(HEADER_SIZE..REVOKE_HEADER_SIZE)
        .and_then(|count| count.try_into().ok())
        .map(|count| u32::from_be_bytes(count) as usize);
    let end = block.len().saturating_sub(format.tail_size());
    let bytes = used
        .filter(|&used| used <= end)
        .and_then(|used| block.get(REVOKE_HEADER_SIZE..used))
        .ok_or_else(|| Corrupt::new("revoke block", "its count of bytes does not fit the block"))?;
    Ok(bytes.chunks_exact(format.revoke_size()).map(|record| {
        BlockNumber(
            record
                .iter()
                .fold(0, |number, &byte| number << 8 | u64::from(byte)),
        )
    }))
}

/// Builds one revoke block.
#[derive(Debug)]
pub struct RevokeWriter {
    format: RecordFormat,
    block: Vec<u8>,
    used: usize,
}

impl RevokeWriter {
    /// An empty block of this transaction.
    #[must_use]
    pub fn new(format: &RecordFormat, sequence: Tid) -> Self {
        let mut block = vec![0; format.block_size];
        Header {
            block_type: BlockType::Revoke,
            sequence,
        }
        .encode(&mut block);
        Self {
            format: *format,
            block,
            used: REVOKE_HEADER_SIZE,
        }
    }

    /// Adds a record; returns false if there is no room.
    #[must_use]
    pub fn push(&mut self, revoked: BlockNumber) -> bool {
        let size = self.format.revoke_size();
        let end = self.block.len() - self.format.tail_size();
        if self.used + size > end {
            return false;
        }
        let number = revoked.get().to_be_bytes();
        self.block[self.used..self.used + size].copy_from_slice(&number[8 - size..]);
        self.used += size;
        true
    }

    /// Returns the finished block.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let used = u32::try_from(self.used).expect("a block has at most 64 KiB");
        self.block[HEADER_SIZE..REVOKE_HEADER_SIZE].copy_from_slice(&used.to_be_bytes());
        self.format.stamp_tail(&mut self.block);
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::all_formats;
    use super::{BlockNumber, RevokeWriter, Tid, records};

    #[test]
    fn a_full_block_goes_round() {
        for format in all_formats() {
            let mut writer = RevokeWriter::new(&format, Tid(3));
            let mut written = Vec::new();
            while writer.push(BlockNumber(0xF000_0000 + written.len() as u64)) {
                written.push(BlockNumber(0xF000_0000 + written.len() as u64));
            }
            assert_eq!(written.len(), format.revokes_per_block());
            let block = writer.finish();
            assert!(format.verify_tail(&block));
            let read: Vec<_> = records(&format, &block).expect("well formed").collect();
            assert_eq!(read, written);
        }
    }

    #[test]
    fn eleven_wide_records_fill_104_bytes() {
        let format = all_formats()
            .into_iter()
            .rfind(|format| format.wide)
            .expect("there is one");
        let mut writer = RevokeWriter::new(&format, Tid(3));
        (0..11).for_each(|number| assert!(writer.push(BlockNumber(number))));
        assert_eq!(writer.finish()[12..16], 104u32.to_be_bytes());
    }

    #[test]
    fn an_absurd_count_is_refused() {
        for format in all_formats() {
            for count in [0u32, 15, 1025, u32::MAX] {
                let mut block = RevokeWriter::new(&format, Tid(3)).finish();
                block[12..16].copy_from_slice(&count.to_be_bytes());
                assert!(records(&format, &block).is_err(), "count {count}");
            }
        }
    }
}
