//! Gates: where starts of handles sleep until there is a transaction for them.
//!
//! There is one for each shard, or all that wait would queue for one mutex when they wake. To wake a
//! thread takes the waker some 10 us, so to open a hundred gates one after another would take a
//! millisecond, and the whole machine waits for the last. They are woken as a tree: who opens them
//! wakes the first few, leaves at each that has sleepers the errand to wake those below it, and so on;
//! where nobody sleeps, the waker goes on to those below itself. A few gates are all first ones: where
//! threads are many and processors few, whoever has an errand may have to wait for a processor.
//!
//! The first who comes to a gate spins for a moment before it sleeps, as a transaction is closed for less
//! time than waking takes. The others sleep at once: where threads are many, the processors are for those
//! who are waited for.
//!
//! Invariant: when what sleepers wait for has changed and [`Gates::open`] was called after it, every
//! gate is visited: by the caller, or by a sleeper, which runs its errand before it goes on or sleeps
//! again. Errands of two openings may become one, as it is run after both changes.
//!
//! Locking: a gate's mutex (class `Journal`) protects its queue. Nobody holds two, and none is held
//! while an errand is run or somebody spins.

use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Condvar, Mutex, Sharded, spin};

/// The gates of one journal.
pub(crate) struct Gates {
    gates: Sharded<Gate>,
    /// How many are woken by who opens them, and by each who is woken. [immutable]
    fan_out: usize,
    /// [atomic] Nobody waits any more.
    stopped: AtomicBool,
}

struct Gate {
    queue: Mutex<Queue>,
    opened: Condvar,
}

#[derive(Default)]
struct Queue {
    sleepers: usize,
    /// Somebody spins instead.
    has_spinner: bool,
    /// Somebody who sleeps here is to wake those below.
    errand: bool,
}

impl Gates {
    /// At least so many gates, of which each waker wakes at most `fan_out`.
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

    /// Waits at the caller's gate while `must_wait` says so; false if it did when all were stopped.
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
        let goes_on = loop {
            if std::mem::take(&mut queue.errand) {
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
        goes_on
    }

    /// Wakes all who wait. What they wait for has changed before.
    pub(crate) fn open(&self) {
        (0..self.fan_out).for_each(|first| self.wake(first));
    }

    /// Lets all who wait go, and nobody wait any more.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.open();
    }

    /// Wakes those at a gate and at all below it.
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
    /// Wakes who sleeps here and leaves them the errand; false if nobody does.
    fn wake(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.sleepers == 0 {
            return false;
        }
        queue.errand = true;
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
            // A sleeper that is forgotten is waited for until the test is ended from outside.
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

    /// Openings, and sleepers at gates of which one lies below the other, each content with another opening.
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
    fn who_is_woken_above_wakes_those_below() {
        pext4_sync::model(|| each_is_woken([1, 1], 1));
    }

    #[test]
    fn who_sleeps_on_is_woken_again() {
        pext4_sync::model(|| each_is_woken([2], 2));
    }
}
