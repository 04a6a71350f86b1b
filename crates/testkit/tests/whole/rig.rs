//! The crash rig itself: it must detect deliberate faults.

use std::time::Duration;

use pext4_block::Event;
use pext4_testkit::campaign::Stage;
use pext4_testkit::crash;
use pext4_testkit::crash::judge::Judge;
use pext4_testkit::crash::recording::Recording;
use pext4_testkit::crash::window::Budget;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::text;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::volume::tree_of;

const BUDGET: Budget = Budget {
    exhaust: 4,
    window: 40,
    total: 120,
};

fn stage() -> Stage {
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(1024);
    let mut stage = Stage::new(format).expect("mke2fs makes it");
    stage.options.commit_interval = Duration::from_millis(20);
    stage
}

/// A journal whose flushes the device ignores does not survive power cuts.
#[test]
fn a_device_that_ignores_flushes_is_found_out() {
    let profile = Profile {
        syncs: 20,
        ..Profile::crashes()
    };
    let mut recording =
        Recording::generate(&stage(), profile, 1, 120).expect("the run itself passes");
    recording.events.retain(|event| *event != Event::Flush);
    // The acknowledgements are void now; only consistency is judged.
    recording.histories[0].returned.fill(usize::MAX);
    let result = crash::examine(&recording, "rig-no-flushes", 1, BUDGET);
    assert!(result.is_err(), "nothing was noticed in {result:?}");
}

/// Two images of a window are tried even where only one is left, which is not more than all.
#[test]
fn a_budget_of_one_image_is_enough() {
    let ops = text::parse("create /a 644 0 0\nsync\ncreate /b 644 0 0\nsync\n");
    let recording = Recording::replay(&stage(), &ops.expect("operations")).expect("it passes");
    let budget = Budget { total: 1, ..BUDGET };
    let report = crash::examine(&recording, "rig-one-image", 1, budget).expect("it is sound");
    assert_eq!((report.windows, report.images), (1, 2));
}

/// A missing acknowledged operation is detected, and so is a foreign byte.
#[test]
fn what_was_acknowledged_and_is_missing_is_found_out() {
    let ops = text::parse(
        "create /a 644 0 0\nwrite /a 0 3000 1\nsync\nwrite /a 500 100 2\ncreate /b 644 0 0\nsync\n",
    );
    let recording = Recording::replay(&stage(), &ops.expect("operations")).expect("it passes");
    let device = std::sync::Arc::new(recording.base.fork());
    for event in &recording.events {
        event.apply(&*device).expect("it fits");
    }
    let tree = tree_of(device, false).expect("walkable");
    let judge = Judge::new(&recording.histories[0], recording.events.len());
    assert_eq!(judge.state_of(&tree), Ok(recording.histories[0].ops.len()));
    let mut missing = tree.clone();
    missing.items.remove(b"b".as_slice());
    assert!(
        judge.state_of(&missing).is_err(),
        "a file that was synced is missing"
    );
    let mut foreign = tree.clone();
    let item = foreign.items.get_mut(b"a".as_slice()).expect("it is there");
    item.content
        .as_mut()
        .expect("a file")
        .write(2000, b"foreign");
    assert!(
        judge.state_of(&foreign).is_err(),
        "bytes nobody wrote there"
    );
    let mut renamed = tree;
    let item = renamed.items.remove(b"a".as_slice()).expect("it is there");
    renamed.items.insert(b"z".to_vec(), item);
    assert!(judge.state_of(&renamed).is_err(), "a name nobody gave");
}

/// Zeroes in what a truncation cuts off are found out while the truncation is not durable.
#[test]
fn an_end_that_is_zeroed_too_early_is_found_out() {
    let until_sync = "create /a 644 0 0\nwrite /a 0 3000 1\nsync\n";
    let replay = |ops: &str| {
        let ops = text::parse(ops).expect("operations");
        Recording::replay(&stage(), &ops).expect("it passes")
    };
    let synced = replay(until_sync);
    let device = std::sync::Arc::new(synced.base.fork());
    for event in &synced.events {
        event.apply(&*device).expect("it fits");
    }
    let whole = tree_of(device, false).expect("walkable");
    let cut = replay(&format!("{until_sync}truncate /a 1000\n"));
    let judge = Judge::new(&cut.histories[0], cut.events.len());
    assert_eq!(judge.state_of(&whole), Ok(3), "the truncation is not there");
    let mut early = whole;
    let item = early.items.get_mut(b"a".as_slice()).expect("it is there");
    item.content.as_mut().expect("a file").zero(2000, 100);
    assert!(judge.state_of(&early).is_err(), "zeroes behind the new end");
}
