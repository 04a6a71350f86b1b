//! Observers of locks and atomics, in builds with the feature `meter`.
//!
//! The watched locks ([`crate::backend`]) and atomics ([`atomic`]) call this module at every step.
//! It forwards the step to the virtual cores if the caller runs on one, else to the
//! [meter](crate::meter), the [traces](crate::trace) and the calibration of the virtual cores, each
//! switched on by a bit of [`WATCHERS`]. Without the feature none of this is compiled, and a lock
//! is a lock of `parking_lot`.
//!
//! This module does not use the crate's own locks, so that observers are not observed.

pub(crate) mod atomic;
pub(crate) mod ticks;

use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::order::Class;
#[cfg(feature = "virtual")]
use crate::{calibration, virtual_cores};
use crate::{meter, spin, trace};

/// The source location of a call in the engine.
pub(crate) type Site = &'static Location<'static>;

/// Bits of the watchers that are switched on.
static WATCHERS: AtomicU8 = AtomicU8::new(0);

pub(crate) const METER: u8 = 1;
pub(crate) const TRACE: u8 = 2;
#[cfg(feature = "virtual")]
pub(crate) const CALIBRATION: u8 = 4;

/// Switches a watcher on or off.
pub(crate) fn switch(watcher: u8, on: bool) {
    if on {
        WATCHERS.fetch_or(watcher, Ordering::SeqCst);
    } else {
        WATCHERS.fetch_and(!watcher, Ordering::SeqCst);
    }
}

/// Whether a watcher is on.
pub(crate) fn is_on(watcher: u8) -> bool {
    WATCHERS.load(Ordering::Relaxed) & watcher != 0
}

/// The kind of a step; with the site it identifies the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Action {
    Take,
    Try,
    #[cfg(feature = "virtual")]
    Release,
    Load,
    Write,
    #[cfg(feature = "virtual")]
    Other,
}

/// One lock, and how it is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockUse {
    pub(crate) class: Class,
    pub(crate) address: usize,
    /// Size of the lock including the value that it guards, in bytes.
    #[cfg(feature = "virtual")]
    pub(crate) bytes: usize,
    pub(crate) exclusive: bool,
    pub(crate) site: Site,
}

impl LockUse {
    pub(crate) fn new<L>(lock: &L, class: Class, exclusive: bool, site: Site) -> Self {
        Self {
            class,
            address: std::ptr::from_ref(lock).addr(),
            #[cfg(feature = "virtual")]
            bytes: size_of::<L>(),
            exclusive,
            site,
        }
    }
}

/// The part of a guard that reports the release: declared after the lock's own guard, so that it is
/// dropped after the lock was released.
pub(crate) struct Hold {
    pub(crate) lock_use: LockUse,
    /// Ticks when it was taken; zero if the meter is off.
    since: u64,
}

impl Hold {
    /// A condition variable releases the lock.
    pub(crate) fn pause(&mut self) {
        self.note_release();
    }

    /// A condition variable has taken the lock again.
    pub(crate) fn resume(&mut self) {
        self.since = begin_of_hold();
        leave();
    }

    fn note_release(&self) {
        #[cfg(feature = "virtual")]
        if is_on(CALIBRATION) {
            calibration::arrive(self.lock_use.site, Action::Release);
        }
        if self.since != 0 {
            meter::released(self.lock_use.class, ticks::now().saturating_sub(self.since));
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        #[cfg(feature = "virtual")]
        if virtual_cores::is_inside() {
            virtual_cores::release(&self.lock_use);
            return;
        }
        if WATCHERS.load(Ordering::Relaxed) != 0 || self.since != 0 {
            self.note_release();
            leave();
        }
    }
}

fn begin_of_hold() -> u64 {
    if is_on(METER) { ticks::now() } else { 0 }
}

/// Takes a lock: by `attempt` if that succeeds, else by `wait`.
pub(crate) fn take<G>(
    lock_use: LockUse,
    attempt: impl FnOnce() -> Option<G>,
    wait: impl FnOnce() -> G,
) -> (G, Hold) {
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        virtual_cores::take(&lock_use);
        let guard = attempt().expect("a lock that is free in virtual time is free");
        return (guard, Hold { lock_use, since: 0 });
    }
    if WATCHERS.load(Ordering::Relaxed) == 0 {
        return (wait(), Hold { lock_use, since: 0 });
    }
    take_watched(lock_use, attempt, wait)
}

