//! Epochs: which transaction is running, and the guarantee that two never overlap (rule 1).
//!
//! Every shard has one word: a count of its open handles and a *closed* bit. A start adds one to
//! the word of the caller's shard, and has entered if the bit was clear; this word is all that a
//! start or stop shares with the committer, and starts and stops of different shards share nothing
//! with each other. To end the transaction, the committer sets every bit by a read-modify-write of
//! the same words. So each start is ordered either before the closing of its shard, and the
//! committer waits for it, or after it, and waits at the gate. When all counts are zero, the
//! committer increments the running transaction and clears the bits.
//!
//! The committer waits for one shard after another, and publishes for which. A handle that brings
//! the count of a closed shard to zero wakes the committer only if it waits for this shard:
//! otherwise all handles that stop while a transaction is closed would contend for one mutex. The
//! committer spins briefly before it sleeps.
//!
//! A handle that has entered reads the running transaction without a lock: it cannot change while
//! the handle is counted.
//!
//! Locking: the mutex with which the committer sleeps (class `Journal`) protects no data. A thread
//! that changes what the committer waits for makes the change, then takes the mutex, then wakes.
//! For the gates see [`Gates`].

use pext4_ondisk::Tid;
use pext4_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use pext4_sync::{CachePadded, Class, Condvar, Mutex, Sharded, spin, topology};

use crate::gates::Gates;

const CLOSED: u64 = 1 << 63;
const COUNT: u64 = CLOSED - 1;
/// The number of gates that one thread wakes.
const FAN_OUT: usize = 8;
/// No shard.
const NONE: usize = usize::MAX;

/// The epochs of one journal.
pub(crate) struct Epoch {
    /// [atomic]
    words: Sharded<AtomicU64>,
    /// On a cache line of its own: every start reads it, and waiting threads write the fields
    /// beside it. [atomic; changes only while all shards are closed and drained]
    running: CachePadded<AtomicU32>,
    /// Starts wait here.
    gates: Gates,
    /// The shard that the committer waits for. [atomic]
    awaited: CachePadded<AtomicUsize>,
    /// The committer sleeps here until that shard is drained.
    drained: (Mutex<()>, Condvar),
}

/// An entry into the running transaction, which must be left exactly once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) shard: usize,
    pub(crate) tid: Tid,
}

impl Epoch {
    pub(crate) fn new(shards: Sharded<AtomicU64>, running: Tid) -> Self {
        let gates = Gates::new(shards.count(), FAN_OUT);
        Self {
            words: shards,
            running: CachePadded::new(AtomicU32::new(running.0)),
            gates,
            awaited: CachePadded::new(AtomicUsize::new(NONE)),
            drained: (Mutex::new(Class::Journal, ()), Condvar::new()),
        }
    }

    /// The transaction that new handles belong to.
    pub(crate) fn running(&self) -> Tid {
        Tid(self.running.load(Ordering::Acquire))
    }

    /// The running transaction, of which a start in a later one sees everything that the caller has
    /// written before this call. (After [`Epoch::running`] it need not: a transaction may have been
    /// opened without this thread's knowledge.)
    pub(crate) fn last_running(&self) -> Tid {
        // As a write it comes before or after that of `open`, which reads it in turn.
        Tid(self.running.fetch_add(0, Ordering::AcqRel))
    }

    /// Enters the running transaction, waiting at the gate while it is closed. `None` if
    /// [`Epoch::stop`] ended the wait.
    pub(crate) fn enter(&self) -> Option<Entered> {
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

    fn try_enter(&self, shard: usize) -> Option<Entered> {
        let word = self.words.get(shard);
        // If the shard is seen to be closed, its word need not be written.
        if word.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let before = word.fetch_add(1, Ordering::AcqRel);
        let place = Entered {
            shard,
            tid: self.running(),
        };
        if before & CLOSED == 0 {
            return Some(place);
        }
        self.leave(place);
        None
    }

    /// Enters the running transaction though it is closed. Only the committer may call this,
    /// between [`Epoch::close_and_drain`] and [`Epoch::open`].
    pub(crate) fn enter_closed(&self) -> Entered {
        let shard = self.words.local_index();
        self.words.get(shard).fetch_add(1, Ordering::AcqRel);
        Entered {
            shard,
            tid: self.running(),
        }
    }

    /// Leaves; the last handle of a closed shard wakes the committer if it waits for this shard.
    pub(crate) fn leave(&self, place: Entered) {
        let before = self.words.get(place.shard).fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before & COUNT, 0, "a handle stops once");
        if before != CLOSED | 1 {
            return;
        }
        // Either this thread sees that the committer waits, or the committer sees that the count is
        // zero.
        fence(Ordering::SeqCst);
        if self.awaited.load(Ordering::Relaxed) == place.shard {
            drop(self.drained.0.lock());
            self.drained.1.notify_all();
        }
    }

