//! References that each core counts for itself.
//!
//! A block that inodes on many cores take and leave is written by all of them, if only to count, and
//! where values come and go each is made and freed again and again. So once two cores have met at a
//! block it is *counted apart* until the transaction closes: a core that takes or leaves it notes
//! that in a place of its own, and what it has met once it takes and leaves without a look at the block. When
//! the transaction closes, the committer adds up what all cores noted, stores the sum in the block, and
//! frees the block if nobody is left (`xattr::store_counts`). At that moment no handle is open and
//! none can start, so what is stored is what the transaction's inodes say.
//!
//! Invariants, of a block that is counted apart in a transaction (`BufferState::counted_apart`):
//!
//! - It began to be under its buffer's lock for writing, by a handle that made it owe the transaction
//!   its bytes and set credits aside for its end. It ends when the transaction closes, and not before.
//! - Until then it is in use, whatever its count: it is not freed, and nothing in it changes but the
//!   count. So whoever has noted it, under a handle of the transaction, may look at it without asking.
//! - Its users are the count in the block and what the cores noted, added up. No core notes more
//!   than `most` takings over what it left; who wants to first adds them to the block, which is
//!   only counted apart, or taken, while there is room in it for what all cores may note.
//!
//! What a core has met it keeps in memory of its own; what it counts lies in lines apart from that, many
//! counts in one, so that the committer fetches little from each core and changes nothing there that
//! the core will touch again. What was met in a closed transaction is dropped by its own core when it meets
//! something in the next one, or else by that one's committer.
//!
//! Memory: an entry for each block and core that met in one transaction. Each such block has cost the
//! transaction a credit, and credits are bounded.
//!
//! Locking: what a core has met is under a lock of class `AttributeCache`, which comes after the
//! buffer's. Threads of one core and the committer take it, and threads of another core that find their own held, for
//! what is noted counts wherever it is. Takings are counted under it, so
//! that no core notes more than it may; who leaves a block that it has looked at as one that its core
//! has met needs no lock, since its handle keeps the transaction from closing.

use std::sync::Arc;

use pext4_block::{Buffer, BufferState};
use pext4_jbd2::in_parts;
use pext4_ondisk::xattr::{Attribute, Block, Content, MAX_REFERENCES};
use pext4_ondisk::{BlockNumber, Corrupt};
use pext4_sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use pext4_sync::hash::NumberMap;
use pext4_sync::{CachePadded, Class, Mutex, MutexGuard, Sharded, topology};

/// Takings that a core notes before it adds them to the block, at most.
const MOST_TAKINGS: u32 = 16;
/// Cores whose notes are worth a thread of their own.
const LEAST_PART: usize = 8;
/// Blocks for which a core keeps memory from one transaction to the next.
const KEPT_ROOM: usize = 1024;
/// Counts that lie together, in two lines.
const COUNTS: usize = 32;

/// What the cores have noted in the running transaction.
pub struct OwnCounts {
    shards: Sharded<Notes>,
    /// Takings that a core notes over what it left, at most; 0 if nothing is counted apart.
    /// [immutable]
    most: i32,
    /// [atomic] Blocks that are counted apart: the number of the next one.
    blocks: AtomicU32,
}

/// One core's.
struct Notes {
    /// [atomic; a hint] An [`Age`].
    age: AtomicU8,
    core: Mutex<Core>,
}

/// Of which transaction a core's notes are.
enum Age {
    /// There are none.
    None = 0,
    /// Of one that is closed.
    Past = 1,
    /// Of the running one.
    Present = 2,
}

#[derive(Default)]
struct Core {
    met: NumberMap<BlockNumber, Arc<CachePadded<MetBlock>>>,
    /// What it counted, by the numbers of the blocks; nothing where it has met none of them.
    counts: Vec<Option<Arc<Counts>>>,
    /// Blocks that a thread of this core began to count apart, with their numbers.
    begun: Vec<(u32, Arc<Buffer>)>,
}

/// Takings less leavings of blocks with numbers side by side.
type Counts = CachePadded<[AtomicI32; COUNTS]>;

/// A block that this core has met. Its core alone holds this, so that no count is shared, and reads the content
/// without a lock, as nothing in the block changes but how many use it. A copy: the bytes themselves begin at
/// multiples of the block's size, and a cache has few places for what lies so.
pub struct MetBlock {
    /// None if it is not sound, or has no room for how it would be written here. Who wants such a block asks
    /// for the block itself.
    content: Option<Content>,
    counts: Arc<Counts>,
    place: usize,
}

