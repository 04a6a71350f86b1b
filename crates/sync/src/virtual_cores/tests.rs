//! The machine itself: the simulation gives the results that can be computed by hand.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::{
    LockUsage, Model, Stretches, Usage, WorkUsage, close_window, move_to, open_window, run,
};
use crate::atomic::{AtomicU64, Ordering};
use crate::order::Class;
use crate::thread::{self, JoinHandle};
use crate::{Condvar, Mutex, RwLock, time};

const NANOSECOND: u64 = 1000;

fn free() -> Arc<Stretches> {
    Arc::new(Stretches::constant(0))
}

fn spend(nanoseconds: u64) {
    thread::sleep(Duration::from_nanos(nanoseconds));
}

fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("it does not panic");
    }
}

/// Cycles a microsecond of `cores` cores that repeatedly think, take one lock and hold it.
fn one_lock(cores: usize, hold: u64, think: u64, transfer: u64) -> f64 {
    const CYCLES: u64 = 2000;
    let elapsed = run(
        Model::uniform(64, transfer * NANOSECOND),
        &free(),
        1,
        move || {
            let lock = Arc::new(Mutex::new(Class::Leaf, 0u64));
            let threads = (0..cores).map(|number| {
                let lock = Arc::clone(&lock);
                thread::spawn("customer", move || {
                    move_to(number);
                    // They do not all arrive at once.
                    spend(1 + number as u64 * think / cores as u64);
                    for _ in 0..CYCLES {
                        spend(think);
                        let mut guard = lock.lock();
                        spend(hold);
                        *guard += 1;
                    }
                })
            });
            join_all(threads.collect());
            assert_eq!(*lock.lock(), CYCLES * cores as u64);
            time::now()
        },
    );
    (CYCLES * cores as u64) as f64 / (elapsed.as_nanos() as f64 / 1000.0)
}

#[test]
fn one_lock_with_fixed_times_is_as_theory_says() {
    // Deterministic machine repairman: min(N / (Z + D), 1 / D).
    for (hold, think) in [(100, 900), (500, 500), (10, 5000)] {
        for cores in [1, 2, 3, 5, 8, 12, 20, 40] {
            let rate = one_lock(cores, hold, think, 0);
            let theory = (cores as f64 / (think + hold) as f64).min(1.0 / hold as f64) * 1000.0;
            assert!(
                (rate / theory - 1.0).abs() < 0.05,
                "{cores} cores, hold {hold}, think {think}: {rate} a microsecond, theory {theory}"
            );
        }
    }
}

#[test]
fn a_hand_over_costs_its_transfers() {
    // Saturated: each turn is the transfer of the word, the hold, and the transfer of the word back
    // from the last core that tried it; cores that arrive queue while the lock is held.
    let free_of_charge = one_lock(20, 100, 100, 0);
    let dear = one_lock(20, 100, 100, 50);
    assert!((free_of_charge - 10.0).abs() < 0.1, "{free_of_charge}");
    assert!(dear < 1000.0 / 150.0 && dear > 1000.0 / 260.0, "{dear}");
}

#[test]
fn a_line_written_in_turn_costs_a_transfer_each() {
    const TURNS: u64 = 1000;
    let (elapsed, sum) = run(Model::uniform(2, 70 * NANOSECOND), &free(), 1, || {
        let number = Arc::new(AtomicU64::new(0));
        let start = time::now();
        let threads = (0..2u64).map(|me| {
            let number = Arc::clone(&number);
            thread::spawn("player", move || {
                move_to(me as usize);
                for turn in 0..TURNS {
                    // In the order of the clocks: each gets the line once every 200 ns.
                    let due = Duration::from_nanos(10_000 + 200 * turn + 100 * me);
                    spend((due - time::now()).as_nanos() as u64);
                    number.fetch_add(1, Ordering::Relaxed);
                }
                time::now()
            })
        });
        let threads: Vec<_> = threads.collect();
        let ends: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect();
        let _ = start;
        (ends, number.load(Ordering::Relaxed))
    });
    assert_eq!(sum, 2 * TURNS);
    // The last write of each begins when it is due and ends one transfer later; a step takes at
    // least a tenth of a nanosecond.
    for (me, end) in elapsed.into_iter().enumerate() {
        let due = 10_000 + 200 * (TURNS - 1) + 100 * me as u64;
        let over = end.as_nanos() as u64 - due;
        assert!((70..72).contains(&over), "{over} ns");
    }
}

