//! Lets one thread serve all requests while a caller is followed; the others are parked.
//!
//! The kernel hands a request to the thread that has waited longest. But the thread that has just
//! replied does not wait yet: its caller goes first, and sends the next request meanwhile. So
//! another thread is woken, takes turns with the first on their core, and often finds that the
//! first has taken the request. A thread that is alone finds it when it continues.
//!
//! One thread is also enough for callers that take turns (`turns.rs`): the one that serves them
//! says so with each of their calls, and for [`TURN_MS`] after that.
//!
//! A thread parks at the end of a call, with no lock held, and only if another one serves: one that
//! is in a data request does not, since it may wait for the device. It serves again when it is told
//! to, and by itself if parking is no longer wanted or if no call has ended for [`PATIENCE`]: the
//! serving thread may wait for the device as well, or for a request of the kernel. So a request
//! waits for a parked thread at most twice that time (longer if other processes leave the idle
//! class no core), and threads of a mount that nobody uses wait for requests, without a timer.
//!
//! The lock is a leaf, and the counts are beside it, since no lock can be taken any more when
//! thread-local values are dropped. A serving thread that finds the lock held does not wait: the
//! holder may be in the idle class and wait for a core. If it wanted to tell parked threads to
//! serve, they do so at the next data request or by themselves. The count of calls has its own
//! cache line, which one thread writes at a time.

use std::time::Duration;

use pext4_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{CachePadded, Condvar, Mutex};

use super::callers::milliseconds;

/// For how long, in milliseconds, one thread is enough after a call that was a part of turns.
const TURN_MS: u32 = 20;
/// How long a parked thread waits for the end of a call.
const PATIENCE: Duration = Duration::from_millis(5);

