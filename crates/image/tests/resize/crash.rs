//! A power cut at any write of a resize leaves the old file system or the new one.
//!
//! The test records the writes of a resize and rebuilds states that a crash could leave: each
//! prefix that ends at a flush, and between two flushes some writes lost alone and some kept alone.
//! e2fsck and this crate each recover every state, which must then be clean and one of the two.
//! Resizing again must work.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pext4_block::{Device, Event, RamDevice, RecordDevice};
use pext4_image::resize::{Plan, Target, Way};

use super::rig::{
    MIB, assert_clean, assert_holds, field, image, resize, scratch, source, text, tools,
};

/// How often an unmount is tried, and the interval.
const TRIES: u32 = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// How many writes of one window are lost or kept alone.
const PICKS: usize = 2;

/// States between two flushes: which writes of the window arrived.
fn states(window: &[Event]) -> Vec<Vec<Event>> {
    let mut states = vec![window.to_vec()];
    if window.len() < 2 {
        return states;
    }
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

    /// Our own replay works as well, and the resize can be repeated: what it left behind the end of
    /// the old file system does not stand in its way.
    fn repeat(&self, state: &RamDevice, when: &str) {
        let path = self.scratch.join("again");
        state.save(&path).expect("a file");
        let (summary, way, length) =
            resize(&path, Target::Largest, false).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(summary.blocks, self.blocks[1], "{when}");
        assert_eq!((way, length), (Way::Journal, state.size()), "{when}");
        assert_clean(&path, &format!("{when}, again"));
    }
}

/// The kernel replays a transaction that was not written home, and works with the result at the
/// next mount. (Only then it uses the sizes in the replayed superblock.)
fn kernel_takes(state: &RamDevice, case: &Case<'_>, options: &str) {
    let path = case.scratch.join("for the kernel");
    state.save(&path).expect("a file");
    let Some(first) = Mounted::of(&path, case.scratch) else {
        return;
    };
    drop(first);
    assert_clean(&path, &format!("{options}, replayed by the kernel"));
    let second = Mounted::of(&path, case.scratch).expect("it could be mounted before");
    let written = std::fs::write(second.point.join("new file"), vec![7; 5 << 20]);
    drop(second);
    written.unwrap_or_else(|error| panic!("{options}: {error}"));
    assert_clean(&path, &format!("{options}, used by the kernel"));
    let count: u64 = field(&path, "Block count:").parse().expect("a number");
    assert_eq!(count, case.blocks[1], "{options}, used by the kernel");
}

/// An image mounted by the kernel; unmounted on drop.
struct Mounted {
    point: PathBuf,
}

impl Mounted {
    /// `None`, with a message, if this machine does not permit mounts.
    fn of(image: &Path, scratch: &Path) -> Option<Self> {
        let point = scratch.join("mounted");
        std::fs::create_dir_all(&point).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(image).arg(&point);
        match mount.output() {
            Ok(output) if output.status.success() => return Some(Self { point }),
            Ok(output) => eprintln!("SKIPPED: no loop mount: {}", text(&output)),
            Err(error) => eprintln!("SKIPPED: no mount: {error}"),
        }
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that another test starts inherits our descriptors until it executes its
        // program.
        let ended = (0..TRIES).any(|_| {
            let ended = Command::new("umount").arg(&self.point).output();
            let is_ended = ended.is_ok_and(|output| output.status.success());
            if !is_ended {
                std::thread::sleep(PAUSE);
            }
            is_ended
        });
        assert!(ended, "it stays mounted");
    }
}

/// A recorded growth.
struct Growth {
    /// The image before it, in a file that was made longer.
    base: RamDevice,
    /// Numbers of blocks before and after.
    blocks: [u64; 2],
    events: Vec<Event>,
}

/// Records the growth of an image of `size` bytes to the size of its file.
fn record(image: &Path, size: u64, grown: u64) -> Growth {
    let old: u64 = field(image, "Block count:").parse().expect("a number");
    std::fs::OpenOptions::new()
        .write(true)
        .open(image)
        .and_then(|file| file.set_len(grown))
        .expect("a longer file");
    let base = RamDevice::load(image).expect("an image");
    let record = RecordDevice::new(Arc::new(base.fork()));
    let mut plan = Plan::make(&record, Target::Largest).expect("a plan");
    assert_eq!(record.mark(), 0, "a plan writes nothing");
    let blocks = [old, plan.summary().blocks];
    plan.run(&record, &record, Way::Journal, size)
        .expect("a sound device");
    Growth {
        base,
        blocks,
        events: record.events(),
    }
}

fn crashes(options: &str, size: u64, grown: u64) {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), options, size, &tree);
    let Growth {
        base,
        blocks,
        events,
    } = record(&path, size, grown);
    let case = Case {
        tree: &tree,
        scratch: folder.path(),
        blocks,
    };
    let durable = base;
    let mut seen = [0, 0];
    let mut first_new = None;
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
        let is_decided = number > 0 && first_new.is_none() && seen[1] > 0;
        if is_decided {
            first_new = Some(durable.fork());
        }
    }
    let first_new = first_new.expect("some state was the new one");
    kernel_takes(&first_new, &case, options);
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
    ] {
        crashes(options, 6 * MIB, 15 * MIB);
    }
    crashes("-t ext4 -b 4096 -N 512 -O orphan_file", 9 * MIB, 21 * MIB);
}

/// Whatever part of it has arrived, and nothing else.
#[test]
fn a_growth_overwrites_only_what_the_same_growth_has_left() {
    const SIZE: u64 = 6 * MIB;
    const GROWN: u64 = 15 * MIB;
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), "-t ext4 -b 1024 -N 512", SIZE, &tree);
    let growth = record(&path, SIZE, GROWN);
    let mut windows = growth.events.split(|event| *event == Event::Flush);
    let window = windows.next().expect("it writes behind the end first");
    let left = growth.base.fork();
    let mut places = Vec::new();
    for event in window {
        let Event::Write { offset, bytes } = event else {
            panic!("{event:?}");
        };
        assert!(*offset >= SIZE, "it writes behind the end");
        // Torn: only its second sector has arrived.
        left.write_at(*offset + 512, &bytes[512..]).expect("room");
        places.push(*offset);
    }
    left.save(&path).expect("a file");
    let left_alone = GROWN - 1;
    for foreign in [places[0], left_alone] {
        let spoiled = left.fork();
        spoiled.write_at(foreign, &[0xA5]).expect("room");
        spoiled.save(&path).expect("a file");
        let told = resize(&path, Target::Largest, false).expect_err("it would be lost");
        let named = format!("from byte {foreign} on");
        assert!(told.to_string().contains(&named), "{told}");
        let found = std::fs::read(&path).expect("a file");
        spoiled.save(&path).expect("a file");
        assert!(found == std::fs::read(&path).expect("a file"), "unchanged");
    }
    left.save(&path).expect("a file");
    let told = resize(&path, Target::Bytes(GROWN + MIB / 2), false).expect_err("another plan");
    assert!(
        told.to_string().contains("growth to another size"),
        "{told}"
    );
    let (summary, way, length) = resize(&path, Target::Bytes(GROWN), false).expect("the same plan");
    assert_eq!((summary.blocks, way), (growth.blocks[1], Way::Journal));
    assert_eq!(length, GROWN);
    assert_clean(&path, "grown again");
    assert_holds(&path, &tree, "grown again");
}
