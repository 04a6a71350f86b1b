//! Runs random operations on a subject, compares it with the model, and shrinks failures.
//!
//! A run is derived from a seed: operations are generated against the model's state, run, and
//! judged one by one; several times during the run and at its end, the whole tree is compared; then
//! the image is closed and checked by e2fsck. A failing run is shrunk to few operations, which are
//! written to `target/testkit/failed-*.ops`, below lines that say how the image is made and mounted
//! ([`Stage::header`]). Move such a file to the crate's `corpus/` and every test run replays it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pext4_block::{Device, RamDevice};
use pext4_fs::MountOptions;
use pext4_fs::options::Scaling;

use crate::Random;
use crate::effort;
use crate::errno::ENOSPC;
use crate::model::Model;
use crate::op::generate::{Generator, Profile};
use crate::op::{Op, text};
use crate::oracle::check::e2fsck;
use crate::oracle::format::{self, Format};
use crate::outcome::{Answer, Subject};
use crate::volume::VolumeSubject;

/// Starts of lines at the head of an operations file: the image, the setting of the scaling
/// mechanisms, the milliseconds between two commits, the bytes of the cache, whether the volume may
/// run out of space, and whether its free blocks are soiled.
const IMAGE: &str = "; image: ";
const SCALING: &str = "; scaling: ";
const COMMIT: &str = "; commit: ";
const CACHE: &str = "; cache: ";
const FILLS: &str = "; fills: ";
const SOILED: &str = "; soiled: ";
/// Longest time of a single run; after it the run counts as hanging.
const LIMIT: Duration = Duration::from_secs(300);
/// Limit of the runs for shrinking a failure.
const MAX_ATTEMPTS: usize = 120;

/// An image and the options with which it is mounted.
#[derive(Clone)]
pub struct Stage {
    /// How the image is created.
    pub format: Format,
    /// How the image is mounted.
    pub options: MountOptions,
    /// Whether the volume may run out of space.
    pub may_fill: bool,
    /// Whether blocks that were never used hold bytes that no file may show.
    is_soiled: bool,
    /// The image as mke2fs created it; runs work on forks.
    base: Arc<RamDevice>,
}

impl Stage {
    /// A stage with a new image.
    pub fn new(format: Format) -> Result<Self> {
        let base = Arc::new(format.device()?);
        Ok(Self {
            format,
            options: MountOptions::default(),
            may_fill: false,
            is_soiled: false,
            base,
        })
    }

    /// A stage whose volume may run out of space.
    #[must_use]
    pub fn filling(mut self) -> Self {
        self.may_fill = true;
        self
    }

    /// A stage whose free blocks hold bytes that no file may show, as on a device that was used
    /// before. On a fresh image they are zero, as holes are, and data that was lost looks like
    /// one.
    pub fn soiled(mut self) -> Result<Self> {
        let base = self.base.fork();
        format::soil(&base, self.format.block_size)?;
        self.base = Arc::new(base);
        self.is_soiled = true;
        Ok(self)
    }

    /// The stage with the setting of the scaling mechanisms that a seed selects, unless the stage
    /// has a setting of its own.
    #[must_use]
    pub fn with_setting_of(&self, seed: u64) -> Self {
        let mut stage = self.clone();
        if stage.options.scaling == Scaling::default() {
            stage.options.scaling = effort::setting(seed);
        }
        stage
    }

