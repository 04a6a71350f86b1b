//! A barrier made of the engine's own locks, so that it works in real and in virtual time.

use std::time::Duration;

use pext4_sync::{Class, Condvar, Mutex, thread, time};

/// Where a number of threads wait for each other, again and again.
pub struct Barrier {
    threads: usize,
    state: Mutex<State>,
    opened: Condvar,
}

/// Within this time all who are woken have come through.
const COMING_THROUGH: Duration = Duration::from_micros(300);

#[derive(Default)]
struct State {
    waiting: usize,
    /// How often it has opened.
    openings: u64,
    /// When those go on who came to begin together.
    together_at: Duration,
}

impl Barrier {
    /// A barrier for so many threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            state: Mutex::new(Class::Leaf, State::default()),
            opened: Condvar::new(),
        }
    }

    /// Waits until all have come; answers when those may go on who begin together.
    pub fn wait(&self) -> Duration {
        let mut state = self.state.lock();
        state.waiting += 1;
        if state.waiting == self.threads {
            state.waiting = 0;
            state.openings += 1;
            state.together_at = time::now() + COMING_THROUGH;
            let together_at = state.together_at;
            drop(state);
            self.opened.notify_all();
            return together_at;
        }
        let now = state.openings;
        while state.openings == now {
            self.opened.wait(&mut state);
        }
        state.together_at
    }

    /// As [`Barrier::wait`], and all go on at one moment of virtual time: they come out of the barrier one after
    /// another, which would count as work of those that come last.
    pub fn wait_and_begin_together(&self) {
        let together_at = self.wait();
        thread::sleep(together_at.saturating_sub(time::now()));
    }
}
