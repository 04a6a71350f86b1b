//! Attributes and extended attributes, by path and of an inode that is held.

use std::ops::Deref;

use super::{AsVolumePath, HeldInode, Paths};
use crate::error::Result;
use crate::types::{Attributes, SetAttributes, SetXattrMode};
use crate::volume::Volume;

impl<V: Deref<Target = Volume>> HeldInode<V> {
    /// The attributes, as `stat` returns them.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    #[doc(alias = "metadata")]
    pub fn attributes(&self) -> Result<Attributes> {
        self.volume.attributes(self.inode)
    }

    /// Changes attributes (permissions, owner, times, size, flags) and returns the new ones.
    ///
    /// # Errors
    ///
    /// As [`Volume::set_attributes`].
    pub fn set_attributes(&self, change: &SetAttributes) -> Result<Attributes> {
        self.volume.set_attributes(self.inode, change)
    }

    /// Sets the permission bits (07777).
    ///
    /// # Errors
    ///
    /// As [`Volume::set_attributes`].
    pub fn set_permissions(&self, permissions: u16) -> Result<()> {
        let change = SetAttributes {
            permissions: Some(permissions),
            ..SetAttributes::default()
        };
        self.set_attributes(&change).map(drop)
    }

    /// The names of the extended attributes with their prefixes (`user.color`).
    ///
    /// # Errors
    ///
    /// As [`Volume::xattr_names`].
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.volume.xattr_names(self.inode)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    ///
    /// As [`Volume::xattr`]; `Refused(NoAttribute)`.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.volume.xattr(self.inode, name.as_ref())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// As [`Volume::set_xattr`].
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: SetXattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.volume.set_xattr(self.inode, name, value, mode)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_xattr`]; `Refused(NoAttribute)`.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.volume.remove_xattr(self.inode, name.as_ref())
    }
}

/// These follow symbolic links, except for [`Paths::link_attributes`]. What a link has itself is
/// reached by [`Paths::resolve_link`] and the functions of the same names of a [`HeldInode`].
impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// The attributes of the inode at a path, as `stat` returns them. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    #[doc(alias = "metadata")]
    pub fn attributes(&self, path: impl AsVolumePath) -> Result<Attributes> {
        Ok(self.walk(path.as_volume_path(), true)?.attributes())
    }

    /// The attributes of the inode at a path, as `lstat` returns them: a symbolic link at the end
    /// is not followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    #[doc(alias = "symlink_metadata")]
    pub fn link_attributes(&self, path: impl AsVolumePath) -> Result<Attributes> {
        Ok(self.walk(path.as_volume_path(), false)?.attributes())
    }

    /// Changes attributes (permissions, owner, times, size, flags) and returns the new ones.
    /// Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::set_attributes`].
    pub fn set_attributes(
        &self,
        path: impl AsVolumePath,
        change: &SetAttributes,
    ) -> Result<Attributes> {
        self.resolve(path)?.set_attributes(change)
    }

    /// Sets the permission bits (07777) of a file. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::set_attributes`].
    pub fn set_permissions(&self, path: impl AsVolumePath, permissions: u16) -> Result<()> {
        self.resolve(path)?.set_permissions(permissions)
    }

    /// The names of a file's extended attributes with their prefixes (`user.color`). Symbolic links
    /// are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::xattr_names`].
    pub fn xattr_names(&self, path: impl AsVolumePath) -> Result<Vec<Vec<u8>>> {
        self.resolve(path)?.xattr_names()
    }

    /// The value of an extended attribute. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::xattr`]; `Refused(NoAttribute)`.
    pub fn xattr(&self, path: impl AsVolumePath, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.resolve(path)?.xattr(name)
    }

    /// Sets an extended attribute; `mode` says whether it may or must exist. Symbolic links are
    /// followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::set_xattr`].
    pub fn set_xattr(
        &self,
        path: impl AsVolumePath,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: SetXattrMode,
    ) -> Result<()> {
        self.resolve(path)?.set_xattr(name, value, mode)
    }

    /// Removes an extended attribute. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::remove_xattr`]; `Refused(NoAttribute)`.
    pub fn remove_xattr(&self, path: impl AsVolumePath, name: impl AsRef<[u8]>) -> Result<()> {
        self.resolve(path)?.remove_xattr(name)
    }
}
