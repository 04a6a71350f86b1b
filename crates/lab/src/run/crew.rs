//! A crew: the tasks of one measurement, as threads or processes, and the orders that they get.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use pext4_sync::meter::Tallies;
use serde::{Deserialize, Serialize};

use super::Sample;
use super::disturbance::{Disturbance, Reading};
use super::driver::Length;
use super::interrupt::Interrupt;
use super::processes::Processes;
use super::threads::Threads;
use crate::clock;
use crate::target::Target;
use crate::workloads::{Plan, Workload};

/// The parameters of the tasks of a crew.
#[derive(Clone)]
pub struct Tasks {
    /// The workload that every task runs.
    pub workload: &'static dyn Workload,
    /// Numbers of tasks, files and so on.
    pub plan: Plan,
    /// Whether each task is pinned to one processor, by its number.
    pub pinned: bool,
    /// Stops the run early.
    pub interrupt: Interrupt,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tasks")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// Start, start of counting, and end of a timed measurement: nanoseconds of [`crate::clock::now`],
/// which all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moments {
    /// When all tasks begin.
    pub start: u64,
    /// When counting begins.
    pub count: u64,
    /// When the window ends.
    pub end: u64,
}

/// What becomes of the files of tasks when these end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskFiles {
    /// They stay, to be examined.
    Keep,
    /// Each task removes its own.
    Remove,
}

/// The counts of all tasks between two moments.
pub struct WindowCounts {
    /// One sample for each task.
    pub samples: Vec<Sample>,
    /// CPU time in nanoseconds of everything that did the work, where it is known.
    pub whole_cpu: Option<u64>,
    /// The cost of locks; empty without a meter.
    pub locks: Tallies,
    /// What others had meanwhile.
    pub disturbance: Disturbance,
}

impl fmt::Debug for WindowCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WindowCounts")
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

/// The tasks, ready to begin.
pub enum Crew {
    /// Threads in this process.
    Threads(Threads),
    /// Processes.
    Processes(Processes),
}

impl fmt::Debug for Crew {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Crew").finish_non_exhaustive()
    }
}

impl Crew {
    /// Starts threads in this process. All use one target, or several in turn.
    ///
    /// # Errors
    ///
    /// If a task cannot be created.
    pub fn of_threads(targets: &[Arc<dyn Target>], tasks: &Tasks) -> Result<Self> {
        let numbers = 0..tasks.plan.tasks;
        Threads::start(targets, tasks, numbers).map(Self::Threads)
    }

    /// Starts processes that work in the directory `home`; `program` with the arguments `lab
    /// worker` is such a process.
    ///
    /// # Errors
    ///
    /// If a task cannot be created.
    pub fn of_processes(program: &Path, home: &Path, tasks: &Tasks) -> Result<Self> {
        Processes::start(program, home, tasks).map(Self::Processes)
    }

    /// Runs all tasks from the start to the end.
    pub(super) fn timed(&mut self, moments: Moments) -> Result<WindowCounts> {
        match self {
            Self::Threads(crew) => crew.timed(moments),
            Self::Processes(crew) => crew.timed(moments),
        }
    }

    /// Runs one part of the work of all tasks.
    pub(super) fn part(&mut self, start: u64, length: Length) -> Result<Vec<Sample>> {
        match self {
            Self::Threads(crew) => crew.part(start, length),
            Self::Processes(crew) => crew.part(start, length),
        }
    }

    /// Ends the tasks.
    ///
    /// # Errors
    ///
    /// If the files of a task cannot be removed.
    pub fn finish(self, files: TaskFiles) -> Result<()> {
        match self {
            Self::Threads(crew) => crew.finish(files),
            Self::Processes(crew) => crew.finish(files),
        }
    }

    /// The times of the machine and of everything that does the work, if only this process does.
    pub(super) fn reading(&self) -> Reading {
        Reading::now(match self {
            Self::Threads(_) => Some(clock::process_cpu()),
            Self::Processes(_) => None,
        })
    }

    /// CPU time so far, in nanoseconds, of everything that does the work: this process, or, for
    /// processes and servers, the whole machine with all other load.
    pub(super) fn whole_cpu(&self) -> Option<u64> {
        match self {
            Self::Threads(_) => Some(clock::process_cpu()),
            Self::Processes(_) => clock::machine_cpu(),
        }
    }
}
