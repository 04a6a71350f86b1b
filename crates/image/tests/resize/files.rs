//! What a resize does to the file around its file system: holes, length, times; and what it finds
//! in it and refuses.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use pext4_block::Device;
use pext4_image::resize::{Options, Resize, Target, Way};
use pext4_ondisk::InodeNumber;
use pext4_ondisk::superblock::Superblock;

use super::rig::{
    MIB, assert_clean, assert_holds, image, open, resize, scattered_image, scratch, source, tools,
};

fn superblock(path: &Path) -> Superblock {
    let mut bytes = [0; 1024];
    open(path).read_at(1024, &mut bytes).expect("an image");
    Superblock::decode(&bytes).expect("a superblock")
}

/// A journal is mostly a hole, and must not be written out where it goes.
#[test]
fn holes_that_move_stay_holes() {
    if !tools() {
        return;
    }
    for in_place in [false, true] {
        let folder = scratch();
        let tree = source(folder.path(), 64 << 10);
        let path = image(folder.path(), "-t ext4 -b 4096", 300 * MIB, &tree);
        let allocated = || fs::metadata(&path).expect("an image").blocks() * 512;
        let before = allocated();
        let (summary, ..) = resize(&path, Target::Smallest, in_place).expect("it fits");
        assert!(summary.moved_blocks > 1000, "the journal moves");
        let after = allocated();
        assert!(after < before + MIB, "{before}, then {after}");
        assert_clean(&path, "the smallest");
        assert_holds(&path, &tree, "the smallest");
    }
}

#[test]
fn a_file_that_is_longer_keeps_its_length_and_its_file_system_can_grow_again() {
    if !tools() {
        return;
    }
    for (tail, in_place) in [(0, false), (0, true), (7, false), (7, true)] {
        let folder = scratch();
        let tree = source(folder.path(), 400 << 10);
        let path = image(folder.path(), "-t ext4 -b 1024", 64 * MIB, &tree);
        let file = fs::File::options().write(true).open(&path);
        let file = file.expect("an image");
        file.write_all_at(&[tail; 5000], 65 * MIB - 5000)
            .expect("room");
        drop(file);
        let when = format!("in place: {in_place}, with bytes of {tail} behind it");
        let options = Options {
            in_place,
            ..Options::default()
        };
        let smaller = Target::Bytes(20 * MIB);
        let preview = Resize::preview(open(&path), smaller, options).expect("it fits");
        assert_eq!(preview.kept_length, Some(65 * MIB), "{when}");
        let (_, _, length) = resize(&path, smaller, in_place).expect("it fits");
        assert_eq!(length, 65 * MIB, "{when}");
        let bytes = fs::read(&path).expect("an image");
        let left = &bytes[20 << 20..64 << 20];
        assert!(left.iter().all(|&byte| byte == 0), "{when}");
        assert!(bytes.ends_with(&[tail; 5000]), "{when}");
        assert_clean(&path, &when);
        let (summary, ..) = resize(&path, Target::Bytes(64 * MIB), in_place).expect("it was there");
        assert_eq!(summary.bytes(), 64 * MIB, "{when}");
        assert_clean(&path, &when);
        assert_holds(&path, &tree, &when);
    }
}

/// The same resize of the same image at a given time.
fn at(seconds: u64, original: &Path, target: Target, in_place: bool) -> (Way, Vec<u8>) {
    let path = original.with_extension("again");
    fs::copy(original, &path).expect("room");
    let options = Options {
        in_place,
        time: Some(Duration::from_secs(seconds)),
        ..Options::default()
    };
    let resize = Resize::prepare(open(&path), target, options).expect("it fits");
    let way = resize.planned().way;
    resize.run().expect("a healthy host");
    let written = superblock(&path).write_time;
    assert_eq!(written, i64::try_from(seconds).expect("small"), "{way:?}");
    (way, fs::read(&path).expect("an image"))
}

#[test]
fn a_given_time_makes_the_same_bytes() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), "-t ext4 -b 1024", 40 * MIB, &tree);
    for (target, in_place, way) in [
        (Target::Bytes(60 * MIB), false, Way::Journal),
        (Target::Smallest, false, Way::Clone),
        (Target::Smallest, true, Way::InPlace),
    ] {
        let first = at(1_700_000_000, &path, target, in_place);
        assert_eq!(first.0, way);
        assert!(
            first == at(1_700_000_000, &path, target, in_place),
            "{way:?}"
        );
        assert!(
            first != at(1_700_000_001, &path, target, in_place),
            "{way:?}"
        );
    }
}

#[test]
fn deletions_that_wait_are_finished_before_any_resize() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(folder.path(), "-t ext4 -b 1024", 40 * MIB, &tree);
    let mut superblock = superblock(&path);
    superblock.last_orphan = InodeNumber(12);
    let device = open(&path);
    device
        .write_at(1024, &superblock.encode())
        .expect("an image");
    drop(device);
    let before = fs::read(&path).expect("an image");
    for target in [Target::Smallest, Target::More(MIB), Target::Less(MIB)] {
        let told = resize(&path, target, false).expect_err("deletions wait");
        let told = told.to_string();
        assert!(told.contains("pext4 edit IMAGE -f /dev/null"), "{told}");
        assert!(fs::read(&path).expect("an image") == before, "{target:?}");
    }
}

#[test]
fn the_smallest_size_keeps_stable_inode_numbers() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let options = "-t ext4 -b 1024 -g 2048 -N 640 -O stable_inodes";
    // Its last inodes are in a group far behind, although there is little in it.
    let path = scattered_image(folder.path(), options, 36 * MIB, &tree);
    let (summary, ..) = resize(&path, Target::Smallest, false).expect("there is such a size");
    assert_eq!(summary.moved_inodes, 0);
    assert!(summary.blocks < summary.old_blocks);
    assert_clean(&path, "the smallest with stable numbers");
    assert_holds(&path, &tree, "the smallest with stable numbers");
    let told = resize(&path, Target::Less(3 * MIB), false).expect_err("numbers would change");
    let told = told.to_string();
    let least = format!("{} are the least", summary.bytes());
    assert!(
        told.contains(&least) && told.contains("stable_inodes"),
        "{told}"
    );
}
