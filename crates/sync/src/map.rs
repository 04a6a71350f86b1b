//! A concurrent map.
//!
//! A hash distributes the keys over shards, several times as many as there are cores; each shard is
//! a lock and a table on cache lines of its own, so two operations contend only if their keys are
//! in one shard. Values are returned as clones (usually of an `Arc`) or passed to a closure, which
//! runs under the shard's lock and so must not take locks of the map's class or an earlier one.
//!
//! Operations on all shards ([`Map::len`], [`Map::for_each`], [`Map::retain`]) see the shards at
//! different moments. The order of keys is unspecified.

use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use crate::hash::{NeighbourHash, NumberHash, NumberMap};
use crate::order::Class;
use crate::rwlock::RwLock;
use crate::sharded::Sharded;
use crate::topology;

/// The minimum number of shards of a map of neighbours.
const MIN_NEIGHBOURHOODS: usize = 256;

/// A concurrent map in shards, which `S` chooses.
pub struct Map<K, V, S = NumberHash> {
    hash: S,
    shards: Sharded<RwLock<NumberMap<K, V>>>,
}

impl<K, V, S> fmt::Debug for Map<K, V, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Map").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash, V> Map<K, V> {
    /// An empty map with four shards per core, whose locks are of this class.
    #[must_use]
    pub fn new(class: Class) -> Self {
        Self::with_shards(class, 4 * topology::shard_count())
    }

    fn with_shards(class: Class, count: usize) -> Self {
        Self::sharded_by(NumberHash::default(), class, count)
    }
}

impl<K: Eq + Hash, V> Map<K, V, NeighbourHash> {
    /// An empty map for keys that are numbers: keys that differ only in their lowest `bits` bits
    /// are in one shard, so a core that works on neighbours stays on its own cache lines. There are
    /// eight shards per core, so that the neighbourhoods of several cores are rarely in one shard,
    /// but no fewer than suffice for many threads on few cores: a thread may be preempted while it
    /// holds a shard, and others that want this shard wait until it runs again.
    #[must_use]
    pub fn of_neighbours(class: Class, bits: u32) -> Self {
        let shards = (8 * topology::shard_count()).max(MIN_NEIGHBOURHOODS);
        Self::sharded_by(NeighbourHash::new(bits), class, shards)
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Map<K, V, S> {
    fn sharded_by(hash: S, class: Class, count: usize) -> Self {
        let shards = Sharded::with_count(count, |_| RwLock::new(class, NumberMap::default()));
        Self { hash, shards }
    }

    #[inline]
    fn shard(&self, key: &K) -> &RwLock<NumberMap<K, V>> {
        self.shards.get(self.shard_of(key))
    }

    /// The number of the shard that a key belongs to.
    #[inline]
    pub fn shard_of(&self, key: &K) -> usize {
        // Bits from the middle: the shard's table uses those at both ends.
        let hash = self.hash.hash_one(key) >> 32;
        hash as usize & (self.shards.count() - 1)
    }

    /// The result of `look` on the value, if there is one.
    pub fn get_with<R>(&self, key: &K, look: impl FnOnce(&V) -> R) -> Option<R> {
        self.shard(key).read().get(key).map(look)
    }

    /// Whether there is a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.shard(key).read().contains_key(key)
    }

    /// Sets the value and returns the one before.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        self.shard(&key).write().insert(key, value)
    }

    /// Calls `change` with the place of the key, under the shard's lock.
    pub fn at<R>(&self, key: K, change: impl FnOnce(Entry<'_, K, V>) -> R) -> R {
        change(self.shard(&key).write().entry(key))
    }

    /// Removes the value and returns it.
    pub fn remove(&self, key: &K) -> Option<V> {
        self.shard(key).write().remove(key)
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.read().is_empty())
    }

    /// The number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.shards.count()
    }

    /// The number of values in shard number `shard`.
    #[must_use]
    pub fn shard_len(&self, shard: usize) -> usize {
        self.shards.get(shard).read().len()
    }

    /// Calls `look` for every value of shard number `shard`.
    pub fn for_each_in_shard(&self, shard: usize, mut look: impl FnMut(&K, &V)) {
        for (key, value) in self.shards.get(shard).read().iter() {
            look(key, value);
        }
    }

    /// Calls `look` for every value.
    pub fn for_each(&self, mut look: impl FnMut(&K, &V)) {
        for shard in 0..self.shard_count() {
            self.for_each_in_shard(shard, &mut look);
        }
    }

    /// Drops the values of shard number `shard` for which `keep` returns false.
    pub fn retain_shard(&self, shard: usize, mut keep: impl FnMut(&K, &V) -> bool) {
        self.shards
            .get(shard)
            .write()
            .retain(|key, value| keep(key, value));
    }

    /// Drops the values for which `keep` returns false.
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
        for shard in 0..self.shard_count() {
            self.retain_shard(shard, &mut keep);
        }
    }

    /// Drops all values.
    pub fn clear(&self) {
        for shard in self.shards.iter() {
            shard.write().clear();
        }
    }
}

