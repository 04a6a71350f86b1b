//! A barrier made of the engine's own atomics and clock, so that it works in real and in virtual
//! time.
//!
//! A waiting thread polls instead of sleeping until it is woken: waking a hundred threads takes the
//! waker a millisecond, which would be counted as work of its task.

use std::time::Duration;

use pext4_sync::CachePadded;
use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pext4_sync::{thread, time};

/// A reusable barrier for a fixed number of threads.
pub struct Barrier {
    threads: usize,
    /// [atomic] Threads that have arrived since the last opening.
    waiting: CachePadded<AtomicUsize>,
    opening: CachePadded<Opening>,
}

/// The last opening of the barrier.
#[derive(Default)]
struct Opening {
    /// [atomic] Openings so far.
    number: AtomicU64,
    /// [atomic; changes only while all wait] When the threads that begin together continue, in
    /// nanoseconds.
    together_at: AtomicU64,
}

/// Interval at which a waiting thread polls.
const LOOK: Duration = Duration::from_micros(50);
/// By this time after the opening, every thread has seen it.
const COMING_THROUGH: Duration = Duration::from_micros(300);

impl Barrier {
    /// A barrier for `threads` threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            waiting: CachePadded::default(),
            opening: CachePadded::default(),
        }
    }

    /// Waits until all threads have arrived; returns when the threads that begin together continue.
    pub fn wait(&self) -> Duration {
        let openings = self.opening.number.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.open(openings);
        }
        while self.opening.number.load(Ordering::Acquire) == openings {
            thread::sleep(LOOK);
        }
        Duration::from_nanos(self.opening.together_at.load(Ordering::Acquire))
    }

    fn open(&self, openings: u64) {
        let together_at = time::now() + COMING_THROUGH;
        let nanoseconds = u64::try_from(together_at.as_nanos()).unwrap_or(u64::MAX);
        self.waiting.store(0, Ordering::Release);
        self.opening
            .together_at
            .store(nanoseconds, Ordering::Release);
        self.opening.number.store(openings + 1, Ordering::Release);
    }

    /// Waits as [`Barrier::wait`] does, and lets all threads continue at one moment of virtual
    /// time. They leave the barrier one after another, which would otherwise count as work of the
    /// last ones.
    pub fn wait_and_begin_together(&self) {
        let together_at = self.wait();
        thread::sleep(together_at.saturating_sub(time::now()));
    }
}
