//! The block of multiple mount protection, which records who uses the file system.
//!
//! A writable mount increments a sequence at intervals; another machine that sees the sequence
//! change must not mount. Two values of the sequence are reserved: clean, and being checked.
//! Format: the kernel's `Documentation/filesystems/ext4/mmp.rst`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::corrupt::Corrupt;

/// The magic number (`EXT4_MMP_MAGIC`).
pub const MAGIC: u32 = 0x004D_4D50;
/// Bytes that are defined; the block may be larger.
pub const SIZE: usize = 1024;
/// The sequence of an unused file system (`EXT4_MMP_SEQ_CLEAN`).
pub const SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;
/// The sequence while a checker runs (`EXT4_MMP_SEQ_FSCK`).
pub const SEQUENCE_CHECKING: u32 = 0xE24D_4D50;
/// The highest sequence of a mount (`EXT4_MMP_SEQ_MAX`).
pub const SEQUENCE_MAX: u32 = 0xE24D_4D4F;

const STRUCTURE: &str = "multiple-mount block";
const CHECKSUM_AT: usize = 0x3FC;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMmp {
    mmp_magic: U32,
    mmp_seq: U32,
    mmp_time: U64,
    mmp_nodename: [u8; 64],
    mmp_bdevname: [u8; 32],
    mmp_check_interval: U16,
    mmp_pad1: U16,
    mmp_pad2: [u8; 904],
    mmp_checksum: U32,
}

const _: () = assert!(std::mem::size_of::<RawMmp>() == SIZE);

/// The use of the file system, as the sequence encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Unused.
    Clean,
    /// In use by a checker.
    Checking,
    /// Mounted, with this sequence; the machine may have crashed since.
    Mounted(u32),
    /// An undefined sequence.
    Unknown(u32),
}

/// A decoded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmp {
    /// The sequence.
    pub sequence: u32,
    /// Time of the last update, in seconds since 1970.
    pub time: u64,
    /// Name of the machine that made it, padded with NUL bytes.
    pub node_name: [u8; 64],
    /// Name of the device there, padded with NUL bytes.
    pub device_name: [u8; 32],
    /// Seconds between updates.
    pub check_interval: u16,
    pad: Box<(U16, [u8; 904], U32)>,
}

impl Mmp {
    /// The block of an unused file system.
    #[must_use]
    pub fn clean(check_interval: u16) -> Self {
        Self {
            sequence: SEQUENCE_CLEAN,
            time: 0,
            node_name: [0; 64],
            device_name: [0; 32],
            check_interval,
            pad: Box::new((U16::ZERO, [0; 904], U32::ZERO)),
        }
    }

    /// Decodes a block; with a seed, also checks its checksum.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the size, the magic number or the checksum is wrong.
    pub fn decode(block: &[u8], seed: Option<u32>) -> Result<Self, Corrupt> {
        let (raw, _) = RawMmp::read_from_prefix(block)
            .map_err(|_| Corrupt::new(STRUCTURE, format!("{} bytes", block.len())))?;
        if raw.mmp_magic.get() != MAGIC {
            let problem = format!("magic is {:#010X}, not {MAGIC:#010X}", raw.mmp_magic.get());
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        let computed = seed.map(|seed| crc32c(seed, &block[..CHECKSUM_AT]));
        if let Some(computed) = computed
            && computed != raw.mmp_checksum.get()
        {
            let stored = raw.mmp_checksum.get();
            return Err(Corrupt::checksum(STRUCTURE, stored, computed));
        }
        Ok(Self {
            sequence: raw.mmp_seq.get(),
            time: raw.mmp_time.get(),
            node_name: raw.mmp_nodename,
            device_name: raw.mmp_bdevname,
            check_interval: raw.mmp_check_interval.get(),
            pad: Box::new((raw.mmp_pad1, raw.mmp_pad2, raw.mmp_checksum)),
        })
    }

    /// Writes the block's first 1024 bytes; with a seed, with their checksum.
    ///
    /// # Panics
    ///
    /// If the block is shorter.
    pub fn encode(&self, block: &mut [u8], seed: Option<u32>) {
        let (pad1, pad2, checksum) = &*self.pad;
        let mut raw = RawMmp {
            mmp_magic: MAGIC.into(),
            mmp_seq: self.sequence.into(),
            mmp_time: self.time.into(),
            mmp_nodename: self.node_name,
            mmp_bdevname: self.device_name,
            mmp_check_interval: self.check_interval.into(),
            mmp_pad1: *pad1,
            mmp_pad2: *pad2,
            mmp_checksum: *checksum,
        };
        if let Some(seed) = seed {
            raw.mmp_checksum = crc32c(seed, &raw.as_bytes()[..CHECKSUM_AT]).into();
        }
        block[..SIZE].copy_from_slice(raw.as_bytes());
    }

    /// The use of the file system.
    #[must_use]
    pub fn usage(&self) -> Use {
        match self.sequence {
            SEQUENCE_CLEAN => Use::Clean,
            SEQUENCE_CHECKING => Use::Checking,
            sequence @ ..=SEQUENCE_MAX => Use::Mounted(sequence),
            sequence => Use::Unknown(sequence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAGIC, Mmp, SEQUENCE_CHECKING, Use};
    use proptest::prelude::*;

    #[test]
    fn the_sequence_tells_who_is_there() {
        let mut mmp = Mmp::clean(5);
        assert_eq!(mmp.usage(), Use::Clean);
        let cases = [
            (SEQUENCE_CHECKING, Use::Checking),
            (7, Use::Mounted(7)),
            (SEQUENCE_CHECKING - 1, Use::Mounted(SEQUENCE_CHECKING - 1)),
            (SEQUENCE_CHECKING + 1, Use::Unknown(SEQUENCE_CHECKING + 1)),
        ];
        for (sequence, usage) in cases {
            mmp.sequence = sequence;
            assert_eq!(mmp.usage(), usage);
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut block = [0; 4096];
        Mmp::clean(5).encode(&mut block, Some(7));
        assert_eq!(
            Mmp::decode(&block, Some(7)),
            Ok(Mmp::decode(&block, None).expect("sound"))
        );
        block[8] ^= 1;
        assert!(Mmp::decode(&block, Some(7)).is_err());
        assert!(Mmp::decode(&block[..1000], None).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(mut block in proptest::collection::vec(any::<u8>(), 1024)) {
            block[..4].copy_from_slice(&MAGIC.to_le_bytes());
            let mut again = vec![0; 1024];
            Mmp::decode(&block, None).expect("no sum").encode(&mut again, None);
            prop_assert_eq!(again, block);
        }
    }
}
