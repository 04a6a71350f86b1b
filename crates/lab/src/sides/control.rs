//! The control: tasks that enter no file system, run as one more side.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::{Side, Verdict};
use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};
use crate::target::{MountedPath, Target};
use crate::workloads::{CONTROL, Workload};

/// Runs a workload that enters no file system, whatever the other sides run.
pub struct ControlSide {
    workload: &'static dyn Workload,
    /// The target, which the workload does not use.
    target: Arc<dyn Target>,
}

impl fmt::Debug for ControlSide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ControlSide")
            .finish_non_exhaustive()
    }
}

impl ControlSide {
    /// A side with the control workload.
    ///
    /// # Errors
    ///
    /// If the root directory cannot be opened.
    pub fn new() -> Result<Self> {
        Self::of(CONTROL)
    }

    /// A side with another workload that enters no file system.
    ///
    /// # Errors
    ///
    /// If the root directory cannot be opened.
    pub fn of(workload: &'static dyn Workload) -> Result<Self> {
        let target = Arc::new(MountedPath::open(Path::new("/"))?);
        Ok(Self { workload, target })
    }
}

impl Side for ControlSide {
    fn label(&self) -> String {
        self.workload.name().to_owned()
    }

    fn workload(&self) -> Option<&'static dyn Workload> {
        Some(self.workload)
    }

    fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
        let tasks = Tasks {
            workload: self.workload,
            ..tasks.clone()
        };
        Crew::of_threads(&[Arc::clone(&self.target)], &tasks)
    }

    fn clean_up(&mut self, _tasks: &Tasks) -> Result<()> {
        Ok(())
    }

    fn examine(&mut self, _tasks: &Tasks) -> Result<Option<Fragmentation>> {
        Ok(None)
    }

    fn close(&mut self) -> Result<Verdict> {
        Ok(Verdict::Unchecked("no file system".to_owned()))
    }
}
