//! Extended attributes by name.

use std::sync::Arc;

use pext4_ondisk::acl;

use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::{FileType, InodeNumber, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

impl Volume {
    /// The value of an extended attribute, by full name (`user.x`). An access control list is in
    /// the format that ext4 stores, which [`acl::stored_to_call`] converts to that of
    /// `getxattr(2)`.
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute)` if there is none, `Refused(NotSupported | Range | Invalid)` for names
    /// that no attribute can have, `Refused(TooBig)` for a value that no system call can return,
    /// `Corrupt`, `Io`.
    pub fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_shared(&inode)?;
            xattr::get(&self.inodes, &inode, name)
        })
    }

    /// Full names of all extended attributes, each once, without those whose names no call
    /// takes.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub fn xattr_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_shared(&inode)?;
            xattr::names(&self.inodes, &inode)
        })
    }

    /// Full names and values of all extended attributes.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Refused(TooBig)` for a value that no system call can return, `Io`.
    pub fn xattrs(&self, inode: InodeNumber) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_shared(&inode)?;
            xattr::all(&self.inodes, &inode)
        })
    }

    /// Sets an extended attribute. If it has this value already, nothing changes. An access control
    /// list must be in the format that ext4 stores ([`acl::call_to_stored`] makes it of that of
    /// `getxattr(2)`); [`Volume::set_access_list`] sets the permissions that belong to it too.
    ///
    /// # Errors
    ///
    /// `Refused(NoAttribute | Exists)` as `mode` says, `Refused(AttributesFull)` if there is no
    /// room for the value, `Refused(NotPermitted)` for immutable and append-only files, and for
    /// `user.` on anything but files and directories, `Refused(NotSupported | Range | TooBig |
    /// Invalid)` for names and values that no attribute can have, such as an access control list of
    /// another format, `Refused(NoSpace | NoInodes | ReadOnly)`, `Corrupt`, `Io`.
    pub fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        self.run(|| self.set_xattr_and_permissions(inode, name, value, mode, None))
    }

    /// Sets the access control list (in its on-disk format) and the permissions that correspond to
    /// it, in one transaction. If there is no room for the list, the permissions do not change.
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

    /// Removes the access control list, if there is one, and sets the permissions that replace it,
    /// in one transaction.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_xattr`], except that a missing list is no error.
    pub fn remove_access_list(&self, inode: InodeNumber, permissions: u16) -> Result<()> {
        self.run(|| self.remove_xattr_and_set(inode, acl::ACCESS, Some(permissions)))
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
        let inode = self.user_inode(inode)?;
        check_list(inode.file_type(), name, value)?;
        let lock = super::lock_exclusive(&inode)?;
        self.check_changeable(&inode)?;
        let is_set = permissions.is_none_or(|new| inode.attributes().permissions() == new);
        if is_set && self.has_value(&inode, name, value, mode) {
            return Ok(());
        }
        if inode.is_inline() && inode.file_type() == FileType::Symlink {
            self.move_target_out(&inode)?;
        }
        let new = permissions.filter(|_| !is_set);
        let set = self.set_in_some_place(&inode, name, value, mode, new);
        drop(lock);
        let ended = self.tolerate_failed_reap(self.reap_values());
        set.and(ended)
    }

    /// Whether the attribute has this value already, possibly in an inode of its own: then nothing
    /// changes, not even the times. On a volume without value inodes this returns false; there the
    /// plan of the change finds out.
    fn has_value(&self, inode: &Arc<Inode>, name: &[u8], value: &[u8], mode: SetXattrMode) -> bool {
        self.inodes.has_values()
            && mode != SetXattrMode::Create
            && xattr::get(&self.inodes, inode, name).is_ok_and(|present| present == value)
    }

    /// Sets an attribute: beside the inode's inline content if there is room; else after moving
    /// that content to a block; else with the value in an inode of its own.
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
            self.stop_if_half_done(&handle, before, result)
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
        // If blocks are charged to a short symbolic link, e2fsck 1.47 takes its target for a block
        // map.
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
    /// `Refused(NoAttribute)` if there is none, `Refused(NotPermitted)` for immutable and
    /// append-only files, `Refused(NotSupported | Range | Invalid)` for names that no attribute can
    /// have, `Refused(NoSpace)` if the block is shared and there is none for a copy,
    /// `Refused(ReadOnly)`, `Corrupt`, `Io`.
    pub fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        self.run(|| self.remove_xattr_and_set(inode, name, None))
    }

    /// Removes an attribute. If `permissions` are given, these are set, and an attribute that is
    /// missing is no error.
    fn remove_xattr_and_set(
        &self,
        inode: InodeNumber,
        name: &[u8],
        permissions: Option<u16>,
    ) -> Result<()> {
        self.inodes.store.check_writable()?;
        let inode = self.user_inode(inode)?;
        let lock = super::lock_exclusive(&inode)?;
        self.check_changeable(&inode)?;
        let credits = xattr::change_credits(&self.inodes, &inode)?;
        let mut handle = self.inodes.store.start(credits)?;
        let before = handle.changes();
        let result = match xattr::remove(&self.inodes, &mut handle, &inode, name) {
            Err(error) if permissions.is_some() && error.is(Refusal::NoAttribute) => Ok(()),
            removed => removed,
        };
        let new = permissions.filter(|new| inode.attributes().permissions() != *new);
        let result = result.map(|()| super::attributes::set_permissions(&mut handle, &inode, new));
        let result = self.stop_if_half_done(&handle, before, result);
        drop((handle, lock));
        let ended = self.tolerate_failed_reap(self.reap_values());
        result.and(ended)
    }
}

/// Refuses an access control list that nobody could read: the kernel would let nobody but root use
/// the file.
fn check_list(kind: FileType, name: &[u8], value: &[u8]) -> Result<()> {
    if acl::is_list(name) && (acl::misplaced(kind, name).is_some() || acl::decode(value).is_err()) {
        return Err(Refusal::Invalid.into());
    }
    Ok(())
}
