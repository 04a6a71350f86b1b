//! Attribute blocks that inodes share, on whole images: which inodes share a block, the limit of
//! inodes per block, full disks, and many threads; in every setting of the cache that finds the
//! blocks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pext4_block::{Access, FileDevice};
use pext4_fs::options::{AttributeCache, Scaling};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Refusal, SetXattrMode, Volume};
use pext4_sync::topology;

use crate::images::Image;

const SETTINGS: [AttributeCache; 5] = [
    AttributeCache::Off,
    AttributeCache::Global,
    AttributeCache::Split,
    AttributeCache::Buckets,
    AttributeCache::Sharded,
];

/// Images whose inodes have room for attributes, and images whose inodes have none.
const KINDS: [&[&str]; 3] = [
    &["-b", "4096", "-I", "256"],
    &["-b", "1024", "-I", "128"],
    &[
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "^has_journal,^metadata_csum",
    ],
];

const NAME: &[u8] = b"user.large";

fn open(image: &Image, setting: AttributeCache) -> Volume {
    let device = FileDevice::open(&image.path, Access::ReadWrite, Duration::from_secs(10));
    let options = MountOptions {
        scaling: Scaling {
            attribute_cache: setting,
            ..Scaling::FULL
        },
        ..MountOptions::default()
    };
    Volume::open(Arc::new(device.expect("the image")), options).expect("a mount")
}

fn create(volume: &Volume, name: &str) -> InodeNumber {
    let entry = volume.create(
        InodeNumber::ROOT,
        name.as_bytes(),
        &CreateAttributes::default(),
    );
    entry.expect("room for a file").inode
}

fn set(volume: &Volume, inode: InodeNumber, value: &[u8]) {
    let result = volume.set_xattr(inode, NAME, value, SetXattrMode::Any);
    result.expect("room for an attribute");
}

fn free_blocks(volume: &Volume) -> u64 {
    volume.sync().expect("a commit");
    volume.statfs().free_blocks
}

