//! A small cache in front of a map, one per shard: values that a core requests often are found, and
//! held, without writing a cache line that another core reads.
//!
//! Users of a map of `Arc`s contend for the reference count inside each of them: two cores that
//! only read one directory write one cache line in turn. So a value that a shard has requested
//! several times gets a second reference count of the shard's own, an `Arc` around the `Arc`, which
//! later requests from that shard share ([`ShardRef`]).
//!
//! A cached value may be stale: the caller supplies a function that tests whether it is still
//! valid, and one that finds the value otherwise. A cached value is a reference like any other, so
//! it counts in tests for other references until other keys have replaced it.
//!
//! Locking: a shard's places are under a lock of class `Leaf`. It is only tried, since its holder
//! may be a preempted thread of the same shard; if it is held, the map is used instead. Values are
//! found and dropped outside of the lock.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::lock::Mutex;
use crate::order::Class;
use crate::sharded::Sharded;

/// A key's value is cached once the key was requested this many times more often than keys of its
/// set that found no place.
const PATIENCE: u8 = 3;
/// The maximum number of requests for keys without a place that a cached key outlasts.
const MAX_CREDIT: u8 = 15;
/// The associativity: two keys of one set that are both requested often do not evict each other.
const WAYS: usize = 2;

/// 2^64 over the golden ratio: a multiple of it spreads equidistant keys evenly (Knuth, The Art of
/// Computer Programming, 6.4).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Caches, by shard, values that are requested often.
pub struct ShardCache<V> {
    shards: Sharded<Mutex<Ways<V>>>,
}

impl<V> fmt::Debug for ShardCache<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ShardCache").finish_non_exhaustive()
    }
}

type Ways<V> = Box<[Way<V>]>;

/// One place of a shard's cache: a key, and its value once it was requested often.
struct Way<V> {
    key: Option<u64>,
    /// The requests for this key minus those for keys that found no place here; at 0 the place is
    /// free.
    credit: u8,
    value: Option<Arc<CachePadded<Arc<V>>>>,
}

/// A reference to a value, with the value's own reference count or with one of the caller's shard.
pub enum ShardRef<V> {
    /// Counted by the value's own count.
    Own(Arc<V>),
    /// Counted by the shard's count.
    Shard(Arc<CachePadded<Arc<V>>>),
}

impl<V: fmt::Debug> fmt::Debug for ShardRef<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (***self).fmt(formatter)
    }
}

impl<V> Deref for ShardRef<V> {
    type Target = Arc<V>;

    #[inline]
    fn deref(&self) -> &Arc<V> {
        match self {
            Self::Own(value) => value,
            Self::Shard(value) => value,
        }
    }
}

impl<V> ShardRef<V> {
    /// Converts it into a reference with the value's own count, for a caller that keeps it.
    #[must_use]
    pub fn into_own(self) -> Arc<V> {
        match self {
            Self::Own(value) => value,
            Self::Shard(value) => Arc::clone(&value),
        }
    }
}

/// The result of a lookup.
enum Seen<V> {
    Remembered(ShardRef<V>),
    /// Not cached; true if it should be cached once it is found.
    Absent(bool),
}

impl<V> ShardCache<V> {
    /// A cache of `places` values per shard, rounded up to a power of two.
    #[must_use]
    pub fn new(places: usize) -> Self {
        let places = places.max(WAYS).next_power_of_two();
        let empty = || Way {
            key: None,
            credit: 0,
            value: None,
        };
        Self {
            shards: Sharded::new(|_| {
                Mutex::new(Class::Leaf, (0..places).map(|_| empty()).collect())
            }),
        }
    }

    /// The value of `key`: a cached one for which `is_valid` returns true, else the result of
    /// `find`.
    ///
    /// # Errors
    ///
    /// Those of `find`.
    #[inline]
    pub fn get<E>(
        &self,
        key: u64,
        is_valid: impl FnOnce(&V) -> bool,
        find: impl FnOnce() -> Result<Arc<V>, E>,
    ) -> Result<ShardRef<V>, E> {
        let remember = match self.look(key) {
            Seen::Remembered(value) if is_valid(&value) => return Ok(value),
            Seen::Remembered(_) => true,
            Seen::Absent(remember) => remember,
        };
        let value = find()?;
        Ok(if remember {
            self.remember(key, value)
        } else {
            ShardRef::Own(value)
        })
    }

    fn look(&self, key: u64) -> Seen<V> {
        let Some(mut places) = self.shards.local().try_lock() else {
            return Seen::Absent(false);
        };
        let ways = at(&mut places, key);
        if let Some(place) = ways.iter_mut().find(|place| place.key == Some(key)) {
            // Written only if it changes: the places of two shards may lie on one cache line.
            if place.credit < MAX_CREDIT {
                place.credit += 1;
            }
            return match &place.value {
                Some(value) => Seen::Remembered(ShardRef::Shard(Arc::clone(value))),
                None => Seen::Absent(place.credit > PATIENCE),
            };
        }
        let Some(place) = ways.iter_mut().find(|place| place.credit == 0) else {
            ways.iter_mut().for_each(|place| place.credit -= 1);
            return Seen::Absent(false);
        };
        place.key = Some(key);
        place.credit = 1;
        let gone = place.value.take();
        // Dropping the last reference of a value may take too long, or other locks, for this lock.
        drop(places);
        drop(gone);
        Seen::Absent(false)
    }

