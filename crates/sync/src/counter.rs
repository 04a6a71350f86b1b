//! Counters that many cores add to and few read.
//!
//! A thread that has a ticket (`ticket.rs`) counts in a place of its own, by a load and a store,
//! if there is one for its ticket. Other threads count in the place of their shard by atomic
//! additions. Each place is on cache lines of its own, and only the sum of all is meaningful: one
//! may be negative. A sum that is read while other threads add contains only some of their
//! additions, so a caller that must not see a negative sum has to clamp it.

use std::fmt;

use crate::CachePadded;
use crate::atomic::{AtomicI64, Ordering};
use crate::sharded::Sharded;
use crate::topology;

/// `N` signed counters, whose places are beside each other.
pub struct Counters<const N: usize> {
    /// By ticket. [atomic; written by its owner only]
    owned: Box<[CachePadded<[AtomicI64; N]>]>,
    /// [atomic]
    shared: Sharded<[AtomicI64; N]>,
}

impl<const N: usize> fmt::Debug for Counters<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl<const N: usize> Counters<N> {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        let owned = if cfg!(loom) {
            0
        } else {
            topology::spare_count()
        };
        Self {
            owned: (0..owned).map(|_| CachePadded::new(zeroes())).collect(),
            shared: Sharded::new(|_| zeroes()),
        }
    }

    /// All zero, with at least `count` shards and no places of threads.
    #[must_use]
    pub fn with_count(count: usize) -> Self {
        Self {
            owned: Box::default(),
            shared: Sharded::with_count(count, |_| zeroes()),
        }
    }

    /// Adds `amount`, which may be negative, to the counter of this index.
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    #[inline]
    pub fn add(&self, index: usize, amount: i64) {
        if let Some(own) = self.own() {
            let counter = &own[index];
            let sum = counter.load(Ordering::Relaxed).wrapping_add(amount);
            counter.store(sum, Ordering::Relaxed);
        } else {
            self.shared.local()[index].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// The sum of all places of a counter; exact if no thread adds meanwhile.
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    #[must_use]
    pub fn sum(&self, index: usize) -> i64 {
        let owned = self.owned.iter().map(|place| &**place);
        let places = owned.chain(self.shared.iter());
        let counts = places.map(|place| place[index].load(Ordering::Relaxed));
        counts.fold(0, i64::wrapping_add)
    }

    /// The caller's own place, if it has one.
    #[cfg(not(loom))]
    #[inline]
    fn own(&self) -> Option<&[AtomicI64; N]> {
        if self.owned.is_empty() {
            return None;
        }
        let place = self.owned.get(crate::ticket::own()?);
        place.map(|place| &**place)
    }

    /// A model has shards only.
    #[cfg(loom)]
    fn own(&self) -> Option<&[AtomicI64; N]> {
        None
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self::new()
    }
}

fn zeroes<const N: usize>() -> [AtomicI64; N] {
    std::array::from_fn(|_| AtomicI64::new(0))
}

/// One such counter.
#[derive(Debug, Default)]
pub struct Counter(Counters<1>);

impl Counter {
    /// Zero.
    #[must_use]
    pub fn new() -> Self {
        Self(Counters::new())
    }

    /// Zero, with at least `count` shards and no places of threads: with one shard, all threads
    /// count in one place.
    #[must_use]
    pub fn with_count(count: usize) -> Self {
        Self(Counters::with_count(count))
    }

    /// Adds `amount`, which may be negative.
    #[inline]
    pub fn add(&self, amount: i64) {
        self.0.add(0, amount);
    }

    /// The sum of all places; exact if no thread adds meanwhile.
    #[must_use]
    pub fn sum(&self) -> i64 {
        self.0.sum(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Counter, Counters};
    use crate::{thread, topology};

    #[test]
    fn nothing_is_lost_between_threads_with_and_without_places_of_their_own() {
        let counters = Counters::<3>::new();
        let threads = 4 + 2 * i64::try_from(counters.owned.len()).expect("small");
        // Those that ended leave their places to others.
        for _ in 0..2 {
            thread::scope(|scope| {
                for number in 0..threads {
                    let counters = &counters;
                    scope.spawn(move || {
                        // Some stand for a shard.
                        let _pin = (number % 5 == 0).then(|| topology::pin(1));
                        for step in 0..20_000 {
                            counters.add(0, step);
                            counters.add(2, -1);
                        }
                    });
                }
            });
        }
        let sums = [0, 1, 2].map(|index| counters.sum(index));
        assert_eq!(sums, [2 * threads * 199_990_000, 0, -2 * threads * 20_000]);
    }

    #[test]
    fn a_thread_counts_in_its_own_place_and_who_stands_for_a_shard_there() {
        let counters = Counters::<1>::new();
        counters.add(0, 5);
        let shared = |counters: &Counters<1>| {
            let shards = counters.shared.iter();
            let counts = shards.map(|shard| shard[0].load(super::Ordering::Relaxed));
            counts.collect::<Vec<_>>()
        };
        assert!(shared(&counters).iter().all(|&count| count == 0));
        let _pin = topology::pin(1);
        counters.add(0, -8);
        assert_eq!(shared(&counters)[1], -8);
        assert_eq!(counters.sum(0), -3);
    }

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
