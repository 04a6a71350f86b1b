//! A regular file or a block device of the system, or a range of one.
//!
//! Opening locks it, exclusively for writing and shared for reading, so that two mounts of one
//! image exclude each other (`claim`). Errors name the file. After a failed flush all flushes fail
//! ([`fail_stop`](crate::fail_stop)), since the system reports lost writes once per open file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::claim::{Claim, claim, leads_to};
use crate::device::{Device, check_range, total_length};
use crate::fail_stop::Flushes;
use crate::holes::next_data;
use crate::host_file::{Kind, error};
use crate::loops::{self, Identity};
use crate::range_lock::Bytes;

mod opened;
mod range;

pub use range::RangeEnd;

/// With this a file whose user has a lease is not waited for, but in use like one that is locked.
/// Once a file is open, it means nothing.
const UNLESS_LEASED: OFlags = OFlags::NONBLOCK;

/// Maximal number of slices in one system call (Linux' `IOV_MAX`). A write of more takes several
/// calls; the writers of blocks stay below it ([`MAX_SLICES`](crate::MAX_SLICES)).
const MAX_SLICES_OF_CALL: usize = 1024;

/// The access for which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading, shared with other readers.
    ReadOnly,
    /// For reading and writing, exclusively.
    ReadWrite,
}

/// A file or block device of the system.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The locked files behind a loop device, kept open for their locks.
    backing: Vec<File>,
    path: PathBuf,
    /// Where the device begins in the file, in bytes; not 0 only for a range.
    start: u64,
    /// The length of the device in bytes.
    size: u64,
    /// What bounds the device, if [`FileDevice::into_range`] made it a range of the file.
    range_end: Option<RangeEnd>,
    /// The bytes of the file whose lock it has.
    locked: Bytes,
    access: Access,
    kind: Kind,
    /// Whether opening it made the file, which did not exist before.
    is_new: bool,
    flushes: Flushes,
    /// How the system is asked to make durable what was written; a test has it fail.
    sync: fn(&File) -> rustix::io::Result<()>,
}

impl AsFd for FileDevice {
    /// The open file, in which the device may begin behind the first byte.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens and locks a file that gets a new content.
fn claim_new(path: &Path, options: &mut OpenOptions) -> io::Result<Claim> {
    let options = options.read(true).write(true);
    options.custom_flags(UNLESS_LEASED.bits().cast_signed());
    claim(path, Bytes::All, options, Access::ReadWrite, Duration::ZERO)
}

impl FileDevice {
    /// How long a command waits for an image in use: as long as a mount that ends may need to close
    /// it, if little is to be written.
    pub const USUAL_WAIT: Duration = Duration::from_secs(5);

    /// Opens a file or block device. If it is in use, waits for that to end, up to `wait`.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is neither a file nor a block device, or is still in use after `wait`
    /// (an error of kind `ResourceBusy`).
    pub fn open(path: impl AsRef<Path>, access: Access, wait: Duration) -> io::Result<Self> {
        Self::open_bytes(path.as_ref(), Bytes::All, access, wait)
    }

    /// Opens the file system that begins inside a file or block device at byte `start`, as in a
    /// partition of a disk image, and is at most `length` bytes long, or as in
    /// [`FileDevice::into_range`] if that is `None`. Unless it begins with the first byte, others
    /// may use other parts of a file meanwhile, but not of a block device. If this one is in use,
    /// waits for that to end, up to `wait`.
    ///
    /// # Errors
    ///
    /// As [`FileDevice::open`]; the range does not lie within the file.
    pub fn open_range(
        path: impl AsRef<Path>,
        start: u64,
        length: Option<u64>,
        access: Access,
        wait: Duration,
    ) -> io::Result<Self> {
        let bytes = Bytes::beginning_at(start);
        Self::open_bytes(path.as_ref(), bytes, access, wait)?.into_range(start, length)
    }

