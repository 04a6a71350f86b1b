//! `pext4 lab run`: measures, prints the results and stores them.

mod check;
mod describe;
mod save;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use pext4_fs::MountOptions;
use pext4_fuse::ending_signals;
use pext4_lab::experiment::{Experiment, Progress};
use pext4_lab::instructions::Instructions;
use pext4_lab::leftovers;
use pext4_lab::results::{Machine, Results};
use pext4_lab::run::Interrupt;
use pext4_lab::setup::{Competitor, DeviceKind, Request, Setting, ablation, settings};
use pext4_lab::show;
use pext4_lab::sides::Storage;
use pext4_lab::workloads::{self, Mix, Plan, Workload};
use pext4_sync::meter;
use signal_hook::consts::SIGQUIT;

use crate::output::{print, print_error};
use crate::progress::{Bar, Measure, ProgressState};
use crate::{format, program, size};

use check::{check, misuse};

/// The maximum number of tasks of a run. Each is a thread or a process.
const MAX_TASKS: u32 = 4096;

/// Run workloads and print their rates
///
/// Without more arguments: in process, on a device in memory, without any rights.
#[derive(Args)]
pub struct Arguments {
    /// Names as `lab list` shows them
    #[arg(required = true)]
    workloads: Vec<String>,
    /// Numbers of tasks
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64"
    )]
    tasks: Vec<u32>,
    /// In process on this: `ram`, `slow` (memory with an SSD's delays), or an image
    #[arg(long, value_name = "DEVICE", default_value = "ram", conflicts_with_all = ["path", "compare"])]
    device: String,
    /// Processes in this directory, of any file system
    #[arg(long, value_name = "DIR", conflicts_with_all = [
        "compare", "scaling", "ablate", "size", "journal", "inode_size", "commit", "cache_size", "no_check"
    ])]
    path: Option<PathBuf>,
    /// In turn on new images in memory: kernel, fuse2fs, pext4 (mounts), library (in process),
    /// apart (the library with a volume a task: a control that shares nothing)
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    compare: Vec<String>,
    /// Settings: base, seeds, full; switches after one change it, as in full,-try-lock
    #[arg(long, value_name = "SETTING,...", allow_hyphen_values = true)]
    scaling: Option<String>,
    /// Measure with each mechanism off in turn
    #[arg(long, conflicts_with = "scaling")]
    ablate: bool,
    /// Also measure a control, whose tasks share nothing
    #[arg(long)]
    control: bool,
    /// Seconds that each measurement counts; 0.3, and more where many tasks share a processor
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Seconds before them that are not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = seconds)]
    warm_up: f64,
    /// Measurements of each point
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Count so many steps of every task instead of time; one round of what goes in rounds, and no
    /// more than there are of what is done once
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["seconds", "warm_up"]
    )]
    steps: Option<u64>,
    /// Seed of the random draws
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Files of a task, where it has many
    #[arg(
        long,
        value_name = "N",
        default_value_t = Plan::default().files,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    files: u32,
    /// Files of all tasks together, divided among them, so that as many are in memory at every
    /// point
    #[arg(long, value_name = "N", conflicts_with = "files", value_parser = clap::value_parser!(u32).range(1..))]
    files_in_all: Option<u32>,
    /// Size to which a file grows
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64M")]
    file_size: u64,
    /// Distinct values of extended attributes
    #[arg(
        long,
        value_name = "N",
        default_value_t = Plan::default().values,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    values: u32,
    /// Users, where tasks play some (the published runs had 2000)
    #[arg(
        long,
        value_name = "N",
        default_value_t = Plan::default().users,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    users: u32,
    /// What the users do: alltests, custom, disk, fserver, new_fserver, new_dbase, shared
    #[arg(long, value_name = "NAME", default_value = "alltests", value_parser = mix)]
    mix: Mix,
    /// Fill the image to so many percent first, and leave what is free in pieces
    #[arg(long, value_name = "PERCENT", conflicts_with = "path", value_parser = clap::value_parser!(u32).range(1..100))]
    fill: Option<u32>,
    /// Size of the images that are made; without it four groups a task, at least 8 GiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Size of these images' journal
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    journal: Option<u64>,
    /// Inode size of these images, in bytes
    #[arg(long, value_name = "BYTES", value_parser = format::inode_size)]
    inode_size: Option<u16>,
    /// Longest time between commits
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    commit: u64,
    /// Memory for metadata of pext4, in process and mounted; 256M if absent
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache_size: Option<u64>,
    /// What locks cost, by class; only in a build with `--features meter`, and in process
    #[arg(long, conflicts_with = "path")]
    meter: bool,
    /// The counters of volumes in process, as `pext4 stats` shows those of a mount
    #[arg(long, conflicts_with = "path")]
    counters: bool,
    /// Keep each task on one processor
    #[arg(long)]
    pin: bool,
    /// Do not check the images afterwards
    #[arg(long)]
    no_check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the results to WORKLOAD.json in this folder (see --tag)
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    /// Draw the curves to WORKLOAD.svg in this folder, a file for each part and kind
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Text appended to WORKLOAD in the name of the file of --save
    #[arg(long, value_name = "TEXT", requires = "save")]
    tag: Option<String>,
}

fn mix(name: &str) -> Result<Mix, String> {
    let names = || Mix::ALL.map(|(name, _)| name).join(", ");
    Mix::from_name(name).ok_or_else(|| format!("there are {}", names()))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && (0.0..86_400.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds, less than a day".to_owned()),
    }
}

