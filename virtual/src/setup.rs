//! The parameters of a measurement, its result, and the observer of its window.

use std::ops::Range;
use std::time::Duration;

use pext4_fs::options::Scaling;
use pext4_lab::workloads::{Plan, Workload};
use serde::{Deserialize, Serialize};

use crate::parts::PartRate;

/// The parameters of a measurement.
#[derive(Clone)]
pub struct Setup {
    /// The workload that every task runs.
    pub workload: &'static dyn Workload,
    /// Numbers of tasks, files and values, and the random seed.
    pub plan: Plan,
    /// The setting of the mechanisms.
    pub scaling: Scaling,
    /// Groups of the image.
    pub groups: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Mebibytes of the metadata cache.
    pub cache_mib: u32,
    /// Longest time between commits.
    pub commit_interval: Duration,
    /// Time that the tasks run before the window.
    pub warm_up: Duration,
    /// Shortest window.
    pub window: Duration,
    /// Longest window.
    pub longest: Duration,
    /// One thread plays all tasks in turn, each on a virtual core of its own. This shows the
    /// effects of cores on each other's caches without any waiting.
    pub in_turn: bool,
    /// Tasks are virtual cores. They begin a part at the same moment, while real threads begin it
    /// as they leave the barrier (a sleep would spread them further), and they always have a
    /// processor.
    pub imitated: bool,
}

impl Setup {
    /// The ranges of task numbers, one for each thread.
    pub(crate) fn threads(&self) -> Vec<Range<u32>> {
        if self.in_turn {
            return std::iter::once(0..self.plan.tasks).collect();
        }
        (0..self.plan.tasks)
            .map(|number| number..number + 1)
            .collect()
    }
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// Results by part, in the order of the workload's parts.
    pub parts: Vec<PartRate>,
    /// Operations in the window.
    pub operations: u64,
    /// Length of the window.
    pub elapsed: Duration,
    /// Transactions committed in it.
    pub commits: u64,
    /// Blocks of the log written in it.
    pub logged: u64,
    /// Checkpoints made in it.
    pub checkpoints: u64,
    /// Handles in it that waited for the next transaction because the current one had no credits
    /// left.
    pub credit_waits: u64,
    /// Commits that waited in it for room in the log.
    pub log_waits: u64,
    /// Whether the log wrapped in it.
    pub wrapped: bool,
    /// Operations of the tasks from their start to their end.
    pub all_operations: u64,
    /// CPU time of `all_operations`.
    pub cpu: Duration,
}

impl Counted {
    /// CPU time of an operation of a part, in nanoseconds.
    #[must_use]
    pub fn processor_time(&self, part: usize) -> f64 {
        if let [_] = self.parts[..] {
            self.cpu.as_nanos() as f64 / self.all_operations.max(1) as f64
        } else {
            self.parts[part].processor_time
        }
    }

    /// Whether the window contains everything that it must: three commits, a checkpoint and a wrap.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.commits >= 3 && self.checkpoints >= 1 && self.wrapped
    }
}

/// Callbacks at the ends of the window and at the start of tasks and parts.
pub trait Observer: Send {
    /// The window begins.
    fn open(&mut self) {}
    /// The window is over.
    fn close(&mut self) {}
    /// A task has begun on the calling thread.
    fn task(_number: u32)
    where
        Self: Sized,
    {
    }
    /// The calling thread begins a part of the workload.
    fn part(_number: usize)
    where
        Self: Sized,
    {
    }
}

/// An observer that ignores everything.
pub struct NoObserver;

impl Observer for NoObserver {}
