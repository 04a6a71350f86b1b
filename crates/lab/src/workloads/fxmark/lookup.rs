//! `MRPL`, `MRPM`, `MRPH`: look up a path of five directories: one of the task's own, one of many
//! shared paths, or the same path as all tasks.

use anyhow::Result;

use super::super::{About, Needs, OwnDirectory, Plan, Step, Target, Task, Workload};
use super::{Sharing, create_path};
use crate::random::Random;

/// Number of shared trees.
const TREES: u32 = 16;

pub struct Lookup {
    pub about: About,
    pub sharing: Sharing,
}

struct State {
    own: Option<OwnDirectory>,
    trees: u32,
    random: Random,
}

impl Workload for Lookup {
    fn about(&self) -> &About {
        &self.about
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let trees = u64::from(plan.tasks.max(TREES));
        Needs::of(trees * 5 * 4096, trees * 6)
    }

    fn prepare(&self, target: &dyn Target, _plan: &Plan) -> Result<()> {
        if self.sharing == Sharing::Low {
            return Ok(());
        }
        (0..TREES).try_for_each(|tree| {
            let top = target.make_directory(target.root(), &format!("tree{tree}"))?;
            let created = create_path(target, &top);
            target.close(top);
            created
        })
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let own = (self.sharing == Sharing::Low).then(|| OwnDirectory::new(target, number));
        let own = own.transpose()?;
        own.iter().try_for_each(|own| create_path(target, own))?;
        let is_one = self.sharing == Sharing::High;
        Ok(Box::new(State {
            own,
            trees: if is_one { 1 } else { TREES },
            random: Random::new(plan.seed, number),
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        let path = match &self.own {
            Some(own) => format!("{}/a/b/c/d/file", own.name),
            None => format!("tree{}/a/b/c/d/file", self.random.below(self.trees)),
        };
        target.stat(target.root(), &path)?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        self.own.map_or(Ok(()), |own| own.remove(target))
    }
}
