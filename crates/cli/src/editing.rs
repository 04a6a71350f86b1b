//! The common part of all commands that change an image: how the changes are applied, which is
//! printed beforehand, and the verbs, which are both commands and lines of a script.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use clap::{Args, ValueEnum};
use pext4_block::{Access, Device, FileDevice, Progress};
use pext4_edit::{Change, CloneMethod, EditError, EditOptions, EditSession, Plan, Way};
use pext4_fs::{Refusal, StatFs};
use pext4_image::build::parse_time;
use serde::Serialize;

use crate::count::count;
use crate::device::ImageArgument;
use crate::failure::{self, Misuse};
use crate::interrupt::Interrupt;
use crate::moment::source_date_epoch;
use crate::names::ImageName;
use crate::output::{print, print_error, print_result};
use crate::progress::{self, ProgressState};
use crate::{size, superblock};

/// What a device has behind its file system counts as room from so many bytes on.
const ROOM: u64 = 1 << 20;

/// One kind of change, both a command and a line of a script.
pub trait Verb: Args {
    /// Applies it to a session.
    ///
    /// # Errors
    ///
    /// What cannot be done, with the path.
    fn apply(&self, session: &mut EditSession) -> Result<()>;
}

/// One change of one image.
#[derive(Args)]
pub struct Single<V: Verb> {
    #[command(flatten)]
    image: ImageArgument,
    #[command(flatten)]
    verb: V,
    #[command(flatten)]
    how: How,
}

/// How changes are applied to the image.
#[derive(Args)]
pub struct How {
    /// Stamp with this time (2024-05-01T12:00:00Z or @SECONDS) and give the same bytes for the same
    /// edit of the same image; else SOURCE_DATE_EPOCH does the same
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    mtime: Option<pext4_fs::Time>,
    /// How the changes reach the image
    #[arg(long, value_enum, default_value = "auto", value_name = "WAY")]
    by: By,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
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

/// What was done, for programs.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    image: ImageName,
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
    ///
    /// As [`How::run`].
    pub fn run(&self) -> Result<()> {
        self.how
            .run(&self.image, |session| self.verb.apply(session))
    }
}

impl How {
    /// Opens a session, calls `work` to change it, prints how the changes will be applied, and
    /// commits them.
    ///
    /// # Errors
    ///
    /// Any error of these steps. The image has not changed, unless the error of the commit says
    /// otherwise.
    pub fn run(
        &self,
        image: &ImageArgument,
        work: impl FnOnce(&mut EditSession) -> Result<()>,
    ) -> Result<()> {
        let options = self.options()?;
        // Until the image is locked there is nothing to clean up, so a signal may end the process.
        let device = image.open(Access::ReadWrite)?;
        let interrupt = Interrupt::catch().context("cannot catch signals")?;
        let done = self.run_on(device, &options, &interrupt, work);
        done.map_err(|error| match error.downcast_ref() {
            Some(EditError::Interrupted) => error.context(image.file.display().to_string()),
            _ => error,
        })
    }

    fn run_on(
        &self,
        device: FileDevice,
        options: &EditOptions,
        interrupt: &Interrupt,
        work: impl FnOnce(&mut EditSession) -> Result<()>,
    ) -> Result<()> {
        let image = &device.path().to_owned();
        let file = WholeFile::of(&device);
        let progress = &options.progress;
        let is_wanted = progress::is_wanted(self.quiet, self.json);
        let stop = || progress.stop();
        let state = || ProgressState::of("changing", progress);
        let change = || {
            let mut session = EditSession::from_file(device, options)?;
            let before = session.volume().statfs();
            let done = unless_stopped(work(&mut session), progress);
            done.map_err(|error| with_space(error, before, file.as_ref()))?;
            let notes = session.notes().to_vec();
            anyhow::Ok((notes, session.prepare()?))
        };
        let changed = progress::watch_with_interrupt(interrupt, is_wanted, state, stop, change);
        let (notes, prepared) = changed?;
        let report = report(image, prepared.changes(), prepared.plan(), &notes);
        let text = self.json.then(|| serde_json::to_string_pretty(&report));
        let text = text.transpose()?;
        if !self.quiet && !self.json {
            for note in &notes {
                print_error(format_args!("pext4: {}: {note}", image.display()));
            }
            // The change is made even if nobody reads standard output.
            let _ = print(describe(prepared.plan()));
        }
        let (state, commit) = (|| ProgressState::elapsed("writing"), || prepared.commit());
        let plan = progress::watch_with_interrupt(interrupt, is_wanted, state, stop, commit)?;
        let done = match plan {
            Plan::Nothing => "there was nothing to change",
            Plan::Transaction { .. } | Plan::Clone { .. } => "the image was changed",
        };
        text.map_or(Ok(()), |text| print_result(text, done))?;
        Ok(())
    }

    fn options(&self) -> Result<EditOptions> {
        let way = match self.by {
            By::Auto => Way::Auto,
            By::Journal => Way::Transaction,
            By::Clone => Way::Clone,
        };
        let tell = |reason: &str| {
            progress::print(&format!("pext4: working on a copy of the image: {reason}"));
        };
        let is_told = !self.quiet && !self.json;
        Ok(EditOptions {
            time: self.time()?,
            way,
            on_clone: is_told.then(|| Arc::new(tell) as _),
            ..EditOptions::default()
        })
    }

