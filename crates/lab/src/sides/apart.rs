//! The library with a volume for every task: a control that does the same work and shares nothing.
//!
//! The costs that its tasks cause each other are the machine's: caches, memory, clock rates.
//! Further costs of tasks in one volume are the file system's.

use std::fmt;

use anyhow::{Context, Result};

use super::{LibrarySide, Side, Verdict};
use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};

/// Several volumes in memory, which the tasks use in turn.
pub struct ApartSide {
    label: String,
    volumes: Vec<LibrarySide>,
    /// Number of volumes that the tasks of the last measurement used.
    used: usize,
}

impl fmt::Debug for ApartSide {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ApartSide")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl ApartSide {
    /// Takes volumes with the same parameters, at least as many as there will be tasks.
    #[must_use]
    pub fn new(label: String, volumes: Vec<LibrarySide>) -> Self {
        Self {
            label,
            volumes,
            used: 0,
        }
    }
}

impl Side for ApartSide {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn crew(&mut self, tasks: &Tasks) -> Result<Crew> {
        self.used = self.volumes.len().min(tasks.plan.tasks as usize);
        let used = self.volumes[..self.used].iter_mut();
        let targets: Result<Vec<_>> = used.map(|volume| volume.prepared(tasks)).collect();
        Crew::of_threads(&targets?, tasks)
    }

    fn clean_up(&mut self, tasks: &Tasks) -> Result<()> {
        let mut used = self.volumes[..self.used].iter_mut();
        used.try_for_each(|volume| volume.clean_up(tasks))
    }

    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>> {
        // The layout of files that share nothing is not needed.
        let mut used = self.volumes[..self.used].iter_mut();
        used.try_for_each(|volume| volume.examine(tasks).map(drop))?;
        Ok(None)
    }

    fn close(&mut self) -> Result<Verdict> {
        let verdicts: Result<Vec<_>> = self.volumes.iter_mut().map(Side::close).collect();
        // The volumes are alike: if one could not be checked, none could.
        let first = verdicts?.into_iter().next();
        first.context("there is a volume for each task")
    }
}
