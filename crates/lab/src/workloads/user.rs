//! One user of `aim7-mix`: a file and the operations on it.

use anyhow::Result;

use super::mix::Job;
use super::{Node, Target};
use crate::random::Random;

/// Number of distinct labels, all users together.
const LABELS: u32 = 20;
const BLOCK: usize = 4096;
/// Blocks of a user's file.
const BLOCKS: u32 = 16;
static CONTENT: [u8; BLOCK * BLOCKS as usize] = [7; BLOCK * BLOCKS as usize];

pub struct User {
    name: String,
    file: Node,
}

impl User {
    /// Creates the file of a user in a directory.
    pub fn new(target: &dyn Target, directory: &Node, number: u32) -> Result<Self> {
        let name = format!("user{number}");
        let file = target.create(directory, &name)?;
        target.write(&file, 0, &CONTENT)?;
        Ok(Self { name, file })
    }

    /// Runs one operation.
    pub fn work(
        &self,
        target: &dyn Target,
        directory: &Node,
        job: Job,
        random: &mut Random,
    ) -> Result<()> {
        let at = u64::from(random.below(BLOCKS)) * BLOCK as u64;
        match job {
            Job::Read => target.read(&self.file, at, &mut [0; BLOCK]),
            Job::Write => target.write(&self.file, at, &[3; BLOCK]),
            Job::Sync => target.sync(&self.file),
            Job::Truncate => {
                target.truncate(&self.file, 0)?;
                target.write(&self.file, 0, &CONTENT)
            }
            Job::Lookup => target.stat(directory, &self.name).map(drop),
            Job::Create => create_and_remove(target, directory, random.below(LABELS)),
        }
    }

    /// Closes the file.
    pub fn leave(self, target: &dyn Target) {
        target.close(self.file);
    }
}

fn create_and_remove(target: &dyn Target, directory: &Node, label: u32) -> Result<()> {
    let file = target.create(directory, "new")?;
    let mut value = [b'l'; 32];
    value[..4].copy_from_slice(&label.to_le_bytes());
    let done = target.set_attribute(&file, "user.label", &value);
    target.close(file);
    done?;
    target.unlink(directory, "new")
}
