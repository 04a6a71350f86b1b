//! `pext4 check`: whether an image is sound.
//!
//! The exit status is that of e2fsck, so that scripts can call either: 0 nothing is wrong, 4
//! something is wrong, 8 the image could not be checked or the report not be written, 12 both, 16
//! the command line was invalid, 32 cancelled.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use pext4_block::Access;
use pext4_image::check::{
    self, BlockNumber, Finding, Grade, GroupNumber, InodeNumber, Options, Progress, Report, Step,
};
use pext4_sync::{Class, Mutex};
use serde::Serialize;

use super::record;
use crate::columns::{self, Align};
use crate::count::count;
use crate::device::ImageArgument;
use crate::failure::{self, Reported};
use crate::format;
use crate::interrupt::Interrupt;
use crate::names::{self, ImageName};
use crate::output::{self, print_error};
use crate::progress::{self, Measure, ProgressState};

const FINDINGS: u8 = 4;
const OPERATIONAL: u8 = 8;
/// The exit status for an invalid command line.
pub const USAGE: u8 = 16;
const CANCELLED: u8 = 32;

/// Check whether an image is sound; reads only
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// Threads, at most 1024 [default: one a processor]
    #[arg(long, value_name = "COUNT", value_parser = format::threads)]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing if nothing is found, not even a note
    #[arg(short, long)]
    quiet: bool,
    /// Tell how long each pass took
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the command.
///
/// # Errors
///
/// Unless the image is sound, [`Reported`] with the exit status.
pub fn run(arguments: &Arguments) -> Result<()> {
    match checked(arguments) {
        Ok(0) => Ok(()),
        Ok(status) => Err(Reported(status).into()),
        Err(error) if matches!(error.downcast_ref(), Some(check::Error::Interrupted)) => {
            print_error(format_args!(
                "pext4: {}: cancelled",
                arguments.image.file.display()
            ));
            Err(Reported(CANCELLED).into())
        }
        Err(error) => {
            failure::report(&error);
            Err(Reported(OPERATIONAL).into())
        }
    }
}

fn checked(arguments: &Arguments) -> Result<u8> {
    let name = || arguments.image.file.display().to_string();
    let device = arguments.image.open(Access::ReadOnly)?;
    let mounted_on = device.kernel_mount();
    if let Some(directory) = &mounted_on {
        print_error(format_args!(
            "pext4: {}: the kernel has it mounted on {}, and writes to it while it is checked: what is \
             found, or not, means nothing",
            name(),
            directory.display()
        ));
    }
    let interrupt = Interrupt::catch_and_end_with(CANCELLED).context("cannot catch signals")?;
    let is_wanted = progress::is_wanted(arguments.quiet, arguments.json);
    let last = Last::new();
    let options = Options {
        threads: arguments.threads.map_or(0, NonZeroUsize::get),
        progress: is_wanted.then(|| last.keeper()),
        cancel: interrupt.flag(),
    };
    let check = || check::check(Arc::new(device), &options);
    let report = progress::watch(is_wanted, || last.state(), check);
    let report = report.map_err(anyhow::Error::from).with_context(name)?;
    match write_report(arguments, &report, mounted_on.is_some()) {
        Ok(()) => Ok(status(&report)),
        // The reader has closed the output. The status still depends on the findings.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(status(&report)),
        Err(error) => {
            failure::report(&error.into());
            Ok(status(&report) | OPERATIONAL)
        }
    }
}

fn write_report(arguments: &Arguments, report: &Report, is_mounted: bool) -> io::Result<()> {
    let mut output = output::buffered();
    if arguments.json {
        let summary = Summary::of(&arguments.image.file, report, is_mounted);
        record::write(&mut output, &summary)?;
    } else {
        write(&mut output, arguments, report)?;
    }
    output.flush()
}

fn status(report: &Report) -> u8 {
    let found = if report.worst().is_some_and(|grade| grade > Grade::Note) {
        FINDINGS
    } else {
        0
    };
    if report.is_complete {
        found
    } else {
        found | OPERATIONAL
    }
}

/// The last progress that the check reported, which it does often, for the progress bar.
#[derive(Clone)]
struct Last(Arc<Mutex<Option<Step>>>);

