//! `pext4 resize`: makes a file system larger or smaller, without mounting it.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use pext4_block::{Access, Progress};
use pext4_image::resize::{Options, Preview, Resize, Summary, Target, Way};
use serde::Serialize;

use crate::columns::{self, Align};
use crate::count::count;
use crate::device::ImageArgument;
use crate::interrupt::Interrupt;
use crate::names::ImageName;
use crate::output::print_result;
use crate::progress::{self, ProgressState};
use crate::{moment, output, size, superblock};

/// Make a file system larger or smaller, without mounting it
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The size: 10G, +1G, -1G, `min` for the smallest that fits, `max` for all of the file,
    /// partition or device
    #[arg(allow_hyphen_values = true, value_parser = parse)]
    size: Target,
    /// Work on the image itself also where an interruption cannot be undone
    #[arg(long)]
    in_place: bool,
    /// Say what would be done, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(short = 'q', long)]
    quiet: bool,
}

fn parse(text: &str) -> Result<Target, String> {
    match text {
        "min" => Ok(Target::Smallest),
        "max" => Ok(Target::Largest),
        _ => match text.split_at_checked(1) {
            Some(("+", more)) => size::parse(more).map(Target::More),
            Some(("-", less)) => size::parse(less).map(Target::Less),
            _ => size::parse(text).map(Target::Bytes),
        }
        .map_err(|problem| format!("{problem}, +1G, -1G, min or max")),
    }
}

/// What was done, for programs.
#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    image: ImageName,
    way: &'static str,
    done: bool,
    block_size: u32,
    old_blocks: u64,
    blocks: u64,
    free_blocks: u64,
    old_groups: u32,
    groups: u32,
    old_inodes: u32,
    inodes: u32,
    moved_blocks: u64,
    moved_inodes: u64,
    became_meta_bg: bool,
    replayed_transactions: u32,
    dropped_log: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_length: Option<u64>,
}

/// Runs the command.
///
/// # Errors
///
/// The size is impossible, the image is not sound, or it cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let image = &arguments.image.file;
    let name = || image.display().to_string();
    let access = match arguments.dry_run {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    let device = arguments.image.open(access)?;
    // Tells a file that is no ext4 from a damaged image.
    superblock::read(image, arguments.image.offset)?;
    let time = moment::source_date_epoch()?;
    let progress = Arc::new(Progress::default());
    let options = Options {
        in_place: arguments.in_place,
        progress: Arc::clone(&progress),
        time: time.map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
    };
    let is_wanted = progress::is_wanted(arguments.quiet, arguments.json);
    let state = || ProgressState::of("planning", &progress);
    let target = arguments.size;
    let prepare = || match arguments.dry_run {
        true => Resize::preview(device, target, options).map(|preview| (preview, None)),
        false => {
            Resize::prepare(device, target, options).map(|resize| (resize.planned(), Some(resize)))
        }
    };
    let (preview, resize) = progress::watch(is_wanted, state, prepare).with_context(name)?;
    if !arguments.quiet && !arguments.json {
        // The work is done even if nobody reads this.
        let _ = print_preview(&arguments.image, &preview);
    }
    let resize = resize.filter(|_| !preview.is_idle);
    let done = resize.is_some();
    if let Some(resize) = resize {
        run_watched(image, preview.way, resize, &progress, is_wanted)?;
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&Done::of(image, &preview, done))?;
        print_result(text, outcome(done))?;
    } else if done && !arguments.quiet {
        let bytes = size::show(preview.summary.bytes());
        print_result(format_args!("{}: it is {bytes} now", name()), outcome(done))?;
    }
    Ok(())
}

/// Runs the resize. A first signal stops the work on a clone; other work goes on, and says so. A
/// later one ends the process, except where that would damage the image.
fn run_watched(
    image: &Path,
    way: Way,
    resize: Resize,
    progress: &Progress,
    is_wanted: bool,
) -> Result<()> {
    let state = || ProgressState::of("writing", progress);
    let stop = || progress.stop();
    let run = || resize.run();
    let answer = |why: &str| format!("pext4: {}: {why}", image.display());
    let ended = match way {
        Way::Clone => progress::watch_until(is_wanted, state, stop, run)?,
        Way::Journal => {
            let interrupt = Interrupt::catch()?;
            let answer = answer(
                "its journal is being written, so it goes on; another signal ends it at once, and \
                 leaves the old file system or the new one",
            );
            progress::watch_to_the_end(&interrupt, is_wanted, state, &answer, run)
        }
        Way::InPlace => {
            let interrupt = Interrupt::catch_all()?;
            let answer = answer(
                "it cannot be interrupted now without damage, so it goes on, whatever signals come",
            );
            progress::watch_to_the_end(&interrupt, is_wanted, state, &answer, run)
        }
    };
    ended.map(drop).with_context(|| image.display().to_string())
}

/// What the error says if the result cannot be printed.
fn outcome(done: bool) -> &'static str {
    match done {
        true => "the file system was resized",
        false => "nothing was changed",
    }
}

