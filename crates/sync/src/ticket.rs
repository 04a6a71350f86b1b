//! Tickets: small numbers that live threads have to themselves.
//!
//! A shard belongs to a processor, so what is in it must still be changed by atomic
//! read-modify-writes, each of which takes about as long as twenty other instructions. Where a
//! place belongs to one thread, a load and a store do. A thread gets the lowest free ticket when it
//! first asks, and returns it when it ends: of at most [`COUNT`] threads each has one, and of more
//! some have none.
//!
//! Returning a ticket is a release, and taking it an acquire: a thread sees all that the former
//! owner of its ticket has written. What is done for a thread on behalf of another shard, while it
//! is pinned or is a core of virtual time, has no ticket, so that tests and models see shards.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::topology;

/// The number of tickets.
pub const COUNT: usize = 64 * WORDS;

const WORDS: usize = 4;

/// A bit for each ticket that a thread has.
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// A thread that has not asked yet.
const UNASKED: usize = usize::MAX;
/// A thread that has none: they were all taken when it asked, or it is ending.
const NONE: usize = usize::MAX - 1;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(UNASKED) };
    /// Returns the ticket when the thread ends. Only for that: what has to be dropped is slower to
    /// reach than a number.
    static RETURN: Return = const { Return };
}

/// The caller's ticket, below [`COUNT`]; `None` if it has none.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Barrier, Mutex};

    use super::{own, put, take};
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
        for _ in 0..50 {
            found.lock().expect("no panic").clear();
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let own = own().expect("there are more than threads here");
                        assert!(found.lock().expect("no panic").insert(own), "{own} twice");
                        barrier.wait();
                        assert_eq!(super::own(), Some(own), "it stays the same");
                    });
                }
            });
        }
        // Those that ended returned theirs: 800 threads had fewer than there are.
        let highest = found.lock().expect("no panic").last().copied();
        assert!(highest.is_some_and(|highest| highest < 8 * THREADS));
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
