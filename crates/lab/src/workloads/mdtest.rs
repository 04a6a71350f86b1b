//! `mdtest`: creates many files, and then removes all of them.
//!
//! After mdtest `-F -C -r`: with `-u` each task has a directory of its own; in the shared variant
//! all tasks use one. The uncounted first round loads the inodes. FxMark's `MWCL`, `MWCM`, `MWUL`
//! and `MWUM` count only creation or removal; the other part only makes room.

use anyhow::Result;

use super::fxmark::Sharing;
use super::{About, Needs, Pace, Plan, Step, Target, Task, Workload};
use super::{OwnDirectory, at_least_one};

pub struct Mdtest {
    pub about: About,
    pub parts: &'static [&'static str],
    pub sharing: Sharing,
}

struct State {
    /// The name of the next file; its number follows the first bytes, `start` of them.
    name: String,
    start: usize,
    /// The task's directory; in the shared variant, `None`: the files are in the target's root.
    own: Option<OwnDirectory>,
    files: u32,
    done: u32,
    removes: bool,
}

impl Workload for Mdtest {
    fn about(&self) -> &About {
        &self.about
    }

    fn parts(&self) -> &'static [&'static str] {
        self.parts
    }

    fn pace(&self) -> Pace {
        Pace::Rounds
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["files"]
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let inodes = u64::from(plan.tasks) * (u64::from(plan.files) + 1);
        Needs::of(inodes * 64, inodes)
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        at_least_one("files", plan.files)?;
        let own = (self.sharing == Sharing::Low).then(|| OwnDirectory::new(target, number));
        let own = own.transpose()?;
        let name = format!("file.mdtest.{number}.");
        Ok(Box::new(State {
            start: name.len(),
            name,
            own,
            files: plan.files,
            done: 0,
            removes: false,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        let directory = self.own.as_deref().unwrap_or(target.root());
        // Not by `format!`, which takes a tenth of the time of a creation.
        self.name.truncate(self.start);
        self.name.push_str(itoa::Buffer::new().format(self.done));
        if self.removes {
            target.unlink(directory, &self.name)?;
        } else {
            target.close(target.create(directory, &self.name)?);
        }
        self.done += 1;
        let last = self.done == self.files;
        if last {
            self.done = 0;
            self.removes = !self.removes;
        }
        Ok(Step::one(last))
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        self.own.map_or(Ok(()), |own| own.remove(target))
    }
}
