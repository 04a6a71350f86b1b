//! A core that spins gets the lock at its first retry after the release, and its time counts as
//! waiting.

use std::sync::Arc;
use std::time::Duration;

use super::{LockUsage, Model, Stretches, Usage, close_window, open_window, run};
use crate::atomic::{AtomicBool, Ordering};
use crate::order::Class;
use crate::{Mutex, RwLock, spin, thread, time};

const MICROSECOND: u64 = 1_000_000;
/// The holder keeps the lock until this time after the opening of the window.
const HELD: Duration = Duration::from_micros(10);
const WAKING: Duration = Duration::from_micros(20);

/// A machine where waking takes [`WAKING`] and a pause takes 40 ns.
fn model() -> Model {
    let mut model = Model::uniform(4, 0);
    model.waiting.pause = 40_000;
    model.waiting.wake = 20 * MICROSECOND;
    model
}

/// When a core that comes 1 us after the holder gets the lock, and the usage of the window.
fn second<L: Send + Sync + 'static>(
    lock: L,
    held: Duration,
    first: impl Fn(&L, &dyn Fn()) + Send + 'static,
    second: impl Fn(&L) -> Duration + Send + 'static,
) -> (Duration, Usage) {
    run(model(), &Arc::new(Stretches::constant(0)), 1, move || {
        let lock = Arc::new(lock);
        open_window();
        let start = time::now();
        let holder = {
            let lock = Arc::clone(&lock);
            thread::spawn("holder", move || first(&lock, &|| thread::sleep(held)))
        };
        let waiter = thread::spawn("waiter", move || {
            thread::sleep(Duration::from_micros(1));
            second(&lock)
        });
        holder.join().expect("it does not panic");
        let had = waiter.join().expect("it does not panic") - start;
        (had, close_window())
    })
}

fn only(usage: &Usage) -> &LockUsage {
    let mut locks = usage.locks.iter().filter(|lock| lock.class == Class::Leaf);
    locks.next().expect("the lock was used")
}

/// It got the lock at the first retry after `since`, and all the time since its arrival counts.
fn assert_spun(case: &str, (had, usage): &(Duration, Usage)) {
    let lock = only(usage);
    assert!(
        *had >= HELD && *had < HELD + Duration::from_micros(1),
        "{case}: {had:?}"
    );
    assert_eq!((lock.contended, lock.failures), (1, 0), "{case}");
    let waited = *had - Duration::from_micros(1);
    assert!(
        lock.waited.abs_diff(waited) < Duration::from_nanos(10),
        "{case}: {lock:?}"
    );
}

#[test]
fn who_spins_for_a_lock_has_it_at_the_next_look() {
    let mutex = second(
        Mutex::new(Class::Leaf, ()),
        HELD,
        |lock, hold| {
            let _guard = lock.lock();
            hold();
        },
        |lock| {
            let _guard = lock.lock_spinning();
            time::now()
        },
    );
    assert_spun("mutex", &mutex);
    let writer = second(
        RwLock::new(Class::Leaf, ()),
        HELD,
        |lock, hold| {
            let _guard = lock.read();
            hold();
        },
        |lock| {
            let _guard = lock.write_spinning();
            time::now()
        },
    );
    assert_spun("writer", &writer);
    let reader = second(
        RwLock::new(Class::Leaf, ()),
        HELD,
        |lock, hold| {
            let _guard = lock.write();
            hold();
        },
        |lock| {
            let _guard = lock.read_spinning();
            time::now()
        },
    );
    assert_spun("reader", &reader);
}

#[test]
fn who_has_spun_in_vain_sleeps_and_is_woken() {
    let held = Duration::from_micros(100);
    let (had, usage) = second(
        Mutex::new(Class::Leaf, ()),
        held,
        |lock, hold| {
            let _guard = lock.lock();
            hold();
        },
        |lock| {
            let _guard = lock.lock_spinning();
            time::now()
        },
    );
    let woken = held + WAKING;
    assert!(had.abs_diff(woken) < Duration::from_nanos(10), "{had:?}");
    let waited = woken - Duration::from_micros(1);
    assert!(only(&usage).waited.abs_diff(waited) < Duration::from_nanos(20));
}

#[test]
fn spinning_for_what_is_no_lock_counts_as_waiting_where_it_is_done() {
    let (has_come, usage) = run(model(), &Arc::new(Stretches::constant(0)), 1, || {
        let flag = Arc::new(AtomicBool::new(false));
        open_window();
        let setter = {
            let flag = Arc::clone(&flag);
            thread::spawn("setter", move || {
                thread::sleep(HELD);
                flag.store(true, Ordering::Release);
            })
        };
        let has_come = spin::until(|| flag.load(Ordering::Acquire));
        setter.join().expect("it does not panic");
        (has_come, close_window())
    });
    assert!(has_come);
    let (place, waited) = &usage.other_waits[0];
    assert!(place.contains("spin_tests.rs"), "{place}");
    assert!(
        *waited >= HELD && *waited < HELD + Duration::from_micros(1),
        "{waited:?}"
    );
}
