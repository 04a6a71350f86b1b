//! A barrier made of the engine's own locks, so that it works in real and in virtual time.

use pext4_sync::{Class, Condvar, Mutex};

/// Where a number of threads wait for each other, again and again.
pub struct Barrier {
    threads: usize,
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    waiting: usize,
    /// How often it has opened.
    openings: u64,
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

    /// Waits until all have come.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        if state.waiting == self.threads {
            state.waiting = 0;
            state.openings += 1;
            drop(state);
            self.opened.notify_all();
            return;
        }
        let now = state.openings;
        while state.openings == now {
            self.opened.wait(&mut state);
        }
    }
}
