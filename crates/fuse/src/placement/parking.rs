//! Lets one thread serve all requests while a caller is followed; the others are parked.
//!
//! The kernel hands a request to the thread that has waited longest. But the thread that has just
//! replied does not wait yet: its caller goes first, and sends the next request meanwhile. So
//! another thread is woken, takes turns with the first on their core, and often finds that the
//! first has taken the request. A thread that is alone finds it when it continues.
//!
//! A thread parks at the end of a call, with no lock held and its reply sent, and only if another
//! one serves. It serves again when it is told to, and by itself if parking is no longer wanted or
//! if no call has ended for [`PATIENCE`]: the serving thread may wait for the device, or for a
//! request of the kernel, or may have ended. So a parked thread delays a request for at most twice
//! that time, and threads of a mount that nobody uses wait for requests, without a timer.
//!
//! The lock is a leaf. A serving thread that finds it held does not wait: the holder may be in the
//! idle class and wait for a core. The count of calls has its own cache line, which one thread
//! writes at a time.

use std::time::Duration;

use pext4_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{CachePadded, Condvar, Mutex};

/// How long a parked thread waits for the end of a call.
const PATIENCE: Duration = Duration::from_millis(5);

/// The parked threads of one mount.
pub(super) struct Parking {
    state: Mutex<State>,
    resumed: Condvar,
    /// How many threads are parked; changes under the lock.
    parked: AtomicUsize,
    /// Calls that have ended; need not count all of them.
    served: CachePadded<AtomicU32>,
}

struct State {
    /// How many threads have joined.
    threads: usize,
    /// Changes when parked threads are told to serve.
    round: u32,
}

impl Parking {
    pub(super) fn new() -> Self {
        let state = State {
            threads: 0,
            round: 0,
        };
        Self {
            state: Mutex::new(Class::Leaf, state),
            resumed: Condvar::new(),
            parked: AtomicUsize::new(0),
            served: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Adds the calling thread, which serves.
    pub(super) fn join(&self) {
        self.state.lock().threads += 1;
    }

    /// Notes that a call has ended, while threads may be parked.
    pub(super) fn note_served(&self) {
        let served = self.served.load(Ordering::Relaxed);
        self.served.store(served.wrapping_add(1), Ordering::Relaxed);
    }

    /// Parks the calling thread while `is_wanted`, unless it is the last that serves.
    pub(super) fn park(&self, is_wanted: impl Fn() -> bool) {
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        if self.parked.load(Ordering::Relaxed) + 1 >= state.threads {
            return;
        }
        self.parked.fetch_add(1, Ordering::Relaxed);
        let round = state.round;
        while is_wanted() {
            let served = self.served.load(Ordering::Relaxed);
            let has_waited = self.resumed.wait_for(&mut state, PATIENCE);
            let is_stuck = has_waited && served == self.served.load(Ordering::Relaxed);
            if is_stuck || state.round != round {
                break;
            }
        }
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tells all parked threads to serve.
    pub(super) fn resume_all(&self) {
        if self.parked.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(mut state) = self.state.try_lock() {
            state.round = state.round.wrapping_add(1);
            drop(state);
            self.resumed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};

    use pext4_sync::atomic::{AtomicBool, Ordering};

    use super::Parking;

    /// A place with two threads, and one of them, which is parked and ends when it serves again.
    fn with_parked_thread(
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> (Arc<Parking>, JoinHandle<()>) {
        let parking = Arc::new(Parking::new());
        parking.join();
        parking.join();
        let parks = Arc::clone(&parking);
        let parked = thread::spawn(move || parks.park(is_wanted));
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
        let alone = Parking::new();
        alone.join();
        alone.park(|| panic!("it would wait for itself"));
        let (parking, parked) = with_parked_thread(|| true);
        parking.park(|| panic!("the other one is parked"));
        parked.join().expect("it serves, since no call ends");
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
}
