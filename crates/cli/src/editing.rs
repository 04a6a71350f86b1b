//! The common part of all commands that change an image: how the change is written to the image,
//! which the command prints beforehand, and the verbs, which are commands and also lines of a
//! script.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pext4_block::{Access, FileDevice};
use pext4_edit::{EditError, EditOptions, EditSession, Made, Plan, Progress, Way};
use pext4_image::build::parse_time;
use serde::Serialize;

use crate::device;
use crate::failure::Misuse;
use crate::interrupt::Interrupt;
use crate::progress::{self, Look};
use crate::say::{aside, say};

/// One kind of change, as a command of its own and as a line of a script.
pub trait Verb: Args {
    /// Applies it to a session.
    ///
    /// # Errors
    /// The first change that is not possible, with its path.
    fn apply(&self, session: &mut EditSession) -> Result<()>;
}

/// One change of one image.
#[derive(Args)]
pub struct Single<V: Verb> {
    /// The image or block device
    image: PathBuf,
    #[command(flatten)]
    verb: V,
    #[command(flatten)]
    how: How,
}

/// The options of all such commands.
#[derive(Args)]
pub struct How {
    /// Stamp with this time (2024-05-01T12:00:00Z or @SECONDS) and give the same bytes for the same
    /// edit of the same image; else SOURCE_DATE_EPOCH does the same
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    mtime: Option<pext4_fs::Time>,
    /// How to make all of it true at once
    #[arg(long, value_enum, default_value = "auto", value_name = "WAY")]
    by: By,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// One transaction of the image's journal if it fits, else a clone
    Auto,
    /// One transaction, or an error
    Journal,
    /// A clone, renamed into place
    Clone,
}

/// The result in JSON.
#[derive(Serialize)]
struct Report<'a> {
    image: String,
    changes: u64,
    way: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal_blocks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shares_blocks: Option<bool>,
    notes: &'a [String],
}

impl<V: Verb> Single<V> {
    /// Runs it as a command.
    ///
    /// # Errors
    /// Those of [`How::run`].
    pub fn run(&self) -> Result<()> {
        self.how.run(&self.image, |session| {
            self.verb.apply(session)?;
            Ok(1)
        })
    }
}

impl How {
    /// Opens a session, lets `work` change it, prints how the changes will be written to the image,
    /// and commits them. `work` returns the number of its changes.
    ///
    /// # Errors
    /// The errors of the session, of `work`, and `Interrupted` after a signal; the image is
    /// unchanged then, unless an error of the commit says otherwise.
    pub fn run(
        &self,
        image: &Path,
        work: impl FnOnce(&mut EditSession) -> Result<u64>,
    ) -> Result<()> {
        let options = self.options()?;
        // Before the image is locked there is nothing to clean up: a signal ends the process.
        let device = device::open(image, Access::ReadWrite)?;
        let interrupt = Interrupt::catch().context("cannot catch signals")?;
        let done = self.run_on(device, &options, &interrupt, work);
        done.map_err(|error| match error.downcast_ref() {
            Some(EditError::Interrupted) => error.context(image.display().to_string()),
            _ => error,
        })
    }

    fn run_on(
        &self,
        device: FileDevice,
        options: &EditOptions,
        interrupt: &Interrupt,
        work: impl FnOnce(&mut EditSession) -> Result<u64>,
    ) -> Result<()> {
        let image = &device.path().to_owned();
        let progress = &options.progress;
        let is_wanted = progress::is_wanted(self.quiet, self.json);
        let stop = || progress.stop();
        let look = || Look::so_far("changing", progress);
        let change = || {
            let mut session = EditSession::over(device, options)?;
            let notes = session.notes().to_vec();
            let changes = unless_stopped(work(&mut session), progress)?;
            anyhow::Ok((changes, notes, session.prepare()?))
        };
        let changed = progress::watch_caught(interrupt, is_wanted, look, stop, change);
        let (changes, notes, prepared) = changed?;
        let report = report(image, changes, prepared.plan(), &notes);
        let text = self.json.then(|| serde_json::to_string_pretty(&report));
        let text = text.transpose()?;
        if !self.quiet && !self.json {
            for note in &notes {
                aside(format_args!("pext4: {}: {note}", image.display()));
            }
            // If the reader of the output is gone, the change is made all the same.
            let _ = say(describe(prepared.plan()));
        }
        let (look, commit) = (|| Look::at("writing"), || prepared.commit());
        progress::watch_caught(interrupt, is_wanted, look, stop, commit)?;
        text.map_or(Ok(()), say)?;
        Ok(())
    }

