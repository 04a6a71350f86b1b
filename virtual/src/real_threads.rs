//! Real threads, as `pext4-real` measures them: what calibrates the virtual cores and what they are held against.
//!
//! A machine is noisy, so every measurement is made several times, each in a process of its own, and
//! the median counts; how far the runs were apart is told with it. A guest's processors move about
//! under it, from one core's two threads to two sockets and back, so what a line costs between
//! them is measured before each run as well.

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
    runs: Vec<Counted>,
    /// Picoseconds of a transfer before each run; none if not asked for.
    transfers: Vec<u64>,
}

impl RealThreads {
    /// Runs `program` with these words, and measures a transfer before each run if `with_transfers`.
    ///
    /// # Errors
    /// If it cannot be started, fails, or answers what cannot be read; if there is one processor.
    pub fn measure(program: &Path, words: &[String], with_transfers: bool) -> Result<Self> {
        let mut measured = Self {
            runs: Vec::new(),
            transfers: Vec::new(),
        };
        for _ in 0..RUNS {
            if with_transfers {
                measured.transfers.push(measured_transfer()?);
            }
            measured.runs.push(run(program, words)?);
        }
        measured.transfers.sort_unstable();
        Ok(measured)
    }

    /// Picoseconds of a transfer, the median and both ends, if it was asked for.
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
