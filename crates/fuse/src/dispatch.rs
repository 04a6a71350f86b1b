//! Executes the requests of the FUSE protocol on a volume, independent of the transport.
//!
//! A request names nodes by number. Each reply that gives a node to the kernel *holds* it once in
//! the volume; `forget` releases these holds. Permissions and open files are the kernel's task: it
//! checks access by the modes and access lists that the server reports (`default_permissions`), or
//! there is nothing to check (`access_policy.rs`). The server checks only what the kernel leaves to
//! it: that a write to an append-only file does not change old bytes, that setting an access list
//! clears the set-group-id bit if the caller is not in the file's group (newer kernels say that),
//! and what even root may not do. There are no open files: nothing here depends on what was opened
//! before.
//!
//! All calls take `&self` and may run concurrently. The only state besides the volume are the
//! errors that listings still have to return (`PendingErrors`), the memory of `SpaceRetry`, and the
//! ranges of append-only files that wait for their bytes (`AppendGaps`).

mod append_gaps;
mod attributes;
mod caller;
mod data;
mod directory;
mod ioctl;
mod kernel_release;
mod namespace;
mod space_retry;
mod xattr;

use std::sync::Arc;
use std::time::Duration;

use pext4_sync::thread;

use pext4_fs::{AccessTimes, Attributes, Error, InodeNumber, Refusal, StatFs, Volume};
use rustix::io::Errno as Number;

use crate::error_log::ErrorLog;
use crate::node::inode_of;
use crate::options::KernelOptions;
use crate::pending_errors::PendingErrors;
use append_gaps::AppendGaps;
use space_retry::SpaceRetry;

pub use attributes::{Change, Named};
pub use caller::Caller;
pub(crate) use caller::Capability;
pub use data::Whence;
pub use directory::Listed;
pub use namespace::NewMode;
pub use xattr::{NewXattr, XattrReply, fit};

/// The result of a request, or the error number for the caller.
pub type Answer<T> = Result<T, Errno>;

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error.
    pub const IO: Self = Self(Number::IO.raw_os_error());
    /// Operation not permitted.
    pub const NOT_PERMITTED: Self = Self(Number::PERM.raw_os_error());
    /// The mode does not allow the access.
    pub const NO_ACCESS: Self = Self(Number::ACCESS.raw_os_error());
    /// The file system is read-only.
    pub const READ_ONLY: Self = Self(Number::ROFS.raw_os_error());
    /// It cannot be done just now.
    pub const BUSY: Self = Self(Number::BUSY.raw_os_error());
    /// The name or attribute exists already.
    pub const EXISTS: Self = Self(Number::EXIST.raw_os_error());
    /// No space left.
    pub const NO_SPACE: Self = Self(Number::NOSPC.raw_os_error());
    /// A quota is used up.
    pub const QUOTA: Self = Self(Number::DQUOT.raw_os_error());
    /// Invalid argument.
    pub const INVALID: Self = Self(Number::INVAL.raw_os_error());
    /// No data or hole at this offset.
    pub const NO_SUCH_OFFSET: Self = Self(Number::NXIO.raw_os_error());
    /// The file does not know this `ioctl` command.
    pub const NO_SUCH_COMMAND: Self = Self(Number::NOTTY.raw_os_error());
    /// The caller's buffer is too small.
    pub const RANGE: Self = Self(Number::RANGE.raw_os_error());
    /// The server does not implement this request; the kernel does not send it again.
    pub const NO_SUCH_CALL: Self = Self(Number::NOSYS.raw_os_error());
    /// Not supported.
    pub const NOT_SUPPORTED: Self = Self(Number::OPNOTSUPP.raw_os_error());
    /// There is no such node any more.
    pub const STALE: Self = Self(Number::STALE.raw_os_error());
}

/// A node that was looked up or made; the caller has one more hold on it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its attributes, with the inode number, from which the kernel gets the node's.
    pub attributes: Attributes,
    /// Whether its name leads there until the kernel itself changes that.
    pub is_lasting: bool,
}

/// Executes requests on a volume.
pub struct Dispatch {
    volume: Arc<Volume>,
    error_log: Arc<ErrorLog>,
    /// [immutable]
    access_times: AccessTimePolicies,
    /// [immutable] Whether changes of names are committed before they are answered.
    synchronous_names: bool,
    /// [immutable] Whether all changes are committed before they are answered.
    synchronous: bool,
    /// Errors of listings whose replies have entries.
    listing_errors: PendingErrors<Errno>,
    space_retry: SpaceRetry,
    append_gaps: AppendGaps,
}

/// Which reads change access times.
#[derive(Clone, Copy, Debug)]
struct AccessTimePolicies {
    files: AccessTimes,
    directories: AccessTimes,
}

impl AccessTimePolicies {
    fn from_options(options: &KernelOptions) -> Self {
        let files = options.access_times;
        let directories = match options.directory_access_times {
            true => files,
            false => AccessTimes::Never,
        };
        Self { files, directories }
    }
}

impl Dispatch {
    /// Executes requests on `volume`; errors that an error number cannot describe are written to
    /// `error_log`.
    pub(crate) fn new(
        volume: Arc<Volume>,
        error_log: Arc<ErrorLog>,
        options: &KernelOptions,
    ) -> Self {
        let log = Arc::clone(&error_log);
        volume.observe_corruption(move |corrupt| {
            log.report(&Error::from(corrupt.clone()).to_string());
        });
        Self {
            volume,
            error_log,
            access_times: AccessTimePolicies::from_options(options),
            synchronous_names: options.synchronous || options.synchronous_directories,
            synchronous: options.synchronous,
            listing_errors: PendingErrors::new(),
            space_retry: SpaceRetry::new(),
            append_gaps: AppendGaps::new(),
        }
    }

