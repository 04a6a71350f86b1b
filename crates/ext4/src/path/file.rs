//! Open files: the options for opening them, and reading, writing and seeking with a position.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Deref;

use pext4_ondisk::inode::InodeFlags;

use super::{HeldInode, Paths};
use crate::error::{Refusal, Result};
use crate::types::{AllocateMode, Attributes, FileType, InodeNumber, SetAttributes};
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
    create: bool,
    create_new: bool,
    permissions: u16,
    uid: u32,
    gid: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options that allow nothing; a file that is created gets the permissions 0644, and user and
    /// group 0.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            permissions: 0o644,
            uid: 0,
            gid: 0,
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
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    ///
    /// `Refused(Invalid)` for options that contradict each other or allow nothing,
    /// `Refused(Exists)` with `create_new`, `Refused(IsADirectory)` for writing to a directory,
    /// `Refused(NotSupported)` for sockets, pipes and devices, `Refused(ReadOnly)`,
    /// `Refused(NotPermitted)` for writing to an immutable file, to one with fs-verity, or to an
    /// append-only one without `append`, `Refused(NoKey)` for writing to an encrypted one, and the
    /// errors of [`Paths::resolve`] and [`Volume::create`].
    pub fn open<V>(&self, volume: V, path: impl AsRef<[u8]>) -> Result<File<V>>
    where
        V: Deref<Target = Volume> + Clone,
    {
        self.check()?;
        let paths = Paths::new(volume).owner(self.uid, self.gid);
        let path = path.as_ref();
        let held = if self.create_new {
            paths.create_new(path, self.permissions)?
        } else if self.create {
            paths.open_or_create(path, self.permissions)?
        } else {
            paths.resolve(path)?
        };
        self.check_file(&held)?;
        if self.truncate {
            set_length(&held, 0)?;
        }
        Ok(File {
            held,
            position: 0,
            is_readable: self.read,
            is_writable: self.write || self.append,
            appends: self.append,
        })
    }

    fn check(&self) -> Result<()> {
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

/// An open file with a position. `V` refers to the volume, as in [`Paths`].
#[derive(Debug)]
pub struct File<V: Deref<Target = Volume>> {
    held: HeldInode<V>,
    position: u64,
    is_readable: bool,
    is_writable: bool,
    appends: bool,
}

impl<V: Deref<Target = Volume>> File<V> {
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
    pub fn metadata(&self) -> Result<Attributes> {
        self.held.attributes()
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
        if !self.is_readable {
            return Err(Refusal::NotOpen.into());
        }
        self.volume().read(self.held.inode, offset, into)
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

    /// Writes, and returns the offset at which the bytes were written and their number.
    fn write_from(&self, from: &[u8], offset: u64) -> Result<(u64, usize)> {
        self.check_writable()?;
        if self.appends {
            return self.volume().append(self.held.inode, from);
        }
        let count = self.volume().write(self.held.inode, offset, from)?;
        Ok((offset, count))
    }

    fn check_writable(&self) -> Result<()> {
        match self.is_writable {
            true => Ok(()),
            false => Err(Refusal::NotOpen.into()),
        }
    }
}

fn set_length<V: Deref<Target = Volume>>(held: &HeldInode<V>, length: u64) -> Result<()> {
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
            SeekFrom::End(step) => self.metadata()?.size.checked_add_signed(step),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
