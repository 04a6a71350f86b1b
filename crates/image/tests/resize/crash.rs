//! A power cut at any write of a resize leaves the old file system or the new one.
//!
//! The writes of a resize are recorded; states that a crash could leave are rebuilt from them: each
//! prefix that ends at a flush, and between two flushes some writes lost alone and some kept alone.
//! Each state is recovered by e2fsck's own replay and by ours, and must then be clean and one of the
//! two. Resizing again must work.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pext4_block::{Device, Event, RamDevice, RecordDevice};
use pext4_image::resize::{Plan, Target, Way};

use super::rig::{MIB, assert_clean, assert_holds, field, image, source, text, tools};

/// Writes of one window that are lost or kept alone.
const PICKS: usize = 4;

/// States between two flushes: which of the window's writes arrived.
fn states(window: &[Event]) -> Vec<Vec<Event>> {
    let mut states = vec![window.to_vec()];
    let step = window.len().div_ceil(PICKS).max(1);
    for at in (0..window.len()).step_by(step) {
        let mut lost = window.to_vec();
        lost.remove(at);
        states.push(lost);
        states.push(vec![window[at].clone()]);
    }
    states
}

struct Case<'a> {
    tree: &'a Path,
    scratch: &'a Path,
    blocks: [u64; 2],
}

impl Case<'_> {
    fn check(&self, state: &RamDevice, when: &str) -> bool {
        let path = self.scratch.join("crashed");
        state.save(&path).expect("a file");
        let replay = Command::new("e2fsck")
            .args(["-fy", "-E", "journal_only"])
            .arg(&path)
            .output()
            .expect("it was found before");
        let said = text(&replay);
        assert!(
            matches!(replay.status.code(), Some(0 | 1)),
            "{when}: {said}"
        );
        assert_clean(&path, when);
        let count: u64 = field(&path, "Block count:").parse().expect("a number");
        assert!(self.blocks.contains(&count), "{when}: {count} blocks");
        self.repeat(state, when);
        count == self.blocks[1]
    }

    /// Ours replays as well, and the resize can be asked for again.
    fn repeat(&self, state: &RamDevice, when: &str) {
        let again = state.fork();
        let mut plan =
            Plan::make(&again, Target::Largest).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(plan.summary().blocks, self.blocks[1], "{when}");
        if !plan.is_idle() {
            plan.run(&again, &again, Way::Journal, u64::MAX)
                .expect("a sound device");
            let path = self.scratch.join("again");
            again.save(&path).expect("a file");
            assert_clean(&path, &format!("{when}, again"));
        }
    }
}

fn crashes(options: &str, size: u64, grown: u64) {
    if !tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), options, size, &tree);
    let old: u64 = field(&path, "Block count:").parse().expect("a number");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(grown))
        .expect("a longer file");
    let base = RamDevice::load(&path).expect("an image");
    let record = RecordDevice::new(Arc::new(base.fork()));
    let mut plan = Plan::make(&record, Target::Largest).expect("a plan");
    assert_eq!(record.mark(), 0, "a plan writes nothing");
    let blocks = [old, plan.summary().blocks];
    plan.run(&record, &record, Way::Journal, size)
        .expect("a sound device");
    let case = Case {
        tree: &tree,
        scratch: folder.path(),
        blocks,
    };
    let events = record.events();
    let durable = base;
    let mut seen = [0, 0];
    for (number, window) in events.split(|event| *event == Event::Flush).enumerate() {
        for (index, state) in states(window).iter().enumerate() {
            let crashed = durable.fork();
            for event in state {
                event.apply(&crashed).expect("it worked before");
            }
            let when = format!("{options}, window {number}, state {index}");
            seen[usize::from(case.check(&crashed, &when))] += 1;
        }
        for event in window {
            event.apply(&durable).expect("it worked before");
        }
    }
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "both file systems were seen: {seen:?}"
    );
    let path = folder.path().join("done");
    durable.save(&path).expect("a file");
    assert_clean(&path, options);
    assert_holds(&path, case.tree, options);
    assert_eq!(durable.size(), grown);
}

#[test]
fn a_power_cut_while_growing_leaves_old_or_new() {
    for options in [
        "-t ext4 -b 1024 -N 512",
        "-t ext4 -b 1024 -N 512 -O ^resize_inode,^metadata_csum,uninit_bg -g 512",
        "-t ext4 -b 4096 -N 512 -O orphan_file",
    ] {
        crashes(options, 9 * MIB, 21 * MIB);
    }
}