    #[cold]
    fn remember(&self, key: u64, value: Arc<V>) -> ShardRef<V> {
        let value = Arc::new(CachePadded::new(value));
        let mut before = None;
        if let Some(mut places) = self.shards.local().try_lock() {
            let mut ways = at(&mut places, key).iter_mut();
            if let Some(place) = ways.find(|place| place.key == Some(key)) {
                before = place.value.replace(Arc::clone(&value));
            }
        }
        drop(before);
        ShardRef::Shard(value)
    }

    /// Drops all cached values of all shards.
    pub fn clear(&self) {
        for shard in self.shards.iter() {
            let mut gone = Vec::new();
            for place in shard.lock().iter_mut() {
                place.key = None;
                place.credit = 0;
                gone.extend(place.value.take());
            }
        }
    }
}

/// The places of a key's set. All bits of the key count: directories are spread over groups, and
/// the numbers of their inodes and blocks often differ by multiples of a large power of two.
fn at<V>(places: &mut [Way<V>], key: u64) -> &mut [Way<V>] {
    let mask = places.len() / WAYS - 1;
    let set = (key.wrapping_mul(SPREAD) >> 32) as usize & mask;
    &mut places[set * WAYS..][..WAYS]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::{PATIENCE, ShardCache, ShardRef};
    use crate::topology;

    fn ask(cache: &ShardCache<u64>, value: &Arc<u64>) -> ShardRef<u64> {
        let found: Result<_, Infallible> = cache.get(**value, |_| true, || Ok(Arc::clone(value)));
        found.expect("it cannot fail")
    }

    #[test]
    fn what_is_asked_for_often_is_held_by_the_shards_own_count() {
        let cache = ShardCache::new(4);
        let value = Arc::new(5);
        let _pin = topology::pin(0);
        for _ in 0..PATIENCE {
            assert!(matches!(ask(&cache, &value), ShardRef::Own(_)));
        }
        let first = ask(&cache, &value);
        let counts = Arc::strong_count(&value);
        let second = ask(&cache, &value);
        assert!(matches!(
            (&first, &second),
            (ShardRef::Shard(_), ShardRef::Shard(_))
        ));
        assert_eq!(
            Arc::strong_count(&value),
            counts,
            "the value's line is left alone"
        );
        let _pin = topology::pin(1);
        assert!(
            matches!(ask(&cache, &value), ShardRef::Own(_)),
            "another shard asks for itself"
        );
    }

    #[test]
    fn a_value_that_no_longer_counts_is_found_anew() {
        let cache = ShardCache::new(4);
        let _pin = topology::pin(0);
        let old = Arc::new(5);
        for _ in 0..=PATIENCE {
            ask(&cache, &old);
        }
        let new = Arc::new(5);
        let found: Result<_, Infallible> = cache.get(
            5,
            |value| !std::ptr::eq(value, &raw const *old),
            || Ok(Arc::clone(&new)),
        );
        assert!(Arc::ptr_eq(&found.expect("it cannot fail"), &new));
        assert!(Arc::ptr_eq(&ask(&cache, &old), &new), "and remembered");
        assert_eq!(Arc::strong_count(&old), 1);
    }

    #[test]
    fn two_keys_of_one_place_are_both_remembered() {
        let cache = ShardCache::new(1);
        let _pin = topology::pin(0);
        let values = [5, 6].map(Arc::new);
        for _ in 0..=4 * PATIENCE {
            values.iter().for_each(|value| drop(ask(&cache, value)));
        }
        assert_eq!(values.each_ref().map(Arc::strong_count), [2, 2]);
    }

    #[test]
    fn keys_at_equal_distances_are_all_remembered() {
        let _pin = topology::pin(0);
        for distance in [1, 8, 32, 8192, 32768, 1 << 17] {
            let cache = ShardCache::new(256);
            let values: Vec<_> = (0..32).map(|step| Arc::new(11 + step * distance)).collect();
            for _ in 0..=PATIENCE {
                values.iter().for_each(|value| drop(ask(&cache, value)));
            }
            let remembered = values.iter().filter(|value| Arc::strong_count(value) == 2);
            assert_eq!(remembered.count(), 32, "{distance} apart");
        }
    }

    #[test]
    fn other_keys_push_a_value_out_and_clear_forgets_all() {
        let cache = ShardCache::new(1);
        let _pin = topology::pin(0);
        let value = Arc::new(5);
        for _ in 0..=PATIENCE {
            ask(&cache, &value);
        }
        assert_eq!(Arc::strong_count(&value), 2);
        for other in 100..110 {
            ask(&cache, &Arc::new(other));
        }
        assert_eq!(Arc::strong_count(&value), 1);
        for _ in 0..20 {
            ask(&cache, &value);
        }
        assert_eq!(Arc::strong_count(&value), 2);
        cache.clear();
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn what_was_forgotten_gives_way_at_once() {
        let cache = ShardCache::new(1);
        let _pin = topology::pin(0);
        let values = [5, 6].map(Arc::new);
        for _ in 0..4 * PATIENCE {
            values.iter().for_each(|value| drop(ask(&cache, value)));
        }
        cache.clear();
        let next = Arc::new(7);
        for _ in 0..=PATIENCE {
            ask(&cache, &next);
        }
        assert_eq!(Arc::strong_count(&next), 2);
    }
}
