//! What tasks did in the parts of a workload, and the resulting rates.
//!
//! There are two rates. The rate by the clock, from the start of the first task to the end of the
//! last one, is a point of a curve. The rate by the tasks' own time leaves out the time in which a
//! task was ready but had no processor. Virtual cores always have one, so real threads are compared
//! by this rate: the journal's threads need a processor too and, on a machine with as many
//! processors as tasks, take it from a task.

use std::fs;
use std::time::Duration;

use rustix::thread::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The result of one part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartRate {
    /// Its name.
    pub name: String,
    /// Operations a second by the clock, all tasks together.
    pub rate: f64,
    /// Operations a second by each task's own time, all tasks together.
    pub own_rate: f64,
    /// CPU time of an operation in nanoseconds, if the parts run in rounds.
    pub processor_time: f64,
    /// The slowest task's rate divided by the fastest's, 0 to 1.
    pub fairness: f64,
}

/// What one task did in one part.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub operations: u64,
    pub start: Duration,
    pub end: Duration,
    /// Time from `start` to `end` in which it was ready but had no processor.
    pub queued: Duration,
    /// CPU time from `start` to `end`, if the parts run in rounds.
    pub cpu: Duration,
}

impl Done {
    fn by_the_clock(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// What a task did in one part, over the rounds.
#[derive(Clone, Copy, Default)]
struct Own {
    operations: u64,
    by_the_clock: Duration,
    queued: Duration,
    cpu: Duration,
}

impl Own {
    fn add(&mut self, done: &Done) {
        self.operations += done.operations;
        self.by_the_clock += done.by_the_clock();
        self.queued += done.queued;
        self.cpu += done.cpu;
    }

    fn rate(&self) -> f64 {
        rate(self.operations, self.by_the_clock)
    }

    fn own_rate(&self) -> f64 {
        rate(
            self.operations,
            self.by_the_clock.saturating_sub(self.queued),
        )
    }
}

/// What all tasks did in one part, over the rounds.
#[derive(Default)]
pub(crate) struct Sum {
    time: Duration,
    tasks: Vec<Own>,
}

impl Sum {
    pub(crate) fn add(&mut self, round: &[Done]) {
        let start = round.iter().map(|done| done.start).min();
        let end = round.iter().map(|done| done.end).max();
        self.time += end
            .unwrap_or_default()
            .saturating_sub(start.unwrap_or_default());
        self.tasks.resize(round.len(), Own::default());
        for (own, done) in self.tasks.iter_mut().zip(round) {
            own.add(done);
        }
    }

    pub(crate) fn operations(&self) -> u64 {
        self.tasks.iter().map(|own| own.operations).sum()
    }

    pub(crate) fn rate(&self, name: &str) -> PartRate {
        let rates = self.tasks.iter().map(Own::rate);
        let cpu: Duration = self.tasks.iter().map(|own| own.cpu).sum();
        let most = rates.clone().fold(0.0, f64::max);
        let least = rates.fold(f64::INFINITY, f64::min);
        PartRate {
            name: name.to_owned(),
            rate: rate(self.operations(), self.time),
            own_rate: self.tasks.iter().map(Own::own_rate).sum(),
            processor_time: cpu.as_nanos() as f64 / self.operations().max(1) as f64,
            fairness: if most > 0.0 { least / most } else { 0.0 },
        }
    }
}

fn rate(operations: u64, time: Duration) -> f64 {
    operations as f64 / time.as_secs_f64().max(1e-9)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Total time in which a thread of this program was ready but had no processor; zero if the kernel
/// does not report it. It is the second number of `schedstat`, in nanoseconds (proc(5) has the
/// file, the kernel's sched-stats.rst the numbers).
pub(crate) fn queued(thread: Option<Pid>) -> Duration {
    let told = thread.and_then(|thread| {
        let file = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
        let text = fs::read_to_string(file).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    });
    Duration::from_nanos(told.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Done, Sum};

    #[test]
    fn own_time_is_without_what_a_task_stood_ready() {
        let done = |operations, start, end, queued| Done {
            operations,
            start: Duration::from_millis(start),
            end: Duration::from_millis(end),
            queued: Duration::from_millis(queued),
            cpu: Duration::from_millis(5),
        };
        let mut sum = Sum::default();
        sum.add(&[done(100, 0, 10, 0), done(100, 5, 25, 10)]);
        sum.add(&[done(100, 30, 40, 0), done(100, 30, 40, 0)]);
        let part = sum.rate("operations");
        assert_eq!(sum.operations(), 400);
        // 25 and 10 ms by the clock; each task did 200, in 20 ms of its own.
        assert!((part.rate - 400.0 / 0.035).abs() < 1.0);
        assert!((part.own_rate - 2.0 * 200.0 / 0.020).abs() < 1.0);
        assert!((part.processor_time - 50_000.0).abs() < 1.0);
        assert!((part.fairness - 20.0 / 30.0).abs() < 0.001);
    }
}
