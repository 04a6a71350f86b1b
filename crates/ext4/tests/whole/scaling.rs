//! Every setting of the scaling mechanisms behaves the same for users; settings differ only in how
//! operations on different cores are kept apart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use pext4_block::{Device, RamDevice};
use pext4_fs::options::{SWITCHES, Scaling};
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, MountOptions, Refusal, SetAttributes,
    SetXattrMode, Volume,
};
use pext4_sync::topology;

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
/// Threads that fill a volume together.
const CROWD: u64 = 64;
/// The flag of `chattr +T`.
const TOPDIR: u32 = 0x2_0000;

/// Settings that together have every value of every switch, one a line. The campaigns that try all
/// settings read the same file.
const SETTINGS: &str = include_str!("../settings.txt");

fn settings() -> impl Iterator<Item = Scaling> {
    SETTINGS
        .lines()
        .map(|line| Scaling::parse(line).expect("a setting"))
}

#[test]
fn the_settings_cover_every_value_of_every_switch() {
    const NUMBERS: std::ops::Range<u32> = 1..9;
    for switch in &SWITCHES {
        let has = |value: &str| {
            settings().any(|scaling| {
                let same = Scaling::parse(&format!("{scaling},{}={value}", switch.name));
                same.expect("a setting") == scaling
            })
        };
        for value in switch.values.split('|') {
            let covered = match value {
                "NUMBER" => NUMBERS.into_iter().any(|number| has(&number.to_string())),
                word => has(word),
            };
            assert!(covered, "no setting has {}={value}", switch.name);
        }
    }
}

fn open(image: &Image, scaling: Scaling) -> (Volume, Arc<RamDevice>) {
    open_for(image, scaling, MountOptions::default().commit_interval)
}

fn open_for(image: &Image, scaling: Scaling, interval: Duration) -> (Volume, Arc<RamDevice>) {
    println!("setting {scaling}");
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let options = MountOptions {
        scaling,
        commit_interval: interval,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn Device>, options);
    (volume.expect("a mount"), device)
}

fn assert_clean(image: &Image, device: &RamDevice) {
    device.save(&image.path).expect("room for the image");
    image.assert_clean();
}

fn size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

fn new_file(volume: &Volume, name: &str) -> InodeNumber {
    let made = volume.create(ROOT, name.as_bytes(), &CreateAttributes::default());
    made.expect("room for a file").inode
}

/// Writes every second block, so that the file has many extents.
fn scatter(volume: &Volume, file: InodeNumber, blocks: u64) {
    for block in 0..blocks {
        let written = volume.write(file, 2 * block * BLOCK, &[7; 512]);
        written.expect("room for a block");
    }
}

/// Many more files than a transaction has credits, created and removed in it, charge only one
/// block.
#[test]
fn files_that_come_and_go_fill_no_transaction() {
    const FILES: u64 = 50_000;
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096"]) else {
            return;
        };
        let (volume, device) = open_for(&image, scaling, Duration::from_secs(1000));
        let commits = || volume.report().get("journal", "commits");
        let before = commits();
        for _ in 0..FILES {
            let file = new_file(&volume, "file");
            volume.forget(file, 1);
            volume.unlink(ROOT, b"file").expect("it is there");
        }
        assert_eq!(commits(), before, "{scaling}");
        volume.close().expect("a clean end");
        assert_clean(&image, &device);
    }
}

/// Attribute blocks that begin and end in one transaction are reused in it, without revokes.
#[test]
fn attribute_blocks_that_come_and_go_fill_no_transaction() {
    const SETS: u64 = 20_000;
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-I", "128"]) else {
            return;
        };
        let (volume, device) = open_for(&image, scaling, Duration::from_secs(1000));
        let files: Vec<_> = (0..20)
            .map(|number| new_file(&volume, &format!("file{number}")))
            .collect();
        let commits = || volume.report().get("journal", "commits");
        let before = commits();
        let mut random = Rng::with_seed(11);
        for _ in 0..SETS {
            let file = files[random.u64(..20) as usize];
            let value = random.u64(..20).to_le_bytes();
            let set = volume.set_xattr(file, b"user.value", &value, SetXattrMode::Any);
            set.expect("room for a value");
        }
        assert_eq!(commits(), before, "{scaling}");
        assert_eq!(
            volume.report().get("journal", "revokes"),
            Some(0),
            "{scaling}"
        );
        for file in files {
            volume.forget(file, 1);
        }
        volume.close().expect("a clean end");
        assert_clean(&image, &device);
    }
}

