//! A bound for reads, where numbers in the image could ask for more blocks than the image has.

use pext4_sync::atomic::{AtomicU64, Ordering};

/// The number of blocks that all threads together may still read.
pub(super) struct Budget(AtomicU64);

impl Budget {
    pub(super) fn new(blocks: u64) -> Self {
        Self(AtomicU64::new(blocks))
    }

    /// Takes a number of blocks. False if fewer are left; then none is taken.
    pub(super) fn take(&self, blocks: u64) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self
            .0
            .fetch_update(relaxed, relaxed, |left| left.checked_sub(blocks));
        taken.is_ok()
    }
}
