//! A lock-free set of small numbers.
//!
//! It has one bit per number and, on each higher level, one bit for each word below that is not
//! zero, up to a single word. A search for the next number goes up and down the levels once, reads
//! a few words and writes none. A change sets or clears one bit; only if a word becomes zero or
//! nonzero does the change continue on the level above.
//!
//! The caller must serialise changes of *one* number (by its lock, for example); changes of
//! different numbers may be concurrent. A bit of a higher level may be set over a word that has
//! become zero, which costs a search one read, and it may be clear over a word that has just become
//! nonzero, only while concurrent changes last. A thread that clears such a bit then reads the word
//! below again, and sets the bit again if the word is not zero: either this read sees a bit that
//! another thread set meanwhile, or that thread sets the higher bit after it was cleared. The
//! models below try every order of the steps. So a set that no thread is changing is exact, and a
//! search may miss numbers that are being inserted.

use std::fmt;

use crate::atomic::{AtomicU64, Ordering};

/// Bits of a word.
const WORD: u32 = u64::BITS;

/// A set of small numbers.
pub struct Set {
    /// From the bits of the numbers up to a single word.
    levels: Box<[Box<[AtomicU64]>]>,
}

impl fmt::Debug for Set {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Set").finish_non_exhaustive()
    }
}

impl Set {
    /// An empty set for numbers below `count`.
    #[must_use]
    pub fn new(count: u32) -> Self {
        let mut levels = Vec::new();
        let mut bits = count.max(1);
        loop {
            let words = bits.div_ceil(WORD);
            levels.push((0..words).map(|_| AtomicU64::new(0)).collect());
            if words == 1 {
                break;
            }
            bits = words;
        }
        Self {
            levels: levels.into_boxed_slice(),
        }
    }

