//! Locks in virtual time: who holds one, who waits, and how.
//!
//! A lock is `parking_lot`'s here as it is there (its `raw_mutex.rs` and `spinwait.rs`, 0.12), for that is
//! what decides how two threads share one that both want all the time. Who finds it held looks again ten
//! times, after 2, 4 and 8 pauses and then after giving way to others seven times; then it sleeps, and it
//! does not look at all while others sleep. A lock that is given back is free: it is had by whoever comes
//! first, be it the one that gave it back. Who gives it back calls one sleeper, which takes the caller
//! some time and the sleeper more, and asks again when it is awake. Only once in half a millisecond a
//! sleeper is handed the lock itself, so that none sleeps for ever (there it is a random time up to one).
//! Readers are called together; one does not pass a waiting writer unless the lock is free.
//!
//! While a lock is free and somebody waits, somebody has been called: a call is made whenever the last
//! holder gives it back, and who was called and finds it held is in the queue as before.
//!
//! This file knows nobody's clock and no lines: the machine asks who comes next and makes it cost
//! something.

use super::lines::Cores;
use super::model::Waiting;
use crate::order::Class;
use crate::watch::Place;

/// Picoseconds after which a sleeper is handed the lock.
const FAIR: u64 = 500_000_000;

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
    /// Who may have held it for writing for most of the time, and by how much more than all others at the least
    /// (the vote of Boyer and Moore, by time).
    owner: usize,
    pub(crate) lead: u64,
    pub(crate) cores: Cores,
}

impl LockCounts {
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

/// Somebody who waits.
struct Waiter {
    core: usize,
    place: Place,
    since: u64,
    /// Since when it looks again and again.
    looks_from: u64,
    /// Until when, for it sleeps from then on.
    sleeps_from: u64,
    call: Option<Called>,
}

/// How a waiter was called that has not looked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// It will see by itself that the lock was given back.
    Looking,
    /// It was woken.
    Asleep,
}

/// Somebody to whom a release matters.
pub(crate) struct Call {
    pub(crate) core: usize,
    /// When it goes on.
    pub(crate) at: u64,
    /// Whether it had to be woken.
    pub(crate) slept: bool,
}

/// One lock.
pub(crate) struct Lock {
    pub(crate) class: Class,
    /// Holders, and since when.
    holders: Vec<(usize, u64)>,
    exclusive: bool,
    queue: Vec<Waiter>,
    /// When a sleeper was last handed it.
    fair: u64,
    pub(crate) counts: LockCounts,
}

impl Lock {
    pub(crate) fn new(class: Class) -> Self {
        Self {
            class,
            holders: Vec::new(),
            exclusive: false,
            queue: Vec::new(),
            fair: 0,
            counts: LockCounts::default(),
        }
    }

    /// Whether it could be had now.
    pub(crate) fn admits(&self, exclusive: bool) -> bool {
        let writes = |waiter: &Waiter| waiter.place.exclusive;
        self.holders.is_empty() || (!exclusive && !self.exclusive && !self.queue.iter().any(writes))
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
            self.counts.vote(core, time);
        } else {
            self.counts.read += time;
        }
    }

    /// `core`, which has waited `since` then, is in the queue from now on.
    pub(crate) fn queue(
        &mut self,
        core: usize,
        place: Place,
        since: u64,
        clock: u64,
        waiting: &Waiting,
    ) {
        let waiter = Waiter {
            core,
            place,
            since,
            looks_from: clock,
            sleeps_from: self.end_of_looking(clock, waiting),
            call: None,
        };
        self.queue.push(waiter);
    }

    /// Until when somebody looks who begins now: nobody does while others sleep.
    fn end_of_looking(&self, clock: u64, waiting: &Waiting) -> u64 {
        let others = self.queue.iter().filter(|waiter| waiter.call.is_none());
        let first = others.map(|waiter| waiter.sleeps_from).min();
        let own = clock + waiting.looking();
        first.map_or(own, |first| first.clamp(clock, own))
    }

    /// `core`, which was called, looks; answers whether the lock is its own already, or it may take it.
    pub(crate) fn answer(&mut self, core: usize, clock: u64, waiting: &Waiting) -> Answer {
        let Some(position) = self.queue.iter().position(|waiter| waiter.core == core) else {
            return Answer::Given;
        };
        // It is out of the queue while it asks.
        let mut waiter = self.queue.remove(position);
        if self.admits(waiter.place.exclusive) {
            self.count_wait(waiter.since, clock);
            return Answer::Free;
        }
        if waiter.call.take() == Some(Called::Asleep) {
            waiter.looks_from = clock;
            waiter.sleeps_from = self.end_of_looking(clock, waiting);
        }
        self.queue.insert(position, waiter);
        Answer::Held
    }

    /// Somebody who has waited `since` then has it.
    pub(crate) fn count_wait(&mut self, since: u64, clock: u64) {
        self.counts.contended += 1;
        self.counts.waited += clock.saturating_sub(since);
    }

    /// Whom the release at `clock` concerns: nobody, if others still hold it.
    pub(crate) fn call(&mut self, clock: u64, waiting: &Waiting) -> Vec<Call> {
        if !self.holders.is_empty() || self.queue.is_empty() {
            return Vec::new();
        }
        let sleeps = |waiter: &Waiter| waiter.call.is_none() && waiter.sleeps_from <= clock;
        match self.queue.iter().position(sleeps) {
            Some(first) if clock.saturating_sub(self.fair) >= FAIR => {
                vec![self.hand(first, clock, waiting)]
            }
            Some(first) => self.call_from(first, clock, waiting),
            None => self.call_looking(clock, waiting),
        }
    }

    /// Gives it to a sleeper.
    fn hand(&mut self, position: usize, clock: u64, waiting: &Waiting) -> Call {
        let waiter = self.queue.remove(position);
        let at = clock + waiting.wake;
        self.fair = clock;
        self.count_wait(waiter.since, at);
        self.give(waiter.core, waiter.place.exclusive, clock);
        Call {
            core: waiter.core,
            at,
            slept: true,
        }
    }

    /// Calls the waiter that looks next, and if it is a reader all that look.
    fn call_looking(&mut self, clock: u64, waiting: &Waiting) -> Vec<Call> {
        let looking = self.queue.iter().enumerate();
        let next = looking
            .filter(|(_, waiter)| waiter.call.is_none())
            .min_by_key(|(_, waiter)| waiting.next_look(waiter.looks_from, clock))
            .map(|(position, _)| position);
        next.map_or_else(Vec::new, |next| self.call_from(next, clock, waiting))
    }

    /// Calls a waiter, and if it is a reader the others.
    fn call_from(&mut self, position: usize, clock: u64, waiting: &Waiting) -> Vec<Call> {
        let exclusive = self.queue[position].place.exclusive;
        let mut calls = Vec::new();
        for (number, waiter) in self.queue.iter_mut().enumerate() {
            let joins = !exclusive && !waiter.place.exclusive && waiter.call.is_none();
            if number != position && !joins {
                continue;
            }
            let slept = waiter.sleeps_from <= clock;
            waiter.call = Some(if slept {
                Called::Asleep
            } else {
                Called::Looking
            });
            calls.push(Call {
                core: waiter.core,
                at: if slept {
                    clock + waiting.wake
                } else {
                    waiting.next_look(waiter.looks_from, clock)
                },
                slept,
            });
        }
        calls
    }
}

/// What somebody who was called finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has the lock: it was handed over.
    Given,
    /// It may take it.
    Free,
    /// It waits on.
    Held,
}
