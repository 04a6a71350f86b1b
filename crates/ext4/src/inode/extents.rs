//! The extent tree of one file: maps runs of its blocks to blocks of the device.
//!
//! The tree is a root of 60 bytes in the inode and, below it, nodes that fill a block each, at most
//! five levels of them. It knows no journal and no allocator: it reaches its file through
//! [`NodeStore`]. Extents are sorted and do not overlap; an index entry names exactly the
//! first logical block of its child (e2fsck insists, so every change of a first block goes up to
//! all ancestors it is first in); a node other than an empty root has entries.
//!
//! A change reads its path down to one leaf, computes which nodes it will need, reserves them, and
//! only then starts to write: there is no undo. An error after that point (from the device, or
//! because bytes changed after they were read) leaves the tree inconsistent, and the caller's
//! transaction must not be committed.
//!
//! Bytes from the device are trusted only as far as they were checked: a node by [`check_node`]
//! when it is first read, its place in the tree on every descent, an extent whenever it is decoded.
//! The depth decreases with each step, so a descent ends whatever the image contains.
//!
//! Locking: none here. The caller holds the inode's lock; for functions with `&mut` exclusively,
//! and its map lock.

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
use smallvec::SmallVec;

pub use convert::{BlockState, convert};
pub use insert::insert;
pub use path::end_of_damage;
pub use pext4_ondisk::extent::{Bounds, Extent};
pub use read::{last_end, lookup, walk};
pub use remove::remove;

use crate::error::Result;

/// As many extents as a change replaces at most, or others in their place.
type Few<T> = SmallVec<[T; 5]>;

/// The nodes of one tree, as its file stores them.
pub trait NodeStore {
    /// The range of blocks in which extents and nodes may be.
    fn bounds(&self) -> Bounds;

    /// Bytes in a node.
    fn block_size(&self) -> usize;

    /// Calls `look` with the bytes of a node, whose checksum and [`check_node`] have been verified
    /// since they were read from the device. `look` must not read other nodes.
    ///
    /// # Errors
    ///
    /// Those of reading and checking, and of `look`.
    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R>;

    /// Fails if blocks that lie within the bounds cannot be a file's.
    ///
    /// # Errors
    ///
    /// They are the file system's own.
    fn check_mapped(&self, _start: BlockNumber, _length: u32) -> Result<()> {
        Ok(())
    }

    /// Fails if an extent that lies within the bounds cannot be a file's.
    ///
    /// # Errors
    ///
    /// As [`Self::check_mapped`]; or its blocks have other places in their clusters than the
    /// device's.
    fn check_extent(&self, extent: &Extent) -> Result<()> {
        self.check_mapped(extent.start, extent.length)
    }

    /// Changes the bytes of a node in place, within the caller's transaction.
    ///
    /// # Errors
    ///
    /// If the block cannot be read.
    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// Makes sure that the next `nodes` calls of `allocate` succeed. The store frees blocks that
    /// are not used in the end. Called before the first change.
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
    /// It is in this extent.
    Mapped(Extent),
    /// Nothing is mapped there.
    Hole(Hole),
}

/// Blocks that are not mapped, from a requested one on up to the next extent, or to the largest
/// block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The requested block.
    pub logical: LogicalBlock,
    /// Number of blocks; at least 1.
    pub length: u32,
    /// The extent before it, if that is in the same leaf.
    pub before: Option<Extent>,
    /// The extent after it, if that is in the same leaf.
    pub after: Option<Extent>,
}

impl Hole {
    /// The block after the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.logical.get()) + u64::from(self.length)
    }
}

/// Checks the bytes of a node that is not the root: header, depth, order and range of entries.
///
/// # Errors
///
/// `Corrupt`, with what is wrong.
pub fn check_node(bytes: &[u8], depth: u16, bounds: &Bounds) -> std::result::Result<(), Corrupt> {
    path::parse_child(bytes, depth)?.check_entries(bounds)
}
