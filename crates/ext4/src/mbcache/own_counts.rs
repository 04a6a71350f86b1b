//! References that each core counts for itself.
//!
//! A block that inodes on many cores take and leave is written by all of them, if only to count, and
//! where values come and go each is made and freed again and again. So once two cores have met at a
//! block it is *counted apart* until the transaction closes: a core that takes or leaves it notes
//! that in a place of its own, and what it has met once it takes and leaves without a look at the block. When
//! the transaction closes, the committer adds up what all cores noted, stores the sum in the block, and
//! frees the block if nobody is left (`xattr::settle`). At that moment no handle is open and
//! none can start, so what is stored is what the transaction's inodes say.
//!
//! Invariants, of a block that is counted apart in a transaction (`BufferState::counted_apart_in`):
//!
//! - It began to be under its buffer's lock for writing, by a handle that made it owe the transaction
//!   its bytes and set credits aside for its end. It ends when the transaction closes, and not before.
//! - Until then it is in use, whatever its count: it is not freed, and nothing in it changes but the
//!   count. So whoever has noted it, under a handle of the transaction, may look at it without asking.
//! - Its users are the count in the block and what the cores noted, added up. No core notes more
//!   than `most` takings over what it left; who wants to first adds them to the block, which is
//!   only counted apart, or taken, while there is room in it for what all cores may note.
//!
//! Memory: an entry for each block and core that met in one transaction. Each such block has cost the
//! transaction a credit, and credits are bounded.
//!
//! Locking: which blocks a core has met is under a lock of class `AttributeCache`, which comes after the
//! buffer's. Threads of one core and the committer are all that take it. Takings are noted under it, so
//! that no core notes more than it may; who leaves a block that it has looked at as one that its core
//! has met needs no lock, since its handle keeps the transaction from closing.

use std::sync::Arc;

use pext4_block::{Buffer, BufferState, Page};
use pext4_jbd2::in_parts;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::xattr::MAX_REFERENCES;
use pext4_sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use pext4_sync::hash::NumberMap;
use pext4_sync::{CachePadded, Class, Mutex, Sharded};

/// Takings that a core notes before it adds them to the block, at most.
const MOST_TAKINGS: u32 = 16;
/// Cores whose notes are worth a thread of their own.
const LEAST_PART: usize = 8;
/// Blocks for which a core keeps memory from one transaction to the next.
const KEPT_ROOM: usize = 1024;

/// What the cores have noted in the running transaction.
pub struct OwnCounts {
    shards: Sharded<Notes>,
    /// Takings that a core notes over what it left, at most; 0 if nothing is counted apart.
    /// [immutable]
    most: u32,
    /// [atomic] Blocks that are counted apart.
    blocks: AtomicU64,
}

/// One core's.
struct Notes {
    /// [atomic; a hint] Whether there are any.
    any: AtomicBool,
    blocks: Mutex<NumberMap<BlockNumber, Arc<CachePadded<Met>>>>,
}

/// A block that this core has met. Its core alone holds this, so that no count is shared, and reads the bytes
/// without a lock, as nothing in them changes but how many use them.
pub struct Met {
    /// The block.
    pub buffer: Arc<Buffer>,
    /// Its bytes, with the count they had.
    pub page: Page,
    /// [atomic] Taken, less left.
    change: AtomicI64,
}

/// What all cores together have noted of a block.
pub struct Sum {
    /// The block.
    pub buffer: Arc<Buffer>,
    /// Taken, less left.
    pub change: i64,
}

