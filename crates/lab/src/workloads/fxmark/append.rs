//! `DWAL`: appends a block to a file of the task's own. At 4 MiB the file is truncated to 0, so
//! that memory suffices for many tasks.

use anyhow::Result;

use super::super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};
use super::{BLOCK, SOURCE};

const FILE: u64 = 4 << 20;

pub struct Append;

struct State {
    directory: OwnDirectory,
    file: Node,
    size: u64,
}

impl Workload for Append {
    fn about(&self) -> &About {
        &About {
            name: "DWAL",
            source: SOURCE,
            operation: "append 4 KiB to a file of the task's own; at 4 MiB truncate it to nothing",
        }
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let tasks = u64::from(plan.tasks);
        Needs::of(2 * tasks * FILE, 2 * tasks)
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let directory = OwnDirectory::new(target, number)?;
        let file = target.create(&directory, "file")?;
        Ok(Box::new(State {
            directory,
            file,
            size: 0,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        if self.size == FILE {
            target.truncate(&self.file, 0)?;
            self.size = 0;
        }
        target.write(&self.file, self.size, &[5; BLOCK])?;
        self.size += BLOCK as u64;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        self.directory.remove(target)
    }
}
