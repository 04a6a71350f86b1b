//! The parameters of a measurement, also as one process sends them to another, its result, and the
//! observer of its window.

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use pext4_fs::options::Scaling;
use pext4_lab::workloads::{Plan, Workload, find};
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
    /// Who plays the tasks.
    pub hands: Hands,
}

/// Who plays the tasks of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hands {
    /// A real thread for each. They begin a part as they leave the barrier: a sleep would spread
    /// them further.
    RealThreads,
    /// One thread plays all tasks in turn, each on a virtual core of its own. This shows the
    /// effects of cores on each other's caches without any waiting.
    OneThreadInTurn,
    /// A virtual core for each. They begin a part at the same moment, and always have a processor.
    VirtualCores,
}

/// A measurement on real threads in a form that can be sent to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The name of the workload.
    pub workload: String,
    /// Numbers of tasks, files and values, and the random seed.
    pub plan: Plan,
    /// The setting of the mechanisms, as text.
    pub scaling: String,
    /// Groups of the image.
    pub groups: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Mebibytes of the metadata cache.
    pub cache_mib: u32,
    /// Longest time between commits, in milliseconds.
    pub commit_ms: u32,
    /// The window, in milliseconds.
    pub window_ms: u32,
}

impl Setup {
    /// The measurement that is requested.
    ///
    /// # Errors
    ///
    /// There is no such workload, or no such setting.
    pub fn of(request: &Request) -> Result<Self> {
        let window = Duration::from_millis(request.window_ms.into());
        Ok(Self {
            workload: find(&request.workload)?,
            plan: request.plan.clone(),
            scaling: Scaling::parse(&request.scaling)?,
            groups: request.groups,
            journal_blocks: request.journal_blocks,
            cache_mib: request.cache_mib,
            commit_interval: Duration::from_millis(request.commit_ms.into()),
            warm_up: window / 4,
            window,
            longest: window,
            hands: Hands::RealThreads,
        })
    }

    /// The ranges of task numbers, one for each thread.
    pub(crate) fn threads(&self) -> Vec<Range<u32>> {
        match self.hands {
            Hands::OneThreadInTurn => std::iter::once(0..self.plan.tasks).collect(),
            Hands::RealThreads | Hands::VirtualCores => (0..self.plan.tasks)
                .map(|number| number..number + 1)
                .collect(),
        }
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
    /// The calling thread begins a part of the workload; the number after the last one is that of
    /// the time between the parts.
    fn part(_number: usize)
    where
        Self: Sized,
    {
    }
}

/// An observer that ignores everything.
pub struct NoObserver;

impl Observer for NoObserver {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pext4_lab::workloads::Plan;

    use super::{Hands, Request, Setup};

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let request = Request {
            workload: "mdtest".to_owned(),
            plan: Plan {
                tasks: 3,
                seed: 7,
                fill: Some(80),
                ..Plan::default()
            },
            scaling: "full,try-lock=wait".to_owned(),
            groups: 16,
            journal_blocks: 1024,
            cache_mib: 8,
            commit_ms: 5,
            window_ms: 200,
        };
        let sent = serde_json::to_string(&request).unwrap();
        let arrived: Request = serde_json::from_str(&sent).unwrap();
        assert_eq!(arrived, request);
        let setup = Setup::of(&arrived).unwrap();
        assert_eq!(setup.workload.name(), request.workload);
        assert_eq!(setup.scaling.to_string(), request.scaling);
        assert_eq!((&setup.plan, setup.groups), (&request.plan, 16));
        let times = [setup.commit_interval, setup.warm_up, setup.longest];
        assert_eq!(times, [5, 50, 200].map(Duration::from_millis));
        assert_eq!(
            (setup.hands, setup.threads().len()),
            (Hands::RealThreads, 3)
        );
        let unknown = Request {
            workload: "nothing".to_owned(),
            ..request
        };
        assert!(Setup::of(&unknown).is_err());
    }
}