    /// A description that distinguishes it from other stages.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{}, scaling {}",
            self.format.describe(),
            self.options.scaling
        )
    }

    /// The head of an operations file, from which [`Stage::from_header`] makes the same stage.
    #[must_use]
    pub fn header(&self) -> String {
        let lines = [
            (IMAGE, self.format.describe()),
            (SCALING, self.options.scaling.to_string()),
            (COMMIT, self.options.commit_interval.as_millis().to_string()),
            (CACHE, self.options.cache_size.to_string()),
            (FILLS, self.may_fill.to_string()),
            (SOILED, self.is_soiled.to_string()),
        ];
        lines
            .map(|(start, value)| format!("{start}{value}\n"))
            .concat()
    }

    /// The stage that the head of an operations file describes. Only the image must be there: a
    /// file that was written by hand tells no more, and its volume may run out of space.
    pub fn from_header(words: &str) -> Result<Self> {
        let value = |start: &str| {
            let mut lines = words.lines();
            lines.find_map(|line| line.strip_prefix(start).map(str::trim))
        };
        let format = value(IMAGE).context("no line tells of the image")?;
        let mut stage = Self::new(Format::parse(format)?)?;
        if let Some(scaling) = value(SCALING) {
            stage.options.scaling = Scaling::parse(scaling)?;
        }
        if let Some(milliseconds) = value(COMMIT) {
            let milliseconds = milliseconds.parse().context(COMMIT)?;
            stage.options.commit_interval = Duration::from_millis(milliseconds);
        }
        if let Some(bytes) = value(CACHE) {
            stage.options.cache_size = bytes.parse().context(CACHE)?;
        }
        stage.may_fill = match value(FILLS) {
            Some(fills) => fills.parse().context(FILLS)?,
            None => true,
        };
        let is_soiled = match value(SOILED) {
            Some(soiled) => soiled.parse().context(SOILED)?,
            None => false,
        };
        match is_soiled {
            true => stage.soiled(),
            false => Ok(stage),
        }
    }

    /// A copy of the fresh image, for this run alone.
    #[must_use]
    pub fn device(&self) -> Arc<RamDevice> {
        Arc::new(self.base.fork())
    }

    /// The model of the fresh image.
    #[must_use]
    pub fn model(&self) -> Model {
        let mut model = self.shaped(Model::fresh(self.format.block_size));
        model.may_fill = self.may_fill;
        model
    }

    /// The model of a tree whose root is an empty directory with this inode number.
    #[must_use]
    pub fn model_below(&self, root: u32) -> Model {
        let mut model = self.shaped(Model::rooted(self.format.block_size, root, 0o755));
        model.may_fill = self.may_fill;
        model
    }

    fn shaped(&self, mut model: Model) -> Model {
        model.has_extents = self.format.features.has_extents();
        model.has_types = self.format.features.has_types();
        model.inline_room = self.format.features.inline_room();
        model.has_value_inodes = self.format.features.has_value_inodes();
        model.cluster = self.format.features.cluster().into();
        model
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stage({})", self.describe())
    }
}

/// Runs one operation and compares the outcome with the model.
pub fn step(subject: &mut dyn Subject, model: &mut Model, op: &Op) -> Result<(), String> {
    let outcome = subject.run(op);
    model
        .follow(op, &outcome)
        .map_err(|text| format!("{op}: {text}"))?;
    let (Op::Allocate { of, .. }, Err(failure)) = (op, &outcome) else {
        return Ok(());
    };
    if failure.errno != ENOSPC {
        return Ok(());
    }
    match subject.run(&Op::Stat(of.clone())) {
        Ok(Answer::File(facts)) => model
            .follow_size(op, facts.size)
            .map_err(|text| format!("{op}: {text}")),
        other => Err(format!("{op}: then stat answers {other:?}")),
    }
}

/// Compares the whole tree with the model.
pub fn compare(subject: &mut dyn Subject, model: &mut Model) -> Result<(), String> {
    let tree = subject
        .tree()
        .map_err(|failure| format!("the walk failed: {failure}"))?;
    let found = model.differences(&tree);
    model.forget_accesses();
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!("the tree differs:\n  {}", found.join("\n  ")))
    }
}

/// Runs `count` generated operations, and compares the tree after every 400 and at the end. Returns
/// the operations and, on failure, the problem.
pub fn generate(
    subject: &mut dyn Subject,
    model: &mut Model,
    profile: Profile,
    seed: u64,
    count: usize,
) -> (Vec<Op>, Result<(), String>) {
    let mut random = Random::new(seed);
    let generator = Generator::new(profile);
    let mut ops = Vec::with_capacity(count);
    for number in 1..=count {
        let op = generator.next(&mut random, model);
        ops.push(op);
        let mut result = catching_panics(|| step(subject, model, &ops[number - 1]));
        if result.is_ok() && (number % 400 == 0 || number == count) {
            result = catching_panics(|| compare(subject, model));
        }
        if result.is_err() {
            return (ops, result);
        }
    }
    (ops, Ok(()))
}

