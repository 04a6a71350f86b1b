//! A number that many cores add to and that each may look at often.
//!
//! Each shard counts on a line of its own and hands what it has to all only when that has become
//! much, so a look costs a line that is seldom written. The answer is off by less than the slack, which
//! is shared out among the shards.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicI64, Ordering};
use crate::sharded::Sharded;

/// An approximate sharded counter.
pub struct Estimate {
    known: CachePadded<AtomicI64>,
    /// What each shard has not told yet. [atomic; exact only in sum with `known`]
    shards: Sharded<AtomicI64>,
    /// What a shard keeps to itself at most.
    most: i64,
}

impl Estimate {
    /// Zero, to be known up to `slack`.
    #[must_use]
    pub fn new(slack: u64) -> Self {
        let shards = Sharded::new(|_| AtomicI64::new(0));
        let most = slack / shards.count().max(1) as u64;
        Self {
            known: CachePadded::new(AtomicI64::new(0)),
            most: i64::try_from(most).unwrap_or(i64::MAX),
            shards,
        }
    }

    /// Adds `amount`, which may be negative.
    pub fn add(&self, amount: i64) {
        let shard = self.shards.local();
        let own = shard.fetch_add(amount, Ordering::Relaxed) + amount;
        if own.abs() > self.most {
            let told = shard.swap(0, Ordering::Relaxed);
            self.known.fetch_add(told, Ordering::Relaxed);
        }
    }

    /// The sum, or what it was not long ago.
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
    fn it_is_off_by_less_than_the_slack() {
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
