//! `DWSL`: overwrites a block of a file of the task's own and makes the file durable.

use anyhow::Result;

use super::super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};
use super::{BLOCK, SOURCE};

pub struct Sync;

struct State {
    directory: OwnDirectory,
    file: Node,
}

impl Workload for Sync {
    fn about(&self) -> &About {
        &About {
            name: "DWSL",
            source: SOURCE,
            operation: "overwrite 4 KiB of a file of the task's own, and fsync",
        }
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let tasks = u64::from(plan.tasks);
        Needs::of(tasks * BLOCK as u64, 2 * tasks)
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let directory = OwnDirectory::new(target, number)?;
        let file = target.create(&directory, "file")?;
        Ok(Box::new(State { directory, file }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        target.write(&self.file, 0, &[5; BLOCK])?;
        target.sync(&self.file)?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        self.directory.remove(target)
    }
}
