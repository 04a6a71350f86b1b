//! The library with a volume for every task: a control that does the same work and shares nothing.
//!
//! What its tasks cost each other is the machine's: caches, memory, clock rates. What tasks in one
//! volume cost each other beyond that is the file system's.

use anyhow::{Context, Result};

use super::{LibrarySide, Side, Verdict};
use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};

/// So many volumes in memory; tasks go round among them.
pub struct ApartSide {
    label: String,
    volumes: Vec<LibrarySide>,
    /// How many the tasks of the last measurement used.
    used: usize,
}

impl ApartSide {
    /// Of volumes that are made alike, at least as many as there will be tasks.
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

    fn settle(&mut self, tasks: &Tasks) -> Result<()> {
        let mut used = self.volumes[..self.used].iter_mut();
        used.try_for_each(|volume| volume.settle(tasks))
    }

    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>> {
        // How files lie that share nothing is nobody's question.
        let mut used = self.volumes[..self.used].iter_mut();
        used.try_for_each(|volume| volume.examine(tasks).map(drop))?;
        Ok(None)
    }

    fn close(&mut self) -> Result<Verdict> {
        let verdicts: Result<Vec<_>> = self.volumes.iter_mut().map(Side::close).collect();
        // They are alike: what could not be looked at in one could not in any.
        let first = verdicts?.into_iter().next();
        first.context("there is a volume for each task")
    }
}