    fn time(&self) -> Result<Option<Duration>> {
        let time = match self.mtime {
            Some(time) => Some(time),
            None => source_date_epoch()?.map(pext4_fs::Time::from_seconds),
        };
        let duration = |time: pext4_fs::Time| {
            let seconds = u64::try_from(time.seconds).ok();
            let seconds = seconds.with_context(|| "a time before 1970 cannot be stamped");
            Ok(Duration::new(seconds?, time.nanoseconds))
        };
        time.map(duration).transpose()
    }
}

/// The result of work. If the work was stopped, any error of it becomes `Interrupted`.
fn unless_stopped<T>(done: Result<T>, progress: &Progress) -> Result<T> {
    done.map_err(|error| match progress.is_stopped() {
        true => EditError::Interrupted.into(),
        false => error,
    })
}

/// What an image is, if it is no part of a file and can be made larger: how depends on that.
struct WholeFile {
    path: PathBuf,
    /// The size of a block device, in bytes.
    device: Option<u64>,
}

impl WholeFile {
    /// `None` for a part of a file, and for what no resize takes.
    fn of(device: &FileDevice) -> Option<Self> {
        let can_be_resized = || !superblock::has_clusters(device);
        (device.range().is_none() && can_be_resized()).then(|| Self {
            path: device.path().to_owned(),
            device: device.is_block_device().then(|| device.size()),
        })
    }

    /// What makes its file system of so many bytes larger.
    fn advice(&self, bytes: u64) -> String {
        let name = self.path.display();
        match self.device {
            None => format!("; `pext4 resize {name} +SIZE` makes it larger"),
            Some(size) if size.saturating_sub(bytes) >= ROOM => format!(
                "; `pext4 resize {name} max` makes it as large as its device, which has {}",
                size::show(size)
            ),
            Some(_) => format!(
                "; it fills its device: when that is larger, `pext4 resize {name} max` makes it larger"
            ),
        }
    }
}

/// If an edit lacks space, adds how much there was before it, and what gives more to a file system
/// that is all of this file.
fn with_space(error: Error, before: StatFs, whole: Option<&WholeFile>) -> Error {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let lacks_space =
        |cause: &pext4_fs::Error| cause.is(Refusal::NoSpace) || cause.is(Refusal::NoInodes);
    if !causes.any(lacks_space) {
        return error;
    }
    let bytes = before
        .free_blocks
        .saturating_mul(u64::from(before.block_size));
    let inodes = count(before.free_inodes, "inode", "inodes");
    let all = before.blocks.saturating_mul(u64::from(before.block_size));
    let advice = whole.map_or(String::new(), |file| file.advice(all));
    anyhow!(
        "{}; before this edit {} and {inodes} were free{advice}",
        failure::line(&error),
        size::show(bytes)
    )
}

fn describe(plan: &Plan) -> String {
    match plan {
        Plan::Nothing => "nothing to change".to_owned(),
        Plan::Transaction { blocks: 1, .. } => "one transaction of 1 block".to_owned(),
        Plan::Transaction { blocks, .. } => format!("one transaction of {blocks} blocks"),
        Plan::Clone { method, reason } => {
            let copy = match method {
                CloneMethod::Reflink => "a clone that shares its blocks",
                _ => "a copy",
            };
            format!("{copy}, renamed into place: {reason}")
        }
    }
}

fn report<'a>(image: &Path, changes: u64, plan: &'a Plan, notes: &'a [String]) -> Report<'a> {
    let mut report = Report {
        image: ImageName::of(image),
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
        Plan::Clone { method, reason } => {
            report.way = "clone";
            report.reason = Some(reason);
            report.shares_blocks = Some(*method == CloneMethod::Reflink);
        }
    }
    report
}

/// The destination of so many sources.
///
/// # Errors
///
/// Several sources cannot become one file.
pub fn destination(text: &OsString, sources: usize, no_target_directory: bool) -> Result<Vec<u8>> {
    if sources > 1 && no_target_directory {
        let problem = "several files go into a directory, which -T does not enter";
        return Err(Misuse(problem.to_owned()).into());
    }
    Ok(path(text))
}

/// Applies the changes of a command, one for each of its sources. If there are several, they go
/// into a directory at the destination, which must be there.
///
/// # Errors
///
/// Those of the changes.
pub fn apply_to(
    session: &mut EditSession,
    destination: &[u8],
    changes: &[Change],
) -> pext4_edit::Result<()> {
    match changes {
        [change] => session.apply(change),
        changes => session.apply_together(destination, changes),
    }
}

/// A path of the image from the command line.
pub fn path(text: &OsString) -> Vec<u8> {
    text.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::WholeFile;

    #[test]
    fn what_makes_a_file_system_larger_depends_on_what_it_is_in() {
        let advice = |device| {
            let path = PathBuf::from("/dev/it");
            WholeFile { path, device }.advice(64 << 20)
        };
        assert!(advice(None).contains("`pext4 resize /dev/it +SIZE`"));
        assert!(advice(Some((64 << 20) + 4096)).contains("it fills its device"));
        let larger = advice(Some(1 << 30));
        assert!(
            larger.contains("resize /dev/it max` makes it as large as its device, which has 1 GiB")
        );
    }
}
