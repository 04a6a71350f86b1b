//! On which core a serving thread runs.
//!
//! A process that makes a call waits until it is served, so one core could do the work of both. The
//! scheduler cannot know that: it wakes the server on an idle core, and waking an idle core, twice
//! for each call, costs many times what serving it does (tens of microseconds against two or three,
//! most of all in a virtual machine). So while one caller has the threads of a mount to itself, they
//! follow it to its core ([`together`]). Callers that take turns, as those who make names in one directory do, are
//! followed in turn, or to the core that they share. As soon as several are served at once, and where there is a crowd,
//! the threads run wherever there is room ([`callers`]).
//!
//! While it follows, it also gives way to everybody ([`GivingWay`]).
//!
//! Threads that look for the next request for a while before they sleep would be no help: they take requests from
//! each other, and then wake each other's callers (two processes that truncate made half as many calls).
//!
//! Only calls for names and attributes count: nobody waits for most data, which is read ahead and written late. But
//! where nothing else comes any more, a thread that still follows leaves its place.
//!
//! All of it is a hint: where the system does not tell the caller's core, or refuses, nothing is
//! moved. Where a caller runs is asked of another thread ([`whereabouts`] says why), and what it answers is acted upon
//! at a later call.

mod callers;
mod giving_way;
mod together;
mod whereabouts;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pext4_sync::scheduling;
use rustix::thread::{CpuSet, sched_setaffinity};

use callers::Callers;
use giving_way::GivingWay;
use together::{Membership, Together};
use whereabouts::{Cores, Desk};

/// Calls between two looks, at least, where nobody is followed.
const CALLS: u32 = 16;
/// Time between two looks, at least: a look costs as much as a few calls.
const INTERVAL: Duration = Duration::from_millis(1);
/// The same where the last look found no reason to follow any more.
const SHORT: Duration = Duration::from_micros(500);
/// The longest time between two looks while others are served too and nobody is followed.
const PATIENCE: Duration = Duration::from_millis(16);
/// Looks in a row that must find no reason to follow before a thread leaves its place.
const DOUBTS: u32 = 4;
/// After this time without a look, a thread that moves data follows nobody.
const QUIET: Duration = Duration::from_millis(50);

thread_local! {
    static PLACEMENT: RefCell<Option<Placement>> = const { RefCell::new(None) };
}

/// The threads that serve one mount.
pub(crate) struct Servers(Arc<Together>);

/// What one serving thread knows.
struct Placement {
    place: Membership,
    callers: Callers,
    /// Calls since the last look.
    calls: u32,
    looked: Instant,
    /// When the next look is due.
    interval: Duration,
    /// When it is due though others are served too.
    patience: Duration,
    /// Looks in a row that found no reason to follow.
    doubts: u32,
    /// Of whom it has asked on which cores they run, and has no answer yet.
    asked: Option<[u32; 2]>,
    /// Where two callers were at the last look.
    known: [(u32, Option<usize>); 2],
    desk: Desk,
    giving_way: GivingWay,
}

impl Servers {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Together::new()))
    }

    /// Notes a call of a process that the calling thread serves; now and then moves the threads.
    pub(crate) fn serve(&self, caller: u32) {
        PLACEMENT.with_borrow_mut(|placement| {
            let placement = placement.get_or_insert_with(|| Placement::new(self.0.join()));
            placement.serve(caller);
        });
    }
}

/// Notes a request that tells nothing of a caller who waits. While the thread follows nobody it costs a look at that.
pub(crate) fn serve_apart() {
    PLACEMENT.with_borrow_mut(|placement| {
        if let Some(placement) = placement {
            placement.serve_apart();
        }
    });
}

/// What a thread started by this one takes over of its place, and is not meant to: it does other work, and for others.
pub(crate) fn inherited() -> Inherited {
    PLACEMENT.with_borrow(|placement| {
        let inherited = placement.as_ref().map(Placement::inherited);
        inherited.unwrap_or_default()
    })
}

/// What a new thread takes over of the place of a thread that serves.
#[derive(Default)]
pub(crate) struct Inherited {
    /// The cores that the other may use when it follows nobody.
    cores: Option<CpuSet>,
    gives_way: bool,
}

