//! How long each stretch of code takes between two steps: what the virtual cores are fed with.
//!
//! While [`record`] runs, every real thread writes down, for each pair of steps that follow one
//! another on it, how long it took from one to the other. A step is a place in the source and what
//! it does there (take a lock, give it back, read or write an atomic). What the watching itself
//! costs lies outside the stretches, but for reading the clock, which is measured and subtracted.
//! The work of a step that needs nobody else (an atomic that is in the core's own cache, a free
//! lock) counts with the stretch behind it; waiting counts nowhere.
//!
//! Each thread keeps a log of its own and adds it to the common [`Stretches`] when it ends, or when
//! its log is full, between two stretches.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::hash::NumberHash;
use crate::watch::{self, Action, CALIBRATION, Site, ticks};

/// Samples of a pair that are kept; when there are more, every second is dropped and from then on
/// every second one is taken.
const SAMPLES: usize = 1024;
/// Entries of a thread's log.
const LOG: usize = 1 << 14;

/// A place in the source and what is done there, in one number: sites lie eight bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step(u64);

impl Step {
    /// Where a thread begins.
    pub(crate) const START: Self = Self(0);

    pub(crate) fn new(site: Site, action: Action) -> Self {
        Self(((std::ptr::from_ref(site).addr() as u64) << 3) | action as u64)
    }
}

/// What was seen of one pair of steps.
#[derive(Clone, Debug)]
struct Samples {
    ticks: Vec<u32>,
    /// One of so many is taken.
    stride: u32,
    skip: u32,
}

impl Samples {
    const fn new() -> Self {
        Self {
            ticks: Vec::new(),
            stride: 1,
            skip: 0,
        }
    }

    fn add(&mut self, ticks: u32) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.ticks.push(ticks);
        self.skip = self.stride - 1;
        if self.ticks.len() == SAMPLES {
            let mut number = 0;
            self.ticks.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.stride *= 2;
        }
    }

    fn median(&self) -> u32 {
        let mut ticks = self.ticks.clone();
        let middle = ticks.len() / 2;
        if ticks.is_empty() {
            return 0;
        }
        *ticks.select_nth_unstable(middle).1
    }
}

type Pairs = HashMap<(Step, Step), Samples, NumberHash>;

/// What every pair of steps costs.
#[derive(Clone, Debug, Default)]
pub struct Stretches {
    pairs: HashMap<(Step, Step), u64, NumberHash>,
    /// For pairs that were never seen: the median of what ends at a step.
    ends: HashMap<Step, u64, NumberHash>,
    /// For steps that were never seen.
    any: u64,
}

impl Stretches {
    /// One in which every stretch takes so many picoseconds, for tests of the machine itself.
    #[must_use]
    pub fn constant(picoseconds: u64) -> Self {
        Self {
            any: picoseconds,
            ..Self::default()
        }
    }

    /// How many pairs of steps are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Picoseconds from one step to another, and whether just this pair was seen.
    pub(crate) fn cost(&self, from: Step, to: Step) -> (u64, bool) {
        match self.pairs.get(&(from, to)) {
            Some(&cost) => (cost, true),
            None => (self.ends.get(&to).copied().unwrap_or(self.any), false),
        }
    }

    fn from_samples(pairs: &Pairs, overhead: u32) -> Self {
        let cost = |ticks: u32| ticks::to_picoseconds(u64::from(ticks.saturating_sub(overhead)));
        let mut stretches = Self::default();
        let mut ends: HashMap<Step, Vec<u64>, NumberHash> = HashMap::default();
        for (&(from, to), samples) in pairs {
            let cost = cost(samples.median());
            stretches.pairs.insert((from, to), cost);
            ends.entry(to).or_default().push(cost);
        }
        let mut all: Vec<u64> = stretches.pairs.values().copied().collect();
        stretches.any = middle(&mut all);
        let ends = ends.into_iter();
        stretches.ends = ends
            .map(|(step, mut costs)| (step, middle(&mut costs)))
            .collect();
        stretches
    }
}

