//! `xattr-share`: files whose attributes have few distinct values share attribute blocks, and
//! setting an attribute first searches for a block with the same content.
//!
//! After xattr-bench: each task has ten files and sets the attribute of a random one to one of
//! several values. Inodes of 128 bytes, the lab's default for this workload, have no room for the
//! attribute, so it always needs a block; it fits into larger inodes, and the results say so.

use anyhow::Result;

use super::{About, Needs, Node, Plan, Step, Target, Task, Workload};
use super::{OwnDirectory, at_least_one};
use crate::random::Random;

const FILES: u32 = 10;
const VALUE: usize = 64;

pub struct XattrShare;

struct State {
    directory: OwnDirectory,
    files: Vec<Node>,
    values: u32,
    random: Random,
}

impl Workload for XattrShare {
    fn about(&self) -> &About {
        &About {
            name: "xattr-share",
            source: "aim7 with external attributes, mbcache, 2014; xattr-bench, 2016",
            operation: "set the attribute of one of the task's ten files to one of --values values",
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["values"]
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let inodes = u64::from(plan.tasks) * u64::from(FILES + 1);
        Needs::of(inodes * 3 * 4096, inodes).with_small_inodes()
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        at_least_one("values", plan.values)?;
        let directory = OwnDirectory::new(target, number)?;
        let files: Result<Vec<Node>> = (0..FILES)
            .map(|file| target.create(&directory, &format!("file{file}")))
            .collect();
        let random = Random::new(plan.seed, number);
        Ok(Box::new(State {
            directory,
            files: files?,
            values: plan.values,
            random,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        let file = &self.files[self.random.below(FILES) as usize];
        let mut value = [b'v'; VALUE];
        value[..4].copy_from_slice(&self.random.below(self.values).to_le_bytes());
        target.set_attribute(file, "user.share", &value)?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        self.files.into_iter().for_each(|file| target.close(file));
        self.directory.remove(target)
    }
}