#[test]
fn cut_and_unnamed_files_are_orphans_in_every_design() {
    for features in ["orphan_file", "orphan_file,^metadata_csum", "^orphan_file"] {
        for scaling in settings() {
            let Some(image) = Image::make(&["-b", "4096", "-O", features]) else {
                return;
            };
            let (volume, device) = open(&image, scaling);
            let file = new_file(&volume, "file");
            for _ in 0..3 {
                scatter(&volume, file, 100);
                let cut = volume.set_attributes(file, &size(BLOCK));
                assert_eq!(cut.expect("cut").size, BLOCK);
            }
            volume.unlink(ROOT, b"file").expect("its name");
            volume.sync().expect("durable");
            assert!(volume.unnamed_inodes_fingerprint().is_some(), "it is held");
            volume.forget(file, 1);
            assert!(volume.unnamed_inodes_fingerprint().is_none());
            let report = volume.report();
            let count = |name| report.get("orphans", name).expect("counted");
            let (slots, chained) = (count("in slots"), count("on the chain"));
            let has_slots = features != "^orphan_file"
                && scaling.orphan != pext4_fs::options::OrphanSlots::List;
            assert_eq!(slots > 0, has_slots, "{scaling} {features}");
            assert_eq!(chained > 0, !has_slots, "{scaling} {features}");
            volume.close().expect("it closes");
            assert_clean(&image, &device);
        }
    }
}

/// The second long truncation of a file in one transaction finds the orphan slot of the first one.
#[test]
fn a_slot_is_remembered_while_its_transaction_runs() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "orphan_file"]) else {
        return;
    };
    let (volume, device) = open(&image, Scaling::FULL);
    let file = new_file(&volume, "file");
    for _ in 0..5 {
        scatter(&volume, file, 120);
        volume.set_attributes(file, &size(0)).expect("cut");
    }
    let report = volume.report();
    let remembered = report.get("orphans", "in a remembered slot");
    assert!(remembered >= Some(3), "{report}");
    volume.sync().expect("durable");
    // The slot was empty in that transaction, and is free now.
    assert!(volume.unnamed_inodes_fingerprint().is_none());
    volume.close().expect("it closes");
    assert_clean(&image, &device);
}

/// Threads fill a volume together, delete, and fill again: none is refused while a commit would
/// free enough, none waits forever, and the last block can be used.
#[test]
fn a_full_volume_is_full_for_everyone_and_to_the_last_block() {
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-g", "2048", "-m", "0"]) else {
            return;
        };
        let (volume, device) = open(&image, scaling);
        let free = volume.statfs().free_blocks;
        let files: Vec<InodeNumber> = (0..CROWD)
            .map(|number| new_file(&volume, &format!("f{number}")))
            .collect();
        let last = new_file(&volume, "last");
        thread::scope(|scope| {
            for (number, &file) in files.iter().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let _pin = topology::pin(number);
                    let mut random = Rng::with_seed(number as u64);
                    for _ in 0..4 {
                        take_all(volume, file, &mut random);
                        // Half of them delete everything, while others are refused.
                        if number % 2 == 0 {
                            volume.set_attributes(file, &size(0)).expect("cut");
                        }
                    }
                    take_all(volume, file, &mut random);
                });
            }
        });
        volume.sync().expect("durable");
        let left = volume.statfs().free_blocks;
        let said = format!("{scaling}: {free} were free, {left} were left");
        // The last refusal was correct: blocks freed after it may be left, and are found now. One
        // block alone is of no use to a file whose inode is full of extents, since the next extent
        // needs a node besides; an empty file needs none.
        let mut random = Rng::with_seed(99);
        take_all(&volume, files[1], &mut random);
        assert!(volume.statfs().free_blocks <= 1, "{said}");
        take_all(&volume, last, &mut random);
        assert_eq!(volume.statfs().free_blocks, 0, "{said}");
        volume.close().expect("it closes");
        assert_clean(&image, &device);
    }
}

