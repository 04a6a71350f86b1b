//! `pext4-virtual`: draws the curve of a workload on virtual cores.

#![forbid(unsafe_code)]

mod arguments;
mod calibration;
mod real_threads;
mod remarks;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use pext4_lab::results::{Evidence, FORMAT, Machine, Point, Results, Series, Validation};
use pext4_lab::setup::{Setting, settings};
use pext4_lab::show;
use pext4_lab::sides::check::Verdict;
use pext4_lab::workloads::{Plan, Workload};
use pext4_sync::topology;
use pext4_sync::virtual_cores::{LineAllocator, Model, Stretches};
use pext4_virtual::machines::{self, NamedModel};
use pext4_virtual::run::{Outcome, point};
use pext4_virtual::setup::{Request, Setup};

use crate::calibration::{Calibration, calibrate};
use crate::real_threads::RealThreads;
use crate::remarks::{Lists, as_point, describe_waiting};

#[global_allocator]
static MEMORY: LineAllocator = LineAllocator;

/// Runs a workload of the lab on virtual cores.
///
/// It calibrates itself with one real thread first: leave the machine alone meanwhile. Then every
/// number of tasks runs the engine's own code, each task on a core with a clock of its own, and the
/// program says what saturates first, what queueing theory makes of the demands it saw, and how
/// much the cost of a transfer matters.
#[derive(Parser)]
#[command(name = "pext4-virtual")]
struct Arguments {
    /// A workload of `pext4 lab list`, except `control`, which never waits.
    workload: String,
    /// Numbers of tasks.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,96,128")]
    tasks: Vec<u32>,
    /// Settings of the mechanisms, as for `pext4 lab run`.
    #[arg(long, default_value = "base,seeds,full")]
    scaling: String,
    /// The machine: here, one-socket, two-sockets, kunpeng-920, epyc-9654, or nanoseconds per
    /// transfer.
    #[arg(long, default_value = "here")]
    machine: String,
    /// Seed of the simulation: the same stretches and seed give the same run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time between commits, in milliseconds of virtual time.
    #[arg(long, default_value_t = 5)]
    commit_ms: u32,
    /// Shortest window, in milliseconds of virtual time.
    #[arg(long, default_value_t = 15)]
    window_ms: u32,
    /// Longest window, in milliseconds of virtual time.
    #[arg(long, default_value_t = 150)]
    longest_ms: u32,
    /// Time to measure the stretches of real threads, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    calibration_ms: u32,
    /// Blocks of the journal.
    #[arg(long, default_value_t = 8192)]
    journal_blocks: u32,
    /// Mebibytes of the metadata cache; a quarter of it holds inodes, 1 KiB each.
    #[arg(long, default_value_t = 256)]
    cache_mib: u32,
    /// Groups of the image; by default four for each task of the largest number.
    #[arg(long)]
    groups: Option<u32>,
    /// Files of a task, for workloads that make many.
    #[arg(long, default_value_t = 100)]
    files: u32,
    /// Distinct values, for `xattr-share`.
    #[arg(long, default_value_t = 100)]
    values: u32,
    /// Percent of the image that is filled first; the free space is left in pieces.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..100))]
    fill: u32,
    /// Compares up to this many tasks with real threads (by default the number of processors).
    #[arg(long, num_args = 0..=1, default_missing_value = "0")]
    validate: Option<u32>,
    /// The program that measures real threads, built without default features.
    #[arg(long, env = "PEXT4_REAL")]
    real: Option<PathBuf>,
    /// Runs the largest number of tasks again with transfers at half and at double cost.
    #[arg(long)]
    sensitivity: bool,
    /// Lists the busiest stations of every point.
    #[arg(long)]
    stations: bool,
    /// Lists the stretches of code in which cores work longest, at every point.
    #[arg(long)]
    stretches: bool,
    /// Writes the results to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let most = arguments
        .tasks
        .iter()
        .copied()
        .max()
        .context("--tasks: at least one")?;
    if arguments.tasks.contains(&0) || most > 256 {
        bail!("--tasks: from 1 to 256");
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = arguments.tasks.iter().find(|&&tasks| !seen.insert(tasks)) {
        bail!("--tasks: {twice} is there twice");
    }
    if let Some(file) = &arguments.json {
        arguments::can_be_written(file)?;
    }
    topology::imitate(most as usize);
    let session = Session {
        here: Machine::here(),
        workload: arguments::workload(&arguments.workload)?,
        machine: machines::find(&arguments.machine, most as usize)?,
        groups: arguments.groups.unwrap_or((4 * most).max(16)),
        arguments,
    };
    let results = session.run()?;
    print!("{}", show::print(&results));
    if let Some(path) = &session.arguments.json {
        results.save(path)?;
    }
    Ok(())
}

/// One run of the program.
struct Session {
    /// The machine that calibrates, as it is before that: later its processors may be left to
    /// others.
    here: Machine,
    arguments: Arguments,
    workload: &'static dyn Workload,
    machine: NamedModel,
    groups: u32,
}

impl Session {
    fn run(&self) -> Result<Results> {
        let mut notes = vec![
            format!("machine {}: {}", self.machine.name, self.machine.source),
            describe_waiting(&self.machine.model.waiting),
            format!(
                "each line more of several that are asked for together: {:.1} ns, {}",
                self.machine.model.further as f64 / 1e3,
                self.machine.further_source
            ),
        ];
        let settings = settings(&self.arguments.scaling)?;
        // Everything that measures real time comes first; only then the machine must be idle.
        let mut costs = Vec::new();
        for setting in &settings {
            let mut real = self.real_threads(setting)?;
            let setup = self.setup(setting, 1, self.arguments.calibration_ms)?;
            let Calibration {
                stretches,
                description,
            } = calibrate(&setting.name, &setup, &mut real)?;
            notes.push(description);
            costs.push((Arc::new(stretches), real));
        }
        eprintln!("calibrated: from here on it does not matter what else the machine does");
        let lists = Lists {
            stations: self.arguments.stations,
            stretches: self.arguments.stretches,
        };
        let (mut series, mut validation) = (Vec::new(), Vec::new());
        for (setting, (stretches, real)) in settings.iter().zip(&costs) {
            if self.arguments.validate.is_some() {
                validation.extend(self.validate(setting, stretches, real, &mut notes)?);
            }
            let bar = self.bar(setting);
            let (mut points, mut verdict) = (Vec::new(), Verdict::Clean);
            for &tasks in &self.arguments.tasks {
                let outcome = self.point(setting, tasks, &self.machine.model, stretches)?;
                points.push(as_point(tasks, &outcome, lists));
                if outcome.verdict != Verdict::Clean {
                    verdict = outcome.verdict;
                }
                bar.inc(1);
            }
            if self.arguments.sensitivity {
                notes.extend(self.sensitivity(setting, &points, stretches)?);
            }
            bar.finish_and_clear();
            series.push(Series {
                label: setting.name.clone(),
                side: "library".to_owned(),
                scaling: Some(setting.name.clone()),
                points,
                check: verdict.to_string(),
            });
        }
        Ok(Results {
            validation,
            ..self.results(series, notes)
        })
    }

