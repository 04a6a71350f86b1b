//! `stress-orphan`: every truncation adds a file to the list of orphans and removes it again.
//!
//! After stress-orphan of the orphan file's patches: a file of 4 KiB is truncated byte by byte and
//! written again when it is empty. The file of the second variant is unlinked while open, so it is
//! an orphan all the time.

use anyhow::Result;

use super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};

const SIZE: u16 = 4096;

pub struct StressOrphan {
    pub about: About,
    pub unlinked: bool,
}

struct State {
    directory: OwnDirectory,
    file: Node,
    size: u16,
}

impl Workload for StressOrphan {
    fn about(&self) -> &About {
        &self.about
    }

    fn needs(&self, plan: &Plan) -> Needs {
        Needs::of(
            u64::from(plan.tasks) * u64::from(SIZE),
            2 * u64::from(plan.tasks),
        )
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let directory = OwnDirectory::new(target, number)?;
        let file = target.create(&directory, "file")?;
        if self.unlinked {
            target.unlink(&directory, "file")?;
        }
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
        if self.size == 0 {
            target.write(&self.file, 0, &[1; SIZE as usize])?;
            self.size = SIZE;
        }
        self.size -= 1;
        target.truncate(&self.file, u64::from(self.size))?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        self.directory.remove(target)
    }
}
