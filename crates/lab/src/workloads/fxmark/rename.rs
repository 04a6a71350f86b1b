//! `MWRL`, `MWRM`: rename a file within the task's own directory, or move it between that directory
//! and a shared one.

use anyhow::Result;

use super::super::{About, Needs, Node, OwnDirectory, Plan, Step, Target, Task, Workload};
use super::Sharing;

pub struct Rename {
    pub about: About,
    pub sharing: Sharing,
}

struct State {
    own: OwnDirectory,
    /// The shared directory, if there is one.
    shared: Option<Node>,
    names: [String; 2],
    is_moved: bool,
}

impl Workload for Rename {
    fn about(&self) -> &About {
        &self.about
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let tasks = u64::from(plan.tasks);
        Needs::of(tasks * 8192, 2 * tasks + 1)
    }

    fn prepare(&self, target: &dyn Target, _plan: &Plan) -> Result<()> {
        if self.sharing != Sharing::Low {
            target.close(target.make_directory(target.root(), "shared")?);
        }
        Ok(())
    }

    fn task(&self, target: &dyn Target, _plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let own = OwnDirectory::new(target, number)?;
        target.close(target.create(&own, "here")?);
        let shared = match self.sharing {
            Sharing::Low => None,
            _ => Some(target.directory(target.root(), "shared")?),
        };
        let names = ["here".to_owned(), format!("there{number}")];
        Ok(Box::new(State {
            own,
            shared,
            names,
            is_moved: false,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        let [here, there] = &self.names;
        let other = self.shared.as_ref().unwrap_or(&*self.own);
        if self.is_moved {
            target.rename(other, there, &self.own, here)?;
        } else {
            target.rename(&self.own, here, other, there)?;
        }
        self.is_moved = !self.is_moved;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        if let Some(shared) = self.shared {
            let unlink = || target.unlink(&shared, &self.names[1]);
            let removed = self.is_moved.then(unlink).transpose();
            target.close(shared);
            removed?;
        }
        self.own.remove(target)
    }
}
