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
