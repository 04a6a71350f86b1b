//! Casefolded directories: which names they can have, and which directories can become so.
//!
//! How names are compared and hashed is in the settings of a directory (`dir/naming.rs`). What is
//! refused here is what Linux refuses, and names that look like `.` or `..` when they are folded:
//! in a directory without an index Linux would find the directory itself instead.

use std::sync::Arc;

use pext4_ondisk::casefold;
use pext4_ondisk::inode::InodeFlags;

use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::InodeNumber;
use crate::volume::Volume;

impl Volume {
    /// Whether directories of this volume may be casefolded (the feature `casefold`).
    #[must_use]
    pub fn may_fold_names(&self) -> bool {
        self.directories.folds()
    }

    /// Whether a directory finds names by their folded form: it is casefolded. False for one that
    /// cannot be read.
    #[must_use]
    pub fn folds_names(&self, directory: InodeNumber) -> bool {
        if !self.may_fold_names() {
            return false;
        }
        let inode = self.user_inode(directory);
        inode.is_ok_and(|inode| self.folds(&inode))
    }

    /// Whether two names are one in a directory: they are the same bytes, or equal when they are
    /// folded and the directory is casefolded.
    #[must_use]
    pub fn is_one_name(&self, directory: InodeNumber, one: &[u8], other: &[u8]) -> bool {
        let are_equal = || casefold::Naming::Folded.is_same(one, other);
        one == other || (self.folds_names(directory) && are_equal())
    }

    fn folds(&self, directory: &Inode) -> bool {
        self.directories.of(directory).format.naming == casefold::Naming::Folded
    }

    /// Whether two names are one in this directory, and not only the same bytes.
    pub(super) fn is_other_spelling(&self, directory: &Inode, one: &[u8], other: &[u8]) -> bool {
        let naming = self.directories.of(directory).format.naming;
        one != other && naming.is_same(one, other)
    }

    /// Refuses a name that is no UTF-8 in a casefolded directory, if the image is strict about
    /// that.
    pub(super) fn check_encoded(&self, directory: &Inode, name: &[u8]) -> Result<()> {
        if self.is_encoding_strict && self.folds(directory) && !casefold::is_encoded(name) {
            return Err(Refusal::Invalid.into());
        }
        Ok(())
    }

    /// Refuses a new name that a directory cannot have because of its encoding.
    pub(super) fn check_encoding_of_new(&self, directory: &Inode, name: &[u8]) -> Result<()> {
        if !self.folds(directory) {
            return Ok(());
        }
        if casefold::hides_behind_dots(name) {
            return Err(Refusal::Exists.into());
        }
        self.check_encoded(directory, name)
    }

    /// Refuses a change of flags by which the names of a directory would be compared in another
    /// way, unless there are none. The caller holds the inode's lock exclusively.
    pub(super) fn check_casefolding(&self, inode: &Arc<Inode>, wanted: Option<u32>) -> Result<()> {
        let changes = |wanted: u32| {
            (inode.flags() ^ InodeFlags::from_bits_retain(wanted)).contains(InodeFlags::CASEFOLD)
        };
        if !wanted.is_some_and(changes) {
            return Ok(());
        }
        if !self.directories.folds() || !inode.is_directory() {
            return Err(Refusal::NotSupported.into());
        }
        if inode.links() > 0 && !dir::is_empty(&self.names(inode))? {
            return Err(Refusal::NotEmpty.into());
        }
        inode.forget_name_order();
        Ok(())
    }
}
