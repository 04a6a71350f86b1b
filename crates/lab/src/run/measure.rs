//! One measurement: a crew works through a window, and its counts are summed up.

use std::time::Duration;

use anyhow::{Result, bail};
use pext4_sync::meter::{self, Tallies};

use super::crew::{Crew, Moments};
use super::disturbance::Disturbance;
use super::driver::{Length, Own, Sample};
use crate::clock;
use crate::workloads::{Pace, Workload};

/// Time from sending the start to the start itself, so that all tasks have received it.
const START_DELAY: Duration = Duration::from_millis(10);

/// The length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time that is not counted; rounds end with the first that exceeds it, at least one.
    pub warm_up: Duration,
    /// Time that is counted; rounds end with the first that exceeds it.
    pub counted: Duration,
    /// In place of time: the number of steps of every task, without warm-up; a workload that runs
    /// once makes no more steps than it has.
    pub steps: Option<u64>,
}

/// The counts of one part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartCount {
    /// Operations a second, all tasks together.
    pub rate: f64,
    /// The slowest task's rate divided by the fastest's, 0 to 1.
    pub fairness: f64,
    /// CPU time of the tasks in nanoseconds an operation.
    pub cpu: f64,
    /// CPU time in nanoseconds an operation, with threads other than the tasks.
    pub whole_cpu: Option<f64>,
    /// Instructions an operation, where they are counted.
    pub instructions: Option<f64>,
    /// Operations, all tasks together.
    pub operations: u64,
    /// The cost of locks of all operations; empty without a meter.
    pub locks: Tallies,
}

/// The counts of one measurement, part by part.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// In the order of the workload's parts.
    pub parts: Vec<PartCount>,
    /// What others had while it was counted.
    pub disturbance: Disturbance,
}

/// The counts of the tasks in one part, over all its rounds.
#[derive(Default)]
struct Sum {
    /// One sample for each task.
    tasks: Vec<Sample>,
    /// The sum of the rounds' times; a round is as long as its slowest task.
    nanoseconds: u64,
    whole_cpu: Option<u64>,
    locks: Tallies,
}

/// Runs a crew through one measurement.
///
/// # Errors
///
/// If a task failed, no operation ended in the window, or the run was interrupted.
pub fn measure(crew: &mut Crew, workload: &dyn Workload, window: &Window) -> Result<Counted> {
    let (sums, disturbance) = match (workload.pace(), window.steps) {
        (Pace::Timed, None) => timed(crew, window)?,
        (Pace::Timed, Some(steps)) => once(crew, Length::Steps(steps))?,
        (Pace::Once, None) => once(crew, Length::ToEnd)?,
        (Pace::Once, Some(steps)) => once(crew, Length::AtMost(steps))?,
        (Pace::Rounds, _) => rounds(crew, workload.parts().len(), window)?,
    };
    let has_windows = workload.pace() == Pace::Timed && window.steps.is_none();
    let parts = sums.iter().map(|sum| count(sum, has_windows));
    Ok(Counted {
        parts: parts.collect::<Result<_>>()?,
        disturbance,
    })
}

/// The sums of the parts, and what others had meanwhile.
type Sums = (Vec<Sum>, Disturbance);

fn timed(crew: &mut Crew, window: &Window) -> Result<Sums> {
    let start = clock::now() + clock::as_nanoseconds(START_DELAY);
    let count = start + clock::as_nanoseconds(window.warm_up);
    let end = count + clock::as_nanoseconds(window.counted);
    let window = crew.timed(Moments { start, count, end })?;
    let sum = Sum {
        nanoseconds: end - count,
        tasks: window.samples,
        whole_cpu: window.whole_cpu,
        locks: window.locks,
    };
    Ok((vec![sum], window.disturbance))
}

fn once(crew: &mut Crew, length: Length) -> Result<Sums> {
    let mut sum = Sum::default();
    let opening = crew.reading();
    part(crew, length, &mut sum)?;
    Ok((vec![sum], opening.until(&crew.reading())))
}