impl Inherited {
    /// Has the calling thread run wherever there is room, as one among others.
    pub(crate) fn shed(self) {
        if let Some(cores) = self.cores {
            // A hint as all of it.
            let _ = sched_setaffinity(None, &cores);
        }
        if self.gives_way {
            let _ = scheduling::set_idle_class(false);
        }
    }
}

impl Placement {
    fn new(place: Membership) -> Self {
        Self {
            place,
            callers: Callers::new(),
            calls: 0,
            looked: Instant::now(),
            interval: INTERVAL,
            patience: INTERVAL,
            doubts: 0,
            asked: None,
            known: [(0, None); 2],
            desk: Desk::new(),
            giving_way: GivingWay::default(),
        }
    }

    fn serve(&mut self, caller: u32) {
        if self.callers.note(caller) {
            self.place.tell(caller);
        }
        self.calls += 1;
        if self.callers.is_alone_since_now() {
            self.follow_turn();
        }
        if let Some(asked) = self.asked {
            match self.desk.take() {
                Some(cores) => self.end_look(asked, cores),
                None => self.serve_apart(),
            }
        } else if (self.calls >= CALLS || self.is_placed())
            && self.looked.elapsed() >= self.interval
        {
            self.begin_look();
        }
    }

    /// Follows the other one of two callers that take turns, where its core is known.
    fn follow_turn(&self) {
        let current = self.callers.current();
        let known = self
            .known
            .into_iter()
            .find(|&(caller, _)| caller == current);
        let core = known.and_then(|(_, core)| core);
        let is_elsewhere = core.is_some() && self.place.core().is_some_and(|own| Some(own) != core);
        if is_elsewhere && self.place.agree(current) && !self.callers.are_a_crowd() {
            self.place.move_all(core);
        }
    }

    /// Asks where the callers run, if there is a reason to.
    fn begin_look(&mut self) {
        let processes = [self.callers.current(), self.callers.other()];
        self.place.tell(self.callers.current());
        if !self.is_placed() && !self.is_alone() && self.looked.elapsed() < self.patience {
            return self.calls = 0;
        }
        if self.desk.ask(processes) {
            self.asked = Some(processes);
        }
        self.begin_anew();
    }

    /// Acts upon the answer.
    fn end_look(&mut self, asked: [u32; 2], cores: Cores) {
        self.asked = None;
        self.known = [(asked[0], cores[0]), (asked[1], cores[1])];
        let wanted = self.wanted();
        let is_placed = self.place.core().is_some();
        self.doubts = if is_placed && wanted.is_none() {
            self.doubts + 1
        } else {
            0
        };
        self.interval = if self.doubts > 0 { SHORT } else { INTERVAL };
        self.patience = match wanted {
            Some(_) => INTERVAL,
            None => PATIENCE.min(self.patience * 2),
        };
        let is_certain = self.doubts == 0 || self.doubts >= DOUBTS;
        if is_certain && wanted != self.place.core() {
            self.place.move_all(wanted);
            self.doubts = 0;
        }
        self.giving_way
            .look(self.callers.current(), self.place.core().is_some());
        self.begin_anew();
    }

    fn is_alone(&self) -> bool {
        self.callers.is_alone() && self.place.agree(self.callers.current())
    }

    /// The core of the current caller, if it is alone, or shares it with the other one with which it takes turns.
    fn wanted(&self) -> Option<usize> {
        let current = self.callers.current();
        let place = self
            .known
            .iter()
            .position(|&(caller, _)| caller == current)?;
        let [core, other] = [place, 1 - place].map(|place| self.known[place].1);
        core.filter(|_| (self.is_alone() || core == other) && !self.callers.are_a_crowd())
    }

    fn serve_apart(&mut self) {
        if self.is_placed() && self.looked.elapsed() >= QUIET {
            self.leave();
        }
    }

    fn is_placed(&self) -> bool {
        self.place.core().is_some() || self.giving_way.is_on()
    }

