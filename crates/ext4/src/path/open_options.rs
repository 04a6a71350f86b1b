//! How a file is opened.

use std::ops::Deref;

use pext4_ondisk::inode::InodeFlags;

use super::file::{Mode, set_length};
use super::{AsVolumePath, File, HeldInode, Paths};
use crate::error::{Refusal, Result};
use crate::types::FileType;
use crate::volume::Volume;

/// How a file is opened, in the manner of [`std::fs::OpenOptions`]: at first nothing is allowed.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Write;
///
/// let volume = pext4_fs::Volume::open_image("disk.img", pext4_fs::MountOptions::default())?;
/// let mut log = pext4_fs::path::OpenOptions::new()
///     .append(true)
///     .create(true)
///     .permissions(0o600)
///     .open(&volume, "/var/log/boot")?;
/// writeln!(log, "booted")?;
/// log.sync_data()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) permissions: u16,
    /// User and group of a file that is created, if they are not those of [`Paths`].
    pub(super) owner: Option<(u32, u32)>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options that allow nothing; a file that is created gets the permissions 0644, and the owner
    /// of [`Paths::with_owner`], which is user and group 0 by default.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            permissions: 0o644,
            owner: None,
        }
    }

    /// Allows reading.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Allows writing.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Allows writing at the end only. Each write finds the end of the file under the inode's lock,
    /// so several writers that append do not overwrite each other.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Truncates an existing file to no bytes; needs [`write`](Self::write).
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist; needs `write` or `append`.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Creates the file, which must not exist; needs `write` or `append`.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits (07777) of a file that is created.
    pub fn permissions(mut self, permissions: u16) -> Self {
        self.permissions = permissions;
        self
    }

    /// User and group of a file that is created.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Opens the file at `path`: [`Paths::open_with`].
    ///
    /// # Errors
    ///
    /// As [`Paths::open_with`].
    pub fn open<V>(&self, volume: V, path: impl AsVolumePath) -> Result<File<V>>
    where
        V: Deref<Target = Volume> + Clone,
    {
        Paths::new(volume).open_with(self, path)
    }

    /// The open file of an inode that was found or created.
    pub(super) fn open_held<V>(&self, held: HeldInode<V>) -> Result<File<V>>
    where
        V: Deref<Target = Volume>,
    {
        self.check_file(&held)?;
        if self.truncate {
            set_length(&held, 0)?;
        }
        let mode = Mode {
            is_readable: self.read,
            is_writable: self.write || self.append,
            appends: self.append,
        };
        Ok(File::new(held, mode))
    }

    pub(super) fn check(&self) -> Result<()> {
        let writes = self.write || self.append;
        let contradicts = (self.truncate && (self.append || !self.write))
            || ((self.create || self.create_new) && !writes);
        if contradicts || !(self.read || writes) {
            return Err(Refusal::Invalid.into());
        }
        Ok(())
    }

    fn check_file<V: Deref<Target = Volume>>(&self, held: &HeldInode<V>) -> Result<()> {
        let writes = self.write || self.append;
        let attributes = held.attributes()?;
        match attributes.file_type {
            FileType::Regular => {}
            FileType::Directory if writes => return Err(Refusal::IsADirectory.into()),
            FileType::Directory => {}
            _ => return Err(Refusal::NotSupported.into()),
        }
        if writes && held.volume.is_read_only() {
            return Err(Refusal::ReadOnly.into());
        }
        if !writes {
            return Ok(());
        }
        let flags = InodeFlags::from_bits_retain(attributes.flags);
        if flags.contains(InodeFlags::APPEND) && !self.append {
            return Err(Refusal::NotPermitted.into());
        }
        attributes.check_content_changes()
    }
}
