//! Measuring how long each stretch of code takes between two steps: the input of the virtual cores.
//!
//! While [`record`] runs, every real thread logs, for each pair of consecutive steps, the time from
//! one to the other. A step is a source location and the action there (take a lock, release it,
//! read or write an atomic). The part of its work that the thread is in belongs to the pair: the
//! same lines of code take different times when files are made and when they are removed. The work
//! of a step that does not depend on other cores (an atomic in the core's own cache, a free lock)
//! counts with the stretch after it; waiting is not counted. A stretch costs the mean of its
//! samples, without those beyond ten times the median, during which another thread had the
//! processor: the median alone would ignore rare long executions that depend on the data. If there
//! are few samples, their mean is bounded instead, so that a time slice of another thread is not
//! taken for work.
//!
//! Stretches are as short as a read of the clock, and the cost of that read cannot be measured in
//! isolation: the processor overlaps it with the code before and after it. So it is derived from
//! totals. The thread that called [`reference`] did some operations; the caller measures separately
//! how long these take without observation, with the unobserved locks. The difference divided by
//! the number of stretches is the cost of one observation ([`Recording::stretches`]). Each part has
//! its own: where one step immediately follows another, as in a loop over words, more of the cost
//! is overlapped.
//!
//! Each thread has a log of its own and adds it to the common [`Recording`] when it ends, or when
//! the log is full, between two stretches.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::hash::NumberHash;
pub use crate::stretches::Stretches;
use crate::stretches::{Cost, Pair, Part, Step};
use crate::watch::{self, Action, CALIBRATION, Site, ticks};

/// The maximum number of samples kept for a pair; when it is reached, every second one is dropped,
/// and from then on only every second one is taken.
const SAMPLES: usize = 1024;
/// The number of entries in a thread's log.
const LOG: usize = 1 << 14;
/// The minimum ticks of a stretch.
const LEAST: f64 = 1.0;
/// With fewer samples than this, disturbed ones cannot be recognised.
const FEW: usize = 16;
/// The maximum mean, in picoseconds, of fewer than [`FEW`] samples: a time slice of another thread
/// is longer, and one such sample would weigh as much as a thousand operations.
const MAX_OF_FEW: f64 = 100e6;

/// The samples of one pair of steps.
#[derive(Clone, Debug)]
struct Samples {
    ticks: Vec<u32>,
    /// One of this many samples is kept.
    stride: u32,
    skip: u32,
    /// How many samples came from the reference thread.
    reference: u64,
}

