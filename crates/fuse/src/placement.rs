//! Chooses the cores on which the server's threads run.
//!
//! A process that makes a system call sleeps until it is served, so one core could do the work of
//! both. The scheduler does not know that: it wakes the server on an idle core. Waking an idle
//! core, twice for each call, costs many times what serving the call does (tens of microseconds
//! against two or three, most of all in a virtual machine). So while one caller has the threads of
//! a mount to itself, the threads are moved to its core ([`server_threads`]).
//!
//! If several processes call, each has its own core to fill, and the threads may run on all: a
//! process must have called alone for [`callers::ALONE_MS`] before it is followed.
//!
//! But processes that change names in one directory wait for each other, not only for the server:
//! one thread serves all of them, and goes to the core of each in its turn ([`turns`]), if it may
//! run in the idle class there. (Threads that all followed each, or stayed on one core, made the
//! callers change cores too; some mounts were then served at half the rate.)
//!
//! While a thread follows a caller or serves turns, or callers alternate so slowly that each has
//! the threads to itself for a while, it also runs in the scheduler's idle class ([`IdleClass`]).
//! While a caller is followed and sends no data, or one thread serves turns, the others are parked
//! ([`parking`]). How often a thread looks for the caller that it follows depends on the caller's
//! pace ([`pace`]): one that the scheduler has moved becomes slower at once.
//!
//! Polling for the next request before a thread sleeps does not help: the threads take requests
//! from each other, and then wake each other's callers (two processes that truncate made half as
//! many calls).
//!
//! Only requests for names and attributes count: for most data no process waits, since it is read
//! ahead and written back. If only data requests arrive any more, the threads stop following.
//!
//! All of this is a hint: if the system does not report the caller's core, or does not let the
//! server move a thread, nothing is moved. Another thread reads on which core a caller runs (see
//! [`caller_cores`]); the serving thread uses the result at a later call.

mod caller_cores;
mod callers;
mod idle_class;
mod pace;
mod parking;
mod server_threads;
mod turns;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pext4_sync::scheduling;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use caller_cores::CoreQuery;
use callers::{ALONE_MS, Callers};
use idle_class::IdleClass;
use pace::Pace;
use parking::Parking;
use server_threads::{Membership, ServerThreads};
use turns::Turns;

/// Minimal number of calls between two samples while no caller is followed.
const MIN_CALLS: u32 = 16;
/// Minimal time between two samples: a sample costs as much as a few calls.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// The same while a caller is followed, calls alone, and keeps its pace.
const CALM_INTERVAL: Duration = Duration::from_millis(8);
/// The same if the last sample found no reason to follow any more.
const DOUBT_INTERVAL: Duration = Duration::from_micros(500);
/// After so many samples in a row without a reason to follow, the threads stop following.
const DOUBTS_TO_LEAVE: u32 = 4;
/// For how long, in milliseconds, a call of another process makes a caller that is followed share
/// the threads.
const RECENT_MS: u32 = 2;
/// For how long after a caller had the threads to itself callers count as alternating.
const ALTERNATION_TIMEOUT: Duration = Duration::from_millis(20);
/// So many calls without a data request make all threads but one park.
const CALLS_TO_PARK: u32 = 64;
/// A data request, or a call before the answer to a query, that comes so long after the last sample
/// makes the threads stop following.
const IDLE_TIMEOUT: Duration = Duration::from_millis(50);

thread_local! {
    static PLACEMENT: RefCell<Option<Placement>> = const { RefCell::new(None) };
    /// Of a thread that the transport keeps on one core: the cores of the mount's other threads.
    static OTHER_CORES: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
}

/// The threads that serve one mount.
pub(crate) struct Servers {
    threads: Arc<ServerThreads>,
    parking: Arc<Parking>,
    /// The cores of the thread that mounts, if the system reports them. [immutable]
    cores: Option<CpuSet>,
}

/// A call that the calling thread serves, until the reply has been sent or is left to a worker.
#[must_use = "the call ends when it is dropped"]
pub(crate) struct Call(());

