//! A reader-writer lock whose readers write nothing that other cores read.
//!
//! The idea is known as biased locking for readers (BRAVO: Dice and Kogan, "Biased Locking for
//! Reader-Writer Locks", USENIX ATC 2019). While a lock is *biased*, a reader does not touch it: it
//! enters the lock's address into a slot of its own shard's table and looks once more whether the
//! lock is still biased. A writer takes the lock underneath, ends the bias, and waits until no
//! shard's slot names the lock any more.
//!
//! When to be biased: a lock begins without bias, as a plain [`RwLock`]. Every reader that has to
//! take the lock underneath counts down, and the last one biases it. Each end of a bias doubles the
//! count for the next time, up to a bound, so a lock that is written often is plain for most of the time,
//! and what a writer pays for looking through all shards is spread over many reads.
//!
//! Invariants: the bias is set only by a holder of the read lock and ended only by the holder of
//! the write lock, so it cannot appear while there is a writer; and of a reader's two steps (enter,
//! then look at the bias) and a writer's (end the bias, then look at the slots) one side always sees
//! the other, since all four are sequentially consistent.
//!
//! A slot serves one reader, and a lock has two in each shard: a third reader of the same shard, or third
//! lock that falls on the same slots, takes the lock underneath. A guard is given back on the thread that
//! got it.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use crate::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::hash::spread;
use crate::held::Held;
use crate::order::Class;
use crate::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sharded::Sharded;
use crate::thread;

/// Slots a shard has: a thread holds a handful of locks at once.
const SLOTS: usize = 64;
/// Reads underneath before the first bias.
const FIRST_PATIENCE: u32 = 16;
/// Reads underneath before a bias, at most. Each costs a transfer or two where there is company, and the
/// end of a bias one a shard; this many pay for the end on hundreds of cores.
const MOST_PATIENCE: u32 = 1 << 9;
/// The countdown of a lock that is biased.
const BIASED: u32 = 0;
/// Looks at a slot before a writer lets others run.
const SPINS: u32 = 64;

/// The locks that readers are in, by shard.
static READERS: LazyLock<Readers> = LazyLock::new(Readers::new);

/// Protects a `T` that is mostly read; its [`Class`] says when it may be taken.
///
/// The lock and its bias lie side by side, so that where both are written one line moves.
#[repr(C)]
pub struct BiasedLock<T> {
    lock: RwLock<()>,
    bias: Bias,
    /// [read: the lock underneath or a slot; write: the lock underneath with no slot in use]
    value: UnsafeCell<T>,
}

// SAFETY: the lock owns its value, so sending it is sending the value.
unsafe impl<T: Send> Send for BiasedLock<T> {}
// SAFETY: readers on several threads get `&T` at once, which asks for `T: Sync`; a writer gets
// `&mut T` on whichever thread it runs, which asks for `T: Send`. The protocol at the head of the
// file keeps the two apart.
unsafe impl<T: Send + Sync> Sync for BiasedLock<T> {}

/// The right to look at the value, given back when dropped.
#[must_use]
pub struct BiasedReadGuard<'a, T> {
    value: &'a T,
    _hold: Hold<'a>,
}

/// The right to change the value, given back when dropped.
#[must_use]
pub struct BiasedWriteGuard<'a, T> {
    value: &'a mut T,
    _lock: RwLockWriteGuard<'a, ()>,
}

