//! `empty`: a step that does nothing, so that its time is the lab's own. It is not in the list.

use anyhow::Result;

use super::{About, Needs, Plan, Step, Target, Task, Workload};

pub struct Empty;

struct Nothing;

impl Workload for Empty {
    fn about(&self) -> &About {
        &About {
            name: "empty",
            source: "none",
            operation: "nothing",
        }
    }

    fn needs(&self, _plan: &Plan) -> Needs {
        Needs::default()
    }

    fn task(&self, _target: &dyn Target, _plan: &Plan, _number: u32) -> Result<Box<dyn Task>> {
        Ok(Box::new(Nothing))
    }

    fn clean(&self, _target: &dyn Target) -> Result<()> {
        Ok(())
    }
}

impl Task for Nothing {
    fn step(&mut self, _target: &dyn Target) -> Result<Step> {
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, _target: &dyn Target) -> Result<()> {
        Ok(())
    }
}
