//! The commit block: the transaction is complete if and only if this block is in the log.
//!
//! It contains the time of the commit, which distinguishes an old block of an earlier lap of the
//! log from a damaged block of this one. All its fields are in its first 64 bytes, and the rest is
//! written as zeroes, so whatever lies there, as after a power cut that wrote only the first
//! sector, the commit is valid: [`verify`] accepts it too. Linux 6.18 does the same: with a changed
//! byte among the first 64 it refuses the log, with any change behind them it replays the log.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::journal::format::RecordFormat;
use crate::journal::header::{BlockType, Header, RawHeader};
use crate::number::Tid;

/// The length of what counts in the block, with the padding behind it, in bytes.
const HEADER: usize = 64;
const CHECKSUM_OFFSET: usize = 0x10;

/// `struct commit_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCommit {
    h_header: RawHeader,
    h_chksum_type: u8,
    h_chksum_size: u8,
    h_padding: [u8; 2],
    h_chksum: [U32; 8],
    h_commit_sec: U64,
    h_commit_nsec: U32,
}

const _: () = assert!(size_of::<RawCommit>() == 0x3C);
const _: () = assert!(size_of::<RawCommit>() <= HEADER);
const _: () = assert!(std::mem::offset_of!(RawCommit, h_chksum) == CHECKSUM_OFFSET);
const _: () = assert!(std::mem::offset_of!(RawCommit, h_commit_sec) == 0x30);

/// The commit record of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction.
    pub sequence: Tid,
    /// Time of the commit: seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds of the time.
    pub nanoseconds: u32,
    /// Where commit blocks have a checksum of the whole transaction (v1): that checksum, the big
    /// endian CRC-32 of its descriptors and blocks in the order of the log.
    pub transaction_sum: TransactionSum,
}

/// The checksum (v1) in a commit block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionSum {
    /// There is none: all its fields are zero.
    #[default]
    None,
    /// CRC-32.
    Crc32(u32),
    /// Another kind, or a length that does not fit the kind.
    Unknown,
}

/// The kind and the length in bytes of CRC-32 in a commit block.
const CRC32: (u8, u8) = (1, 4);

impl Commit {
    /// Encodes the block, with the checksum that `format` requires.
    #[must_use]
    pub fn encode(&self, format: &RecordFormat) -> Vec<u8> {
        let mut sums = [U32::ZERO; 8];
        let (kind, size) = match self.transaction_sum {
            TransactionSum::Crc32(sum) => {
                sums[0] = sum.into();
                CRC32
            }
            TransactionSum::None | TransactionSum::Unknown => (0, 0),
        };
        let raw = RawCommit {
            h_header: Header {
                block_type: BlockType::Commit,
                sequence: self.sequence,
            }
            .raw(),
            h_chksum_type: kind,
            h_chksum_size: size,
            h_padding: [0; 2],
            h_chksum: sums,
            h_commit_sec: U64::new(self.seconds),
            h_commit_nsec: U32::new(self.nanoseconds),
        };
        let mut block = vec![0; format.block_size];
        raw.write_to_prefix(&mut block)
            .expect("a block is longer than a commit header");
        if format.is_summed() {
            let sum = checksum(format.seed, &block);
            block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_be_bytes());
        }
        block
    }

    /// Decodes a block whose header says that it is a commit; `None` if it is too short. [`verify`]
    /// checks the checksum: even with a wrong one, the time is useful.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawCommit::read_from_prefix(block).ok()?;
        Some(Self {
            sequence: Tid(raw.h_header.h_sequence.get()),
            seconds: raw.h_commit_sec.get(),
            nanoseconds: raw.h_commit_nsec.get(),
            transaction_sum: match (raw.h_chksum_type, raw.h_chksum_size) {
                CRC32 => TransactionSum::Crc32(raw.h_chksum[0].get()),
                (0, 0) if raw.h_chksum[0].get() == 0 => TransactionSum::None,
                _ => TransactionSum::Unknown,
            },
        })
    }

    /// Whether a transaction with this checksum (v1) may be the one that this block ends. Some
    /// writers leave the checksum out.
    #[must_use]
    pub fn has_transaction_sum(&self, sum: u32) -> bool {
        match self.transaction_sum {
            TransactionSum::None => true,
            TransactionSum::Crc32(stored) => stored == sum,
            TransactionSum::Unknown => false,
        }
    }
}

/// Whether a commit block's checksum is right, for the whole block or for its first 64 bytes and
/// zeroes behind them; true if the format has no checksums.
#[must_use]
pub fn verify(format: &RecordFormat, block: &[u8]) -> bool {
    if !format.is_summed() {
        return true;
    }
    let Some(stored) = block.get(CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4) else {
        return false;
    };
    let matches = |block: &[u8]| checksum(format.seed, block).to_be_bytes() == stored;
    matches(block) || matches(&header_alone(block))
}

/// The block that the writer intended, if the bytes behind its header are foreign.
fn header_alone(block: &[u8]) -> Vec<u8> {
    let mut alone = vec![0; block.len()];
    let header = HEADER.min(block.len());
    alone[..header].copy_from_slice(&block[..header]);
    alone
}

/// The checksum of the whole block with its own field as zeroes.
fn checksum(seed: u32, block: &[u8]) -> u32 {
    let (before, rest) = block.split_at(CHECKSUM_OFFSET);
    crc32c(crc32c(crc32c(seed, before), &[0; 4]), &rest[4..])
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::all_formats;
    use super::{Commit, Tid, TransactionSum, verify};

    const COMMIT: Commit = Commit {
        sequence: Tid(40),
        seconds: 1_700_000_000,
        nanoseconds: 5,
        transaction_sum: TransactionSum::None,
    };

    #[test]
    fn goes_round_in_every_format() {
        for format in all_formats() {
            let block = COMMIT.encode(&format);
            assert!(verify(&format, &block));
            let decoded = Commit::decode(&block).expect("it is long enough");
            let time = (decoded.seconds, decoded.nanoseconds);
            assert_eq!((decoded.sequence, time), (Tid(40), (COMMIT.seconds, 5)));
        }
    }

    #[test]
    fn the_sum_of_a_transaction_goes_round() {
        let plain = all_formats().into_iter().find(|format| !format.is_summed());
        let plain = plain.expect("one has no checksums");
        for (transaction_sum, fits) in [
            (TransactionSum::None, true),
            (TransactionSum::Crc32(7), true),
            (TransactionSum::Crc32(8), false),
        ] {
            let commit = Commit {
                transaction_sum,
                ..COMMIT
            };
            let decoded = Commit::decode(&commit.encode(&plain));
            assert_eq!(decoded, Some(commit));
            assert_eq!(commit.has_transaction_sum(7), fits);
        }
        let mut block = COMMIT.encode(&plain);
        block[0x0C] = 3;
        let decoded = Commit::decode(&block).expect("it is long enough");
        assert!(!decoded.has_transaction_sum(0), "another kind of sum");
    }

    #[test]
    fn a_block_with_foreign_bytes_behind_its_header_counts_and_a_damaged_one_does_not() {
        for format in all_formats()
            .into_iter()
            .filter(|format| format.is_summed())
        {
            let block = COMMIT.encode(&format);
            for behind in [512, 64] {
                let mut block = block.clone();
                block[behind..].fill(0xEE);
                assert!(verify(&format, &block), "only what is before was written");
                for byte in [0x33, 0x3F] {
                    let mut block = block.clone();
                    block[byte] ^= 1;
                    assert!(!verify(&format, &block), "byte {byte} was changed");
                }
            }
        }
    }
}
