//! Locks in virtual time: which core holds a lock, which cores wait, and how they wait.
//!
//! A lock behaves like one of `parking_lot` (`raw_mutex.rs` and `spinwait.rs` of its 0.12), because
//! this behaviour decides how two threads share a lock that both want all the time. A core that
//! finds the lock held spins: it retries ten times, three times after 2, 4 and 8 pauses and then
//! seven times after yielding. Then it sleeps. It does not spin at all while others sleep. A
//! released lock is free: the first core that comes takes it, possibly the one that released it.
//! The releasing core wakes one sleeper, which costs the releasing core some time and the sleeper
//! more; the sleeper tries again when it is awake. Only once in half a millisecond the lock itself
//! is handed to a sleeper, so that none starves (`parking_lot` draws a random time of up to one
//! millisecond). Readers are woken together; a reader does not overtake a waiting writer unless the
//! lock is free.
//!
//! Invariant: while a lock is free and a core waits for it, some waiter has been called. Every last
//! release calls one, and a core that was called and finds the lock held is back in the queue.
//!
//! A holder may wait while it holds the lock. If it waits for another lock, or for a line that is
//! on its way to others (*elsewhere*), this lock is held and serves nobody: that time is counted
//! apart from its work. If it waits for the lines of this lock itself, for a condition or for a
//! device, that is this lock's work.
//!
//! This file knows neither clocks nor lines: the machine asks which core is next and charges the
//! costs.

use super::lines::Cores;
use super::model::Waiting;
use crate::order::Class;
use crate::watch::LockUse;

/// Picoseconds after which the lock is handed to a sleeper.
const FAIR_INTERVAL: u64 = 500_000_000;

/// The use of a lock since the window was opened. Times are in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockCounts {
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
    pub(crate) failures: u64,
    pub(crate) waited: u64,
    /// Time held for writing.
    pub(crate) held: u64,
    /// The part of `held` in which the holder waited elsewhere.
    pub(crate) elsewhere: u64,
    /// Time held for reading, summed over all readers.
    pub(crate) read: u64,
    /// Time in which it was free although cores waited for it.
    pub(crate) hand_over: u64,
    /// The candidate for the core that held it for writing most of the time (the majority vote of
    /// Boyer and Moore, weighted by time). `lead` is at least its lead over all others and at most
    /// its own time.
    owner: usize,
    pub(crate) lead: u64,
    pub(crate) cores: Cores,
}

impl LockCounts {
    /// Whether anyone took the lock, tried to, or still held it.
    pub(crate) fn is_used(&self) -> bool {
        self.acquisitions + self.failures + self.held + self.read > 0
    }

    fn vote(&mut self, core: usize, time: u64) {
        if self.owner == core {
            self.lead += time;
        } else if self.lead >= time {
            self.lead -= time;
        } else {
            self.owner = core;
            self.lead = time - self.lead;
        }
    }
}

/// A core that holds the lock.
struct Holder {
    core: usize,
    /// Since when it holds the lock.
    since: u64,
    /// How long it had waited in all its life before it began to work under the lock.
    queued: u64,
}

/// A waiting core.
struct Waiter {
    core: usize,
    lock_use: LockUse,
    since: u64,
    /// When it begins to spin.
    spins_from: u64,
    /// When it stops spinning and sleeps.
    sleeps_from: u64,
    call: Option<Called>,
}

/// How a waiter was called that has not retried yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// It spins and sees the release by itself.
    Spinning,
    /// It was woken.
    Sleeping,
}

/// A waiter that a release calls.
pub(crate) struct Call {
    pub(crate) core: usize,
    /// When it continues.
    pub(crate) at: u64,
    /// Whether it had to be woken.
    pub(crate) slept: bool,
}

/// A lock.
pub(crate) struct Lock {
    pub(crate) class: Class,
    holders: Vec<Holder>,
    exclusive: bool,
    queue: Vec<Waiter>,
    /// When the lock was last handed to a sleeper.
    last_fair: u64,
    /// Since when it is free although cores wait for it.
    free_since: Option<u64>,
    pub(crate) counts: LockCounts,
}

impl Lock {
    pub(crate) fn new(class: Class) -> Self {
        Self {
            class,
            holders: Vec::new(),
            exclusive: false,
            queue: Vec::new(),
            last_fair: 0,
            free_since: None,
            counts: LockCounts::default(),
        }
    }

    /// Whether a core could take it now.
    pub(crate) fn admits(&self, exclusive: bool) -> bool {
        let writes = |waiter: &Waiter| waiter.lock_use.exclusive;
        self.holders.is_empty() || (!exclusive && !self.exclusive && !self.queue.iter().any(writes))
    }

    /// Makes `core` a holder; `admits` must be true.
    pub(crate) fn give(&mut self, core: usize, exclusive: bool, clock: u64) {
        self.holders.push(Holder {
            core,
            since: clock,
            queued: 0,
        });
        self.exclusive = exclusive;
        if let Some(since) = self.free_since.take() {
            self.counts.hand_over += clock.saturating_sub(since);
        }
        self.counts.acquisitions += 1;
        self.counts.cores.insert(core);
    }

    /// Counts anew from `clock` on; `queued` is how long a core has waited in all its life.
    pub(crate) fn open_window(&mut self, clock: u64, queued: impl Fn(usize) -> u64) {
        self.counts = LockCounts::default();
        for holder in &mut self.holders {
            holder.since = holder.since.max(clock);
            holder.queued = queued(holder.core);
        }
        for waiter in &mut self.queue {
            waiter.since = waiter.since.max(clock);
        }
        self.free_since = self.free_since.map(|since| since.max(clock));
    }

