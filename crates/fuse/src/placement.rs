//! On which core a serving thread runs.
//!
//! A process that makes a call waits until it is served, so one core could do the work of both. The
//! scheduler cannot know that: it wakes the server on an idle core, and waking an idle core, twice
//! for each call, costs many times what serving it does (tens of microseconds against two or three,
//! most of all in a virtual machine). So while a serving thread sees calls of one caller only, it
//! follows that caller to its core. As soon as there are more callers it runs wherever there is
//! room; the threads tell each other whom they see at their rare looks, not at every call.
//!
//! While it follows, it also gives way to everybody ([`GivingWay`]).
//!
//! Only calls for names and attributes count: nobody waits for most data, which is read ahead and written late. But
//! where nothing else comes any more, a thread that still follows leaves its place.
//!
//! All of it is a hint: where the system does not tell the caller's core, or refuses, nothing is
//! moved. Where a caller runs is asked of another thread ([`whereabouts`] says why), and what it answers is acted upon
//! at a later call.

mod giving_way;
mod whereabouts;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pext4_sync::{deference, time};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use giving_way::GivingWay;
use whereabouts::Desk;

/// Calls between two looks, at least.
const CALLS: u32 = 32;
/// Time between two looks, at least: a look costs as much as a few calls.
const INTERVAL: Duration = Duration::from_millis(2);

/// For how long a thread that has gone quiet still counts.
const RECENT_MS: u32 = 50;
/// After this time without a look, a thread that moves data follows nobody.
const QUIET: Duration = Duration::from_millis(50);
/// Threads that hear of each other; more than this many are not started.
const THREADS: usize = 8;

/// What each thread saw at its last look: the caller, and when in milliseconds.
static SEEN: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PLACEMENT: RefCell<Option<Placement>> = const { RefCell::new(None) };
}

/// What one serving thread knows.
struct Placement {
    /// The cores it may use at all; `None` if the system does not say.
    everywhere: Option<CpuSet>,
    caller: u32,
    /// How often the caller was another than before, since the last look.
    changes: u32,
    calls: u32,
    looked: Instant,
    /// Of whom it has asked on which core he runs, and has no answer yet.
    asked: Option<u32>,
    desk: Desk,
    core: Option<usize>,
    giving_way: GivingWay,
    thread: usize,
}

/// Notes a call of a process; now and then moves the thread.
pub(crate) fn serve(caller: u32) {
    PLACEMENT
        .with_borrow_mut(|placement| placement.get_or_insert_with(Placement::new).serve(caller));
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
    /// The cores that the other may use when it follows nobody, if it follows somebody.
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
            let _ = deference::defer_to_others(false);
        }
    }
}

impl Placement {
    fn new() -> Self {
        Self {
            everywhere: sched_getaffinity(None).ok(),
            caller: 0,
            changes: 0,
            calls: 0,
            looked: Instant::now(),
            asked: None,
            desk: Desk::new(),
            core: None,
            giving_way: GivingWay::default(),
            thread: NEXT_THREAD.fetch_add(1, Ordering::Relaxed) % THREADS,
        }
    }

    fn serve(&mut self, caller: u32) {
        if caller != self.caller {
            self.caller = caller;
            self.changes += 1;
        }
        self.calls += 1;
        if let Some(asked) = self.asked {
            return self.answer(asked);
        }
        if (self.calls >= CALLS || self.giving_way.is_on()) && self.looked.elapsed() >= INTERVAL {
            self.look();
        }
    }

    /// Ends a look once the answer has come. Nobody is followed for long to where he may not be any more.
    fn answer(&mut self, asked: u32) {
        let Some([core, _]) = self.desk.take() else {
            return self.serve_apart();
        };
        self.asked = None;
        let is_alone = self.changes == 0 && asked == self.caller;
        self.follow(core.filter(|_| is_alone));
    }

    fn serve_apart(&mut self) {
        let is_placed = self.core.is_some() || self.giving_way.is_on();
        if is_placed && self.looked.elapsed() >= QUIET {
            self.leave();
        }
    }

    /// Follows nobody any more.
    fn leave(&mut self) {
        self.move_to(None);
        self.giving_way.look(self.caller, false);
        self.begin_anew();
    }

    /// What a thread that is started here would take over.
    fn inherited(&self) -> Inherited {
        let is_moved = self.core.is_some();
        Inherited {
            cores: self.everywhere.filter(|_| is_moved),
            gives_way: self.giving_way.is_on(),
        }
    }

    /// Looks whether there is one caller only, and if so asks where that one runs.
    fn look(&mut self) {
        let is_alone = self.changes <= 1 && self.caller != 0 && self.agree();
        if is_alone && self.desk.ask([self.caller, 0]) {
            self.asked = Some(self.caller);
            self.changes = 0;
        } else {
            self.follow(None);
        }
    }

    fn follow(&mut self, core: Option<usize>) {
        if core != self.core {
            self.move_to(core);
        }
        self.giving_way.look(self.caller, self.core.is_some());
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.changes = 0;
        self.calls = 0;
        self.looked = Instant::now();
    }

    /// Tells the other threads of this one's caller; whether none has seen another lately.
    fn agree(&self) -> bool {
        let now = milliseconds();
        SEEN[self.thread].store(
            u64::from(self.caller) << 32 | u64::from(now),
            Ordering::Relaxed,
        );
        SEEN.iter().all(|seen| {
            let seen = seen.load(Ordering::Relaxed);
            let when = u32::try_from(seen & u64::from(u32::MAX)).expect("masked");
            seen >> 32 == u64::from(self.caller) || now.wrapping_sub(when) > RECENT_MS
        })
    }

    fn move_to(&mut self, core: Option<usize>) {
        let Some(everywhere) = &self.everywhere else {
            return;
        };
        let moved = match core {
            Some(core) if core < CpuSet::MAX_CPU && everywhere.is_set(core) => {
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only)
            }
            _ => sched_setaffinity(None, everywhere),
        };
        if moved.is_ok() {
            self.core = core;
        }
    }
}

/// The time, good enough for differences of days.
fn milliseconds() -> u32 {
    u32::try_from(time::now().as_millis() & u128::from(u32::MAX)).expect("masked")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::thread;
    use std::time::Instant;

    use pext4_sync::deference;
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::{Inherited, PLACEMENT, Placement, QUIET, inherited, serve_apart};

    /// Has the calling thread follow somebody to one of the cores that it may use.
    pub(crate) fn follow_to_one_core() {
        let cores = sched_getaffinity(None).expect("Linux has it");
        let mut all = 0..CpuSet::MAX_CPU;
        let core = all.find(|&core| cores.is_set(core));
        PLACEMENT.with_borrow_mut(|placement| {
            placement.get_or_insert_with(Placement::new).move_to(core);
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
            let is_idle = deference::defer_to_others(true).is_ok();
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
            assert!(inherited().cores.is_none());
        });
        serving.join().expect("no panic");
    }
}
