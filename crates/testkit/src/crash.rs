//! The crash rig: creates the images that a power cut at any write may leave, recovers and judges
//! them.
//!
//! A run is recorded ([`recording`]), and its log is cut into windows and images ([`window`]). Each
//! image is recovered by our own replay and, separately, by e2fsck's, since a mistake made both in
//! writing and in replaying would cancel out. After either recovery e2fsck must find nothing, and
//! the tree must be one that the cut can explain ([`judge()`]). Some recoveries are cut as well,
//! and some volumes go on after theirs (`life`).

pub mod judge;
mod life;
pub mod recording;
pub mod window;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Device, RamDevice, RecordDevice};

use self::judge::judge;
use self::recording::Recording;
use self::window::{Budget, Fate, Window, fates, image, tell, windows};
use crate::Random;
use crate::campaign::{Stage, catching_panics, check_device};
use crate::effort;
use crate::op::generate::Profile;
use crate::op::text;
use crate::oracle::check::recover;
use crate::tree::Tree;
use crate::volume::tree_of;

/// The number of runs on one volume; each but the first goes on after a power cut.
const LIVES: usize = 3;
/// Longest time of recovering one image; after it the recovery counts as hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// The amount of work that a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Windows examined.
    pub windows: usize,
    /// Images recovered.
    pub images: usize,
}

/// Records a run and examines the images of power cuts in it.
///
/// # Panics
///
/// If an image is not recovered correctly: the caller is a test.
pub fn run(
    stage: &Stage,
    name: &str,
    profile: Profile,
    seed: u64,
    count: usize,
    budget: Budget,
) -> Report {
    let stage = &stage.with_setting_of(seed);
    let what = format!("{name}, seed {seed}, image {}", stage.describe());
    let recording = Recording::generate(stage, profile, seed, count);
    let recording =
        recording.unwrap_or_else(|text| panic!("{what}: the run itself failed: {text}"));
    examine(&recording, name, seed, budget).unwrap_or_else(|text| panic!("{what}: {text}"))
}

/// Examines the images of power cuts in a recording.
pub fn examine(
    recording: &Recording,
    name: &str,
    seed: u64,
    budget: Budget,
) -> Result<Report, String> {
    examine_lives(recording, name, seed, budget, LIVES)
}

/// As [`examine`]; the volume goes on after some of the cuts, up to so many times.
fn examine_lives(
    recording: &Recording,
    name: &str,
    seed: u64,
    budget: Budget,
    lives: usize,
) -> Result<Report, String> {
    let mut random = Random::new(seed);
    let durable = recording.base.fork();
    let all = windows(&recording.events);
    let mut report = Report::default();
    let mut applied = 0;
    // Half of the images are of a few windows, whose writes are tried in many subsets; the others
    // are of all windows.
    let thorough = (budget.total / 2 / budget.window.max(1)).max(1);
    for (number, window) in all.iter().enumerate() {
        for event in &recording.events[applied..window.start] {
            event
                .apply(&durable)
                .map_err(|error| format!("rebuilding the device: {error}"))?;
        }
        applied = window.start;
        let left = budget.total.saturating_sub(report.images);
        let even = left.div_ceil(2 * (all.len() - number));
        let share = match random.index(all.len()) < thorough {
            true => budget.window,
            false => even.max(2),
        };
        let share = Budget {
            window: budget.window.min(share),
            ..budget
        };
        if left == 0 {
            break;
        }
        report.windows += 1;
        for fates in fates(window, &recording.events, share, &mut random) {
            report.images += 1;
            let image = image(&durable, &recording.events, window, &fates);
            check(recording, window, &image, name, &mut random, lives).map_err(|text| {
                explain(
                    recording,
                    window,
                    &fates,
                    &image,
                    &format!("{name}-{seed}"),
                    &text,
                )
            })?;
        }
    }
    Ok(report)
}

