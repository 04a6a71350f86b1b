//! What a window counts for a lock or a line: of one object, not of all that had its memory, and
//! without the time that its holder waited for others.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::{LockUsage, Model, Stretches, Usage, close_window, forget, move_to, open_window, run};
use crate::atomic::{AtomicU64, Ordering};
use crate::order::Class;
use crate::{Mutex, thread, time};

const NANOSECOND: u64 = 1000;
/// Cores that use one memory one after another, each with a file of its own there.
const OWNERS: usize = 4;

fn imitate<R: 'static>(body: impl FnOnce() -> R + 'static) -> R {
    let model = Model::uniform(16, 50 * NANOSECOND);
    run(model, &Arc::new(Stretches::constant(0)), 1, body)
}

fn spend_until(nanoseconds: u64) {
    let now = time::now().as_nanos() as u64;
    thread::sleep(Duration::from_nanos(nanoseconds.saturating_sub(now)));
}

fn of_class(usage: &Usage, class: Class) -> Vec<&LockUsage> {
    let locks = usage.locks.iter();
    locks.filter(|lock| lock.class == class).collect()
}

/// The address of an object and its size.
fn memory<T>(object: &T) -> (usize, usize) {
    (std::ptr::from_ref(object).addr(), size_of::<T>())
}

/// Holds `lock` for `hold` nanoseconds on another core, from `begin` on.
fn holder(lock: &Arc<CachePadded<Mutex<()>>>, begin: u64, hold: u64) -> thread::JoinHandle<()> {
    let lock = Arc::clone(lock);
    thread::spawn("holder", move || {
        move_to(15);
        spend_until(begin);
        let _held = lock.lock();
        spend_until(begin + hold);
    })
}

/// Cores that have one memory in turn for a file of their own, whose lock each holds while it waits
/// for the lock of the group.
fn files_in_one_memory() -> Usage {
    imitate(|| {
        let group = Arc::new(CachePadded::new(Mutex::new(Class::Group, ())));
        let file = Arc::new(CachePadded::new(Mutex::new(Class::Preallocation, ())));
        open_window();
        let owners = (0..OWNERS).map(|owner| {
            let (group, file) = (Arc::clone(&group), Arc::clone(&file));
            let begin = 1_000 + 100_000 * owner as u64;
            let other = holder(&group, begin, 10_000);
            let owner = thread::spawn("owner", move || {
                move_to(owner);
                spend_until(begin + 1_000);
                let own = file.lock();
                let both = group.lock();
                thread::sleep(Duration::from_nanos(2_000));
                drop(both);
                drop(own);
                let (address, bytes) = memory(&*file);
                forget(address, bytes);
            });
            [other, owner]
        });
        for thread in owners.flatten().collect::<Vec<_>>() {
            thread.join().expect("it does not panic");
        }
        close_window()
    })
}

#[test]
fn locks_that_had_one_memory_in_turn_are_not_one_lock() {
    let usage = files_in_one_memory();
    let files = of_class(&usage, Class::Preallocation);
    assert!(
        files.is_empty(),
        "nobody waited for one of those that are gone: {files:?}"
    );
    let [group] = of_class(&usage, Class::Group)[..] else {
        panic!("there is one group");
    };
    assert_eq!(group.contended as usize, OWNERS);
    assert_eq!(group.acquisitions as usize, 2 * OWNERS);
    assert_eq!(group.elsewhere, Duration::ZERO);
}

#[test]
fn who_waits_for_a_lock_that_is_gone_is_not_forgotten() {
    let usage = imitate(|| {
        let lock = Arc::new(CachePadded::new(Mutex::new(Class::Directory, ())));
        open_window();
        for turn in 0..3_u64 {
            let begin = 1_000 + turn * 100_000;
            let other = holder(&lock, begin, 10_000);
            spend_until(begin + 5_000);
            drop(lock.lock());
            other.join().expect("it does not panic");
            let (address, bytes) = memory(&*lock);
            forget(address, bytes);
        }
        close_window()
    });
    let directories = of_class(&usage, Class::Directory);
    let counts: Vec<_> = directories
        .iter()
        .map(|lock| (lock.acquisitions, lock.contended, lock.cores))
        .collect();
    assert_eq!(counts, [(2, 1, 2); 3], "each is itself: {directories:?}");
}

/// The time that a file's lock was held, and the part in which its holder waited elsewhere, while
/// the holder does `work`; another core holds the lock of the group for 10 us from 1 us on.
fn held_while(work: fn(&Mutex<()>, &Mutex<()>)) -> [u64; 2] {
    let usage = imitate(move || {
        let group = Arc::new(CachePadded::new(Mutex::new(Class::Group, ())));
        let file = Arc::new(CachePadded::new(Mutex::new(Class::Preallocation, ())));
        open_window();
        let other = holder(&group, 1_000, 10_000);
        spend_until(2_000);
        work(&file, &group);
        other.join().expect("it does not panic");
        close_window()
    });
    let [file] = of_class(&usage, Class::Preallocation)[..] else {
        panic!("there is one file");
    };
    [file.held, file.elsewhere].map(|time| time.as_nanos() as u64)
}

