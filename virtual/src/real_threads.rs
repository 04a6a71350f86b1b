//! Real threads, as `pext4-real` measures them: what calibrates the virtual cores and what they are held against.
//!
//! A machine is noisy, so every measurement is made several times, each in a process of its own, and
//! the median counts; how far the runs were apart is told with it. One run of each is made in every round of
//! the calibration, so that what is compared is of one machine: it is fast for minutes and then slow by a
//! third. And a guest's processors move about under it, from one core's two threads to two sockets and
//! back, so what a line costs between them is measured before each run as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use pext4_lab::results::median;
use pext4_virtual::hand_over::measured_transfer;
use pext4_virtual::parts::PartRate;
use pext4_virtual::setup::Counted;

/// What several runs of the same came to.
pub struct RealThreads {
    /// How many.
    pub tasks: u32,
    program: PathBuf,
    words: Vec<String>,
    /// Whether what a line costs is measured as well.
    is_compared: bool,
    runs: Vec<Counted>,
    /// Picoseconds of a transfer before each run.
    transfers: Vec<u64>,
}

impl RealThreads {
    /// So many tasks of `program`, which has these words for them.
    pub fn new(program: &Path, tasks: u32, words: Vec<String>, is_compared: bool) -> Self {
        Self {
            tasks,
            program: program.to_owned(),
            words,
            is_compared,
            runs: Vec::new(),
            transfers: Vec::new(),
        }
    }

    /// Runs it once more.
    ///
    /// # Errors
    /// If it cannot be started, fails, or answers what cannot be read; if lines are to be measured on one
    /// processor.
    pub fn run_once(&mut self) -> Result<()> {
        if self.is_compared {
            self.transfers.push(measured_transfer()?);
        }
        self.runs.push(run(&self.program, &self.words)?);
        Ok(())
    }

    /// Picoseconds of a transfer, the median and both ends, if there is something to compare.
    #[must_use]
    pub fn transfer(&self) -> Option<(u64, [u64; 2])> {
        let mut transfers = self.transfers.clone();
        transfers.sort_unstable();
        let (first, last) = (transfers.first()?, transfers.last()?);
        Some((transfers[transfers.len() / 2], [*first, *last]))
    }

    /// How many parts the workload has.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.runs.first().map_or(0, |run| run.parts.len())
    }

    /// Nanoseconds on a processor of an operation of a part, in each run.
    #[must_use]
    pub fn processor_times(&self, part: usize) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.map(|run| run.processor_time(part)).collect()
    }

    /// The same of each part, in the latest run.
    #[must_use]
    pub fn latest_times(&self) -> Vec<f64> {
        let run = self.runs.last();
        run.map_or_else(Vec::new, |run| {
            (0..self.parts())
                .map(|part| run.processor_time(part))
                .collect()
        })
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
                "{}: predicted {:.0}, measured {measured:.0} a second ({:.0} to {:.0} in {} runs), {:+.1} %{}",
                part.name,
                part.own_rate,
                rates[0],
                rates[rates.len() - 1],
                rates.len(),
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