    fn bar(&self, setting: &Setting) -> ProgressBar {
        let bar = ProgressBar::new(self.arguments.tasks.len() as u64);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(format!("{} {}", self.workload.name(), setting.name));
        bar
    }

    fn request(&self, setting: &Setting, tasks: u32, window_ms: u32) -> Request {
        let arguments = &self.arguments;
        Request {
            workload: self.workload.name().to_owned(),
            plan: Plan {
                tasks,
                seed: arguments.seed,
                files: arguments.files,
                values: arguments.values,
                fill: (arguments.fill > 0).then_some(arguments.fill),
                ..Plan::default()
            },
            scaling: setting.scaling.to_string(),
            groups: self.groups,
            journal_blocks: arguments.journal_blocks,
            cache_mib: arguments.cache_mib,
            commit_ms: arguments.commit_ms,
            window_ms,
        }
    }

    fn setup(&self, setting: &Setting, tasks: u32, window_ms: u32) -> Result<Setup> {
        Setup::of(&self.request(setting, tasks, window_ms))
    }

    /// Runs one point of a curve on a machine.
    fn point(
        &self,
        setting: &Setting,
        tasks: u32,
        model: &Model,
        stretches: &Arc<Stretches>,
    ) -> Result<Outcome> {
        let arguments = &self.arguments;
        let mut setup = self.setup(setting, tasks, arguments.window_ms)?;
        setup.warm_up = setup.commit_interval;
        setup.longest = Duration::from_millis(u64::from(arguments.longest_ms)).max(setup.window);
        point(model, stretches, arguments.seed, &setup).with_context(|| {
            format!(
                "{} with {}, {}",
                self.workload.name(),
                show::tasks(tasks),
                setting.name
            )
        })
    }

