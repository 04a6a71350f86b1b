//! An image that is nearly full, and what is free of it in pieces.
//!
//! Searching for space costs nothing where the goal is free, as it is on a new image. So a run may ask
//! for one that has been in use: files take nearly all of the room, and then holes of 1 to 128 blocks,
//! drawn by their length's power of two, are made in them all over the image, until as much is free as
//! was asked for; where that is most of the image, many holes meet. What it is for is in `docs/LAB.md`.

use anyhow::{Context, Result, ensure};

use crate::random::Random;
use crate::target::{Node, Target, check_room};
use crate::workloads::{Plan, Workload};

/// Where the files are; whoever finds it there has nothing to do. A workload that is cleaned up after takes
/// it away with its own, and the next one fills anew: so each begins with the same holes.
/// Whoever counts files leaves these out.
pub(crate) const DIRECTORY: &str = "fill";
/// Bytes that holes are counted in: a block, or several.
const BLOCK: u64 = 4096;
/// Powers of two that a hole's length is drawn from.
const LENGTHS: u32 = 8;
/// Room that is not worth another file.
const LEAST: u64 = 1 << 20;

/// Makes what the tasks of a workload find, after an image is filled if the plan says so.
///
/// # Errors
/// The file system's, or the workload does not fit.
pub fn make_ready(target: &dyn Target, workload: &dyn Workload, plan: &Plan) -> Result<()> {
    if let Some(percent) = plan.fill {
        fill(target, percent, plan.seed)?;
    }
    check_room(target, workload, plan)?;
    workload.prepare(target, plan)
}

/// Takes this share of what is free, in percent, unless that was done before.
///
/// # Errors
/// The file system's; a share that leaves nothing, or takes nothing.
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
    // Blocks that were freed can be had again once that is durable.
    target.sync_all()
}

fn fill_in(target: &dyn Target, directory: &Node, percent: u32, seed: u64) -> Result<()> {
    let mut files = Vec::new();
    for number in 0.. {
        // Half of what is left: the rest has room for what describes the file.
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
        let done = holes.pierce(target, &file, size);
        target.close(file);
        done?;
    }
    Ok(())
}

/// Holes, each behind a stretch of which it is the share that shall be free. They go through all files as
/// if those were one: what one file has no room for any more, the next one begins with.
struct Holes {
    random: Random,
    percent: u64,
    /// What stays taken for the holes so far, in bytes times the percent that are free. Less than a block of
    /// it is left after each, or short holes in an image that is hardly filled would keep nothing.
    owed: u64,
    /// Bytes before the next hole.
    stretch: u64,
    /// Bytes of it.
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

    /// Makes those of one file.
    fn pierce(&mut self, target: &dyn Target, file: &Node, size: u64) -> Result<()> {
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
