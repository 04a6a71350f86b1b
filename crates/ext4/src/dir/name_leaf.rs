//! The one leaf that contains a name, or would contain it: what a change of a single name locks.
//!
//! In an indexed directory a name belongs to the leaf of its hash, unless names of the same hash
//! continue in the next leaf; then there is no single leaf, and no [`NameLeaf`]. A `NameLeaf` stays
//! valid while the directory's lock is held shared, since the index changes only under the
//! exclusive lock. What it returns about the leaf's content may change before the leaf is locked
//! ([`SeenLeaf`](super::SeenLeaf)).

use pext4_ondisk::LogicalBlock;

use super::blocks::{BlockKind, DirectoryBlocks};
use super::index::{Path, Seek};
use super::leaf::{self, Sought};
use super::{FoundEntry, check_name, find, is_dot};
use crate::error::Result;

/// The leaf of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameLeaf {
    leaf: LogicalBlock,
}

/// Finds the leaf of a name; `None` if there is no single one, or the index is damaged.
///
/// # Errors
///
/// `Corrupt` for impossible bytes on the path; errors of the blocks.
pub fn leaf_of<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Option<NameLeaf>> {
    if is_dot(name) {
        return Ok(None);
    }
    let path = Path::descend_if_sound(blocks, Seek::Name(name))?;
    let path = path.filter(|path| !path.hash_continues());
    Ok(path.map(|path| NameLeaf { leaf: path.leaf() }))
}

/// Looks up a name that is to be inserted, in the whole directory. Valid while the directory's lock
/// is held exclusively.
///
/// # Errors
///
/// As [`super::insert`] refuses names; `Corrupt`; errors of the blocks.
pub fn seek<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Sought> {
    let without_room = || Ok(find(blocks, name)?.map_or(Sought::Full, Sought::Entry));
    if is_dot(name) {
        return without_room();
    }
    check_name(name)?;
    if !blocks.is_indexed() {
        return seek_linearly(blocks, name);
    }
    let Some(mut path) = Path::descend(blocks, Seek::Name(name))? else {
        return without_room();
    };
    let first = leaf::seek(blocks, path.leaf(), name)?;
    if matches!(first, Sought::Entry(_)) || !path.hash_continues() {
        return Ok(first);
    }
    path.advance(blocks)?;
    Ok(path.find(blocks, name)?.map_or(first, Sought::Entry))
}

fn seek_linearly<B: DirectoryBlocks>(blocks: &B, name: &[u8]) -> Result<Sought> {
    let mut sought = Sought::Full;
    for block in (0..blocks.count()).map(LogicalBlock) {
        match leaf::seek(blocks, block, name)? {
            entry @ Sought::Entry(_) => return Ok(entry),
            vacancy @ Sought::Vacancy(_) if matches!(sought, Sought::Full) => sought = vacancy,
            _ => {}
        }
    }
    Ok(sought)
}

impl NameLeaf {
    /// Looks up the name.
    ///
    /// # Errors
    ///
    /// As [`leaf_of`].
    pub fn find<B: DirectoryBlocks>(&self, blocks: &B, name: &[u8]) -> Result<Option<FoundEntry>> {
        leaf::find(blocks, self.leaf, BlockKind::Leaf, name)
    }

    /// Looks up the name, which is to be inserted.
    ///
    /// # Errors
    ///
    /// As [`super::insert`] refuses names; `Corrupt`.
    pub fn seek<B: DirectoryBlocks>(&self, blocks: &B, name: &[u8]) -> Result<Sought> {
        check_name(name)?;
        leaf::seek(blocks, self.leaf, name)
    }
}
