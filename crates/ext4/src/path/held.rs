//! Inodes that are held as long as a value lives.

use std::ops::Deref;

use pext4_ondisk::InodeNumber;

use super::Paths;
use crate::types::Entry;
use crate::volume::Volume;

/// An inode that is not freed until this is dropped, even if it loses its last name.
#[derive(Debug)]
pub struct HeldInode<V: Deref<Target = Volume>> {
    pub(super) volume: V,
    pub(super) inode: InodeNumber,
}

impl<V: Deref<Target = Volume>> HeldInode<V> {
    /// The inode.
    #[must_use]
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }
}

impl<V: Deref<Target = Volume>> Drop for HeldInode<V> {
    fn drop(&mut self) {
        if self.inode != InodeNumber::ROOT {
            self.volume.forget(self.inode, 1);
        }
    }
}

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// Takes over the hold of an entry that an operation on inode numbers returned, so that nobody
    /// has to call [`Volume::forget`]:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use pext4_fs::{InodeNumber, MountOptions, Volume};
    ///
    /// let volume = Volume::open_image("disk.img", MountOptions::default())?;
    /// let etc = volume.paths().adopt(volume.lookup(InodeNumber::ROOT, b"etc")?);
    /// println!("{:?}", etc.attributes()?.modified);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An entry is one hold, which is taken over once:
    ///
    /// ```compile_fail,E0382
    /// # fn adopt_twice(volume: &pext4_fs::Volume, etc: pext4_fs::Entry) {
    /// let first = volume.paths().adopt(etc);
    /// let second = volume.paths().adopt(etc);
    /// # }
    /// ```
    #[must_use]
    pub fn adopt(&self, entry: Entry) -> HeldInode<V> {
        self.hold(entry.inode)
    }
}
