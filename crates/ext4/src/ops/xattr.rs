//! Extended attributes by name.

use crate::error::{Refusal, Result};
use crate::types::{FileType, InodeNumber, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

impl Volume {
    /// The value of an extended attribute, by full name (`user.x`).
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute | NotSupported)`, `Corrupt`, `Io`.
    pub fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|| {
            let inode = self.inodes.get(inode)?;
            let _lock = super::lock_shared(&inode)?;
            xattr::get(&self.inodes, &inode, name)
        })
    }

    /// Full names of all extended attributes.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub fn xattr_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
        self.run(|| {
            let inode = self.inodes.get(inode)?;
            let _lock = super::lock_shared(&inode)?;
            xattr::names(&self.inodes, &inode)
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute | Exists | NoSpace | AttributesFull | Range | NotSupported | ReadOnly)`,
    /// `Corrupt`, `Io`.
    pub fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = self.inodes.get(inode)?;
            let _lock = super::lock_exclusive(&inode)?;
            super::check_changeable(&inode)?;
            if inode.is_inline() && inode.file_type() == FileType::Symlink {
                self.move_target_out(&inode)?;
            }
            let set = || {
                let mut handle = self.inodes.store.start(xattr::CREDITS)?;
                let before = handle.changes();
                let result = xattr::set(&self.inodes, &mut handle, &inode, name, value, mode);
                self.settle(&handle, before, result)
            };
            match set() {
                // The file's content may be what takes the room.
                Err(error)
                    if error.is(Refusal::AttributesFull)
                        && inode.is_inline()
                        && inode.file_type() == FileType::Regular =>
                {
                    self.inodes.move_out(&inode)?;
                    set()
                }
                result => result,
            }
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute | ReadOnly)`, `Corrupt`, `Io`.
    pub fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = self.inodes.get(inode)?;
            let _lock = super::lock_exclusive(&inode)?;
            super::check_changeable(&inode)?;
            let mut handle = self.inodes.store.start(xattr::CREDITS)?;
            let before = handle.changes();
            let result = xattr::remove(&self.inodes, &mut handle, &inode, name);
            self.settle(&handle, before, result)
        })
    }
}