/// The attribute block of a file, as debugfs reads it.
fn block_of(image: &Image, name: &str) -> u64 {
    let stat = image.debugfs(&format!("stat /{name}"));
    let (_, rest) = stat.split_once("File ACL: ").expect("a line of its own");
    let number = rest.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

#[test]
fn equal_attributes_take_one_block() {
    for (arguments, setting) in KINDS
        .iter()
        .flat_map(|kind| SETTINGS.map(|one| (kind, one)))
    {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = open(&image, setting);
        let files: Vec<_> = (0..40)
            .map(|n| create(&volume, &format!("file{n}")))
            .collect();
        let before = free_blocks(&volume);
        files.iter().for_each(|&file| set(&volume, file, &[7; 300]));
        let taken = before - free_blocks(&volume);
        let expected = if setting == AttributeCache::Off {
            40
        } else {
            1
        };
        assert_eq!(taken, expected, "{setting:?} {arguments:?}");
        let seen = volume.attribute_cache_statistics();
        if setting != AttributeCache::Off {
            assert_eq!((seen.hits, seen.misses), (39, 1), "{setting:?}");
        }
        // One inode leaves the block; the others keep their attributes.
        set(&volume, files[3], &[8; 300]);
        assert_eq!(volume.xattr(files[4], NAME).expect("there"), [7; 300]);
        volume.close().expect("a clean close");
        image.assert_clean();

        // A new mount learns of a block when a file's attributes are read.
        let volume = open(&image, setting);
        assert_eq!(volume.xattr(files[0], NAME).expect("there"), [7; 300]);
        assert_eq!(volume.xattr(files[3], NAME).expect("there"), [8; 300]);
        let before = free_blocks(&volume);
        set(&volume, files[3], &[7; 300]);
        let freed = free_blocks(&volume) - before;
        assert_eq!(
            freed,
            u64::from(setting != AttributeCache::Off),
            "{setting:?}"
        );
        let before = free_blocks(&volume);
        for (number, &file) in files.iter().enumerate() {
            if number % 2 == 0 {
                volume.remove_xattr(file, NAME).expect("there");
            } else {
                volume.forget(file, 1);
                let name = format!("file{number}");
                volume
                    .unlink(InodeNumber::ROOT, name.as_bytes())
                    .expect("there");
            }
        }
        assert_eq!(free_blocks(&volume) - before, expected, "{setting:?}");
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

#[test]
fn a_block_serves_1024_inodes() {
    for setting in SETTINGS {
        let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-N", "4000"]) else {
            return;
        };
        if setting == AttributeCache::Off {
            continue;
        }
        let volume = open(&image, setting);
        // Cores that share a block leave room in its count for what each core may count on its own.
        let _pin = topology::pin(0);
        let files: Vec<_> = (0..1030)
            .map(|n| create(&volume, &format!("f{n}")))
            .collect();
        let before = free_blocks(&volume);
        files.iter().for_each(|&file| set(&volume, file, &[7; 300]));
        assert_eq!(before - free_blocks(&volume), 2, "{setting:?}");
        assert_eq!(volume.attribute_cache_statistics().capped, 1, "{setting:?}");
        // A freed reference is taken again, in the first block or the second.
        volume.remove_xattr(files[5], NAME).expect("there");
        set(&volume, files[5], &[7; 300]);
        assert_eq!(before - free_blocks(&volume), 2, "{setting:?}");
        volume.close().expect("a clean close");
        image.assert_clean();
        let blocks: BTreeSet<_> = [0, 1, 1023, 1024, 1029]
            .map(|n| block_of(&image, &format!("f{n}")))
            .into();
        assert_eq!(blocks.len(), 2, "{setting:?}");
    }
}

#[test]
fn a_full_disk_still_shares() {
    for setting in SETTINGS {
        let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-m", "0"]) else {
            return;
        };
        let volume = open(&image, setting);
        let [first, second, third] = ["a", "b", "c"].map(|name| create(&volume, name));
        set(&volume, first, &[7; 300]);
        let lasts: Vec<_> = (0..60)
            .map(|n| create(&volume, &format!("last{n}")))
            .collect();
        let filler = create(&volume, "filler");
        let mut at = 0;
        let end = loop {
            match volume.write(filler, at, &[1; 65536]) {
                Ok(0) => break None,
                Ok(count) => at += count as u64,
                Err(error) => break Some(error),
            }
        };
        assert!(end.is_none_or(|error| error.is(Refusal::NoSpace)));
        // The very last blocks, down to those that a file's tree needs.
        for (number, &last) in (0..).zip(&lasts) {
            let unique = [&[1; 296][..], &u32::to_le_bytes(number)].concat();
            if volume
                .set_xattr(last, NAME, &unique, SetXattrMode::Any)
                .is_err()
            {
                break;
            }
        }
        let other = volume.set_xattr(second, NAME, &[8; 300], SetXattrMode::Any);
        assert!(
            other.expect_err("no room").is(Refusal::NoSpace),
            "{setting:?}"
        );
        let shared = volume.set_xattr(second, NAME, &[7; 300], SetXattrMode::Any);
        if setting == AttributeCache::Off {
            assert!(shared.expect_err("no room").is(Refusal::NoSpace));
        } else {
            shared.expect("it needs no block");
            // The block cannot be changed in place any more, and there is no room for another one.
            let changed = volume.set_xattr(first, NAME, &[9; 300], SetXattrMode::Any);
            assert!(
                changed.expect_err("no room").is(Refusal::NoSpace),
                "{setting:?}"
            );
            assert_eq!(volume.xattr(first, NAME).expect("there"), [7; 300]);
            volume.remove_xattr(second, NAME).expect("there");
            set(&volume, first, &[9; 300]);
        }
        let error = volume.xattr(third, NAME).expect_err("it has none");
        assert!(error.is(Refusal::NoAttribute));
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

/// Each thread sets, removes and reads a few values on files of its own, and removes the files.
/// There are so many steps that a thread without any other would share a few hundred times too.
fn work(volume: &Volume, thread: u64, seed: u64) {
    let mut random = Rng::with_seed(seed * 100 + thread);
    let mut files: Vec<(String, InodeNumber, Option<u8>)> = Vec::new();
    for number in 0..4000 {
        if files.len() < 3 {
            let name = format!("t{thread}-{number}");
            files.push((name.clone(), create(volume, &name), None));
        }
        let pick = random.u64(..files.len() as u64) as usize;
        let (_, inode, value) = &mut files[pick];
        match random.u64(..6) {
            0 if value.is_some() => {
                volume.remove_xattr(*inode, NAME).expect("there");
                *value = None;
            }
            1 => {
                let (name, inode, _) = files.swap_remove(pick);
                volume
                    .unlink(InodeNumber::ROOT, name.as_bytes())
                    .expect("there");
                volume.forget(inode, 1);
            }
            2 => {
                let found = volume.xattr(*inode, NAME).ok();
                assert_eq!(found, value.map(|value| vec![value; 300]), "seed {seed}");
            }
            3 if random.u64(..20) == 0 => volume.sync().expect("a commit"),
            _ => {
                let new = random.u64(..6) as u8;
                set(volume, *inode, &[new; 300]);
                *value = Some(new);
            }
        }
    }
}

#[test]
fn many_threads_share_few_values() {
    for (setting, seed) in SETTINGS.into_iter().zip(1..) {
        println!("{setting:?}, seed {seed}");
        let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-J", "size=4"]) else {
            return;
        };
        let volume = open(&image, setting);
        let before = free_blocks(&volume);
        // One after another they would share little.
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, start) = (&volume, &start);
                scope.spawn(move || {
                    let _pin = topology::pin(thread as usize);
                    start.wait();
                    work(volume, thread, seed);
                });
            }
        });
        let seen = volume.attribute_cache_statistics();
        if setting != AttributeCache::Off {
            assert!(
                seen.hits > 1000 && seen.dropped > 10,
                "{setting:?}: {seen:?}"
            );
        }
        assert_eq!(seen.apart > 0, setting == AttributeCache::Sharded);
        assert!(before - free_blocks(&volume) < 40, "{setting:?}");
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

