//! Statistics of locks by class: how often they were taken, contended and tried without success,
//! and for how long they were waited for and held.
//!
//! The feature `meter` of this crate compiles it in; it is off until [`switch`]ed on. Without the
//! feature, locks are those of `parking_lot` and nothing is counted: a [`snapshot`] is empty, and
//! [`is_built_in`] returns false. With it, a lock reads one switch when it is taken and one when it
//! is released.
//!
//! Each thread has counters of its own, which only it writes, so that counting does not make cores
//! share a cache line. A snapshot adds them up while threads continue to count.

use std::time::Duration;

use crate::order::Class;

/// The statistics of one class of locks since the meter was first switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often a lock was taken, including by a try-lock.
    pub acquisitions: u64,
    /// How many of these found it held and waited.
    pub contended: u64,
    /// How often a try-lock failed.
    pub failures: u64,
    /// Time spent waiting.
    pub waited: Duration,
    /// Time between taking and releasing, for each reader separately.
    pub held: Duration,
}

impl Tally {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            acquisitions: self.acquisitions + other.acquisitions,
            contended: self.contended + other.contended,
            failures: self.failures + other.failures,
            waited: self.waited + other.waited,
            held: self.held + other.held,
        }
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            acquisitions: self.acquisitions.saturating_sub(earlier.acquisitions),
            contended: self.contended.saturating_sub(earlier.contended),
            failures: self.failures.saturating_sub(earlier.failures),
            waited: self.waited.saturating_sub(earlier.waited),
            held: self.held.saturating_sub(earlier.held),
        }
    }
}

/// The statistics of all classes, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tallies([Tally; Class::COUNT]);

impl Default for Tallies {
    fn default() -> Self {
        Self([Tally::default(); Class::COUNT])
    }
}

impl Tallies {
    /// The statistics of one class.
    #[must_use]
    pub fn of(&self, class: Class) -> Tally {
        self.0[class as usize]
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (mine, theirs) in sum.0.iter_mut().zip(other.0) {
            *mine = mine.plus(theirs);
        }
        sum
    }

    /// The classes that were used, in their order.
    pub fn used(&self) -> impl Iterator<Item = (Class, Tally)> + '_ {
        let all = Class::ALL.into_iter().zip(self.0);
        all.filter(|(_, tally)| *tally != Tally::default())
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (mine, theirs) in difference.0.iter_mut().zip(earlier.0) {
            *mine = mine.since(theirs);
        }
        difference
    }
}

/// Whether this build can count.
#[must_use]
pub fn is_built_in() -> bool {
    cfg!(all(feature = "meter", not(loom)))
}

#[cfg(not(all(feature = "meter", not(loom))))]
mod counting {
    use super::Tallies;

    /// Nothing, in a build without meters.
    pub fn switch(_on: bool) {}

    /// Nothing, in a build without meters.
    #[must_use]
    pub fn snapshot() -> Tallies {
        Tallies::default()
    }
}

#[cfg(all(feature = "meter", not(loom)))]
mod counting {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use super::{Tallies, Tally};
    use crate::order::Class;
    use crate::watch::{METER, switch as switch_watcher, ticks};

    /// The counters of one thread.
    #[derive(Default)]
    struct Counts([Count; Class::COUNT]);

    #[derive(Default)]
    struct Count {
        acquisitions: AtomicU64,
        contended: AtomicU64,
        failures: AtomicU64,
        waited: AtomicU64,
        held: AtomicU64,
    }

    /// Every thread's counters, and the sum of those of threads that have ended.
    struct Registry {
        alive: Vec<Arc<Counts>>,
        ended: Option<Tallies>,
    }

