//! `aim7-mix`: users who each run a mix of small operations on files, similar to AIM7's multiuser
//! loads, on inodes of 128 bytes, where the label of every new file needs an attribute block.
//!
//! A task plays its share of the users in turn. The mixes resemble AIM7's loads, as far as they
//! concern file systems, with weights of our own; AIM7's computing, pipes and processes are left
//! out.

use anyhow::Result;

use super::mix::Mix;
use super::user::User;
use super::{About, Needs, Plan, Step, Target, Task, Workload};
use super::{OwnDirectory, at_least_one};
use crate::random::Random;

pub struct Aim7Mix;

struct State {
    directory: OwnDirectory,
    users: Vec<User>,
    turn: usize,
    mix: Mix,
    random: Random,
}

impl Workload for Aim7Mix {
    fn about(&self) -> &About {
        &About {
            name: "aim7-mix",
            source: "aim7 with 2000 users, mbcache, 2014",
            operation: "a job of the next of --users users, drawn by the weights of --mix",
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["users"]
    }

    fn needs(&self, plan: &Plan) -> Needs {
        let users = u64::from(plan.users.max(plan.tasks));
        Needs::of(users * 2 * (64 << 10), 4 * users)
            .with_small_inodes()
            .with_moving_content()
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        at_least_one("users", plan.users)?;
        let directory = OwnDirectory::new(target, number)?;
        let users = 0..plan.users.div_ceil(plan.tasks);
        let users = users.map(|user| User::new(target, &directory, user));
        Ok(Box::new(State {
            users: users.collect::<Result<_>>()?,
            directory,
            turn: 0,
            mix: plan.mix,
            random: Random::new(plan.seed, number),
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        self.turn = (self.turn + 1) % self.users.len();
        let job = self.mix.draw(&mut self.random);
        self.users[self.turn].work(target, &self.directory, job, &mut self.random)?;
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        self.users.into_iter().for_each(|user| user.leave(target));
        self.directory.remove(target)
    }
}
