use super::{BiasedLock, FIRST_PATIENCE, READERS};
use crate::order::Class;
use crate::{thread, topology};

fn biased<T>(value: T) -> BiasedLock<T> {
    let lock = BiasedLock::new(Class::Leaf, value);
    for _ in 0..FIRST_PATIENCE {
        drop(lock.read());
    }
    assert!(lock.bias.is_set());
    lock
}

/// What `look` finds at last. The table is everybody's: locks of tests that run beside this one may
/// have the slots for a moment.
fn while_others_are_out<R>(mut look: impl FnMut() -> Option<R>) -> R {
    let found = (0..1000).find_map(|_| {
        thread::yield_now();
        look()
    });
    found.expect("the slots are free now and then")
}

#[test]
fn a_lock_that_is_read_becomes_biased_and_a_writer_ends_it() {
    let lock = biased(1);
    *lock.write() = 2;
    assert!(!lock.bias.is_set());
    for _ in 1..2 * FIRST_PATIENCE {
        assert_eq!(*lock.read(), 2);
    }
    assert!(!lock.bias.is_set(), "the second time takes twice as long");
    assert_eq!(*lock.read(), 2);
    assert!(lock.bias.is_set());
}

#[test]
fn biased_readers_leave_the_lock_alone_and_keep_writers_out() {
    let lock = biased(7);
    let _pin = topology::pin(1);
    let reader = while_others_are_out(|| {
        let reader = lock.read();
        READERS.is_in(lock.address()).then_some(reader)
    });
    assert!(
        lock.lock.try_write().is_some(),
        "the lock underneath is free"
    );
    thread::scope(|scope| {
        scope.spawn(|| assert!(lock.try_write().is_none()));
    });
    drop(reader);
    assert!(!READERS.is_in(lock.address()));
    assert_eq!(lock.try_write().map(|guard| *guard), Some(7));
}

#[test]
fn a_writer_that_only_tried_leaves_the_reader_to_be_found_by_the_next() {
    let lock = biased(7);
    let reader = lock.read();
    assert!(lock.try_write().is_none());
    assert!(lock.try_write().is_none(), "and the next, and all others");
    drop(reader);
    assert!(lock.try_write().is_some());
}

#[test]
fn two_readers_of_one_shard_are_both_in() {
    let lock = biased(7);
    let _pin = topology::pin(1);
    let _first = lock.read();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _pin = topology::pin(1);
            assert_eq!(*lock.read(), 7, "by the lock underneath");
        });
    });
}

#[test]
fn readers_never_see_half_a_change() {
    let lock = BiasedLock::new(Class::Leaf, (0_u64, 0_u64));
    thread::scope(|scope| {
        for shard in 0..4 {
            let lock = &lock;
            scope.spawn(move || {
                let _pin = topology::pin(shard);
                let mut last = 0;
                while last < 200 {
                    let pair = lock.read();
                    assert_eq!(pair.0, pair.1);
                    assert!(pair.0 >= last);
                    last = pair.0;
                    drop(pair);
                    thread::yield_now();
                }
            });
        }
        for _ in 0..200 {
            for _ in 0..20 {
                drop(lock.read());
            }
            let mut pair = lock.write();
            pair.0 += 1;
            thread::yield_now();
            pair.1 += 1;
        }
    });
}

#[test]
fn locks_that_fall_on_one_slot_are_both_biased() {
    let locks: Vec<_> = (0..2 * super::SLOTS).map(|_| biased(0)).collect();
    let place = |lock: &BiasedLock<i32>| super::places(lock.address())[0];
    let (one, other) = locks
        .iter()
        .enumerate()
        .find_map(|(at, one)| {
            let mut others = locks[at + 1..].iter();
            Some((one, others.find(|other| place(other) == place(one))?))
        })
        .expect("more locks than slots");
    let _pin = topology::pin(1);
    while_others_are_out(|| {
        let _first = one.try_read();
        let _second = other.try_read();
        (READERS.is_in(one.address()) && READERS.is_in(other.address())).then_some(())
    });
}