    fn options(&self) -> Result<EditOptions> {
        let way = match self.by {
            By::Auto => Way::Auto,
            By::Journal => Way::Transaction,
            By::Clone => Way::Clone,
        };
        let tell = if self.quiet || self.json {
            |_: &str| {}
        } else {
            |reason: &str| {
                progress::say(&format!("pext4: working on a copy of the image: {reason}"));
            }
        };
        Ok(EditOptions {
            time: self.time()?,
            way,
            tell,
            ..EditOptions::default()
        })
    }

    fn time(&self) -> Result<Option<Duration>> {
        let time = match self.mtime {
            Some(time) => Some(time),
            None => source_date_epoch()?,
        };
        let duration = |time: pext4_fs::Time| {
            let seconds = u64::try_from(time.seconds).ok();
            let seconds = seconds.with_context(|| "a time before 1970 cannot be stamped");
            Ok(Duration::new(seconds?, time.nanoseconds))
        };
        time.map(duration).transpose()
    }
}

/// The result of the work. If the work was asked to stop, any error of it becomes `Interrupted`.
fn unless_stopped<T>(done: Result<T>, progress: &Progress) -> Result<T> {
    done.map_err(|error| match progress.is_stopped() {
        true => EditError::Interrupted.into(),
        false => error,
    })
}

/// The time in the environment variable `SOURCE_DATE_EPOCH`, if it is set.
fn source_date_epoch() -> Result<Option<pext4_fs::Time>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.trim().parse().ok());
    match seconds {
        Some(seconds) => Ok(Some(pext4_fs::Time {
            seconds,
            nanoseconds: 0,
        })),
        None => Err(Misuse(format!(
            "SOURCE_DATE_EPOCH is `{}`, not a number of seconds",
            text.display()
        ))
        .into()),
    }
}

fn describe(plan: &Plan) -> String {
    match plan {
        Plan::Nothing => "nothing to change".to_owned(),
        Plan::Transaction { blocks: 1, .. } => "one transaction of 1 block".to_owned(),
        Plan::Transaction { blocks, .. } => format!("one transaction of {blocks} blocks"),
        Plan::Clone { made, reason } => {
            let made = match made {
                Made::Reflink => "a clone that shares its blocks",
                Made::Copy => "a copy",
            };
            format!("{made}, renamed into place: {reason}")
        }
    }
}

fn report<'a>(image: &Path, changes: u64, plan: &'a Plan, notes: &'a [String]) -> Report<'a> {
    let mut report = Report {
        image: image.display().to_string(),
        changes,
        way: "nothing",
        journal_blocks: None,
        reason: None,
        shares_blocks: None,
        notes,
    };
    match plan {
        Plan::Nothing => {}
        Plan::Transaction { blocks, .. } => {
            report.way = "transaction";
            report.journal_blocks = Some(*blocks);
        }
        Plan::Clone { made, reason } => {
            report.way = "clone";
            report.reason = Some(reason);
            report.shares_blocks = Some(*made == Made::Reflink);
        }
    }
    report
}

/// A path of the image from the command line.
pub fn path(text: &OsString) -> Vec<u8> {
    text.as_bytes().to_vec()
}
