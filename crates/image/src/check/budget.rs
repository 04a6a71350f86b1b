//! How much more may be read: where numbers in the image could ask for more than the image has.

use pext4_sync::atomic::{AtomicU64, Ordering};

/// Blocks that all threads together may still read.
pub(super) struct Budget(AtomicU64);

impl Budget {
    pub(super) fn new(blocks: u64) -> Self {
        Self(AtomicU64::new(blocks))
    }

    /// Takes so many; false where they are not left.
    pub(super) fn take(&self, blocks: u64) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self
            .0
            .fetch_update(relaxed, relaxed, |left| left.checked_sub(blocks));
        taken.is_ok()
    }
}
