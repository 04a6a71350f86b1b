//! Real threads, as `pext4-real` measures them: what calibrates the virtual cores and what they are held against.
//!
//! A machine is noisy, so every measurement is made several times, each in a process of its own, and
//! the median counts; how far the runs were apart is told with it. A machine is also fast for minutes and
//! then slow by a third, so what is compared is measured in turns: one task, two tasks, one task again.
//! And a guest's processors move about under it, from one core's two threads to two sockets and back, so
//! what a line costs between them is measured before each run as well.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use pext4_lab::results::median;
use pext4_virtual::machines::measured_transfer;
use pext4_virtual::measure::Counted;
use pext4_virtual::parts::PartRate;

/// Runs of a measurement.
const RUNS: usize = 5;

/// What several runs of the same came to.
pub struct RealThreads {
    /// How many.
    pub tasks: u32,
    runs: Vec<Counted>,
    /// Picoseconds of a transfer before each run, in ascending order.
    transfers: Vec<u64>,
}

impl RealThreads {
    /// Runs `program` with the words for each number of tasks, all numbers in turn.
    ///
    /// # Errors
    /// If it cannot be started, fails, or answers what cannot be read; if there are several tasks for one
    /// processor.
    pub fn measure(
        program: &Path,
        tasks: &[u32],
        words: impl Fn(u32) -> Vec<String>,
    ) -> Result<Vec<Self>> {
        let mut measured: Vec<Self> = tasks.iter().map(|&tasks| Self::new(tasks)).collect();
        for _ in 0..RUNS {
            for each in &mut measured {
                if tasks.len() > 1 {
                    each.transfers.push(measured_transfer()?);
                }
                each.runs.push(run(program, &words(each.tasks))?);
            }
        }
        for each in &mut measured {
            each.transfers.sort_unstable();
        }
        Ok(measured)
    }

    const fn new(tasks: u32) -> Self {
        Self {
            tasks,
            runs: Vec::new(),
            transfers: Vec::new(),
        }
    }

    /// Picoseconds of a transfer, the median and both ends, if there is something to compare.
    #[must_use]
    pub fn transfer(&self) -> Option<(u64, [u64; 2])> {
        let (first, last) = (self.transfers.first()?, self.transfers.last()?);
        Some((self.transfers[self.transfers.len() / 2], [*first, *last]))
    }

    /// Nanoseconds on a processor of an operation of each part.
    #[must_use]
    pub fn processor_times(&self) -> Vec<f64> {
        let parts = self.runs.first().map_or(0, |run| run.parts.len());
        let times = |part| self.runs.iter().map(move |run| run.processor_time(part));
        (0..parts)
            .map(|part| median(&times(part).collect::<Vec<f64>>()))
            .collect()
    }

    /// How a prediction compares, part by part, in words.
    pub fn compare(&self, predicted: &[PartRate]) -> impl Iterator<Item = String> {
        predicted.iter().enumerate().map(|(index, part)| {
            let rates = self.runs.iter().map(|run| run.parts[index].own_rate);
            let mut rates: Vec<f64> = rates.collect();
            rates.sort_by(f64::total_cmp);
            let measured = median(&rates);
            let off = part.own_rate / measured - 1.0;
            format!(
                "{}: predicted {:.0}, measured {measured:.0} a second ({:.0} to {:.0} in {RUNS} runs), {:+.1} %{}",
                part.name,
                part.own_rate,
                rates[0],
                rates[rates.len() - 1],
                off * 100.0,
                if off.abs() <= 0.2 { "" } else { ": NOT within 20 %" }
            )
        })
    }
}

fn run(program: &Path, words: &[String]) -> Result<Counted> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", program.display(), told.trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
