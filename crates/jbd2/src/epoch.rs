//! Epochs: which transaction is running, and the promise that two never overlap (design rule 1).
//!
//! Every shard has one word: a count of its open handles and a bit that says *closed*. A start
//! adds one to the caller's word and is in if the bit was clear; that one read-modify-write is all
//! that starts and stops of different shards share with the committer, and nothing with each
//! other. To end the transaction the committer sets every bit by a read-modify-write on the very
//! same words, so each start is ordered before the closing of its shard (and is waited for) or
//! after it (and waits at the gate). When all counts are zero it sets the running transaction one
//! further and clears the bits.
//!
//! A handle that is in reads the running transaction without a lock: it cannot change while the
//! handle counts.
//!
//! Each shard has a gate of its own, or all that wait for a transaction would queue for one mutex when they wake.
//!
//! Locking: a gate's mutex (class `Journal`) protects nothing but sleep. Who changes what a
//! sleeper waits for does so before taking it, and then wakes. Nobody holds two.

use pext4_ondisk::Tid;
use pext4_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use pext4_sync::{CachePadded, Class, Condvar, Mutex, Sharded, topology};

const CLOSED: u64 = 1 << 63;
const COUNT: u64 = CLOSED - 1;

/// The epochs of one journal.
pub(crate) struct Epoch {
    /// [atomic]
    words: Sharded<AtomicU64>,
    /// On a line of its own: every start reads it, and those who wait write what lies around it.
    /// [atomic; changes only while all shards are closed and drained]
    running: CachePadded<AtomicU32>,
    /// [atomic] Nobody waits at the gate any more.
    stopped: AtomicBool,
    /// Where starts of each shard wait.
    gates: Sharded<Gate>,
    /// Where the committer waits until all shards are drained.
    drained: Gate,
}

/// A place to wait at.
struct Gate {
    mutex: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    fn new() -> Self {
        Self {
            mutex: Mutex::new(Class::Journal, ()),
            opened: Condvar::new(),
        }
    }

    /// Waits while `must_wait` says so; false if it did when `stopped` was set.
    fn wait(&self, stopped: &AtomicBool, must_wait: impl Fn() -> bool) -> bool {
        let mut held = self.mutex.lock();
        while must_wait() {
            if stopped.load(Ordering::Acquire) {
                return false;
            }
            self.opened.wait(&mut held);
        }
        true
    }

    /// Wakes those who wait. What they wait for has changed before.
    fn wake(&self) {
        drop(self.mutex.lock());
        self.opened.notify_all();
    }
}

/// A place in the running transaction, to be left exactly once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(crate) tid: Tid,
}

impl Epoch {
    pub(crate) fn new(shards: Sharded<AtomicU64>, running: Tid) -> Self {
        let gates = Sharded::with_count(shards.count(), |_| Gate::new());
        Self {
            words: shards,
            running: CachePadded::new(AtomicU32::new(running.0)),
            stopped: AtomicBool::new(false),
            gates,
            drained: Gate::new(),
        }
    }

    /// The transaction that new handles belong to.
    pub(crate) fn running(&self) -> Tid {
        Tid(self.running.load(Ordering::Acquire))
    }

    /// Enters the running transaction, waiting at the gate while it is closed. `None` once the
    /// epochs have stopped while waiting.
    pub(crate) fn enter(&self) -> Option<Place> {
        loop {
            let shard = self.words.local_index();
            if let Some(place) = self.try_enter(shard) {
                return Some(place);
            }
            if !self.wait_at_gate(shard) {
                return None;
            }
        }
    }

    fn try_enter(&self, shard: usize) -> Option<Place> {
        let word = self.words.get(shard);
        // Who sees that it is closed need not come in to learn it, and wake the committer on leaving.
        if word.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let before = word.fetch_add(1, Ordering::AcqRel);
        let place = Place {
            shard,
            tid: self.running(),
        };
        if before & CLOSED == 0 {
            return Some(place);
        }
        self.leave(place);
        None
    }

    /// Enters the running transaction though it is closed. Only the committer may, between
    /// [`Epoch::close_and_drain`] and [`Epoch::open`].
    pub(crate) fn enter_closed(&self) -> Place {
        let shard = self.words.local_index();
        self.words.get(shard).fetch_add(1, Ordering::AcqRel);
        Place {
            shard,
            tid: self.running(),
        }
    }

