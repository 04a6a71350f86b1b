//! ext2 and ext3: files with block maps, written by pext4 and judged by the model, e2fsck, power
//! cuts and the kernel.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::RamDevice;
use pext4_testkit::campaign::{self, Stage, check_device, generate, step};
use pext4_testkit::crash::recording::Recording;
use pext4_testkit::crash::{self, window::Budget};
use pext4_testkit::effort::{effort, scratch, seeds};
use pext4_testkit::model::Model;
use pext4_testkit::mounted;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::{Op, Target, text};
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};
use pext4_testkit::oracle::{run, tool};
use pext4_testkit::outcome::{Answer, Subject};
use pext4_testkit::volume::VolumeSubject;

const KINDS: [(u32, Features); 5] = [
    (1024, Features::Ext3),
    (4096, Features::Ext3),
    (1024, Features::Ext2),
    (4096, Features::Ext2),
    (2048, Features::FirstExt2),
];

fn stage(size: u64, block_size: u32, features: Features) -> Stage {
    let inodes = u32::try_from(size / 8192).expect("test images are small");
    let format = Format::new(size, block_size, features).inodes(inodes);
    Stage::new(format).expect("mke2fs makes it")
}

/// Files up to 20 MiB, and a few bytes at any possible offset: trees of all depths.
fn contents() -> Profile {
    Profile {
        largest: 20 << 20,
        longest_write: 128 << 10,
        ..Profile::contents()
    }
}

#[test]
fn one_thread() {
    for (block_size, features) in KINDS {
        let stage = stage(48 << 20, block_size, features);
        for seed in seeds(1) {
            campaign::run(&stage, "maps", Profile::everything(), seed, 700);
            campaign::run(&stage, "mapcontents", contents(), seed, 500);
            campaign::run(&stage, "mapnames", Profile::names(), seed, 1000);
        }
    }
}

#[test]
fn full_volumes() {
    for (block_size, features) in KINDS {
        let stage = stage(8 << 20, block_size, features).filling();
        for seed in seeds(1) {
            let profile = Profile {
                huge: false,
                ..contents()
            };
            campaign::run(&stage, "mapsfull", profile, seed, 600);
        }
    }
}

/// A stage that commits every few milliseconds, with the smallest possible log.
fn frequent_commits(block_size: u32) -> Stage {
    let format = Format::new(16 << 20, block_size, Features::Ext3);
    let format = format.inodes(1024);
    let format = match block_size {
        1024 => format.with(&["-J", "size=1"]),
        _ => format.with(&["-J", "size=4"]),
    };
    let mut stage = Stage::new(format).expect("mke2fs makes it");
    stage.options.commit_interval = Duration::from_millis(20);
    stage
}

fn budget(total: usize) -> Budget {
    let effort = effort() as usize;
    Budget {
        exhaust: 5,
        window: 24 * effort,
        total: total * effort,
    }
}

#[test]
fn power_cuts() {
    for block_size in [1024, 4096] {
        for seed in seeds(1) {
            let profile = Profile {
                files: 80,
                largest: 2 << 20,
                ..Profile::crashes()
            };
            let stage = frequent_commits(block_size);
            crash::run(&stage, "crashmaps", profile, seed, 150, budget(80));
        }
    }
}

/// Every other block of a file, so that each block is a run of its own: truncating it takes many
/// steps and several transactions. Includes blocks of the second and third level.
fn in_pieces(block_size: u64) -> Vec<Op> {
    let mut lines = String::from("create /a 644 0 0\n");
    let mut write = |block: u64| {
        let line = format!("write /a {} 700 {}\n", block * block_size, block + 1);
        lines.push_str(&line);
    };
    let per_block = block_size / 4;
    (0..180).for_each(|number| write(number * 2));
    let second = 12 + per_block;
    let third = second + per_block * per_block;
    (0..60).for_each(|number| write(second + number * per_block / 2));
    (0..10).for_each(|number| write(third + number * per_block));
    let cuts = [third + per_block, second + 3 * per_block / 2, 15, 3];
    for cut in cuts {
        lines.push_str("sync\n");
        lines.push_str(&format!("truncate /a {}\n", cut * block_size - 5));
        lines.push_str(&format!(
            "create /after-{cut} 644 0 0\nfsync /after-{cut}\n"
        ));
    }
    lines.push_str("truncate /a 700000\nwrite /a 600000 9000 7\nfsync /a\nunlink /a\nsync\n");
    text::parse(&lines).expect("operations")
}

#[test]
fn power_cuts_while_a_file_is_cut() {
    for block_size in [1024, 4096] {
        let stage = frequent_commits(block_size);
        let ops = in_pieces(block_size.into());
        campaign::replay(&stage, &ops).unwrap_or_else(|text| panic!("{block_size}: {text}"));
        let recording = Recording::replay(&stage, &ops);
        let recording = recording.unwrap_or_else(|text| panic!("{block_size}: {text}"));
        let report = crash::examine(&recording, "mapcut", 1, budget(120));
        report.unwrap_or_else(|text| panic!("blocks of {block_size}: {text}"));
    }
}