/// Runs the command.
///
/// # Errors
///
/// The command line is invalid, a run failed, or its results cannot be stored or printed. A run
/// that failed has no results.
pub fn run(arguments: &Arguments) -> Result<()> {
    let found: Result<Vec<&dyn Workload>> = arguments
        .workloads
        .iter()
        .map(|name| workloads::find(name))
        .collect();
    let found = found.map_err(misuse)?;
    check(arguments)?;
    save::prepare(arguments, &found)?;
    meter::switch(arguments.meter);
    let interrupt = Interrupt::default();
    // Without this, a signal would leave mounts and loop devices behind.
    for signal in ending_signals().into_iter().chain([SIGQUIT]) {
        signal_hook::flag::register(signal, interrupt.flag()).context("cannot catch signals")?;
    }
    // Read once: later the load average includes the previous workload.
    let busy = Machine::here().busy();
    let mut all = Vec::new();
    let mut stored = Ok(());
    for workload in found {
        let run = run_one(arguments, workload, &interrupt);
        for left in leftovers::take() {
            print_error(format_args!("pext4: left behind: {left}"));
        }
        // If the run was interrupted, an error may come from a server that was ended for that.
        if run.is_err() {
            interrupt.check()?;
        }
        let mut results = run?;
        results.notes.extend(busy.clone());
        let shown = show_tables(arguments, &results);
        // What took minutes to measure is stored even if nobody reads it, and the reverse.
        stored = stored.and(save::store(arguments, &results));
        shown?;
        all.push(results);
    }
    if arguments.json {
        match &all[..] {
            [one] => print(serde_json::to_string_pretty(one)?)?,
            _ => print(serde_json::to_string_pretty(&all)?)?,
        }
    }
    stored
}

/// Prints a run's tables, unless JSON is printed at the end.
fn show_tables(arguments: &Arguments, results: &Results) -> Result<()> {
    if arguments.json {
        return Ok(());
    }
    print(show::print(results).trim_end())?;
    if arguments.ablate {
        print(show::print_ablation(results).trim_end())?;
    }
    Ok(())
}

fn competitors(arguments: &Arguments) -> Result<Vec<Competitor>> {
    let names = arguments.compare.iter();
    let all: Result<Vec<Competitor>> = names.map(|name| Competitor::parse(name)).collect();
    all.map_err(misuse)
}

fn cache_size(arguments: &Arguments) -> u64 {
    let usual = MountOptions::default().cache_size;
    arguments.cache_size.unwrap_or(usual)
}

/// The note if a cache size was chosen and not all of the compared file systems have it.
fn without_our_cache(arguments: &Arguments, compared: &[Competitor]) -> Option<String> {
    arguments.cache_size?;
    let others = compared.iter().filter(|one| !one.is_pext4());
    let names: Vec<&str> = others.map(|one| one.name()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "--cache-size is not for {}: theirs is their own",
            names.join(", ")
        )
    })
}

/// The settings to measure: by default `base`, `seeds` and `full`, or only `full` in a comparison.
fn chosen(arguments: &Arguments) -> Result<Vec<Setting>> {
    if arguments.ablate {
        return ablation();
    }
    let usual = if arguments.compare.is_empty() {
        "base,seeds,full"
    } else {
        "full"
    };
    settings(arguments.scaling.as_deref().unwrap_or(usual)).map_err(misuse)
}

fn plan(arguments: &Arguments) -> Plan {
    let tasks = arguments.tasks.iter().copied().max().unwrap_or(1);
    let share = arguments.files_in_all.map(|files| files.div_ceil(tasks));
    Plan {
        tasks,
        seed: arguments.seed,
        files: share.unwrap_or(arguments.files),
        file_size: arguments.file_size,
        values: arguments.values,
        users: arguments.users,
        mix: arguments.mix,
        fill: arguments.fill,
    }
}

fn run_one(
    arguments: &Arguments,
    workload: &'static dyn Workload,
    interrupt: &Interrupt,
) -> Result<Results> {
    let request = Request {
        workload,
        plan: plan(arguments),
        device: DeviceKind::parse(&arguments.device),
        path: arguments.path.clone(),
        compare: competitors(arguments)?,
        settings: chosen(arguments)?,
        storage: Storage {
            size: arguments.size,
            inode_size: arguments.inode_size,
            journal: arguments.journal,
        },
        commit: Duration::from_secs(arguments.commit),
        cache: cache_size(arguments),
        control: arguments.control,
        checked: !arguments.no_check,
        program: program::path(),
        interrupt: interrupt.clone(),
    };
    let settings = describe::settings(arguments, &request)?;
    let mut field = request.field()?;
    field
        .notes
        .extend(without_our_cache(arguments, &request.compare));
    for note in &field.notes {
        print_error(format_args!("pext4: {note}"));
    }
    let experiment = Experiment {
        workload,
        tasks: arguments.tasks.clone(),
        plan: request.plan.clone(),
        files_in_all: arguments.files_in_all,
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        counted: arguments.seconds.map(Duration::from_secs_f64),
        steps: arguments.steps,
        repeat: arguments.repeat,
        pinned: arguments.pin,
        counters: arguments.counters,
        interrupt: interrupt.clone(),
        settings,
    };
    let bar = Bar::new();
    let mut results = experiment
        .run(&mut field.entrants, &mut |progress| {
            bar.show(&state(workload, progress));
        })
        .with_context(|| workload.name())?;
    results.notes.append(&mut field.notes);
    if let Some(why) = Instructions::refusal() {
        results
            .notes
            .push(format!("instructions were not counted: {why}"));
    }
    Ok(results)
}

/// The progress of a run, for the bar.
fn state(workload: &dyn Workload, progress: Progress<'_>) -> ProgressState {
    ProgressState {
        measure: Measure::Points,
        position: progress.done as u64,
        length: progress.all as u64,
        text: format!("{}, tasks {}", progress.side, progress.tasks),
        ..ProgressState::elapsed(workload.name())
    }
}