    fn sensitivity(
        &self,
        setting: &Setting,
        points: &[Point],
        stretches: &Arc<Stretches>,
    ) -> Result<Vec<String>> {
        let Some(largest) = points.iter().max_by_key(|point| point.tasks) else {
            return Ok(Vec::new());
        };
        let tasks = show::tasks(largest.tasks);
        let mut text = format!("{}, {tasks}, other costs:", setting.name);
        let model = &self.machine.model;
        for (what, model) in [
            ("half a transfer", model.with_transfers(50)),
            ("two transfers", model.with_transfers(200)),
            ("waking in 25 us", model.with_slow_waking()),
        ] {
            let outcome = self.point(setting, largest.tasks, &model, stretches)?;
            for (part, reference) in outcome.counted.parts.iter().zip(&largest.parts) {
                write!(
                    text,
                    " {what}: {} {:.2}-fold;",
                    part.name,
                    part.rate / reference.rate
                )?;
            }
        }
        Ok(vec![text])
    }

    /// Compares predictions for this machine with real threads; the notes say so as well.
    fn validate(
        &self,
        setting: &Setting,
        stretches: &Arc<Stretches>,
        real: &[RealThreads],
        notes: &mut Vec<String>,
    ) -> Result<Vec<Validation>> {
        let mut validation = Vec::new();
        for measured in real {
            let tasks = measured.tasks;
            let setup = self.setup(setting, tasks, self.arguments.longest_ms)?;
            let transfer = measured.transfer();
            let (transfer, [least, most]) = transfer.context("one processor compares nothing")?;
            let here = Model {
                further: measured
                    .further()
                    .context("one processor compares nothing")?,
                ..self.machine.model.with_equal_transfers(transfer)
            };
            let predicted = point(&here, stretches, self.arguments.seed, &setup)?;
            let name = &setting.name;
            let [transfer, least, most] = [transfer, least, most].map(|time| time as f64 / 1e3);
            notes.push(format!(
                "validation, {name}, {tasks} real threads: a transfer took {transfer:.0} ns beside them \
                 ({least:.0} to {most:.0}), each line more of several {:.1} ns",
                here.further as f64 / 1e3
            ));
            let compared: Vec<_> = measured.compare(name, &predicted.counted.parts).collect();
            notes.extend(compared.iter().map(ToString::to_string));
            validation.extend(compared);
        }
        Ok(validation)
    }

    /// One real thread and as many more as are to be compared; none without the program for real
    /// threads.
    fn real_threads(&self, setting: &Setting) -> Result<Vec<RealThreads>> {
        let most = match self.arguments.validate {
            None => 1,
            Some(0) => u32::try_from(std::thread::available_parallelism()?.get())?,
            Some(most) => most,
        };
        let imitated = self.arguments.tasks.iter().copied().max();
        if imitated.is_some_and(|imitated| imitated < most) {
            bail!(
                "--validate compares {most} tasks: give as many with --tasks, since the machine has a \
                 processor, and structures a shard, for each of those"
            );
        }
        let tasks: Vec<u32> = std::iter::successors(Some(1), |tasks| Some(tasks * 2))
            .take_while(|&tasks| tasks <= most)
            .collect();
        match &self.arguments.real {
            Some(real) => {
                let compared = tasks.len() > 1;
                let window_ms = self.arguments.calibration_ms;
                let request = |tasks| self.request(setting, tasks, window_ms);
                let threads = |tasks| RealThreads::new(real, request(tasks), compared);
                Ok(tasks.into_iter().map(threads).collect())
            }
            None if self.arguments.validate.is_some() => {
                bail!("--validate wants --real PROGRAM (`cargo xtask virtual` gives it)")
            }
            None => Ok(Vec::new()),
        }
    }

    fn results(&self, series: Vec<Series>, notes: Vec<String>) -> Results {
        let arguments = &self.arguments;
        let model = &self.machine.model;
        let mut settings = vec![
            ("machine", self.machine.name.clone()),
            ("processors", model.processors.to_string()),
            (
                "a transfer",
                format!(
                    "{} ns near, {} ns across, {} ns far",
                    model.near / 1000,
                    model.across / 1000,
                    model.far / 1000
                ),
            ),
            ("seed", arguments.seed.to_string()),
            ("groups", self.groups.to_string()),
            ("journal", format!("{} blocks", arguments.journal_blocks)),
            ("cache", format!("{} MiB", arguments.cache_mib)),
            ("commits every", format!("{} ms", arguments.commit_ms)),
            ("files", arguments.files.to_string()),
            ("values", arguments.values.to_string()),
        ];
        if arguments.fill > 0 {
            settings.push(("filled before", format!("{} %", arguments.fill)));
        }
        Results {
            format: FORMAT,
            evidence: Evidence::Virtual,
            workload: self.workload.name().to_owned(),
            machine: self.here.clone(),
            settings: settings
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            overhead: 0.0,
            series,
            notes,
            validation: Vec::new(),
        }
    }
}