/// What all cores together have noted of a block.
pub struct Sum {
    /// The block.
    pub buffer: Arc<Buffer>,
    /// Taken, less left.
    pub change: i64,
}

impl MetBlock {
    /// The attributes in the block.
    ///
    /// # Errors
    ///
    /// If they are not sound.
    pub fn attributes(&self) -> Result<Vec<Attribute>, Corrupt> {
        let content = self.content.as_ref();
        let unknown = || Corrupt::new("attribute block", "its content is not known");
        content.ok_or_else(unknown)?.attributes()
    }

    /// Notes a leaving, under a handle of the transaction in which the core has met the block.
    pub fn leave(&self) {
        self.count().fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> &AtomicI32 {
        &self.counts[self.place]
    }
}

impl OwnCounts {
    /// Nothing noted yet; if not `enabled`, nothing ever.
    pub(super) fn new(enabled: bool) -> Self {
        let shards = Sharded::with_count(topology::spare_count(), |_| Notes {
            age: AtomicU8::new(Age::None as u8),
            core: Mutex::new(Class::AttributeCache, Core::default()),
        });
        let cores = u32::try_from(shards.count()).unwrap_or(u32::MAX - 1);
        // Half of the references are for what is in the block.
        let most = (MAX_REFERENCES / 2 / (cores + 1)).min(MOST_TAKINGS);
        let most = i32::try_from(most).unwrap_or(0);
        Self {
            shards,
            most: if enabled { most } else { 0 },
            blocks: AtomicU32::new(0),
        }
    }

    /// Whether a block whose count is this may be counted apart, and taken while it is.
    pub fn has_room(&self, count: u32) -> bool {
        let cores = u32::try_from(self.shards.count()).unwrap_or(u32::MAX);
        let noted = cores
            .saturating_add(1)
            .saturating_mul(self.most.unsigned_abs());
        self.most > 0 && count.saturating_add(noted) <= MAX_REFERENCES
    }

    /// Whether blocks are counted apart, some of which may turn out to be free.
    #[must_use]
    pub fn any(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) > 0
    }

    /// Notes that a block, locked by the caller, is counted apart from now on. Answers its number, by
    /// which cores count it.
    pub(super) fn begin(&self, buffer: &Arc<Buffer>) -> u32 {
        let number = self.blocks.fetch_add(1, Ordering::Relaxed);
        self.in_present(|core| core.begun.push((number, Arc::clone(buffer))));
        number
    }

    /// A block that this core has met, if its content is known.
    pub fn met(&self, block: BlockNumber) -> Option<Arc<CachePadded<MetBlock>>> {
        let met = |met: &Arc<CachePadded<MetBlock>>| met.content.is_some().then(|| Arc::clone(met));
        self.here(block, met).flatten()
    }

    /// Notes a taking, under a handle, of a block whose content is this; false if it is not, if this core has
    /// not met the block, or notes as many as it may.
    pub fn take(&self, block: BlockNumber, wanted: &Content) -> bool {
        let most = self.most;
        let noted = self.here(block, |met| {
            let is_wanted = |content: &Content| content.is_same(wanted);
            let may = met.count().load(Ordering::Relaxed) < most
                && met.content.as_ref().is_some_and(is_wanted);
            if may {
                met.count().fetch_add(1, Ordering::Relaxed);
            }
            may
        });
        noted == Some(true)
    }

    /// Notes a taking of a block that is counted apart, has room and this content, and is locked by the
    /// caller. Answers how many takings that were noted before are now to be added to its count.
    pub fn meet_taking(&self, buffer: &Arc<Buffer>, state: &BufferState, content: &Content) -> u32 {
        let most = self.most;
        let content = || Some(content.clone());
        self.meet(buffer, state, content, |met| {
            // Others can only leave meanwhile.
            let is_full = met.count().load(Ordering::Relaxed) >= most;
            let added = if is_full { 1 - most } else { 1 };
            met.count().fetch_add(added, Ordering::Relaxed);
            if is_full { most.unsigned_abs() } else { 0 }
        })
    }

    /// Notes a leaving of a block that is counted apart and locked by the caller.
    pub fn meet_leaving(&self, buffer: &Arc<Buffer>, state: &BufferState) {
        self.meet(buffer, state, || content_of(&state.page), MetBlock::leave);
    }

