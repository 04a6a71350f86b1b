//! One point of a curve: a number of tasks on the virtual cores of a machine.

use std::sync::Arc;

use anyhow::Result;
use pext4_lab::sides::check::{Verdict, e2fsck_of_memory};
use pext4_sync::virtual_cores::{Model, Recording, Stretches, Usage};
use pext4_sync::virtual_cores::{begin_part, calibrate, close_window, move_to, open_window};
use pext4_sync::virtual_cores::{reference, run};

use crate::measure::{Measured, measure};
use crate::setup::{Counted, Hands, Observer, Setup};
use crate::theory::Analysis;

/// The result of one point.
pub struct Outcome {
    /// The counts of the tasks.
    pub counted: Counted,
    /// The analysis of the usage.
    pub analysis: Analysis,
    /// The usage of the window.
    pub usage: Usage,
    /// Whether the image was checked afterwards.
    pub verdict: Verdict,
}

/// An observer that puts tasks on their processors and keeps the usage of the window.
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

/// Runs one point on virtual cores, and checks its image.
///
/// # Errors
///
/// Errors of the measurement; a fault that e2fsck finds in the image.
pub fn point(
    model: &Model,
    stretches: &Arc<Stretches>,
    seed: u64,
    setup: &Setup,
) -> Result<Outcome> {
    let tasks = setup.plan.tasks;
    let mut setup = setup.clone();
    setup.hands = Hands::VirtualCores;
    let measured = run(model.clone(), stretches, seed, move || {
        measure(&setup, Watcher::default())
    });
    let Measured {
        counted,
        observer: Watcher(usage),
        device,
    } = measured?;
    let usage = usage.expect("a measurement closes its window");
    let analysis = Analysis::of(&usage, counted.operations, tasks);
    Ok(Outcome {
        counted,
        analysis,
        usage,
        verdict: e2fsck_of_memory(&device)?,
    })
}

/// Part numbers beyond 255 share one number; no workload has so many parts.
#[track_caller]
fn begin(part: usize) {
    begin_part(u8::try_from(part).unwrap_or(u8::MAX));
}

/// An observer that makes the task the reference of the calibration.
struct Reference;

impl Observer for Reference {
    fn task(_number: u32) {
        reference();
    }

    fn part(number: usize) {
        begin(number);
    }
}

/// Records one real thread and the journal's threads; returns the recording and the operations in
/// it.
///
/// # Errors
///
/// Errors of the measurement.
pub fn calibration(setup: &Setup) -> Result<(Recording, u64)> {
    let (measured, recording) =
        calibrate(|| measure(setup, Reference).map(|measured| measured.counted));
    Ok((recording, measured?.all_operations))
}