/// Allocated and freed space is exact, block by block, at each level of pointers.
#[test]
fn what_is_taken_is_counted() {
    for (block_size, features) in KINDS {
        let stage = stage(48 << 20, block_size, features);
        let device = stage.device();
        let mut subject =
            VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
        let mut model = stage.model();
        let per_block = u64::from(block_size / 4);
        let second = 12 + per_block;
        let third = second + per_block * per_block;
        let ends = [
            11,
            12,
            second - 1,
            second,
            third - 1,
            third,
            third + per_block,
        ];
        // The block itself, and the pointer blocks that no earlier block needed.
        let taken = [1, 2, 1, 3, 2, 4, 2];
        let path = Target::path("a");
        let create = text::parse("create /a 644 0 0\n").expect("an operation");
        step(&mut subject, &mut model, &create[0]).expect("made");
        let mut sectors = |op: Op| {
            step(&mut subject, &mut model, &op).unwrap_or_else(|text| panic!("{text}"));
            match subject.run(&Op::Stat(path.clone())) {
                Ok(Answer::File(facts)) => facts.sectors * 512 / u64::from(block_size),
                other => panic!("stat answers {other:?}"),
            }
        };
        let mut blocks = 0;
        for (end, more) in ends.into_iter().zip(taken) {
            blocks += more;
            let write = Op::Write {
                of: path.clone(),
                offset: end * u64::from(block_size),
                length: 9,
                fill: end,
            };
            assert_eq!(
                sectors(write),
                blocks,
                "block {end}, {block_size} {features:?}"
            );
        }
        for (end, less) in ends.into_iter().zip(taken).rev() {
            blocks -= less;
            let size = end * u64::from(block_size);
            let of = path.clone();
            assert_eq!(sectors(Op::Truncate { of, size }), blocks, "cut to {end}");
        }
        subject.close().expect("it closes");
        check_device(&device).expect("clean");
    }
}

/// An image that two implementations use in turn, with one model for both.
struct Turns<'a> {
    image: &'a Path,
    stage: &'a Stage,
    model: Model,
    profile: Profile,
}

impl<'a> Turns<'a> {
    fn new(image: &'a Path, stage: &'a Stage) -> Self {
        stage.device().save(image).expect("saved");
        let profile = Profile {
            remounts: 0,
            // Linux leaves the very last block of a map when a hole is punched over it.
            huge: false,
            ..Profile::everything()
        };
        Self {
            image,
            stage,
            model: stage.model(),
            profile,
        }
    }

    fn ours(&mut self, seed: u64) -> Result<(), String> {
        let device = Arc::new(RamDevice::load(self.image).expect("loaded"));
        let options = self.stage.options.clone();
        let mut subject = VolumeSubject::open(device.clone(), options).expect("mountable");
        let (_, result) = generate(&mut subject, &mut self.model, self.profile, seed, 300);
        subject.close().expect("it closes");
        device.save(self.image).expect("saved");
        result
    }

    /// `None` if the kernel is not available.
    fn theirs(&mut self, seed: u64) -> Option<Result<(), String>> {
        let mount = kernel_mount(self.image, Access::ReadWrite, "in_turns_with_the_kernel");
        let mount = mount.expect("sound")?;
        let mut subject = mount.subject().expect("opened");
        let (_, result) = generate(&mut subject, &mut self.model, self.profile, seed, 300);
        drop(subject);
        mount.unmount().expect("nobody uses it");
        Some(result)
    }

    fn check(&mut self, result: Result<(), String>, what: &str) {
        result.unwrap_or_else(|text| panic!("{what}: {text}"));
        self.model.release_all();
        e2fsck(self.image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }

    /// Compares the whole tree with both implementations.
    fn compare(&self, what: &str) {
        let device = Arc::new(RamDevice::load(self.image).expect("loaded"));
        let options = self.stage.options.clone();
        let mut subject = VolumeSubject::open(device, options).expect("mountable");
        let ours = subject.tree().expect("walkable");
        subject.close().expect("it closes");
        let mount = kernel_mount(self.image, Access::ReadOnly, "in_turns_with_the_kernel");
        if let Some(mount) = mount.expect("sound") {
            let theirs = mounted::walk(mount.path()).expect("walkable");
            mount.unmount().expect("nobody uses it");
            ours.assert_same(&theirs, &format!("{what}: ours and the kernel's"));
        }
    }
}

/// The two write in turn. In directories without types, Linux leaves the block's old bytes in the
/// type field of `.` and `..`, which e2fsck rejects: there the kernel only reads.
#[test]
fn in_turns_with_the_kernel() {
    let folder = scratch();
    let image = folder.path().join("image");
    for (block_size, features) in KINDS {
        let stage = stage(48 << 20, block_size, features);
        for seed in seeds(2) {
            let mut turns = Turns::new(&image, &stage);
            for round in 0..4 {
                let what = format!("seed {seed}, round {round}, {features:?} {block_size}");
                let is_ours = round % 2 == 0 || !features.has_types();
                let result = match is_ours {
                    true => Some(turns.ours(seed * 10 + round)),
                    false => turns.theirs(seed * 10 + round),
                };
                let Some(result) = result else { return };
                turns.check(result, &what);
            }
            turns.compare(&format!("seed {seed}, {features:?} {block_size}"));
        }
    }
}

/// Old files keep their block maps; new files have extents.
#[test]
fn an_image_that_was_ext3_once() {
    let folder = scratch();
    let image = folder.path().join("image");
    for block_size in [1024, 4096] {
        let stage = stage(48 << 20, block_size, Features::Ext3);
        for seed in seeds(1) {
            let what = format!("seed {seed}, blocks of {block_size}");
            let mut turns = Turns::new(&image, &stage);
            let result = turns.ours(seed * 10);
            turns.check(result, &what);
            run(tool("tune2fs").args(["-O", "extents"]).arg(&image)).expect("tune2fs");
            turns.model.has_extents = true;
            for round in 1..4 {
                let result = match round {
                    2 => turns.theirs(seed * 10 + round),
                    _ => Some(turns.ours(seed * 10 + round)),
                };
                let Some(result) = result else { continue };
                turns.check(result, &format!("{what}, round {round}"));
            }
            turns.compare(&what);
        }
    }
}
