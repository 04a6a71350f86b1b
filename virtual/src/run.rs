//! One point of a curve: a number of tasks on the virtual cores of a machine.

use std::sync::Arc;

use anyhow::Result;
use pext4_sync::virtual_cores::{Model, Recording, Stretches, Usage};
use pext4_sync::virtual_cores::{begin_part, calibrate, close_window, move_to, open_window};
use pext4_sync::virtual_cores::{reference, run};

use crate::measure::measure;
use crate::setup::{Counted, Observer, Setup};
use crate::theory::Analysis;

/// A point.
pub struct Outcome {
    /// What the tasks did.
    pub counted: Counted,
    /// What it implies.
    pub analysis: Analysis,
    /// What it used.
    pub usage: Usage,
}

/// Puts tasks on their processors and remembers what the window used.
#[derive(Default)]
struct Watcher(Option<Usage>);

impl Observer for Watcher {
    fn open(&mut self) {
        open_window();
    }

    fn close(&mut self) {
        self.0 = Some(close_window());
    }

    fn task(number: u32) {
        move_to(number as usize);
    }

    fn part(number: usize) {
        begin(number);
    }
}

/// Runs a point.
///
/// # Errors
/// The measurement's.
pub fn point(
    model: &Model,
    stretches: &Arc<Stretches>,
    seed: u64,
    setup: &Setup,
) -> Result<Outcome> {
    let tasks = setup.plan.tasks;
    let mut setup = setup.clone();
    setup.imitated = true;
    let measured = run(model.clone(), stretches, seed, move || {
        measure(&setup, Watcher::default())
    });
    let (counted, Watcher(usage)) = measured?;
    let usage = usage.expect("a measurement closes its window");
    let analysis = Analysis::of(&usage, counted.operations, tasks);
    Ok(Outcome {
        counted,
        analysis,
        usage,
    })
}

/// No workload has so many parts that the last ones would be taken for one.
fn begin(part: usize) {
    begin_part(u8::try_from(part).unwrap_or(u8::MAX));
}

/// Makes the task the reference of the calibration.
struct Reference;

impl Observer for Reference {
    fn task(_number: u32) {
        reference();
    }

    fn part(number: usize) {
        begin(number);
    }
}

/// What a real thread and the journal's were seen to do, and how many operations that was.
///
/// # Errors
/// The measurement's.
pub fn calibration(setup: &Setup) -> Result<(Recording, u64)> {
    let (measured, recording) = calibrate(|| measure(setup, Reference).map(|(counted, _)| counted));
    Ok((recording, measured?.all_operations))
}
