//! Tickets: small numbers that live threads have to themselves.
//!
//! A shard belongs to a processor, so what is in it must still be changed by atomic
//! read-modify-writes, each of which takes about as long as twenty other instructions. Where a
//! place belongs to one thread, a load and a store do. A thread gets the lowest free ticket when it
//! first asks, and returns it when it ends: of at most 256 threads each has one, and of more some
//! have none.
//!
//! Returning a ticket is a release, and taking it an acquire: a thread sees all that the former
//! owner of its ticket has written. What is done for a thread on behalf of another shard, while it
//! is pinned or is a core of virtual time, has no ticket, so that tests and models see shards.

use crate::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
pub use threads::own;

/// Takes the lowest free bit.
fn take(taken: &[AtomicU64]) -> Option<usize> {
    for (index, word) in taken.iter().enumerate() {
        let mut before = word.load(Ordering::Relaxed);
        while before != u64::MAX {
            let bit = before.trailing_ones() as usize;
            before = word.fetch_or(1 << bit, Ordering::Acquire);
            if before & 1 << bit == 0 {
                return Some(64 * index + bit);
            }
        }
    }
    None
}

/// Returns a bit.
fn put(taken: &[AtomicU64], ticket: usize) {
    taken[ticket / 64].fetch_and(!(1 << (ticket % 64)), Ordering::Release);
}

/// Which thread has which ticket.
#[cfg(not(loom))]
mod threads {
    use std::cell::Cell;

    use super::{put, take};
    use crate::atomic::AtomicU64;
    use crate::topology;

    /// The number of tickets.
    const COUNT: usize = 64 * WORDS;
    const WORDS: usize = 4;

    /// A thread that has not asked yet.
    const UNASKED: usize = usize::MAX;
    /// A thread that has none: they were all taken when it asked, or it is ending.
    const NONE: usize = usize::MAX - 1;

    /// A bit for each ticket that a thread has.
    static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(UNASKED) };
        /// Returns the ticket when the thread ends. Only for that: what has to be dropped is slower
        /// to reach than a number.
        static RETURN: Return = const { Return };
    }

    /// The caller's ticket; `None` if it has none.
    #[inline]
    #[must_use]
    pub fn own() -> Option<usize> {
        if topology::stands_for_another() {
            return None;
        }
        match OWN.get() {
            UNASKED => ask(),
            own => (own < COUNT).then_some(own),
        }
    }

    #[cold]
    fn ask() -> Option<usize> {
        // A thread whose locals are being dropped could not return it.
        let is_ending = RETURN.try_with(|_| ()).is_err();
        let own = if is_ending { None } else { take(&TAKEN) };
        OWN.set(own.unwrap_or(NONE));
        own
    }

    /// Returns its thread's ticket.
    struct Return;

    impl Drop for Return {
        fn drop(&mut self) {
            let own = OWN.replace(NONE);
            if own < COUNT {
                put(&TAKEN, own);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::{own, put, take};
    use crate::atomic::AtomicU64;
    use crate::{thread, topology};

    #[test]
    fn the_lowest_free_ticket_is_taken_and_none_twice() {
        let taken = [AtomicU64::new(0), AtomicU64::new(0)];
        let all: Vec<_> = (0..130).map(|_| take(&taken)).collect();
        let expected: Vec<_> = (0..128).map(Some).chain([None, None]).collect();
        assert_eq!(all, expected);
        for ticket in [100, 3, 64] {
            put(&taken, ticket);
        }
        let again: Vec<_> = (0..4).map(|_| take(&taken)).collect();
        assert_eq!(again, [Some(3), Some(64), Some(100), None]);
    }

    #[test]
    fn threads_that_live_together_have_different_tickets() {
        const THREADS: usize = 16;
        let (barrier, found) = (Barrier::new(THREADS), Mutex::new(BTreeSet::new()));
        // More threads than there are tickets: those that end return theirs.
        for _ in 0..50 {
            found.lock().expect("no panic").clear();
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let first = own();
                        found.lock().expect("no panic").extend(first);
                        barrier.wait();
                        assert_eq!(own(), first, "it stays the same");
                    });
                }
            });
            let found = found.lock().expect("no panic");
            assert_eq!(found.len(), THREADS, "{found:?}");
        }
    }

    #[test]
    fn who_stands_for_another_shard_has_none() {
        let before = own();
        let pin = topology::pin(3);
        assert_eq!(own(), None);
        drop(pin);
        assert_eq!(own(), before);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::{put, take};
    use crate::atomic::{AtomicU64, Ordering};
    use crate::thread;

    /// Takes a ticket, counts in its place by a load and a store, and returns it.
    fn count(taken: &[AtomicU64; 1], places: &[AtomicU64; 2]) {
        let ticket = take(taken).expect("there are more than threads");
        let count = places[ticket].load(Ordering::Relaxed);
        places[ticket].store(count + 1, Ordering::Relaxed);
        put(taken, ticket);
    }

    #[test]
    fn nothing_that_a_former_owner_counted_is_lost() {
        crate::model(|| {
            let shared = Arc::new(([AtomicU64::new(0)], [AtomicU64::new(0), AtomicU64::new(0)]));
            let other = Arc::clone(&shared);
            let other = thread::spawn("other", move || count(&other.0, &other.1));
            count(&shared.0, &shared.1);
            other.join().expect("no panic");
            let sum: u64 = shared
                .1
                .iter()
                .map(|place| place.load(Ordering::Relaxed))
                .sum();
            assert_eq!(sum, 2);
        });
    }
}
