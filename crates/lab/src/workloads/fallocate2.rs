//! `fallocate2`: allocation and freeing of blocks, each task in a file of its own that has no name.
//!
//! After the test of that name in will-it-scale: allocates 8 KiB pieces until the file has 1 MiB,
//! truncates it to 0, and repeats. An operation is one allocation; the truncation belongs to the
//! last one of a file, as in will-it-scale.

use anyhow::Result;

use super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};

const PIECE: u64 = 8 << 10;
const FILE: u64 = 1 << 20;

pub struct Fallocate2;

struct State {
    directory: OwnDirectory,
    file: Node,
    size: u64,
}

impl Workload for Fallocate2 {
    fn about(&self) -> &About {
        &About {
            name: "fallocate2",
            source: "will-it-scale; block allocation v1 and v3, 2025",
            operation: "fallocate 8 KiB behind the end of an unlinked file; at 1 MiB truncate it to nothing",
        }
    }

    fn needs(&self, plan: &Plan) -> Needs {
        Needs::of(u64::from(plan.tasks) * FILE, 2 * u64::from(plan.tasks))
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let directory = OwnDirectory::new(target, number)?;
        let file = target.create(&directory, "file")?;
        target.unlink(&directory, "file")?;
        let size = 0;
        Ok(Box::new(State {
            directory,
            file,
            size,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        target.allocate(&self.file, self.size, PIECE)?;
        self.size += PIECE;
        if self.size == FILE {
            target.truncate(&self.file, 0)?;
            self.size = 0;
        }
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        self.directory.remove(target)
    }
}
