//! ext2 and ext3: files with block maps, written by us, judged by the model, e2fsck, power cuts and
//! the kernel.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::RamDevice;
use pext4_testkit::campaign::{self, Stage, generate};
use pext4_testkit::crash::{self, window::Budget};
use pext4_testkit::effort::{effort, scratch, seeds};
use pext4_testkit::mounted;
use pext4_testkit::op::generate::Taste;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};
use pext4_testkit::outcome::Subject;
use pext4_testkit::volume::VolumeSubject;

const KINDS: [(u32, Features); 4] = [
    (1024, Features::Ext3),
    (4096, Features::Ext3),
    (1024, Features::Ext2),
    (4096, Features::Ext2),
];

/// Files up to 20 MiB: with blocks of 1 KiB that needs two levels of pointer blocks.
fn contents() -> Taste {
    Taste {
        huge: false,
        largest: 20 << 20,
        longest_write: 128 << 10,
        ..Taste::contents()
    }
}

fn everything() -> Taste {
    Taste {
        huge: false,
        ..Taste::everything()
    }
}

#[test]
fn one_thread() {
    for (block_size, features) in KINDS {
        let stage = Stage::new(Format::new(48 << 20, block_size, features).inodes(4096));
        let stage = stage.expect("mke2fs makes it");
        for seed in seeds(2) {
            campaign::run(&stage, "maps", everything(), seed, 700);
            campaign::run(&stage, "mapcontents", contents(), seed, 500);
            campaign::run(&stage, "mapnames", Taste::names(), seed, 1000);
        }
    }
}

#[test]
fn full_volumes() {
    for (block_size, features) in KINDS {
        let stage = Stage::new(Format::new(8 << 20, block_size, features).inodes(1024));
        let stage = stage.expect("mke2fs makes it").filling();
        for seed in seeds(1) {
            campaign::run(&stage, "mapsfull", contents(), seed, 600);
        }
    }
}

#[test]
fn power_cuts() {
    for block_size in [1024, 4096] {
        let format = Format::new(16 << 20, block_size, Features::Ext3);
        let format = format.inodes(1024).with(&["-J", "size=4"]);
        let mut stage = Stage::new(format).expect("mke2fs makes it");
        stage.options.commit_interval = Duration::from_millis(20);
        for seed in seeds(1) {
            let taste = Taste {
                files: 80,
                largest: 2 << 20,
                ..Taste::crashes()
            };
            let effort = effort() as usize;
            let budget = Budget {
                exhaust: 5,
                window: 24 * effort,
                total: 100 * effort,
            };
            crash::run(&stage, "crashmaps", taste, seed, 150, budget);
        }
    }
}

/// The two write in turn, with one model between them.
#[test]
fn in_turns_with_the_kernel() {
    let folder = scratch();
    let image = folder.path().join("image");
    for (block_size, features) in KINDS {
        let format = Format::new(48 << 20, block_size, features).inodes(4096);
        let stage = Stage::new(format).expect("mke2fs makes it");
        for seed in seeds(1) {
            stage.device().save(&image).expect("saved");
            let mut model = stage.model();
            for round in 0..4 {
                let what = format!("seed {seed}, round {round}, {features:?} {block_size}");
                let taste = Taste {
                    remounts: 0,
                    // In files with block maps the kernel's SEEK_DATA passes over data that it has not
                    // yet given a place; the tree is compared at the end of each round anyway.
                    reading: 0,
                    ..everything()
                };
                let seed = seed * 10 + round;
                let result = if round % 2 == 0 {
                    let device = Arc::new(RamDevice::load(&image).expect("loaded"));
                    let options = stage.options.clone();
                    let mut subject =
                        VolumeSubject::open(device.clone(), options).expect("mountable");
                    let (_, result) = generate(&mut subject, &mut model, taste, seed, 300);
                    subject.close().expect("it closes");
                    device.save(&image).expect("saved");
                    result
                } else {
                    let mount = kernel_mount(&image, Access::ReadWrite, "in_turns_with_the_kernel");
                    let Some(mount) = mount.expect("sound") else {
                        return;
                    };
                    let mut subject = mount.subject().expect("opened");
                    let (_, result) = generate(&mut subject, &mut model, taste, seed, 300);
                    drop(subject);
                    mount.unmount().expect("nobody uses it");
                    result
                };
                result.unwrap_or_else(|text| panic!("{what}: {text}"));
                model.release_all();
                e2fsck(&image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            }
            let ours = {
                let device = Arc::new(RamDevice::load(&image).expect("loaded"));
                let mut subject =
                    VolumeSubject::open(device, stage.options.clone()).expect("mountable");
                let tree = subject.tree().expect("walkable");
                subject.close().expect("it closes");
                tree
            };
            let mount = kernel_mount(&image, Access::ReadOnly, "in_turns_with_the_kernel");
            let Some(mount) = mount.expect("sound") else {
                return;
            };
            let theirs = mounted::walk(mount.path()).expect("walkable");
            mount.unmount().expect("nobody uses it");
            ours.assert_same(&theirs, "ours and the kernel's");
        }
    }
}
