//! `aim7-mix`: users who each do a mixture of small things to files, in the manner of AIM7's
//! multiuser loads, on inodes of 128 bytes, where every new file's label is an external attribute.
//!
//! A task plays its share of the users in turn. The mixtures have the character of AIM7's loads,
//! as far as file systems see them, with weights of our own; its computing, pipes and processes are
//! left out.

use anyhow::Result;

use super::mix::{Job, Mix};
use super::{About, Needs, Node, Plan, Step, Target, Task, Workload};
use super::{OwnDirectory, at_least_one};
use crate::random::Random;

/// Labels that files have, all users together.
const LABELS: u32 = 20;
const BLOCK: usize = 4096;
/// Blocks of a user's file.
const BLOCKS: u32 = 16;

pub struct Aim7Mix;

struct State {
    directory: OwnDirectory,
    users: Vec<Node>,
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

    fn needs(&self, plan: &Plan) -> Needs {
        let users = u64::from(plan.users.max(plan.tasks));
        Needs::of(users * 2 * (64 << 10), 4 * users).with_small_inodes()
    }

    fn task(&self, target: &dyn Target, plan: &Plan, number: u32) -> Result<Box<dyn Task>> {
        at_least_one("users", plan.users)?;
        let directory = OwnDirectory::new(target, number)?;
        let mut users = Vec::new();
        for user in 0..plan.users.div_ceil(plan.tasks) {
            let file = target.create(&directory, &format!("user{user}"))?;
            target.write(&file, 0, &[7; BLOCK * BLOCKS as usize])?;
            users.push(file);
        }
        let random = Random::new(plan.seed, number);
        Ok(Box::new(State {
            directory,
            users,
            turn: 0,
            mix: plan.mix,
            random,
        }))
    }
}

impl Task for State {
    fn step(&mut self, target: &dyn Target) -> Result<Step> {
        self.turn = (self.turn + 1) % self.users.len();
        let at = u64::from(self.random.below(BLOCKS)) * BLOCK as u64;
        let file = &self.users[self.turn];
        match self.mix.draw(&mut self.random) {
            Job::Read => target.read(file, at, &mut [0; BLOCK])?,
            Job::Write => target.write(file, at, &[3; BLOCK])?,
            Job::Sync => target.sync(file)?,
            Job::Cut => {
                target.truncate(file, 0)?;
                target.write(file, 0, &[7; BLOCK * BLOCKS as usize])?;
            }
            Job::Look => drop(target.stat(&self.directory, &format!("user{}", self.turn))?),
            Job::Create => self.create_and_remove(target)?,
        }
        Ok(Step::ONE)
    }

    fn finish(self: Box<Self>, target: &dyn Target) -> Result<()> {
        self.users.into_iter().for_each(|file| target.close(file));
        self.directory.remove(target)
    }
}

impl State {
    fn create_and_remove(&mut self, target: &dyn Target) -> Result<()> {
        let file = target.create(&self.directory, "new")?;
        let mut label = [b'l'; 32];
        label[..4].copy_from_slice(&self.random.below(LABELS).to_le_bytes());
        let done = target.set_attribute(&file, "label", &label);
        target.close(file);
        done?;
        target.unlink(&self.directory, "new")
    }
}