impl Met {
    /// Notes a leaving, under a handle of the transaction in which the core has met the block.
    pub fn leave(&self) {
        self.change.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OwnCounts {
    /// Nothing noted yet; if not `enabled`, nothing ever.
    pub(super) fn new(enabled: bool) -> Self {
        let shards = Sharded::new(|_| Notes {
            any: AtomicBool::new(false),
            blocks: Mutex::new(Class::AttributeCache, NumberMap::default()),
        });
        let cores = u32::try_from(shards.count()).unwrap_or(u32::MAX - 1);
        // Half of the references are for what is in the block.
        let most = (MAX_REFERENCES / 2 / (cores + 1)).min(MOST_TAKINGS);
        Self {
            shards,
            most: if enabled { most } else { 0 },
            blocks: AtomicU64::new(0),
        }
    }

    /// Whether a block whose count is this may be counted apart, and taken while it is.
    pub fn has_room(&self, count: u32) -> bool {
        let cores = u32::try_from(self.shards.count()).unwrap_or(u32::MAX);
        let noted = cores.saturating_add(1).saturating_mul(self.most);
        self.most > 0 && count.saturating_add(noted) <= MAX_REFERENCES
    }

    /// Whether blocks are counted apart, some of which may turn out to be free.
    #[must_use]
    pub fn any(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) > 0
    }

    /// Notes that a block is counted apart from now on.
    pub(super) fn begin(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// A block that this core has met.
    pub fn met(&self, block: BlockNumber) -> Option<Arc<CachePadded<Met>>> {
        self.here(block, Arc::clone)
    }

    /// Notes a taking, under a handle, of a block whose bytes are what is wanted; false if they are not, if this
    /// core has not met the block, or notes as many as it may.
    pub fn take(&self, block: BlockNumber, is_wanted: impl FnOnce(&[u8]) -> bool) -> bool {
        let most = i64::from(self.most);
        let noted = self.here(block, |met| {
            let may = met.change.load(Ordering::Relaxed) < most && is_wanted(&met.page);
            if may {
                met.change.fetch_add(1, Ordering::Relaxed);
            }
            may
        });
        noted == Some(true)
    }

    /// Notes a taking of a block that is counted apart, has room, and is locked by the caller. Answers how
    /// many takings that were noted before are now to be added to its count.
    pub fn meet_taking(&self, buffer: &Arc<Buffer>, state: &BufferState) -> u32 {
        let most = i64::from(self.most);
        self.meet(buffer, state, |met| {
            // Others can only leave meanwhile.
            let is_full = met.change.load(Ordering::Relaxed) >= most;
            let added = if is_full { 1 - most } else { 1 };
            met.change.fetch_add(added, Ordering::Relaxed);
            if is_full { self.most } else { 0 }
        })
    }

    /// Notes a leaving of a block that is counted apart and locked by the caller.
    pub fn meet_leaving(&self, buffer: &Arc<Buffer>, state: &BufferState) {
        self.meet(buffer, state, |met| met.leave());
    }

    /// Everything that was noted, and forgets it. The transaction is closed.
    pub fn take_all(&self, width: usize) -> Vec<Sum> {
        let cores = (0..self.shards.count()).collect();
        let parts = in_parts(cores, LEAST_PART, width, |cores: Vec<usize>| {
            let mut sums = NumberMap::default();
            for core in cores {
                self.shards.get(core).take_into(&mut sums);
            }
            sums
        });
        self.blocks.store(0, Ordering::Relaxed);
        let mut parts = parts.into_iter();
        let mut sums = parts.next().unwrap_or_default();
        for (block, sum) in parts.flatten() {
            add(&mut sums, block, sum.change, || sum.buffer);
        }
        sums.into_values().collect()
    }

    fn here<R>(
        &self,
        block: BlockNumber,
        change: impl FnOnce(&Arc<CachePadded<Met>>) -> R,
    ) -> Option<R> {
        let notes = self.shards.local();
        if !notes.any.load(Ordering::Relaxed) {
            return None;
        }
        notes.blocks.lock().get(&block).map(change)
    }

    fn meet<R>(
        &self,
        buffer: &Arc<Buffer>,
        state: &BufferState,
        change: impl FnOnce(&Met) -> R,
    ) -> R {
        let notes = self.shards.local();
        let mut blocks = notes.blocks.lock();
        notes.any.store(true, Ordering::Relaxed);
        change(blocks.entry(buffer.block()).or_insert_with(|| {
            Arc::new(CachePadded::new(Met {
                buffer: Arc::clone(buffer),
                page: state.page.clone(),
                change: AtomicI64::new(0),
            }))
        }))
    }
}

impl Notes {
    fn take_into(&self, sums: &mut NumberMap<BlockNumber, Sum>) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut blocks = self.blocks.lock();
        for (block, met) in blocks.drain() {
            let change = met.change.load(Ordering::Relaxed);
            add(sums, block, change, || Arc::clone(&met.buffer));
        }
        blocks.shrink_to(KEPT_ROOM);
        self.any.store(false, Ordering::Relaxed);
    }
}

fn add(
    sums: &mut NumberMap<BlockNumber, Sum>,
    block: BlockNumber,
    change: i64,
    buffer: impl FnOnce() -> Arc<Buffer>,
) {
    let none = || Sum {
        buffer: buffer(),
        change: 0,
    };
    sums.entry(block).or_insert_with(none).change += change;
}
