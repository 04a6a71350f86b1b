//! A crew: the tasks of one measurement, wherever they run, and what it tells them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use pext4_sync::meter::Tallies;
use serde::{Deserialize, Serialize};

use super::Sample;
use super::driver::Length;
use super::interrupt::Interrupt;
use super::processes::Processes;
use super::threads::Threads;
use crate::clock;
use crate::target::Target;
use crate::workloads::{Plan, Workload};

/// What the tasks of a crew are.
#[derive(Clone)]
pub struct Tasks {
    /// What they do.
    pub workload: &'static dyn Workload,
    /// How many, and how much.
    pub plan: Plan,
    /// Whether each stays on one processor, by its number.
    pub pinned: bool,
    /// Ends everything early.
    pub interrupt: Interrupt,
}

/// When a timed measurement begins, counts and ends, by the clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moments {
    /// All tasks begin.
    pub start: u64,
    /// Counting begins.
    pub count: u64,
    /// It is over.
    pub end: u64,
}

/// What all tasks did between two moments.
pub struct Window {
    /// One a task.
    pub samples: Vec<Sample>,
    /// Nanoseconds on processors of all who did the work, where that is known.
    pub whole_cpu: Option<u64>,
    /// What locks cost; nothing where no meter runs.
    pub locks: Tallies,
}

/// The tasks, ready to begin.
pub enum Crew {
    /// Threads in this process.
    Threads(Threads),
    /// Processes.
    Processes(Processes),
}

impl Crew {
    /// Starts threads in this process. All work on one target, or on several in turn.
    ///
    /// # Errors
    /// A task could not be made.
    pub fn of_threads(targets: &[Arc<dyn Target>], tasks: &Tasks) -> Result<Self> {
        let numbers = 0..tasks.plan.tasks;
        Threads::start(targets, tasks, numbers).map(Self::Threads)
    }

    /// Starts processes that work in the directory `home`; `program` with the arguments `lab
    /// worker` is one.
    ///
    /// # Errors
    /// A task could not be made.
    pub fn of_processes(program: &Path, home: &Path, tasks: &Tasks) -> Result<Self> {
        Processes::start(program, home, tasks).map(Self::Processes)
    }

    /// All tasks work from the start to the end.
    pub(super) fn timed(&mut self, moments: Moments) -> Result<Window> {
        match self {
            Self::Threads(crew) => crew.timed(moments),
            Self::Processes(crew) => crew.timed(moments),
        }
    }

    /// All tasks do one part of their work.
    pub(super) fn part(&mut self, start: u64, length: Length) -> Result<Vec<Sample>> {
        match self {
            Self::Threads(crew) => crew.part(start, length),
            Self::Processes(crew) => crew.part(start, length),
        }
    }

    /// Ends the tasks; each removes what is its own, unless that is to be examined.
    ///
    /// # Errors
    /// What a task made could not be removed.
    pub fn finish(self, removing: bool) -> Result<()> {
        match self {
            Self::Threads(crew) => crew.finish(removing),
            Self::Processes(crew) => crew.finish(removing),
        }
    }

    /// Nanoseconds on processors so far of all who do the work: this process, or the whole
    /// machine, with whatever else it does, where processes and servers do it.
    pub(super) fn whole_cpu(&self) -> Option<u64> {
        match self {
            Self::Threads(_) => Some(clock::process_cpu()),
            Self::Processes(_) => clock::machine_cpu(),
        }
    }
}