    /// Everything that was noted, and forgets it. The transaction is closed.
    pub fn take_all(&self, width: usize) -> Vec<Sum> {
        let cores = (0..self.shards.count()).collect();
        let parts = in_parts(cores, LEAST_PART, width, |cores: Vec<usize>| {
            let mut taken = Taken::default();
            for core in cores {
                self.shards.get(core).take_into(&mut taken);
            }
            taken
        });
        self.blocks.store(0, Ordering::Relaxed);
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        for part in parts {
            all.begun.extend(part.begun);
            all.add(0, part.changes.into_iter());
        }
        let sum = |(number, buffer)| Sum {
            buffer,
            change: all.changes.get(number as usize).copied().unwrap_or(0),
        };
        all.begun.into_iter().map(sum).collect()
    }

    fn here<R>(
        &self,
        block: BlockNumber,
        change: impl FnOnce(&Arc<CachePadded<MetBlock>>) -> R,
    ) -> Option<R> {
        let is_present = |notes: &Notes| notes.age.load(Ordering::Relaxed) == Age::Present as u8;
        if !is_present(self.shards.local()) {
            return None;
        }
        let (notes, core) = self.lock();
        let met = is_present(notes).then(|| core.met.get(&block)).flatten();
        met.map(change)
    }

    /// This core's notes, or others where a thread holds them that lost its core: what is noted counts wherever
    /// it is.
    fn lock(&self) -> (&Notes, MutexGuard<'_, Core>) {
        let free = self
            .shards
            .nearby(|notes| Some((notes, notes.core.try_lock()?)));
        free.unwrap_or_else(|| {
            let own = self.shards.local();
            (own, own.core.lock())
        })
    }

    fn meet<R>(
        &self,
        buffer: &Arc<Buffer>,
        state: &BufferState,
        content: impl FnOnce() -> Option<Content>,
        change: impl FnOnce(&MetBlock) -> R,
    ) -> R {
        let apart = state.counted_apart;
        let number = apart.expect("who meets here has seen that it is").number;
        self.in_present(|core| change(core.meet(buffer.block(), content, number as usize)))
    }

    /// Does something to this core's notes of the running transaction.
    fn in_present<R>(&self, change: impl FnOnce(&mut Core) -> R) -> R {
        let (notes, mut core) = self.lock();
        if notes.age.load(Ordering::Relaxed) == Age::Past as u8 {
            core.forget_met();
        }
        notes.age.store(Age::Present as u8, Ordering::Relaxed);
        change(&mut core)
    }
}

/// What was found noted.
#[derive(Default)]
struct Taken {
    /// By the numbers of the blocks.
    changes: Vec<i64>,
    begun: Vec<(u32, Arc<Buffer>)>,
}

impl Taken {
    fn add(&mut self, first: usize, changes: impl ExactSizeIterator<Item = i64>) {
        let end = first + changes.len();
        if self.changes.len() < end {
            self.changes.resize(end, 0);
        }
        for (sum, change) in self.changes[first..].iter_mut().zip(changes) {
            *sum += change;
        }
    }
}

impl Notes {
    fn take_into(&self, taken: &mut Taken) {
        let age = self.age.load(Ordering::Relaxed);
        if age == Age::None as u8 {
            return;
        }
        let mut core = self.core.lock();
        if age == Age::Past as u8 {
            core.forget_met();
            self.age.store(Age::None as u8, Ordering::Relaxed);
            return;
        }
        taken.begun.append(&mut core.begun);
        for (place, counts) in core.counts.drain(..).enumerate() {
            if let Some(counts) = counts {
                let changes = counts.iter().map(|count| count.load(Ordering::Relaxed));
                taken.add(place * COUNTS, changes.map(i64::from));
            }
        }
        self.age.store(Age::Past as u8, Ordering::Relaxed);
    }
}

impl Core {
    fn forget_met(&mut self) {
        self.met.clear();
        self.met.shrink_to(KEPT_ROOM);
    }

    /// A block that this core has met now, if not before.
    fn meet(
        &mut self,
        block: BlockNumber,
        content: impl FnOnce() -> Option<Content>,
        number: usize,
    ) -> &MetBlock {
        let all = &mut self.counts;
        self.met.entry(block).or_insert_with(|| {
            let (at, place) = (number / COUNTS, number % COUNTS);
            if all.len() <= at {
                all.resize(at + 1, None);
            }
            let zeroes = || CachePadded::new(std::array::from_fn(|_| AtomicI32::new(0)));
            let counts = all[at].get_or_insert_with(|| Arc::new(zeroes()));
            Arc::new(CachePadded::new(MetBlock {
                content: content(),
                counts: Arc::clone(counts),
                place,
            }))
        })
    }
}

fn content_of(block: &[u8]) -> Option<Content> {
    let decoded = Block::decode(block).ok()?;
    decoded.content(block.len()).ok()
}