    /// Updates the access time after a read. The read itself has succeeded, so an error is only
    /// logged.
    fn note_access(&self, inode: InodeNumber, policy: AccessTimes) {
        let _ = self.answer(self.volume.note_access(inode, policy));
    }

    /// Whether the kernel must not keep what is listed of a directory that is opened with `flags`,
    /// nor answer from what it keeps: that is not noted as an access. So it is if each listing is
    /// noted (`strictatime`), and if this one is not (`O_NOATIME`) but a later one may be.
    pub(crate) fn lists_past_cache(&self, flags: i32) -> bool {
        match self.access_times.directories {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            _ => !data::is_access(flags),
        }
    }

    /// Whether the volume refuses changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// The smallest difference between two times of a file.
    #[must_use]
    pub fn time_granularity(&self) -> Duration {
        self.volume.time_granularity()
    }

    /// The numbers for `statfs(2)`.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    /// The number of free blocks.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.volume.statfs().free_blocks
    }

    /// Whether there are more free blocks than `before`, if need be after deleted files were freed.
    /// It may wait, so the transport's threads must not call it.
    pub(crate) fn has_more_space(&self, before: u64) -> bool {
        let check = || match self.free_blocks() > before {
            true => Ok(()),
            false => Err(Error::Refused(Refusal::NoSpace)),
        };
        self.retry_if_full(check).is_ok()
    }

    /// Releases `count` holds on a node; returns whether none is left.
    pub fn forget(&self, node: u64, count: u64) -> bool {
        let inode = inode_of(node).filter(|_| count > 0);
        // The kernel has the root without a lookup, so no reply holds it.
        let Some(inode) = inode.filter(|&inode| inode != InodeNumber::ROOT) else {
            return false;
        };
        self.volume.forget(inode, count);
        let is_held = || self.volume.is_held(inode);
        self.append_gaps.forget_unless(inode, is_held);
        // The next directory with this number has nothing to do with them.
        self.listing_errors.forget_unless(node, is_held);
        !is_held()
    }

    /// Whether somebody holds a node.
    pub(crate) fn is_held(&self, node: u64) -> bool {
        inode_of(node).is_some_and(|inode| self.volume.is_held(inode))
    }

    /// Runs a request on a thread of the transport. `None` if it found no space and deleted files
    /// may be freed at any moment: the caller then repeats the request on a thread that may wait.
    /// Requests can be repeated without harm.
    pub(crate) fn attempt<T>(request: impl FnOnce() -> Answer<T>) -> Option<Answer<T>> {
        space_retry::without_waiting(request)
    }

    /// Runs an operation that may find no space, and repeats it while deleted files may be about to
    /// be freed.
    fn retry_if_full<T>(&self, operation: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let unnamed = || self.volume.unnamed_inodes_fingerprint();
        self.space_retry.run(operation, unnamed, thread::sleep)
    }

    /// Whether a change other than of names is answered only when it is durable. The transport's
    /// threads must not wait for that.
    pub(crate) fn commits_changes(&self) -> bool {
        self.synchronous
    }

    /// On a mount with `-o sync`, waits until a change other than of names is durable. The kernel
    /// does that only for written content.
    fn commit_change(&self) -> Answer<()> {
        if self.synchronous {
            self.answer(self.volume.sync())?;
        }
        Ok(())
    }

    fn inode(node: u64) -> Answer<InodeNumber> {
        inode_of(node).ok_or(Errno::STALE)
    }

    /// The error number for the caller; logs errors that the number does not describe.
    fn errno(&self, error: &Error) -> Errno {
        match error {
            Error::Refused(Refusal::ReadOnly) | Error::Journal(_) => self.report_failure(error),
            Error::Refused(_) => {}
            _ => self.error_log.report(&error.to_string()),
        }
        let errno = Errno(error.errno());
        match error {
            // A quota of this mount is another one than that of who serves it.
            Error::Io(_) | Error::Journal(_) if errno == Errno::QUOTA => Errno::NO_SPACE,
            // Other numbers of the host would say something about a name or a call of this mount.
            Error::Io(_) if errno != Errno::NO_SPACE => Errno::IO,
            _ => errno,
        }
    }

    /// Logs why the volume refuses changes. The failure may have occurred outside of any request,
    /// so no caller may have got its error.
    fn report_failure(&self, error: &Error) {
        let failure = self.volume.failure();
        if let Some(failure) = failure {
            let text = format!("the volume is read-only now: {failure}");
            self.error_log.report_beyond_bound(&text);
        } else if matches!(error, Error::Journal(_)) {
            self.error_log.report(&error.to_string());
        }
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.errno(&error))
    }

    /// As `answer`, but `None` for the error `refusal`.
    fn answer_unless<T>(&self, result: Result<T, Error>, refusal: Refusal) -> Answer<Option<T>> {
        match result {
            Err(error) if error.is(refusal) => Ok(None),
            result => self.answer(result).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use pext4_fs::{Error, JournalError};

    use super::Errno;
    use crate::testing;

    #[test]
    fn a_quota_of_the_host_that_is_used_up_is_lack_of_space() {
        let dispatch = testing::dispatch(&Arc::new(testing::volume()));
        for (kind, told) in [
            (io::ErrorKind::StorageFull, Errno::NO_SPACE),
            (io::ErrorKind::QuotaExceeded, Errno::NO_SPACE),
            (io::ErrorKind::PermissionDenied, Errno::IO),
        ] {
            let errno = dispatch.errno(&Error::Io(kind.into()));
            assert_eq!(errno, told, "{kind}");
            let failed = JournalError::Io {
                operation: "writing to the log",
                cause: Arc::new(kind.into()),
            };
            assert_eq!(dispatch.errno(&failed.into()), told, "{kind}");
        }
    }
}
