//! `DRBL`, `DRBM`, `DRBH`, `DWOL`, `DWOM`: read or overwrite a block of a file of the task's own, a
//! private block of a shared file, or the same block of a shared file as all tasks.

use anyhow::{Result, ensure};

use super::super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};
use super::{BLOCK, Sharing};

pub struct Block {
    pub about: About,
    pub writes: bool,
    pub sharing: Sharing,
}

struct State {
    /// The directory of the task's file, unless the file is shared.
    own: Option<OwnDirectory>,
    file: Node,
    at: u64,
    writes: bool,
    bytes: Vec<u8>,
}

impl Workload for Block {
    fn about(&self) -> &About {
        &self.about
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let tasks = u64::from(plan.tasks);
        Needs::of(tasks * BLOCK as u64, 2 * tasks + 1)
    }

    fn prepare(&self, target: &dyn Target, plan: &Plan) -> Result<()> {
        if self.sharing == Sharing::Low {
            return Ok(());
        }
        let file = target.create(target.root(), "shared")?;
        let done = target.write(&file, 0, &vec![1; BLOCK * plan.tasks as usize]);
        target.close(file);
        done
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let (bytes, writes) = (vec![2; BLOCK], self.writes);
        let (own, file) = if self.sharing == Sharing::Low {
            let own = OwnDirectory::new(target, number)?;
            let file = target.create(&own, "file")?;
            target.write(&file, 0, &bytes)?;
            (Some(own), file)
        } else {
            (None, target.open(target.root(), "shared")?)
        };
        let block = u64::from(self.sharing == Sharing::Medium) * u64::from(number);
        Ok(Box::new(State {
            own,
            file,
            at: block * BLOCK as u64,
            writes,
            bytes,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        if self.writes {
            target.write(&self.file, self.at, &self.bytes)?;
        } else {
            target.read(&self.file, self.at, &mut self.bytes)?;
            ensure!(self.bytes[0] != 0, "a block came back empty");
        }
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        target.close(self.file);
        self.own.map_or(Ok(()), |own| own.remove(target))
    }
}
