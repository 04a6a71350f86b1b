//! Open files: reading, writing and seeking with a position, attributes, durability.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::sync::Arc;

use super::HeldInode;
use crate::error::{Refusal, Result};
use crate::types::{AllocateMode, Attributes, InodeNumber, SetAttributes, SetXattrMode};
use crate::volume::Volume;

/// An open file with a position. `V` refers to the volume, as in [`Paths`](super::Paths).
#[derive(Debug)]
pub struct File<V: Deref<Target = Volume>> {
    held: HeldInode<V>,
    position: u64,
    mode: Mode,
}

/// A file that keeps its volume open is given to other threads, and shared by them.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<File<Arc<Volume>>>();
};

/// What an open file may be used for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Whether all writes go to the end.
    pub(super) appends: bool,
}

impl<V: Deref<Target = Volume>> File<V> {
    /// The file of an inode, at its beginning.
    pub(super) fn new(held: HeldInode<V>, mode: Mode) -> Self {
        Self {
            held,
            position: 0,
            mode,
        }
    }

    fn volume(&self) -> &Volume {
        &self.held.volume
    }

    /// The inode, for the operations of [`Volume`]; it is not freed while the file is open.
    #[must_use]
    pub fn inode(&self) -> InodeNumber {
        self.held.inode
    }

    /// The attributes, as `stat` returns them.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    #[doc(alias = "metadata")]
    pub fn attributes(&self) -> Result<Attributes> {
        self.held.attributes()
    }

    /// Changes attributes (permissions, owner, times, size, flags) and returns the new ones.
    ///
    /// # Errors
    ///
    /// `Refused(NotOpen)` for a new size if the file is not open for writing; as
    /// [`Volume::set_attributes`].
    pub fn set_attributes(&self, change: &SetAttributes) -> Result<Attributes> {
        if change.size.is_some() {
            self.check_writable()?;
        }
        self.held.set_attributes(change)
    }

    /// Sets the permission bits (07777).
    ///
    /// # Errors
    ///
    /// As [`Volume::set_attributes`].
    pub fn set_permissions(&self, permissions: u16) -> Result<()> {
        self.held.set_permissions(permissions)
    }

    /// The names of the extended attributes with their prefixes (`user.color`).
    ///
    /// # Errors
    ///
    /// As [`Volume::xattr_names`].
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.held.xattr_names()
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    ///
    /// As [`Volume::xattr`]; `Refused(NoAttribute)`.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.held.xattr(name)
    }

    /// Sets an extended attribute; `mode` says whether it may or must exist.
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
        self.held.set_xattr(name, value, mode)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_xattr`]; `Refused(NoAttribute)`.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.held.remove_xattr(name)
    }

    /// Sets the file's length in bytes: truncates it or extends it by a hole.
    ///
    /// # Errors
    ///
    /// `Refused(NotOpen)` if the file is not open for writing; as [`Volume::set_attributes`].
    pub fn set_len(&self, length: u64) -> Result<()> {
        self.check_writable()?;
        set_length(&self.held, length)
    }

    /// Allocates a range of bytes, makes it a hole, or zeroes it.
    ///
    /// # Errors
    ///
    /// `Refused(NotOpen)` if the file is not open for writing; as [`Volume::allocate`].
    pub fn allocate(&self, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        self.volume()
            .allocate(self.held.inode, mode, offset, length)
    }

    /// The next written byte at or after `offset`.
    ///
    /// # Errors
    ///
    /// As [`Volume::seek_data`].
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.volume().seek_data(self.held.inode, offset)
    }

    /// The next hole at or after `offset`; the end of the file counts as one.
    ///
    /// # Errors
    ///
    /// As [`Volume::seek_hole`].
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.volume().seek_hole(self.held.inode, offset)
    }

    /// Makes content and attributes durable.
    ///
    /// # Errors
    ///
    /// As [`Volume::fsync`].
    pub fn sync_all(&self) -> Result<()> {
        self.volume().fsync(self.held.inode)
    }

    /// Makes the content durable, and of the attributes only those that are needed to read it.
    ///
    /// # Errors
    ///
    /// As [`Volume::fsync`].
    pub fn sync_data(&self) -> Result<()> {
        self.volume().fdatasync(self.held.inode)
    }

    /// Reads from `offset` without moving the position. Returns the number of bytes read, which is
    /// less than the length of `into` only at the end of the file.
    ///
    /// # Errors
    ///
    /// `Refused(NotOpen)` if the file is not open for reading; as [`Volume::read`].
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if !self.mode.is_readable {
            return Err(Refusal::NotOpen.into());
        }
        self.volume().read(self.held.inode, offset, into)
    }

    /// Reads exactly `into.len()` bytes from `offset` without moving the position.
    ///
    /// # Errors
    ///
    /// As [`File::read_at`]; an `Io` error of the kind `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, mut into: &mut [u8], mut offset: u64) -> Result<()> {
        while !into.is_empty() {
            match self.read_at(into, offset)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => {
                    into = &mut into[count..];
                    offset = offset.saturating_add(count as u64);
                }
            }
        }
        Ok(())
    }

    /// Writes at `offset` without moving the position; if the file is open for appending, `offset`
    /// is ignored. Returns the number of bytes written, which is less than the length of `from`
    /// only if the volume became full.
    ///
    /// # Errors
    ///
    /// `Refused(NotOpen)` if the file is not open for writing; as [`Volume::write`].
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<usize> {
        Ok(self.write_from(from, offset)?.1)
    }

    /// Writes all of `from` at `offset` without moving the position; if the file is open for
    /// appending, `offset` is ignored. After an error, part of it may have been written.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`]; `Refused(NoSpace)` if the volume became full.
    pub fn write_all_at(&self, mut from: &[u8], mut offset: u64) -> Result<()> {
        while !from.is_empty() {
            match self.write_at(from, offset)? {
                0 => return Err(Refusal::NoSpace.into()),
                count => {
                    from = &from[count..];
                    offset = offset.saturating_add(count as u64);
                }
            }
        }
        Ok(())
    }

    /// Writes, and returns the offset at which the bytes were written and their number.
    fn write_from(&self, from: &[u8], offset: u64) -> Result<(u64, usize)> {
        self.check_writable()?;
        if self.mode.appends {
            return self.volume().append(self.held.inode, from);
        }
        let count = self.volume().write(self.held.inode, offset, from)?;
        Ok((offset, count))
    }

    fn check_writable(&self) -> Result<()> {
        match self.mode.is_writable {
            true => Ok(()),
            false => Err(Refusal::NotOpen.into()),
        }
    }
}

/// Truncates or extends the file of an inode.
pub(super) fn set_length<V: Deref<Target = Volume>>(
    held: &HeldInode<V>,
    length: u64,
) -> Result<()> {
    let change = SetAttributes {
        size: Some(length),
        ..SetAttributes::default()
    };
    held.volume.set_attributes(held.inode, &change)?;
    Ok(())
}

impl<V: Deref<Target = Volume>> Read for File<V> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(into, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl<V: Deref<Target = Volume>> Write for File<V> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (start, count) = self.write_from(from, self.position)?;
        self.position = start + count as u64;
        Ok(count)
    }

    /// Does nothing, since a `File` has no buffer. [`sync_all`](File::sync_all) makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<V: Deref<Target = Volume>> Seek for File<V> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(step) => self.position.checked_add_signed(step),
            SeekFrom::End(step) => self.attributes()?.size.checked_add_signed(step),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