    /// The last use of the lock that `core` holds.
    fn position(&self, core: usize) -> usize {
        let position = self.holders.iter().rposition(|holder| holder.core == core);
        position.expect("only who holds a lock works under it and releases it")
    }

    /// `core`, a holder, begins to work under the lock; it has waited for `queued` in all its life.
    pub(crate) fn begin(&mut self, core: usize, queued: u64) {
        let position = self.position(core);
        self.holders[position].queued = queued;
    }

    /// Removes `core` from the holders; it has waited for `queued` in all its life.
    pub(crate) fn take_back(&mut self, core: usize, clock: u64, queued: u64) {
        let position = self.position(core);
        let holder = self.holders.swap_remove(position);
        let time = clock.saturating_sub(holder.since);
        if self.exclusive {
            self.counts.held += time;
            self.counts.elsewhere += queued.saturating_sub(holder.queued);
            self.counts.vote(core, time);
        } else {
            self.counts.read += time;
        }
        if self.holders.is_empty() && !self.queue.is_empty() {
            self.free_since = Some(clock);
        }
    }

    /// Puts `core`, which has waited since `since`, into the queue.
    pub(crate) fn queue(
        &mut self,
        core: usize,
        lock_use: LockUse,
        since: u64,
        clock: u64,
        waiting: &Waiting,
    ) {
        let waiter = Waiter {
            core,
            lock_use,
            since,
            spins_from: clock,
            sleeps_from: self.end_of_spinning(clock, waiting),
            call: None,
        };
        self.queue.push(waiter);
    }

    /// Until when a waiter spins that begins at `clock`: not at all while others sleep.
    fn end_of_spinning(&self, clock: u64, waiting: &Waiting) -> u64 {
        let others = self.queue.iter().filter(|waiter| waiter.call.is_none());
        let first = others.map(|waiter| waiter.sleeps_from).min();
        let own = clock + waiting.spin_time();
        first.map_or(own, |first| first.clamp(clock, own))
    }

    /// Called by `core` when it retries after a call: whether it has the lock, can take it, or
    /// waits on.
    pub(crate) fn answer(&mut self, core: usize, clock: u64, waiting: &Waiting) -> Answer {
        let Some(position) = self.queue.iter().position(|waiter| waiter.core == core) else {
            return Answer::Given;
        };
        // It leaves the queue while it retries.
        let mut waiter = self.queue.remove(position);
        if self.admits(waiter.lock_use.exclusive) {
            self.count_wait(waiter.since, clock);
            return Answer::Free;
        }
        if waiter.call.take() == Some(Called::Sleeping) {
            waiter.spins_from = clock;
            waiter.sleeps_from = self.end_of_spinning(clock, waiting);
        }
        self.queue.insert(position, waiter);
        Answer::Held
    }

    /// Counts a wait from `since` until `clock`, which ended with the lock taken.
    pub(crate) fn count_wait(&mut self, since: u64, clock: u64) {
        self.counts.contended += 1;
        self.counts.waited += clock.saturating_sub(since);
    }

    /// The waiters that the release at `clock` calls; none if other holders remain.
    pub(crate) fn call(&mut self, clock: u64, waiting: &Waiting) -> Vec<Call> {
        if !self.holders.is_empty() || self.queue.is_empty() {
            return Vec::new();
        }
        let sleeps = |waiter: &Waiter| waiter.call.is_none() && waiter.sleeps_from <= clock;
        match self.queue.iter().position(sleeps) {
            Some(first) if clock.saturating_sub(self.last_fair) >= FAIR_INTERVAL => {
                vec![self.hand_over(first, clock, waiting)]
            }
            Some(first) => self.call_from(first, clock, waiting),
            None => self.call_spinning(clock, waiting),
        }
    }

    /// Hands the lock to a sleeper.
    fn hand_over(&mut self, position: usize, clock: u64, waiting: &Waiting) -> Call {
        let waiter = self.queue.remove(position);
        let at = clock + waiting.wake;
        self.last_fair = clock;
        self.count_wait(waiter.since, at);
        self.give(waiter.core, waiter.lock_use.exclusive, clock);
        Call {
            core: waiter.core,
            at,
            slept: true,
        }
    }

    /// Calls the waiter that retries next and, if it is a reader, all readers that spin.
    fn call_spinning(&mut self, clock: u64, waiting: &Waiting) -> Vec<Call> {
        let looking = self.queue.iter().enumerate();
        let next = looking
            .filter(|(_, waiter)| waiter.call.is_none())
            .min_by_key(|(_, waiter)| waiting.next_retry(waiter.spins_from, clock))
            .map(|(position, _)| position);
        next.map_or_else(Vec::new, |next| self.call_from(next, clock, waiting))
    }

    /// Calls a waiter and, if it is a reader, the other readers.
    fn call_from(&mut self, position: usize, clock: u64, waiting: &Waiting) -> Vec<Call> {
        let exclusive = self.queue[position].lock_use.exclusive;
        let mut calls = Vec::new();
        for (number, waiter) in self.queue.iter_mut().enumerate() {
            let joins = !exclusive && !waiter.lock_use.exclusive && waiter.call.is_none();
            if number != position && !joins {
                continue;
            }
            let slept = waiter.sleeps_from <= clock;
            waiter.call = Some(if slept {
                Called::Sleeping
            } else {
                Called::Spinning
            });
            calls.push(Call {
                core: waiter.core,
                at: if slept {
                    clock + waiting.wake
                } else {
                    waiting.next_retry(waiter.spins_from, clock)
                },
                slept,
            });
        }
        calls
    }
}

/// What a called waiter finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It holds the lock: the lock was handed over.
    Given,
    /// The lock is free; it may take it.
    Free,
    /// The lock is held; it continues to wait.
    Held,
}
