//! Locks of a byte, or of all bytes, of a file, which belong to the open file (`F_OFD_SETLK`).
//!
//! They exclude each other among all programs that use them, or the locks of `fcntl(2)`; virtual
//! machines lock their images so. They end when the file is closed.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::file::Access;

/// The bytes of a file that somebody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// All of them.
    All,
    /// Those of a file system that begins at this byte. Two file systems that begin at one byte are
    /// one, so its first byte stands for it.
    From(u64),
}

impl Bytes {
    /// Those of a file system that begins at this byte: all, if that is the first one.
    pub(crate) fn beginning_at(start: u64) -> Self {
        match start {
            0 => Self::All,
            start => Self::From(start),
        }
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeLock {
    Taken,
    /// Another one has a lock that excludes this one.
    Busy,
    /// The file system does not lock bytes, or the file cannot be written to and a lock for writing
    /// was wanted.
    Unsupported,
}

/// Takes the lock, without waiting: for writing exclusively.
pub(crate) fn lock(file: &File, access: Access, bytes: Bytes) -> io::Result<RangeLock> {
    let kind = match access {
        Access::ReadOnly => libc::F_RDLCK,
        Access::ReadWrite => libc::F_WRLCK,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&request(kind, bytes)?)) {
        Ok(_) => Ok(RangeLock::Taken),
        Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) => Ok(RangeLock::Busy),
        Err(Errno::EBADF | Errno::EINVAL | Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
            Ok(RangeLock::Unsupported)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Gives back a lock that was taken.
pub(crate) fn unlock(file: &File, bytes: Bytes) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&request(libc::F_UNLCK, bytes)?))?;
    Ok(())
}

/// A request for a lock of this kind, or for its end.
fn request(kind: libc::c_int, bytes: Bytes) -> io::Result<libc::flock> {
    let out_of_range = |_| io::ErrorKind::InvalidInput;
    let (start, length) = match bytes {
        // A length of 0 reaches to the end, wherever that is.
        Bytes::All => (0, 0),
        Bytes::From(start) => (libc::off_t::try_from(start).map_err(out_of_range)?, 1),
    };
    Ok(libc::flock {
        l_type: narrow(kind),
        l_whence: narrow(libc::SEEK_SET),
        l_start: start,
        l_len: length,
        l_pid: 0,
    })
}

/// The constants of locks are wider than the fields they are for.
fn narrow(constant: libc::c_int) -> libc::c_short {
    libc::c_short::try_from(constant).expect("a small constant")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::OpenOptions;

    use super::{Access, Bytes, RangeLock, lock};

    #[test]
    fn file_systems_that_begin_at_one_byte_exclude_each_other() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("disk");
        let open = || {
            let mut options = OpenOptions::new();
            let file = options.create(true).truncate(false).read(true).write(true);
            file.open(&path).expect("it is made")
        };
        let files = [(); 4].map(|()| open());
        let take = |file: usize, access, bytes| lock(&files[file], access, bytes).expect("sound");
        let taken = take(0, Access::ReadWrite, Bytes::From(1 << 20));
        assert_eq!(taken, RangeLock::Taken);
        let taken = take(1, Access::ReadWrite, Bytes::From(2 << 20));
        assert_eq!(taken, RangeLock::Taken, "another one");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            for bytes in [Bytes::From(1 << 20), Bytes::All] {
                assert_eq!(
                    take(2, access, bytes),
                    RangeLock::Busy,
                    "{access:?}, {bytes:?}"
                );
            }
        }
        for file in [2, 3] {
            let taken = take(file, Access::ReadOnly, Bytes::From(0));
            assert_eq!(taken, RangeLock::Taken, "readers share it");
        }
        assert_eq!(take(3, Access::ReadWrite, Bytes::From(0)), RangeLock::Busy);
        let read_only = std::fs::File::open(&path).expect("it is there");
        let taken = lock(&read_only, Access::ReadWrite, Bytes::All).expect("sound");
        assert_eq!(taken, RangeLock::Unsupported);
    }
}
