//! What the allocators remember between calls. All of it is advice: nothing depends on a value
//! being there or being new, so relaxed atomics do (rule D9).

use std::sync::Arc;

use pext4_ondisk::GroupNumber;
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded, topology};

use super::Preallocation;
use crate::options::{StreamGoals, Width};
use crate::store::Store;

/// "No hint yet."
const NONE: u32 = u32::MAX;

/// Sums that a shard remembers serve this many questions.
const QUESTIONS_PER_SUM: u64 = 64;

/// Sums of the volume as a shard last saw them.
#[derive(Default)]
struct Seen {
    questions: AtomicU64,
    sums: [AtomicU64; 3],
}

/// The hints of a volume.
pub struct Hints {
    /// The group of the last large allocation, by inode number modulo the number of slots.
    streams: Box<[AtomicU32]>,
    /// The blocks from which the small files of a shard are served.
    localities: Sharded<Mutex<Option<Arc<Preallocation>>>>,
    /// Where the next top-level directory begins to look, as a count.
    spread: Sharded<AtomicU32>,
    /// Free inodes, free blocks, directories: what Orlov's limits are made from.
    seen: Sharded<Seen>,
}

impl Hints {
    pub fn new(store: &Store) -> Self {
        let groups = store.geometry.group_count;
        let width = match store.options.scaling.stream_goals {
            StreamGoals::Slots(Width::Fixed(width)) => width,
            _ => u32::try_from(topology::shard_count()).unwrap_or(u32::MAX),
        };
        let width = width.min(groups.div_ceil(4)).max(1);
        Self {
            streams: (0..width).map(|_| AtomicU32::new(NONE)).collect(),
            localities: Sharded::new(|_| Mutex::new(Class::Leaf, None)),
            seen: Sharded::new(|_| Seen::default()),
            spread: Sharded::new(|shard| AtomicU32::new(u32::try_from(shard).unwrap_or(0))),
        }
    }

    fn stream_slot(&self, inode: u32) -> &AtomicU32 {
        &self.streams[inode as usize % self.streams.len()]
    }

    /// The group in which the last large allocation of a file with this slot ended.
    pub fn stream_goal(&self, inode: u32) -> Option<GroupNumber> {
        let group = self.stream_slot(inode).load(Ordering::Relaxed);
        (group != NONE).then_some(GroupNumber(group))
    }

    /// Remembers it; a line that says so already is not written.
    pub fn set_stream_goal(&self, inode: u32, group: GroupNumber) {
        let slot = self.stream_slot(inode);
        if slot.load(Ordering::Relaxed) != group.get() {
            slot.store(group.get(), Ordering::Relaxed);
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
        (
            number,
            u32::try_from(self.localities.count()).unwrap_or(u32::MAX),
        )
    }

    /// What `sum` answers, or answered not long ago: summing reads lines that others write.
    pub fn recent_sums(&self, sum: impl FnOnce() -> [u64; 3]) -> [u64; 3] {
        let seen = self.seen.local();
        let question = seen.questions.fetch_add(1, Ordering::Relaxed);
        if question.is_multiple_of(QUESTIONS_PER_SUM) {
            for (place, value) in seen.sums.iter().zip(sum()) {
                place.store(value, Ordering::Relaxed);
            }
        }
        seen.sums
            .each_ref()
            .map(|place| place.load(Ordering::Relaxed))
    }

    /// A number that differs from call to call and from shard to shard.
    pub fn next_spread(&self) -> u32 {
        let step = u32::try_from(self.spread.count()).unwrap_or(1);
        self.spread.local().fetch_add(step, Ordering::Relaxed)
    }
}