/// Turns a panic into an error.
pub fn catching_panics(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("?");
        Err(format!("panic: {text}"))
    })
}

/// Runs the operations on a fresh image of the stage and checks everything at the end.
pub fn replay(stage: &Stage, ops: &[Op]) -> Result<(), String> {
    let device = stage.device();
    let mut model = stage.model();
    let mut subject = open(stage, &device)?;
    let result = catching_panics(|| {
        ops.iter()
            .try_for_each(|op| step(&mut subject, &mut model, op))?;
        compare(&mut subject, &mut model)
    });
    finish(subject, &device, &mut model, result)
}

fn open(stage: &Stage, device: &Arc<RamDevice>) -> Result<VolumeSubject, String> {
    let device: Arc<dyn Device> = Arc::<RamDevice>::clone(device);
    VolumeSubject::open(device, stage.options.clone()).map_err(|error| format!("open: {error}"))
}

/// Closes the image and checks it with e2fsck. A subject that failed is abandoned instead: it may
/// hang.
fn finish(
    subject: VolumeSubject,
    device: &RamDevice,
    model: &mut Model,
    result: Result<(), String>,
) -> Result<(), String> {
    if result.is_err() {
        subject.abandon();
        return result;
    }
    catching_panics(|| subject.close().map_err(|error| format!("{error:#}")))?;
    model.release_all();
    check_device(device).map_err(|error| format!("{error:#}"))
}

/// Checks a device in memory with e2fsck.
pub fn check_device(device: &RamDevice) -> Result<()> {
    let folder = effort::scratch();
    let path = folder.path().join("image");
    device.save(&path).context("saving the image")?;
    e2fsck(&path)
}

/// One run from a seed. A failure is shrunk, saved and reported.
///
/// # Panics
///
/// If the run fails: the caller is a test.
pub fn run(stage: &Stage, name: &str, profile: Profile, seed: u64, count: usize) {
    let stage = &stage.with_setting_of(seed);
    let (own, label) = (stage.clone(), name.to_owned());
    let what = format!("{name}, seed {seed}, image {}", stage.describe());
    let (ops, result) = effort::within(LIMIT, &what.clone(), move || {
        run_once(&own, profile, seed, count)
    });
    let Err(text) = result else { return };
    let (own, first, same) = (stage.clone(), ops.clone(), kind_of(&text).to_owned());
    let small = effort::within(4 * LIMIT, "shrinking", move || {
        shrink(&first, |ops| {
            replay(&own, ops).is_err_and(|text| kind_of(&text) == same)
        })
    });
    let path = keep(stage, &label, seed, &small, &text).expect("the failure can be written down");
    panic!(
        "{what}: after {} operations: {text}\nkept in {}",
        ops.len(),
        path.display()
    );
}

/// The kind of a failure: its first word, which is an operation or our own. Shrinking must not move
/// to another kind.
fn kind_of(text: &str) -> &str {
    text.split([' ', ':']).next().unwrap_or_default()
}

fn run_once(
    stage: &Stage,
    profile: Profile,
    seed: u64,
    count: usize,
) -> (Vec<Op>, Result<(), String>) {
    let device = stage.device();
    let mut model = stage.model();
    let mut subject = match open(stage, &device) {
        Ok(subject) => subject,
        Err(text) => return (Vec::new(), Err(text)),
    };
    let (ops, result) = generate(&mut subject, &mut model, profile, seed, count);
    let result = finish(subject, &device, &mut model, result);
    (ops, result)
}