    /// Inserts a number.
    pub fn insert(&self, number: u32) {
        let mut at = number;
        for level in &self.levels {
            let (word, bit) = (&level[(at / WORD) as usize], 1 << (at % WORD));
            // Release and acquire on each level: a thread that clears a bit above sees what was set
            // below.
            if word.fetch_or(bit, Ordering::AcqRel) != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// Removes a number.
    pub fn remove(&self, number: u32) {
        let mut at = number;
        for height in 0..self.levels.len() {
            let bit = 1u64 << (at % WORD);
            let before = self.word(height, at).fetch_and(!bit, Ordering::AcqRel);
            if height > 0 && self.below(height, at).load(Ordering::Acquire) != 0 {
                // A number was inserted meanwhile, by a thread that may have set this bit before.
                self.restore(height, at);
                return;
            }
            if before & !bit != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// Sets the bits above words that turned out not to be zero.
    fn restore(&self, height: usize, at: u32) {
        let mut at = at;
        for height in height..self.levels.len() {
            let bit = 1u64 << (at % WORD);
            if self.word(height, at).fetch_or(bit, Ordering::AcqRel) != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// The word that contains bit `at` of a level.
    fn word(&self, height: usize, at: u32) -> &AtomicU64 {
        &self.levels[height][(at / WORD) as usize]
    }

    /// The word on the level below that bit `at` of a level represents.
    fn below(&self, height: usize, at: u32) -> &AtomicU64 {
        &self.levels[height - 1][at as usize]
    }

    /// The first number of the set from `from` on.
    #[must_use]
    pub fn next(&self, from: u32) -> Option<u32> {
        let mut from = from;
        loop {
            let (height, at) = self.climb(from)?;
            match self.descend(height, at) {
                Ok(number) => return Some(number),
                // A word turned out empty: continue after it.
                Err(behind) => from = behind,
            }
        }
    }

    /// Goes up until a word has a bit from `from` on; returns the level and the bit.
    fn climb(&self, from: u32) -> Option<(usize, u32)> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get((at / WORD) as usize)?.load(Ordering::Acquire);
            let rest = word & (u64::MAX << (at % WORD));
            if rest != 0 {
                return Some((height, at / WORD * WORD + rest.trailing_zeros()));
            }
            at = at / WORD + 1;
        }
        None
    }

    /// Goes down from a bit to the first number below it. `Err` with the number after all of them
    /// if there is none any more.
    fn descend(&self, height: usize, at: u32) -> Result<u32, u32> {
        let mut at = at;
        for height in (0..height).rev() {
            let word = self.levels[height][at as usize].load(Ordering::Acquire);
            if word == 0 {
                let behind = u64::from(at + 1) * u64::from(WORD).pow(1 + Self::rank(height));
                return Err(u32::try_from(behind).unwrap_or(u32::MAX));
            }
            at = at * WORD + word.trailing_zeros();
        }
        Ok(at)
    }

    fn rank(height: usize) -> u32 {
        u32::try_from(height).expect("a set has few levels")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fastrand::Rng;
    use std::collections::BTreeSet;

    use super::Set;
    use crate::thread;

    fn check(set: &Set, model: &BTreeSet<u32>, count: u32) {
        let mut from = 0;
        let mut found = Vec::new();
        while let Some(number) = set.next(from) {
            found.push(number);
            from = number + 1;
        }
        assert_eq!(found, model.iter().copied().collect::<Vec<_>>());
        for from in [0, 1, 63, 64, count / 2, count - 1] {
            assert_eq!(set.next(from), model.range(from..).next().copied());
        }
    }

    #[test]
    fn a_set_has_what_was_inserted_and_not_removed() {
        let mut random = Rng::with_seed(4);
        for count in [1, 64, 65, 4096, 5000, 300_000] {
            let set = Set::new(count);
            let mut model = BTreeSet::new();
            for _ in 0..3000 {
                let number = random.u32(..count);
                if random.u32(..2) == 0 {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
            }
            check(&set, &model, count);
            for number in model {
                set.remove(number);
            }
            assert_eq!(set.next(0), None);
        }
    }

    #[test]
    fn threads_with_numbers_of_their_own_leave_the_set_right() {
        const THREADS: u32 = 4;
        const COUNT: u32 = 5000;
        let set = Set::new(COUNT);
        let models = thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let set = &set;
                    scope.spawn(move || {
                        let mut random = Rng::with_seed(u64::from(number));
                        let mut mine = BTreeSet::new();
                        for _ in 0..20_000 {
                            // Few words, so that they meet.
                            let number = random.u32(..39) * 128 + number;
                            if mine.remove(&number) {
                                set.remove(number);
                            } else {
                                mine.insert(number);
                                set.insert(number);
                            }
                        }
                        mine
                    })
                })
                .collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined
                .map(|mine| mine.expect("no panic"))
                .collect::<Vec<_>>()
        });
        check(&set, &models.into_iter().flatten().collect(), COUNT);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::Set;
    use crate::thread;

    /// Two words below one: a number is removed from the first word while another is inserted.
    #[test]
    fn a_number_inserted_while_its_word_empties_is_found() {
        crate::model(|| {
            let set = Arc::new(Set::new(128));
            set.insert(3);
            let other = {
                let set = Arc::clone(&set);
                thread::spawn("other", move || set.insert(5))
            };
            set.remove(3);
            other.join().expect("no panic");
            assert_eq!(set.next(0), Some(5));
            assert_eq!(set.next(6), None);
        });
    }

    #[test]
    fn two_removals_and_an_insertion_in_one_word_agree() {
        crate::model(|| {
            let set = Arc::new(Set::new(128));
            set.insert(64);
            set.insert(65);
            let other = {
                let set = Arc::clone(&set);
                thread::spawn("other", move || {
                    set.remove(65);
                    set.insert(66);
                })
            };
            set.remove(64);
            other.join().expect("no panic");
            assert_eq!(set.next(0), Some(66));
        });
    }

    #[test]
    fn an_emptied_set_shows_nothing() {
        crate::model(|| {
            let set = Arc::new(Set::new(128));
            set.insert(1);
            let other = {
                let set = Arc::clone(&set);
                thread::spawn("other", move || {
                    set.insert(2);
                    set.remove(2);
                })
            };
            set.remove(1);
            let seen = set.next(0);
            other.join().expect("no panic");
            assert!(matches!(seen, None | Some(2)));
            assert_eq!(set.next(0), None);
        });
    }
}
