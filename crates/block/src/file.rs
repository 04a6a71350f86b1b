//! A regular file or a block device of the system, or a range of one.
//!
//! Opening locks it, exclusively for writing and shared for reading, so that two mounts of one
//! image exclude each other (`claim`). Errors name the file. After a failed flush all flushes fail
//! ([`fail_stop`](crate::fail_stop)), since the system reports lost writes once per open file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::claim::{Claim, claim, leads_to};
use crate::device::{Device, check_range, total_length};
use crate::fail_stop::Flushes;
use crate::host_file::{Kind, error};
use crate::loops;
use crate::partition_table;
use crate::range_lock::Bytes;

/// Maximal number of pieces in one system call (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

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
    /// Whether the device is a range of the file, set by [`FileDevice::into_range`].
    is_range: bool,
    access: Access,
    kind: Kind,
    /// Whether opening it made the file, which did not exist before.
    is_new: bool,
    flushes: Flushes,
    /// How the system is asked to make durable what was written; a test has it fail.
    sync: fn(&File) -> rustix::io::Result<()>,
}

/// Opens and locks a file that gets a new content.
fn claim_new(path: &Path, options: &mut OpenOptions) -> io::Result<Claim> {
    let options = options.read(true).write(true);
    claim(path, Bytes::All, options, Access::ReadWrite, Duration::ZERO)
}

impl FileDevice {
    /// Opens a file or block device. If it is in use, waits for that to end, up to `wait`.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is neither a file nor a block device, or is still in use after `wait`
    /// (an error of kind `ResourceBusy`).
    pub fn open(path: impl AsRef<Path>, access: Access, wait: Duration) -> io::Result<Self> {
        Self::open_bytes(path.as_ref(), Bytes::All, access, wait)
    }