    static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
        alive: Vec::new(),
        ended: None,
    });

    thread_local! {
        static MINE: Arc<Counts> = register();
    }

    fn registry() -> MutexGuard<'static, Registry> {
        REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register() -> Arc<Counts> {
        let mine = Arc::new(Counts::default());
        let mut registry = registry();
        registry.collect_ended();
        registry.alive.push(Arc::clone(&mine));
        mine
    }

    impl Registry {
        /// Moves the counters of threads that have ended into the sum.
        fn collect_ended(&mut self) {
            let ended = self.ended.get_or_insert_default();
            self.alive.retain(|counts| {
                let is_alive = Arc::strong_count(counts) > 1;
                if !is_alive {
                    counts.add_to(ended);
                }
                is_alive
            });
        }
    }

    impl Counts {
        fn add_to(&self, sums: &mut Tallies) {
            for (sum, count) in sums.0.iter_mut().zip(&self.0) {
                *sum = sum.plus(count.tally());
            }
        }
    }

    impl Count {
        fn tally(&self) -> Tally {
            let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
            Tally {
                acquisitions: read(&self.acquisitions),
                contended: read(&self.contended),
                failures: read(&self.failures),
                waited: ticks::to_duration(read(&self.waited)),
                held: ticks::to_duration(read(&self.held)),
            }
        }
    }

    /// Only the thread itself writes its counters, so this needs no read-modify-write.
    fn add(number: &AtomicU64, amount: u64) {
        let sum = number.load(Ordering::Relaxed).wrapping_add(amount);
        number.store(sum, Ordering::Relaxed);
    }

    /// When a thread ends, guards may be dropped after its counters; these are not counted.
    fn count(class: Class, change: impl FnOnce(&Count)) {
        let _ = MINE.try_with(|mine| change(&mine.0[class as usize]));
    }

    /// Counts a lock that was taken, after waiting for so many ticks if it was held.
    pub(crate) fn taken(class: Class, waited: Option<u64>) {
        count(class, |count| {
            add(&count.acquisitions, 1);
            if let Some(waited) = waited {
                add(&count.contended, 1);
                add(&count.waited, waited);
            }
        });
    }

    /// Counts a try-lock.
    pub(crate) fn tried(class: Class, success: bool) {
        count(class, |count| {
            add(
                if success {
                    &count.acquisitions
                } else {
                    &count.failures
                },
                1,
            );
        });
    }

    /// Counts a lock that was released after so many ticks.
    pub(crate) fn released(class: Class, held: u64) {
        count(class, |count| add(&count.held, held));
    }

    /// Switches the meter on or off.
    pub fn switch(on: bool) {
        switch_watcher(METER, on);
    }

    /// The statistics so far.
    #[must_use]
    pub fn snapshot() -> Tallies {
        let mut registry = registry();
        registry.collect_ended();
        let mut sums = registry.ended.clone().unwrap_or_default();
        for counts in &registry.alive {
            counts.add_to(&mut sums);
        }
        sums
    }
}

#[cfg(all(feature = "meter", not(loom)))]
pub(crate) use counting::{released, taken, tried};
pub use counting::{snapshot, switch};

#[cfg(all(test, feature = "meter", not(loom)))]
mod tests {
    use std::time::Duration;

    use super::{snapshot, switch};
    use crate::order::Class;
    use crate::{Condvar, Mutex, RwLock, thread};

    /// One test, since the meter is one for the process.
    #[test]
    fn counts_what_happens_and_only_while_it_is_on() {
        let lock = Mutex::new(Class::Rename, 0);
        drop(lock.lock());
        assert_eq!(snapshot().of(Class::Rename).acquisitions, 0, "it is off");
        switch(true);
        let before = snapshot();
        drop(lock.lock());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock()));
            // The waiter has met the lock when its first look has failed; it is counted later.
            std::thread::sleep(Duration::from_millis(20));
            drop(guard);
            waiter.join().expect("it does not panic");
        });
        let tally = snapshot().since(&before).of(Class::Rename);
        assert_eq!((tally.acquisitions, tally.failures), (3, 1));
        assert_eq!(tally.contended, 1);
        assert!(tally.waited > Duration::ZERO && tally.held >= Duration::from_millis(15));

        // Waiting on a condition is not holding.
        let condition = Condvar::new();
        let before = snapshot();
        let mut guard = lock.lock();
        assert!(condition.wait_for(&mut guard, Duration::from_millis(60)));
        drop(guard);
        assert!(snapshot().since(&before).of(Class::Rename).held < Duration::from_millis(50));

        let names = RwLock::new(Class::Directory, ());
        let before = snapshot();
        drop(names.read());
        drop(names.write());
        drop(names.try_read());
        switch(false);
        drop(names.read());
        let after = snapshot().since(&before);
        assert_eq!(after.of(Class::Directory).acquisitions, 3);
        assert_eq!(after.used().count(), 1);
    }
}
