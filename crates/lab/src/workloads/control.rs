//! `control`: shares nothing and never enters a file system.
//!
//! It mixes 16 KiB of the task's own memory. If its operations cost more with many tasks than with
//! one, the machine is the cause (clock rates, caches, hyper-threads, a noisy neighbour). Tables
//! show this next to the cost of a workload.

use std::hint::black_box;

use anyhow::Result;

use super::{About, Needs, Plan, Step, Target, Task, Workload};

const WORDS: usize = 2048;

pub struct Control;

struct State {
    words: Vec<u64>,
}

impl Workload for Control {
    fn about(&self) -> &About {
        &About {
            name: "control",
            source: "none",
            operation: "mix 16 KiB of the task's own memory",
        }
    }

    fn origin(&self) -> String {
        "a control: it tells what the machine itself does".to_owned()
    }

    fn needs(&self, _plan: &Plan) -> Needs {
        Needs::default()
    }

    fn task(&self, _target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        let words = vec![plan.seed ^ u64::from(number); WORDS];
        Ok(Box::new(State { words }))
    }

    fn clean(&self, _target: &dyn Target) -> Result<()> {
        Ok(())
    }
}

impl Task for State {
    fn step(&mut self, _target: &dyn Target) -> Result<Step> {
        let mut carry = 1_u64;
        for word in &mut self.words {
            carry = (carry ^ *word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(23);
            *word = word.wrapping_add(carry);
        }
        black_box(carry);
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, _target: &dyn Target) -> Result<()> {
        Ok(())
    }
}