    fn open_bytes(path: &Path, bytes: Bytes, access: Access, wait: Duration) -> io::Result<Self> {
        let kind = Kind::of(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        let flags = match (kind, access) {
            (Kind::Block, Access::ReadWrite) => OFlags::EXCL,
            (Kind::Block, Access::ReadOnly) => OFlags::empty(),
            (Kind::Regular, _) => UNLESS_LEASED,
        };
        options.custom_flags(flags.bits().cast_signed());
        let claim = claim(path, bytes, &options, access, wait)?;
        Self::claimed(claim, path, bytes, access, kind)
    }

    /// A file or block device that is open and locked, with all that it has now.
    fn claimed(
        claim: Claim,
        path: &Path,
        bytes: Bytes,
        access: Access,
        kind: Kind,
    ) -> io::Result<Self> {
        let size = rustix::fs::seek(&claim.file, SeekFrom::End(0))
            .map_err(|errno| error(path, "find its size", errno))?;
        Ok(Self::of_size(size, claim, path, bytes, access, kind))
    }

    /// The first `size` bytes of a file or block device that is open and locked.
    fn of_size(
        size: u64,
        claim: Claim,
        path: &Path,
        bytes: Bytes,
        access: Access,
        kind: Kind,
    ) -> Self {
        Self {
            file: claim.file,
            backing: claim.backing,
            path: path.to_owned(),
            start: 0,
            size,
            range_end: None,
            locked: bytes,
            access,
            kind,
            is_new: false,
            flushes: Flushes::new(),
            sync: data_sync,
        }
    }

    /// Whether it has the lock of all of its file. If not, as after [`FileDevice::open_range`],
    /// others may write to other parts of the file meanwhile, so that it must not be replaced.
    #[must_use]
    pub fn locks_whole_file(&self) -> bool {
        self.locked == Bytes::All
    }

    /// Makes a file of `size` zeroes; if the file exists, its content is replaced.
    ///
    /// # Errors
    ///
    /// It cannot be made, is not a regular file, or is in use; then its content is unchanged.
    pub fn create(path: impl AsRef<Path>, size: u64) -> io::Result<Self> {
        let path = path.as_ref();
        match Self::create_new(path, size) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        // The content is removed only after the file is locked.
        let claim = claim_new(path, OpenOptions::new().create(true).truncate(false))?;
        if Kind::of(path)? != Kind::Regular {
            let refusal = io::Error::new(io::ErrorKind::InvalidInput, "it is a block device");
            return Err(error(path, "make it anew", refusal));
        }
        Self::created(path, claim, false, size)
    }

    /// Makes a file of `size` zeroes where there is none.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`; it cannot be made.
    pub fn create_new(path: impl AsRef<Path>, size: u64) -> io::Result<Self> {
        let path = path.as_ref();
        let claim = claim_new(path, OpenOptions::new().create_new(true))?;
        Self::created(path, claim, true, size)
    }

    fn created(path: &Path, claim: Claim, is_new: bool, size: u64) -> io::Result<Self> {
        let (bytes, access) = (Bytes::All, Access::ReadWrite);
        let mut device = Self::of_size(size, claim, path, bytes, access, Kind::Regular);
        device.is_new = is_new;
        device.empty(size).map_err(|source| {
            device.remove_if_new();
            error(path, format!("make it {size} bytes long"), source)
        })?;
        Ok(device)
    }

    /// Replaces the content by zeroes. The file is first extended, so that a size that the system
    /// refuses fails before any content is lost.
    fn empty(&self, size: u64) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        if size > before {
            self.file.set_len(size)?;
        }
        self.file.set_len(0)?;
        self.file.set_len(size)
    }

    /// Removes the file if [`FileDevice::create`] or [`FileDevice::create_new`] made it, for
    /// callers that fail afterwards.
    pub fn remove_if_new(&self) {
        // If it fails, an empty file or an incomplete image is left. Another file that has taken
        // its place stays.
        if self.is_new && leads_to(&self.path, &self.file).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Sets the length of a regular file in bytes; a longer file gets zeroes at its end.
    ///
    /// # Errors
    ///
    /// It is a block device or a range of a file, or the system refuses.
    pub fn set_length(&mut self, length: u64) -> io::Result<()> {
        let action = || format!("make it {length} bytes long");
        let obstacle = match self.kind {
            Kind::Block => Some("it is a block device"),
            Kind::Regular if self.range_end.is_some() => Some("it is a part of a file"),
            Kind::Regular => None,
        };
        if let Some(obstacle) = obstacle {
            let refusal = io::Error::new(io::ErrorKind::InvalidInput, obstacle);
            return Err(error(&self.path, action(), refusal));
        }
        self.file
            .set_len(length)
            .map_err(|source| error(&self.path, action(), source))?;
        self.size = length;
        Ok(())
    }

    /// The open file, for operations that are not part of [`Device`], such as cloning it or setting
    /// its owner and mode.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether this device and inode number are those of its file, or of a file behind it if it is
    /// a loop device.
    #[must_use]
    pub fn is_stored_in(&self, device: u64, inode: u64) -> bool {
        let files = std::iter::once(&self.file).chain(&self.backing);
        let mut found = files.filter_map(|file| file.metadata().ok());
        found.any(|file| (file.dev(), file.ino()) == (device, inode))
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::Block
    }

    /// The directory on which the kernel has this file system mounted, if it has, also through a
    /// loop device. Opening it for writing would be refused then.
    #[must_use]
    pub fn kernel_mount(&self) -> Option<PathBuf> {
        let identity = Identity::of(&self.file.metadata().ok()?);
        loops::mounted_with_backing(identity, Bytes::beginning_at(self.start))
    }

    /// Whether it is a regular file of which the system stores less than its length, so that what
    /// is written to it may take space that it did not have.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        let metadata = self.file.metadata();
        metadata.is_ok_and(|file| file.is_file() && file.blocks().saturating_mul(512) < file.len())
    }

