//! Workloads: what a task does, step by step. One small file each; `ALL` lists them.
//!
//! The life of a workload on a target: [`prepare`](Workload::prepare) once; for every task
//! [`task`](Workload::task), in the thread or process that it will run in; then [`Task::step`]
//! over and over, by all tasks at once; and at the end [`Task::finish`] for each and
//! [`clean`](Workload::clean) once, after which the target is as it was. A step is short, so that
//! whoever drives it can look at the clock between two, and for one seed a task makes the same
//! calls in the same order wherever it runs. Steps touch no state that tasks share, except in the
//! file system.

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

/// Nothing, for measuring the lab itself.
pub static EMPTY: &dyn Workload = &empty::Empty;

/// What shares nothing, to stand beside others.
pub static CONTROL: &dyn Workload = &control::Control;

/// The workload of a name.
///
/// # Errors
/// There is none; the text lists what there is.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    let found = ALL
        .iter()
        .find(|workload| workload.name().eq_ignore_ascii_case(name));
    found.copied().with_context(|| {
        let names: Vec<&str> = ALL.iter().map(|workload| workload.name()).collect();
        format!(
            "there is no workload `{name}`; there are: {}",
            names.join(", ")
        )
    })
}

/// How many and how much; a workload takes what concerns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Tasks that run at once.
    pub tasks: u32,
    /// Draws of all tasks repeat for it.
    pub seed: u64,
    /// Files of a task.
    pub files: u32,
    /// Bytes of a file that grows.
    pub file_size: u64,
    /// Distinct values of attributes.
    pub values: u32,
    /// Users, where tasks play some.
    pub users: u32,
    /// What those do.
    pub mix: Mix,
    /// Percent of the room that is taken before, and what is left in pieces.
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

/// How a workload is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Steps until the time is over.
    Timed,
    /// Rounds of parts until the time is over; all tasks start each part together.
    Rounds,
    /// One part, once, on a file system made for it, which is examined afterwards.
    Once,
}

/// What a workload needs of an image that is made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Needs {
    /// Bytes of content, all tasks together.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// Inodes of 128 bytes, which have no room for attributes.
    pub small_inodes: bool,
}

impl Needs {
    /// So many bytes and inodes, which are of the usual size.
    const fn of(bytes: u64, inodes: u64) -> Self {
        Self {
            bytes,
            inodes,
            small_inodes: false,
        }
    }

    const fn with_small_inodes(self) -> Self {
        Self {
            small_inodes: true,
            ..self
        }
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Operations, as the workload counts them.
    pub operations: u32,
    /// Whether it was the last step of this part, see [`Workload::parts`]; the next step begins
    /// the next part, or the first one again.
    pub ends_part: bool,
}

impl Step {
    /// One operation, in the middle of things.
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

/// What a workload is, for people.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// By what it is called.
    pub name: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What one operation is.
    pub operation: &'static str,
}

/// Something worth measuring.
pub trait Workload: Sync {
    /// What it is.
    fn about(&self) -> &About;

    /// By what it is called.
    fn name(&self) -> &'static str {
        self.about().name
    }

    /// Where it comes from.
    fn source(&self) -> &'static str {
        self.about().source
    }

    /// What one operation is.
    fn operation(&self) -> &'static str {
        self.about().operation
    }

    /// Parts whose rates are told apart, in the order in which a task goes through them.
    fn parts(&self) -> &'static [&'static str] {
        &["operations"]
    }

    /// How it is driven.
    fn pace(&self) -> Pace {
        Pace::Timed
    }

    /// What it needs of an image.
    fn needs(&self, plan: &Plan) -> Needs;

    /// Makes what all tasks share.
    ///
    /// # Errors
    /// The target's.
    fn prepare(&self, target: &dyn Target, plan: &Plan) -> Result<()> {
        let _ = (target, plan);
        Ok(())
    }

    /// Makes what task `number` (from 0) needs for itself.
    ///
    /// # Errors
    /// The target's.
    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>>;

    /// Removes what [`prepare`](Self::prepare) made, and what tasks that failed have left.
    ///
    /// # Errors
    /// The target's.
    fn clean(&self, target: &dyn Target) -> Result<()> {
        empty(target, target.root())
    }
}

/// One task's state.
pub trait Task: Send {
    /// Does a little.
    ///
    /// # Errors
    /// The target's; the task takes no further step then.
    fn step(&mut self, target: &dyn Target) -> Result<Step>;

    /// Removes what is the task's own.
    ///
    /// # Errors
    /// The target's.
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

/// Refuses a plan with nothing in it.
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
