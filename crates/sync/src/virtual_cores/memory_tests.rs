//! Memory that is told or requested: what it costs, and when.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::{LineUsage, Model, Stretches, close_window, move_to, open_window, run};
use crate::order::Class;
use crate::thread;
use crate::{Mutex, memory, time};

const NANOSECOND: u64 = 1000;
/// Numbers that a cache line holds.
const WORDS_OF_LINE: usize = 8;

fn free() -> Arc<Stretches> {
    Arc::new(Stretches::constant(0))
}

fn spend(nanoseconds: u64) {
    thread::sleep(Duration::from_nanos(nanoseconds));
}

/// The time that `body` says it took with eight lines that another core has written: 70 ns for the
/// first that is requested, and 2 for each more.
fn with_eight_lines(body: impl FnOnce(&[u64]) -> Duration + Send + 'static) -> u128 {
    let model = Model {
        further: 2 * NANOSECOND,
        ..Model::uniform(2, 70 * NANOSECOND)
    };
    run(model, &free(), 1, move || {
        let lines = Arc::new(CachePadded::new([0u64; 8 * WORDS_OF_LINE]));
        memory::used(|used| used.written(&lines[..]));
        let shared = Arc::clone(&lines);
        let thread = thread::spawn("other", move || {
            move_to(1);
            body(&shared[..])
        });
        thread.join().expect("it does not panic").as_nanos()
    })
}

#[test]
fn told_memory_is_under_way_together_or_line_by_line() {
    type Tell = fn(&mut memory::Used, &[u64]);
    let cost = |tell: Tell| {
        with_eight_lines(move |lines| {
            let start = time::now();
            memory::used(|used| tell(used, lines));
            time::now() - start
        })
    };
    assert_eq!(cost(|used, lines| used.read(lines)), 70 + 7 * 2);
    assert_eq!(cost(|used, lines| used.written(lines)), 70 + 7 * 2);
    assert_eq!(cost(|used, lines| used.searched(lines)), 8 * 70);
    let in_two_steps: Tell = |used, lines| {
        used.read(&lines[..32]);
        used.then();
        used.read(&lines[32..]);
    };
    assert_eq!(cost(in_two_steps), 2 * (70 + 3 * 2));
    let twice: Tell = |used, lines| {
        used.read(lines);
        used.read(lines);
    };
    assert_eq!(
        cost(twice),
        70 + 7 * 2,
        "who has a copy reads it without cost"
    );
}

#[test]
fn memory_requested_ahead_arrives_meanwhile() {
    let wait = |meanwhile: u64| {
        with_eight_lines(move |lines| {
            memory::fetch_for_writing(lines);
            spend(meanwhile);
            let start = time::now();
            memory::used(|used| {
                used.read(lines);
                used.written(lines);
            });
            time::now() - start
        })
    };
    assert_eq!(wait(40), 70 + 7 * 2 - 40);
    assert_eq!(wait(100), 0, "all of them are there, and for writing");
}

#[test]
fn what_a_lock_guards_is_paid_once_by_what_is_told_or_by_its_class() {
    // Two lines are behind a lock of this class, whose own line is one with what it guards.
    let held = |tell: fn(&mut memory::Used, &[u64])| {
        run(Model::uniform(2, 70 * NANOSECOND), &free(), 1, move || {
            let memory = Arc::new(CachePadded::new([0u64; WORDS_OF_LINE]));
            let lock = Arc::new(CachePadded::new(Mutex::new(Class::Buffer, ())));
            let outer = Arc::new(CachePadded::new(Mutex::new(Class::Directory, ())));
            let use_it = move || {
                let _outer = outer.lock();
                let start = time::now();
                let guard = lock.lock();
                memory::used(|used| tell(used, &memory[..]));
                drop(guard);
                time::now() - start
            };
            use_it();
            let thread = thread::spawn("other", move || {
                move_to(1);
                use_it()
            });
            thread.join().expect("it does not panic").as_nanos()
        })
    };
    let nothing = |_: &mut memory::Used, _: &[u64]| {};
    assert_eq!(held(nothing), 2 * 70, "the lock, and both lines together");
    assert_eq!(held(|used, memory| used.written(memory)), 2 * 70);
    assert_eq!(held(|used, memory| used.read(&memory[..0])), 70);
}

/// What two cores do in turn with one line, the second after `pause` nanoseconds, and what became
/// of the line.
fn in_turn(pause: u64, first: fn(&[u64]), second: fn(&[u64])) -> (u128, LineUsage) {
    run(Model::uniform(3, 70 * NANOSECOND), &free(), 1, move || {
        let line = Arc::new(CachePadded::new([0u64; WORDS_OF_LINE]));
        memory::used(|used| used.written(&line[..]));
        open_window();
        let core = |number: usize, start: u64, body: fn(&[u64])| {
            let line = Arc::clone(&line);
            thread::spawn("core", move || {
                move_to(number);
                spend(start);
                let start = time::now();
                body(&line[..]);
                (time::now() - start).as_nanos()
            })
        };
        let cores = [core(1, 1, first), core(2, 1 + pause, second)];
        let last = cores.map(|core| core.join().expect("it does not panic"))[1];
        let lines = close_window().lines.into_iter();
        let line = lines.max_by_key(|line| line.served).expect("it was moved");
        (last, line)
    })
}

#[test]
fn a_line_that_is_requested_and_not_used_was_busy_all_the_same() {
    let request: fn(&[u64]) = memory::fetch_for_writing;
    let write: fn(&[u64]) = |line| memory::used(|used| used.written(line));
    let (time, line) = in_turn(30, request, write);
    assert_eq!(
        time,
        40 + 70,
        "the first transfer ends before the second begins"
    );
    assert_eq!(line.transfers, 2);
    assert_eq!(line.served, Duration::from_nanos(140));
    assert_eq!(line.awaited, Duration::from_nanos(70));
    assert_eq!(line.waited, Duration::from_nanos(40));
}

#[test]
fn a_reader_does_not_hurry_a_line_to_who_requested_it() {
    let request: fn(&[u64]) = |line| {
        memory::fetch_for_writing(line);
        memory::fetch_for_writing(line);
        spend(10);
        memory::used(|used| used.read(line));
        assert_eq!(time::now().as_nanos(), 1 + 70, "when it arrives");
    };
    let read: fn(&[u64]) = |line| memory::used(|used| used.read(line));
    let (time, line) = in_turn(5, request, read);
    assert_eq!(time, 65 + 70);
    assert_eq!(line.transfers, 2);
}

#[test]
fn no_memory_is_no_line() {
    let nothing: fn(&[u64]) = |line| {
        memory::fetch_for_writing(&line[3..3]);
        memory::used(|used| used.written(&line[3..3]));
    };
    let write: fn(&[u64]) = |line| memory::used(|used| used.written(line));
    let (time, line) = in_turn(5, nothing, write);
    assert_eq!((time, line.transfers), (70, 1));
}