/// Sets a value from the core of this number.
fn set_on(core: usize, volume: &Volume, inode: InodeNumber, value: &[u8]) {
    let _pin = topology::pin(core);
    set(volume, inode, value);
}

/// Once two cores share a block, it stays until the end of the transaction, and each core counts
/// its own references; then the block has the sum, or is freed.
#[test]
fn cores_that_meet_count_for_themselves() {
    let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-N", "4000"]) else {
        return;
    };
    let volume = open(&image, AttributeCache::Sharded);
    let files: Vec<_> = (0..1200)
        .map(|n| create(&volume, &format!("f{n}")))
        .collect();
    let before = free_blocks(&volume);
    let apart = || volume.attribute_cache_statistics().apart;
    set_on(0, &volume, files[0], &[7; 300]);
    set_on(0, &volume, files[1], &[7; 300]);
    assert_eq!(apart(), 0, "one core counts in the block");
    set_on(1, &volume, files[2], &[7; 300]);
    assert_eq!(apart(), 1);
    let report = volume.report();
    assert_eq!(
        report.get("attribute blocks", "counted core by core"),
        Some(1)
    );
    // All three references are dropped, each on another core than the one that took it.
    for (core, file) in [(1, 0), (2, 1), (0, 2)] {
        set_on(core, &volume, files[file], &[8; 300]);
    }
    let found = volume.attribute_cache_statistics().hits;
    set_on(2, &volume, files[3], &[7; 300]);
    assert_eq!(
        volume.attribute_cache_statistics().hits,
        found + 1,
        "it is still there"
    );
    set_on(1, &volume, files[3], &[8; 300]);
    assert_eq!(before - free_blocks(&volume), 1, "the first is free");

    // More references than the cores may note; the blocks must count all of them.
    for (number, &file) in files.iter().enumerate() {
        set_on(number % 3, &volume, file, &[9; 300]);
    }
    let taken = before - free_blocks(&volume);
    assert!((2..=3).contains(&taken), "{taken} blocks");
    for (number, &file) in files.iter().enumerate() {
        let _pin = topology::pin(number % 2);
        volume.remove_xattr(file, NAME).expect("there");
    }
    assert_eq!(before, free_blocks(&volume));
    for (number, &file) in files.iter().enumerate().take(50) {
        set_on(number % 3, &volume, file, &[9; 300]);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// An operation that finds no block waits while some blocks may turn out to be unused.
#[test]
fn a_full_disk_has_what_nobody_turns_out_to_use() {
    let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-m", "0"]) else {
        return;
    };
    let volume = open(&image, AttributeCache::Sharded);
    let [first, second, filler] = ["a", "b", "filler"].map(|name| create(&volume, name));
    let lasts = (0..60).map(|n| create(&volume, &format!("last{n}")));
    let lasts: Vec<_> = lasts.collect();
    let _ = free_blocks(&volume);
    set_on(0, &volume, first, &[7; 300]);
    set_on(1, &volume, second, &[7; 300]);
    for inode in [first, second] {
        let _pin = topology::pin(1);
        volume.remove_xattr(inode, NAME).expect("there");
    }
    let mut at = 0;
    while let Ok(count @ 1..) = volume.write(filler, at, &[1; 1024]) {
        at += count as u64;
    }
    for (number, &last) in (0u32..).zip(&lasts) {
        let unique = [&[1; 296][..], &number.to_le_bytes()].concat();
        let set = volume.set_xattr(last, NAME, &unique, SetXattrMode::Any);
        if let Err(error) = set {
            assert!(error.is(Refusal::NoSpace));
            break;
        }
    }
    assert_eq!(free_blocks(&volume), 0, "the last block can be used");
    volume.close().expect("a clean close");
    image.assert_clean();
}