fn middle(costs: &mut [u64]) -> u64 {
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().unwrap_or(0)
}

/// One thread's log.
struct Log {
    last: Step,
    /// Ticks when the stretch that runs began.
    since: u64,
    entries: Vec<(Step, Step, u32)>,
}

static COMMON: Mutex<Option<Pairs>> = Mutex::new(None);

impl Log {
    const fn new() -> Self {
        Self {
            last: Step::START,
            since: 0,
            entries: Vec::new(),
        }
    }

    fn fold(&mut self) {
        let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = common.get_or_insert_default();
        for (from, to, ticks) in self.entries.drain(..) {
            pairs.entry((from, to)).or_insert(Samples::new()).add(ticks);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.fold();
    }
}

thread_local! {
    static LOCAL: RefCell<Log> = const { RefCell::new(Log::new()) };
}

fn with_log(body: impl FnOnce(&mut Log)) {
    let _ = LOCAL.try_with(|log| {
        if let Ok(mut log) = log.try_borrow_mut() {
            body(&mut log);
        }
    });
}

/// The calling thread has come to a step.
pub(crate) fn arrive(site: Site, action: Action) {
    let now = ticks::now();
    with_log(|log| {
        let to = Step::new(site, action);
        if log.since != 0 {
            let ticks = u32::try_from(now.saturating_sub(log.since)).unwrap_or(u32::MAX);
            log.entries.push((log.last, to, ticks));
            if log.entries.len() >= LOG {
                log.fold();
            }
        }
        log.last = to;
    });
}

/// The calling thread leaves the step it is at.
pub(crate) fn leave() {
    with_log(|log| log.since = ticks::now());
}

/// Ticks of a stretch without anything in it.
fn overhead() -> u32 {
    let site = std::panic::Location::caller();
    let mut samples = Samples::new();
    for _ in 0..10_000 {
        leave();
        arrive(site, Action::Other);
        with_log(|log| {
            if let Some((_, _, ticks)) = log.entries.pop() {
                samples.add(ticks);
            }
        });
    }
    samples.median()
}

/// Runs `body` with real threads and answers what its stretches cost. Threads that `body` starts
/// must have ended when it returns. One at a time.
pub fn record<R>(body: impl FnOnce() -> R) -> (R, Stretches) {
    forget();
    let overhead = overhead();
    forget();
    watch::switch(CALIBRATION, true);
    let result = body();
    watch::switch(CALIBRATION, false);
    with_log(Log::fold);
    let pairs = COMMON
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap_or_default();
    forget();
    (result, Stretches::from_samples(&pairs, overhead))
}

fn forget() {
    with_log(|log| {
        log.entries.clear();
        log.since = 0;
        log.last = Step::START;
    });
    *COMMON.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Samples, record};
    use crate::Mutex;
    use crate::order::Class;

    #[test]
    fn the_median_of_many_is_kept() {
        let mut samples = Samples::new();
        for number in 0..1_000_000 {
            samples.add(if number % 3 == 0 {
                1_000_000
            } else {
                number % 100
            });
        }
        assert!(samples.ticks.len() <= super::SAMPLES);
        assert!((55..95).contains(&samples.median()), "{}", samples.median());
    }

    #[test]
    fn a_stretch_costs_what_it_takes() {
        let lock = Mutex::new(Class::Leaf, ());
        let ((), stretches) = record(|| {
            for _ in 0..101 {
                let guard = lock.lock();
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(30) {}
                drop(guard);
            }
        });
        // Other tests are at work on other threads and seen as well.
        let near = |time: u64| (25_000_000..200_000_000).contains(&time);
        assert!(stretches.pairs.values().copied().any(near));
        let shortest = stretches.pairs.values().min().expect("there are some");
        assert!(stretches.len() >= 2 && *shortest < 2_000_000, "{shortest}");
    }
}
