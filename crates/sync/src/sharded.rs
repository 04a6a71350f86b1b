//! An array with one element per shard, each on cache lines of its own.

use std::fmt;

use crossbeam_utils::CachePadded;

use crate::topology;

/// One `T` per shard; the number of shards is a power of two.
pub struct Sharded<T> {
    shards: Box<[CachePadded<T>]>,
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sharded").finish_non_exhaustive()
    }
}

impl<T> Sharded<T> {
    /// An array of [`topology::shard_count`] elements; `make` gets each shard's number.
    pub fn new(make: impl FnMut(usize) -> T) -> Self {
        Self::with_count(topology::shard_count(), make)
    }

    /// An array of `count` elements, rounded up to a power of two.
    pub fn with_count(count: usize, mut make: impl FnMut(usize) -> T) -> Self {
        let count = count.max(1).next_power_of_two();
        Self {
            shards: (0..count)
                .map(|shard| CachePadded::new(make(shard)))
                .collect(),
        }
    }

    /// The element of the caller's shard.
    #[inline]
    pub fn local(&self) -> &T {
        &self.shards[self.local_index()]
    }

    /// The result of `attempt` on the element of the caller's shard or, if that is `None`, on one
    /// of three others. For elements that only threads of one core lock: if one is locked, its
    /// holder was preempted, and the caller would wait until the holder runs again. If there are
    /// many more shards than cores, the three others belong to the caller's core too.
    #[inline]
    pub fn nearby<'a, R>(&'a self, mut attempt: impl FnMut(&'a T) -> Option<R>) -> Option<R> {
        let own = self.local_index();
        attempt(&self.shards[own]).or_else(|| {
            let count = self.shards.len();
            let others = [2, 1, 3].map(|quarters| (own + quarters * count / 4) & (count - 1));
            others
                .into_iter()
                .find_map(|other| attempt(&self.shards[other]))
        })
    }

    /// The number of the caller's shard.
    #[inline]
    #[must_use]
    pub fn local_index(&self) -> usize {
        topology::current_of(self.shards.len())
    }

    /// The element with this number.
    ///
    /// # Panics
    ///
    /// If there is no such shard.
    #[inline]
    pub fn get(&self, shard: usize) -> &T {
        &self.shards[shard]
    }

    /// The number of shards.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// All elements, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator {
        self.shards.iter().map(|shard| &**shard)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Sharded;
    use crate::topology;

    #[test]
    fn local_follows_the_pin() {
        let shards = Sharded::with_count(64, |shard| shard);
        for number in [0, 1, 63] {
            let _pin = topology::pin(number);
            assert_eq!(*shards.local(), number);
            assert_eq!(shards.local_index(), number);
        }
        let _pin = topology::pin(64);
        assert_eq!(*shards.local(), 0);
    }

    #[test]
    fn other_shards_are_tried_once_each_if_the_own_one_fails() {
        let shards = Sharded::with_count(8, |shard| shard);
        let _pin = topology::pin(5);
        assert_eq!(shards.nearby(|shard| Some(*shard)), Some(5));
        assert_eq!(
            shards.nearby(|shard| (*shard != 5).then_some(*shard)),
            Some(1)
        );
        let mut asked = Vec::new();
        let refuse = |shard: &usize| {
            asked.push(*shard);
            None::<()>
        };
        assert_eq!(shards.nearby(refuse), None);
        assert_eq!(asked, [5, 1, 7, 3]);
    }

    #[test]
    fn counts_round_up_and_elements_keep_their_distance() {
        let shards = Sharded::with_count(5, |shard| shard as u8);
        assert_eq!(shards.count(), 8);
        assert_eq!(
            shards.iter().copied().collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
        let first = std::ptr::from_ref(shards.get(0)).addr();
        let second = std::ptr::from_ref(shards.get(1)).addr();
        assert!(second - first >= 64);
    }
}
