//! Bounds for what one command copies out of an image.
//!
//! Nothing keeps the inodes of a hostile image from mapping the same blocks, each of them all
//! blocks that there are, and many attributes may have their values in one inode: an image of some
//! megabytes could have files of many terabytes. In a sound image no two files share a block, so
//! all of their data together is no larger than the file system. Values of attributes may be
//! shared, but those that files have really are far smaller. Blocks of attributes have no limit:
//! one may serve many files of a sound image, too, and a file has no more than one.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use pext4_fs::{InodeNumber, Volume};
use pext4_ondisk::Corrupt;

/// Where files may share blocks (`shared_blocks`), their data may be this many times the file
/// system. Equal blocks are stored once in such images, so no number follows from the format; of
/// those that are made like that, none comes close to this one.
const SHARED_BLOCKS_FACTOR: u64 = 16;

/// The maximum number of bytes that all files of a sound image have together, without holes.
pub(crate) fn most_data(volume: &Volume) -> u64 {
    let factor = match volume.may_share_blocks() {
        true => SHARED_BLOCKS_FACTOR,
        false => 1,
    };
    volume.size().saturating_mul(factor)
}

/// What may still be copied out of an image.
pub(crate) struct CopyLimit {
    /// Bytes of data.
    data: Cell<u64>,
    /// Bytes of attributes that are in inodes of their own.
    values: Cell<u64>,
    /// Bytes of holes that are copied as zeroes, since there are so many holes.
    holes: Cell<u64>,
    /// Bytes of attributes that a file may have without them: those in its inode and its block.
    beside_values: u64,
    /// Files whose attributes were counted.
    counted: RefCell<HashSet<InodeNumber>>,
}

impl CopyLimit {
    pub(crate) fn new(volume: &Volume) -> Self {
        let size = volume.size();
        Self {
            data: Cell::new(most_data(volume)),
            values: Cell::new(size),
            holes: Cell::new(size),
            // An inode is no larger than a block.
            beside_values: 2 * u64::from(volume.statfs().block_size),
            counted: RefCell::new(HashSet::new()),
        }
    }

    /// Counts bytes of a file's data.
    ///
    /// # Errors
    ///
    /// With these the files have more than there can be.
    pub(crate) fn take_data(&self, inode: InodeNumber, bytes: u64) -> pext4_fs::Result<()> {
        take(&self.data, bytes).ok_or_else(|| {
            let problem = "with the files copied before it has more data than the file system: \
                           files share blocks, as `pext4 check` shows";
            Corrupt::new("file", problem).in_inode(inode).into()
        })
    }

    /// Counts the attributes of a file, once.
    ///
    /// # Errors
    ///
    /// Their values in inodes of their own are, with those of files before, larger than the file
    /// system.
    pub(crate) fn take_attributes(
        &self,
        inode: InodeNumber,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> pext4_fs::Result<()> {
        let lengths = attributes
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let bytes = lengths.sum::<usize>() as u64;
        let values = bytes.saturating_sub(self.beside_values);
        if values == 0 || self.counted.borrow().contains(&inode) {
            return Ok(());
        }
        take(&self.values, values).ok_or_else(|| {
            pext4_fs::Error::unsupported(
                "its extended attributes are, with those of the files copied before, larger than \
                 the file system",
            )
        })?;
        self.counted.borrow_mut().insert(inode);
        Ok(())
    }

    /// Counts bytes of holes that are copied as zeroes.
    ///
    /// # Errors
    ///
    /// With these the files have more than the file system is large.
    pub(crate) fn take_holes(&self, bytes: u64) -> pext4_fs::Result<()> {
        take(&self.holes, bytes).ok_or_else(|| {
            pext4_fs::Error::unsupported(
                "it has more holes than an archive can have, and those that would be written as \
                 zeroes are larger than the file system: `pext4 get` copies it with its holes",
            )
        })
    }

    /// Runs `read`, which reads data that is copied later: if all is read, it does not count.
    pub(crate) fn in_advance<T, E>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let before = self.data.get();
        let done = read()?;
        self.data.set(before);
        Ok(done)
    }
}

fn take(left: &Cell<u64>, bytes: u64) -> Option<()> {
    left.set(left.get().checked_sub(bytes)?);
    Some(())
}