/// Removes operations while the rest still fails: first halves, then smaller and smaller pieces.
pub fn shrink(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut small = ops.to_vec();
    let mut attempts = 0;
    let mut piece = small.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < small.len() && attempts < MAX_ATTEMPTS {
            let end = (start + piece).min(small.len());
            let rest = [&small[..start], &small[end..]].concat();
            attempts += 1;
            if fails(&rest) {
                small = rest;
            } else {
                start = end;
            }
        }
        if piece == 1 || attempts >= MAX_ATTEMPTS {
            return small;
        }
        piece = piece.div_ceil(2);
    }
}

/// Writes failing operations to a file; returns its path.
fn keep(stage: &Stage, name: &str, seed: u64, ops: &[Op], text: &str) -> Result<PathBuf> {
    let path = effort::failures().join(format!("failed-{name}-{seed}.ops"));
    let why: String = text.lines().map(|line| format!("; {line}\n")).collect();
    let kept = stage.header() + &why + &text::print(ops);
    std::fs::write(&path, kept).context("writing the operations")?;
    Ok(path)
}

/// Replays a file of operations, on the stage that its head describes.
pub fn replay_file(path: &Path) -> Result<()> {
    let words = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let shown = path.display().to_string();
    let stage = Stage::from_header(&words).with_context(|| shown.clone())?;
    let ops = text::parse(&words)?;
    let result = effort::within(LIMIT, &shown.clone(), move || replay(&stage, &ops));
    match result {
        Ok(()) => Ok(()),
        Err(text) => bail!("{shown}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::format::Features;

    #[test]
    fn shrinking_keeps_what_matters() {
        let ops: Vec<Op> = (0..50).map(Op::Release).collect();
        let fails = |ops: &[Op]| ops.contains(&Op::Release(7)) && ops.contains(&Op::Release(31));
        assert_eq!(shrink(&ops, fails), [Op::Release(7), Op::Release(31)]);
    }

    #[test]
    fn a_panic_is_a_failure() {
        let result = catching_panics(|| panic!("number {}", 5));
        assert_eq!(result, Err("panic: number 5".to_owned()));
    }

    #[test]
    fn the_header_of_a_kept_file_leads_back_to_the_image() {
        for format in crate::oracle::format::everyday(16 << 20) {
            let format = format.with(&["-J", "size=1"]);
            let again = Format::parse(&format.describe()).expect("own words");
            assert_eq!(again.describe(), format.describe());
            assert_eq!(again.extra, format.extra);
        }
    }

    #[test]
    fn a_kept_run_is_replayed_as_it_ran() {
        let mut stage = Stage::new(Format::new(4 << 20, 1024, Features::Ext2)).expect("made");
        stage.options.scaling = Scaling::parse("seeds,-frees").expect("both are known");
        stage.options.commit_interval = Duration::from_millis(20);
        stage.options.cache_size = 256 << 10;
        let path = keep(&stage, "a-test-of-itself", 1, &[Op::Sync], "image: none").expect("kept");
        let words = std::fs::read_to_string(&path).expect("it was written");
        let replayed = replay_file(&path);
        std::fs::remove_file(&path).expect("it is there");
        let again = Stage::from_header(&words).expect("own words");
        assert_eq!(again.header(), stage.header());
        assert_eq!(again.options.scaling, stage.options.scaling);
        assert_eq!(again.options.commit_interval, Duration::from_millis(20));
        assert_eq!(
            (again.options.cache_size, again.may_fill),
            (256 << 10, false)
        );
        replayed.expect("nothing is wrong with it");

        let by_hand = format!("{IMAGE}{}\n; A comment.\n", stage.format.describe());
        let by_hand = Stage::from_header(&by_hand).expect("the image is enough");
        assert_eq!(by_hand.options.scaling, Scaling::default());
        assert!(by_hand.may_fill);
        for wrong in [
            "; scaling: none",
            "; commit: soon",
            "; fills: perhaps",
            "; soiled: ture",
        ] {
            let words = format!("{IMAGE}{}\n{wrong}\n", stage.format.describe());
            assert!(Stage::from_header(&words).is_err(), "{wrong}");
        }
    }
}
