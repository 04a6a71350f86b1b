//! An array of numbers in which threads allocate free places without locks.
//!
//! A count holds the number of free places. To allocate one, a thread first decrements the count,
//! if it is not zero, which reserves one place, though not a particular one; then it searches for a
//! place that is zero and replaces that by its number. To free a place, a thread first sets it to
//! zero and then increments the count. So there are never fewer free places than reservations, and
//! a search ends. (A place may be free without being counted yet, until the thread that freed it
//! increments the count.)

use std::fmt;

use crate::atomic::{AtomicU32, Ordering};

/// How often a search goes round. Others may take what it was about to find, but not for ever.
const ROUNDS: usize = 8;

/// Places for numbers other than zero.
pub struct Slots {
    free: AtomicU32,
    places: Box<[AtomicU32]>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Slots").finish_non_exhaustive()
    }
}

impl Slots {
    /// Places with these numbers; zero is a free place.
    #[must_use]
    pub fn new(numbers: &[u32]) -> Self {
        let free = numbers.iter().filter(|&&number| number == 0).count();
        Self {
            free: AtomicU32::new(u32::try_from(free).unwrap_or(u32::MAX)),
            places: numbers.iter().copied().map(AtomicU32::new).collect(),
        }
    }

    /// Reserves a place; false if none is free.
    #[must_use]
    pub fn reserve(&self) -> bool {
        let take = |free: u32| free.checked_sub(1);
        self.free.load(Ordering::Relaxed) > 0
            && self
                .free
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
                .is_ok()
    }

    /// Cancels a reservation.
    pub fn unreserve(&self) {
        self.free.fetch_add(1, Ordering::Release);
    }

    /// Puts a number into a free place, searching from `from` on. The caller has reserved a place.
    /// Returns the place, and how many places other threads took first. `None` if other threads
    /// were first every time: the reservation is kept then.
    #[must_use]
    pub fn put(&self, number: u32, from: u32) -> Option<(u32, u32)> {
        let count = self.places.len();
        let mut races = 0;
        for step in 0..ROUNDS * count {
            let at = (from as usize + step) % count;
            let place = &self.places[at];
            // The load may return a stale value; only the exchange is sure to see the current one.
            if step < count && place.load(Ordering::Relaxed) != 0 {
                continue;
            }
            match place.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some((u32::try_from(at).ok()?, races)),
                Err(_) => races += u32::from(step < count),
            }
        }
        None
    }

    /// Frees a place; returns the number that was in it.
    pub fn clear(&self, at: u32) -> u32 {
        let before = self.places[at as usize].swap(0, Ordering::AcqRel);
        if before != 0 {
            self.free.fetch_add(1, Ordering::Release);
        }
        before
    }

    /// Whether there is a free place that is not reserved.
    #[cfg(test)]
    fn has_free(&self) -> bool {
        self.free.load(Ordering::Relaxed) > 0
    }

    /// The number of places.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The numbers in all places.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.places
            .iter()
            .map(|place| place.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Slots;
    use crate::atomic::{AtomicU32, Ordering};
    use crate::thread;

    #[test]
    fn places_are_allocated_and_freed() {
        let slots = Slots::new(&[0, 7, 0]);
        assert!(slots.reserve() && slots.reserve() && !slots.reserve());
        assert_eq!(slots.put(5, 1), Some((2, 0)));
        assert_eq!(slots.put(6, 1), Some((0, 0)));
        assert!(!slots.has_free());
        assert_eq!(slots.iter().collect::<Vec<_>>(), [6, 7, 5]);
        assert_eq!((slots.clear(1), slots.clear(1)), (7, 0));
        assert!(slots.reserve());
        slots.unreserve();
        assert!(slots.has_free());
    }

    #[test]
    fn no_place_is_allocated_twice() {
        const PLACES: usize = 6;
        let slots = Slots::new(&[0; PLACES]);
        let owners = [(); PLACES].map(|()| AtomicU32::new(0));
        thread::scope(|scope| {
            for number in 1..=4 {
                let (slots, owners) = (&slots, &owners);
                scope.spawn(move || {
                    for step in 0..20_000 {
                        if !slots.reserve() {
                            continue;
                        }
                        let Some((at, _)) = slots.put(number, step % 6) else {
                            slots.unreserve();
                            continue;
                        };
                        assert_eq!(owners[at as usize].swap(number, Ordering::SeqCst), 0);
                        owners[at as usize].store(0, Ordering::SeqCst);
                        assert_eq!(slots.clear(at), number);
                    }
                });
            }
        });
        assert!(slots.iter().all(|number| number == 0));
        assert_eq!((0..10).filter(|_| slots.reserve()).count(), PLACES);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::Slots;
    use crate::thread;

    /// Two threads allocate, with one free place, while a third frees another one.
    #[test]
    fn a_reservation_finds_a_place_that_no_other_gets() {
        crate::model(|| {
            let slots = Arc::new(Slots::new(&[0, 9]));
            let takers = [1, 2].map(|number| {
                let slots = Arc::clone(&slots);
                thread::spawn("taker", move || {
                    slots.reserve().then(|| {
                        let put = slots.put(number, 0);
                        put.expect("there are as many places as rights").0
                    })
                })
            });
            slots.clear(1);
            let [first, second] = takers.map(|taker| taker.join().expect("no panic"));
            assert!(first.is_some() || second.is_some());
            assert!(first.is_none() || first != second);
            let free = slots.iter().filter(|&number| number == 0).count();
            let taken = usize::from(first.is_some()) + usize::from(second.is_some());
            assert_eq!(free, 2 - taken);
            assert_eq!(slots.has_free(), free > 0);
        });
    }
}