fn rounds(crew: &mut Crew, parts: usize, window: &Window) -> Result<Sums> {
    let mut sums: Vec<Sum> = (0..parts).map(|_| Sum::default()).collect();
    if window.steps.is_none() {
        warm_up(crew, parts, window.warm_up)?;
    }
    let opening = crew.reading();
    let end = clock::now() + clock::as_nanoseconds(window.counted);
    loop {
        for sum in &mut sums {
            part(crew, Length::ToEnd, sum)?;
        }
        if clock::now() >= end || window.steps.is_some() {
            return Ok((sums, opening.until(&crew.reading())));
        }
    }
}

/// Runs rounds that are not counted until the time is over, and at least one, which loads what
/// later rounds find in memory.
fn warm_up(crew: &mut Crew, parts: usize, time: Duration) -> Result<()> {
    let end = clock::now() + clock::as_nanoseconds(time);
    loop {
        for _ in 0..parts {
            part(crew, Length::ToEnd, &mut Sum::default())?;
        }
        if clock::now() >= end {
            return Ok(());
        }
    }
}

/// Runs one part with all tasks and adds its counts to `sum`.
fn part(crew: &mut Crew, length: Length, sum: &mut Sum) -> Result<()> {
    let locks = meter::snapshot();
    let before = crew.whole_cpu();
    let start = clock::now() + clock::as_nanoseconds(START_DELAY);
    let samples = crew.part(start, length)?;
    let whole = before
        .zip(crew.whole_cpu())
        .map(|(before, after)| after.saturating_sub(before));
    sum.locks = sum.locks.plus(&meter::snapshot().since(&locks));
    sum.add(samples, whole);
    Ok(())
}

impl Sum {
    /// Adds one round. A number that is unknown for one round is unknown for the sum.
    fn add(&mut self, samples: Vec<Sample>, whole_cpu: Option<u64>) {
        let slowest = samples.iter().map(|sample| sample.nanoseconds).max();
        self.nanoseconds += slowest.unwrap_or(0);
        if self.tasks.is_empty() {
            self.whole_cpu = whole_cpu;
            self.tasks = samples;
            return;
        }
        self.whole_cpu = self
            .whole_cpu
            .zip(whole_cpu)
            .map(|(so_far, more)| so_far + more);
        for (so_far, more) in self.tasks.iter_mut().zip(samples) {
            add(so_far, &more);
        }
    }
}

