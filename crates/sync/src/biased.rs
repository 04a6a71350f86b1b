//! A reader-writer lock whose readers write no cache line that other cores read.
//!
//! The technique is biased locking for readers (BRAVO: Dice and Kogan, "Biased Locking for
//! Reader-Writer Locks", USENIX ATC 2019). While a lock is *biased*, a reader does not write it:
//! the reader stores the lock's address in a slot of its own shard's table, and then checks that
//! the lock is still biased. A writer takes the underlying lock, ends the bias, and waits until no
//! shard's slot contains the lock's address any more.
//!
//! When a lock is biased: it begins unbiased, as a plain [`RwLock`]. Every reader that takes the
//! underlying lock decrements a countdown, and the last one biases the lock. Each end of a bias
//! doubles the countdown for the next time, up to a bound, so a lock that is often written is
//! unbiased most of the time, and the cost of a writer's pass over all shards is amortised over
//! many reads.
//!
//! Invariants: only a holder of the read lock sets the bias and only the holder of the write lock
//! ends it, so it cannot be set while there is a writer. And of a reader's two steps (store the
//! address, then read the bias) and a writer's two steps (end the bias, then read the slots), one
//! side always sees the other, since all four are sequentially consistent.
//!
//! A slot serves one reader, and a lock has two slots in each shard: a third reader in the same
//! shard, or a reader of a third lock with the same slots, takes the underlying lock. A guard is
//! dropped on the thread that took it.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::Duration;

use crate::atomic::{AtomicI32, AtomicUsize, Ordering};
use crate::hash::spread;
use crate::held::Held;
use crate::memory;
use crate::order::Class;
use crate::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sharded::Sharded;
use crate::{thread, topology};

/// The number of slots in a shard: a thread holds only a few locks at once.
const SLOTS: usize = 64;
/// The number of reads with the underlying lock before the first bias.
const FIRST_PATIENCE: i32 = 16;
/// The maximum number of reads with the underlying lock before a bias, for each shard. Where many
/// cores read, each such read costs two or three transfers of a cache line, one after another; the
/// end of a bias costs one transfer per shard. So these reads have paid for the end several times
/// over, while a lock that is written so often that it is not worth a bias stays without.
const PATIENCE_PER_SHARD: i32 = 2;
/// The countdown of a lock that is biased; lower ones mean the same.
const BIASED: i32 = 0;
/// How often a writer polls a slot before it yields its processor between two polls, and before it
/// sleeps between them.
const SPINS: u32 = 64;
const YIELDS: u32 = 1000;
/// How long it sleeps.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The locks that biased readers hold, by shard.
static READERS: LazyLock<Readers> = LazyLock::new(Readers::new);

/// Protects a `T` that is mostly read; its [`Class`] determines when it may be taken.
///
/// The lock and its bias are adjacent, so that writing both transfers one cache line.
#[repr(C)]
pub struct BiasedLock<T> {
    lock: RwLock<()>,
    bias: Bias,
    /// [read: the underlying lock or a slot; write: the underlying lock with no slot in use]
    value: UnsafeCell<T>,
}

// SAFETY: the lock owns its value, so sending it is sending the value.
unsafe impl<T: Send> Send for BiasedLock<T> {}
// SAFETY: readers on several threads get `&T` at once, which asks for `T: Sync`; a writer gets
// `&mut T` on whichever thread it runs, which asks for `T: Send`. The protocol at the head of the
// file keeps the two apart.
unsafe impl<T: Send + Sync> Sync for BiasedLock<T> {}

/// Read access to the value; unlocks when dropped.
///
/// A guard keeps no `&T`, and one for writing no `&mut T`: a function that a guard is passed to,
/// such as `drop`, would promise that such a reference is good until it returns, but another thread
/// may write as soon as the lock is released in it.
#[must_use]
pub struct BiasedReadGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _hold: Hold<'a>,
}

/// Write access to the value; unlocks when dropped.
#[must_use]
pub struct BiasedWriteGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _lock: RwLockWriteGuard<'a, ()>,
}

/// What a reader holds to exclude writers.
enum Hold<'a> {
    Slot(#[expect(dead_code, reason = "held until dropped")] Entry<'a>),
    Lock(#[expect(dead_code, reason = "held until dropped")] RwLockReadGuard<'a, ()>),
}

/// A slot in use.
struct Entry<'a> {
    slot: &'a AtomicUsize,
    _held: Held,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        // Release: the writer that sees the slot empty writes after all reads of this reader.
        self.slot.store(0, Ordering::Release);
    }
}

