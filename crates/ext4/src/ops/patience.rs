//! Two directories locked at once.
//!
//! In a tree a directory is locked before those below it, and nobody can wait in a circle. An image
//! may hold other shapes: directories with two names, or that contain each other. So whoever holds
//! a directory only *tries* the lock of one below it; if somebody else has that, all locks are given
//! back and the operation begins again under the volume's rename lock. Waiting for a directory
//! while another is held thus happens under that lock alone, and never in a circle, whatever the
//! shape.

use pext4_sync::BiasedWriteGuard;

use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::volume::Volume;

/// How an operation that holds a directory takes the lock of one below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It gives up, with `Refused(Busy)`, if somebody else has it.
    Tries,
    /// It waits; the rename lock is held.
    Waits,
}

impl Patience {
    /// Locks a directory below those held; `step` is its place in the order of this operation.
    pub(super) fn lock(self, inode: &Inode, step: u64) -> Result<BiasedWriteGuard<'_, ()>> {
        match self {
            Self::Tries => Ok(inode.lock.try_write().ok_or(Refusal::Busy)?),
            Self::Waits => Ok(inode.lock.write_keyed(step)),
        }
    }
}

impl Volume {
    /// Runs an operation that locks a directory below another, a second time with patience if that
    /// is needed. The operation refuses with `Busy` for no other reason.
    pub(super) fn twice<R>(&self, mut operation: impl FnMut(Patience) -> Result<R>) -> Result<R> {
        match operation(Patience::Tries) {
            Err(error) if error.is(Refusal::Busy) => {
                let _tree = self.rename_lock.lock();
                operation(Patience::Waits)
            }
            done => done,
        }
    }
}