#[test]
fn the_lines_of_a_lock_are_under_way_together() {
    // A word and eight lines of content: 70 ns for the word, and 2 for each of the others.
    let model = Model {
        further: 2 * NANOSECOND,
        ..Model::uniform(2, 70 * NANOSECOND)
    };
    let taken = run(model, &free(), 1, || {
        let lock = Arc::new(CachePadded::new(Mutex::new(Class::Leaf, [0u64; 8 * 8])));
        lock.lock()[0] = 1;
        let other = Arc::clone(&lock);
        let thread = thread::spawn("taker", move || {
            move_to(1);
            let start = time::now();
            other.lock()[0] = 2;
            time::now() - start
        });
        thread.join().expect("it does not panic").as_nanos()
    });
    assert!((86..89).contains(&taken), "{taken} ns");
}

#[test]
fn a_line_serves_one_transfer_at_a_time() {
    const CORES: u64 = 10;
    let last = run(Model::uniform(16, 50 * NANOSECOND), &free(), 1, || {
        let number = Arc::new(AtomicU64::new(0));
        number.store(1, Ordering::Relaxed);
        let threads = (0..CORES).map(|me| {
            let number = Arc::clone(&number);
            thread::spawn("writer", move || {
                move_to(me as usize);
                spend(10_000 - time::now().as_nanos() as u64);
                number.fetch_add(1, Ordering::Relaxed);
                time::now()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .max()
    });
    let over = last.expect("there were some").as_nanos() as u64 - 10_000;
    assert!(
        (500..505).contains(&over),
        "{over} ns for ten writers of one line"
    );
}

#[test]
fn memory_that_was_given_back_is_in_no_cache() {
    let costs = run(Model::uniform(2, 50 * NANOSECOND), &free(), 1, || {
        let number = Arc::new(AtomicU64::new(0));
        let write = |number: &AtomicU64| {
            let start = time::now();
            number.store(1, Ordering::Relaxed);
            (time::now() - start).as_nanos()
        };
        write(&number);
        let shared = Arc::clone(&number);
        let other = thread::spawn("other", move || {
            move_to(1);
            write(&shared)
        });
        let dear = other.join().expect("it does not panic");
        super::forget(std::ptr::from_ref(&*number).addr(), size_of::<AtomicU64>());
        (dear, write(&number))
    });
    assert_eq!(costs, (50, 0));
}

#[test]
fn readers_of_a_line_pay_once() {
    let (first, second) = run(Model::uniform(2, 50 * NANOSECOND), &free(), 1, || {
        let number = Arc::new(AtomicU64::new(0));
        number.store(1, Ordering::Relaxed);
        let reader = thread::spawn("reader", move || {
            move_to(1);
            let start = time::now();
            number.load(Ordering::Relaxed);
            let middle = time::now();
            number.load(Ordering::Relaxed);
            (middle - start, time::now() - middle)
        });
        reader.join().expect("it does not panic")
    });
    assert!((50..52).contains(&first.as_nanos()), "{first:?}");
    assert!(second.as_nanos() < 2, "{second:?}");
}

#[test]
fn a_try_lock_fails_exactly_while_the_clock_says_held() {
    let seen = run(Model::uniform(4, 0), &free(), 1, || {
        let lock = Arc::new(Mutex::new(Class::Leaf, ()));
        let holder = {
            let lock = Arc::clone(&lock);
            thread::spawn("holder", move || {
                // Held from 1000 to 2000, and from 3000 to 4000.
                for begin in [1000, 3000] {
                    spend(begin - time::now().as_nanos() as u64);
                    let guard = lock.lock();
                    spend(1000);
                    drop(guard);
                }
            })
        };
        let trier = thread::spawn("trier", move || {
            let mut seen = Vec::new();
            while time::now() < Duration::from_nanos(5000) {
                let now = time::now().as_nanos() as u64;
                seen.push((now, lock.try_lock().is_some()));
                spend(7);
            }
            seen
        });
        holder.join().expect("it does not panic");
        trier.join().expect("it does not panic")
    });
    assert!(seen.len() > 500);
    for (now, success) in seen {
        let inside = |begin: u64| now > begin + 3 && now < begin + 997;
        let near = |edge: u64| now.abs_diff(edge) <= 3;
        if [1000, 2000, 3000, 4000].into_iter().any(near) {
            continue;
        }
        assert_eq!(success, !(inside(1000) || inside(3000)), "at {now} ns");
    }
}

#[test]
fn readers_hold_together_and_writers_alone() {
    let (readers, writers) = run(Model::uniform(16, 0), &free(), 1, || {
        let elapsed = |exclusive: bool| {
            let lock = Arc::new(RwLock::new(Class::Leaf, ()));
            let start = time::now();
            let threads = (0..10).map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn("user", move || {
                    if exclusive {
                        let _guard = lock.write();
                        spend(1000);
                    } else {
                        let _guard = lock.read();
                        spend(1000);
                    }
                })
            });
            join_all(threads.collect());
            time::now() - start
        };
        (elapsed(false), elapsed(true))
    });
    assert!((1000..1010).contains(&readers.as_nanos()), "{readers:?}");
    assert!(
        (10_000..10_020).contains(&writers.as_nanos()),
        "{writers:?}"
    );
}

#[test]
fn conditions_wake_and_run_out_in_virtual_time() {
    let mut model = Model::uniform(4, 0);
    model.waiting.wake = 5000 * NANOSECOND;
    let (woken, timed_out) = run(model, &free(), 1, || {
        let state = Arc::new((Mutex::new(Class::Leaf, false), Condvar::new()));
        let sleeper = {
            let state = Arc::clone(&state);
            thread::spawn("sleeper", move || {
                let mut ready = state.0.lock();
                while !*ready {
                    state.1.wait(&mut ready);
                }
                let woken = time::now();
                let ran_out = state.1.wait_for(&mut ready, Duration::from_micros(40));
                assert!(ran_out);
                (woken, time::now() - woken)
            })
        };
        spend(100_000);
        *state.0.lock() = true;
        state.1.notify_all();
        sleeper.join().expect("it does not panic")
    });
    assert!((105_000..105_010).contains(&woken.as_nanos()), "{woken:?}");
    assert!(
        (40_000..40_010).contains(&timed_out.as_nanos()),
        "{timed_out:?}"
    );
}

#[test]
fn who_wakes_many_pays_for_each_and_they_go_on_one_after_another() {
    let mut model = Model::uniform(8, 0);
    model.waiting.call = 9000 * NANOSECOND;
    model.waiting.wake = 20_000 * NANOSECOND;
    let (paid, woken) = run(model, &free(), 1, || {
        let ready = Arc::new(CachePadded::new(AtomicU64::new(0)));
        // Each has a condition of its own, so none waits for the lock of another.
        let gates: Vec<_> = (0..3)
            .map(|_| Arc::new((Mutex::new(Class::Leaf, ()), Condvar::new())))
            .collect();
        let sleeper = |gate: &Arc<(Mutex<()>, Condvar)>| {
            let (gate, ready) = (Arc::clone(gate), Arc::clone(&ready));
            thread::spawn("sleeper", move || {
                let mut held = gate.0.lock();
                while ready.load(Ordering::Acquire) == 0 {
                    gate.1.wait(&mut held);
                }
                time::now()
            })
        };
        let sleepers: Vec<_> = gates.iter().map(sleeper).collect();
        spend(100_000);
        ready.store(1, Ordering::Release);
        let start = time::now();
        gates.iter().for_each(|gate| gate.1.notify_all());
        let paid = time::now() - start;
        let woken = sleepers.into_iter().map(JoinHandle::join);
        let woken: Vec<_> = woken
            .map(|at| at.expect("it does not panic") - start)
            .collect();
        (paid, woken)
    });
    assert_eq!(paid, Duration::from_micros(27));
    let woken: Vec<_> = woken.iter().map(Duration::as_micros).collect();
    assert_eq!(woken, [20, 29, 38]);
}

#[test]
fn stretches_take_what_they_are_said_to_take() {
    let elapsed = run(
        Model::uniform(4, 0),
        &Arc::new(Stretches::constant(30_000)),
        1,
        || {
            let number = AtomicU64::new(0);
            let start = time::now();
            for _ in 0..100 {
                number.fetch_add(1, Ordering::Relaxed);
            }
            time::now() - start
        },
    );
    assert_eq!(elapsed, Duration::from_nanos(3000));
}

#[test]
fn work_is_counted_by_the_lines_that_it_is_between() {
    let usage = run(
        Model::uniform(4, 0),
        &Arc::new(Stretches::constant(30_000)),
        1,
        || {
            let (one, other) = (AtomicU64::new(0), AtomicU64::new(0));
            one.fetch_add(1, Ordering::Relaxed);
            open_window();
            for _ in 0..100 {
                one.fetch_add(1, Ordering::Relaxed);
                other.fetch_add(1, Ordering::Relaxed);
                other.fetch_add(1, Ordering::Relaxed);
            }
            close_window()
        },
    );
    let of = |times| usage.work.iter().filter(move |work| work.times == times);
    // Between the three lines of the loop, and from its last line to its first.
    assert_eq!(
        of(100).count() + of(99).count(),
        usage.work.len() - 1,
        "{usage:?}"
    );
    assert_eq!(of(100).count(), 2);
    let time = usage.work.iter().map(|work| work.time).sum::<Duration>();
    assert_eq!(time, usage.stretches);
    let one_line = |work: &WorkUsage| work.from.as_deref() == Some(work.to.as_str());
    assert!(!usage.work.iter().any(one_line), "{usage:?}");
}

/// A run whose result depends on the order of the cores.
fn tangle(seed: u64) -> (Duration, Vec<u64>, Usage) {
    run(
        Model::uniform(32, 40 * NANOSECOND),
        &Arc::new(Stretches::constant(9_000)),
        seed,
        || {
            // On lines of their own, since the result would otherwise depend on the addresses of
            // free memory.
            let lock = Arc::new(CachePadded::new(Mutex::new(Class::Group, Vec::new())));
            let number = Arc::new(CachePadded::new(AtomicU64::new(0)));
            open_window();
            let threads = (0..30u64).map(|me| {
                let (lock, number) = (Arc::clone(&lock), Arc::clone(&number));
                thread::spawn("one of many", move || {
                    move_to(me as usize);
                    for _ in 0..50 {
                        let drawn = number.fetch_add(me, Ordering::Relaxed);
                        match lock.try_lock() {
                            Some(mut order) => order.push(drawn),
                            None => spend(drawn % 97),
                        }
                        lock.lock().push(me);
                    }
                })
            });
            join_all(threads.collect());
            let order = lock.lock().clone();
            (time::now(), order, close_window())
        },
    )
}

#[test]
fn a_run_repeats_for_a_seed_and_only_for_it() {
    let first = tangle(7);
    let again = tangle(7);
    assert!((first.0, &first.1) == (again.0, &again.1));
    assert!(first.1 != tangle(8).1);
    let group = |usage: &Usage| -> LockUsage {
        let mut locks = usage.locks.iter().filter(|lock| lock.class == Class::Group);
        locks.next().expect("it was used").clone()
    };
    let (one, two) = (group(&first.2), group(&again.2));
    assert_eq!(one.acquisitions, two.acquisitions);
    assert_eq!(one.acquisitions as usize, first.1.len() + 1);
    assert_eq!((one.failures, one.waited), (two.failures, two.waited));
    assert!(one.failures > 0 && one.contended > 0);
}

#[test]
fn what_panics_on_a_core_is_what_joining_it_gives() {
    let told = run(Model::uniform(2, 0), &free(), 1, || {
        let thread = thread::spawn("clumsy", || panic!("as expected"));
        thread
            .join()
            .map_err(|panic| panic.downcast_ref::<&str>().copied())
    });
    assert_eq!(told, Err(Some("as expected")));
}

#[test]
#[should_panic(expected = "no virtual core can go on: main, first")]
fn who_waits_for_ever_is_named() {
    run(Model::uniform(2, 0), &free(), 1, || {
        let state = Arc::new((Mutex::new(Class::Leaf, ()), Condvar::new()));
        let thread = thread::spawn("first", move || {
            let mut guard = state.0.lock();
            state.1.wait(&mut guard);
        });
        join_all(vec![thread]);
    });
}

#[test]
fn work_that_is_lent_is_done_at_once_and_borrows() {
    let mut model = Model::uniform(8, 0);
    model.waiting.start = 10_000 * NANOSECOND;
    model.waiting.wake = 5_000 * NANOSECOND;
    let times = run(model, &free(), 1, || {
        let factor = [3_u64];
        // Twice; the second time the cores lent before are reused.
        [(); 2].map(|()| {
            let start = time::now();
            let made = thread::at_once((0..4).collect(), &|part: u64| {
                spend(100_000);
                part * factor[0]
            });
            assert_eq!(made, [0, 3, 6, 9]);
            time::now() - start
        })
    });
    // The third is created after 30 us and runs 5 us later; its waiter runs 5 us after it has
    // ended.
    for time in times {
        assert!((140_000..140_010).contains(&time.as_nanos()), "{time:?}");
    }
}

#[test]
fn a_part_that_panics_is_what_lending_it_gives() {
    let message = run(Model::uniform(8, 0), &free(), 1, || {
        let lent = std::panic::catch_unwind(|| {
            thread::at_once(vec![0, 1, 2], &|part: u32| {
                spend(10);
                assert_ne!(part, 1, "as it should");
            })
        });
        lent.expect_err("a part panicked").downcast::<String>()
    });
    assert!(message.expect("a message").contains("as it should"));
}