/// What keeps writers out.
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
        // Release: the writer that sees the slot empty comes after all this reader has read.
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

    /// Waits until no writer has it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note(), RwLock::read)
    }

    /// Waits until no writer has it; others of its class with smaller keys may be held.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_keyed(&self, key: u64) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note_keyed(key), |lock| lock.read_keyed(key))
    }

    /// As [`BiasedLock::read`], spinning as [`RwLock::read_spinning`] does.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_spinning(&self) -> BiasedReadGuard<'_, T> {
        self.read_with(|| self.lock.note(), RwLock::read_spinning)
    }

    /// Takes it for reading if no writer has it, whatever else this thread holds.
    #[inline]
    pub fn try_read(&self) -> Option<BiasedReadGuard<'_, T>> {
        let hold = match self.enter(|| self.lock.note_tried()) {
            Some(entry) => Hold::Slot(entry),
            None => {
                let guard = self.lock.try_read()?;
                self.bias.count();
                Hold::Lock(guard)
            }
        };
        Some(self.guard(hold))
    }

    /// Waits until nobody has it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write())
    }

    /// Waits until nobody has it; others of its class with smaller keys may be held.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_keyed(&self, key: u64) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write_keyed(key))
    }

    /// As [`BiasedLock::write`], spinning as [`RwLock::write_spinning`] does.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_spinning(&self) -> BiasedWriteGuard<'_, T> {
        self.write_with(self.lock.write_spinning())
    }

    /// Takes it for writing if nobody has it, whatever else this thread holds.
    #[inline]
    pub fn try_write(&self) -> Option<BiasedWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        if self.bias.end() && READERS.is_in(self.address()) {
            // The next writer must look for that reader as well.
            self.bias.set();
            return None;
        }
        Some(self.writer(guard))
    }

    /// The value, without locking: nobody else can have it.
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
    fn read_with<'a>(
        &'a self,
        note: impl FnOnce() -> Held,
        wait: impl FnOnce(&'a RwLock<()>) -> RwLockReadGuard<'a, ()>,
    ) -> BiasedReadGuard<'a, T> {
        let hold = match self.enter(note) {
            Some(entry) => Hold::Slot(entry),
            None => {
                let guard = wait(&self.lock);
                self.bias.count();
                Hold::Lock(guard)
            }
        };
        self.guard(hold)
    }

    /// Enters as a reader if the lock is biased and the slot free.
    #[inline]
    fn enter(&self, note: impl FnOnce() -> Held) -> Option<Entry<'_>> {
        if !self.bias.is_set() {
            return None;
        }
        let address = self.address();
        let mut slots = READERS.local(address).into_iter();
        let slot = slots.find(|slot| self.bias.enter(slot, address))?;
        Some(Entry {
            slot,
            _held: note(),
        })
    }

    fn guard<'a>(&'a self, hold: Hold<'a>) -> BiasedReadGuard<'a, T> {
        BiasedReadGuard {
            // SAFETY: `hold` is a read lock or a slot entered under a bias that was still set
            // afterwards; each keeps writers from their `&mut T` until it is dropped, which is
            // when the guard is.
            value: unsafe { &*self.value.get() },
            _hold: hold,
        }
    }

    #[inline]
    fn write_with<'a>(&'a self, guard: RwLockWriteGuard<'a, ()>) -> BiasedWriteGuard<'a, T> {
        if self.bias.end() {
            READERS.wait_until_out(self.address());
        }
        self.writer(guard)
    }

    /// `guard` is the lock underneath, and no slot names this lock.
    #[inline]
    fn writer<'a>(&'a self, guard: RwLockWriteGuard<'a, ()>) -> BiasedWriteGuard<'a, T> {
        BiasedWriteGuard {
            // SAFETY: the write lock underneath keeps out every reader that takes it; the bias is
            // not set, and no slot names this lock, so there is no other reader, and none comes
            // before the write lock is given back.
            value: unsafe { &mut *self.value.get() },
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
        self.value
    }
}

impl<T> Deref for BiasedWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for BiasedWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value
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

/// Whether readers go by the slots, and how long until they will.
struct Bias {
    /// Reads underneath until the bias; [`BIASED`] while it is set.
    countdown: AtomicU32,
    /// Where the countdown begins when the bias ends. [the write lock underneath]
    patience: AtomicU32,
}

impl Bias {
    fn new() -> Self {
        Self {
            countdown: AtomicU32::new(FIRST_PATIENCE),
            patience: AtomicU32::new(FIRST_PATIENCE),
        }
    }

    #[inline]
    fn is_set(&self) -> bool {
        self.countdown.load(Ordering::Acquire) == BIASED
    }

    /// A reader's two steps; true if it is in.
    #[inline]
    fn enter(&self, slot: &AtomicUsize, address: usize) -> bool {
        if slot
            .compare_exchange(0, address, Ordering::SeqCst, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        model_order();
        if self.countdown.load(Ordering::SeqCst) == BIASED {
            return true;
        }
        slot.store(0, Ordering::Release);
        false
    }

    /// One read underneath; called with the read lock held, so that no writer is in.
    #[inline]
    fn count(&self) {
        let left = self.countdown.load(Ordering::Relaxed);
        if left == BIASED {
            return;
        }
        // Two readers at once may count one: the exchange only must not undo a bias.
        let _ =
            self.countdown
                .compare_exchange(left, left - 1, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Goes on as if the bias had not ended; called with the write lock still held.
    fn set(&self) {
        self.countdown.store(BIASED, Ordering::SeqCst);
    }

    /// A writer's first step, with the write lock held; true if there was a bias to end.
    #[inline]
    fn end(&self) -> bool {
        if self.countdown.load(Ordering::Relaxed) != BIASED {
            return false;
        }
        let patience = self.patience.load(Ordering::Relaxed);
        let next = patience.saturating_mul(2).min(MOST_PATIENCE);
        self.patience.store(next, Ordering::Relaxed);
        self.countdown.store(next, Ordering::SeqCst);
        model_order();
        true
    }
}

/// The model checker takes sequentially consistent accesses for acquire and release only; a fence
/// gives it the order that the accesses around this call have by themselves.
#[inline]
fn model_order() {
    #[cfg(loom)]
    crate::atomic::fence(Ordering::SeqCst);
}

/// Which locks are being read by way of their bias.
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

    /// Whether some shard's slot names the lock.
    fn is_in(&self, address: usize) -> bool {
        self.all(address)
            .any(|slot| slot.load(Ordering::SeqCst) == address)
    }

    /// A writer's second step.
    fn wait_until_out(&self, address: usize) {
        for slot in self.all(address) {
            let mut spins = 0;
            while slot.load(Ordering::SeqCst) == address {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                } else {
                    thread::yield_now();
                }
            }
        }
    }
}

/// The slots of a lock, the same in each shard: two on one line, so that of the few locks that a thread holds
/// at once no two drive each other out.
#[inline]
fn places(address: usize) -> [usize; 2] {
    // The upper bits: addresses are multiples of something.
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

    /// A reader by way of the bias and a writer that ends it are never in together.
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
                        assert!(!is_changing.load(Ordering::Relaxed), "both are in");
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

    /// A bias that a reader sets under the lock is seen by the writer that comes after it.
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
}
