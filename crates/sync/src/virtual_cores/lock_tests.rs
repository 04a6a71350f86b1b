//! Waiting for a lock: the simulation gives the results that can be computed by hand.

use std::sync::Arc;
use std::time::Duration;

use super::{Model, Stretches, Waiting, close_window, move_to, open_window, run};
use crate::order::Class;
use crate::{Mutex, RwLock, thread, time};

const NANOSECOND: u64 = 1000;
const MICROSECOND: u64 = 1000 * NANOSECOND;

/// A waiter retries after 20, 60, 140 and every further 100 ns, and sleeps after 840 ns.
const WAITING: Waiting = Waiting {
    pause: 10 * NANOSECOND,
    yield_time: 100 * NANOSECOND,
    call: 2 * MICROSECOND,
    wake: 5 * MICROSECOND,
    start: 0,
};

fn spend_until(nanoseconds: u64) {
    let now = time::now().as_nanos() as u64;
    thread::sleep(Duration::from_nanos(nanoseconds.saturating_sub(now)));
}

fn imitate<R: 'static>(body: impl FnOnce() -> R + 'static) -> R {
    let model = Model {
        waiting: WAITING,
        ..Model::uniform(8, 0)
    };
    run(model, &Arc::new(Stretches::constant(0)), 1, body)
}

/// When a second core gets a lock that it requests at 1000 while another core holds it from 0 to
/// `end`.
fn had_after(end: u64) -> (u64, u64) {
    imitate(move || {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        let sleeper = other_asker(&lock);
        let guard = lock.lock();
        spend_until(end);
        drop(guard);
        let released = time::now().as_nanos() as u64;
        let had = sleeper.join().expect("it does not panic");
        (had.as_nanos() as u64, released)
    })
}

/// Another core that wants the lock from 1000 on; its result is the time at which it got the lock.
fn other_asker(lock: &Arc<Mutex<()>>) -> thread::JoinHandle<Duration> {
    let lock = Arc::clone(lock);
    thread::spawn("asker", move || {
        move_to(1);
        spend_until(1000);
        drop(lock.lock());
        time::now()
    })
}

/// Whether two times are equal up to the small cost of steps.
fn near(time: u64, wanted: u64) -> bool {
    (wanted..wanted + 10).contains(&time)
}

#[test]
fn who_looks_has_it_at_the_next_look() {
    for (end, look) in [(1010, 1020), (1030, 1060), (1300, 1340)] {
        let (had, released) = had_after(end);
        assert!(near(had, look), "given back at {end}, had at {had}");
        assert!(near(released, end), "nobody had to be called: {released}");
    }
}

#[test]
fn who_sleeps_is_called_and_wakes() {
    let (had, released) = had_after(3000);
    assert!(near(had, 8000), "{had}");
    assert!(near(released, 5000), "the caller pays for it: {released}");
}

#[test]
fn a_lock_serves_nobody_while_its_next_owner_wakes() {
    let usage = imitate(|| {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        open_window();
        let sleeper = other_asker(&lock);
        let guard = lock.lock();
        spend_until(3000);
        drop(guard);
        sleeper.join().expect("it does not panic");
        // Taken once more while nobody waits.
        drop(lock.lock());
        close_window()
    });
    let lock = usage.locks.iter().find(|lock| lock.class == Class::Leaf);
    let lock = lock.expect("it was used");
    let nanoseconds = lock.hand_over.as_nanos() as u64;
    assert!(near(nanoseconds, 5000), "{nanoseconds}");
}

#[test]
fn who_gave_it_back_has_it_again_while_the_sleeper_wakes() {
    let turns = imitate(|| {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        let sleeper = other_asker(&lock);
        let first = lock.lock();
        spend_until(3000);
        drop(first);
        let mut turns = 0;
        while !sleeper.is_finished() {
            let guard = lock.lock();
            thread::sleep(Duration::from_nanos(50));
            drop(guard);
            thread::sleep(Duration::from_nanos(100));
            turns += 1;
        }
        turns
    });
    // From 5000, when the call has ended, until 8000: 20 turns, and a few until it is notified that
    // the sleeper ended.
    assert!((20..30).contains(&turns), "{turns}");
}

#[test]
fn nobody_sleeps_for_ever() {
    let (waited, turns) = imitate(|| {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        let sleeper = other_asker(&lock);
        // Always held except for a moment in which no core that has to wake up can take it.
        let mut turns = 0_u64;
        while !sleeper.is_finished() {
            let _guard = lock.lock();
            thread::sleep(Duration::from_micros(20));
            turns += 1;
        }
        (sleeper.join().expect("it does not panic"), turns)
    });
    assert!((500..600).contains(&waited.as_micros()), "{waited:?}");
    assert!(turns > 20, "{turns}");
}

#[test]
fn readers_are_called_together() {
    let ends = imitate(|| {
        let lock = Arc::new(RwLock::new(Class::Leaf, ()));
        let readers = (1..5).map(|number| {
            let lock = Arc::clone(&lock);
            thread::spawn("reader", move || {
                move_to(number);
                spend_until(1000);
                let _guard = lock.read();
                thread::sleep(Duration::from_micros(50));
                time::now().as_nanos() as u64
            })
        });
        let readers: Vec<_> = readers.collect();
        let guard = lock.write();
        spend_until(3000);
        drop(guard);
        let ends = readers.into_iter().map(thread::JoinHandle::join);
        ends.collect::<Result<Vec<u64>, _>>().expect("none panics")
    });
    assert!(ends.iter().all(|&end| near(end, 58_000)), "{ends:?}");
}

#[test]
fn a_lock_that_was_handed_over_is_seen_to_be_held() {
    let is_seen = imitate(|| {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        let sleeper = other_asker(&lock);
        loop {
            let guard = lock.lock();
            assert!(lock.is_locked());
            thread::sleep(Duration::from_micros(20));
            drop(guard);
            // Only a sleeper that was handed the lock can have it now, and it is not awake yet.
            if lock.is_locked() {
                return !sleeper.is_finished();
            }
            if sleeper.is_finished() {
                return false;
            }
        }
    });
    assert!(is_seen, "it looked free while somebody had it");
}
