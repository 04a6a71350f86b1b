//! A bound for the directories that one walk lists.
//!
//! Nothing keeps the directories of a hostile image from mapping the same blocks: an image of some
//! megabytes could have terabytes of names, and a walk through directories in one another keeps the
//! names of all of them at a time. In a sound image no two directories share a block, so all of
//! them together are no larger than the file system. What one of them takes is known before its
//! first name is read.

use std::cell::Cell;

use pext4_fs::{Attributes, Volume};
use pext4_ondisk::Corrupt;

use crate::copy_limit::most_data;

/// What a walk that lists each directory once may still list.
#[derive(Debug)]
pub struct DirectoryLimit {
    /// Bytes of directories.
    left: Cell<u64>,
}

impl DirectoryLimit {
    /// The limit of a walk that begins: the size of the file system, or of what its files may have
    /// if they share blocks.
    #[must_use]
    pub fn new(volume: &Volume) -> Self {
        Self {
            left: Cell::new(most_data(volume)),
        }
    }

    /// Counts a directory that is to be listed, by its size.
    ///
    /// # Errors
    ///
    /// `Corrupt` if it is too large, with those counted before. It is not counted then, and must
    /// not be listed.
    pub fn take(&self, directory: &Attributes) -> pext4_fs::Result<()> {
        let Some(left) = self.left.get().checked_sub(directory.size) else {
            let problem = "with the directories listed before it is larger than the file system: \
                           its size is wrong, or directories share blocks, as `pext4 check` shows";
            let corrupt = Corrupt::new("directory", problem);
            return Err(corrupt.in_inode(directory.inode).into());
        };
        self.left.set(left);
        Ok(())
    }
}
