//! `MRPL`, `MRPM`, `MRPH`: look a path of five directories up: of the task's own, one of many that
//! all share, or the same one as all.

use anyhow::Result;

use super::super::{About, Needs, Node, Plan, Step, Target, Task, Workload, directory_name, empty};
use super::Sharing;
use crate::random::Random;

/// Trees that are shared.
const TREES: u32 = 16;

pub struct Lookup {
    pub about: About,
    pub sharing: Sharing,
}

struct State {
    own: Option<String>,
    trees: u32,
    random: Random,
}

/// Makes `name/a/b/c/d/file`.
fn plant(target: &dyn Target, name: &str) -> Result<()> {
    let mut parent = target.make_directory(target.root(), name)?;
    for below in ["a", "b", "c", "d"] {
        let next = target.make_directory(&parent, below);
        target.close(std::mem::replace(&mut parent, next?));
    }
    let file = target.create(&parent, "file");
    target.close(parent);
    target.close(file?);
    Ok(())
}

impl Workload for Lookup {
    fn about(&self) -> &About {
        &self.about
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let trees = u64::from(plan.tasks.max(TREES));
        Needs {
            bytes: trees * 5 * 4096,
            inodes: trees * 6,
            small_inodes: false,
        }
    }

    fn prepare(&self, target: &dyn Target, _plan: &Plan) -> Result<()> {
        if self.sharing == Sharing::Low {
            return Ok(());
        }
        (0..TREES).try_for_each(|tree| plant(target, &format!("tree{tree}")))
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let own = (self.sharing == Sharing::Low).then(|| directory_name(number));
        if let Some(own) = &own {
            plant(target, own)?;
        }
        let trees = if self.sharing == Sharing::High {
            1
        } else {
            TREES
        };
        Ok(Box::new(State {
            own,
            trees,
            random: Random::new(plan.seed, number),
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        let path = match &self.own {
            Some(own) => format!("{own}/a/b/c/d/file"),
            None => format!("tree{}/a/b/c/d/file", self.random.below(self.trees)),
        };
        target.stat(target.root(), &path)?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        let directory: Node = target.directory(target.root(), own)?;
        let emptied = empty(target, &directory);
        target.close(directory);
        emptied?;
        target.remove_directory(target.root(), own)
    }
}
