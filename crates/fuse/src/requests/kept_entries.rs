//! Entries of rings that requests keep while the kernel writes a file's pages.
//!
//! The kernel needs free entries for these writes, in the queue of whichever processor it writes
//! from. If requests that wait for the writes kept all entries of a queue, both would wait for
//! ever. So only half of what one queue has may be kept, in all queues together. Over `/dev/fuse`
//! a request keeps nothing.

use std::sync::Arc;

use pext4_fuse_kernel::RING_DEPTH;
use pext4_sync::atomic::{AtomicUsize, Ordering};

/// Most entries that may be kept.
const MAX_KEPT: usize = RING_DEPTH / 2;

/// Counts the entries.
#[derive(Default)]
pub(super) struct KeptEntries(Arc<AtomicUsize>);

/// Stands for an entry, until it is dropped after the reply.
pub(super) struct KeptEntry(Arc<AtomicUsize>);

impl KeptEntries {
    /// Counts one more; `None` if there are as many as may be.
    pub(super) fn keep(&self) -> Option<KeptEntry> {
        let add = |kept| (kept < MAX_KEPT).then_some(kept + 1);
        let added = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.ok().map(|_| KeptEntry(Arc::clone(&self.0)))
    }
}

impl Drop for KeptEntry {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptEntries, RING_DEPTH};

    #[test]
    fn half_of_a_queue_stays_free_for_what_the_kernel_writes() {
        let entries = KeptEntries::default();
        let mut kept: Vec<_> = (0..RING_DEPTH).filter_map(|_| entries.keep()).collect();
        assert_eq!(kept.len(), RING_DEPTH / 2);
        kept.pop();
        kept.extend(entries.keep());
        assert_eq!(kept.len(), RING_DEPTH / 2, "one was given back");
        assert!(entries.keep().is_none());
    }
}