    /// Leaves; the last one out of a closed shard wakes the committer.
    pub(crate) fn leave(&self, place: Place) {
        let before = self.words.get(place.shard).fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before & COUNT, 0, "a handle stops once");
        if before == CLOSED | 1 {
            self.drained.wake();
        }
    }

    fn wait_at_gate(&self, shard: usize) -> bool {
        let word = self.words.get(shard);
        let is_closed = || word.load(Ordering::Acquire) & CLOSED != 0;
        self.gates.get(shard).wait(&self.stopped, is_closed)
    }

    /// Waits until `tid` is no longer the running transaction; false if the epochs have stopped.
    pub(crate) fn wait_for_next(&self, tid: Tid) -> bool {
        let gate = self.gates.get(self.gates.local_index());
        gate.wait(&self.stopped, || self.running() == tid)
    }

    /// Closes every shard and waits until all handles have stopped. Only the committer calls this.
    pub(crate) fn close_and_drain(&self) {
        for word in self.words.iter() {
            word.fetch_or(CLOSED, Ordering::AcqRel);
        }
        let mut held = self.drained.mutex.lock();
        for word in self.words.iter() {
            while word.load(Ordering::Acquire) & COUNT != 0 {
                self.drained.opened.wait(&mut held);
            }
        }
    }

    /// Opens transaction `next` to everyone who waits. Only after [`Epoch::close_and_drain`].
    pub(crate) fn open(&self, next: Tid) {
        self.running.store(next.0, Ordering::Release);
        for word in self.words.iter() {
            word.fetch_and(!CLOSED, Ordering::AcqRel);
        }
        self.gates.iter().for_each(Gate::wake);
    }

    /// Lets everyone who waits go, and nobody wait any more.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.gates.iter().for_each(Gate::wake);
    }
}

/// The words of one journal, all open and empty: so many, or one a shard.
pub(crate) fn words(count: Option<usize>) -> Sharded<AtomicU64> {
    let shards = topology::shard_count();
    Sharded::with_count(count.unwrap_or(shards).min(shards), |_| AtomicU64::new(0))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::{thread, topology};

    use super::{Epoch, Tid, words};

    #[test]
    fn no_handle_of_the_next_transaction_overlaps_one_of_the_last() {
        const WORKERS: usize = 8;
        const EPOCHS: u32 = 300;
        let epoch = Arc::new(Epoch::new(words(None), Tid(u32::MAX - 3)));
        let open = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let last = Tid(u32::MAX - 3 + 1).0.wrapping_add(EPOCHS);
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let (epoch, open) = (Arc::clone(&epoch), Arc::clone(&open));
                thread::spawn("worker", move || {
                    let _pin = topology::pin(number);
                    while let Some(place) = epoch.enter() {
                        let slot = (place.tid.0 & 1) as usize;
                        open[slot].fetch_add(1, Ordering::SeqCst);
                        assert_eq!(open[1 - slot].load(Ordering::SeqCst), 0);
                        open[slot].fetch_sub(1, Ordering::SeqCst);
                        epoch.leave(place);
                        if place.tid == Tid(last) {
                            break;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..=EPOCHS {
            epoch.close_and_drain();
            assert_eq!(
                open[0].load(Ordering::SeqCst) + open[1].load(Ordering::SeqCst),
                0
            );
            epoch.open(epoch.running().next());
        }
        assert_eq!(epoch.running(), Tid(last));
        workers
            .into_iter()
            .for_each(|worker| worker.join().expect("a worker found no overlap"));
    }

    #[test]
    fn stopping_lets_waiters_go() {
        let epoch = Arc::new(Epoch::new(words(None), Tid(1)));
        epoch.close_and_drain();
        let waiter = {
            let epoch = Arc::clone(&epoch);
            thread::spawn("waiter", move || epoch.enter().is_none())
        };
        epoch.stop();
        assert!(waiter.join().expect("it does not panic"));
        assert!(!epoch.wait_for_next(Tid(1)));
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::{Sharded, thread, topology};

    use super::{Epoch, Tid};

    #[test]
    fn a_handle_is_drained_or_belongs_to_the_next_transaction() {
        pext4_sync::model(|| {
            let words = Sharded::with_count(2, |_| AtomicU64::new(0));
            let epoch = Arc::new(Epoch::new(words, Tid(7)));
            let done = Arc::new(AtomicU64::new(0));
            let worker = {
                let (epoch, done) = (Arc::clone(&epoch), Arc::clone(&done));
                thread::spawn("worker", move || {
                    let _pin = topology::pin(1);
                    let place = epoch.enter().expect("nobody stops the epochs");
                    if place.tid == Tid(7) {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    epoch.leave(place);
                })
            };
            epoch.close_and_drain();
            let drained = done.load(Ordering::Relaxed);
            epoch.open(Tid(8));
            worker.join().expect("a worker does not panic");
            assert_eq!(
                done.load(Ordering::Relaxed),
                drained,
                "nobody was left in 7"
            );
        });
    }
}
