//! A counter that many cores add to and few read.
//!
//! Each shard counts on a cache line of its own, and only the sum is meaningful: a single shard may
//! be negative. A sum that is read while other threads add contains only some of their additions,
//! so a caller that must not see a negative sum has to clamp it.

use std::fmt;

use crate::atomic::{AtomicI64, Ordering};
use crate::sharded::Sharded;

/// A sharded signed counter.
pub struct Counter {
    shards: Sharded<AtomicI64>,
}

impl fmt::Debug for Counter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Counter").finish_non_exhaustive()
    }
}

impl Counter {
    /// Zero, with [`crate::topology::shard_count`] shards.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shards: Sharded::new(|_| AtomicI64::new(0)),
        }
    }

    /// Zero, with at least `count` shards.
    #[must_use]
    pub fn with_count(count: usize) -> Self {
        Self {
            shards: Sharded::with_count(count, |_| AtomicI64::new(0)),
        }
    }

    /// Adds `amount`, which may be negative, to the caller's shard.
    #[inline]
    pub fn add(&self, amount: i64) {
        self.shards.local().fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum of all shards; exact if no thread adds meanwhile.
    #[must_use]
    pub fn sum(&self) -> i64 {
        let shards = self
            .shards
            .iter()
            .map(|shard| shard.load(Ordering::Relaxed));
        shards.fold(0, i64::wrapping_add)
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Counter;
    use crate::{thread, topology};

    #[test]
    fn nothing_is_lost_between_shards() {
        let counter = Counter::with_count(8);
        thread::scope(|scope| {
            for number in 0..8 {
                let counter = &counter;
                scope.spawn(move || {
                    // Two threads a shard, so that shards are shared as well.
                    let _pin = topology::pin(number / 2);
                    for step in 0..1000 {
                        counter.add(step);
                        counter.add(-1);
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 8 * (499_500 - 1000));
    }

    #[test]
    fn a_shard_may_be_below_zero() {
        let counter = Counter::with_count(2);
        let first = topology::pin(0);
        counter.add(5);
        drop(first);
        let _second = topology::pin(1);
        counter.add(-3);
        assert_eq!(counter.sum(), 2);
    }
}
