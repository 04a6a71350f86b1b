//! Images that the kernel and pext4 use in turn, clean and with dirty journals, in both directions.

use std::path::Path;
use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::MountOptions;
use pext4_testkit::campaign::{Stage, generate};
use pext4_testkit::crash::judge::Judge;
use pext4_testkit::crash::recording::Recording;
use pext4_testkit::effort::{scratch, seeds};
use pext4_testkit::mounted;
use pext4_testkit::mutate::Specimen;
use pext4_testkit::op::Op;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::oracle::check::{e2fsck, recover};
use pext4_testkit::oracle::format::{Features, Format, everyday};
use pext4_testkit::oracle::mount::{Access, kernel_mount, kernel_writes};
use pext4_testkit::outcome::Subject;
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::{VolumeSubject, tree_of};

/// All operations except remounts, since each round of these tests is one.
fn profile() -> Profile {
    Profile {
        remounts: 0,
        ..Profile::everything()
    }
}

fn kernel_tree(image: &Path) -> Option<Tree> {
    let mount =
        kernel_mount(image, Access::ReadWrite, "kernel_both_ways").expect("the kernel takes it")?;
    let tree = mounted::walk(mount.path())
        .unwrap_or_else(|failure| panic!("the kernel's walk: {failure}"));
    mount.unmount().expect("nobody uses it");
    Some(tree)
}

fn our_tree(image: &Path, read_only: bool) -> Tree {
    let device = RamDevice::load(image).expect("loaded");
    tree_of(Arc::new(device), read_only).unwrap_or_else(|error| panic!("our walk: {error:#}"))
}

/// The two write in turn, with one model for both; each sees exactly what the other left.
#[test]
fn in_turns_on_clean_images() {
    let folder = scratch();
    let image = folder.path().join("image");
    for format in everyday(48 << 20) {
        if !kernel_writes(format.features, "kernel_both_ways") {
            continue;
        }
        for seed in seeds(1) {
            let context = format!("seed {seed}, {}", format.describe());
            let stage = Stage::new(format.clone()).expect("mke2fs makes it");
            let mut model = stage.model();
            stage.device().save(&image).expect("saved");
            for round in 0..4 {
                let device = Arc::new(RamDevice::load(&image).expect("loaded"));
                let result = if round % 2 == 0 {
                    let mut subject = VolumeSubject::open(device.clone(), MountOptions::default())
                        .expect("mountable");
                    let (_, result) =
                        generate(&mut subject, &mut model, profile(), seed * 10 + round, 300);
                    if result.is_ok() {
                        subject.close().expect("it closes");
                        device.save(&image).expect("saved");
                    }
                    result
                } else {
                    let Some(mount) = kernel_mount(&image, Access::ReadWrite, "kernel_both_ways")
                        .expect("mountable")
                    else {
                        return;
                    };
                    let mut subject = mount.subject().expect("opened");
                    let (_, result) =
                        generate(&mut subject, &mut model, profile(), seed * 10 + round, 300);
                    drop(subject);
                    mount.unmount().expect("nobody uses it");
                    result
                };
                result.unwrap_or_else(|text| panic!("{context}, round {round}: {text}"));
                model.release_all();
                e2fsck(&image)
                    .unwrap_or_else(|error| panic!("{context}, round {round}: {error:#}"));
                let ours = our_tree(&image, true);
                let Some(theirs) = kernel_tree(&image) else {
                    return;
                };
                ours.assert_same(
                    &theirs,
                    &format!("{context}, round {round}: ours against the kernel's"),
                );
            }
        }
    }
}