/// Whether two times are equal up to some transfers and steps.
fn near(time: u64, wanted: u64) -> bool {
    time.abs_diff(wanted) < 200
}

#[test]
fn who_holds_a_lock_and_waits_for_another_is_elsewhere() {
    let [held, elsewhere] = held_while(|file, group| {
        let _own = file.lock();
        thread::sleep(Duration::from_nanos(3_000));
        let _both = group.lock();
        thread::sleep(Duration::from_nanos(2_000));
    });
    // From 2 to 13 us: 3 of its own work, then waiting from 5 to 11, then work under both.
    assert!(near(held, 11_000), "{held}");
    assert!(near(elsewhere, 6_000), "{elsewhere}");
}

#[test]
fn a_wait_before_a_lock_was_taken_is_none_under_it() {
    let [held, elsewhere] = held_while(|file, group| {
        let _first = group.lock();
        let _own = file.lock();
        thread::sleep(Duration::from_nanos(2_000));
    });
    assert!(near(held, 2_000), "{held}");
    assert_eq!(elsewhere, 0);
}

#[test]
fn what_was_before_the_window_is_not_in_it() {
    let usage = imitate(|| {
        let group = Arc::new(CachePadded::new(Mutex::new(Class::Group, ())));
        let file = Arc::new(CachePadded::new(Mutex::new(Class::Preallocation, ())));
        let other = holder(&group, 1_000, 10_000);
        let owner = thread::spawn("owner", move || {
            move_to(1);
            spend_until(2_000);
            let _own = file.lock();
            let _both = group.lock();
            thread::sleep(Duration::from_nanos(2_000));
        });
        spend_until(7_000);
        open_window();
        for thread in [other, owner] {
            thread.join().expect("it does not panic");
        }
        close_window()
    });
    let held = |class| {
        let [lock] = of_class(&usage, class)[..] else {
            panic!("there is one lock of {class:?}");
        };
        [lock.held, lock.elsewhere, lock.waited].map(|time| time.as_nanos() as u64)
    };
    // The group is held by one core until 11 us and then by the other one until 13.
    let [file, elsewhere, _] = held(Class::Preallocation);
    assert!(
        near(file, 6_000) && near(elsewhere, 4_000),
        "{file}, {elsewhere}"
    );
    let [group, _, waited] = held(Class::Group);
    assert!(
        near(group, 6_000) && near(waited, 4_000),
        "{group}, {waited}"
    );
}

#[test]
fn who_waits_for_a_line_under_a_lock_is_elsewhere_until_its_transfer_begins() {
    const CORES: u64 = 8;
    let usage = imitate(|| {
        let lock = Arc::new(CachePadded::new(Mutex::new(Class::Leaf, ())));
        let number = Arc::new(CachePadded::new(AtomicU64::new(0)));
        number.store(1, Ordering::Relaxed);
        open_window();
        let others = (1..CORES).map(|core| {
            let number = Arc::clone(&number);
            thread::spawn("writer", move || {
                move_to(core as usize);
                spend_until(10_000);
                number.fetch_add(1, Ordering::Relaxed);
            })
        });
        let others: Vec<_> = others.collect();
        let held = lock.lock();
        spend_until(10_001);
        number.fetch_add(1, Ordering::Relaxed);
        drop(held);
        for other in others {
            other.join().expect("it does not panic");
        }
        close_window()
    });
    let [lock] = of_class(&usage, Class::Leaf)[..] else {
        panic!("there is one lock");
    };
    // The transfers of the seven others, but for the nanosecond by which it came later, and a step.
    let elsewhere = lock.elsewhere.as_nanos() as u64;
    let wanted = (CORES - 1) * 50 - 2;
    assert!((wanted..wanted + 2).contains(&elsewhere), "{elsewhere}");
}

#[test]
fn lines_that_had_one_memory_in_turn_are_not_one_line() {
    let usage = imitate(|| {
        let number = Arc::new(CachePadded::new(AtomicU64::new(0)));
        open_window();
        for owner in 0..OWNERS {
            number.store(1, Ordering::Relaxed);
            let other = Arc::clone(&number);
            let other = thread::spawn("other", move || {
                move_to(1 + owner);
                other.store(2, Ordering::Relaxed);
            });
            other.join().expect("it does not panic");
            let (address, bytes) = memory(&*number);
            forget(address, bytes);
        }
        close_window()
    });
    let of_them = |site: &str| site.contains("usage_tests.rs");
    let lines = usage.lines.iter().filter(|line| of_them(&line.site));
    assert_eq!(lines.count(), 0, "{:?}", usage.lines);
    let sums = usage.freed_lines.iter().filter(|sum| of_them(&sum.site));
    let sums: Vec<_> = sums
        .map(|sum| (sum.transfers, sum.served.as_nanos(), sum.cores))
        .collect();
    assert_eq!(sums, [(OWNERS as u64, 50 * OWNERS as u128, 0)]);
}