/// A request for which no caller need be waiting, while the calling thread serves it.
#[must_use = "the request ends when it is dropped"]
pub(crate) struct DataRequest {
    /// Whether it was counted where threads are parked.
    is_counted: bool,
}

/// The state of one serving thread.
struct Placement {
    membership: Membership,
    parking: Arc<Parking>,
    callers: Callers,
    /// Calls since the last sample.
    calls: u32,
    /// Calls since the last data request.
    calls_since_data: u32,
    /// When the last sample began or ended.
    sampled: Instant,
    /// Time from the last sample to the next.
    interval: Duration,
    pace: Pace,
    /// When a sample last found a caller that had the threads to itself.
    had_sole_caller: Option<Instant>,
    /// Samples in a row that found no reason to follow.
    doubts: u32,
    /// The caller of a query that has no answer yet.
    pending: Option<u32>,
    query: CoreQuery,
    idle_class: IdleClass,
    turns: Turns,
    /// Whether the thread serves callers in turn.
    serves_turns: bool,
}

impl Servers {
    /// Creates an empty set; a thread joins it with its first call of [`Servers::begin_call`].
    pub(crate) fn new() -> Self {
        Self {
            threads: Arc::new(ServerThreads::new()),
            parking: Arc::new(Parking::new()),
            cores: sched_getaffinity(None).ok(),
        }
    }

    /// Notes that the transport keeps the calling thread on one core, so that it must not be moved.
    pub(crate) fn note_kept(&self) {
        OTHER_CORES.with_borrow_mut(|cores| {
            if cores.is_none() {
                cores.clone_from(&self.cores);
            }
        });
    }

    /// Notes a call of the process `caller`, which the calling thread serves, and moves the threads
    /// if that is due. `directory` is where it changes names, if it does.
    pub(crate) fn begin_call(&self, caller: u32, directory: Option<u64>) -> Call {
        PLACEMENT.with_borrow_mut(|placement| {
            let placement = placement.get_or_insert_with(|| Placement::join(self));
            if placement.turns.note(caller, directory) && placement.serve_turn() {
                return;
            }
            placement.end_turns();
            placement.note_call(caller);
        });
        Call(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // After a panic the reply is sent only later, when its owner is dropped.
        if std::thread::panicking() {
            return;
        }
        PLACEMENT.with_borrow_mut(|placement| {
            if let Some(placement) = placement {
                placement.end_call();
            }
        });
    }
}

/// Notes a request for which no caller need be waiting. While the thread follows no caller, this
/// costs a few checks.
pub(crate) fn begin_data_request() -> DataRequest {
    PLACEMENT.with_borrow_mut(|placement| DataRequest {
        is_counted: placement
            .as_mut()
            .is_some_and(Placement::begin_data_request),
    })
}

impl Drop for DataRequest {
    fn drop(&mut self) {
        if self.is_counted {
            PLACEMENT.with_borrow(|placement| {
                if let Some(placement) = placement {
                    placement.parking.end_data_request();
                }
            });
        }
    }
}

/// The placement that a thread started by this one inherits. The new thread does work for other
/// callers, so it calls [`Inherited::reset`].
pub(crate) fn inherited() -> Inherited {
    let inherited = PLACEMENT.with_borrow(|placement| placement.as_ref().map(Placement::inherited));
    inherited.unwrap_or_else(|| Inherited {
        cores: OTHER_CORES.with_borrow(Clone::clone),
        is_idle_class: false,
    })
}

/// The placement that a new thread inherits from a serving thread.
#[derive(Default)]
pub(crate) struct Inherited {
    /// The cores that the serving thread may use while it follows no caller.
    cores: Option<CpuSet>,
    is_idle_class: bool,
}

impl Inherited {
    /// Lets the calling thread run on all cores, in the normal scheduling class.
    pub(crate) fn reset(self) {
        if let Some(cores) = self.cores {
            // If it fails, the thread only runs slower.
            let _ = sched_setaffinity(None, &cores);
        }
        if self.is_idle_class {
            let _ = scheduling::set_idle_class(false);
        }
    }
}

impl Placement {
    /// The state of the calling thread, which becomes one of `servers`.
    fn join(servers: &Servers) -> Self {
        servers.parking.join();
        Self {
            membership: servers.threads.join(),
            parking: Arc::clone(&servers.parking),
            callers: Callers::new(),
            calls: 0,
            calls_since_data: 0,
            sampled: Instant::now(),
            interval: SAMPLE_INTERVAL,
            pace: Pace::new(Instant::now()),
            had_sole_caller: None,
            doubts: 0,
            pending: None,
            query: CoreQuery::new(),
            idle_class: IdleClass::default(),
            turns: Turns::default(),
            serves_turns: false,
        }
    }

