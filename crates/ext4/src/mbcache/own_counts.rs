//! References that each core counts for itself.
//!
//! If inodes on many cores add and drop references to a block, all these cores write it, if only to
//! count; and if values come and go, each block is created and freed again and again. So once two
//! cores have met at a block, it is *counted apart* until the transaction closes: a core that adds
//! or drops a reference notes that in a place of its own. After its first use of the block in the
//! transaction the core has *met* it, and then does so without reading the block. When the
//! transaction closes, the committer adds up what all cores noted, stores the sum in the block, and
//! frees the block if no reference is left (`xattr::store_counts`). At that moment no handle is
//! open and none can start, so the sum is what the inodes of the transaction contain.
//!
//! Invariants of a block that is counted apart in a transaction (`BufferState::counted_apart`):
//!
//! - The counting starts under its buffer's lock held for writing, by a handle that made the block
//!   owe its bytes to the transaction and set credits aside for freeing it. It ends when the
//!   transaction closes, and not before.
//! - Until then the block is in use, whatever its count: it is not freed, and nothing in it changes
//!   except the count. So a core that has met the block may read its content under a handle of the
//!   transaction without any lock.
//! - The number of its users is the count in the block plus what the cores noted. No core notes
//!   more than `most` added references in excess of those it dropped; a core that wants to note
//!   more first adds them to the count in the block. A block is only counted apart, or given
//!   references, while its count has room for what all cores may note.
//!
//! Each core keeps what it has met in memory of its own. Its counts are on separate lines, many
//! counts on one, so that the committer reads few lines of each core and writes none that the core
//! will use again. The blocks met in a closed transaction are dropped by the core itself when it
//! meets a block in the next transaction, or else by the committer of that one.
//!
//! Memory: an entry for each block and each core that met it in one transaction. Each such block
//! has cost the transaction a credit, and credits are bounded.
//!
//! Locking: what a core has met is under a lock of class `AttributeCache`, which comes after the
//! buffer's. It is taken by threads of that core, by the committer, and by threads of another core
//! that find their own lock held, since it does not matter on which core a reference is noted.
//! Added references are counted under it, so that no core notes more than it may. Dropping a
//! reference to a block that the core has met needs no lock, since the thread's handle keeps the
//! transaction from closing.

use std::sync::Arc;

use pext4_block::{Buffer, BufferState};
use pext4_ondisk::xattr::{Attribute, Block, Content, MAX_REFERENCES, Replaced};
use pext4_ondisk::{BlockNumber, Corrupt};
use pext4_sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use pext4_sync::hash::NumberMap;
use pext4_sync::parts::in_parts;
use pext4_sync::{CachePadded, Class, Mutex, MutexGuard, Sharded, topology};

use super::Counting;

/// Maximum number of added references that a core notes before it adds them to the count in the
/// block.
const MAX_TAKINGS: u32 = 16;
/// Minimum number of counts, of all cores, for which a thread of its own is worthwhile: it takes
/// tens of microseconds to make one, and to wait until it has run.
const MIN_COUNTS: usize = 1 << 14;
/// Number of met blocks for which a core keeps memory from one transaction to the next.
const KEPT_ROOM: usize = 1024;
/// Number of adjacent counts, on two cache lines.
const COUNTS: usize = 32;

/// What the cores have noted in the running transaction.
pub struct OwnCounts {
    shards: Sharded<Notes>,
    /// Maximum number of added references that a core notes in excess of those it dropped; 0 if
    /// nothing is counted apart. [immutable]
    most: i32,
    /// [atomic] Number of blocks that are counted apart, and the number that the next one gets. On
    /// a cache line of its own: every core reads the fields beside it.
    blocks: CachePadded<AtomicU32>,
}

/// The notes of one core.
struct Notes {
    /// [atomic; a hint] An [`Age`].
    age: AtomicU8,
    core: Mutex<Core>,
}

