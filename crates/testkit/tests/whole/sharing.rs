//! Attribute blocks that inodes share: few large values on many files, in every setting of the
//! cache that finds them.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::RamDevice;
use pext4_fs::options::{AttributeCache, Scaling};
use pext4_testkit::campaign::{self, Stage, generate};
use pext4_testkit::crash::window::Budget;
use pext4_testkit::crash::{self, recording::Recording};
use pext4_testkit::effort::{effort, scratch, seeds};
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::text;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};
use pext4_testkit::volume::VolumeSubject;

use crate::threads;

const SETTINGS: [AttributeCache; 5] = [
    AttributeCache::Off,
    AttributeCache::Global,
    AttributeCache::Split,
    AttributeCache::Buckets,
    AttributeCache::Sharded,
];

fn stage(setting: AttributeCache, block_size: u32, features: Features) -> Stage {
    let format = Format::new(32 << 20, block_size, features).inodes(2048);
    let mut stage = Stage::new(format).expect("mke2fs makes it");
    stage.options.scaling = Scaling {
        attribute_cache: setting,
        ..Scaling::FULL
    };
    stage
}

#[test]
fn one_thread_by_every_setting() {
    for setting in SETTINGS {
        for (block_size, features) in [(1024, Features::Upstream), (4096, Features::NoJournal)] {
            let stage = stage(setting, block_size, features);
            for seed in seeds(2) {
                campaign::run(&stage, "alike", Profile::alike(), seed, 800);
            }
        }
    }
}

/// Threads in directories of their own, which share attribute blocks.
#[test]
fn threads_share_with_each_other() {
    for setting in SETTINGS {
        let stage = stage(setting, 1024, Features::Upstream);
        for seed in seeds(1) {
            threads::apart(&stage, Profile::alike(), seed, 500);
        }
    }
}

fn budget(total: usize) -> Budget {
    let effort = effort() as usize;
    Budget {
        exhaust: 5,
        window: 24 * effort,
        total: total * effort,
    }
}

/// Power cuts while threads share and release blocks.
#[test]
fn power_cuts() {
    for setting in [AttributeCache::Buckets, AttributeCache::Sharded] {
        let mut stage = stage(setting, 1024, Features::Upstream);
        stage.options.commit_interval = Duration::from_millis(20);
        for seed in seeds(1) {
            let profile = Profile {
                syncs: 8,
                remounts: 0,
                reading: 0,
                largest: 64 << 10,
                longest_write: 8 << 10,
                huge: false,
                ..Profile::alike()
            };
            let recording = Recording::threads(&stage, profile, seed, 3, 60);
            let recording =
                recording.unwrap_or_else(|text| panic!("{setting:?}, seed {seed}: {text}"));
            crash::examine(&recording, "crashalike", seed, budget(80))
                .unwrap_or_else(|text| panic!("{setting:?}, seed {seed}: {text}"));
        }
    }
}

/// A block is shared, released by all, freed and reused; wherever the cut falls, a replay restores
/// neither the block nor a wrong count.
#[test]
fn a_cut_around_the_last_reference() {
    let ops = text::parse(
        "create /a 644 0 0\ncreate /b 644 0 0\ncreate /c 644 0 0\n\
         setxattr /a trusted.v 300 1 any\nsetxattr /b trusted.v 300 1 any\nsync\n\
         setxattr /c trusted.v 300 1 any\nrmxattr /a trusted.v\nsync\n\
         rmxattr /b trusted.v\nsetxattr /c trusted.v 300 2 any\nsync\nrmxattr /c trusted.v\n\
         setxattr /b trusted.v 300 2 any\nsync\nunlink /b\nsync\nwrite /a 0 40000 5\nsync\n\
         setxattr /a trusted.v 300 2 any\nsetxattr /c trusted.v 300 2 any\nunlink /a\nsync\n",
    );
    let ops = ops.expect("operations");
    for setting in SETTINGS {
        for (block_size, features) in [(1024, Features::Upstream), (4096, Features::Debian12)] {
            let stage = stage(setting, block_size, features);
            let recording = Recording::replay(&stage, &ops);
            let recording = recording.unwrap_or_else(|text| panic!("{setting:?}: {text}"));
            crash::examine(&recording, "lastreference", 1, budget(40))
                .unwrap_or_else(|text| panic!("{setting:?}, {features:?}: {text}"));
        }
    }
}

/// The kernel shares by the same rules on the same image: each finds the other's blocks.
#[test]
fn in_turns_with_the_kernel() {
    let folder = scratch();
    let image = folder.path().join("image");
    let stage = stage(AttributeCache::Sharded, 1024, Features::Upstream);
    let profile = Profile {
        remounts: 0,
        ..Profile::alike()
    };
    for seed in seeds(1) {
        stage.device().save(&image).expect("saved");
        let mut model = stage.model();
        for round in 0..6 {
            let what = format!("seed {seed}, round {round}");
            let seed = seed * 10 + round;
            let result = if round % 2 == 0 {
                let device = Arc::new(RamDevice::load(&image).expect("loaded"));
                let options = stage.options.clone();
                let mut subject = VolumeSubject::open(device.clone(), options).expect("mountable");
                let (_, result) = generate(&mut subject, &mut model, profile, seed, 200);
                subject.close().expect("it closes");
                device.save(&image).expect("saved");
                result
            } else {
                let mount = kernel_mount(&image, Access::ReadWrite, "in_turns_with_the_kernel");
                let Some(mount) = mount.expect("sound") else {
                    return;
                };
                let mut subject = mount.subject().expect("opened");
                let (_, result) = generate(&mut subject, &mut model, profile, seed, 200);
                drop(subject);
                mount.unmount().expect("nobody uses it");
                result
            };
            result.unwrap_or_else(|text| panic!("{what}: {text}"));
            model.release_all();
            e2fsck(&image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        }
    }
}