    /// Goes to the core of a caller that takes turns with others. False if another thread serves
    /// them, or this one may not run in the idle class.
    fn serve_turn(&mut self) -> bool {
        if !self.idle_class.is_possible() || !self.parking.serve_turn(self.membership.thread()) {
            return false;
        }
        let now = Instant::now();
        let is_first = !std::mem::replace(&mut self.serves_turns, true);
        if is_first || now.duration_since(self.sampled) >= CALM_INTERVAL {
            self.idle_class.update(&self.turns.processes(), true);
            self.sampled = now;
        }
        if !self.idle_class.is_on() {
            return false;
        }
        self.ask_in_turn(now);
        if let Some(core) = self.turns.core()
            && self.membership.core() != Some(core)
            && self.membership.may_use(core)
        {
            self.membership.move_to(core);
        }
        true
    }

    /// Takes the answer to the last query, and makes the next one.
    fn ask_in_turn(&mut self, now: Instant) {
        if let Some(asked) = self.pending
            && let Some(core) = self.query.take()
        {
            self.pending = None;
            self.turns.learn(asked, core);
        }
        if self.pending.is_none()
            && let Some(caller) = self.turns.to_ask(now)
            && self.query.ask(caller)
        {
            self.pending = Some(caller);
            self.turns.note_asked(now);
        }
    }

    /// Ends the turns that the thread serves, if it does.
    fn end_turns(&mut self) {
        if std::mem::take(&mut self.serves_turns) {
            self.turns.begin_in(None);
            self.parking.end_turns(self.membership.thread());
            self.stop_following();
        }
    }

    fn note_call(&mut self, caller: u32) {
        let is_new = caller != self.callers.current();
        if self.callers.note(caller) {
            self.membership.publish_caller(caller);
        }
        self.calls += 1;
        self.calls_since_data = self.calls_since_data.saturating_add(1);
        if let Some(pending) = self.pending {
            match self.query.take() {
                Some(core) => self.finish_sample(pending, core),
                None => self.give_up_if_idle(),
            }
        } else if self.calls >= MIN_CALLS || self.is_following() {
            let now = Instant::now();
            if self.pace.note(now) || is_new {
                self.interval = self.interval.min(SAMPLE_INTERVAL);
            }
            if now.duration_since(self.sampled) >= self.interval {
                self.begin_sample();
            }
        }
    }

    /// Queries on which core the current caller runs, if one is followed or can be.
    fn begin_sample(&mut self) {
        let caller = self.callers.current();
        self.membership.publish_caller(caller);
        if self.is_sole(caller) {
            self.had_sole_caller = Some(Instant::now());
        }
        if self.membership.core().is_some() || self.is_alone() {
            if self.query.ask(caller) {
                self.pending = Some(caller);
            }
        } else {
            self.interval = SAMPLE_INTERVAL;
            self.idle_class.update(&[caller], self.callers_alternate());
        }
        self.restart_interval();
    }

    /// Whether several callers had the threads to themselves lately, one after another.
    fn callers_alternate(&self) -> bool {
        let had = self.had_sole_caller;
        had.is_some_and(|when| when.elapsed() < ALTERNATION_TIMEOUT)
    }