/// Appends to a file until the volume refuses.
fn take_all(volume: &Volume, file: InodeNumber, random: &mut Rng) {
    let mut end = volume.attributes(file).expect("held").size;
    loop {
        let length = BLOCK * (1 + random.u64(..8));
        match volume.allocate(file, AllocateMode::Extend, end, length) {
            Ok(_) => end += length,
            Err(error) => {
                assert!(error.is(Refusal::NoSpace), "{error}");
                // A part of it, to the last block.
                if length == BLOCK {
                    return;
                }
                let single = volume.allocate(file, AllocateMode::Extend, end, BLOCK);
                if single.is_err() {
                    return;
                }
                end += BLOCK;
            }
        }
    }
}

/// One thread frees much in the running transaction; the other one is not refused.
#[test]
fn nobody_is_refused_while_a_commit_would_free_enough() {
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-g", "2048", "-m", "0"]) else {
            return;
        };
        let (volume, device) = open(&image, scaling);
        let (first, second) = (new_file(&volume, "a"), new_file(&volume, "b"));
        take_all(&volume, first, &mut Rng::with_seed(1));
        for _ in 0..3 {
            let had = volume.attributes(first).expect("held").size;
            volume.set_attributes(first, &size(BLOCK)).expect("cut");
            let taken = volume.allocate(second, AllocateMode::Extend, 0, had - 100 * BLOCK);
            taken.expect("what was freed is there after a commit");
            volume.set_attributes(second, &size(0)).expect("cut");
            let taken = volume.allocate(first, AllocateMode::Extend, BLOCK, had - 100 * BLOCK);
            taken.expect("and once more");
        }
        let report = volume.report();
        assert!(
            report.get("frees", "waits of a full disk") >= Some(3),
            "{report}"
        );
        volume.close().expect("it closes");
        assert_clean(&image, &device);
    }
}

/// Threads whose files together fit the volume free space and use it again at once. What they want
/// often waits for a commit, and others may take it first: none is refused.
#[test]
fn nobody_is_refused_what_fits_beside_what_all_others_may_have() {
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-g", "2048", "-m", "0"]) else {
            return;
        };
        let (volume, device) = open(&image, scaling);
        // Each file may need a node for its extents, which has room for more of them than the file
        // may have blocks. The names fit the root's block; nothing else takes space.
        let quota = volume.statfs().free_blocks / CROWD - 1;
        assert!((100..340).contains(&quota), "{quota}");
        thread::scope(|scope| {
            for number in 0..CROWD {
                let volume = &volume;
                scope.spawn(move || {
                    let _pin = topology::pin(number as usize);
                    fill_again_and_again(volume, &format!("f{number}"), quota, number);
                });
            }
        });
        volume.close().expect("it closes");
        assert_clean(&image, &device);
    }
}

/// Fills a file with as many blocks as it may have, by writes and allocations of different lengths,
/// frees a part, and fills it again.
fn fill_again_and_again(volume: &Volume, name: &str, quota: u64, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut file = new_file(volume, name);
    let mut blocks = 0;
    for _ in 0..12 {
        while blocks < quota {
            let length = random.u64(1..=quota - blocks);
            extend(volume, file, (blocks, length), &mut random);
            blocks += length;
        }
        match random.u32(..3) {
            0 => {
                volume.unlink(ROOT, name.as_bytes()).expect("its name");
                volume.forget(file, 1);
                file = new_file(volume, name);
                blocks = 0;
            }
            1 => {
                blocks = random.u64(..quota);
                let cut = volume.set_attributes(file, &size(blocks * BLOCK));
                cut.expect("cut");
            }
            _ => {
                volume.set_attributes(file, &size(0)).expect("cut");
                blocks = 0;
            }
        }
    }
    volume.forget(file, 1);
}

