//! What a measurement is told, what it comes to, and who looks on.

use std::ops::Range;
use std::time::Duration;

use pext4_fs::options::Scaling;
use pext4_lab::workloads::{Plan, Workload};
use serde::{Deserialize, Serialize};

use crate::parts::PartRate;

/// What is measured, and how.
#[derive(Clone)]
pub struct Setup {
    /// What the tasks do.
    pub workload: &'static dyn Workload,
    /// How many and how much.
    pub plan: Plan,
    /// The setting of the mechanisms.
    pub scaling: Scaling,
    /// Groups of the image.
    pub groups: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Longest time between commits.
    pub commit_interval: Duration,
    /// What comes before the window.
    pub warm_up: Duration,
    /// Shortest window.
    pub window: Duration,
    /// Longest window.
    pub longest: Duration,
    /// One thread is all tasks in turn, each on a core of its own: what cores do to each other can be seen
    /// without any that is in another's way.
    pub in_turn: bool,
    /// Tasks are virtual cores: they begin a part at one moment, where real threads begin it as they come
    /// (a sleep would part them further), and none is ever without a processor.
    pub imitated: bool,
}

impl Setup {
    /// The threads, each with the numbers of its tasks.
    pub(crate) fn hands(&self) -> Vec<Range<u32>> {
        if self.in_turn {
            return std::iter::once(0..self.plan.tasks).collect();
        }
        (0..self.plan.tasks)
            .map(|number| number..number + 1)
            .collect()
    }
}

/// What a measurement came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// In the order of the workload's parts.
    pub parts: Vec<PartRate>,
    /// Operations in the window.
    pub operations: u64,
    /// Length of the window.
    pub elapsed: Duration,
    /// Transactions committed in it.
    pub commits: u64,
    /// Blocks of the log taken in it.
    pub logged: u64,
    /// Checkpoints made in it.
    pub checkpoints: u64,
    /// Handles that waited in it for the next transaction, as this one had no credits left.
    pub credit_waits: u64,
    /// Commits that waited in it for room in the log.
    pub log_waits: u64,
    /// Whether the log came to its end and began again.
    pub wrapped: bool,
    /// Operations of the tasks from their start to their end.
    pub all_operations: u64,
    /// Time on a processor that those took.
    pub cpu: Duration,
}

impl Counted {
    /// Nanoseconds on a processor of an operation of a part.
    #[must_use]
    pub fn processor_time(&self, part: usize) -> f64 {
        if let [_] = self.parts[..] {
            self.cpu.as_nanos() as f64 / self.all_operations.max(1) as f64
        } else {
            self.parts[part].processor_time
        }
    }

    /// Whether the window held what a window has to.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.commits >= 3 && self.checkpoints >= 1 && self.wrapped
    }
}

/// Looks on at the ends of the window.
pub trait Observer: Send {
    /// The window begins.
    fn open(&mut self) {}
    /// The window is over.
    fn close(&mut self) {}
    /// A task has begun, on the thread that calls.
    fn task(_number: u32)
    where
        Self: Sized,
    {
    }
    /// The thread that calls begins a part of the workload.
    fn part(_number: usize)
    where
        Self: Sized,
    {
    }
}

/// Sees nothing.
pub struct Nobody;

impl Observer for Nobody {}