impl Last {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Class::Leaf, None)))
    }

    fn keeper(&self) -> Progress {
        let last = Arc::clone(&self.0);
        Box::new(move |step: Step| *last.lock() = Some(step))
    }

    fn state(&self) -> ProgressState {
        let Some(step) = *self.0.lock() else {
            return ProgressState::elapsed("opening");
        };
        ProgressState {
            measure: Measure::Percent,
            position: step.done.into(),
            length: step.total.into(),
            text: step.pass.name().to_owned(),
            ..ProgressState::elapsed("checking")
        }
    }
}

/// Writes the findings as rows, then a line of summary.
fn write(to: &mut dyn Write, arguments: &Arguments, report: &Report) -> io::Result<()> {
    let rows: Vec<Vec<String>> = report.findings.iter().map(row).collect();
    columns::write(to, &[Align::Left; 4], &rows)?;
    for (kind, count) in &report.counts {
        let kept = report
            .findings
            .iter()
            .filter(|one| one.kind == *kind)
            .count() as u64;
        if kept < *count {
            writeln!(to, "{} more findings of {}", count - kept, kind.name())?;
        }
    }
    if arguments.verbose {
        for (pass, time) in &report.times {
            writeln!(to, "{:<26} {:>8.3} s", pass.name(), time.as_secs_f64())?;
        }
    }
    if arguments.quiet && report.counts.is_empty() {
        return Ok(());
    }
    writeln!(
        to,
        "{}: {}",
        arguments.image.file.display(),
        describe(report)
    )
}

fn row(finding: &Finding) -> Vec<String> {
    let text = match &finding.place.path {
        Some(path) => format!("{}: {}", names::show(path), finding.text),
        None => finding.text.clone(),
    };
    vec![
        finding.kind.grade().to_string(),
        finding.kind.name().to_owned(),
        finding.place.to_string(),
        text,
    ]
}

fn describe(report: &Report) -> String {
    let grades = [Grade::Fatal, Grade::Serious, Grade::Problem, Grade::Note];
    let counts: Vec<String> = grades
        .into_iter()
        .filter_map(|grade| {
            let of_grade = report
                .counts
                .iter()
                .filter(|(kind, _)| kind.grade() == grade);
            let number: u64 = of_grade.map(|(_, number)| number).sum();
            let many = match grade {
                Grade::Fatal | Grade::Serious => grade.to_string(),
                Grade::Problem | Grade::Note => format!("{grade}s"),
            };
            (number > 0).then(|| count(number, grade, many))
        })
        .collect();
    let found = match (report.is_clean(), counts.is_empty()) {
        (true, true) => "clean".to_owned(),
        (true, false) => format!("clean, with {}", counts.join(", ")),
        (false, _) => counts.join(", "),
    };
    if !report.is_complete {
        return format!("{found}; the rest could not be checked");
    }
    format!(
        "{found}; {}, {}, {} of {} blocks in use",
        count(report.files, "file", "files"),
        count(report.directories, "directory", "directories"),
        report.used_blocks,
        report.blocks
    )
}

/// The report in JSON.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    image: ImageName,
    mounted: bool,
    clean: bool,
    complete: bool,
    findings: Vec<Row>,
    counts: Vec<Count>,
    files: u64,
    directories: u64,
    used_blocks: u64,
    blocks: u64,
    block_size: u32,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    grade: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    text: String,
}

#[derive(Serialize)]
struct Count {
    name: &'static str,
    grade: &'static str,
    count: u64,
}

impl Summary {
    fn of(image: &Path, report: &Report, mounted: bool) -> Self {
        let row = |finding: &Finding| Row {
            name: finding.kind.name(),
            grade: finding.kind.grade().name(),
            group: finding.place.group.map(GroupNumber::get),
            inode: finding.place.inode.map(InodeNumber::get),
            block: finding.place.block.map(BlockNumber::get),
            path: finding.place.path.as_deref().map(names::text),
            path_hex: finding
                .place
                .path
                .as_deref()
                .and_then(names::hexadecimal_unless_text),
            text: finding.text.clone(),
        };
        let count = |&(kind, count): &(check::Kind, u64)| Count {
            name: kind.name(),
            grade: kind.grade().name(),
            count,
        };
        Self {
            image: ImageName::of(image),
            mounted,
            clean: report.is_clean(),
            complete: report.is_complete,
            findings: report.findings.iter().map(row).collect(),
            counts: report.counts.iter().map(count).collect(),
            files: report.files,
            directories: report.directories,
            used_blocks: report.used_blocks,
            blocks: report.blocks,
            block_size: report.block_size,
        }
    }
}
