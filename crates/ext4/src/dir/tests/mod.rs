//! Directories in memory: against a model, by their invariants, and with corrupt bytes.

mod check;
mod corrupt;
mod folded;
mod listings;
mod memory;
mod model;
mod shapes;

use memory::Memory;

use super::{DirectoryBlocks, find, insert};
use crate::types::FileType;
use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::Entry;

/// A small generator whose sequence depends on the seed alone.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// The inode that tests give to the name with this number.
fn inode_of(number: usize) -> InodeNumber {
    InodeNumber(u32::try_from(number).expect("tests are small") + 11)
}

fn entry(name: &[u8], inode: InodeNumber, file_type: FileType) -> Entry<'_> {
    Entry {
        inode,
        file_type: Some(file_type),
        name,
    }
}

fn enter(directory: &mut Memory, number: usize, name: &[u8]) {
    directory.cost();
    insert(directory, name, inode_of(number), FileType::Regular).expect("there is room");
}

fn assert_found(directory: &Memory, number: usize, name: &[u8]) {
    let found = find(directory, name)
        .expect("sound")
        .expect("it was entered");
    assert_eq!(found.inode, inode_of(number));
    assert_eq!(found.file_type, Some(FileType::Regular));
    assert!(found.block.get() < directory.count());
}
