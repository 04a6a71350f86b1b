//! The steps of a walk along a path, which hold nothing on the way.
//!
//! [`Volume::lookup`] holds what it finds, as a FUSE server must, and a hold is a write that every
//! caller of one name shares. A walk only passes by: the inode in memory is enough to look up the
//! next name, since a directory that was removed meanwhile refuses. What a walk ends at is held with
//! [`Volume::hold_found`] if the caller is to keep it.

use std::sync::Arc;

use pext4_ondisk::inode::InodeFlags;
use pext4_sync::Near;

use super::{check_name, check_not_removed, lock_shared};
use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::InodeNumber;
use crate::volume::Volume;

impl Volume {
    /// The root directory, where every walk begins.
    pub(crate) fn root_inode(&self) -> Result<Near<Inode>> {
        self.run(|| self.directory(InodeNumber::ROOT))
    }

    /// The inode that a name leads to, `..` included.
    pub(crate) fn step(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<Near<Inode>> {
        self.run(|| {
            if !directory.is_directory() {
                return Err(Refusal::NotADirectory.into());
            }
            if !directory.flags().contains(InodeFlags::ENCRYPT) {
                check_name(name)?;
            }
            let _names = lock_shared(directory)?;
            check_not_removed(directory)?;
            if name == b".." {
                let parent = dir::parent(&self.names(directory))?;
                return self.directory(parent);
            }
            Ok(self.find_named(directory, name)?.ok_or(Refusal::NotFound)?)
        })
    }

    /// The target of a symbolic link that a walk has found.
    pub(crate) fn target_of(&self, link: &Inode) -> Result<Vec<u8>> {
        self.run(|| {
            let _lock = lock_shared(link)?;
            self.target(link)
        })
    }

    /// Holds what a walk has found, unless its last name has gone since.
    pub(crate) fn hold_found(&self, inode: &Inode) -> Result<()> {
        self.inodes.hold(inode);
        // Under the lock of the state, under which the reaper looks at holds: either it saw ours, or
        // this sees that the links are gone.
        if inode.state(|state| state.slot.links) == 0 {
            self.forget(inode.number(), 1);
            return Err(Refusal::NotFound.into());
        }
        Ok(())
    }
}