    fn wait_at_gate(&self, shard: usize) -> bool {
        let word = self.words.get(shard);
        let is_closed = || word.load(Ordering::Acquire) & CLOSED != 0;
        self.gates.wait(is_closed)
    }

    /// Waits until `tid` is no longer the running transaction; false if [`Epoch::stop`] ended the
    /// wait.
    pub(crate) fn wait_for_next(&self, tid: Tid) -> bool {
        self.gates.wait(|| self.running() == tid)
    }

    /// Closes every shard and waits until all handles have stopped. Only the committer calls this.
    pub(crate) fn close_and_drain(&self) {
        for word in self.words.iter() {
            word.fetch_or(CLOSED, Ordering::AcqRel);
        }
        let has_handles = |word: &AtomicU64| word.load(Ordering::Acquire) & COUNT != 0;
        for (shard, word) in self.words.iter().enumerate() {
            if spin::until(|| !has_handles(word)) {
                continue;
            }
            self.awaited.store(shard, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let mut held = self.drained.0.lock();
            while has_handles(word) {
                self.drained.1.wait(&mut held);
            }
        }
        self.awaited.store(NONE, Ordering::Relaxed);
    }

    /// Opens transaction `next` and wakes all waiting starts. Only after
    /// [`Epoch::close_and_drain`].
    pub(crate) fn open(&self, next: Tid) {
        // A read as well: see `last_running`.
        self.running.swap(next.0, Ordering::AcqRel);
        for word in self.words.iter() {
            word.fetch_and(!CLOSED, Ordering::AcqRel);
        }
        self.gates.open();
    }

    /// Ends all waits of starts, the current and the future ones.
    pub(crate) fn stop(&self) {
        self.gates.stop();
    }
}

/// The words of one journal, all open and with no handles: `count`, but at most one per shard,
/// which is also the default.
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

    use pext4_sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use pext4_sync::{Sharded, thread, topology};

    use super::{Epoch, Tid};

    /// Runs `workers` threads, each with a shard of its own and one handle, against one commit.
    fn one_commit(workers: usize) {
        let words = Sharded::with_count(2, |_| AtomicU64::new(0));
        let epoch = Arc::new(Epoch::new(words, Tid(7)));
        let done = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..workers)
            .map(|number| {
                let (epoch, done) = (Arc::clone(&epoch), Arc::clone(&done));
                thread::spawn("worker", move || {
                    let _pin = topology::pin(1 - number);
                    let place = epoch.enter().expect("nobody stops the epochs");
                    if place.tid == Tid(7) {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    epoch.leave(place);
                })
            })
            .collect();
        epoch.close_and_drain();
        let drained = done.load(Ordering::Relaxed);
        epoch.open(Tid(8));
        for worker in workers {
            worker.join().expect("a worker does not panic");
        }
        assert_eq!(
            done.load(Ordering::Relaxed),
            drained,
            "nobody was left in 7"
        );
    }

    /// A journal that closes: what `commit_last` does beside a commit and a start.
    #[test]
    fn a_start_behind_the_last_transaction_sees_that_the_journal_closes() {
        pext4_sync::model_within(2, || {
            let words = Sharded::with_count(1, |_| AtomicU64::new(0));
            let epoch = Arc::new(Epoch::new(words, Tid(7)));
            let closing = Arc::new(AtomicBool::new(false));
            let committer = {
                let epoch = Arc::clone(&epoch);
                thread::spawn("committer", move || {
                    epoch.close_and_drain();
                    epoch.open(Tid(8));
                })
            };
            let starter = {
                let (epoch, closing) = (Arc::clone(&epoch), Arc::clone(&closing));
                thread::spawn("starter", move || {
                    let place = epoch.enter().expect("nobody stops the epochs");
                    let refused = closing.load(Ordering::Acquire);
                    epoch.leave(place);
                    (!refused).then_some(place.tid)
                })
            };
            closing.store(true, Ordering::Release);
            let last = epoch.last_running();
            committer.join().expect("no panic");
            let started = starter.join().expect("no panic");
            assert!(
                started.is_none_or(|tid| tid.0 <= last.0),
                "{started:?}, {last:?}"
            );
        });
    }

    #[test]
    fn a_handle_is_drained_or_belongs_to_the_next_transaction() {
        pext4_sync::model(|| one_commit(1));
    }

    #[test]
    fn the_last_of_two_shards_wakes_the_committer() {
        pext4_sync::model_within(3, || one_commit(2));
    }
}