/// The parked threads of one mount.
pub(super) struct Parking {
    /// The round, which changes when parked threads are told to serve.
    round: Mutex<u32>,
    resumed: Condvar,
    /// How many threads have joined and not left.
    threads: AtomicUsize,
    /// How many of them are parked; changes under the lock.
    parked: AtomicUsize,
    /// How many of them serve data requests.
    in_data_requests: AtomicUsize,
    /// Calls that have ended; need not count all of them.
    served: CachePadded<AtomicU32>,
    /// The thread that serves callers in turn (upper half), and when it did last, by
    /// [`milliseconds`] (lower half); 0 if none does.
    turns: CachePadded<AtomicU64>,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self {
            round: Mutex::new(Class::Leaf, 0),
            resumed: Condvar::new(),
            threads: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            in_data_requests: AtomicUsize::new(0),
            served: CachePadded::new(AtomicU32::new(0)),
            turns: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Notes that a thread serves a call that is a part of turns. False if another one does so.
    pub(super) fn serve_turn(&self, thread: u32) -> bool {
        self.serve_turn_at(thread, milliseconds())
    }

    fn serve_turn_at(&self, thread: u32, now: u32) -> bool {
        let before = self.turns.load(Ordering::Relaxed);
        if is_recent(before, now) && thread_of(before) != thread {
            return false;
        }
        let after = u64::from(thread) << 32 | u64::from(now);
        // While it lasts, only this thread changes it.
        before == after
            || self
                .turns
                .compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Ends the turns that a thread serves.
    pub(super) fn end_turns(&self, thread: u32) {
        let turns = self.turns.load(Ordering::Relaxed);
        if thread_of(turns) == thread {
            let order = Ordering::Relaxed;
            // If it fails, another thread serves them by now.
            let _ = self.turns.compare_exchange(turns, 0, order, order);
        }
    }

    /// Whether another thread serves callers in turn. Mostly none does, and no clock is read.
    pub(super) fn is_left_to_another(&self, thread: u32) -> bool {
        self.is_left_to_another_at(thread, milliseconds)
    }

    fn is_left_to_another_at(&self, thread: u32, now: impl FnOnce() -> u32) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        turns != 0 && thread_of(turns) != thread && is_recent(turns, now())
    }

    /// Adds the calling thread, which serves.
    pub(super) fn join(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes it; it serves no more.
    pub(super) fn leave(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// The calling thread may wait for the device until [`Self::end_data_request`].
    pub(super) fn begin_data_request(&self) {
        self.in_data_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends what [`Self::begin_data_request`] began.
    pub(super) fn end_data_request(&self) {
        self.in_data_requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no thread but the calling one serves.
    fn is_last(&self) -> bool {
        let parked = self.parked.load(Ordering::Relaxed);
        let others = parked + self.in_data_requests.load(Ordering::Relaxed);
        others + 1 >= self.threads.load(Ordering::Relaxed)
    }

    /// Notes that a call has ended, while threads may be parked.
    pub(super) fn note_served(&self) {
        let served = self.served.load(Ordering::Relaxed);
        self.served.store(served.wrapping_add(1), Ordering::Relaxed);
    }

    /// Parks the calling thread while `is_wanted`, unless it is the last that serves. Returns
    /// whether it was parked.
    pub(super) fn park(&self, is_wanted: impl Fn() -> bool) -> bool {
        if self.is_last() {
            return false;
        }
        let Some(mut round) = self.round.try_lock() else {
            return false;
        };
        if self.is_last() {
            return false;
        }
        self.parked.fetch_add(1, Ordering::Relaxed);
        let parked_in = *round;
        while is_wanted() {
            let served = self.served.load(Ordering::Relaxed);
            let has_waited = self.resumed.wait_for(&mut round, PATIENCE);
            let is_stuck = has_waited && served == self.served.load(Ordering::Relaxed);
            if is_stuck {
                // The thread that serves turns may wait for the device, too.
                self.turns.store(0, Ordering::Relaxed);
            }
            if is_stuck || *round != parked_in {
                break;
            }
        }
        self.parked.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Tells all parked threads to serve.
    pub(super) fn resume_all(&self) {
        if self.parked.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(mut round) = self.round.try_lock() {
            *round = round.wrapping_add(1);
            drop(round);
            self.resumed.notify_all();
        }
    }
}

fn thread_of(turns: u64) -> u32 {
    u32::try_from(turns >> 32).expect("it has 32 bits")
}

fn is_recent(turns: u64, now: u32) -> bool {
    let when = u32::try_from(turns & u64::from(u32::MAX)).expect("masked");
    // Another thread may have read the clock later.
    let age = now.wrapping_sub(when).cast_signed();
    turns != 0 && age < TURN_MS.cast_signed()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};

    use pext4_sync::atomic::{AtomicBool, Ordering};

    use super::{Parking, TURN_MS};

    /// A place with two threads, and one of them, which is parked and ends when it serves again.
    fn with_parked_thread(
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> (Arc<Parking>, JoinHandle<()>) {
        let parking = Arc::new(Parking::new());
        parking.join();
        parking.join();
        let parks = Arc::clone(&parking);
        let parked = thread::spawn(move || assert!(parks.park(is_wanted)));
        while parking.parked.load(Ordering::Relaxed) == 0 && !parked.is_finished() {
            thread::yield_now();
        }
        (parking, parked)
    }

    /// Ends calls, so that the parked thread does not serve by itself, until it serves.
    fn serve_until_resumed(parking: &Parking, parked: JoinHandle<()>, each_time: impl Fn()) {
        while !parked.is_finished() {
            parking.note_served();
            each_time();
            thread::yield_now();
        }
        parked.join().expect("no panic");
        assert_eq!(parking.parked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_last_thread_that_serves_never_parks() {
        let parking = Parking::new();
        parking.join();
        assert!(!parking.park(|| true), "it would wait for itself");
        parking.join();
        parking.begin_data_request();
        assert!(!parking.park(|| true), "the other one may wait");
        parking.end_data_request();
        parking.parked.store(1, Ordering::Relaxed);
        assert!(!parking.park(|| true), "the other one is parked");
        parking.parked.store(0, Ordering::Relaxed);
        assert!(parking.park(|| true), "it serves again, since no call ends");
        parking.leave();
        assert!(!parking.park(|| true), "the other one has left");
    }

    #[test]
    fn a_parked_thread_serves_when_it_is_told_to() {
        let (parking, parked) = with_parked_thread(|| true);
        serve_until_resumed(&parking, parked, || parking.resume_all());
    }

    #[test]
    fn a_parked_thread_serves_when_parking_is_not_wanted_any_more() {
        let wanted = Arc::new(AtomicBool::new(true));
        let is_wanted = Arc::clone(&wanted);
        let (parking, parked) = with_parked_thread(move || is_wanted.load(Ordering::Relaxed));
        serve_until_resumed(&parking, parked, || wanted.store(false, Ordering::Relaxed));
    }

    #[test]
    fn one_thread_serves_turns_until_it_ends_them() {
        let parking = Parking::new();
        let now = u32::MAX;
        let later = now.wrapping_add(TURN_MS);
        assert!(parking.serve_turn_at(7, now));
        assert!(parking.serve_turn_at(7, now));
        assert!(!parking.serve_turn_at(8, later - 1));
        assert!(
            !parking.serve_turn_at(8, now - 1),
            "7 has read the clock later"
        );
        assert!(parking.is_left_to_another_at(8, || later - 1));
        assert!(!parking.is_left_to_another_at(7, || now));
        assert!(!parking.is_left_to_another_at(8, || later));
        assert!(parking.serve_turn_at(8, later));
        parking.end_turns(7);
        assert!(parking.is_left_to_another_at(7, || later), "8 serves them");
        parking.end_turns(8);
        assert!(!parking.is_left_to_another_at(7, || later));
        assert!(parking.serve_turn_at(7, later));
    }
}
