//! Gates: where starts of handles sleep until there is a transaction for them.
//!
//! Each shard has a gate of its own: with one gate for all, the woken threads would queue for its
//! mutex. Waking a thread costs the waker some 10 us ([`spin`]), so opening a hundred gates one
//! after another would take a millisecond, during which the whole machine waits for the last. The
//! gates form a tree instead. The opener wakes the first few gates. Where a gate has sleepers, they
//! wake the gates below it (`must_wake_below`); where it has none, the waker continues with the
//! gates below itself. If there are no more gates than the fan-out, the opener wakes all of them
//! itself.
//!
//! The first thread at a gate spins briefly before it sleeps, because a transaction is closed for
//! less time than waking takes. Other threads sleep at once: where threads are many, the processors
//! are needed by the threads that everybody waits for.
//!
//! Invariant: if the awaited condition changes and then [`Gates::open`] is called, every gate is
//! visited, by the opener or by a sleeper, which wakes the gates below before it continues or
//! sleeps again. The requests of two openings may merge into one, since it is served after both
//! changes.
//!
//! Locking: a gate's mutex (class `Journal`) protects its queue. No thread holds two of them, and
//! none is held while a thread wakes gates below or spins.

use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Condvar, Mutex, Sharded, spin};

/// The gates of one journal.
pub(crate) struct Gates {
    gates: Sharded<Gate>,
    /// How many gates the opener wakes, and how many the sleepers of each gate. [immutable]
    fan_out: usize,
    /// [atomic] No thread waits any more.
    stopped: AtomicBool,
}

struct Gate {
    queue: Mutex<Queue>,
    opened: Condvar,
}

#[derive(Default)]
struct Queue {
    sleepers: usize,
    /// A thread spins here before it sleeps.
    has_spinner: bool,
    /// One of the sleepers has to wake the gates below.
    must_wake_below: bool,
}

impl Gates {
    /// Makes at least `count` gates; each waker wakes at most `fan_out` of them.
    pub(crate) fn new(count: usize, fan_out: usize) -> Self {
        Self {
            fan_out,
            gates: Sharded::with_count(count, |_| Gate {
                queue: Mutex::new(Class::Journal, Queue::default()),
                opened: Condvar::new(),
            }),
            stopped: AtomicBool::new(false),
        }
    }

    /// Waits at the caller's gate until `must_wait` returns false. Returns false if [`Gates::stop`]
    /// ended the wait.
    pub(crate) fn wait(&self, must_wait: impl Fn() -> bool) -> bool {
        let number = self.gates.local_index();
        let gate = self.gates.get(number);
        let mut queue = gate.queue.lock();
        if queue.is_idle() {
            queue.has_spinner = true;
            drop(queue);
            let has_opened = spin::until(|| !must_wait());
            queue = gate.queue.lock();
            queue.has_spinner = false;
            if has_opened {
                return true;
            }
        }
        queue.sleepers += 1;
        let has_opened = loop {
            if std::mem::take(&mut queue.must_wake_below) {
                drop(queue);
                self.wake_below(number);
                queue = gate.queue.lock();
            } else if !must_wait() {
                break true;
            } else if self.stopped.load(Ordering::Acquire) {
                break false;
            } else {
                gate.opened.wait(&mut queue);
            }
        };
        queue.sleepers -= 1;
        has_opened
    }

    /// Wakes all waiting threads. The caller has changed what they wait for before.
    pub(crate) fn open(&self) {
        (0..self.fan_out).for_each(|first| self.wake(first));
    }

    /// Ends all waits, the current and the future ones.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.open();
    }

    /// Wakes the sleepers at a gate and at all gates below it.
    fn wake(&self, number: usize) {
        if number < self.gates.count() && !self.gates.get(number).wake() {
            self.wake_below(number);
        }
    }

    fn wake_below(&self, number: usize) {
        let first = (number + 1) * self.fan_out;
        (first..first + self.fan_out).for_each(|below| self.wake(below));
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.sleepers == 0 && !self.has_spinner
    }
}

impl Gate {
    /// Wakes the sleepers, and has one of them wake the gates below. False if no thread sleeps
    /// here.
    fn wake(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.sleepers == 0 {
            return false;
        }
        queue.must_wake_below = true;
        drop(queue);
        self.opened.notify_all();
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use pext4_sync::atomic::{AtomicU32, Ordering};
    use pext4_sync::{thread, topology};

    use super::Gates;

    #[test]
    fn every_sleeper_of_many_gates_is_woken_by_each_opening() {
        const GATES: usize = 32;
        const OPENINGS: u32 = 200;
        let state = Arc::new((Gates::new(GATES, 3), AtomicU32::new(0), AtomicU32::new(0)));
        // Some gates have two sleepers, every fourth has none.
        let numbers = (0..GATES + 8).filter(|number| number % 4 != 2);
        let sleepers: Vec<_> = numbers
            .map(|number| {
                let state = Arc::clone(&state);
                thread::spawn("sleeper", move || {
                    let _pin = topology::pin(number);
                    let (gates, opening, awake) = &*state;
                    for now in 0..OPENINGS {
                        assert!(gates.wait(|| opening.load(Ordering::Acquire) == now));
                        awake.fetch_add(1, Ordering::AcqRel);
                    }
                    !gates.wait(|| true)
                })
            })
            .collect();
        let (gates, opening, awake) = &*state;
        let count = u32::try_from(sleepers.len()).expect("there are few");
        for now in 1..=OPENINGS {
            opening.store(now, Ordering::Release);
            gates.open();
            // If a sleeper is not woken, this loops until the test is stopped from outside.
            while awake.load(Ordering::Acquire) < now * count {
                thread::sleep(std::time::Duration::from_micros(20));
            }
        }
        gates.stop();
        for sleeper in sleepers {
            assert!(sleeper.join().expect("it does not panic"));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use pext4_sync::atomic::{AtomicU32, Ordering};
    use pext4_sync::{thread, topology};

    use super::Gates;

    /// Opens the gates `openings` times. Sleeper n waits until opening `wants[n]`; the last one's
    /// gate is below the other's.
    fn each_is_woken<const SLEEPERS: usize>(wants: [u32; SLEEPERS], openings: u32) {
        let state = Arc::new((Gates::new(2, 1), AtomicU32::new(0)));
        let sleepers = std::array::from_fn::<_, SLEEPERS, _>(|sleeper| {
            let (state, wanted) = (Arc::clone(&state), wants[sleeper]);
            thread::spawn("sleeper", move || {
                // The last one sleeps below.
                let _pin = topology::pin(usize::from(sleeper + 1 == SLEEPERS));
                let (gates, opening) = &*state;
                assert!(gates.wait(|| opening.load(Ordering::Acquire) < wanted));
            })
        });
        for now in 1..=openings {
            state.1.store(now, Ordering::Release);
            state.0.open();
        }
        for sleeper in sleepers {
            sleeper.join().expect("it does not panic");
        }
    }

    #[test]
    fn a_sleeper_above_wakes_the_gate_below() {
        pext4_sync::model(|| each_is_woken([1, 1], 1));
    }

    #[test]
    fn a_sleeper_that_still_has_to_wait_is_woken_again() {
        pext4_sync::model(|| each_is_woken([2], 2));
    }
}