/// Appends blocks to a file of so many blocks, by a write or an allocation.
fn extend(volume: &Volume, file: InodeNumber, (blocks, length): (u64, u64), random: &mut Rng) {
    let (at, bytes) = (blocks * BLOCK, length * BLOCK);
    if random.bool() {
        let allocated = volume.allocate(file, AllocateMode::Extend, at, bytes);
        allocated.expect("there is room for all");
        return;
    }
    let data = vec![7; usize::try_from(bytes).expect("few blocks")];
    let written = volume.write(file, at, &data).expect("there is room");
    assert_eq!(written, data.len(), "there is room for all");
}

/// A group whose bitmap is corrupt is not used: the other groups serve all requests.
#[test]
fn a_corrupt_group_is_passed_by_and_reported() {
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-g", "2048", "-m", "0"]) else {
            return;
        };
        let groups = image.debugfs("stats");
        let place = groups
            .split("Group  0: block bitmap at ")
            .nth(1)
            .and_then(|rest| rest.split([',', ' ']).next()?.parse::<u64>().ok());
        let place = place.expect("debugfs names the bitmap") * BLOCK;
        let (volume, device) = open(&image, scaling);
        let mut bytes = vec![0; 4096];
        device.read_at(place, &mut bytes).expect("inside");
        bytes[100] ^= 0x55;
        device.write_at(place, &bytes).expect("inside");
        let files: Vec<InodeNumber> = (0..8)
            .map(|number| new_file(&volume, &format!("f{number}")))
            .collect();
        let free = || volume.statfs().free_blocks;
        let before = free();
        thread::scope(|scope| {
            for (number, &file) in files.iter().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let _pin = topology::pin(number);
                    take_all(volume, file, &mut Rng::with_seed(number as u64));
                });
            }
        });
        let report = volume.report();
        assert_eq!(report.get("groups", "corrupt"), Some(1), "{report}");
        // A thread that got a block but none for its extent tree freed it after others had found
        // none.
        let left = free();
        assert!(left <= files.len() as u64, "{scaling}: {left} are free");
        let sectors = |&file| volume.attributes(file).expect("held").sectors;
        let taken: u64 = files.iter().map(sectors).sum::<u64>() * 512 / BLOCK;
        let lost = before - taken - left;
        assert!(
            (500..2048).contains(&lost),
            "{scaling}: only the group is lost, {lost}"
        );
        assert!(!volume.is_read_only());
        for &file in &files {
            volume.set_attributes(file, &size(0)).expect("cut");
        }
        volume.sync().expect("it syncs");
        assert_eq!(free(), before - lost, "{scaling}: all the others are free");
        volume.close().expect("it closes");
    }
}

/// Many threads create and remove names in one directory, with concurrent lookups and a listing.
#[test]
fn one_directory_for_everyone() {
    const THREADS: u64 = 8;
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096", "-N", "16384"]) else {
            return;
        };
        let (volume, device) = open(&image, scaling);
        let made = volume.make_directory(ROOT, b"all", &CreateAttributes::default());
        let directory = made.expect("a directory").inode;
        thread::scope(|scope| {
            for number in 0..THREADS {
                let volume = &volume;
                scope.spawn(move || {
                    let _pin = topology::pin(usize::try_from(number).expect("few"));
                    live_in(volume, directory, number);
                });
            }
        });
        let mut names = 0;
        let listed = volume.read_directory(directory, 0, &mut |_| {
            names += 1;
            true
        });
        listed.expect("readable");
        assert_eq!(names, 2 + THREADS * 200, "{scaling}");
        let report = volume.report();
        let in_leaves = report.get("directories", "changes under a leaf's lock");
        let has_leaves = scaling.directory == pext4_fs::options::DirectoryLocks::Leaves;
        assert_eq!(in_leaves > Some(2000), has_leaves, "{report}");
        volume.close().expect("it closes");
        assert_clean(&image, &device);
    }
}

