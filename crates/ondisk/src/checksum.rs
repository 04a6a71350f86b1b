//! The checksum functions of the format, and how a file system uses them. (CRC-32 is found in
//! journals only, where it preceded crc32c.)
//!
//! The functions work on the raw register: state in, state out, without inversion at either end,
//! as in all of ext4 and jbd2. A chain of calls over pieces equals one call over the whole.
//!
//! [`Checksums`] is the regime of a file system: no checksums, the old 16-bit checksums of group
//! descriptors, or crc32c with a seed on all metadata. Format: the kernel's
//! `Documentation/filesystems/ext4/checksums.rst`.

use crc_fast::{CrcAlgorithm, Digest};

use crate::feature::ReadOnlyCompat;
use crate::number::InodeNumber;
use crate::superblock::Superblock;

/// The initial state of most checksums of the format: ~0.
pub const INITIAL: u32 = u32::MAX;

/// Bytes below which the table method is faster: the vector code has a higher fixed cost.
const SHORT: usize = 16;

/// CRC-32C of `bytes`, from register to register.
#[must_use]
pub fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < SHORT {
        return short_crc32c(state, bytes);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(bytes);
    u32::try_from(digest.get_state()).expect("the register of a 32-bit checksum has 32 bits")
}

/// CRC-32C by tables: eight bytes a step, each looked up in the table for its distance from the end
/// of the step.
fn short_crc32c(state: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<8>();
    let state = steps.iter().fold(state, |state, step| {
        let word = u64::from_le_bytes(*step) ^ u64::from(state);
        let looked_up = word
            .to_le_bytes()
            .into_iter()
            .zip(CRC32C_TABLES.iter().rev());
        looked_up.fold(0, |sum, (byte, table)| sum ^ table[usize::from(byte)])
    });
    rest.iter().fold(state, |state, &byte| {
        let [low, ..] = state.to_le_bytes();
        CRC32C_TABLES[0][usize::from(low ^ byte)] ^ (state >> 8)
    })
}

/// CRC-32 (0x04C1_1DB7, the most significant bit first) of `bytes`, from register to register.
#[must_use]
pub fn crc32(state: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Mpeg2, u64::from(state));
    digest.update(bytes);
    u32::try_from(digest.get_state()).expect("the register of a 32-bit checksum has 32 bits")
}

/// CRC-16 (reflected 0x8005) of `bytes`, from register to register.
#[must_use]
pub fn crc16(state: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(state, |state, &byte| {
        let [low, _] = state.to_le_bytes();
        CRC16_TABLE[usize::from(low ^ byte)] ^ (state >> 8)
    })
}

/// Table `n` maps a byte to its contribution to the register, `n` bytes before the end.
static CRC32C_TABLES: [[u32; 256]; 8] = crc32c_tables();
static CRC16_TABLE: [u16; 256] = crc16_table();

const fn crc32c_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut distance = 0;
        while distance < 8 {
            let mut bit = 0;
            while bit < 8 {
                register = (register >> 1) ^ (0x82F6_3B78 * (register & 1));
                bit += 1;
            }
            tables[distance][byte] = register;
            distance += 1;
        }
        byte += 1;
    }
    tables
}

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ (0xA001 * (register & 1));
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

/// The checksum regime of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// No metadata has checksums.
    None,
    /// Only group descriptors have checksums, by crc16 (`uninit_bg`).
    DescriptorsOnly {
        /// The crc16 state after the UUID, starting from ~0.
        uuid_state: u16,
    },
    /// All metadata has crc32c checksums (`metadata_csum`).
    Metadata {
        /// The initial state of all checksums except the superblock's.
        seed: u32,
    },
}

impl Checksums {
    /// The regime that a superblock's features select.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        let features = &superblock.features;
        if features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM) {
            let seed = superblock.metadata_checksum_seed();
            Self::Metadata { seed }
        } else if features.has_read_only_compat(ReadOnlyCompat::GDT_CSUM) {
            Self::DescriptorsOnly {
                uuid_state: crc16(u16::MAX, &superblock.uuid),
            }
        } else {
            Self::None
        }
    }

    /// The crc32c seed; `None` without `metadata_csum`.
    #[must_use]
    pub fn seed(self) -> Option<u32> {
        match self {
            Self::Metadata { seed } => Some(seed),
            Self::None | Self::DescriptorsOnly { .. } => None,
        }
    }

    /// Whether group descriptors have checksums, which the `UNINIT` flags require.
    #[must_use]
    pub fn protects_descriptors(self) -> bool {
        self != Self::None
    }
}

/// What the checksums of an inode and of its blocks begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeSeed {
    /// The seed of the file system.
    pub seed: u32,
    /// The inode.
    pub inode: InodeNumber,
    /// The inode's generation.
    pub generation: u32,
}

impl InodeSeed {
    /// That of an inode of this generation, in a file system with this seed.
    #[must_use]
    pub const fn new(seed: u32, inode: InodeNumber, generation: u32) -> Self {
        Self {
            seed,
            inode,
            generation,
        }
    }

    /// The state: crc32c of the number and the generation, from the seed.
    #[must_use]
    pub fn state(self) -> u32 {
        let mut input = [0; 8];
        input[..4].copy_from_slice(&self.inode.get().to_le_bytes());
        input[4..].copy_from_slice(&self.generation.to_le_bytes());
        crc32c(self.seed, &input)
    }
}

#[cfg(test)]
mod tests {
    use super::{INITIAL, crc16, crc32, crc32c};

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn answers_the_catalogued_check_values() {
        assert_eq!(!crc32c(u32::MAX, CHECK), 0xE306_9283);
        assert_eq!(crc16(0, CHECK), 0xBB3D);
        assert_eq!(crc32(INITIAL, CHECK), 0x0376_E6E7);
        let (head, tail) = CHECK.split_at(4);
        assert_eq!(crc32(crc32(INITIAL, head), tail), 0x0376_E6E7);
    }

    /// CRC-32C bit by bit, from the polynomial alone.
    fn slow_crc32c(state: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(state, |state, &byte| {
            (0..8).fold(state ^ u32::from(byte), |register, _| {
                (register >> 1) ^ (0x82F6_3B78 * (register & 1))
            })
        })
    }

    #[test]
    fn pieces_chain_to_the_whole_at_every_cut() {
        let bytes: Vec<u8> = (0u32..600)
            .map(|i| (i * 31 % 251).to_le_bytes()[0])
            .collect();
        let whole = slow_crc32c(7, &bytes);
        for cut in 0..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(crc32c(7, head), slow_crc32c(7, head), "{cut} bytes");
            assert_eq!(crc32c(crc32c(7, head), tail), whole, "cut at {cut}");
        }
    }
}
