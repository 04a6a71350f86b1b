//! Checksums of metadata blocks: the stamp, set when a block is changed, selects its checksum;
//! sealing computes it when the block is written, once per transaction.

use pext4_block::Stamp;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::{BlockNumber, InodeNumber, directory, extent, htree, xattr};

const EXTENT_NODE: u32 = 1;
const DIRECTORY_LEAF: u32 = 2;
const DIRECTORY_INDEX: u32 = 3;
const XATTR_BLOCK: u32 = 4;

fn stamp(kind: u32, inode: InodeNumber, generation: u32) -> Stamp {
    Stamp {
        kind,
        inode: inode.get(),
        generation,
    }
}

/// Stamp of a node of an inode's extent tree.
#[must_use]
pub fn extent_node(inode: InodeNumber, generation: u32) -> Stamp {
    stamp(EXTENT_NODE, inode, generation)
}

/// Stamp of a leaf of a directory.
#[must_use]
pub fn directory_leaf(inode: InodeNumber, generation: u32) -> Stamp {
    stamp(DIRECTORY_LEAF, inode, generation)
}

/// Stamp of a root or node of a directory's index.
#[must_use]
pub fn directory_index(inode: InodeNumber, generation: u32) -> Stamp {
    stamp(DIRECTORY_INDEX, inode, generation)
}

/// Stamp of a block of extended attributes.
#[must_use]
pub fn xattr_block() -> Stamp {
    stamp(XATTR_BLOCK, InodeNumber(0), 0)
}

/// Computes the checksum that `stamp` selects and stores it in `page`, the sealed copy of `block`.
pub fn seal(seed: u32, block: BlockNumber, stamp: Stamp, page: &mut [u8]) {
    let of_inode = InodeSeed::new(seed, InodeNumber(stamp.inode), stamp.generation);
    match stamp.kind {
        EXTENT_NODE => extent::stamp_node(of_inode, page),
        DIRECTORY_LEAF => directory::stamp_leaf(of_inode, page),
        DIRECTORY_INDEX => htree::stamp(of_inode, page),
        XATTR_BLOCK => xattr::stamp_block(seed, block, page),
        _ => {}
    }
}
