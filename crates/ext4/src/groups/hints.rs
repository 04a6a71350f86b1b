//! What the allocators remember between calls. All of these are hints: correctness does not depend
//! on them, so relaxed atomics suffice (rule D9).

use std::sync::Arc;

use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded};

use super::Preallocation;
use super::lane::Lane;

/// A cached sum serves at least this many queries of its shard, and at least [`QUERIES_PER_SHARD`]
/// for each shard.
const MIN_QUERIES_PER_SUM: u64 = 64;
/// A new sum reads a line of every shard, which that shard must fetch back; so the cost per query
/// does not grow with the number of shards.
const QUERIES_PER_SHARD: u64 = 4;

/// The volume's sums as a shard last read them: summing reads cache lines that other cores write.
struct CachedSums<const COUNT: usize> {
    queries: AtomicU64,
    sums: [AtomicU64; COUNT],
}

impl<const COUNT: usize> CachedSums<COUNT> {
    fn new() -> Self {
        Self {
            queries: AtomicU64::new(0),
            sums: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The result of `sum`, cached for `period` queries.
    fn get(&self, period: u64, sum: impl FnOnce() -> [u64; COUNT]) -> [u64; COUNT] {
        let query = self.queries.fetch_add(1, Ordering::Relaxed);
        if query.is_multiple_of(period) {
            for (place, value) in self.sums.iter().zip(sum()) {
                place.store(value, Ordering::Relaxed);
            }
        }
        self.sums
            .each_ref()
            .map(|place| place.load(Ordering::Relaxed))
    }
}

/// The hints of a volume.
pub struct Hints {
    /// The number of shards that have runs for small files. [immutable]
    shards: u32,
    /// For how many queries a shard uses its cached sums. [immutable]
    queries_per_sum: u64,
    /// Each shard's run for small files.
    localities: Sharded<Mutex<Option<Arc<Preallocation>>>>,
    /// Each shard's lane for inode numbers.
    lanes: Sharded<Lane>,
    /// A count that determines where the search for the next top-level directory begins.
    spread: Sharded<AtomicU32>,
    /// Free inodes, free blocks and directories, from which Orlov's limits are computed.
    orlov: Sharded<CachedSums<3>>,
    /// Free blocks, which limit a file's surplus.
    free: Sharded<CachedSums<1>>,
}

impl Hints {
    /// With `alone` there is one locality shard, so that results do not depend on the number of
    /// shards.
    pub fn new(alone: bool) -> Self {
        let localities = Sharded::new(|_| Mutex::new(Class::Leaf, None));
        let shards = u32::try_from(localities.count()).unwrap_or(u32::MAX);
        Self {
            shards: if alone { 1 } else { shards },
            queries_per_sum: MIN_QUERIES_PER_SUM.max(QUERIES_PER_SHARD * u64::from(shards)),
            localities,
            lanes: Sharded::new(|_| Lane::default()),
            orlov: Sharded::new(|_| CachedSums::new()),
            free: Sharded::new(|_| CachedSums::new()),
            spread: Sharded::new(|shard| AtomicU32::new(u32::try_from(shard).unwrap_or(0))),
        }
    }

    /// The run for small files of the caller's shard.
    pub fn locality(&self) -> Option<Arc<Preallocation>> {
        self.localities.local().lock().clone()
    }

    /// Replaces this run; returns the previous one.
    pub fn set_locality(
        &self,
        preallocation: Option<Arc<Preallocation>>,
    ) -> Option<Arc<Preallocation>> {
        std::mem::replace(&mut *self.localities.local().lock(), preallocation)
    }

    /// The number of the caller's locality shard, and the number of locality shards.
    pub fn locality_shard(&self) -> (u32, u32) {
        let number = u32::try_from(self.localities.local_index()).unwrap_or(0);
        (number % self.shards, self.shards)
    }

    /// The result of `sum`, possibly a cached one.
    pub fn recent_sums(&self, sum: impl FnOnce() -> [u64; 3]) -> [u64; 3] {
        self.orlov.local().get(self.queries_per_sum, sum)
    }

    /// The result of `sum`, possibly a cached one.
    pub fn recent_free(&self, sum: impl FnOnce() -> u64) -> u64 {
        let period = self.queries_per_sum;
        let [free] = self.free.local().get(period, || [sum()]);
        free
    }

    /// The caller's shard and its lane.
    pub fn lane(&self) -> (u32, &Lane) {
        let shard = self.lanes.local_index();
        (u32::try_from(shard).unwrap_or(0), self.lanes.get(shard))
    }

    /// A number that differs from call to call and from shard to shard.
    pub fn next_spread(&self) -> u32 {
        let (shard, shards) = self.locality_shard();
        let spread = self.spread.get(shard as usize);
        spread.fetch_add(shards, Ordering::Relaxed)
    }
}