/// The image of a mounted file system, copied while the kernel uses it: its journal needs replay.
#[test]
fn journals_that_the_kernel_left_dirty() {
    let folder = scratch();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    for (block_size, features) in [
        (1024, Features::Upstream),
        (4096, Features::Debian12),
        (1024, Features::Narrow),
        (1024, Features::Ext3),
    ] {
        for seed in seeds(2) {
            let context = format!("seed {seed}, {block_size} {features:?}");
            let stage =
                Stage::new(Format::new(32 << 20, block_size, features)).expect("mke2fs makes it");
            stage.device().save(&image).expect("saved");
            let Some(mount) =
                kernel_mount(&image, Access::ReadWrite, "kernel_both_ways").expect("mountable")
            else {
                return;
            };
            let mut subject = mount.subject().expect("opened");
            let mut model = stage.model();
            for part in 0..3 {
                let (_, result) =
                    generate(&mut subject, &mut model, profile(), seed * 10 + part, 120);
                result.unwrap_or_else(|text| panic!("{context}: {text}"));
                subject.run(&Op::Sync).expect("durable");
                std::fs::copy(&image, &copy).expect("copied");
                let seen = our_tree(&copy, true);
                let device = Arc::new(RamDevice::load(&copy).expect("loaded"));
                let ours = tree_of(device.clone(), false)
                    .unwrap_or_else(|error| panic!("{context}: {error:#}"));
                ours.assert_same(&seen, &format!("{context}: replayed against looked at"));
                let found = model.differences(&ours);
                assert!(
                    found.is_empty(),
                    "{context}, part {part}:\n  {}",
                    found.join("\n  ")
                );
                recover(&copy).unwrap_or_else(|error| panic!("{context}: {error:#}"));
                our_tree(&copy, true)
                    .assert_same(&ours, &format!("{context}: e2fsck's replay against ours"));
                device.save(&copy).expect("saved");
                e2fsck(&copy)
                    .unwrap_or_else(|error| panic!("{context}, after our replay: {error:#}"));
            }
            drop(subject);
            mount.unmount().expect("nobody uses it");
        }
    }
}

/// Journals written by debugfs, with both kinds of checksums.
#[test]
fn journals_that_debugfs_wrote() {
    let folder = scratch();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    for features in [
        Features::NoChecksums,
        Features::Debian12,
        Features::Upstream,
    ] {
        for version in [2, 3] {
            Specimen::make(features)
                .expect("made")
                .device
                .save(&image)
                .expect("saved");
            pext4_testkit::mutate::write_journal(&image, version).expect("written");
            let context = format!("{features:?}, checksums of version {version}");
            let seen = our_tree(&image, true);
            let device = Arc::new(RamDevice::load(&image).expect("loaded"));
            let ours = tree_of(device.clone(), false)
                .unwrap_or_else(|error| panic!("{context}: {error:#}"));
            ours.assert_same(&seen, &context);
            device.save(&copy).expect("saved");
            e2fsck(&copy).unwrap_or_else(|error| panic!("{context}, after our replay: {error:#}"));
            recover(&image).unwrap_or_else(|error| panic!("{context}: {error:#}"));
            our_tree(&image, true).assert_same(&ours, &context);
        }
    }
}

/// pext4 is killed; the kernel replays its journal.
#[test]
fn journals_that_we_left_dirty() {
    let folder = scratch();
    let image = folder.path().join("image");
    for (block_size, features) in [
        (1024, Features::Upstream),
        (4096, Features::Debian12),
        (1024, Features::Narrow),
        (1024, Features::Ext3),
    ] {
        let stage =
            Stage::new(Format::new(32 << 20, block_size, features)).expect("mke2fs makes it");
        for seed in seeds(3) {
            let context = format!("seed {seed}, {block_size} {features:?}");
            let recording = Recording::generate(&stage, Profile::crashes(), seed, 250);
            let mut recording = recording.unwrap_or_else(|text| panic!("{context}: {text}"));
            // Everything that reached the device before the last operation, the clean remount.
            let cut = *recording.histories[0]
                .started
                .last()
                .expect("operations ran");
            recording.events.truncate(cut);
            let device = recording.base.fork();
            recording
                .events
                .iter()
                .for_each(|event| event.apply(&device).expect("it fits"));
            device.save(&image).expect("saved");
            let Some(theirs) = kernel_tree(&image) else {
                return;
            };
            let judged = Judge::new(&recording.histories[0], cut).state_of(&theirs);
            judged.unwrap_or_else(|text| panic!("{context}: {text}"));
            e2fsck(&image).unwrap_or_else(|error| panic!("{context}: {error:#}"));
            our_tree(&image, true).assert_same(&theirs, &context);
        }
    }
}
