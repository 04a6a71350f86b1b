//! Chooses the cores on which the server's threads run.
//!
//! A process that makes a system call sleeps until it is served, so one core could do the work of
//! both. The scheduler does not know that: it wakes the server on an idle core. Waking an idle
//! core, twice for each call, costs many times what serving the call does (tens of microseconds
//! against two or three, most of all in a virtual machine). So while one caller has the threads of
//! a mount to itself, the threads are moved to its core ([`server_threads`]). If callers take
//! turns, for example when they make names in one directory, the threads follow each in turn, or
//! stay on the core that the callers share. If several callers are served at once, or there are
//! many, the threads may run on all cores ([`callers`]).
//!
//! While a thread follows a caller, it also runs in the scheduler's idle class ([`IdleClass`]).
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
mod server_threads;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pext4_sync::scheduling;
use rustix::thread::{CpuSet, sched_setaffinity};

use caller_cores::{CoreQuery, Cores};
use callers::Callers;
use idle_class::IdleClass;
use server_threads::{Membership, ServerThreads};

/// Minimal number of calls between two samples while no caller is followed.
const MIN_CALLS: u32 = 16;
/// Minimal time between two samples: a sample costs as much as a few calls.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// The same if the last sample found no reason to follow any more.
const DOUBT_INTERVAL: Duration = Duration::from_micros(500);
/// Maximal time between two samples while other callers are served too and none is followed.
const MAX_SHARED_INTERVAL: Duration = Duration::from_millis(16);
/// After so many samples in a row without a reason to follow, the threads stop following.
const DOUBTS_TO_LEAVE: u32 = 4;
/// A data request that arrives so long after the last sample makes the threads stop following.
const IDLE_TIMEOUT: Duration = Duration::from_millis(50);

thread_local! {
    static PLACEMENT: RefCell<Option<Placement>> = const { RefCell::new(None) };
}

/// The threads that serve one mount.
pub(crate) struct Servers(Arc<ServerThreads>);

/// The state of one serving thread.
struct Placement {
    membership: Membership,
    callers: Callers,
    /// Calls since the last sample.
    calls: u32,
    /// When the last sample began or ended.
    sampled: Instant,
    /// Time from the last sample to the next.
    interval: Duration,
    /// The same while other callers are served too and none is followed.
    shared_interval: Duration,
    /// Samples in a row that found no reason to follow.
    doubts: u32,
    /// The callers of a query that has no answer yet.
    pending: Option<[u32; 2]>,
    /// Two callers with their cores in the last sample.
    known_cores: [(u32, Option<usize>); 2],
    query: CoreQuery,
    idle_class: IdleClass,
}

impl Servers {
    /// Creates an empty set; a thread joins it with its first call of [`Servers::note_call`].
    pub(crate) fn new() -> Self {
        Self(Arc::new(ServerThreads::new()))
    }

    /// Notes a call of the process `caller`, which the calling thread serves, and moves the threads
    /// if that is due.
    pub(crate) fn note_call(&self, caller: u32) {
        PLACEMENT.with_borrow_mut(|placement| {
            let placement = placement.get_or_insert_with(|| Placement::new(self.0.join()));
            placement.note_call(caller);
        });
    }
}

/// Notes a request for which no caller need be waiting. While the thread follows no caller, this
/// costs one check.
pub(crate) fn note_data_request() {
    PLACEMENT.with_borrow_mut(|placement| {
        if let Some(placement) = placement {
            placement.note_data_request();
        }
    });
}

