//! A copy of a few words of locked state that can be read without the lock.
//!
//! The state itself is under a lock, and every change of it is followed by [`Published::expire`]
//! before the lock is released. A reader tries [`Published::read`]; if that returns nothing, it
//! takes the lock, reads the state, and offers the words to other readers. So a value that changes
//! often costs its writers one store per change, and a value that many cores read is read without
//! writing anything.
//!
//! Protocol: `version` counts the changes; the words are those of version `shown`. A reader
//! requires both to be equal before and after it reads the words. Words are written only while
//! `shown` is `NONE`, so a reader that saw a new word sees afterwards that `shown` has changed.

use std::fmt;

use crate::atomic::{AtomicU64, Ordering, fence};

/// The number of no version.
const NONE: u64 = 0;

/// A copy of `N` words that can be read without a lock until the state behind it changes.
pub struct Published<const N: usize> {
    /// [atomic; written under the lock]
    version: AtomicU64,
    /// [atomic; written under the lock]
    shown: AtomicU64,
    /// The last version that a reader found unpublished. [the lock]
    missed: AtomicU64,
    /// [atomic; written under the lock while `shown` is none]
    words: [AtomicU64; N],
}

impl<const N: usize> fmt::Debug for Published<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Published").finish_non_exhaustive()
    }
}

impl<const N: usize> Published<N> {
    /// Nothing is published yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            version: AtomicU64::new(NONE + 1),
            shown: AtomicU64::new(NONE),
            missed: AtomicU64::new(NONE),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The words, all of one version, which includes all changes that ended before the call. `None`
    /// if this version is not published.
    #[inline]
    #[must_use]
    pub fn read(&self) -> Option<[u64; N]> {
        let version = self.version.load(Ordering::Acquire);
        if self.shown.load(Ordering::Acquire) != version {
            return None;
        }
        let words = std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let still = self.shown.load(Ordering::Relaxed) == version;
        still.then_some(words)
    }

    /// The words, and the value that `beside` reads elsewhere, consistent with each other: writers
    /// of that value must call [`Published::expire`] before they remove anything from it. `beside`
    /// must read with acquire ordering, and such writers must write with release ordering.
    #[inline]
    pub fn read_with<T>(&self, beside: impl FnOnce() -> T) -> Option<([u64; N], T)> {
        let version = self.version.load(Ordering::Acquire);
        let words = self.read()?;
        let beside = beside();
        let still = self.version.load(Ordering::Relaxed) == version;
        still.then_some((words, beside))
    }

    /// Notes a change of the state. Must be called under the lock.
    #[inline]
    pub fn expire(&self) {
        // Only this thread writes it: the caller holds the lock.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    /// As [`Published::expire`], but does nothing if `words` are published already: for changes
    /// that may leave the words as they are. Returns whether they are not published now.
    pub fn expire_unless(&self, words: impl FnOnce() -> [u64; N]) -> bool {
        let is_stale = !self.shows(words);
        if is_stale {
            self.expire();
        }
        is_stale
    }

    /// As [`Published::expire`], but writes nothing unless words are published. So two offers may
    /// publish although the state has changed between them.
    pub fn expire_if_shown(&self) {
        if self.shown.load(Ordering::Relaxed) == self.version.load(Ordering::Relaxed) {
            self.expire();
        }
    }

    fn shows(&self, words: impl FnOnce() -> [u64; N]) -> bool {
        let is_shown = self.shown.load(Ordering::Relaxed) == self.version.load(Ordering::Relaxed);
        let is_one_of = |(place, word): (&AtomicU64, u64)| place.load(Ordering::Relaxed) == word;
        is_shown && self.words.iter().zip(words()).all(is_one_of)
    }

    /// Publishes the words at the second offer of the same version. Must be called under the lock.
    pub fn offer(&self, words: impl FnOnce() -> [u64; N]) {
        let version = self.version.load(Ordering::Relaxed);
        if self.shown.load(Ordering::Relaxed) == version {
            return;
        }
        if self.missed.load(Ordering::Relaxed) != version {
            self.missed.store(version, Ordering::Relaxed);
            return;
        }
        self.shown.store(NONE, Ordering::Relaxed);
        // A reader that reads one of the words below and then fences sees that `shown` is none.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words()) {
            place.store(word, Ordering::Relaxed);
        }
        self.shown.store(version, Ordering::Release);
    }
}

impl<const N: usize> Default for Published<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Published;
    use crate::order::Class;
    use crate::{Mutex, thread};

    #[test]
    fn the_second_offer_publishes_and_a_change_expires() {
        let published = Published::new();
        published.offer(|| unreachable!("nobody has asked twice"));
        assert_eq!(published.read(), None);
        published.offer(|| [1, 2]);
        assert_eq!(published.read(), Some([1, 2]));
        published.expire();
        assert_eq!(published.read(), None);
        published.offer(|| [3, 4]);
        published.offer(|| [3, 4]);
        assert_eq!(published.read(), Some([3, 4]));
        assert!(!published.expire_unless(|| [3, 4]));
        assert_eq!(published.read(), Some([3, 4]));
        assert!(published.expire_unless(|| [3, 5]));
        assert_eq!(published.read(), None);
        published.offer(|| [3, 5]);
        assert!(published.expire_unless(|| [3, 5]));
        published.offer(|| [3, 5]);
        assert_eq!(published.read(), None, "who asked, asked before that");
    }

    #[test]
    fn what_is_not_shown_need_not_expire() {
        let published = Published::new();
        published.offer(|| [1]);
        published.expire_if_shown();
        published.offer(|| [2]);
        assert_eq!(published.read(), Some([2]));
        published.expire_if_shown();
        assert_eq!(published.read(), None);
    }

    #[test]
    fn readers_see_whole_values_that_never_go_back() {
        let value = Mutex::new(Class::Leaf, 0_u64);
        let published = Published::new();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 2000 {
                        let seen = published.read().unwrap_or_else(|| {
                            let value = value.lock();
                            published.offer(|| [*value; 4]);
                            [*value; 4]
                        });
                        assert!(seen.iter().all(|word| *word == seen[0]));
                        assert!(seen[0] >= last);
                        last = seen[0];
                    }
                });
            }
            for _ in 0..2000 {
                let mut value = value.lock();
                *value += 1;
                published.expire();
                drop(value);
                thread::yield_now();
            }
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::Published;
    use crate::thread;

    /// A reader against a change and the offers that follow it: it sees old words, new ones, or
    /// none, but no mixture.
    #[test]
    fn a_reader_sees_one_version() {
        crate::model(|| {
            let published = Arc::new(Published::new());
            published.offer(|| [1, 1]);
            published.offer(|| [1, 1]);
            let writer = {
                let published = Arc::clone(&published);
                thread::spawn("writer", move || {
                    published.expire();
                    published.offer(|| [2, 2]);
                    published.offer(|| [2, 2]);
                })
            };
            if let Some(words) = published.read() {
                assert!(words == [1, 1] || words == [2, 2], "{words:?}");
            }
            writer.join().expect("no panic");
            assert_eq!(published.read(), Some([2, 2]));
        });
    }
}