impl<K: Eq + Hash, V: Clone, S: BuildHasher> Map<K, V, S> {
    /// The value, if there is one.
    pub fn get(&self, key: &K) -> Option<V> {
        self.get_with(key, V::clone)
    }

    /// The value, if there is one, and the number of values in the key's shard.
    pub fn get_and_shard_len(&self, key: &K) -> (Option<V>, usize) {
        let shard = self.shard(key).read();
        (shard.get(key).cloned(), shard.len())
    }

    /// The values of those keys that have one. Locks a shard only once for consecutive keys in it.
    pub fn get_all(&self, keys: impl IntoIterator<Item = K>) -> Vec<V> {
        let mut keys = keys.into_iter().peekable();
        let mut values = Vec::with_capacity(keys.size_hint().0);
        while let Some(key) = keys.peek() {
            let number = self.shard_of(key);
            let shard = self.shards.get(number).read();
            while let Some(key) = keys.next_if(|key| self.shard_of(key) == number) {
                values.extend(shard.get(&key).cloned());
            }
        }
        values
    }

    /// Sets the value unless there is one; returns the current value.
    pub fn insert_if_absent(&self, key: K, value: V) -> V {
        self.shard(&key).write().entry(key).or_insert(value).clone()
    }

    /// The value; if there is none, the result of `make`, which is called once, under the shard's
    /// lock.
    pub fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> V {
        if let Some(value) = self.get(&key) {
            return value;
        }
        self.shard(&key)
            .write()
            .entry(key)
            .or_insert_with(make)
            .clone()
    }

    /// As [`Map::get_or_insert_with`], for a `make` that can fail: then nothing is inserted, and
    /// the next caller tries again.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn get_or_try_insert_with<E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        match self.shard(&key).write().entry(key) {
            Entry::Occupied(entry) => Ok(entry.get().clone()),
            Entry::Vacant(entry) => Ok(entry.insert(make()?).clone()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Map;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::order::Class;
    use crate::thread;

    #[test]
    fn many_keys_are_asked_for_at_once() {
        let map = Map::of_neighbours(Class::Leaf, 2);
        for key in [3u32, 4, 5, 9] {
            map.insert(key, key * 10);
        }
        assert_eq!(map.get_all(0..=8), [30, 40, 50]);
        assert_eq!(map.get_all([9, 9, 1]), [90, 90]);
    }

    #[test]
    fn holds_what_was_put() {
        let map = Map::new(Class::Leaf);
        assert_eq!(map.insert(1u64, "one"), None);
        assert_eq!(map.insert(1, "uno"), Some("one"));
        assert_eq!(map.insert_if_absent(1, "un"), "uno");
        assert_eq!(map.insert_if_absent(2, "two"), "two");
        assert_eq!(map.get_or_insert_with(3, || "three"), "three");
        assert_eq!(
            map.get_or_insert_with(3, || unreachable!("it is there")),
            "three"
        );
        assert_eq!(map.get_with(&2, |value| value.len()), Some(3));
        assert_eq!(map.len(), 3);
        assert_eq!(map.remove(&2), Some("two"));
        assert_eq!(map.remove(&2), None);
        assert!(!map.contains_key(&2));
    }

    #[test]
    fn retain_and_for_each_reach_every_shard() {
        let map = Map::with_shards(Class::Leaf, 8);
        for number in 0..1000u64 {
            map.insert(number, number);
        }
        map.retain(|key, _| key % 3 == 0);
        assert_eq!(map.len(), 334);
        let mut sum = 0;
        map.for_each(|_, value| sum += value);
        assert_eq!(sum, (0..1000).step_by(3).sum::<u64>());
        let mut largest = 0;
        for shard in 0..map.shard_count() {
            let mut count = 0;
            map.for_each_in_shard(shard, |_, _| count += 1);
            largest = largest.max(count);
        }
        assert!(largest < 334 / 2, "the keys are spread over the shards");
        map.clear();
        assert!(map.is_empty());
    }

    #[test]
    fn one_of_many_makes_the_value() {
        let map = Map::new(Class::Leaf);
        let made = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..500u64 {
                        let number = map.get_or_insert_with(key, || {
                            made.fetch_add(1, Ordering::Relaxed);
                            key + 1
                        });
                        assert_eq!(number, key + 1);
                    }
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn one_of_many_removes_the_value() {
        let map = Map::new(Class::Leaf);
        for key in 0..500u64 {
            map.insert(key, ());
        }
        let removed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..500 {
                        if map.remove(&key).is_some() {
                            removed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(removed.load(Ordering::Relaxed), 500);
    }
}
