//! Errors that cannot be returned by the request that meets them, and are returned by a later
//! request for the same node, once.
//!
//! - *Writes from the page cache.* With `WRITEBACK_CACHE` the kernel acknowledges a write at once
//!   and sends it to the server later. If the server then fails, for example because the volume is
//!   full, the process gets the error from `close` or `fsync`. A process that only continues to
//!   write would never get it, and would write on without end. So the server keeps the error here
//!   and makes the kernel drop the file's attributes: the kernel asks for them before the next
//!   write, and the server answers with the error.
//! - *Listings.* A reply can return either entries or an error. If a part of a directory cannot be
//!   read, the reply returns the entries around it, and the error is returned at the end of the
//!   directory: by then the listing has passed the damage and will not meet it again. Several
//!   listings of a directory may go on at once, each with an error of its own to return. One that
//!   ends early leaves its error to a later one, or to nobody if the kernel forgets the directory.

use std::collections::HashMap;

use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::order::Class;

/// Maximum number of errors of a node.
const MAX_ERRORS: usize = 64;

/// Errors by node, each to be returned once.
pub(crate) struct PendingErrors<E> {
    errors: Mutex<HashMap<u64, Vec<E>>>,
    /// Hint: whether there are any, so that requests without errors cost one load only.
    has_any: AtomicBool,
}

impl<E> PendingErrors<E> {
    pub(crate) fn new() -> Self {
        Self {
            errors: Mutex::new(Class::Leaf, HashMap::new()),
            has_any: AtomicBool::new(false),
        }
    }

    /// Records the error of a node; it replaces earlier ones.
    pub(crate) fn record(&self, node: u64, error: E) {
        self.errors.lock().insert(node, vec![error]);
        self.has_any.store(true, Ordering::Release);
    }

    /// Records one more error of a node, for one more request.
    pub(crate) fn add(&self, node: u64, error: E) {
        let mut errors = self.errors.lock();
        let of_node = errors.entry(node).or_default();
        if of_node.len() < MAX_ERRORS {
            of_node.push(error);
        }
        self.has_any.store(true, Ordering::Release);
    }

    /// Removes and returns the error of a node, if there is one.
    pub(crate) fn take(&self, node: u64) -> Option<E> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut errors = self.errors.lock();
        let of_node = errors.get_mut(&node)?;
        let taken = of_node.pop();
        if of_node.is_empty() {
            errors.remove(&node);
            self.has_any.store(!errors.is_empty(), Ordering::Release);
        }
        taken
    }

    /// Drops the errors of a node if nobody holds it now: an error is added for somebody who does.
    pub(crate) fn forget_unless(&self, node: u64, is_held: impl FnOnce() -> bool) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        let mut errors = self.errors.lock();
        if !is_held() {
            errors.remove(&node);
            self.has_any.store(!errors.is_empty(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PendingErrors;

    #[test]
    fn an_error_is_returned_once_and_for_its_node_only() {
        let errors = PendingErrors::new();
        assert_eq!(errors.take(5), None);
        errors.record(5, "first");
        errors.record(6, "second");
        assert_eq!(errors.take(7), None);
        assert_eq!(errors.take(5), Some("first"));
        assert_eq!(errors.take(5), None);
        assert_eq!(errors.take(6), Some("second"));
    }

    #[test]
    fn each_listing_has_an_error_and_a_write_the_last() {
        let errors = PendingErrors::new();
        errors.add(5, "one");
        errors.add(5, "other");
        assert!(errors.take(5).is_some() && errors.take(5).is_some());
        assert_eq!(errors.take(5), None);
        errors.record(5, "old");
        errors.record(5, "new");
        assert_eq!((errors.take(5), errors.take(5)), (Some("new"), None));
        for _ in 0..2 * super::MAX_ERRORS {
            errors.add(5, "of listings that ended early");
        }
        let left = std::iter::from_fn(|| errors.take(5)).count();
        assert_eq!(left, super::MAX_ERRORS);
    }

    #[test]
    fn errors_of_a_node_that_is_forgotten_are_gone() {
        let errors = PendingErrors::new();
        errors.add(5, "of a listing");
        errors.add(5, "of another");
        errors.add(6, "of another directory");
        errors.forget_unless(5, || {
            let is_locked = errors.errors.try_lock().is_none();
            assert!(is_locked, "no error can be added now");
            false
        });
        errors.forget_unless(6, || true);
        assert_eq!(
            (errors.take(5), errors.take(6)),
            (None, Some("of another directory"))
        );
        errors.forget_unless(6, || unreachable!("there are no errors"));
    }
}
