//! Errors of writes that nobody waits for.
//!
//! The kernel takes what a process writes and writes it later (`WRITEBACK_CACHE`). When that fails,
//! for want of space say, the process learns it from `close` or `fsync`; one that only goes on
//! writing would never learn it, and fill the file without an end. So the error is kept here, and
//! the kernel is told to forget the file's attributes: it asks for them before the next write, and
//! is answered the error, once.

use std::collections::HashMap;

use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::order::Class;

use crate::dispatch::Errno;

/// What became of a late write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) errno: Errno,
    /// Blocks that were free when it failed.
    pub(crate) free_blocks: u64,
}

/// Errors by node, each to be told once.
pub(crate) struct Overdue {
    errors: Mutex<HashMap<u64, Late>>,
    /// Hint: whether there are any, so that requests on a sound volume pay for a load only.
    any: AtomicBool,
}

impl Overdue {
    pub(crate) fn new() -> Self {
        Self {
            errors: Mutex::new(Class::Leaf, HashMap::new()),
            any: AtomicBool::new(false),
        }
    }

    /// Keeps an error of a write that was answered long ago.
    pub(crate) fn keep(&self, node: u64, late: Late) {
        self.errors.lock().insert(node, late);
        self.any.store(true, Ordering::Release);
    }

    /// Takes the error of a node, if there is one.
    pub(crate) fn take(&self, node: u64) -> Option<Late> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut errors = self.errors.lock();
        let taken = errors.remove(&node);
        self.any.store(!errors.is_empty(), Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, Late, Overdue};

    #[test]
    fn an_error_is_told_once_and_to_its_node_only() {
        let overdue = Overdue::new();
        let late = |errno| Late {
            errno,
            free_blocks: 7,
        };
        assert_eq!(overdue.take(5), None);
        overdue.keep(5, late(Errno::IO));
        overdue.keep(6, late(Errno::INVALID));
        assert_eq!(overdue.take(7), None);
        assert_eq!(overdue.take(5), Some(late(Errno::IO)));
        assert_eq!(overdue.take(5), None);
        assert_eq!(overdue.take(6), Some(late(Errno::INVALID)));
    }
}