fn add(so_far: &mut Sample, more: &Sample) {
    so_far.operations += more.operations;
    so_far.nanoseconds += more.nanoseconds;
    let (own, more) = (&mut so_far.own, &more.own);
    own.operations += more.operations;
    own.cpu += more.cpu;
    own.instructions = own
        .instructions
        .zip(more.instructions)
        .map(|(one, two)| one + two);
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
fn real(number: u64) -> f64 {
    number as f64
}

/// The rates and costs of a sum; `has_windows` is whether all tasks were counted for the same time.
fn count(sum: &Sum, has_windows: bool) -> Result<PartCount> {
    let operations: u64 = sum.tasks.iter().map(|sample| sample.operations).sum();
    let own = |take: fn(&Own) -> u64| sum.tasks.iter().map(|sample| take(&sample.own)).sum();
    let own_operations: u64 = own(|own| own.operations);
    if operations == 0 || own_operations == 0 {
        bail!(
            "no operation began and ended while it was counted: choose more --seconds or --steps"
        );
    }
    let per_operation = |amount: u64, operations: u64| real(amount) / real(operations);
    let rates = sum
        .tasks
        .iter()
        .map(|sample| real(sample.operations) * 1e9 / real(sample.nanoseconds.max(1)));
    let fastest = rates.clone().fold(0.0, f64::max);
    let slowest = rates.clone().fold(f64::INFINITY, f64::min);
    let rate = if has_windows {
        rates.sum()
    } else {
        real(operations) * 1e9 / real(sum.nanoseconds.max(1))
    };
    let instructions: Option<u64> = sum.tasks.iter().map(|sample| sample.own.instructions).sum();
    Ok(PartCount {
        rate,
        fairness: if fastest > 0.0 {
            slowest / fastest
        } else {
            0.0
        },
        cpu: per_operation(own(|own| own.cpu), own_operations),
        whole_cpu: sum.whole_cpu.map(|cpu| per_operation(cpu, operations)),
        instructions: instructions.map(|count| per_operation(count, own_operations)),
        operations,
        locks: sum.locks.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::{Crew, Duration, Own, Pace, Result, Sample, Sum, Window, Workload};
    use super::{clock, count, measure};
    use crate::run::{Interrupt, TaskFiles, Tasks};
    use crate::target::{MountedPath, Target};
    use crate::workloads::{About, Needs, Plan, Step, Task};

    /// A workload whose rounds are one step; it writes down when each began.
    struct Round;

    static BEGUN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    impl Workload for Round {
        fn about(&self) -> &About {
            &About {
                name: "round",
                source: "a test",
                operation: "nothing",
            }
        }

        fn pace(&self) -> Pace {
            Pace::Rounds
        }

        fn needs(&self, _plan: &Plan) -> Needs {
            Needs::default()
        }

        fn task(&self, _target: &dyn Target, _plan: &Plan, _number: u32) -> Result<Box<dyn Task>> {
            Ok(Box::new(Self))
        }
    }

    impl Task for Round {
        fn step(&mut self, _target: &dyn Target) -> Result<Step> {
            BEGUN.lock().unwrap().push(clock::now());
            Ok(Step::one(true))
        }

        fn finish(self: Box<Self>, _target: &dyn Target) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn rounds_count_once_the_warm_up_is_over() {
        let target: Arc<dyn Target> = Arc::new(MountedPath::open(Path::new("/")).unwrap());
        let tasks = Tasks {
            workload: &Round,
            plan: Plan::default(),
            pinned: false,
            interrupt: Interrupt::default(),
        };
        let mut crew = Crew::of_threads(&[target], &tasks).unwrap();
        let window = Window {
            warm_up: Duration::from_millis(60),
            counted: Duration::ZERO,
            steps: None,
        };
        let start = clock::now();
        let counted = measure(&mut crew, &Round, &window).unwrap();
        crew.finish(TaskFiles::Remove).unwrap();
        assert_eq!(counted.parts[0].operations, 1);
        let begun = BEGUN.lock().unwrap();
        let first_counted = begun.last().expect("there was a round");
        assert!(start + clock::as_nanoseconds(window.warm_up) <= *first_counted);
    }

    fn sample(operations: u64, own: u64) -> Sample {
        Sample {
            operations,
            nanoseconds: 1000,
            own: Own {
                operations: own,
                cpu: 500,
                instructions: None,
            },
        }
    }

    #[test]
    fn what_one_round_does_not_know_the_sum_never_knows() {
        let mut sum = Sum::default();
        sum.add(vec![sample(1, 1)], Some(5));
        sum.add(vec![sample(1, 1)], Some(6));
        assert_eq!(sum.whole_cpu, Some(11));
        sum.add(vec![sample(1, 1)], None);
        sum.add(vec![sample(1, 1)], Some(7));
        assert_eq!(sum.whole_cpu, None);
        assert_eq!((sum.nanoseconds, sum.tasks[0].operations), (4000, 4));
    }

    #[test]
    fn a_window_in_which_nothing_ended_has_no_numbers() {
        let sum = |samples| {
            let mut sum = Sum::default();
            sum.add(samples, None);
            sum
        };
        for samples in [vec![sample(0, 0), sample(0, 0)], vec![sample(1, 0)]] {
            let told = count(&sum(samples), true).unwrap_err().to_string();
            assert!(told.contains("--seconds"), "{told}");
        }
        let counted = count(&sum(vec![sample(0, 0), sample(2, 2)]), true).unwrap();
        assert_eq!((counted.operations, counted.fairness), (2, 0.0));
        assert!((counted.cpu - 500.0).abs() < 1e-9);
    }
}
