//! Tests of threads that follow callers.

use std::fs;
use std::thread;
use std::time::Instant;

use pext4_sync::scheduling;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{
    ALTERNATION_TIMEOUT, CALLS_TO_PARK, DOUBTS_TO_LEAVE, IDLE_TIMEOUT, Inherited, PLACEMENT,
    Placement, Servers, begin_data_request, inherited,
};

/// Moves the calling thread to one of the cores that it may use, as if it followed a caller.
pub(crate) fn follow_to_one_core() {
    let cores = sched_getaffinity(None).expect("Linux has it");
    let mut all = 0..CpuSet::MAX_CPU;
    let core = all.find(|&core| cores.is_set(core));
    PLACEMENT.with_borrow_mut(|placement| {
        let placement = placement.get_or_insert_with(|| Placement::join(&Servers::new()));
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
fn a_caller_is_followed_until_another_calls() {
    let serving = thread::spawn(|| {
        let allowed_cores = sched_getaffinity(None).expect("Linux has it");
        let core = (0..CpuSet::MAX_CPU).find(|&core| allowed_cores.is_set(core));
        let mut placement = Placement::join(&Servers::new());
        for _ in 0..8 {
            placement.callers.note(7);
        }
        placement.finish_sample(7, core);
        assert_eq!(placement.membership.core(), core);
        placement.callers.note(8);
        for _ in 1..DOUBTS_TO_LEAVE {
            placement.finish_sample(8, core);
            assert_eq!(placement.membership.core(), core, "7 may continue");
        }
        placement.finish_sample(8, core);
        assert_eq!(placement.membership.core(), None);
    });
    serving.join().expect("no panic");
}

#[test]
fn callers_that_alternate_are_not_followed() {
    let mut placement = Placement::join(&Servers::new());
    assert!(!placement.callers_alternate());
    for caller in [7, 8] {
        for _ in 0..20 {
            placement.callers.note(caller);
        }
        placement.begin_sample();
        assert_eq!(placement.pending, None, "{caller} has just begun");
        assert!(placement.callers_alternate());
    }
    placement.had_sole_caller = Instant::now().checked_sub(ALTERNATION_TIMEOUT);
    for caller in [7, 8, 7, 8] {
        placement.callers.note(caller);
    }
    placement.begin_sample();
    assert!(!placement.callers_alternate(), "they call at the same time");
}

#[test]
fn one_thread_goes_to_the_core_of_each_caller_in_its_turn() {
    let serving = thread::spawn(|| {
        let cores = || sched_getaffinity(None).expect("Linux has it");
        let allowed_cores = cores();
        let core = (0..CpuSet::MAX_CPU).find(|&core| allowed_cores.is_set(core));
        let servers = Servers::new();
        servers.parking.join();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let callers = [std::process::id(), thread.unsigned_abs()];
        for caller in callers.iter().cycle().take(200) {
            drop(servers.begin_call(*caller, Some(5)));
        }
        let is_left = || servers.parking.is_left_to_another(0);
        if PLACEMENT.with_borrow(|placement| placement.as_ref().is_none_or(|own| !own.serves_turns))
        {
            eprintln!("SKIPPED: the system does not permit the idle class");
            assert!(!is_left());
            return;
        }
        assert!(is_left(), "the other one may park");
        PLACEMENT.with_borrow_mut(|placement| {
            let placement = placement.as_mut().expect("it serves");
            for caller in callers {
                placement.turns.learn(caller, core);
            }
        });
        drop(servers.begin_call(callers[0], Some(5)));
        assert_eq!((cores().count(), policy()), (1, 5));
        drop(servers.begin_call(1, None));
        assert_eq!(
            (cores(), policy()),
            (allowed_cores, 0),
            "somebody else calls"
        );
        assert!(!is_left());
    });
    serving.join().expect("no panic");
}

#[test]
fn one_thread_is_enough_for_a_caller_that_is_followed_and_sends_no_data() {
    let serving = thread::spawn(|| {
        let mut placement = Placement::join(&Servers::new());
        let call = |placement: &mut Placement| {
            for _ in 0..CALLS_TO_PARK {
                placement.note_call(7);
            }
            placement.needs_one_thread()
        };
        assert!(!call(&mut placement), "nobody is followed");
        let cores = sched_getaffinity(None).expect("Linux has it");
        let core = (0..CpuSet::MAX_CPU).find(|&core| cores.is_set(core));
        placement.membership.move_all(core);
        assert!(placement.begin_data_request());
        placement.parking.end_data_request();
        assert!(!placement.needs_one_thread());
        assert!(call(&mut placement));
        placement.parking.join();
        placement.end_call();
        assert!(!placement.needs_one_thread(), "it was parked");
    });
    serving.join().expect("no panic");
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
        drop(begin_data_request());
        assert_eq!(cores().count(), 1, "names may come again");
        PLACEMENT.with_borrow_mut(|placement| {
            let placement = placement.as_mut().expect("it follows");
            placement.idle_class.update(&[std::process::id()], true);
            let then = Instant::now().checked_sub(IDLE_TIMEOUT);
            placement.sampled = then.expect("the machine runs for a while");
        });
        drop(begin_data_request());
        assert_eq!((cores(), policy()), (allowed_cores, 0));
    });
    serving.join().expect("no panic");
}
