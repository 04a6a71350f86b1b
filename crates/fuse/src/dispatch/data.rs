//! Requests for file content: read, write, `fallocate`, `lseek`, `fsync`.

use std::time::Duration;

use pext4_fs::{AllocateMode, Error, InodeNumber};
use pext4_ondisk::inode::InodeFlags;
use pext4_sync::thread;

use super::{Answer, Dispatch, Errno, space_retry};

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// How often, and at which interval, a write from the page cache polls whether an append-only file
/// has grown to the write's offset.
const APPEND_POLLS: u32 = 2000;
const APPEND_POLL_INTERVAL: Duration = Duration::from_millis(1);

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What `lseek` searches for; the kernel answers the other kinds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole, or the end of the file.
    Hole,
}

impl Whence {
    /// The kind with `lseek`'s number.
    ///
    /// # Errors
    /// `EINVAL` for another kind.
    pub fn from_number(number: i32) -> Answer<Self> {
        match number {
            SEEK_DATA => Ok(Self::Data),
            SEEK_HOLE => Ok(Self::Hole),
            _ => Err(Errno::INVALID),
        }
    }
}

/// Whether a read changes the access time. It does not if the file was opened with `O_NOATIME`, or
/// if the kernel reads the bytes around those that it writes (`O_WRONLY`).
fn is_access(flags: i32) -> bool {
    const ACCESS_MODE: i32 = 0o3;
    const WRITE_ONLY: i32 = 0o1;
    const NO_ACCESS_TIME: i32 = 0o1_000_000;
    flags & ACCESS_MODE != WRITE_ONLY && flags & NO_ACCESS_TIME == 0
}

/// The mode that the flags of `fallocate` stand for.
fn allocate_mode(flags: u32) -> Answer<AllocateMode> {
    const KEEP_AND_PUNCH: u32 = KEEP_SIZE | PUNCH_HOLE;
    const KEEP_AND_ZERO: u32 = KEEP_SIZE | ZERO_RANGE;
    match flags {
        0 => Ok(AllocateMode::Extend),
        KEEP_SIZE => Ok(AllocateMode::KeepSize),
        KEEP_AND_PUNCH => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size: false }),
        KEEP_AND_ZERO => Ok(AllocateMode::ZeroRange { keep_size: true }),
        _ => Err(Errno::NOT_SUPPORTED),
    }
}

impl Dispatch {
    /// Reads into `into` and returns the number of bytes, which is less than asked for only at the
    /// end of the file. `flags` are those with which the file was opened.
    ///
    /// # Errors
    /// The volume's.
    pub fn read(&self, node: u64, offset: u64, into: &mut [u8], flags: i32) -> Answer<usize> {
        let inode = Self::inode(node)?;
        let length = self.answer(self.volume.read(inode, offset, into))?;
        if is_access(flags) {
            self.note_access(inode, self.access_times.files);
        }
        Ok(length)
    }

    /// Writes `from`. A write from the kernel's page cache (`is_writeback`) leaves the file's times
    /// as they are: the kernel keeps them itself, and has reported them to callers of `stat`.
    ///
    /// # Errors
    /// The volume's.
    pub fn write(&self, node: u64, offset: u64, from: &[u8], is_writeback: bool) -> Answer<usize> {
        let inode = Self::inode(node)?;
        let old = self.old_of_append_only(inode, offset, from, is_writeback)?;
        let written = self.write_all(inode, offset + old as u64, &from[old..], is_writeback);
        Ok(old + self.answer(written)?)
    }

    /// How many bytes at the start of `from` an append-only file already contains at `offset`; 0
    /// for other files.
    ///
    /// The kernel opens files without asking the server, so the server checks here that a write
    /// only appends. From its page cache the kernel writes whole pages, with the old bytes before
    /// the new ones.
    fn old_of_append_only(
        &self,
        inode: InodeNumber,
        offset: u64,
        from: &[u8],
        is_writeback: bool,
    ) -> Answer<usize> {
        let mut attributes = self.answer(self.volume.attributes(inode))?;
        if attributes.flags & InodeFlags::APPEND.bits() == 0 {
            return Ok(0);
        }
        // The bytes before `offset` are most likely being written by another request, and its write
        // would find zeroes if this one came first. The other request may not have been read yet,
        // so the transport's threads must not wait for it.
        for _ in 0..APPEND_POLLS {
            if !is_writeback || attributes.size >= offset {
                break;
            }
            if !space_retry::may_wait() {
                return Err(Errno::NOT_PERMITTED);
            }
            thread::sleep(APPEND_POLL_INTERVAL);
            attributes = self.answer(self.volume.attributes(inode))?;
        }
        let below = attributes.size.saturating_sub(offset);
        let length = usize::try_from(below).map_or(from.len(), |below| below.min(from.len()));
        let mut old = vec![0; length];
        let read = self.answer(self.volume.read(inode, offset, &mut old))?;
        if read < length || old != from[..length] {
            return Err(Errno::NOT_PERMITTED);
        }
        Ok(length)
    }

