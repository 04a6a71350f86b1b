//! Locks in virtual time: who holds one, and who waits in which order.
//!
//! Waiters are served in the order in which they came; a reader does not pass a waiting writer.
//! This file knows nobody's clock and no lines: the machine asks who comes next and makes it cost
//! something.

use std::collections::VecDeque;

use super::lines::Cores;
use crate::order::Class;
use crate::watch::Place;

/// How much a lock was used since the window was opened. Times are in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockCounts {
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
    pub(crate) failures: u64,
    pub(crate) waited: u64,
    /// Held for writing.
    pub(crate) held: u64,
    /// Held for reading, every reader on its own.
    pub(crate) read: u64,
    pub(crate) cores: Cores,
}

/// Somebody who waits.
pub(crate) struct Waiter {
    pub(crate) core: usize,
    pub(crate) place: Place,
    pub(crate) since: u64,
}

/// One lock.
pub(crate) struct Lock {
    pub(crate) class: Class,
    /// Holders, and since when.
    holders: Vec<(usize, u64)>,
    exclusive: bool,
    pub(crate) queue: VecDeque<Waiter>,
    pub(crate) counts: LockCounts,
}

impl Lock {
    pub(crate) fn new(class: Class) -> Self {
        Self {
            class,
            holders: Vec::new(),
            exclusive: false,
            queue: VecDeque::new(),
            counts: LockCounts::default(),
        }
    }

    /// Whether it could be had now by somebody who does not queue.
    pub(crate) fn admits(&self, exclusive: bool) -> bool {
        self.holders.is_empty() || (!exclusive && !self.exclusive && self.queue.is_empty())
    }

    /// Gives it to `core`, who may have it.
    pub(crate) fn give(&mut self, core: usize, exclusive: bool, clock: u64) {
        self.holders.push((core, clock));
        self.exclusive = exclusive;
        self.counts.acquisitions += 1;
        self.counts.cores.insert(core);
    }

    /// Takes it back from `core`.
    pub(crate) fn take_back(&mut self, core: usize, clock: u64) {
        let position = self.holders.iter().rposition(|(holder, _)| *holder == core);
        let position = position.expect("who gives a lock back has it");
        let (_, since) = self.holders.swap_remove(position);
        let time = clock.saturating_sub(since);
        if self.exclusive {
            self.counts.held += time;
        } else {
            self.counts.read += time;
        }
    }

    /// The next waiter, if the lock can be given to it now.
    pub(crate) fn next(&mut self) -> Option<Waiter> {
        let exclusive = self.queue.front()?.place.exclusive;
        let fits = self.holders.is_empty() || (!exclusive && !self.exclusive);
        if fits { self.queue.pop_front() } else { None }
    }
}
