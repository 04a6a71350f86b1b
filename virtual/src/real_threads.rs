//! Real threads, measured by `pext4-real`: they calibrate the virtual cores, whose predictions are
//! compared with them.
//!
//! Measurements are noisy, so each is made several times, every time in a process of its own; the
//! median counts, and the report shows the range. One run of each is made in every round of the
//! calibration, so that everything that is compared comes from the same minutes: the machine's
//! speed changes by a third for minutes at a time. The processors of a guest also move, from two
//! threads of one core to two sockets and back, so the cost of a transfer is measured before each
//! run as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use pext4_lab::results::{Validation, median};
use pext4_virtual::hand_over::{measured_further, measured_transfer};
use pext4_virtual::parts::PartRate;
use pext4_virtual::setup::{Counted, Request};

/// Repeated runs of one measurement.
pub struct RealThreads {
    /// Number of tasks.
    pub tasks: u32,
    program: PathBuf,
    request: Request,
    /// Whether the cost of a transfer is measured before each run.
    is_compared: bool,
    runs: Vec<Counted>,
    /// Picoseconds of a transfer before each run.
    transfers: Vec<u64>,
    /// Picoseconds of each line more of several, likewise.
    furthers: Vec<u64>,
}

impl RealThreads {
    /// Runs of `program`, which is sent the request.
    pub fn new(program: &Path, request: Request, is_compared: bool) -> Self {
        Self {
            tasks: request.plan.tasks,
            program: program.to_owned(),
            request,
            is_compared,
            runs: Vec::new(),
            transfers: Vec::new(),
            furthers: Vec::new(),
        }
    }

    /// Runs it once more.
    ///
    /// # Errors
    ///
    /// If it cannot be started, fails, or prints a result that cannot be read; if transfers are to
    /// be measured and there is only one processor.
    pub fn run_once(&mut self) -> Result<()> {
        if self.is_compared {
            self.transfers.push(measured_transfer()?);
            self.furthers.push(measured_further()?);
        }
        self.runs.push(run(&self.program, &self.request)?);
        Ok(())
    }

    /// Picoseconds of a transfer: the median and the range, if transfers were measured.
    #[must_use]
    pub fn transfer(&self) -> Option<(u64, [u64; 2])> {
        let mut transfers = self.transfers.clone();
        transfers.sort_unstable();
        let (first, last) = (transfers.first()?, transfers.last()?);
        Some((transfers[transfers.len() / 2], [*first, *last]))
    }

    /// Picoseconds of each line more of several that are requested together: the median, if it was
    /// measured.
    #[must_use]
    pub fn further(&self) -> Option<u64> {
        let mut furthers = self.furthers.clone();
        furthers.sort_unstable();
        furthers.get(furthers.len() / 2).copied()
    }

    /// Number of parts of the workload.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.runs.first().map_or(0, |run| run.parts.len())
    }

    /// CPU time of an operation of a part in nanoseconds, in each run.
    #[must_use]
    pub fn processor_times(&self, part: usize) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.map(|run| run.processor_time(part)).collect()
    }

    /// CPU time of an operation of each part in nanoseconds, in the latest run.
    #[must_use]
    pub fn latest_times(&self) -> Vec<f64> {
        let run = self.runs.last();
        run.map_or_else(Vec::new, |run| {
            (0..self.parts())
                .map(|part| run.processor_time(part))
                .collect()
        })
    }

    /// A prediction for a setting beside the runs, part by part.
    pub fn compare(
        &self,
        setting: &str,
        predicted: &[PartRate],
    ) -> impl Iterator<Item = Validation> {
        predicted.iter().enumerate().map(move |(index, part)| {
            let rates = self.runs.iter().map(|run| run.parts[index].own_rate);
            let mut rates: Vec<f64> = rates.collect();
            rates.sort_by(f64::total_cmp);
            Validation {
                setting: setting.to_owned(),
                threads: self.tasks,
                part: part.name.clone(),
                predicted: part.own_rate,
                measured: median(&rates),
                least: rates[0],
                most: rates[rates.len() - 1],
                runs: u32::try_from(rates.len()).unwrap_or(u32::MAX),
            }
        })
    }
}

fn run(program: &Path, request: &Request) -> Result<Counted> {
    let request = serde_json::to_string(request)?;
    let output = Command::new(program).arg(request).output();
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", program.display(), told.trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