    /// The path it was opened by, or, of [`FileDevice::from_file`], at which it was then.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self, action: &str, offset: u64, length: u64) -> io::Result<()> {
        check_range(self.size, offset, length).map_err(|source| error(&self.path, action, source))
    }

    fn failed(&self, action: &str, offset: u64, length: usize, source: io::Error) -> io::Error {
        error(
            &self.path,
            format!("{action} {length} bytes at {offset}"),
            source,
        )
    }

    fn write_all(&self, mut offset: u64, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match rustix::io::pwrite(&self.file, from, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    from = &from[written..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn read_all(&self, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match rustix::io::pread(&self.file, &mut *into, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    offset += read as u64;
                    into = &mut into[read..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn flush_once(&self) -> io::Result<()> {
        loop {
            match (self.sync)(&self.file) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(error(&self.path, "flush it", errno)),
            }
        }
    }

    /// Writes slices until all are written. After a short write, the rest of a partly written slice
    /// is written alone.
    fn write_slices(&self, mut offset: u64, mut slices: &[IoSlice<'_>]) -> io::Result<()> {
        while !slices.is_empty() {
            let batch = &slices[..slices.len().min(MAX_SLICES_OF_CALL)];
            let written = match rustix::io::pwritev(&self.file, batch, offset) {
                Ok(0) if total_length(batch) > 0 => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let (whole, rest) = count_written(batch, written);
            offset += total_length(&slices[..whole]);
            slices = &slices[whole..];
            if let (Some(slice), 1..) = (slices.first(), rest) {
                self.write_all(offset + rest as u64, &slice[rest..])?;
                offset += slice.len() as u64;
                slices = &slices[1..];
            }
        }
        Ok(())
    }
}

fn data_sync(file: &File) -> rustix::io::Result<()> {
    rustix::fs::fdatasync(file)
}

/// The number of whole slices in `written` bytes, and of bytes of the next slice.
fn count_written(slices: &[IoSlice<'_>], written: usize) -> (usize, usize) {
    let mut rest = written;
    let whole = slices
        .iter()
        .take_while(|slice| match rest.checked_sub(slice.len()) {
            Some(less) => {
                rest = less;
                true
            }
            None => false,
        });
    (whole.count(), rest)
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check("read", offset, into.len() as u64)?;
        let length = into.len();
        self.read_all(self.start + offset, into)
            .map_err(|source| self.failed("read", offset, length, source))
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check("write", offset, from.len() as u64)?;
        self.write_all(self.start + offset, from)
            .map_err(|source| self.failed("write", offset, from.len(), source))
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        let length = total_length(from);
        self.check("write", offset, length)?;
        self.write_slices(self.start + offset, from)
            .map_err(|source| self.failed("write", offset, length as usize, source))
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.run(|| self.flush_once())
    }

    /// Punches a hole; a block device discards the range or writes zeroes.
    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.check("discard", offset, length)?;
        if length == 0 {
            return Ok(true);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, self.start + offset, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            // A block device accepts whole sectors only.
            Err(Errno::INVAL) if self.kind == Kind::Block => Ok(false),
            Err(errno) => {
                let action = format!("discard {length} bytes at {offset}");
                Err(error(&self.path, action, errno))
            }
        }
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        let [from, to] = [at, end].map(|at| self.start.saturating_add(at));
        let data = next_data(&self.file, from, to)?;
        Ok(data.map(|data| data.start - self.start..data.end - self.start))
    }

    fn forget(&self, range: Range<u64>) {
        let length = range.end.saturating_sub(range.start);
        // Where the system does not do it, there may be no other machine either.
        let _ = rustix::fs::fadvise(
            &self.file,
            self.start.saturating_add(range.start),
            NonZeroU64::new(length),
            Advice::DontNeed,
        );
    }

    fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