/// The transaction to which a core's notes belong.
enum Age {
    /// There are no notes.
    None = 0,
    /// One that is closed.
    Past = 1,
    /// The running one.
    Present = 2,
}

#[derive(Default)]
struct Core {
    met: NumberMap<BlockNumber, Arc<MetBlock>>,
    /// Its counts, indexed by block number / [`COUNTS`]; `None` where it has met none of the
    /// blocks.
    counts: Vec<Option<Arc<Counts>>>,
    /// Blocks that a thread of this core started to count apart, with their numbers.
    begun: Vec<(u32, Arc<Buffer>)>,
}

/// References added minus references dropped, for blocks with adjacent numbers.
type Counts = CachePadded<[AtomicI32; COUNTS]>;

/// A block that this core has met. Only this core has it, so its reference count is not shared. The
/// core reads the content without a lock, since nothing in the block changes except the number of
/// its users. The content is a copy: the blocks' own bytes start at multiples of the block size,
/// and so compete for few sets of the processor's cache.
pub struct MetBlock {
    /// `None` if the content is not sound, or would not fit into a block as this implementation
    /// writes it. Then callers use the block itself.
    content: Option<Content>,
    counts: Arc<Counts>,
    place: usize,
}

/// The sum of what all cores noted for a block.
pub struct Sum {
    /// The block.
    pub buffer: Arc<Buffer>,
    /// References added minus references dropped.
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

    /// What is in the block after a value was replaced; see [`Content::replace_value`].
    pub fn replace_value(&self, new: &Attribute) -> Option<Replaced> {
        self.content.as_ref()?.replace_value(new)
    }

    /// Notes a dropped reference, under a handle of the transaction in which the core has met the
    /// block.
    pub fn leave(&self) {
        self.count().fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self) -> &AtomicI32 {
        &self.counts[self.place]
    }
}