/// Makes 600 files, of which 200 stay, and competes with the other threads for common names.
fn live_in(volume: &Volume, directory: InodeNumber, number: u64) {
    let new = CreateAttributes::default();
    for step in 0..600u64 {
        let own = format!("{number}-{step}");
        let entry = volume
            .create(directory, own.as_bytes(), &new)
            .expect("mine");
        volume.forget(entry.inode, 1);
        let found = volume.lookup(directory, own.as_bytes()).expect("there");
        assert_eq!(found.inode, entry.inode);
        volume.forget(found.inode, 1);
        let shared = format!("shared-{}", step % 5);
        match volume.create(directory, shared.as_bytes(), &new) {
            Ok(entry) => volume.forget(entry.inode, 1),
            Err(error) => assert!(error.is(Refusal::Exists), "{error}"),
        }
        match volume.lookup(directory, shared.as_bytes()) {
            Ok(entry) => {
                // The hold keeps it, even if its name is removed.
                volume.attributes(entry.inode).expect("held");
                volume.forget(entry.inode, 1);
            }
            Err(error) => assert!(error.is(Refusal::NotFound), "{error}"),
        }
        match volume.unlink(directory, shared.as_bytes()) {
            Ok(()) => {}
            Err(error) => assert!(error.is(Refusal::NotFound), "{error}"),
        }
        if step % 3 != 0 {
            volume.unlink(directory, own.as_bytes()).expect("mine");
        }
    }
}

/// Directories in one with the flag (`chattr +T`) begin regions of their own, as those in the root
/// do; in any other directory they stay near it.
#[test]
fn a_top_directory_spreads_those_below_it() {
    let shape = ["-b", "1024", "-g", "1024", "-N", "8192", "-G", "4"];
    let Some(image) = Image::make(&shape) else {
        return;
    };
    let (volume, device) = open(&image, Scaling::FULL);
    let new_directory = |parent, name: &str| {
        let made = volume.make_directory(parent, name.as_bytes(), &CreateAttributes::default());
        made.expect("room for a directory").inode
    };
    let regions_below = |parent: InodeNumber| {
        let below = (0..12).map(|number| new_directory(parent, &format!("below{number}")));
        // 64 groups of 128 inodes, four per region.
        let regions = below.map(|inode| (inode.get() - 1) / 128 / 4);
        regions.collect::<BTreeSet<u32>>().len()
    };
    let (plain, top) = (new_directory(ROOT, "plain"), new_directory(ROOT, "top"));
    let flags = volume.attributes(top).expect("it is there").flags;
    let flag = SetAttributes {
        flags: Some(flags | TOPDIR),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(top, &flag)
        .expect("a flag of its own");
    assert_eq!(regions_below(plain), 1);
    assert!(regions_below(top) >= 8);
    volume.close().expect("a clean end");
    assert_clean(&image, &device);
}

/// The blocks of a directory are contiguous, whichever cores make it grow.
#[test]
fn a_directory_that_grows_on_many_shards_lies_in_one_piece() {
    for scaling in settings() {
        let Some(image) = Image::make(&["-b", "4096"]) else {
            return;
        };
        let (volume, device) = open(&image, scaling);
        let directory = volume.make_directory(ROOT, b"many", &CreateAttributes::default());
        let directory = directory.expect("room for a directory").inode;
        for number in 0..2000 {
            let _pin = topology::pin(number % 4);
            let name = format!("a name of some length, number {number}");
            let made = volume.create(directory, name.as_bytes(), &CreateAttributes::default());
            volume.forget(made.expect("room for a file").inode, 1);
        }
        let size = volume.attributes(directory).expect("it is there").size;
        let extents = volume.extents(directory, 0, 100).expect("its blocks");
        assert!(size > 20 * BLOCK, "{size}");
        assert_eq!(extents.len(), 1, "{extents:?}");
        volume.close().expect("a clean end");
        assert_clean(&image, &device);
    }
}
