//! An approximate counter that many cores add to and may read often.
//!
//! Each shard counts on a cache line of its own, and adds its count to the common one only when it
//! exceeds a bound, so a read touches a line that is seldom written. The result is off by at most
//! the slack, which is divided among the shards.

use std::fmt;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicI64, Ordering};
use crate::sharded::Sharded;

/// An approximate sharded counter.
pub struct Estimate {
    known: CachePadded<AtomicI64>,
    /// What each shard has not added to `known` yet. [atomic; exact only in sum with `known`]
    shards: Sharded<AtomicI64>,
    /// The maximum absolute value that a shard keeps.
    max: i64,
}

impl fmt::Debug for Estimate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Estimate")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl Estimate {
    /// Zero, with an error of at most `slack`.
    #[must_use]
    pub fn new(slack: u64) -> Self {
        let shards = Sharded::new(|_| AtomicI64::new(0));
        let max = slack / shards.count().max(1) as u64;
        Self {
            known: CachePadded::new(AtomicI64::new(0)),
            max: i64::try_from(max).unwrap_or(i64::MAX),
            shards,
        }
    }

    /// Adds `amount`, which may be negative.
    pub fn add(&self, amount: i64) {
        let shard = self.shards.local();
        let own = shard.fetch_add(amount, Ordering::Relaxed) + amount;
        if own.abs() > self.max {
            let moved = shard.swap(0, Ordering::Relaxed);
            self.known.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// The approximate sum.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.known.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Estimate;
    use crate::topology;

    #[test]
    fn it_is_off_by_at_most_the_slack() {
        let estimate = Estimate::new(100);
        let mut sum = 0;
        for step in 0..10_000_i64 {
            let _pin = topology::pin(usize::try_from(step % 7).expect("small"));
            let amount = if step % 3 == 0 { -1 } else { 2 };
            estimate.add(amount);
            sum += amount;
            assert!((estimate.get() - sum).abs() <= 100, "{step}");
        }
        assert!(estimate.get() > 9_000, "it follows: {}", estimate.get());
    }

    #[test]
    fn without_slack_it_is_exact() {
        let estimate = Estimate::new(0);
        for amount in [1, 1, -2, 5] {
            estimate.add(amount);
        }
        assert_eq!(estimate.get(), 5);
    }
}