/// As [`take`], but if the lock is held, spins while it `is_taken` before it waits.
pub(crate) fn take_spinning<G>(
    lock_use: LockUse,
    attempt: impl Fn() -> Option<G>,
    is_taken: impl Fn() -> bool,
    wait: impl FnOnce() -> G,
) -> (G, Hold) {
    let spin_then_wait = || {
        spin::poll(|| !is_taken(), spin::pause);
        wait()
    };
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        virtual_cores::take_spinning(&lock_use);
        let guard = attempt().expect("a lock that is free in virtual time is free");
        return (guard, Hold { lock_use, since: 0 });
    }
    if WATCHERS.load(Ordering::Relaxed) == 0 {
        let guard = attempt().unwrap_or_else(spin_then_wait);
        return (guard, Hold { lock_use, since: 0 });
    }
    take_watched(lock_use, attempt, spin_then_wait)
}

fn take_watched<G>(
    lock_use: LockUse,
    attempt: impl FnOnce() -> Option<G>,
    wait: impl FnOnce() -> G,
) -> (G, Hold) {
    before(&lock_use, Action::Take);
    let (guard, waited) = match attempt() {
        Some(guard) => (guard, None),
        None => {
            let start = ticks::now();
            let guard = wait();
            let waited = ticks::now().saturating_sub(start);
            leave();
            (guard, Some(waited))
        }
    };
    if is_on(METER) {
        meter::taken(lock_use.class, waited);
    }
    let since = begin_of_hold();
    (guard, Hold { lock_use, since })
}

/// Takes a lock if `attempt` can.
pub(crate) fn try_take<G>(
    lock_use: LockUse,
    attempt: impl FnOnce() -> Option<G>,
) -> Option<(G, Hold)> {
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        if !virtual_cores::try_take(&lock_use) {
            return None;
        }
        let guard = attempt().expect("a lock that is free in virtual time is free");
        return Some((guard, Hold { lock_use, since: 0 }));
    }
    if WATCHERS.load(Ordering::Relaxed) == 0 {
        return attempt().map(|guard| (guard, Hold { lock_use, since: 0 }));
    }
    before(&lock_use, Action::Try);
    let guard = attempt();
    if is_on(METER) {
        meter::tried(lock_use.class, guard.is_some());
    }
    guard.map(|guard| {
        let since = begin_of_hold();
        (guard, Hold { lock_use, since })
    })
}

/// Whether a lock is held at the moment; `look` reads the lock itself.
pub(crate) fn is_held(lock_use: &LockUse, look: impl FnOnce() -> bool) -> bool {
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        // A lock that was handed over is free until its new holder runs, but held in virtual time.
        return virtual_cores::is_held(lock_use);
    }
    access(lock_use.address, Action::Load, lock_use.site, look)
}

fn before(lock_use: &LockUse, action: Action) {
    #[cfg(feature = "virtual")]
    if is_on(CALIBRATION) {
        calibration::arrive(lock_use.site, action);
    }
    let _ = action;
    if is_on(TRACE) {
        trace::lock(lock_use);
    }
    leave();
}

/// Begins the stretch after a step. The work of the step itself, unless it waits, is part of it.
fn leave() {
    #[cfg(feature = "virtual")]
    if is_on(CALIBRATION) {
        calibration::leave();
    }
}

/// Runs one access to the atomic at `address`.
#[inline]
pub(crate) fn access<R>(address: usize, action: Action, site: Site, run: impl FnOnce() -> R) -> R {
    #[cfg(feature = "virtual")]
    if virtual_cores::is_inside() {
        virtual_cores::access(address, action == Action::Write, site);
        return run();
    }
    if WATCHERS.load(Ordering::Relaxed) & !METER == 0 {
        return run();
    }
    #[cfg(feature = "virtual")]
    if is_on(CALIBRATION) {
        calibration::arrive(site, action);
    }
    if is_on(TRACE) {
        trace::line(address, action == Action::Write, site);
    }
    leave();
    run()
}

/// Runs `spin`, which spins at `site`; its argument is the pause between two polls.
#[cfg(feature = "virtual")]
pub(crate) fn spinning(site: Site, spin: impl FnOnce(&dyn Fn()) -> bool) -> bool {
    if virtual_cores::is_inside() {
        return virtual_cores::spinning(site, spin);
    }
    spin(&|| sleeping(site, spin::pause))
}

/// Runs code that passes time without working.
#[cfg(feature = "virtual")]
pub(crate) fn sleeping(site: Site, run: impl FnOnce()) {
    if is_on(CALIBRATION) {
        calibration::arrive(site, Action::Other);
    }
    run();
    leave();
}
