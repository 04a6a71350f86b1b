//! The extent tree of one file: which runs of its blocks lie where on the device.
//!
//! The tree is a root of 60 bytes in the inode and, below it, nodes that fill a block each, at most
//! five levels of them. It knows no journal and no allocator: what it needs of its file stands
//! behind [`NodeStore`]. Extents are sorted and do not overlap; an index entry names exactly the
//! first logical block of its child (e2fsck insists, so every change of a first block goes up to
//! all ancestors it is first in); a node other than an empty root has entries.
//!
//! A change reads its path down to one leaf, works out the nodes it will need, has them reserved,
//! and only then begins to write: there is no undo. An error after that point (the device, or
//! bytes that changed while they were looked at) leaves the tree in between, and the caller's
//! transaction must not be committed.
//!
//! Bytes from the device are believed as far as they were checked: a node by [`check_node`] when it
//! is first read, its place in the tree on every descent, an extent whenever it is decoded. Depth
//! falls with each step, so a descent ends whatever the image says.
//!
//! Locking: none here. The caller holds the file's map lock, for writing where `&mut` is asked.

mod convert;
mod edit;
mod insert;
mod path;
mod read;
mod remove;
mod split;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

pub use convert::convert;
pub use insert::insert;
pub use pext4_ondisk::extent::{Bounds, Extent};
pub use read::{last_end, lookup, walk};
pub use remove::remove;

use crate::error::Result;

/// What a tree needs of its file.
pub trait NodeStore {
    /// The blocks that extents and nodes may lie in.
    fn bounds(&self) -> Bounds;

    /// Bytes in a node.
    fn block_size(&self) -> usize;

    /// Shows the bytes of a node, which have passed their checksum and [`check_node`] since they
    /// came from the device. `look` reads no other node.
    ///
    /// # Errors
    ///
    /// What reading or checking says, or `look`.
    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R>;

    /// Changes the bytes of a node in place, within the caller's transaction.
    ///
    /// # Errors
    ///
    /// If the block cannot be had.
    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// Makes sure that the next `nodes` calls of `allocate` find a block. What is not used in the
    /// end is the store's to give back. Called before the first change.
    ///
    /// # Errors
    ///
    /// If there is no space.
    fn reserve(&mut self, nodes: u32) -> Result<()>;

    /// A reserved block as a new node, zeroed.
    ///
    /// # Errors
    ///
    /// If nothing is reserved.
    fn allocate(&mut self) -> Result<BlockNumber>;

    /// Frees the block of a node that is no longer used.
    ///
    /// # Errors
    ///
    /// If the block cannot have been in use.
    fn free(&mut self, block: BlockNumber) -> Result<()>;
}

/// What a logical block maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// It lies in this extent.
    Mapped(Extent),
    /// Nothing is mapped from `logical`, the block asked for, on for `length` blocks: up to the
    /// next extent, or as far as numbers go.
    Hole {
        /// The block asked for.
        logical: LogicalBlock,
        /// Blocks up to the next extent; at least 1.
        length: u32,
    },
}

/// Checks the bytes of a node that is not the root: header, depth, order and range of entries.
///
/// # Errors
///
/// `Corrupt`, with what is wrong.
pub fn check_node(bytes: &[u8], depth: u16, bounds: &Bounds) -> std::result::Result<(), Corrupt> {
    path::parse_child(bytes, depth)?.check_entries(bounds)
}
