//! Errors of writes from the kernel's page cache.
//!
//! With `WRITEBACK_CACHE` the kernel acknowledges a write at once and sends it to the server later.
//! If the server then fails, for example because the volume is full, the process gets the error
//! from `close` or `fsync`. A process that only continues to write would never get it, and would
//! write on without end. So the server keeps the error here and makes the kernel drop the file's
//! attributes: the kernel asks for them before the next write, and the server answers with the
//! error, once.

use std::collections::HashMap;

use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::order::Class;

use crate::dispatch::Errno;

/// Why a write from the page cache failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritebackError {
    pub(crate) errno: Errno,
    /// Blocks that were free when it failed.
    pub(crate) free_blocks: u64,
}

/// Errors by node, each to be reported once.
pub(crate) struct WritebackErrors {
    errors: Mutex<HashMap<u64, WritebackError>>,
    /// Hint: whether there are any, so that requests without errors cost one load only.
    has_any: AtomicBool,
}

impl WritebackErrors {
    pub(crate) fn new() -> Self {
        Self {
            errors: Mutex::new(Class::Leaf, HashMap::new()),
            has_any: AtomicBool::new(false),
        }
    }

    /// Records an error of a write that the kernel has acknowledged to its process before.
    pub(crate) fn record(&self, node: u64, error: WritebackError) {
        self.errors.lock().insert(node, error);
        self.has_any.store(true, Ordering::Release);
    }

    /// Removes and returns the error of a node, if there is one.
    pub(crate) fn take(&self, node: u64) -> Option<WritebackError> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut errors = self.errors.lock();
        let taken = errors.remove(&node);
        self.has_any.store(!errors.is_empty(), Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, WritebackError, WritebackErrors};

    #[test]
    fn an_error_is_reported_once_and_for_its_node_only() {
        let errors = WritebackErrors::new();
        let error = |errno| WritebackError {
            errno,
            free_blocks: 7,
        };
        assert_eq!(errors.take(5), None);
        errors.record(5, error(Errno::IO));
        errors.record(6, error(Errno::INVALID));
        assert_eq!(errors.take(7), None);
        assert_eq!(errors.take(5), Some(error(Errno::IO)));
        assert_eq!(errors.take(5), None);
        assert_eq!(errors.take(6), Some(error(Errno::INVALID)));
    }
}
