//! Measures what stretches of code cost on this machine, in several rounds.
//!
//! The speed of a machine changes by a third for minutes at a time. The price list of the stretches
//! combines several measurements: a recorded run of one task, an unrecorded one, and runs for
//! stretches that only many files or many cores produce. Made a minute apart, they would describe
//! different machines, and a curve would bend where the second list begins. Therefore every round
//! makes all measurements one after another and computes a price list of its own, and a stretch
//! costs the median of the rounds.

use std::time::Duration;

use anyhow::Result;
use pext4_sync::virtual_cores::{Recording, Stretches};
use pext4_virtual::run::calibration;
use pext4_virtual::setup::Setup;

use crate::real_threads::RealThreads;

/// Rounds of a calibration.
const ROUNDS: usize = 5;
/// Factor of the number of files in a round's second recording, which sees stretches that the first
/// never sees.
const FILES_FACTOR: u32 = 16;
/// Virtual cores that one thread plays in turn in the third recording.
const TASKS_IN_TURN: u32 = 16;

/// The result of all rounds.
pub struct Calibration {
    /// What stretches cost.
    pub stretches: Stretches,
    /// A description of the calibration for the report.
    pub description: String,
}

/// The result of one round.
struct Round {
    stretches: Stretches,
    operations: u64,
    /// Stretches of the reference recording.
    stretched: u64,
    /// Nanoseconds that recording one step cost, by part of the workload.
    looks: Vec<f64>,
}

/// Calibrates with one task of `setup`, and runs the real threads of `real` once in every round.
///
/// # Errors
///
/// Errors of the measurements.
pub fn calibrate(name: &str, setup: &Setup, real: &mut [RealThreads]) -> Result<Calibration> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        for threads in &mut *real {
            threads.run_once()?;
        }
        rounds.push(round(setup, real.first())?);
    }
    let description = describe(name, &rounds, real.first());
    let lists: Vec<Stretches> = rounds.into_iter().map(|round| round.stretches).collect();
    Ok(Calibration {
        stretches: Stretches::middle_of(&lists),
        description,
    })
}

fn round(setup: &Setup, one: Option<&RealThreads>) -> Result<Round> {
    let (mut recording, operations) = calibration(setup)?;
    // One task with its own files never runs the code that many files need, such as an index.
    let mut many = setup.clone();
    many.plan.files = many.plan.files.saturating_mul(FILES_FACTOR);
    recording.learn(calibration(&many)?.0);
    // It also never runs the code for something that another core used before.
    let mut crowd = setup.clone();
    crowd.plan.tasks = TASKS_IN_TURN;
    crowd.in_turn = true;
    recording.learn(calibration(&crowd)?.0);
    let alone = alone(one, operations);
    Ok(Round {
        stretches: recording.stretches(&alone),
        operations,
        stretched: recording.reference_stretches(),
        looks: looks(&recording, &alone),
    })
}

/// Time of the reference's operations of each part without recording, by the latest run of one real
/// thread.
fn alone(one: Option<&RealThreads>, operations: u64) -> Vec<Duration> {
    let times = one.map(RealThreads::latest_times).unwrap_or_default();
    let of_each = operations as f64 / times.len().max(1) as f64;
    let times = times.iter();
    times
        .map(|time| Duration::from_nanos((time * of_each) as u64))
        .collect()
}

fn looks(recording: &Recording, alone: &[Duration]) -> Vec<f64> {
    (0..)
        .zip(alone)
        .map(|(part, &alone)| recording.look_nanoseconds(part, alone))
        .collect()
}

fn describe(name: &str, rounds: &[Round], one: Option<&RealThreads>) -> String {
    let Some(one) = one else {
        return format!(
            "{name}: calibrated in {ROUNDS} rounds; without a program for real threads, the cost of reading the \
             clock is measured between two empty stretches, which is too much"
        );
    };
    let operations: u64 = rounds.iter().map(|round| round.operations).sum();
    let stretched: u64 = rounds.iter().map(|round| round.stretched).sum();
    let times: Vec<String> = (0..one.parts())
        .map(|part| ranged(one.processor_times(part), 0))
        .collect();
    let looks: Vec<String> = (0..one.parts())
        .map(|part| ranged(rounds.iter().map(|round| round.looks[part]).collect(), 1))
        .collect();
    format!(
        "{name}: calibrated in {ROUNDS} rounds with {operations} operations of one real thread, {} ns each when \
         nobody looks on, in {:.1} stretches; a look cost {} ns; stretches that were not seen then, in the same \
         rounds with {FILES_FACTOR} times as many files, or as {TASKS_IN_TURN} cores in turn",
        times.join(" and "),
        stretched as f64 / operations.max(1) as f64,
        looks.join(" and "),
    )
}

/// The median, and in parentheses the minimum and the maximum.
fn ranged(mut numbers: Vec<f64>, digits: usize) -> String {
    numbers.sort_by(f64::total_cmp);
    match numbers[..] {
        [] => "no".to_owned(),
        [only] => format!("{only:.digits$}"),
        [least, .., most] => {
            let median = numbers[numbers.len() / 2];
            format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
        }
    }
}
