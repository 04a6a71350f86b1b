//! Runs a number of steps of a workload on a device in memory and nothing else, for tools that
//! count instructions:
//!
//! ```text
//! cargo build --release -p pext4-lab --example operations
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/operations fallocate2 20000
//! ```
//!
//! Count once with N steps and once with 2 N: the difference divided by N is the cost of
//! one step, without making and mounting the image. `perf stat -e instructions:u` also counts, in
//! an ordinary build. After the number of steps a setting of the scaling mechanisms may follow
//! (`base`, `full,-try-lock`); with `meter` the meters count too, in a build that has them
//! (`--features meter`). `operations list` prints the workloads, except the control, which has no
//! setting. `cargo xtask instructions` counts them all.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pext4_block::RamDevice;
use pext4_fs::options::Scaling;
use pext4_fs::{MountOptions, Volume};
use pext4_image::mkfs;
use pext4_lab::target::Library;
use pext4_lab::workloads::{ALL, Plan, find};
use pext4_sync::meter;

const IMAGE: u64 = 1 << 30;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments
        .next()
        .context("WORKLOAD STEPS [SETTING] [meter], or list")?;
    if name == "list" {
        let names = ALL.iter().map(|workload| workload.name());
        names
            .filter(|name| *name != "control")
            .for_each(|name| println!("{name}"));
        return Ok(());
    }
    let workload = find(&name)?;
    let steps: u64 = arguments
        .next()
        .context("STEPS")?
        .parse()
        .context("STEPS")?;
    let mut scaling = Scaling::default();
    for argument in arguments {
        if argument == "meter" {
            ensure!(meter::is_built_in(), "build with --features meter");
            meter::switch(true);
        } else {
            scaling = Scaling::parse(&argument)?;
        }
    }
    // As the lab runs it by default.
    let plan = Plan::default();
    let device = Arc::new(RamDevice::new(IMAGE));
    let made = mkfs::Options {
        // As the lab makes its images.
        inode_size: if workload.needs(&plan).small_inodes {
            128
        } else {
            256
        },
        ..mkfs::Options::default()
    };
    mkfs::mkfs(&*device, &made)?;
    // No commit happens during the run: the steps that it would interrupt depend on the clock.
    let options = MountOptions {
        commit_interval: Duration::from_secs(1 << 20),
        scaling,
        ..MountOptions::default()
    };
    let library = Library::new(Volume::open(device, options)?)?;
    workload.prepare(&library, &plan)?;
    let mut task = workload.task(&library, &plan, 0)?;
    for _ in 0..steps {
        task.step(&library)?;
    }
    task.finish(&library)?;
    workload.clean(&library)?;
    library.close()
}
