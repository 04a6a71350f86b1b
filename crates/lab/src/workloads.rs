//! Workloads: the work of a task, step by step. Each is one small file; `ALL` lists them.
//!
//! The life cycle of a workload on a target: [`prepare`](Workload::prepare) once;
//! [`task`](Workload::task) for every task, in the thread or process that runs it; then
//! [`Task::step`] repeatedly, by all tasks at once; at the end [`Task::finish`] for each task and
//! [`clean`](Workload::clean) once, after which the target is as before. A step is short, so that
//! the driver can check the clock between two steps. For one seed a task makes the same calls in
//! the same order wherever it runs. Tasks share no state except in the file system.

mod aim7_mix;
mod control;
mod empty;
mod falloc_append;
mod fallocate2;
mod fxmark;
mod list;
mod mdtest;
mod mix;
mod stress_orphan;
mod user;
mod xattr_share;

use std::ops::Deref;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::target::{Node, Target, empty};

pub use list::ALL;
pub use mix::Mix;

/// The workload that does nothing, for measuring the lab's own cost.
pub static EMPTY: &dyn Workload = &empty::Empty;

/// The workload that shares nothing, for comparison.
pub static CONTROL: &dyn Workload = &control::Control;

/// Finds a workload by its name.
///
/// # Errors
///
/// If there is none; the message lists the names.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    find_among(ALL, name)
}

/// Finds a workload among these by its name.
///
/// # Errors
///
/// If there is none; the message lists their names.
pub fn find_among(all: &[&'static dyn Workload], name: &str) -> Result<&'static dyn Workload> {
    let found = all
        .iter()
        .find(|workload| workload.name().eq_ignore_ascii_case(name));
    found.copied().with_context(|| {
        let names: Vec<&str> = all.iter().map(|workload| workload.name()).collect();
        format!(
            "there is no workload `{name}`; there are: {}",
            names.join(", ")
        )
    })
}

/// The parameters of a run; each workload uses those that concern it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Tasks that run at once.
    pub tasks: u32,
    /// Seed of the random numbers of all tasks.
    pub seed: u64,
    /// Files of each task.
    pub files: u32,
    /// Bytes of a file that grows.
    pub file_size: u64,
    /// Distinct values of attributes.
    pub values: u32,
    /// Number of users, if the tasks play users.
    pub users: u32,
    /// The load of the users.
    pub mix: Mix,
    /// Percent of the space that is filled before the run; the rest is left in pieces.
    pub fill: Option<u32>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            tasks: 1,
            seed: 1,
            files: 1000,
            file_size: 64 << 20,
            values: 100,
            users: 200,
            mix: Mix::Alltests,
            fill: None,
        }
    }
}

/// How the driver runs a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Steps until the time is over.
    Timed,
    /// Rounds of parts until the time is over; all tasks start each part together.
    Rounds,
    /// One part, once, on a file system made for it, which is examined afterwards.
    Once,
}

/// The requirements of a workload for a new image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Needs {
    /// Bytes of content, all tasks together.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// Whether inodes must have 128 bytes, without room for attributes.
    pub small_inodes: bool,
    /// Whether the tasks give their files new blocks for the same content again and again, so that
    /// they write all over the volume.
    pub moves_content: bool,
}

impl Needs {
    /// The requirement of `bytes` and `inodes`, with inodes of the default size.
    const fn of(bytes: u64, inodes: u64) -> Self {
        Self {
            bytes,
            inodes,
            small_inodes: false,
            moves_content: false,
        }
    }

    const fn with_moving_content(self) -> Self {
        Self {
            moves_content: true,
            ..self
        }
    }

    const fn with_small_inodes(self) -> Self {
        Self {
            small_inodes: true,
            ..self
        }
    }
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Operations, as the workload counts them.
    pub operations: u32,
    /// Whether it was the last step of its part, see [`Workload::parts`]; the next step begins the
    /// next part, or the first one again.
    pub ends_part: bool,
}

impl Step {
    /// One operation, not the last of its part.
    pub const ONE: Self = Self {
        operations: 1,
        ends_part: false,
    };

    /// One operation, the last of its part if `last`.
    #[must_use]
    pub fn one(last: bool) -> Self {
        Self {
            ends_part: last,
            ..Self::ONE
        }
    }
}

/// A description of a workload for the user.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// Its source.
    pub source: &'static str,
    /// What counts as one operation.
    pub operation: &'static str,
}

/// A workload.
pub trait Workload: Sync {
    /// Its description.
    fn about(&self) -> &About;

    /// Its name.
    fn name(&self) -> &'static str {
        self.about().name
    }

    /// Its source.
    fn source(&self) -> &'static str {
        self.about().source
    }

    /// Its source as part of a sentence, `after FxMark`; a control has another origin.
    fn origin(&self) -> String {
        format!("after {}", self.source())
    }

    /// What counts as one operation.
    fn operation(&self) -> &'static str {
        self.about().operation
    }

    /// Parts with rates of their own, in the order in which a task runs them.
    fn parts(&self) -> &'static [&'static str] {
        &["operations"]
    }

    /// The settings, by their names in results, that shape its work.
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// How the driver runs it.
    fn pace(&self) -> Pace {
        Pace::Timed
    }

    /// Its requirements for a new image.
    fn needs(&self, plan: &Plan) -> Needs;

    /// Creates what all tasks share.
    ///
    /// # Errors
    ///
    /// Errors of the target.
    fn prepare(&self, target: &dyn Target, plan: &Plan) -> Result<()> {
        let _ = (target, plan);
        Ok(())
    }

    /// Creates the files and the state of task `number` (from 0).
    ///
    /// # Errors
    ///
    /// Errors of the target.
    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>>;

    /// Removes what [`prepare`](Self::prepare) created, and the remains of failed tasks.
    ///
    /// # Errors
    ///
    /// Errors of the target.
    fn clean(&self, target: &dyn Target) -> Result<()> {
        empty(target, target.root())
    }
}

/// The state of one task.
pub trait Task: Send {
    /// Runs one step.
    ///
    /// # Errors
    ///
    /// Errors of the target; the task runs no further step then.
    fn step(&mut self, target: &dyn Target) -> Result<Step>;

    /// Removes the task's own files.
    ///
    /// # Errors
    ///
    /// Errors of the target.
    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()>;
}

/// A directory of a task's own.
struct OwnDirectory {
    name: String,
    node: Node,
}

impl Deref for OwnDirectory {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl OwnDirectory {
    fn new(target: &dyn Target, number: u32) -> Result<Self> {
        let name = format!("task{number}");
        let node = target.make_directory(target.root(), &name)?;
        Ok(Self { name, node })
    }

    /// Empties, closes and removes it.
    fn remove(self, target: &dyn Target) -> Result<()> {
        let emptied = empty(target, &self.node);
        target.close(self.node);
        emptied?;
        target.remove_directory(target.root(), &self.name)
    }
}

/// Refuses a plan in which a count is zero.
fn at_least_one(what: &str, count: impl Into<u64>) -> Result<()> {
    if count.into() == 0 {
        bail!("{what}: at least 1 is needed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ALL, find};

    #[test]
    fn names_are_unique_and_found() {
        for workload in ALL {
            let name = workload.name();
            let same = ALL.iter().filter(|other| other.name() == name).count();
            assert_eq!(same, 1, "{name}");
            assert_eq!(find(name).unwrap().name(), name);
            assert!(!workload.parts().is_empty());
        }
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let told = find("falocate").err().expect("no such name").to_string();
        assert!(
            told.contains("fallocate2") && told.contains("mdtest"),
            "{told}"
        );
    }
}
