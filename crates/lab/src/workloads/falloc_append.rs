//! `falloc-append`: many files grow in turns, 4 KiB at a time; afterwards their layout is examined.
//!
//! After the fio job of block allocation v3: every task appends by fallocate to a file of its own
//! in one directory until the file has its size. The number of extents matters more here than the
//! rate.

use anyhow::{Result, ensure};

use super::{About, Needs, Node, Pace, Plan, Step, Target, Task, Workload};

const PIECE: u64 = 4 << 10;

pub struct FallocAppend;

struct State {
    name: String,
    file: Node,
    at: u64,
    size: u64,
}

impl Workload for FallocAppend {
    fn about(&self) -> &About {
        &About {
            name: "falloc-append",
            source: "fio, falloc engine; block allocation v3, 2025",
            operation: "fallocate 4 KiB behind the end of the task's file, in one directory for all",
        }
    }

    fn pace(&self) -> Pace {
        Pace::Once
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["file size"]
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let tasks = u64::from(plan.tasks);
        Needs::of(tasks.saturating_mul(plan.file_size), tasks)
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        ensure!(
            plan.file_size >= PIECE,
            "the file size is less than a piece of 4 KiB"
        );
        let name = format!("job{number}");
        let file = target.create(target.root(), &name)?;
        Ok(Box::new(State {
            name,
            file,
            at: 0,
            size: plan.file_size / PIECE * PIECE,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        if self.at == self.size {
            target.truncate(&self.file, 0)?;
            self.at = 0;
        }
        target.allocate(&self.file, self.at, PIECE)?;
        self.at += PIECE;
        Ok(Step::one(self.at == self.size))
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        target.unlink(target.root(), &self.name)
    }
}
