//! The loop of one task: runs steps until the time is over or the part is done.
//!
//! Between two steps it reads one flag, which nobody writes during a window.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::instructions::Instructions;
use crate::target::Target;
use crate::workloads::Task;

/// The counts of one task in its window or part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Operations in the common window, or in its part.
    pub operations: u64,
    /// Length of the common window, or the time from the common start to the end of its part.
    pub nanoseconds: u64,
    /// The counts by the task's own clocks.
    pub own: Own,
}

/// The counts between two readings of the task's own clocks. The scheduler may have delayed the
/// task at either end of the common window, so this interval has about the same length, not
/// exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Operations.
    pub operations: u64,
    /// CPU time in nanoseconds.
    pub cpu: u64,
    /// Instructions in user mode, where they are counted.
    pub instructions: Option<u64>,
}

/// The phase of a measurement, the same for all tasks.
#[derive(Debug, Default)]
pub struct Phase(AtomicU32);

const WARMING_UP: u32 = 0;
const COUNTING: u32 = 1;
const OVER: u32 = 2;

impl Phase {
    pub fn warm_up(&self) {
        self.0.store(WARMING_UP, Ordering::Release);
    }

    pub fn count(&self) {
        self.0.store(COUNTING, Ordering::Release);
    }

    pub fn end(&self) {
        self.0.store(OVER, Ordering::Release);
    }

    fn is(&self, phase: u32) -> bool {
        self.0.load(Ordering::Relaxed) == phase
    }
}

/// The length of a task's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// Until a step reports that it was the last.
    ToEnd,
    /// A fixed number of steps.
    Steps(u64),
    /// At most a number of steps; ends earlier if a step reports that it was the last.
    AtMost(u64),
}

/// A task and its target.
pub struct Driver<'a> {
    pub task: &'a mut dyn Task,
    pub target: &'a dyn Target,
    pub phase: &'a Phase,
    /// Its operations so far, for other threads to read.
    pub counter: &'a AtomicU64,
    pub instructions: &'a mut Instructions,
}

/// The readings of the task's clocks at one moment.
struct Mark {
    operations: u64,
    cpu: u64,
    instructions: Option<u64>,
}

impl Driver<'_> {
    /// Runs steps through warm-up and window.
    pub fn timed(&mut self) -> Result<Own> {
        let mut operations = 0;
        self.while_in(WARMING_UP, &mut operations)?;
        let before = self.mark(operations);
        self.while_in(COUNTING, &mut operations)?;
        let after = self.mark(operations);
        Ok(between(&before, &after))
    }

    fn while_in(&mut self, phase: u32, operations: &mut u64) -> Result<()> {
        while self.phase.is(phase) {
            *operations += u64::from(self.task.step(self.target)?.operations);
            self.counter.store(*operations, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs the steps of one part, whose time counts from `start`.
    pub fn part(&mut self, start: u64, length: Length) -> Result<Sample> {
        let before = self.mark(0);
        let (mut operations, mut steps) = (0, 0);
        loop {
            if self.phase.is(OVER) {
                bail!("ended before its part was done");
            }
            let step = self.task.step(self.target)?;
            operations += u64::from(step.operations);
            steps += 1;
            let ends = match length {
                Length::ToEnd => step.ends_part,
                Length::Steps(most) => steps >= most,
                Length::AtMost(most) => steps >= most || step.ends_part,
            };
            if ends {
                break;
            }
        }
        let end = clock::now();
        Ok(Sample {
            operations,
            nanoseconds: end.saturating_sub(start).max(1),
            own: between(&before, &self.mark(operations)),
        })
    }

    fn mark(&mut self, operations: u64) -> Mark {
        Mark {
            operations,
            cpu: clock::thread_cpu(),
            instructions: self.instructions.read(),
        }
    }
}

fn between(before: &Mark, after: &Mark) -> Own {
    let instructions = before.instructions.zip(after.instructions);
    Own {
        operations: after.operations - before.operations,
        cpu: after.cpu.saturating_sub(before.cpu),
        instructions: instructions.map(|(before, after)| after.saturating_sub(before)),
    }
}