impl<T> BiasedLock<T> {
    /// A lock of this class around `value`.
    pub fn new(class: Class, value: T) -> Self {
        Self {
            lock: RwLock::new(class, ()),
            bias: Bias::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks for reading: waits for a writer.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read(&self) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note(), RwLock::read)
    }

    /// As [`BiasedLock::read`]; the thread may hold locks of its class with smaller keys.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read_keyed(&self, key: u64) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note_keyed(key), |lock| lock.read_keyed(key))
    }

    /// As [`BiasedLock::read`], spinning as [`RwLock::read_spinning`] does.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read_spinning(&self) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note(), RwLock::read_spinning)
    }

    /// Locks for reading if no writer holds it. The order is not checked.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn try_read(&self) -> Option<BiasedReadGuard<'_, T>> {
        self.enter_or_lock(|| self.lock.note_tried(), RwLock::try_read)
    }

    /// Locks for writing: waits for readers and writers.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write(&self) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write())
    }

    /// As [`BiasedLock::write`]; the thread may hold locks of its class with smaller keys.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write_keyed(&self, key: u64) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write_keyed(key))
    }

    /// As [`BiasedLock::write`], spinning as [`RwLock::write_spinning`] does.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write_spinning(&self) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write_spinning())
    }

    /// Locks for writing if it is free. The order is not checked.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn try_write(&self) -> Option<BiasedWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        if self.bias.end() && READERS.is_in(self.address()) {
            // The next writer must search for that reader as well.
            self.bias.set();
            return None;
        }
        Some(self.writer(guard))
    }

    /// Requests the lock and the first `bytes` bytes of its value from the other cores
    /// ([`memory::fetch_for_writing`]), for a caller that is about to lock it for writing: they
    /// arrive together, where a lock that is taken at once arrives before the value is requested.
    #[inline]
    #[cfg_attr(feature = "virtual", track_caller)]
    pub fn fetch_for_writing(&self, bytes: usize) {
        let start = std::ptr::from_ref(self).addr();
        let value = self.value.get().addr();
        memory::fetch_addresses_for_writing(start..value + bytes.min(size_of::<T>()));
    }

    /// The value, without locking, which `&mut self` makes unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, taken out of the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(&self.bias).addr()
    }

    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn read_with<'a>(
        &'a self,
        note: impl FnOnce() -> Held,
        wait: impl FnOnce(&'a RwLock<()>) -> RwLockReadGuard<'a, ()>,
    ) -> BiasedReadGuard<'a, T> {
        self.enter_or_lock(note, |lock| Some(wait(lock)))
            .expect("a lock that is waited for is taken")
    }

    /// Enters as a reader if the lock is biased and a slot is free; otherwise takes the underlying
    /// lock with `take`.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn enter_or_lock<'a>(
        &'a self,
        note: impl FnOnce() -> Held,
        take: impl FnOnce(&'a RwLock<()>) -> Option<RwLockReadGuard<'a, ()>>,
    ) -> Option<BiasedReadGuard<'a, T>> {
        let is_biased = self.bias.is_set();
        if is_biased && let Some(entry) = self.enter(note) {
            return Some(self.guard(Hold::Slot(entry)));
        }
        let guard = take(&self.lock)?;
        if !is_biased {
            self.bias.count();
        }
        Some(self.guard(Hold::Lock(guard)))
    }

    /// Enters as a reader if the lock is still biased and a slot is free.
    #[inline]
    fn enter(&self, note: impl FnOnce() -> Held) -> Option<Entry<'_>> {
        let address = self.address();
        // Before a slot is filled: if the check of the order panicked and left one behind, writers
        // would wait for it.
        let held = note();
        let mut slots = READERS.local(address).into_iter();
        let slot = slots.find(|slot| self.bias.enter(slot, address))?;
        Some(Entry { slot, _held: held })
    }

    /// The guard of a reader that holds a read lock, or a slot that it filled before it saw the
    /// bias set.
    fn guard<'a>(&'a self, hold: Hold<'a>) -> BiasedReadGuard<'a, T> {
        BiasedReadGuard {
            value: &self.value,
            _hold: hold,
        }
    }

    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn write_with<'a>(&'a self, guard: RwLockWriteGuard<'a, ()>) -> BiasedWriteGuard<'a, T> {
        if self.bias.end() {
            READERS.wait_until_out(self.address());
        }
        self.writer(guard)
    }

    /// The guard of a writer that holds the underlying lock and has seen that no slot contains this
    /// lock.
    #[inline]
    fn writer<'a>(&'a self, guard: RwLockWriteGuard<'a, ()>) -> BiasedWriteGuard<'a, T> {
        BiasedWriteGuard {
            value: &self.value,
            _lock: guard,
        }
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BiasedLock").finish_non_exhaustive()
    }
}

