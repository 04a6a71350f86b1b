//! An array of numbers in which anyone finds a free place without locks.
//!
//! A count says how many places are free. Whoever wants one takes from the count first, if there
//! is anything, and thereby has the right to a place, though not to a certain one; then it looks
//! for a place that is zero and exchanges it for its number. Whoever gives a place back sets it to
//! zero first and counts afterwards. So there are never fewer free places than rights to one, and a
//! search ends. (Places may be free for a moment without being counted: they are somebody's who is
//! about to count.)

use crate::atomic::{AtomicU32, Ordering};

/// How often a search goes round. Others may take what it was about to find, but not for ever.
const ROUNDS: usize = 8;

/// Places for numbers other than zero.
pub struct Slots {
    free: AtomicU32,
    places: Box<[AtomicU32]>,
}

impl Slots {
    /// With these numbers in; zero is a free place.
    #[must_use]
    pub fn new(numbers: &[u32]) -> Self {
        let free = numbers.iter().filter(|&&number| number == 0).count();
        Self {
            free: AtomicU32::new(u32::try_from(free).unwrap_or(u32::MAX)),
            places: numbers.iter().copied().map(AtomicU32::new).collect(),
        }
    }

    /// Takes the right to a place, if one is free.
    #[must_use]
    pub fn reserve(&self) -> bool {
        let take = |free: u32| free.checked_sub(1);
        self.free.load(Ordering::Relaxed) > 0
            && self
                .free
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, take)
                .is_ok()
    }

    /// Gives a right back that was not used.
    pub fn unreserve(&self) {
        self.free.fetch_add(1, Ordering::Release);
    }

    /// Puts a number into a place that the caller has the right to, looking from `from` on;
    /// answers which and how many others took first. `None` if others were quicker every time: the
    /// right is still there then.
    #[must_use]
    pub fn put(&self, number: u32, from: u32) -> Option<(u32, u32)> {
        let count = self.places.len();
        let mut races = 0;
        for step in 0..ROUNDS * count {
            let at = (from as usize + step) % count;
            let place = &self.places[at];
            // A look may be at what was there before; only an exchange is sure to see the last.
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

    /// Gives a place back; what was in it.
    pub fn clear(&self, at: u32) -> u32 {
        let before = self.places[at as usize].swap(0, Ordering::AcqRel);
        if before != 0 {
            self.free.fetch_add(1, Ordering::Release);
        }
        before
    }

    /// Changes what is in a place, which the caller owns.
    pub fn set(&self, at: u32, number: u32) {
        self.places[at as usize].store(number, Ordering::Release);
    }

    /// What is in a place.
    #[must_use]
    pub fn get(&self, at: u32) -> u32 {
        self.places[at as usize].load(Ordering::Acquire)
    }

    /// Whether a place is free that nobody has the right to.
    #[must_use]
    pub fn has_free(&self) -> bool {
        self.free.load(Ordering::Relaxed) > 0
    }

    /// How many places there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// What is in each place.
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
    fn places_are_taken_and_given_back() {
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
    fn nobody_shares_a_place() {
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

    /// Two want the only free place while a third gives one back.
    #[test]
    fn who_has_a_right_finds_a_place_and_nobody_shares_one() {
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
