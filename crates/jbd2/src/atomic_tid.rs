//! A transaction's number, or none, that threads read and set without a lock.

use pext4_ondisk::Tid;
use pext4_sync::atomic::{AtomicU64, Ordering};

/// Marks a number as present: every number of 32 bits is that of a transaction.
const PRESENT: u64 = 1 << 32;

/// A transaction's number, or none. \[atomic\]
#[derive(Debug)]
pub struct AtomicTid(AtomicU64);

impl AtomicTid {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The number, if there is one.
    #[must_use]
    pub fn load(&self, order: Ordering) -> Option<Tid> {
        unpacked(self.0.load(order))
    }

    /// Sets the number.
    pub fn store(&self, tid: Tid, order: Ordering) {
        self.0.store(packed(tid), order);
    }

    /// Sets the number and returns the one before.
    pub fn swap(&self, tid: Tid, order: Ordering) -> Option<Tid> {
        unpacked(self.0.swap(packed(tid), order))
    }
}

impl Default for AtomicTid {
    fn default() -> Self {
        Self::new()
    }
}

fn packed(tid: Tid) -> u64 {
    PRESENT | u64::from(tid.0)
}

fn unpacked(value: u64) -> Option<Tid> {
    let tid = u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits");
    (value & PRESENT != 0).then_some(Tid(tid))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::Tid;
    use pext4_sync::atomic::Ordering;

    use super::AtomicTid;

    #[test]
    fn every_number_differs_from_none() {
        let last = AtomicTid::new();
        assert_eq!(last.load(Ordering::Relaxed), None);
        for tid in [Tid(0), Tid(u32::MAX)] {
            last.store(tid, Ordering::Relaxed);
            assert_eq!(last.load(Ordering::Relaxed), Some(tid));
        }
        assert_eq!(last.swap(Tid(7), Ordering::Relaxed), Some(Tid(u32::MAX)));
    }
}