impl<T> Deref for BiasedReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds a read lock or a slot (see `BiasedLock::guard`); either prevents
        // a writer's `&mut T` until it is dropped, and the result lives no longer than the guard.
        unsafe { &*self.value.get() }
    }
}

impl<T> Deref for BiasedWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`; `&self` excludes its `&mut T`.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for BiasedWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the underlying write lock excludes every reader that takes that lock; when the
        // guard was made, the bias was not set and no slot contained this lock (see
        // `BiasedLock::writer`), so there is no other reader, and none can enter before the write
        // lock is released with the guard, which the result does not outlive. `&mut self` excludes
        // other references from this guard.
        unsafe { &mut *self.value.get() }
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedReadGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, formatter)
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedWriteGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, formatter)
    }
}

/// Whether readers use the slots, and how many reads remain until they do.
struct Bias {
    /// Reads with the underlying lock until the bias is set; at most [`BIASED`] while it is.
    countdown: AtomicI32,
    /// The start of the countdown when the bias ends. [the underlying write lock]
    patience: AtomicI32,
}

impl Bias {
    fn new() -> Self {
        Self {
            countdown: AtomicI32::new(FIRST_PATIENCE),
            patience: AtomicI32::new(FIRST_PATIENCE),
        }
    }

    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn is_set(&self) -> bool {
        self.countdown.load(Ordering::Acquire) <= BIASED
    }

    /// A reader's two steps; true if it has entered.
    #[inline]
    fn enter(&self, slot: &AtomicUsize, address: usize) -> bool {
        if slot
            .compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        model_order();
        if self.countdown.load(Ordering::SeqCst) <= BIASED {
            return true;
        }
        slot.store(0, Ordering::Release);
        false
    }

    /// Counts one read with the underlying lock by a reader that has seen no bias. The caller holds
    /// the lock, so there is no writer.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn count(&self) {
        // Every read counts, although others count at the same time: where many cores read, most
        // of them would be lost otherwise, and the reads before a bias are the expensive ones. For
        // the same reason this is no loop around a comparison, which fails whenever another core
        // has had the line in between. So readers that count after the last one bring the countdown
        // below zero: by one for each thread at most, since none begins to count once it is zero.
        self.countdown.fetch_sub(1, Ordering::SeqCst);
    }

    /// Restores the bias that [`Bias::end`] has ended. The caller still holds the write lock.
    fn set(&self) {
        self.countdown.store(BIASED, Ordering::SeqCst);
    }

    /// A writer's first step. The caller holds the write lock. True if the bias was set.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    fn end(&self) -> bool {
        if self.countdown.load(Ordering::Relaxed) > BIASED {
            return false;
        }
        let patience = self.patience.load(Ordering::Relaxed);
        let next = patience.saturating_mul(2).min(most_patience());
        self.patience.store(next, Ordering::Relaxed);
        self.countdown.store(next, Ordering::SeqCst);
        model_order();
        true
    }
}

fn most_patience() -> i32 {
    let shards = i32::try_from(topology::shard_count()).unwrap_or(i32::MAX);
    let for_all = shards.saturating_mul(PATIENCE_PER_SHARD);
    for_all.max(2 * FIRST_PATIENCE)
}

/// The model checker treats sequentially consistent accesses as acquire and release only; this
/// fence makes it order the accesses around the call as sequential consistency does.
#[inline]
fn model_order() {
    #[cfg(loom)]
    crate::atomic::fence(Ordering::SeqCst);
}

/// The slots of all shards.
struct Readers {
    shards: Sharded<[AtomicUsize; SLOTS]>,
}

impl Readers {
    fn new() -> Self {
        Self {
            shards: Sharded::new(|_| std::array::from_fn(|_| AtomicUsize::new(0))),
        }
    }

    /// The caller's slots for the lock at `address`.
    #[inline]
    fn local(&self, address: usize) -> [&AtomicUsize; 2] {
        let slots = self.shards.local();
        places(address).map(|place| &slots[place])
    }

    /// The slots of all shards for the lock at `address`.
    fn all(&self, address: usize) -> impl Iterator<Item = &AtomicUsize> {
        let places = places(address);
        let shards = self.shards.iter();
        shards.flat_map(move |slots| places.map(|place| &slots[place]))
    }

    /// Whether a slot of any shard contains the lock.
    fn is_in(&self, address: usize) -> bool {
        self.all(address)
            .any(|slot| slot.load(Ordering::SeqCst) == address)
    }

    /// A writer's second step: waits until no slot contains the lock.
    fn wait_until_out(&self, address: usize) {
        for slot in self.all(address) {
            let mut polls = 0;
            while slot.load(Ordering::SeqCst) == address {
                polls += 1;
                match polls {
                    ..SPINS => std::hint::spin_loop(),
                    SPINS..YIELDS => thread::yield_now(),
                    // The reader probably waits for its device.
                    YIELDS.. => thread::sleep(POLL_INTERVAL),
                }
            }
        }
    }
}

/// The slots of a lock, the same in each shard: two on one cache line, so that of the few locks
/// that a thread holds at once, two with the same slots both find one.
#[inline]
fn places(address: usize) -> [usize; 2] {
    // The upper bits of the hash, since addresses are multiples of some alignment.
    let place = (spread(address as u64) >> (u32::BITS - SLOTS.ilog2())) as usize;
    [place, place ^ 1]
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::{BIASED, Bias};
    use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
    use crate::{Class, RwLock, thread};

    const ADDRESS: usize = 64;

    /// A biased reader and a writer that ends the bias never hold the lock together.
    #[test]
    fn a_reader_and_the_writer_that_ends_its_bias() {
        crate::model(|| {
            let bias = Arc::new(Bias::new());
            bias.countdown.store(BIASED, Ordering::SeqCst);
            let slot = Arc::new(AtomicUsize::new(0));
            let is_changing = Arc::new(AtomicBool::new(false));
            let reader = {
                let (bias, slot) = (Arc::clone(&bias), Arc::clone(&slot));
                let is_changing = Arc::clone(&is_changing);
                thread::spawn("reader", move || {
                    if bias.enter(&slot, ADDRESS) {
                        assert!(!is_changing.load(Ordering::Relaxed), "both hold it");
                        slot.store(0, Ordering::Release);
                    }
                })
            };
            assert!(bias.end());
            while slot.load(Ordering::SeqCst) == ADDRESS {
                thread::yield_now();
            }
            is_changing.store(true, Ordering::Relaxed);
            is_changing.store(false, Ordering::Relaxed);
            reader.join().expect("no panic");
        });
    }

    /// A bias that a reader sets under the lock is seen by the next writer.
    #[test]
    fn a_bias_set_by_a_reader_is_ended_by_the_next_writer() {
        crate::model(|| {
            let lock = Arc::new(RwLock::new(Class::Leaf, ()));
            let bias = Arc::new(Bias::new());
            bias.countdown.store(1, Ordering::SeqCst);
            let reader = {
                let (lock, bias) = (Arc::clone(&lock), Arc::clone(&bias));
                thread::spawn("reader", move || {
                    let _guard = lock.read();
                    bias.count();
                })
            };
            {
                let _guard = lock.write();
                bias.end();
                assert!(!bias.is_set());
            }
            reader.join().expect("no panic");
        });
    }

    /// Of readers that count at the same time each counts.
    #[test]
    fn two_reads_at_once_are_two() {
        crate::model(|| {
            let lock = Arc::new(RwLock::new(Class::Leaf, ()));
            let bias = Arc::new(Bias::new());
            bias.countdown.store(2, Ordering::SeqCst);
            let read = |lock: &RwLock<()>, bias: &Bias| {
                let _guard = lock.read();
                bias.count();
            };
            let reader = {
                let (lock, bias) = (Arc::clone(&lock), Arc::clone(&bias));
                thread::spawn("reader", move || read(&lock, &bias))
            };
            read(&lock, &bias);
            reader.join().expect("no panic");
            assert!(bias.is_set());
        });
    }
}