/// The placement that a thread started by this one inherits. The new thread does work for other
/// callers, so it calls [`Inherited::reset`].
pub(crate) fn inherited() -> Inherited {
    PLACEMENT.with_borrow(|placement| {
        let inherited = placement.as_ref().map(Placement::inherited);
        inherited.unwrap_or_default()
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
    fn new(membership: Membership) -> Self {
        Self {
            membership,
            callers: Callers::new(),
            calls: 0,
            sampled: Instant::now(),
            interval: SAMPLE_INTERVAL,
            shared_interval: SAMPLE_INTERVAL,
            doubts: 0,
            pending: None,
            known_cores: [(0, None); 2],
            query: CoreQuery::new(),
            idle_class: IdleClass::default(),
        }
    }

    fn note_call(&mut self, caller: u32) {
        if self.callers.note(caller) {
            self.membership.publish_caller(caller);
        }
        self.calls += 1;
        if self.callers.just_became_sole() {
            self.follow_alternation();
        }
        if let Some(pending) = self.pending {
            match self.query.take() {
                Some(cores) => self.finish_sample(pending, cores),
                None => self.note_data_request(),
            }
        } else if (self.calls >= MIN_CALLS || self.is_following())
            && self.sampled.elapsed() >= self.interval
        {
            self.begin_sample();
        }
    }

    /// If two callers take turns, moves the threads to the known core of the current one.
    fn follow_alternation(&self) {
        let current = self.callers.current();
        let known = self
            .known_cores
            .into_iter()
            .find(|&(caller, _)| caller == current);
        let core = known.and_then(|(_, core)| core);
        let is_elsewhere =
            core.is_some() && self.membership.core().is_some_and(|own| Some(own) != core);
        if is_elsewhere && self.membership.is_only_caller(current) && !self.callers.is_crowd() {
            self.membership.move_all(core);
        }
    }

    /// Queries on which cores the current and the previous caller run, unless it is too early for
    /// that.
    fn begin_sample(&mut self) {
        let processes = [self.callers.current(), self.callers.previous()];
        self.membership.publish_caller(self.callers.current());
        if !self.is_following()
            && !self.is_sole_caller()
            && self.sampled.elapsed() < self.shared_interval
        {
            return self.calls = 0;
        }
        if self.query.ask(processes) {
            self.pending = Some(processes);
        }
        self.restart_interval();
    }

    /// Moves the threads by the answer to a query.
    fn finish_sample(&mut self, pending: [u32; 2], cores: Cores) {
        self.pending = None;
        self.known_cores = [(pending[0], cores[0]), (pending[1], cores[1])];
        let wanted = self.wanted_core();
        let has_core = self.membership.core().is_some();
        self.doubts = if has_core && wanted.is_none() {
            self.doubts + 1
        } else {
            0
        };
        self.interval = if self.doubts > 0 {
            DOUBT_INTERVAL
        } else {
            SAMPLE_INTERVAL
        };
        self.shared_interval = match wanted {
            Some(_) => SAMPLE_INTERVAL,
            None => MAX_SHARED_INTERVAL.min(self.shared_interval * 2),
        };
        let is_certain = self.doubts == 0 || self.doubts >= DOUBTS_TO_LEAVE;
        if is_certain && wanted != self.membership.core() {
            self.membership.move_all(wanted);
            self.doubts = 0;
        }
        self.idle_class
            .update(self.callers.current(), self.membership.core().is_some());
        self.restart_interval();
    }

    fn is_sole_caller(&self) -> bool {
        self.callers.is_sole_caller() && self.membership.is_only_caller(self.callers.current())
    }

    /// The core of the current caller, if it is the only one, or takes turns with another on the
    /// same core.
    fn wanted_core(&self) -> Option<usize> {
        let current = self.callers.current();
        let index = self
            .known_cores
            .iter()
            .position(|&(caller, _)| caller == current)?;
        let [core, other] = [index, 1 - index].map(|index| self.known_cores[index].1);
        core.filter(|_| (self.is_sole_caller() || core == other) && !self.callers.is_crowd())
    }

    fn note_data_request(&mut self) {
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
        self.idle_class.update(self.callers.current(), false);
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
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::thread;
    use std::time::Instant;

    use pext4_sync::scheduling;
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::{
        IDLE_TIMEOUT, Inherited, PLACEMENT, Placement, Servers, inherited, note_data_request,
    };

    /// Moves the calling thread to one of the cores that it may use, as if it followed a caller.
    pub(crate) fn follow_to_one_core() {
        let cores = sched_getaffinity(None).expect("Linux has it");
        let mut all = 0..CpuSet::MAX_CPU;
        let core = all.find(|&core| cores.is_set(core));
        PLACEMENT.with_borrow_mut(|placement| {
            let membership = Servers::new().0.join();
            let placement = placement.get_or_insert_with(|| Placement::new(membership));
            placement.membership.move_all(core);
        });
    }

    /// The scheduler's policy for the calling thread: 5 is the idle class.
    fn policy() -> u32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        let (_, fields) = stat.rsplit_once(')').expect("the command's name ends");
        let policy = fields.split_whitespace().nth(38).expect("it has 52 fields");
        policy.parse().expect("a number")
    }

    #[test]
    fn a_thread_started_by_a_following_one_runs_on_all_cores() {
        let serving = thread::spawn(|| {
            let allowed_cores = sched_getaffinity(None).expect("Linux has it");
            follow_to_one_core();
            assert_eq!(sched_getaffinity(None).expect("as before").count(), 1);
            let is_idle = scheduling::set_idle_class(true).is_ok();
            let inherited = Inherited {
                is_idle_class: is_idle,
                ..inherited()
            };
            let started = thread::spawn(move || {
                assert_eq!(policy(), if is_idle { 5 } else { 0 });
                inherited.reset();
                (sched_getaffinity(None).expect("as before"), policy())
            });
            assert_eq!(started.join().expect("no panic"), (allowed_cores, 0));
        });
        serving.join().expect("no panic");
    }

    #[test]
    fn the_other_of_two_that_take_turns_is_followed_at_once() {
        let cores = sched_getaffinity(None).expect("Linux has it");
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&core| cores.is_set(core))
            .collect();
        let &[one, other, ..] = cores.as_slice() else {
            return eprintln!("SKIPPED: one core only");
        };
        let serving = thread::spawn(move || {
            let mut placement = Placement::new(Servers::new().0.join());
            placement.known_cores = [(7, Some(one)), (8, Some(other))];
            placement.membership.move_all(Some(one));
            for _ in 0..7 {
                placement.note_call(8);
                assert_eq!(
                    placement.membership.core(),
                    Some(one),
                    "7 may continue at once"
                );
            }
            placement.note_call(8);
            assert_eq!(placement.membership.core(), Some(other));
        });
        serving.join().expect("no panic");
    }

    #[test]
    fn two_callers_are_followed_to_the_core_that_they_share_and_a_crowd_is_not() {
        let mut placement = Placement::new(Servers::new().0.join());
        for caller in [7, 8] {
            placement.callers.note(caller);
        }
        placement.known_cores = [(8, Some(3)), (7, Some(3))];
        assert_eq!(placement.wanted_core(), Some(3));
        placement.known_cores = [(8, Some(3)), (7, Some(4))];
        assert_eq!(placement.wanted_core(), None);
        for caller in 9..16 {
            placement.callers.note(caller);
        }
        for _ in 0..20 {
            placement.callers.note(8);
        }
        placement.known_cores = [(8, Some(3)), (7, Some(3))];
        assert_eq!(placement.wanted_core(), None, "there are nine");
    }

    #[test]
    fn a_thread_that_does_not_serve_passes_nothing_on() {
        let thread = thread::spawn(|| {
            let inherited = inherited();
            assert!(inherited.cores.is_none() && !inherited.is_idle_class);
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn a_thread_with_data_requests_only_stops_following() {
        let serving = thread::spawn(|| {
            let cores = || sched_getaffinity(None).expect("Linux has it");
            let allowed_cores = cores();
            follow_to_one_core();
            PLACEMENT.with_borrow_mut(|placement| {
                let placement = placement.as_mut().expect("it follows");
                placement.sampled = Instant::now() + IDLE_TIMEOUT;
            });
            note_data_request();
            assert_eq!(cores().count(), 1, "names may come again");
            PLACEMENT.with_borrow_mut(|placement| {
                let placement = placement.as_mut().expect("it follows");
                placement.idle_class.update(std::process::id(), true);
                let then = Instant::now().checked_sub(IDLE_TIMEOUT);
                placement.sampled = then.expect("the machine runs for a while");
            });
            note_data_request();
            assert_eq!((cores(), policy()), (allowed_cores, 0));
        });
        serving.join().expect("no panic");
    }
}
