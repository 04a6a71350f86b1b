//! Blocks of the orphan file: slots for the numbers of inodes that recovery must truncate or
//! delete.
//!
//! Every block of the file is an array of 32-bit slots, 0 for a free one, and ends with a magic
//! number and a checksum, which depends on the block's location on the device. Format: the kernel's
//! `Documentation/filesystems/ext4/orphan.rst`.

use crate::bytes::{read_u32, write_u32};
use crate::checksum::{InodeSeed, crc32c};
use crate::corrupt::Corrupt;
use crate::number::{BlockNumber, InodeNumber};

/// The magic number after the slots (`EXT4_ORPHAN_BLOCK_MAGIC`).
pub const MAGIC: u32 = 0x0B10_CA04;
/// The most blocks of an orphan file that programs here read. mke2fs makes up to 512 unless asked
/// for more, and e2fsck accepts any number; Linux mounts none of more than 512 blocks for writing,
/// older versions up to 8 MiB.
pub const MAX_BLOCKS: u64 = 1 << 16;
/// Bytes after the slots.
pub const TAIL_SIZE: usize = 8;

const STRUCTURE: &str = "orphan file block";

/// Slots in a block of this size.
#[must_use]
pub const fn slots_per_block(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL_SIZE) / 4
}

/// Number of blocks of the orphan file in a new file system, before rounding up to clusters.
#[must_use]
pub fn default_blocks(blocks_count: u64) -> u64 {
    match blocks_count {
        ..0x2_0000 => 32,
        0x2_0000..0x20_0000 => blocks_count / 4096,
        _ => 512,
    }
}

/// A decoded block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OrphanBlock {
    /// The slots: inode numbers, 0 for a free slot.
    pub slots: Vec<u32>,
}

impl OrphanBlock {
    /// Decodes a block of orphan file `inode` whose device block is `home`; with a seed, also
    /// checks its checksum.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the magic number or the checksum is wrong.
    pub fn decode(
        block: &[u8],
        inode: InodeNumber,
        home: BlockNumber,
        seed: Option<InodeSeed>,
    ) -> Result<Self, Corrupt> {
        let placed = |corrupt: Corrupt| corrupt.in_inode(inode).in_block(home);
        let fail = |problem: String| placed(Corrupt::new(STRUCTURE, problem));
        let slots_end = 4 * slots_per_block(block.len());
        if slots_end == 0 || slots_end + TAIL_SIZE != block.len() {
            return Err(fail(format!("{} bytes", block.len())));
        }
        let magic = read_u32(block, slots_end);
        if magic != MAGIC {
            return Err(fail(format!("magic is {magic:#010X}, not {MAGIC:#010X}")));
        }
        if let Some(seed) = seed {
            let stored = read_u32(block, slots_end + 4);
            let computed = checksum(&block[..slots_end], home, seed);
            if stored != computed {
                return Err(placed(Corrupt::checksum(STRUCTURE, stored, computed)));
            }
        }
        let (words, _) = block[..slots_end].as_chunks();
        Ok(Self {
            slots: words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
        })
    }
}

/// Encodes a block of an orphan file with these slots for device block `home`; with the seed of its
/// inode, with its checksum.
///
/// # Panics
///
/// If the number of slots does not match the block.
pub fn encode(block: &mut [u8], slots: &[u32], home: BlockNumber, seed: Option<InodeSeed>) {
    let slots_end = 4 * slots.len();
    assert_eq!(slots_end + TAIL_SIZE, block.len(), "slots fill a block");
    let (words, _) = block[..slots_end].as_chunks_mut();
    for (word, slot) in words.iter_mut().zip(slots) {
        *word = slot.to_le_bytes();
    }
    write_u32(block, slots_end, MAGIC);
    let computed = seed.map_or(0, |seed| checksum(&block[..slots_end], home, seed));
    write_u32(block, slots_end + 4, computed);
}

fn checksum(slots: &[u8], home: BlockNumber, seed: InodeSeed) -> u32 {
    crc32c(crc32c(seed.state(), &home.get().to_le_bytes()), slots)
}

#[cfg(test)]
mod tests {
    use super::{OrphanBlock, encode, slots_per_block};
    use crate::checksum::InodeSeed;
    use crate::number::{BlockNumber, InodeNumber};
    use proptest::prelude::*;

    const SEED: InodeSeed = InodeSeed::new(7, InodeNumber(12), 5);

    #[test]
    fn a_block_knows_its_place() {
        let mut block = vec![0; 1024];
        let mut slots = vec![0; slots_per_block(1024)];
        assert_eq!(slots.len(), 254);
        slots[7] = 99;
        let home = BlockNumber(1234);
        encode(&mut block, &slots, home, Some(SEED));
        let decode = |home, seed| OrphanBlock::decode(&block, SEED.inode, home, seed);
        assert_eq!(
            decode(home, Some(SEED)).map(|block| block.slots),
            Ok(slots.clone())
        );
        assert!(decode(BlockNumber(1235), Some(SEED)).is_err());
        let other = InodeSeed::new(7, SEED.inode, 6);
        assert!(decode(home, Some(other)).is_err());
        assert!(decode(BlockNumber(1235), None).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(block in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = OrphanBlock::decode(&block, InodeNumber(1), BlockNumber(1), Some(SEED));
        }
    }
}
