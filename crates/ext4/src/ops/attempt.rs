//! Operations that run with few locks first, and again with more if those are not enough.
//!
//! An [`Attempt`] that needs more locks takes back what it did, releases its locks, and ends with
//! [`AttemptError::Restart`]. Two functions run attempts: [`Volume::in_leaf_or_whole`] for one name
//! in one directory, and [`Volume::retry_under_rename_lock`] for two directories at once.
//!
//! Two directories: in a tree a directory is locked before those below it, so no threads can wait
//! in a circle. An image may have other shapes: directories with two names, or directories that
//! contain each other. So an operation that holds a directory only *tries* the lock of one below
//! it. If another thread holds that lock, the operation releases all its locks and starts again
//! under the volume's rename lock. A thread thus waits for a directory while it holds another only
//! under the rename lock, and never in a circle, whatever the shape.

use pext4_jbd2::Handle;
use pext4_sync::BiasedWriteGuard;

use crate::error::{Error, Refusal, Result};
use crate::inode::Inode;
use crate::volume::Volume;

/// The result of an attempt at an operation.
pub(super) type Attempt<T> = std::result::Result<T, AttemptError>;

/// Why an attempt has no result.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// The locks are not enough; nothing is changed, and the caller runs the operation with more.
    Restart,
    /// The operation fails with this error.
    Failed(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for AttemptError {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal.into())
    }
}

/// The result of an attempt that held all locks there are.
pub(super) fn last_attempt<T>(attempt: Attempt<T>) -> Result<T> {
    attempt.map_err(|error| match error {
        AttemptError::Failed(error) => error,
        AttemptError::Restart => unreachable!("no attempt can have more locks"),
    })
}

/// How an operation that holds a directory takes the lock of one below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// If another thread holds the lock, the attempt restarts.
    Try,
    /// The operation waits for the lock; it holds the rename lock.
    Wait,
}

impl LockMode {
    /// Locks a directory below those held; `step` is its place in this operation's lock order.
    pub(super) fn lock(self, inode: &Inode, step: u64) -> Attempt<BiasedWriteGuard<'_, ()>> {
        match self {
            Self::Try => inode.lock.try_write().ok_or(AttemptError::Restart),
            Self::Wait => Ok(inode.lock.write_keyed(step)),
        }
    }
}

impl Volume {
    /// As [`Volume::stop_if_half_done`], for the result of an attempt.
    pub(super) fn stop_if_attempt_half_done<R>(
        &self,
        handle: &Handle<'_>,
        before: u64,
        attempt: Attempt<R>,
    ) -> Attempt<R> {
        match attempt {
            Err(AttemptError::Failed(error)) => {
                Ok(self.stop_if_half_done(handle, before, Err(error))?)
            }
            attempt => attempt,
        }
    }

    /// Runs an operation that locks a directory below another: first trying that lock, then, if
    /// the attempt restarts, waiting for it under the rename lock.
    pub(super) fn retry_under_rename_lock<R>(
        &self,
        mut operation: impl FnMut(LockMode) -> Attempt<R>,
    ) -> Result<R> {
        match operation(LockMode::Try) {
            Ok(done) => Ok(done),
            Err(AttemptError::Failed(error)) => Err(error),
            Err(AttemptError::Restart) => {
                let _tree = self.rename_lock.lock();
                last_attempt(operation(LockMode::Wait))
            }
        }
    }
}
