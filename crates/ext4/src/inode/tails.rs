//! Files that were cut inside a block, and still have old bytes behind their end.
//!
//! A cut becomes durable with its transaction, and only then may the bytes go that it cut off:
//! otherwise a power cut could leave the old size over zeroes. Whoever makes the file grow sees to
//! it first ([`Inodes::zero_tail`]). Linux does not: it believes that the bytes behind the end are
//! zero on disk. So every file that was cut is listed here, once, and `sync` and the end of a mount
//! make what is listed zero.
//!
//! Locking: the lists are by shard, of class `Leaf`; files are worked on with none of them held.

use pext4_ondisk::InodeNumber;
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded};

use crate::error::{Refusal, Result};
use crate::inode::table::Inodes;
use crate::types::FileType;

/// Inodes whose last block holds old bytes.
pub struct Tails {
    listed: Sharded<Mutex<Vec<InodeNumber>>>,
}

impl Tails {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            listed: Sharded::new(|_| Mutex::new(Class::Leaf, Vec::new())),
        }
    }

    /// Lists an inode; the caller marks it, so that it is listed once.
    pub(crate) fn list(&self, inode: InodeNumber) {
        self.listed.local().lock().push(inode);
    }

    fn take(&self) -> Vec<InodeNumber> {
        let lists = self.listed.iter();
        lists
            .flat_map(|list| std::mem::take(&mut *list.lock()))
            .collect()
    }
}

impl Inodes {
    /// Makes what lies behind the ends of cut files zero. Must be called without a handle and
    /// without the lock of an inode; it waits for the cuts to be durable.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`; files that were not reached stay as they are.
    pub fn zero_tails(&self) -> Result<()> {
        for number in self.tails.take() {
            let inode = match self.get(number) {
                Err(error) if error.is(Refusal::Stale) => continue,
                inode => inode?,
            };
            let _lock = inode.lock.write_keyed(u64::from(number.get()));
            inode.note(|state| state.tail_is_listed = false);
            // The number may have begun another life since; any file's tail may be made zero.
            if !inode.is_dead() && inode.file_type() == FileType::Regular {
                self.zero_tail(&inode)?;
            }
        }
        Ok(())
    }
}