/// Recovers an image in all ways and judges the results.
fn check(
    recording: &Recording,
    window: &Window,
    left: &Arc<RamDevice>,
    name: &str,
    random: &mut Random,
    lives: usize,
) -> Result<(), String> {
    let judge = |tree: &Tree| judge(recording, window.end, tree);
    let (ours, tree) = recover_ourselves(left)?;
    judge(&tree).map_err(|text| format!("after our recovery: {text}"))?;
    let theirs = recover_by_e2fsck(left)?;
    judge(&theirs).map_err(|text| format!("after e2fsck's recovery: {text}"))?;
    if random.chance(1, 6) {
        let seen = look(left)?;
        judge(&seen).map_err(|text| format!("read-only: {text}"))?;
        let cut = cut_recovery(left, &ours, random);
        let (_, tree) =
            recover_ourselves(&cut).map_err(|text| format!("cut while recovering: {text}"))?;
        judge(&tree).map_err(|text| format!("cut while recovering: {text}"))?;
        life::remove_all(&recording.stage, left)
            .map_err(|text| format!("all is removed: {text}"))?;
    }
    if lives > 1 && random.chance(1, 50) {
        life::go_on(&recording.stage, left, name, random, lives - 1)
            .map_err(|text| format!("in the next life: {text}"))?;
    }
    Ok(())
}

/// Opens the image (which replays the journal), walks the tree and closes it; then e2fsck must find
/// nothing. Also returns the log of the recovery.
fn recover_ourselves(left: &Arc<RamDevice>) -> Result<(Arc<RecordDevice>, Tree), String> {
    let device = Arc::new(left.fork());
    let below: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
    let log = Arc::new(RecordDevice::new(below));
    let tree = walk(Arc::<RecordDevice>::clone(&log), false)
        .map_err(|text| format!("our recovery: {text}"))?;
    check_device(&device).map_err(|error| format!("after our recovery: {error:#}"))?;
    Ok((log, tree))
}

fn recover_by_e2fsck(left: &RamDevice) -> Result<Tree, String> {
    let folder = effort::scratch();
    let path = folder.path().join("image");
    left.save(&path)
        .map_err(|error| format!("saving the image: {error}"))?;
    recover(&path).map_err(|error| format!("e2fsck's recovery: {error:#}"))?;
    let device = RamDevice::load(&path).map_err(|error| format!("loading the image: {error}"))?;
    walk(Arc::new(device), true).map_err(|text| format!("after e2fsck's recovery: {text}"))
}

/// Opens an image that needs recovery read-only: it must show the same tree and write nothing.
fn look(left: &Arc<RamDevice>) -> Result<Tree, String> {
    let below: Arc<dyn Device> = Arc::<RamDevice>::clone(left);
    let log = Arc::new(RecordDevice::new(below));
    let tree = walk(Arc::<RecordDevice>::clone(&log), true)
        .map_err(|text| format!("read-only: {text}"))?;
    match log.mark() {
        0 => Ok(tree),
        writes => Err(format!("a read-only open wrote {writes} times")),
    }
}

fn walk(device: Arc<dyn Device>, read_only: bool) -> Result<Tree, String> {
    effort::within(LIMIT, "a recovery", move || {
        let mut tree = Tree::default();
        catching_panics(|| {
            tree = tree_of(device, read_only).map_err(|error| format!("{error:#}"))?;
            Ok(())
        })?;
        Ok(tree)
    })
}

/// The image that a second power cut, during our recovery, leaves.
fn cut_recovery(left: &RamDevice, log: &RecordDevice, random: &mut Random) -> Arc<RamDevice> {
    let events = log.events();
    let all = windows(&events);
    if all.is_empty() {
        return Arc::new(left.fork());
    }
    let window = random.pick(&all);
    let durable = left.fork();
    for event in &events[..window.start] {
        event
            .apply(&durable)
            .expect("what was recorded fits the device");
    }
    let fates: Vec<Fate> = (0..window.writes())
        .map(|_| *random.pick(&[Fate::Kept, Fate::Lost]))
        .collect();
    image(&durable, &events, window, &fates)
}

/// Saves what is needed to reproduce a failure.
fn explain(
    recording: &Recording,
    window: &Window,
    fates: &[Fate],
    left: &RamDevice,
    name: &str,
    text: &str,
) -> String {
    let folder = effort::failures();
    let image = folder.join(format!("crash-{name}.img"));
    let ops: PathBuf = folder.join(format!("crash-{name}.ops"));
    let until = recording.ops_until(window.end);
    let kept = recording.stage.header() + &text::print(&until);
    let saved = left.save(&image).and_then(|()| std::fs::write(&ops, kept));
    format!(
        "cut at event {} (window from {}, {} operations started):\n{}\n  {text}\n\
         kept ({saved:?}) in {} and {}",
        window.end,
        window.start,
        until.len(),
        tell(window, &recording.events, fates),
        image.display(),
        ops.display()
    )
}
