//! What the allocators remember between calls. All of it is advice: nothing depends on a value
//! being there or being new, so relaxed atomics do (rule D9).

use std::sync::Arc;

use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded};

use super::Preallocation;
use super::lane::Lane;

/// Sums that a shard remembers serve this many questions.
const QUESTIONS_PER_SUM: u64 = 64;

/// Sums of the volume as a shard last saw them: summing reads lines that others write.
struct Seen<const COUNT: usize> {
    questions: AtomicU64,
    sums: [AtomicU64; COUNT],
}

impl<const COUNT: usize> Seen<COUNT> {
    fn new() -> Self {
        Self {
            questions: AtomicU64::new(0),
            sums: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// What `sum` answers, or answered not long ago.
    fn ask(&self, sum: impl FnOnce() -> [u64; COUNT]) -> [u64; COUNT] {
        let question = self.questions.fetch_add(1, Ordering::Relaxed);
        if question.is_multiple_of(QUESTIONS_PER_SUM) {
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
    /// How many shards serve small files. [immutable]
    shards: u32,
    /// The blocks from which the small files of a shard are served.
    localities: Sharded<Mutex<Option<Arc<Preallocation>>>>,
    /// Where a shard claims inodes since it met others.
    lanes: Sharded<Lane>,
    /// Where the next top-level directory begins to look, as a count.
    spread: Sharded<AtomicU32>,
    /// Free inodes, free blocks, directories: what Orlov's limits are made from.
    orlov: Sharded<Seen<3>>,
    /// Free blocks: what a file's surplus is limited by.
    free: Sharded<Seen<1>>,
}

impl Hints {
    /// `alone`: one shard serves all, and nothing depends on how many there are.
    pub fn new(alone: bool) -> Self {
        let localities = Sharded::new(|_| Mutex::new(Class::Leaf, None));
        let shards = u32::try_from(localities.count()).unwrap_or(u32::MAX);
        Self {
            shards: if alone { 1 } else { shards },
            localities,
            lanes: Sharded::new(|_| Lane::default()),
            orlov: Sharded::new(|_| Seen::new()),
            free: Sharded::new(|_| Seen::new()),
            spread: Sharded::new(|shard| AtomicU32::new(u32::try_from(shard).unwrap_or(0))),
        }
    }

    /// The blocks that serve small files of the caller's shard.
    pub fn locality(&self) -> Option<Arc<Preallocation>> {
        self.localities.local().lock().clone()
    }

    /// Replaces them; answers what was there.
    pub fn set_locality(
        &self,
        preallocation: Option<Arc<Preallocation>>,
    ) -> Option<Arc<Preallocation>> {
        std::mem::replace(&mut *self.localities.local().lock(), preallocation)
    }

    /// How many shards serve small files, and which is the caller's.
    pub fn locality_shard(&self) -> (u32, u32) {
        let number = u32::try_from(self.localities.local_index()).unwrap_or(0);
        (number % self.shards, self.shards)
    }

    /// What `sum` answers, or answered not long ago.
    pub fn recent_sums(&self, sum: impl FnOnce() -> [u64; 3]) -> [u64; 3] {
        self.orlov.local().ask(sum)
    }

    /// What `sum` answers, or answered not long ago.
    pub fn recent_free(&self, sum: impl FnOnce() -> u64) -> u64 {
        let [free] = self.free.local().ask(|| [sum()]);
        free
    }

    /// The caller's shard, and where it claims inodes since it met others.
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
