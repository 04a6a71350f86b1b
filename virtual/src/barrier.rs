//! A barrier made of the engine's own atomics and clock, so that it works in real and in virtual time.
//!
//! Who waits looks every now and then instead of sleeping until woken: to wake a hundred takes the one who does it a
//! millisecond, which would be counted as somebody's work.

use std::time::Duration;

use pext4_sync::CachePadded;
use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pext4_sync::{thread, time};

/// Where a number of threads wait for each other, again and again.
pub struct Barrier {
    threads: usize,
    /// [atomic] How many have come since it opened last.
    waiting: CachePadded<AtomicUsize>,
    opening: CachePadded<Opening>,
}

/// The last one.
#[derive(Default)]
struct Opening {
    /// [atomic] How many there were.
    number: AtomicU64,
    /// [atomic; changes only while all wait] When those go on who came to begin together, in nanoseconds.
    together_at: AtomicU64,
}

/// How often who waits looks.
const LOOK: Duration = Duration::from_micros(50);
/// Within this time all have seen that it is open.
const COMING_THROUGH: Duration = Duration::from_micros(300);

impl Barrier {
    /// A barrier for so many threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            waiting: CachePadded::default(),
            opening: CachePadded::default(),
        }
    }

    /// Waits until all have come; answers when those may go on who begin together.
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

    /// As [`Barrier::wait`], and all go on at one moment of virtual time: they come out of the barrier one after
    /// another, which would count as work of those that come last.
    pub fn wait_and_begin_together(&self) {
        let together_at = self.wait();
        thread::sleep(together_at.saturating_sub(time::now()));
    }
}