    fn write_all(
        &self,
        inode: InodeNumber,
        offset: u64,
        from: &[u8],
        is_writeback: bool,
    ) -> Result<usize, Error> {
        let write = |at, rest: &[u8]| {
            if is_writeback {
                self.volume.write_back(inode, at, rest)
            } else {
                self.volume.write(inode, at, rest)
            }
        };
        let mut done = 0;
        while done < from.len() {
            let (at, rest) = (offset + done as u64, &from[done..]);
            match self.retry_if_full(|| write(at, rest)) {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// `fallocate(2)` with its flags.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other combinations of flags than those of [`AllocateMode`]; the volume's.
    pub fn allocate(&self, node: u64, flags: u32, offset: u64, length: u64) -> Answer<()> {
        let mode = allocate_mode(flags)?;
        let inode = Self::inode(node)?;
        self.answer(self.retry_if_full(|| self.volume.allocate(inode, mode, offset, length)))?;
        self.commit_change()
    }

    /// The next data or hole at or behind `offset`.
    ///
    /// # Errors
    /// `ENXIO` where there is none; the volume's.
    pub fn seek(&self, node: u64, offset: u64, whence: Whence) -> Answer<u64> {
        let inode = Self::inode(node)?;
        self.answer(match whence {
            Whence::Data => self.volume.seek_data(inode, offset),
            Whence::Hole => self.volume.seek_hole(inode, offset),
        })
    }

    /// Makes a file or directory durable; returns after the commit.
    ///
    /// # Errors
    /// The volume's.
    pub fn sync(&self, node: u64, data_only: bool) -> Answer<()> {
        let inode = Self::inode(node)?;
        self.answer(match data_only {
            true => self.volume.fdatasync(inode),
            false => self.volume.fsync(inode),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::{CreateAttributes, SetAttributes};

    use super::{
        AllocateMode, Dispatch, Errno, InodeFlags, InodeNumber, Whence, allocate_mode, is_access,
    };
    use crate::node::node_of;
    use crate::testing;

    #[test]
    fn no_thread_of_the_transport_waits_for_an_earlier_append() {
        let volume = Arc::new(testing::volume());
        let made = volume.create(InodeNumber::ROOT, b"log", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        let append_only = SetAttributes {
            flags: Some((InodeFlags::APPEND | InodeFlags::EXTENTS).bits()),
            ..SetAttributes::default()
        };
        let set = volume.set_attributes(inode, &append_only);
        set.expect("a flag that is supported");
        let dispatch = testing::dispatch(&volume);
        let write = |offset| {
            let write = || dispatch.write(node_of(inode), offset, &[7; 4096], true);
            Dispatch::attempt(write)
        };
        assert_eq!(write(4096), None, "it comes before the first");
        assert_eq!(write(0), Some(Ok(4096)));
        assert_eq!(write(4096), Some(Ok(4096)));
        assert_eq!(write(0), Some(Ok(4096)), "these bytes are there");
        let mut bytes = vec![0; 3 * 4096];
        let read = dispatch.read(node_of(inode), 0, &mut bytes, 0);
        assert_eq!(read, Ok(2 * 4096));
        assert!(bytes[..2 * 4096].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_read_changes_the_access_time_unless_it_serves_a_write_or_is_opened_without() {
        assert!(is_access(0) && is_access(2 | 0o100_000));
        assert!(!is_access(1) && !is_access(0o1_000_000));
    }

    #[test]
    fn flags_of_fallocate_say_what_is_asked_or_are_refused() {
        assert_eq!(allocate_mode(0), Ok(AllocateMode::Extend));
        assert_eq!(allocate_mode(1), Ok(AllocateMode::KeepSize));
        assert_eq!(allocate_mode(3), Ok(AllocateMode::PunchHole));
        assert_eq!(
            allocate_mode(0x10),
            Ok(AllocateMode::ZeroRange { keep_size: false })
        );
        assert_eq!(
            allocate_mode(0x11),
            Ok(AllocateMode::ZeroRange { keep_size: true })
        );
        for flags in [2, 0x08, 0x13, 0x20, 0x40, u32::MAX] {
            assert_eq!(
                allocate_mode(flags),
                Err(Errno::NOT_SUPPORTED),
                "flags {flags:#x}"
            );
        }
    }

    #[test]
    fn only_data_and_holes_are_asked_for() {
        assert_eq!(Whence::from_number(3), Ok(Whence::Data));
        assert_eq!(Whence::from_number(4), Ok(Whence::Hole));
        assert_eq!(Whence::from_number(0), Err(Errno::INVALID));
    }
}