impl OwnCounts {
    /// No notes. With [`Counting::InBlock`] no block is ever counted apart.
    pub(super) fn new(counting: Counting) -> Self {
        let shards = Sharded::with_count(topology::spare_count(), |_| Notes {
            age: AtomicU8::new(Age::None as u8),
            core: Mutex::new(Class::AttributeCache, Core::default()),
        });
        let cores = u32::try_from(shards.count()).unwrap_or(u32::MAX - 1);
        // Half of the references are for the count in the block.
        let most = (MAX_REFERENCES / 2 / (cores + 1)).min(MAX_TAKINGS);
        let most = i32::try_from(most).unwrap_or(0);
        Self {
            shards,
            most: match counting {
                Counting::WhereMet => most,
                Counting::InBlock => 0,
            },
            blocks: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Whether a block with this count may be counted apart, and given references while it is.
    pub fn has_room(&self, count: u32) -> bool {
        let cores = u32::try_from(self.shards.count()).unwrap_or(u32::MAX);
        let noted = cores
            .saturating_add(1)
            .saturating_mul(self.most.unsigned_abs());
        self.most > 0 && count.saturating_add(noted) <= MAX_REFERENCES
    }

    /// Whether any block is counted apart: then a commit may free some.
    #[must_use]
    pub fn any(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) > 0
    }

    /// Starts to count a block apart, which the caller has locked. Returns the number by which
    /// cores count it.
    pub(super) fn begin(&self, buffer: &Arc<Buffer>) -> u32 {
        let number = self.blocks.fetch_add(1, Ordering::Relaxed);
        self.in_present(|core| core.begun.push((number, Arc::clone(buffer))));
        number
    }

    /// A block that this core has met, if its content is known.
    pub fn met(&self, block: BlockNumber) -> Option<Arc<MetBlock>> {
        let met = |met: &Arc<MetBlock>| met.content.is_some().then(|| Arc::clone(met));
        self.here(block, met).flatten()
    }

    /// Notes an added reference, under a handle, to a block with content `wanted`. False if the
    /// block has another content, if this core has not met it, or if it cannot note more.
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

    /// Notes an added reference to a block that is counted apart, has room and this content, and is
    /// locked by the caller. Returns how many references that were noted before the caller must now
    /// add to the count in the block.
    pub fn meet_taking(&self, buffer: &Arc<Buffer>, state: &BufferState, content: &Content) -> u32 {
        let most = self.most;
        let content = || Some(content.clone());
        self.meet(buffer, state, content, |met| {
            // Other threads can only drop references meanwhile.
            let is_full = met.count().load(Ordering::Relaxed) >= most;
            let added = if is_full { 1 - most } else { 1 };
            met.count().fetch_add(added, Ordering::Relaxed);
            if is_full { most.unsigned_abs() } else { 0 }
        })
    }

    /// Notes a dropped reference to a block that is counted apart and locked by the caller.
    pub fn meet_leaving(&self, buffer: &Arc<Buffer>, state: &BufferState) {
        self.meet(buffer, state, || content_of(state.page()), MetBlock::leave);
    }

    /// Removes and returns everything that was noted. The transaction is closed.
    pub fn take_all(&self, width: usize) -> Vec<Sum> {
        let cores: Vec<usize> = (0..self.shards.count()).collect();
        let share = cores_of_a_thread(cores.len(), self.blocks.load(Ordering::Relaxed), width);
        let shares = cores.chunks(share).collect();
        let parts = in_parts(shares, 1, width, |shares: Vec<&[usize]>| {
            let mut taken = Taken::default();
            for &core in shares.into_iter().flatten() {
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

    fn here<R>(&self, block: BlockNumber, change: impl FnOnce(&Arc<MetBlock>) -> R) -> Option<R> {
        let is_present = |notes: &Notes| notes.age.load(Ordering::Relaxed) == Age::Present as u8;
        if !is_present(self.shards.local()) {
            return None;
        }
        let (notes, core) = self.lock();
        let met = is_present(notes).then(|| core.met.get(&block)).flatten();
        met.map(change)
    }

    /// This core's notes, locked; or those of another core, if a thread that was preempted holds
    /// them. It does not matter on which core a reference is noted.
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
        let number = apart
            .expect("the caller has seen that it is counted apart")
            .number;
        self.in_present(|core| change(core.meet(buffer.block(), content, number as usize)))
    }

    /// Changes this core's notes of the running transaction.
    fn in_present<R>(&self, change: impl FnOnce(&mut Core) -> R) -> R {
        let (notes, mut core) = self.lock();
        if notes.age.load(Ordering::Relaxed) == Age::Past as u8 {
            core.forget_met();
        }
        notes.age.store(Age::Present as u8, Ordering::Relaxed);
        change(&mut core)
    }
}

/// Notes collected from several cores.
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

    /// The entry of a block that this core meets, created at the first meeting.
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
            Arc::new(MetBlock {
                content: content(),
                counts: Arc::clone(counts),
                place,
            })
        })
    }
}

fn content_of(block: &[u8]) -> Option<Content> {
    let decoded = Block::decode(block).ok()?;
    decoded.content(block.len()).ok()
}

/// Of how many cores each thread adds up the counts, if each core has `each`: of so many that there
/// are at most `width` threads, since what they return is added up by one, and that another thread
/// is worthwhile.
fn cores_of_a_thread(cores: usize, each: u32, width: usize) -> usize {
    let worthwhile = MIN_COUNTS / (each.max(1) as usize);
    let share = cores.div_ceil(width.max(1));
    share.max(worthwhile).max(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::cores_of_a_thread;

    #[test]
    fn few_counts_make_no_thread() {
        for (cores, each, width, share) in [
            (16, 0, 16, 16),
            (16, 20, 16, 16),
            (16, 1000, 16, 16),
            (64, 1000, 64, 16),
            (96, 20_000, 4, 24),
            (96, 20_000, 96, 1),
            (2, 100_000, 0, 2),
        ] {
            let found = cores_of_a_thread(cores, each, width).min(cores);
            assert_eq!(
                found, share,
                "{cores} cores with {each} counts, {width} threads"
            );
        }
    }
}