    /// Opens the file system that begins inside a file or block device at byte `start` (not 0), as
    /// in a partition of a disk image, and is at most `length` bytes long, or as in
    /// [`FileDevice::into_range`] if that is `None`.
    /// Others may use other parts of a file meanwhile, but not of a block device. If this one is in
    /// use, waits for that to end, up to `wait`.
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
        Self::open_bytes(path.as_ref(), Bytes::From(start), access, wait)?.into_range(start, length)
    }

    fn open_bytes(path: &Path, bytes: Bytes, access: Access, wait: Duration) -> io::Result<Self> {
        let kind = Kind::of(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        if kind == Kind::Block && access == Access::ReadWrite {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let Claim { file, backing } = claim(path, bytes, &options, access, wait)?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0))
            .map_err(|errno| error(path, "find its size", errno))?;
        Ok(Self {
            file,
            backing,
            path: path.to_owned(),
            start: 0,
            size,
            is_range: false,
            access,
            kind,
            is_new: false,
            flushes: Flushes::new(),
            sync: data_sync,
        })
    }

    /// The device that is `length` bytes at `start` of this one: a partition of a disk image, for
    /// example. Without a length, it ends with the partition that begins there by the table of this
    /// device, or if none does, with this device. The lock remains as it is.
    ///
    /// # Errors
    ///
    /// The range does not lie within the device; its table cannot be read.
    pub fn into_range(self, start: u64, length: Option<u64>) -> io::Result<Self> {
        let length = match length {
            Some(length) => length,
            None => self.end_of_part(start)?.saturating_sub(start),
        };
        check_range(self.size, start, length)
            .map_err(|source| error(&self.path, "use a part of it", source))?;
        Ok(Self {
            start: self.start + start,
            size: length,
            is_range: true,
            ..self
        })
    }

    /// Where the part that begins at `start` ends.
    fn end_of_part(&self, start: u64) -> io::Result<u64> {
        if start == 0 {
            return Ok(self.size);
        }
        let partitions = partition_table::partitions(self.size, |at, into| self.read_at(at, into))?;
        let part = partitions.iter().find(|part| part.start == start);
        Ok(part.map_or(self.size, |part| part.end))
    }

    /// Where the device lies in its file, in bytes; `None` if it is all of it.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        self.is_range.then(|| self.start..self.start + self.size)
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
        let Claim { file, backing } = claim;
        let device = Self {
            file,
            backing,
            path: path.to_owned(),
            start: 0,
            size,
            is_range: false,
            access: Access::ReadWrite,
            kind: Kind::Regular,
            is_new,
            flushes: Flushes::new(),
            sync: data_sync,
        };
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
            Kind::Regular if self.is_range => Some("it is a part of a file"),
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
        let mut bytes = match self.start {
            0 => Bytes::All,
            start => Bytes::From(start),
        };
        for file in std::iter::once(&self.file).chain(&self.backing) {
            let metadata = file.metadata().ok()?;
            let directory = loops::mounted_on(&metadata, bytes);
            if directory.is_some() {
                return directory;
            }
            bytes = loops::backing_of(&metadata)?.translate(bytes);
        }
        None
    }

    /// Whether it is a regular file of which the system stores less than its length, so that what
    /// is written to it may take space that it did not have.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        let metadata = self.file.metadata();
        metadata.is_ok_and(|file| file.is_file() && file.blocks().saturating_mul(512) < file.len())
    }

    /// The path it was opened by.
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

    /// Writes pieces until all are written. After a short write, the rest of a partly written piece
    /// is written alone.
    fn write_pieces(&self, mut offset: u64, mut pieces: &[IoSlice<'_>]) -> io::Result<()> {
        while !pieces.is_empty() {
            let batch = &pieces[..pieces.len().min(MAX_PIECES)];
            let written = match rustix::io::pwritev(&self.file, batch, offset) {
                Ok(0) if total_length(batch) > 0 => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let (whole, rest) = count_written(batch, written);
            offset += total_length(&pieces[..whole]);
            pieces = &pieces[whole..];
            if let (Some(piece), 1..) = (pieces.first(), rest) {
                self.write_all(offset + rest as u64, &piece[rest..])?;
                offset += piece.len() as u64;
                pieces = &pieces[1..];
            }
        }
        Ok(())
    }
}

fn data_sync(file: &File) -> rustix::io::Result<()> {
    rustix::fs::fdatasync(file)
}

/// The number of whole pieces in `written` bytes, and of bytes of the next piece.
fn count_written(pieces: &[IoSlice<'_>], written: usize) -> (usize, usize) {
    let mut rest = written;
    let whole = pieces
        .iter()
        .take_while(|piece| match rest.checked_sub(piece.len()) {
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
        self.write_pieces(self.start + offset, from)
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

    fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{self, IoSlice};
    use std::time::Duration;

    use pext4_sync::thread;
    use tempfile::TempDir;

    use super::{Access, Errno, FileDevice, MAX_PIECES, count_written, data_sync};
    use crate::device::Device;

    fn directory() -> TempDir {
        tempfile::tempdir().expect("there is room for a directory")
    }

    #[test]
    fn keeps_bytes_from_one_open_to_the_next() {
        let directory = directory();
        let path = directory.path().join("image");
        let device = FileDevice::create(&path, 10_000).expect("it is made");
        device.write_at(9_990, b"0123456789").expect("it fits");
        device.flush().expect("the file takes it");
        drop(device);
        let device = FileDevice::open(&path, Access::ReadOnly, Duration::ZERO).expect("it is free");
        assert_eq!(device.size(), 10_000);
        assert!(device.is_read_only());
        let mut bytes = [0; 11];
        device
            .read_at(9_989, &mut bytes)
            .expect("the range lies within");
        assert_eq!(&bytes, b"\x000123456789");
        assert!(device.write_at(0, b"x").is_err());
    }

    /// A system says once that it lost a write, and then that all is well.
    #[test]
    fn after_a_failed_flush_none_succeeds() {
        let directory = directory();
        let path = directory.path().join("image");
        let mut device = FileDevice::create(&path, 10_000).expect("it is made");
        device.flush().expect("the file takes it");
        device.sync = |_| Err(Errno::IO);
        let first = device.flush().expect_err("the system says so");
        device.sync = data_sync;
        let second = device.flush().expect_err("what was lost stays lost");
        for error in [&first, &second] {
            assert!(error.to_string().contains("cannot flush it"), "{error}");
            assert!(error.to_string().contains("image"), "{error}");
        }
        assert!(second.to_string().contains("failed before"), "{second}");
        device.write_at(0, b"x").expect("it still writes");
        assert!(device.flush().is_err());
    }

    #[test]
    fn more_pieces_than_one_call_takes_are_all_written() {
        let directory = directory();
        let device =
            FileDevice::create(directory.path().join("image"), 1 << 20).expect("it is made");
        let bytes: Vec<u8> = (0..=255).cycle().take(3 * MAX_PIECES + 5).collect();
        // Pieces of two bytes, and one of none; more than one call takes.
        let mut pieces: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
        pieces.insert(1, IoSlice::new(&[]));
        device.write_vectored_at(77, &pieces).expect("it fits");
        let mut read = vec![0; bytes.len()];
        device
            .read_at(77, &mut read)
            .expect("the range lies within");
        assert_eq!(read, bytes);
        assert!(device.write_vectored_at((1 << 20) - 10, &pieces).is_err());
    }

    #[test]
    fn a_short_write_ends_anywhere() {
        let pieces = [&b"abc"[..], b"", b"de", b"f"].map(IoSlice::new);
        let expected = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0), (4, 0)];
        for (written, expected) in expected.into_iter().enumerate() {
            assert_eq!(
                count_written(&pieces, written),
                expected,
                "after {written} bytes"
            );
        }
    }

    #[test]
    fn discarded_bytes_are_zero() {
        let directory = directory();
        let device =
            FileDevice::create(directory.path().join("image"), 1 << 20).expect("it is made");
        device.write_at(0, &[7; 20_000]).expect("it fits");
        if device.discard(5, 10_000).expect("the range lies within") {
            let mut bytes = vec![1; 10_002];
            device
                .read_at(4, &mut bytes)
                .expect("the range lies within");
            assert_eq!((bytes[0], bytes[10_001]), (7, 7));
            assert!(bytes[1..10_001].iter().all(|byte| *byte == 0));
        }
        assert_eq!(device.size(), 1 << 20);
    }

    #[test]
    fn a_file_knows_its_names_and_its_holes() {
        use std::os::unix::fs::MetadataExt;
        let directory = directory();
        let [path, alias, other] =
            ["image", "alias", "other"].map(|name| directory.path().join(name));
        let device = FileDevice::create(&path, 1 << 20).expect("it is made");
        std::fs::hard_link(&path, &alias).expect("there is room");
        std::fs::write(&other, b"x").expect("there is room");
        let is_stored_in = |path| {
            let file = std::fs::metadata(path).expect("it is there");
            device.is_stored_in(file.dev(), file.ino())
        };
        assert!(is_stored_in(&path) && is_stored_in(&alias) && !is_stored_in(&other));
        assert!(device.is_sparse());
        device.write_at(0, &[7; 1 << 20]).expect("it fits");
        device.flush().expect("the file takes it");
        assert!(!device.is_sparse());
    }

    #[test]
    fn writers_exclude_and_readers_share() {
        let directory = directory();
        let path = directory.path().join("image");
        drop(FileDevice::create(&path, 4096).expect("it is made"));
        let open = |access| FileDevice::open(&path, access, Duration::ZERO);
        let reader = open(Access::ReadOnly).expect("it is free");
        let another = open(Access::ReadOnly).expect("readers share");
        let refusal = open(Access::ReadWrite).expect_err("readers keep writers out");
        assert_eq!(refusal.kind(), io::ErrorKind::ResourceBusy);
        assert!(refusal.to_string().contains("image"), "{refusal}");
        drop((reader, another));
        let writer = open(Access::ReadWrite).expect("it is free again");
        assert!(open(Access::ReadOnly).is_err());
        assert!(
            FileDevice::create(&path, 0).is_err(),
            "a file in use is not emptied"
        );
        drop(writer);
        assert_eq!(
            open(Access::ReadOnly).expect("it is free again").size(),
            4096
        );
    }

    #[test]
    fn a_file_gets_longer_and_shorter() {
        let directory = directory();
        let path = directory.path().join("image");
        let mut device = FileDevice::create(&path, 4096).expect("it is made");
        device.set_length(8192).expect("a file can grow");
        device.write_at(8000, b"end").expect("it lies within now");
        device.set_length(100).expect("a file can shrink");
        assert_eq!(device.size(), 100);
        assert!(device.write_at(8000, b"end").is_err());
        assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 100);
    }

    #[test]
    fn a_range_is_a_device_of_its_own() {
        let directory = directory();
        let path = directory.path().join("disk");
        let whole = FileDevice::create(&path, 10_000).expect("it is made");
        whole.write_at(0, &[1; 10_000]).expect("it fits");
        let mut part = whole
            .into_range(1000, Some(8000))
            .expect("it lies within")
            .into_range(1000, None)
            .expect("so does this");
        assert_eq!((part.size(), part.range()), (7000, Some(2000..9000)));
        part.write_at(0, b"begin").expect("it fits");
        let pieces = [&b"e"[..], b"nd"].map(IoSlice::new);
        part.write_vectored_at(6997, &pieces).expect("it fits");
        assert!(part.write_at(6998, b"end").is_err());
        assert!(part.read_at(7000, &mut [0]).is_err());
        assert!(part.set_length(100).is_err(), "others have the rest");
        let is_zeroed = part.discard(5, 6992).expect("it lies within");
        let mut bytes = [0; 3];
        part.read_at(6997, &mut bytes).expect("it lies within");
        assert_eq!(&bytes, b"end");
        let file = std::fs::read(&path).expect("it is there");
        let inner = if is_zeroed { 0 } else { 1 };
        assert!(
            file[..2000]
                .iter()
                .chain(&file[9000..])
                .all(|&byte| byte == 1)
        );
        assert!(file[2005..8997].iter().all(|&byte| byte == inner));
        assert_eq!(
            (&file[2000..2005], &file[8997..9000]),
            (&b"begin"[..], &b"end"[..])
        );
        let other = FileDevice::open(&path, Access::ReadOnly, Duration::ZERO);
        assert!(other.is_err(), "a part keeps the lock of the whole");
        let refusal = part
            .into_range(7001, None)
            .expect_err("it begins behind the end");
        assert!(refusal.to_string().contains("disk"), "{refusal}");
    }

    #[test]
    fn an_open_waits_for_the_lock() {
        let directory = directory();
        let path = directory.path().join("image");
        let writer = FileDevice::create(&path, 4096).expect("it is made");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                FileDevice::open(&path, Access::ReadWrite, Duration::from_secs(600)).map(drop)
            });
            thread::sleep(Duration::from_millis(30));
            drop(writer);
            waiter
                .join()
                .expect("it does not panic")
                .expect("the lock came free");
        });
    }

    #[test]
    fn a_file_that_must_be_new_replaces_none() {
        let directory = directory();
        let path = directory.path().join("image");
        let new = FileDevice::create_new(&path, 4096).expect("there is none");
        new.write_at(0, b"content").expect("there is room");
        drop(new);
        let refused = FileDevice::create_new(&path, 100).expect_err("there is one");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
        let kept = std::fs::read(&path).expect("it is there");
        assert_eq!((kept.len(), &kept[..7]), (4096, &b"content"[..]));
    }

    #[test]
    fn only_files_and_block_devices_are_opened() {
        let directory = directory();
        let refusal = FileDevice::open(directory.path(), Access::ReadOnly, Duration::ZERO);
        let refusal = refusal.expect_err("a directory is no device").to_string();
        assert!(
            refusal.contains("neither a regular file nor a block device"),
            "{refusal}"
        );
        let missing = directory.path().join("missing");
        let refusal = FileDevice::open(&missing, Access::ReadOnly, Duration::ZERO);
        assert_eq!(
            refusal.expect_err("it is not there").kind(),
            io::ErrorKind::NotFound
        );
    }
}
