//! The one leaf that contains a name, or would contain it: what a change of a single name must
//! lock, and what it changes.
//!
//! In an indexed directory a name belongs to the leaf of its hash, unless names of the same hash
//! continue in the next leaf; then there is no single leaf, and no [`NameLeaf`]. A `NameLeaf` stays
//! valid while the directory's lock is held shared, since the index changes only under the
//! exclusive lock. What it returns about the leaf's content stays valid only while the leaf's lock
//! is held as well.

use pext4_ondisk::directory::Entry;
use pext4_ondisk::{InodeNumber, LogicalBlock};

use super::blocks::{BlockKind, DirectoryBlocks};
use super::index::{Path, Seek};
use super::leaf::{self, Room};
use super::{FoundEntry, check_name, is_dot};
use crate::error::Result;
use crate::types::FileType;

/// The leaf of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameLeaf {
    leaf: LogicalBlock,
}

/// Room for a name in the leaf to which it belongs.
#[derive(Clone, Copy)]
pub struct Vacancy {
    leaf: LogicalBlock,
    room: Room,
}

/// Finds the leaf of a name; `None` if there is no single one.
///
/// # Errors
///
/// `Corrupt` for impossible bytes on the path; those of the blocks.
pub fn leaf_of<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<NameLeaf>> {
    if is_dot(name) {
        return Ok(None);
    }
    let path = Path::descend(blocks, Seek::Name(name))?;
    let path = path.filter(|path| !path.hash_continues());
    Ok(path.map(|path| NameLeaf { leaf: path.leaf() }))
}

/// The room that the directory has, without growing, for a name that is not in it. `None` if it
/// must grow first or cannot take names. Valid while the directory's lock is held exclusively.
///
/// # Errors
///
/// As [`super::insert`] refuses names; `Corrupt`; those of the blocks.
pub fn vacancy<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<Vacancy>> {
    check_name(name)?;
    if blocks.is_indexed() {
        let path = Path::descend(blocks, Seek::Name(name))?;
        return path.map_or(Ok(None), |path| in_leaf(blocks, path.leaf(), name));
    }
    for block in (0..blocks.count()).map(LogicalBlock) {
        let vacancy = in_leaf(blocks, block, name)?;
        if vacancy.is_some() {
            return Ok(vacancy);
        }
    }
    Ok(None)
}

fn in_leaf<B: DirectoryBlocks>(
    blocks: &B,
    leaf: LogicalBlock,
    name: &[u8],
) -> Result<Option<Vacancy>> {
    let room = leaf::room_in(blocks, leaf, name)?;
    Ok(room.map(|room| Vacancy { leaf, room }))
}

impl NameLeaf {
    /// The leaf's block in the directory.
    #[must_use]
    pub fn block(&self) -> LogicalBlock {
        self.leaf
    }

    /// Looks up the name.
    ///
    /// # Errors
    ///
    /// As [`leaf_of`].
    pub fn find<B: DirectoryBlocks>(&self, blocks: &B, name: &[u8]) -> Result<Option<FoundEntry>> {
        leaf::find(blocks, self.leaf, BlockKind::Leaf, name)
    }

    /// The room that the leaf has for the name, which is not in it.
    ///
    /// # Errors
    ///
    /// As [`super::insert`] refuses names; `Corrupt`.
    pub fn vacancy<B: DirectoryBlocks>(&self, blocks: &B, name: &[u8]) -> Result<Option<Vacancy>> {
        check_name(name)?;
        in_leaf(blocks, self.leaf, name)
    }

    /// Removes the name, which is in the leaf.
    ///
    /// # Errors
    ///
    /// `Corrupt`, and those of the blocks.
    pub fn remove<B: DirectoryBlocks>(&self, blocks: &mut B, name: &[u8]) -> Result<()> {
        leaf::remove(blocks, self.leaf, name)
    }
}

impl Vacancy {
    /// Inserts the name.
    ///
    /// # Errors
    ///
    /// `Corrupt`, and those of the blocks.
    pub fn fill<B: DirectoryBlocks>(
        &self,
        blocks: &mut B,
        name: &[u8],
        inode: InodeNumber,
        file_type: FileType,
    ) -> Result<()> {
        let new = Entry {
            inode,
            file_type: Some(file_type),
            name,
        };
        leaf::insert_into(blocks, self.leaf, self.room, &new)
    }
}