    /// Follows nobody any more.
    fn leave(&mut self) {
        self.place.move_all(None);
        self.giving_way.look(self.callers.current(), false);
        self.begin_anew();
    }

    /// What a thread that is started here would take over. Another thread may move this one at any time.
    fn inherited(&self) -> Inherited {
        Inherited {
            cores: self.place.everywhere(),
            gives_way: self.giving_way.is_on(),
        }
    }

    fn begin_anew(&mut self) {
        self.calls = 0;
        self.looked = Instant::now();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::thread;
    use std::time::Instant;

    use pext4_sync::scheduling;
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::{Inherited, PLACEMENT, Placement, QUIET, Servers, inherited, serve_apart};

    /// Has the calling thread follow somebody to one of the cores that it may use.
    pub(crate) fn follow_to_one_core() {
        let cores = sched_getaffinity(None).expect("Linux has it");
        let mut all = 0..CpuSet::MAX_CPU;
        let core = all.find(|&core| cores.is_set(core));
        PLACEMENT.with_borrow_mut(|placement| {
            let place = Servers::new().0.join();
            let placement = placement.get_or_insert_with(|| Placement::new(place));
            placement.place.move_all(core);
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
    fn a_thread_that_one_in_its_place_starts_runs_anywhere() {
        let serving = thread::spawn(|| {
            let everywhere = sched_getaffinity(None).expect("Linux has it");
            follow_to_one_core();
            assert_eq!(sched_getaffinity(None).expect("as before").count(), 1);
            let is_idle = scheduling::set_idle_class(true).is_ok();
            let inherited = Inherited {
                gives_way: is_idle,
                ..inherited()
            };
            let started = thread::spawn(move || {
                assert_eq!(policy(), if is_idle { 5 } else { 0 });
                inherited.shed();
                (sched_getaffinity(None).expect("as before"), policy())
            });
            assert_eq!(started.join().expect("no panic"), (everywhere, 0));
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
            placement.known = [(7, Some(one)), (8, Some(other))];
            placement.place.move_all(Some(one));
            for _ in 0..7 {
                placement.serve(8);
                assert_eq!(placement.place.core(), Some(one), "7 may go on at once");
            }
            placement.serve(8);
            assert_eq!(placement.place.core(), Some(other));
        });
        serving.join().expect("no panic");
    }

    #[test]
    fn two_callers_are_followed_to_the_core_that_they_share_and_a_crowd_is_not() {
        let mut placement = Placement::new(Servers::new().0.join());
        for caller in [7, 8] {
            placement.callers.note(caller);
        }
        placement.known = [(8, Some(3)), (7, Some(3))];
        assert_eq!(placement.wanted(), Some(3));
        placement.known = [(8, Some(3)), (7, Some(4))];
        assert_eq!(placement.wanted(), None);
        for caller in 9..16 {
            placement.callers.note(caller);
        }
        for _ in 0..20 {
            placement.callers.note(8);
        }
        placement.known = [(8, Some(3)), (7, Some(3))];
        assert_eq!(placement.wanted(), None, "there are nine");
    }

    #[test]
    fn who_serves_nobody_hands_nothing_on() {
        let thread = thread::spawn(|| {
            let inherited = inherited();
            assert!(inherited.cores.is_none() && !inherited.gives_way);
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn who_moves_data_only_leaves_the_place_after_a_while() {
        let serving = thread::spawn(|| {
            let cores = || sched_getaffinity(None).expect("Linux has it");
            let everywhere = cores();
            follow_to_one_core();
            PLACEMENT.with_borrow_mut(|placement| {
                let placement = placement.as_mut().expect("it follows");
                placement.looked = Instant::now() + QUIET;
            });
            serve_apart();
            assert_eq!(cores().count(), 1, "names may come again");
            PLACEMENT.with_borrow_mut(|placement| {
                let placement = placement.as_mut().expect("it follows");
                placement.giving_way.look(std::process::id(), true);
                let then = Instant::now().checked_sub(QUIET);
                placement.looked = then.expect("the machine runs for a while");
            });
            serve_apart();
            assert_eq!((cores(), policy()), (everywhere, 0));
        });
        serving.join().expect("no panic");
    }
}