impl Samples {
    const fn new() -> Self {
        Self {
            ticks: Vec::new(),
            stride: 1,
            skip: 0,
            reference: 0,
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

    /// The samples without those during which another thread had the processor.
    fn undisturbed(&self) -> Vec<u32> {
        let mut seen = self.ticks.clone();
        if seen.is_empty() {
            return seen;
        }
        let middle = seen.len() / 2;
        let median = *seen.select_nth_unstable(middle).1;
        let most = median.saturating_mul(10).max(100);
        seen.retain(|sample| *sample <= most);
        seen
    }

    /// Their mean, in ticks.
    fn typical(&self) -> f64 {
        let seen = self.undisturbed();
        if seen.is_empty() {
            return 0.0;
        }
        let mean = seen.iter().copied().map(f64::from).sum::<f64>() / seen.len() as f64;
        if self.ticks.len() < FEW {
            mean.min(MAX_OF_FEW / ticks::picoseconds_per_tick())
        } else {
            mean
        }
    }

    /// The cost of the stretch without an observation of `look` ticks.
    fn cost(&self, look: f64) -> Cost {
        let mean = picoseconds((self.typical() - look).max(LEAST));
        let mut seen = self.undisturbed();
        seen.sort_unstable();
        for ticks in &mut seen {
            *ticks = ticks.saturating_sub(look as u32);
        }
        Cost::new(mean, &seen)
    }
}

type Pairs = HashMap<Pair, Samples, NumberHash>;
/// The samples of all pairs of steps.
#[derive(Clone, Debug)]
pub struct Recording {
    pairs: Pairs,
    /// Ticks of an empty stretch.
    empty: f64,
}

impl Recording {
    /// The costs of stretches. `alone` is, for each part, how long the reference's operations take
    /// without observation; for parts without such a time, an observation is assumed to cost as
    /// much as an empty stretch.
    #[must_use]
    pub fn stretches(&self, alone: &[Duration]) -> Stretches {
        let looks: Vec<f64> = (0..)
            .zip(alone)
            .map(|(part, &alone)| self.look(part, alone))
            .collect();
        let costs = self.pairs.iter().map(|(&pair, samples)| {
            let look = looks.get(usize::from(pair.0)).copied();
            (pair, samples.cost(look.unwrap_or(self.empty)))
        });
        Stretches::from_costs(costs.collect())
    }

    /// Takes over pairs of steps that only `other` has, or that have few samples here and more
    /// there. Their samples do not count as the reference's.
    pub fn learn(&mut self, other: Self) {
        for (pair, mut samples) in other.pairs {
            samples.reference = 0;
            let own = self.pairs.entry(pair).or_insert_with(Samples::new);
            if own.ticks.len() < FEW && own.ticks.len() < samples.ticks.len() {
                samples.reference = own.reference;
                *own = samples;
            }
        }
    }

    /// The number of stretches of the reference thread.
    #[must_use]
    pub fn reference_stretches(&self) -> u64 {
        self.pairs.values().map(|samples| samples.reference).sum()
    }

    /// How long the reference's stretches of a part take together, in nanoseconds, where each costs
    /// what `stretches` says.
    #[must_use]
    pub fn reference_nanoseconds(&self, part: u8, stretches: &Stretches) -> f64 {
        let own = self.pairs.iter().filter(|(pair, _)| pair.0 == part);
        let picoseconds = own.map(|(&(part, from, to), samples)| {
            let (cost, _) = stretches.cost(part, from, to);
            cost.mean as f64 * samples.reference as f64
        });
        picoseconds.sum::<f64>() / 1000.0
    }

    /// The cost of one observation in a part, in nanoseconds, as [`Recording::stretches`] computes
    /// it.
    #[must_use]
    pub fn look_nanoseconds(&self, part: u8, alone: Duration) -> f64 {
        picoseconds(self.look(part, alone)) as f64 / 1000.0
    }

    /// The ticks of one observation for which the reference's stretches of a part sum up to
    /// `alone`.
    fn look(&self, part: Part, alone: Duration) -> f64 {
        let wanted = alone.as_nanos() as f64 * 1000.0;
        let own: Vec<(f64, f64)> = self
            .pairs
            .iter()
            .filter(|(pair, samples)| pair.0 == part && samples.reference > 0)
            .map(|(_, samples)| (samples.typical(), samples.reference as f64))
            .collect();
        let sum = |look: f64| {
            let ticks: f64 = own
                .iter()
                .map(|(typical, count)| (typical - look).max(LEAST) * count)
                .sum();
            ticks * ticks::picoseconds_per_tick()
        };
        // The sum decreases as `look` increases; sixty bisections exhaust the precision.
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if sum(middle) > wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

fn picoseconds(ticks: f64) -> u64 {
    (ticks * ticks::picoseconds_per_tick()) as u64
}

/// One thread's log.
struct Log {
    part: Part,
    last: Step,
    /// Ticks at the beginning of the current stretch.
    since: u64,
    is_reference: bool,
    entries: Vec<(Pair, u32)>,
}

static COMMON: Mutex<Option<Pairs>> = Mutex::new(None);

impl Log {
    const fn new() -> Self {
        Self {
            part: 0,
            last: Step::START,
            since: 0,
            is_reference: false,
            entries: Vec::new(),
        }
    }

    fn fold(&mut self) {
        let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = common.get_or_insert_default();
        for (pair, ticks) in self.entries.drain(..) {
            let samples = pairs.entry(pair).or_insert(Samples::new());
            samples.add(ticks);
            samples.reference += u64::from(self.is_reference);
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

/// The calling thread has reached a step: ends the current stretch.
pub(crate) fn arrive(site: Site, action: Action) {
    let now = ticks::now();
    with_log(|log| {
        let to = Step::new(site, action);
        if log.since != 0 {
            let ticks = u32::try_from(now.saturating_sub(log.since)).unwrap_or(u32::MAX);
            log.entries.push(((log.part, log.last, to), ticks));
            if log.entries.len() >= LOG {
                log.fold();
            }
        }
        log.last = to;
    });
}

/// The calling thread leaves its step: begins a stretch.
pub(crate) fn leave() {
    with_log(|log| log.since = ticks::now());
}

/// Begins a part of the calling thread's work, which is a step.
pub(crate) fn part(site: Site, number: Part) {
    if watch::is_on(CALIBRATION) {
        arrive(site, Action::Other);
        with_log(|log| log.part = number);
        leave();
    }
}

/// Makes the calling thread the reference, whose operations are also measured without observation.
pub fn reference() {
    with_log(|log| {
        log.fold();
        log.is_reference = true;
    });
}

/// Ticks of an empty stretch.
fn empty() -> f64 {
    let site = std::panic::Location::caller();
    let mut samples = Samples::new();
    for _ in 0..10_000 {
        leave();
        arrive(site, Action::Other);
        with_log(|log| {
            if let Some((_, ticks)) = log.entries.pop() {
                samples.add(ticks);
            }
        });
    }
    samples.typical()
}

/// Runs `body` with real threads and returns its stretches. Threads that `body` starts must have
/// ended when it returns. Concurrent calls are serialised.
pub fn record<R>(body: impl FnOnce() -> R) -> (R, Recording) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    forget();
    let empty = empty();
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
    (result, Recording { pairs, empty })
}

fn forget() {
    with_log(|log| {
        log.entries.clear();
        log.since = 0;
        log.part = 0;
        log.last = Step::START;
        log.is_reference = false;
    });
    *COMMON.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Cost, FEW, Recording, Samples, Step, Stretches, record, reference};
    use crate::Mutex;
    use crate::order::Class;

    #[test]
    fn many_samples_are_thinned_and_disturbed_ones_left_out() {
        let mut samples = Samples::new();
        for number in 0..1_000_000 {
            samples.add(if number % 97 == 0 {
                1_000_000
            } else {
                number % 100
            });
        }
        assert!(samples.ticks.len() <= super::SAMPLES);
        let typical = samples.typical();
        assert!((40.0..60.0).contains(&typical), "{typical}");
    }

    #[test]
    fn of_few_samples_none_weighs_as_much_as_a_turn_of_somebody_else() {
        let mut samples = Samples::new();
        samples.add(u32::MAX);
        let nanoseconds = super::picoseconds(samples.typical()) / 1000;
        assert!(nanoseconds <= 100_000, "{nanoseconds}");
    }

    #[test]
    fn a_stretch_costs_what_it_takes() {
        const TURNS: u32 = 101;
        let lock = Mutex::new(Class::Leaf, ());
        let ((), recording) = record(|| {
            reference();
            for _ in 0..TURNS {
                let guard = lock.lock();
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(30) {}
                drop(guard);
            }
        });
        // Taken and given back, and from the one back to the other.
        assert_eq!(recording.reference_stretches(), u64::from(2 * TURNS - 1));
        // Other tests are at work on other threads and seen as well.
        let near = |cost: Cost| (25_000_000..200_000_000).contains(&cost.mean);
        let stretches = recording.stretches(&[]);
        assert!(stretches.pairs.values().copied().any(near));
        // If the whole takes ten microseconds less, a look took a twentieth of one.
        let all = recording.stretches(&[Duration::ZERO]).len();
        assert!(all >= 2);
        let look = |alone| recording.look_nanoseconds(0, alone);
        let exact = Duration::from_micros(30 * u64::from(TURNS));
        assert!(look(exact - Duration::from_micros(100)) > look(exact));
    }

    /// What was seen of a pair, so many samples of so many ticks.
    fn seen(pair: u64, count: usize, ticks: u32) -> Recording {
        let mut samples = Samples::new();
        (0..count).for_each(|_| samples.add(ticks));
        samples.reference = count as u64;
        Recording {
            pairs: [((0, Step(pair), Step(1)), samples)].into_iter().collect(),
            empty: 0.0,
        }
    }

    #[test]
    fn what_was_seen_too_seldom_is_learned_from_elsewhere() {
        for (count, is_learned) in [(FEW - 1, true), (FEW, false)] {
            let mut recording = seen(1, count, 1000);
            recording.learn(seen(1, 100, 10));
            recording.learn(seen(2, 3, 7));
            let typical = |pair| recording.pairs[&(0, Step(pair), Step(1))].typical();
            assert_eq!(
                typical(1),
                if is_learned { 10.0 } else { 1000.0 },
                "{count}"
            );
            assert_eq!(typical(2), 7.0);
            assert_eq!(recording.reference_stretches(), count as u64);
        }
    }

    #[test]
    fn of_several_lists_the_middle_counts_where_a_pair_is_known() {
        let lists = [(1, 5), (1, 9), (1, 100), (2, 40)];
        let lists = lists.map(|(pair, ticks)| seen(pair, 20, ticks * 1000).stretches(&[]));
        let middle = Stretches::middle_of(&lists);
        let cost = |list: &Stretches, pair| list.cost(0, Step(pair), Step(1));
        assert_eq!(cost(&middle, 1), cost(&lists[1], 1));
        assert_eq!(cost(&middle, 2), cost(&lists[3], 2));
        assert_eq!(middle.len(), 2);
    }

    #[test]
    fn the_reference_takes_what_its_stretches_cost_as_often_as_it_was_there() {
        let [few, many] = [20, 30].map(|count| seen(count, count as usize, 1000));
        let mut recording = few.clone();
        recording.learn(many);
        let own = |stretches| recording.reference_nanoseconds(0, stretches);
        let cost = |stretches: &Stretches| stretches.cost(0, Step(20), Step(1)).0.mean as f64;
        let stretches = few.stretches(&[]);
        let exact = cost(&stretches) * 20.0 / 1000.0;
        assert!((own(&stretches) - exact).abs() < 1e-6 * exact);
        let scaled = stretches.scaled(&[1.5]);
        assert!((own(&scaled) - 1.5 * exact).abs() < 0.001 * exact);
        assert_eq!(recording.reference_nanoseconds(1, &stretches), 0.0);
        assert_eq!(cost(&stretches.scaled(&[])), cost(&stretches));
    }

    #[test]
    fn a_stretch_costs_in_each_part_what_it_took_there() {
        let [short, long] = [10_u64, 60].map(Duration::from_micros);
        let lock = Mutex::new(Class::Leaf, ());
        let ((), recording) = record(|| {
            reference();
            for turn in 0..200 {
                super::part(std::panic::Location::caller(), 3 + turn % 2);
                let _guard = lock.lock();
                let start = Instant::now();
                while start.elapsed() < if turn % 2 == 0 { short } else { long } {}
            }
        });
        let stretches = recording.stretches(&[]);
        let longest = |part| {
            let own = stretches.pairs.iter().filter(|(pair, _)| pair.0 == part);
            own.map(|(_, &cost)| cost.mean).max().unwrap_or(0)
        };
        assert!(longest(3) < longest(4), "{} {}", longest(3), longest(4));
        // Of a part in which nobody saw it, the middle of the two is taken, and it counts as known.
        let (pair, &cost) = stretches
            .pairs
            .iter()
            .max_by_key(|(_, cost)| cost.mean)
            .expect("some were seen");
        assert_eq!(stretches.cost(4, pair.1, pair.2), (cost, true));
        assert!(stretches.cost(5, pair.1, pair.2).1);
    }

    #[test]
    fn what_comes_before_a_part_is_not_charged_to_it() {
        let here = std::panic::Location::caller();
        let lock = Mutex::new(Class::Leaf, ());
        let ((), recording) = record(|| {
            reference();
            for _ in 0..50 {
                super::part(here, 3);
                drop(lock.lock());
                super::part(here, 4);
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(30) {}
            }
        });
        let stretches = recording.stretches(&[]);
        let of_part = |part| recording.reference_nanoseconds(part, &stretches);
        assert!(of_part(4) > 50.0 * 30_000.0 * 0.9, "{}", of_part(4));
        assert!(of_part(3) < of_part(4) / 10.0, "{}", of_part(3));
    }
}
