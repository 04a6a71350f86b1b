//! Extended attributes by name.

use std::sync::Arc;

use pext4_ondisk::acl;

use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::{FileType, InodeNumber, SetAttributes, SetXattrMode};
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

    /// Sets an extended attribute. The value that it has already changes nothing.
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
        self.run(|| self.set_xattr_and_permissions(inode, name, value, mode, None))
    }

    /// Sets the list for access, in the form of the disk, and the permissions that show it, in one transaction:
    /// if the list finds no room the permissions are what they were.
    ///
    /// # Errors
    ///
    /// As [`Volume::set_xattr`].
    pub fn set_access_list(
        &self,
        inode: InodeNumber,
        list: &[u8],
        mode: SetXattrMode,
        permissions: u16,
    ) -> Result<()> {
        self.run(|| {
            self.set_xattr_and_permissions(inode, acl::ACCESS, list, mode, Some(permissions))
        })
    }

    /// Takes the list for access away, if there is one, and sets the permissions that say as much as it did, in one
    /// transaction.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_xattr`], but that there need be no list.
    pub fn remove_access_list(&self, inode: InodeNumber, permissions: u16) -> Result<()> {
        self.run(
            || match self.remove_xattr_and_set(inode, acl::ACCESS, Some(permissions)) {
                Err(error) if error.is(Refusal::NoAttribute) => {
                    let set = SetAttributes {
                        permissions: Some(permissions),
                        ..SetAttributes::default()
                    };
                    let stands = self.inodes.get(inode)?.attributes().mode & 0o7777 == permissions;
                    if stands {
                        Ok(())
                    } else {
                        self.set_attributes(inode, &set).map(drop)
                    }
                }
                removed => removed,
            },
        )
    }

    fn set_xattr_and_permissions(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
        permissions: Option<u16>,
    ) -> Result<()> {
        self.inodes.store.check_writable()?;
        let inode = self.inodes.get(inode)?;
        let lock = super::lock_exclusive(&inode)?;
        super::check_changeable(&inode)?;
        let stands = permissions.is_none_or(|new| inode.attributes().mode & 0o7777 == new);
        if stands && self.has_value(&inode, name, value, mode) {
            return Ok(());
        }
        if inode.is_inline() && inode.file_type() == FileType::Symlink {
            self.move_target_out(&inode)?;
        }
        let new = permissions.filter(|_| !stands);
        let set = self.set_in_some_place(&inode, name, value, mode, new);
        drop(lock);
        let ended = self.pass_over(self.reap_values());
        set.and(ended)
    }

    /// Whether the attribute has this value already, in an inode of its own perhaps: then nothing changes, the
    /// times included. Where no value has one, that is seen when the change is planned.
    fn has_value(&self, inode: &Arc<Inode>, name: &[u8], value: &[u8], mode: SetXattrMode) -> bool {
        self.inodes.has_values()
            && mode != SetXattrMode::Create
            && xattr::get(&self.inodes, inode, name).is_ok_and(|present| present == value)
    }

    /// Sets an attribute: beside the inode's content if it can, else in its place, else elsewhere.
    fn set_in_some_place(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
        permissions: Option<u16>,
    ) -> Result<()> {
        let set = || {
            let credits = xattr::change_credits(&self.inodes, inode)?;
            let mut handle = self.inodes.store.start(credits)?;
            let before = handle.changes();
            let result = xattr::set(&self.inodes, &mut handle, inode, name, value, mode);
            let result = result
                .map(|()| super::attributes::set_permissions(&mut handle, inode, permissions));
            self.settle(&handle, before, result)
        };
        let is_full = |result: &Result<()>| {
            let error = result.as_ref().err();
            error.is_some_and(|error| error.is(Refusal::AttributesFull))
        };
        let mut result = set();
        if is_full(&result) && inode.is_inline() && inode.file_type() == FileType::Regular {
            self.inodes.move_out(inode)?;
            result = set();
        }
        // Blocks on the account of a short link make e2fsck 1.47 take its target for a map.
        let may_lie_elsewhere = inode.file_type() != FileType::Symlink;
        if is_full(&result) && may_lie_elsewhere && self.inodes.has_values() {
            result = self.set_large_xattr(inode, name, value, mode, permissions);
        }
        result
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute | ReadOnly)`, `Corrupt`, `Io`.
    pub fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        self.run(|| self.remove_xattr_and_set(inode, name, None))
    }

    fn remove_xattr_and_set(
        &self,
        inode: InodeNumber,
        name: &[u8],
        permissions: Option<u16>,
    ) -> Result<()> {
        self.inodes.store.check_writable()?;
        let inode = self.inodes.get(inode)?;
        let lock = super::lock_exclusive(&inode)?;
        super::check_changeable(&inode)?;
        let credits = xattr::change_credits(&self.inodes, &inode)?;
        let mut handle = self.inodes.store.start(credits)?;
        let before = handle.changes();
        let result = xattr::remove(&self.inodes, &mut handle, &inode, name);
        let result =
            result.map(|()| super::attributes::set_permissions(&mut handle, &inode, permissions));
        let result = self.settle(&handle, before, result);
        drop((handle, lock));
        let ended = self.pass_over(self.reap_values());
        result.and(ended)
    }
}
