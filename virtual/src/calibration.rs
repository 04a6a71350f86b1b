//! Measures what stretches of code cost on this machine, in several rounds.
//!
//! The speed of a machine changes by a third for minutes at a time. The price list of the stretches
//! combines several measurements: a recorded run of one task, an unrecorded one, and runs for
//! stretches that only many files or many cores produce. Made a minute apart, they would describe
//! different machines, and a curve would bend where the second list begins. Therefore every round
//! makes all measurements one after another and computes a price list of its own, and a stretch
//! costs the median of the rounds.
//!
//! Disturbed times are longer, never shorter, so the sum of medians is less than the median of sums
//! (by an eighth to a fifth on a busy machine). One factor for each part makes up for it: an
//! operation of one task takes the median of the times that one real thread took.

use std::time::Duration;

use anyhow::Result;
use pext4_sync::virtual_cores::{Recording, Stretches};
use pext4_virtual::run::calibration;
use pext4_virtual::setup::{Hands, Setup};

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
    recording: Recording,
    stretches: Stretches,
    operations: u64,
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
    let lists: Vec<Stretches> = rounds.iter().map(|round| round.stretches.clone()).collect();
    let medians = Stretches::middle_of(&lists);
    let factors = real
        .first()
        .map_or_else(Vec::new, |one| factors(&rounds, &medians, one));
    Ok(Calibration {
        stretches: medians.scaled(&factors),
        description: describe(name, &rounds, real.first(), &factors),
    })
}

/// For each part the factor by which an operation takes as long as the median of one real thread's
/// times, and not as the sum of the medians.
fn factors(rounds: &[Round], medians: &Stretches, one: &RealThreads) -> Vec<f64> {
    let factor = |part| {
        let said = rounds.iter().map(|round| {
            let of_each = round.operations as f64 / one.parts() as f64;
            let part = u8::try_from(part).unwrap_or(u8::MAX);
            round.recording.reference_nanoseconds(part, medians) / of_each
        });
        let factor = middle(one.processor_times(part)) / middle(said.collect());
        // A part without operations or stretches has no factor.
        if factor.is_normal() { factor } else { 1.0 }
    };
    (0..one.parts()).map(factor).collect()
}

fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
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
    crowd.hands = Hands::OneThreadInTurn;
    recording.learn(calibration(&crowd)?.0);
    let alone = alone(one, operations);
    Ok(Round {
        stretches: recording.stretches(&alone),
        operations,
        looks: looks(&recording, &alone),
        recording,
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

fn describe(name: &str, rounds: &[Round], one: Option<&RealThreads>, factors: &[f64]) -> String {
    let Some(one) = one else {
        return format!(
            "{name}: calibrated in {ROUNDS} rounds; without a program for real threads, the cost of reading the \
             clock is measured between two empty stretches, which is too much"
        );
    };
    let operations: u64 = rounds.iter().map(|round| round.operations).sum();
    let recordings = rounds.iter().map(|round| &round.recording);
    let stretched: u64 = recordings.map(Recording::reference_stretches).sum();
    let times: Vec<String> = (0..one.parts())
        .map(|part| ranged(one.processor_times(part), 0))
        .collect();
    let looks: Vec<String> = (0..one.parts())
        .map(|part| ranged(rounds.iter().map(|round| round.looks[part]).collect(), 1))
        .collect();
    let factors: Vec<String> = factors
        .iter()
        .map(|factor| format!("{factor:.2}"))
        .collect();
    format!(
        "{name}: calibrated in {ROUNDS} rounds with {operations} operations of one real thread, {} ns each when \
         nobody looks on, in {:.1} stretches; a look cost {} ns; the sum of the medians times {}; stretches that \
         were not seen then, in the same rounds with {FILES_FACTOR} times as many files, or as {TASKS_IN_TURN} \
         cores in turn",
        times.join(" and "),
        stretched as f64 / operations.max(1) as f64,
        looks.join(" and "),
        factors.join(" and "),
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