impl Done {
    fn of(image: &Path, preview: &Preview, done: bool) -> Self {
        let summary = &preview.summary;
        Self {
            image: ImageName::of(image),
            way: match (preview.is_idle, preview.way) {
                (true, _) => "nothing",
                (false, Way::Journal) => "journal",
                (false, Way::Clone) => "clone",
                (false, Way::InPlace) => "in-place",
            },
            done,
            block_size: summary.block_size,
            old_blocks: summary.old_blocks,
            blocks: summary.blocks,
            free_blocks: summary.free_blocks,
            old_groups: summary.old_groups,
            groups: summary.groups,
            old_inodes: summary.old_inodes,
            inodes: summary.inodes,
            moved_blocks: summary.moved_blocks,
            moved_inodes: summary.moved_inodes,
            became_meta_bg: summary.became_meta_bg,
            replayed_transactions: summary.replayed,
            dropped_log: summary.has_dropped_log,
            kept_length: preview.kept_length,
        }
    }
}

/// What is said of a log that is not replayed.
const DROPPED: &str = "transactions whose replay the superblock does not ask for are dropped";

/// Prints what will be done, and the state after an interruption.
fn print_preview(image: &ImageArgument, preview: &Preview) -> io::Result<()> {
    let mut output = output::buffered();
    if preview.is_idle {
        let bytes = size::show(preview.summary.bytes());
        // The replay is a change, even if nothing else is: after an interrupted growth it is what
        // completes it.
        let journal = match preview.summary {
            Summary {
                has_dropped_log: true,
                ..
            } => format!(" (its journal: {DROPPED})"),
            Summary { replayed: 0, .. } => String::new(),
            Summary { replayed, .. } => {
                format!(" ({} in its journal)", counted_replays(replayed))
            }
        };
        writeln!(
            output,
            "{}: it is {bytes} already{journal}",
            image.file.display()
        )?;
        return output.flush();
    }
    columns::write(
        &mut output,
        &[Align::Left, Align::Left],
        &rows(image, preview),
    )?;
    output.flush()
}

fn rows(image: &ImageArgument, preview: &Preview) -> Vec<Vec<String>> {
    let summary = &preview.summary;
    let block_size = u64::from(summary.block_size);
    let bytes = |blocks: u64| size::show(blocks.saturating_mul(block_size));
    let mut name = image.file.display().to_string();
    if image.offset != 0 {
        name.push_str(&format!(", from byte {} on", image.offset));
    }
    let mut rows = vec![
        ("Image", name),
        (
            "Size",
            format!("{} -> {}", bytes(summary.old_blocks), bytes(summary.blocks)),
        ),
        (
            "Blocks",
            format!(
                "{} -> {} of {block_size} bytes",
                summary.old_blocks, summary.blocks
            ),
        ),
        (
            "Groups",
            format!("{} -> {}", summary.old_groups, summary.groups),
        ),
        (
            "Inodes",
            format!("{} -> {}", summary.old_inodes, summary.inodes),
        ),
        ("Free", bytes(summary.free_blocks)),
    ];
    if summary.moved_blocks > 0 || summary.moved_inodes > 0 {
        let text = format!(
            "{} of blocks, {} inodes",
            bytes(summary.moved_blocks),
            summary.moved_inodes
        );
        rows.push(("Moving", text));
    }
    if summary.became_meta_bg {
        let text = "descriptors of further groups lie in those groups from now on (meta_bg)";
        rows.push(("Layout", text.to_owned()));
    }
    if summary.has_dropped_log {
        rows.push(("Journal", DROPPED.to_owned()));
    }
    if summary.replayed > 0 {
        rows.push(("Journal", counted_replays(summary.replayed)));
    }
    if let Some(length) = preview.kept_length {
        let text = format!(
            "keeps its {}, as it was longer than its file system",
            size::show(length)
        );
        rows.push(("File", text));
    }
    rows.push(("Way", describe(preview.way).to_owned()));
    rows.into_iter()
        .map(|(label, text)| vec![label.to_owned(), text])
        .collect()
}

fn counted_replays(replayed: u32) -> String {
    count(replayed, "transaction replayed", "transactions replayed")
}

fn describe(way: Way) -> &'static str {
    match way {
        Way::Journal => "one transaction of its journal; interrupted, it is as before or as wanted",
        Way::Clone => "on a clone that replaces it at the end; interrupted, it is as before",
        Way::InPlace => "in place (by --in-place); interrupted, it is damaged",
    }
}

#[cfg(test)]
mod tests {
    use super::{Target, parse};

    #[test]
    fn sizes_are_absolute_relative_or_ends() {
        assert_eq!(parse("10G"), Ok(Target::Bytes(10 << 30)));
        assert_eq!(parse("+1.5M"), Ok(Target::More(3 << 19)));
        assert_eq!(parse("-512K"), Ok(Target::Less(512 << 10)));
        assert_eq!(parse("min"), Ok(Target::Smallest));
        assert_eq!(parse("max"), Ok(Target::Largest));
        for text in ["", "+", "-", "--1G", "+min", "big"] {
            let told = parse(text).expect_err(text);
            assert!(told.contains("+1G, -1G, min or max"), "{told}");
        }
    }
}
