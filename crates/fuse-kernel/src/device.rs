//! `/dev/fuse`: one request a read, one reply or notification a write.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pext4_sync::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{self, Setter};
use zerocopy::IntoBytes;

use crate::wire::{InvalidateInode, OutHeader};

/// The file to open.
const PATH: &str = "/dev/fuse";
/// Before a read is repeated for which the kernel had no memory.
const PAUSE: Duration = Duration::from_millis(10);
/// The kind of a notification about a node.
const INVALIDATE_INODE: i32 = 2;

/// An open `/dev/fuse` of a connection.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Reads a message; its length, or `None` if the connection has ended.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => return Ok(Some(length)),
                // The caller was interrupted before the request was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                // Nothing was read.
                Err(Errno::NOMEM) => thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a reply or a notification.
    pub(crate) fn send(&self, unique: u64, error: i32, parts: [&[u8]; 2]) -> io::Result<()> {
        let length = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let header = OutHeader {
            length: u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?,
            error,
            unique,
        };
        let parts = [header.as_bytes(), parts[0], parts[1]].map(IoSlice::new);
        rustix::io::writev(&self.0, &parts)?;
        Ok(())
    }

    /// Whether the connection has not ended. It ends before the kernel gives its number to another.
    fn is_connected(&self) -> bool {
        let mut file = [PollFd::new(&self.0, PollFlags::empty())];
        let polled = rustix::io::retry_on_intr(|| poll(&mut file, Some(&Timespec::default())));
        polled.is_ok() && !file[0].revents().contains(PollFlags::ERR)
    }

    /// Another open file of the same connection. The kernel keeps a list of the requests that were
    /// read for each open file, so threads with files of their own do not share its lock.
    pub(crate) fn of_same_connection(&self) -> io::Result<Self> {
        let own = self.0.as_raw_fd().cast_unsigned();
        let file = OpenOptions::new().read(true).write(true).open(PATH);
        let cloned = file.and_then(|file| {
            const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
            // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit file descriptor behind its argument, which
            // `Setter` points to for the duration of the call, and accesses no other memory.
            unsafe { ioctl::ioctl(&file, Setter::<CLONE, u32>::new(own)) }?;
            Ok(file.into())
        });
        // Where the device cannot be opened again, threads share the file.
        cloned.or_else(|_| self.0.try_clone()).map(Self)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tells the kernel what is no longer as it was told.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self(device)
    }

    /// Whether the connection has not ended, as it does when the last mount of it is gone, or when
    /// it is aborted.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Makes the kernel drop the attributes of a node and, if `offset` is not negative, its pages
    /// from that byte on; dirty ones are written first.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the kernel does not know the node (any more); or the connection has ended.
    pub fn invalidate(&self, node: u64, offset: i64) -> io::Result<()> {
        let notification = InvalidateInode {
            node,
            offset,
            length: 0,
        };
        self.0
            .send(0, INVALIDATE_INODE, [notification.as_bytes(), &[]])
    }
}
