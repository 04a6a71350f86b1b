//! Fills an image and leaves the free space in pieces.
//!
//! A search for space costs nothing if the goal is free, as it is on a new image. A run may
//! therefore ask for an image that looks used: files take nearly all of the space, and then holes
//! of 1 to 128 blocks, drawn by the power of two of their length, are punched all over the image
//! until the requested share is free. If that is most of the image, many holes are adjacent.
//! `docs/LAB.md` has the reasons.

use anyhow::{Context, Result, ensure};

use crate::random::Random;
use crate::target::{Node, Target, check_room};
use crate::workloads::{Plan, Workload};

/// The directory of the files. If it exists, the image is already filled. Cleaning up after a
/// workload removes it too, and the next workload fills the image anew, so every workload starts
/// with the same holes. Counts of files leave these out.
pub(crate) const DIRECTORY: &str = "fill";
/// The unit of holes in bytes: one block, or several.
const BLOCK: u64 = 4096;
/// The number of powers of two from which the length of a hole is drawn.
const LENGTHS: u32 = 8;
/// The size of the smallest file, which takes half of the space that is left.
const LEAST: u64 = 1 << 20;

/// Prepares `workload`: fills the image if the plan says so, and creates what the tasks share.
///
/// # Errors
///
/// Errors of the file system, or the workload does not fit.
pub fn make_ready(target: &dyn Target, workload: &dyn Workload, plan: &Plan) -> Result<()> {
    if let Some(percent) = plan.fill {
        fill(target, percent, plan.seed)?;
    }
    check_room(target, workload, plan)?;
    workload.prepare(target, plan)
}

/// Fills `percent` of the free space, unless that was done before.
///
/// # Errors
///
/// Errors of the file system; a share that would leave or take nothing.
fn fill(target: &dyn Target, percent: u32, seed: u64) -> Result<()> {
    ensure!(
        (1..100).contains(&percent),
        "an image can be filled to 1 to 99 percent"
    );
    let names = target.list(target.root())?;
    if names.iter().any(|name| name == DIRECTORY) {
        return Ok(());
    }
    let directory = target.make_directory(target.root(), DIRECTORY)?;
    let done = fill_in(target, &directory, percent, seed).context("filling the image");
    target.close(directory);
    done?;
    // Freed blocks become allocatable when the transaction is durable.
    target.sync_all()
}

fn fill_in(target: &dyn Target, directory: &Node, percent: u32, seed: u64) -> Result<()> {
    let mut files = Vec::new();
    for number in 0.. {
        // Half of the remaining space: the metadata of the file needs some of the rest.
        let size = target.room()?.bytes / 2 / BLOCK * BLOCK;
        if size < LEAST {
            break;
        }
        let file = target.create(directory, &format!("file.{number}"))?;
        target.allocate(&file, 0, size)?;
        files.push((file, size));
    }
    let mut holes = Holes::new(percent, seed);
    for (file, size) in files {
        let done = holes.punch_holes(target, &file, size);
        target.close(file);
        done?;
    }
    Ok(())
}

/// Holes, each after a stretch of data; together they have the requested share. They continue
/// through all files as if these were one: a hole that does not fit into a file continues in the
/// next one.
struct Holes {
    random: Random,
    percent: u64,
    /// Space that must still stay allocated for the holes so far, in bytes times the free
    /// percentage. Less than a block remains after each hole; otherwise short holes in a nearly
    /// empty image would keep nothing allocated.
    owed: u64,
    /// Bytes before the next hole.
    stretch: u64,
    /// Bytes of the next hole.
    hole: u64,
}

impl Holes {
    fn new(percent: u32, seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0),
            percent: u64::from(percent),
            owed: 0,
            stretch: 0,
            hole: 0,
        }
    }

    fn draw(&mut self) {
        self.hole = BLOCK << self.random.below(LENGTHS);
        self.owed += self.hole * self.percent;
        let free = 100 - self.percent;
        self.stretch = self.owed / free / BLOCK * BLOCK;
        self.owed -= self.stretch * free;
    }

    /// Punches the holes of one file.
    fn punch_holes(&mut self, target: &dyn Target, file: &Node, size: u64) -> Result<()> {
        let mut offset = 0;
        while offset < size {
            if self.hole == 0 {
                self.draw();
            }
            let stretch = self.stretch.min(size - offset);
            self.stretch -= stretch;
            offset += stretch;
            let hole = self.hole.min(size - offset);
            if hole > 0 {
                target.punch(file, offset, hole)?;
                self.hole -= hole;
                offset += hole;
            }
        }
        Ok(())
    }
}