    /// Moves the threads by the answer to a query.
    fn finish_sample(&mut self, caller: u32, core: Option<usize>) {
        self.pending = None;
        let wanted = core.filter(|_| self.is_sole(caller));
        let has_core = self.membership.core().is_some();
        self.doubts = if has_core && wanted.is_none() {
            self.doubts + 1
        } else {
            0
        };
        self.interval = if self.doubts > 0 {
            DOUBT_INTERVAL
        } else if has_core && wanted == self.membership.core() {
            CALM_INTERVAL
        } else {
            SAMPLE_INTERVAL
        };
        let is_certain = self.doubts == 0 || self.doubts >= DOUBTS_TO_LEAVE;
        if is_certain && wanted != self.membership.core() {
            self.membership.move_all(wanted);
            if wanted.is_none() {
                self.parking.resume_all();
            }
            self.doubts = 0;
        }
        self.idle_class
            .update(&[caller], self.membership.core().is_some());
        self.restart_interval();
    }

    /// Whether the current caller has been the only one for long enough to be followed.
    fn is_alone(&self) -> bool {
        let caller = self.callers.current();
        self.callers.is_alone() && self.membership.is_only_caller(caller, ALONE_MS)
    }

    /// Whether this caller has the threads to itself now.
    fn is_sole(&self, caller: u32) -> bool {
        self.callers.is_sole(caller) && self.membership.is_only_caller(caller, RECENT_MS)
    }

    /// Notes a data request, for which parked threads are needed. Returns whether it was counted.
    fn begin_data_request(&mut self) -> bool {
        self.end_turns();
        self.turns.begin_in(None);
        self.calls_since_data = 0;
        self.parking.resume_all();
        self.give_up_if_idle();
        let is_counted = self.membership.core().is_some();
        if is_counted {
            self.parking.begin_data_request();
        }
        is_counted
    }

    /// Parks the thread if another one is enough.
    fn end_call(&mut self) {
        if self.serves_turns {
            self.parking.note_served();
            return;
        }
        if self.membership.core().is_some() {
            self.parking.note_served();
        }
        let has_turns = self.parking.is_left_to_another(self.membership.thread());
        if self.needs_one_thread() && self.parking.park(|| self.needs_one_thread()) {
            if has_turns && !self.parking.is_left_to_another(self.membership.thread()) {
                // The thread that served them may still be kept on a core that is busy by now.
                self.membership.move_all(None);
            }
            self.start_afresh();
        }
    }

    /// Forgets what was so before the thread was parked.
    fn start_afresh(&mut self) {
        self.calls_since_data = 0;
        if self.query.take().is_some() {
            self.pending = None;
        }
        self.restart_interval();
    }

    /// Whether a caller is followed that sends no data, or another thread serves turns.
    fn needs_one_thread(&self) -> bool {
        (self.membership.core().is_some() && self.calls_since_data >= CALLS_TO_PARK)
            || self.parking.is_left_to_another(self.membership.thread())
    }

    fn give_up_if_idle(&mut self) {
        if self.is_following() && self.sampled.elapsed() >= IDLE_TIMEOUT {
            self.stop_following();
        }
    }

    fn is_following(&self) -> bool {
        self.membership.core().is_some() || self.idle_class.is_on()
    }

    /// Lets all threads run on all cores again.
    fn stop_following(&mut self) {
        self.membership.move_all(None);
        self.parking.resume_all();
        self.idle_class.update(&[], false);
        self.interval = SAMPLE_INTERVAL;
        self.restart_interval();
    }

    /// The placement that a thread started now inherits. Another thread may move this one at any
    /// time.
    fn inherited(&self) -> Inherited {
        Inherited {
            cores: self.membership.allowed_cores(),
            is_idle_class: self.idle_class.is_on(),
        }
    }

    fn restart_interval(&mut self) {
        self.calls = 0;
        self.sampled = Instant::now();
        self.pace.restart(self.sampled);
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.parking.leave();
    }
}

#[cfg(test)]
pub(crate) mod tests;
