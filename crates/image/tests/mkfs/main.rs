//! Images made by `mkfs`, checked by e2fsck: every size class, block size and feature set.

#[path = "../common/e2fsck.rs"]
mod e2fsck;
mod features;
mod inodes;
mod refused;
mod upstream;
mod used;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2fsck::complaints;
use pext4_block::{Access, FileDevice};
use pext4_image::mkfs::{Options, mkfs};

/// A program that another test is starting holds the image's lock until it executes: opening waits
/// this long.
const PATIENCE: Duration = Duration::from_secs(10);

fn make(
    path: &Path,
    size: u64,
    options: &Options,
) -> pext4_image::Result<pext4_image::mkfs::Summary> {
    let file = std::fs::File::create(path).expect("a file in the temporary folder");
    file.set_len(size).expect("a sparse file");
    drop(file);
    let device = FileDevice::open(path, Access::ReadWrite, PATIENCE).expect("the file just made");
    mkfs(&device, options)
}

/// The result of e2fsck, or `None`, with a message, if it is not installed.
fn e2fsck(path: &Path) -> Option<(i32, String)> {
    let Ok(output) = Command::new("e2fsck").arg("-fn").arg(path).output() else {
        eprintln!("SKIPPED: e2fsck is not installed (package e2fsprogs)");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.code().unwrap_or(-1), text))
}

fn check(size: u64, options: &Options) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("image");
    make(&path, size, options)
        .unwrap_or_else(|error| panic!("{size} bytes with {options:?}: {error}"));
    if let Some((code, text)) = e2fsck(&path) {
        assert!(
            code == 0 && complaints(&text).is_empty(),
            "{size} bytes with {options:?}: {code}\n{text}"
        );
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn every_size_class_is_clean() {
    for size in [
        2 * MIB,
        5 * MIB + 12345,
        64 * MIB,
        511 * MIB,
        512 * MIB,
        3000 * MIB,
        40_000 * MIB,
        9 << 40,
    ] {
        check(size, &Options::default());
    }
}

/// As in mke2fs: no journal below 2048 blocks, unless requested.
#[test]
fn where_no_journal_fits_there_is_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("image");
    for size in [
        128 << 10,
        256 << 10,
        512 << 10,
        MIB,
        2 * MIB - 1024,
        2 * MIB,
        4 * MIB,
    ] {
        check(size, &Options::default());
        let made = make(&path, size, &Options::default()).expect("an image");
        let expected = if size < 2 * MIB { 0 } else { 1024 };
        assert_eq!(made.journal_blocks, expected, "{size} bytes");
        let features = made
            .features
            .iter()
            .any(|name| name == "has_journal" || name == "orphan_file");
        assert_eq!(features, size >= 2 * MIB, "{:?}", made.features);
    }
    for name in ["has_journal", " has_journal"] {
        let asked = Options {
            features: vec![name.to_owned()],
            ..Options::default()
        };
        let error = make(&path, MIB, &asked).expect_err("it does not fit");
        assert!(error.to_string().contains("-O ^has_journal"), "{error}");
    }
}

/// If one descriptor block suffices for all planned growth, none are reserved. The resize inode
/// exists nevertheless.
#[test]
fn images_that_reserve_no_descriptors_are_clean() {
    for size in [8 * MIB, 16 * MIB] {
        for block_size in [2048, 4096] {
            let options = Options {
                block_size: Some(block_size),
                ..Options::default()
            };
            check(size, &options);
        }
    }
}

#[test]
fn every_block_size_is_clean() {
    for block_size in [1024, 2048, 4096, 8192, 16384, 32768, 65536] {
        for size in [16 * MIB, 257 * MIB, 1100 * MIB, 9000 * MIB] {
            check(
                size,
                &Options {
                    block_size: Some(block_size),
                    ..Options::default()
                },
            );
        }
    }
}

#[test]
fn the_same_options_give_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        uuid: Some([7; 16]),
        hash_seed: Some([1, 2, 3, 4]),
        time: Some(1_700_000_000),
        label: b"same".to_vec(),
        ..Options::default()
    };
    let images = ["a", "b"].map(|name| {
        let path = folder.path().join(name);
        make(&path, 64 * MIB, &options).expect("a plain image");
        std::fs::read(&path).expect("the image")
    });
    assert!(images[0] == images[1], "two images differ");
}

#[test]
fn a_huge_image_writes_little() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("image");
    // The host's own limit on file sizes may be 16 TiB less a block.
    let size = (16 << 40) - 4096;
    if std::fs::File::create(&path)
        .and_then(|file| file.set_len(size))
        .is_err()
    {
        eprintln!("SKIPPED: no sparse file of 16 TiB on this file system");
        return;
    }
    make(&path, size, &Options::default()).expect("a huge image");
    let written = std::fs::metadata(&path).expect("the image").blocks() * 512;
    assert!(written <= 256 * MIB, "{written} bytes written");
}

/// The metadata of a last group takes many blocks if it contains a superblock copy; without room
/// for them the group is left out, if the others can have all inodes.
#[test]
fn a_last_group_too_short_for_its_own_metadata_is_left_out() {
    const GROUP: u64 = 32768;
    const GROUP_OF_SMALL_BLOCKS: u64 = 8192;
    for group in [1, 2, 3, 5, 9, 25, 27, 49, 81] {
        for length in [1, 256, 402, 700, 2000] {
            let blocks = group * GROUP + length;
            let options = Options {
                block_size: Some(4096),
                bytes_per_inode: Some(16384),
                ..Options::default()
            };
            check(blocks * 4096, &options);
            let folder = tempfile::tempdir().expect("a temporary folder");
            let made = make(&folder.path().join("image"), blocks * 4096, &options);
            let made = made.expect("it was made before").blocks;
            match length {
                1 => assert_eq!(made, group * GROUP),
                2000 => assert_eq!(made, blocks),
                _ => assert!(
                    made == blocks || made == group * GROUP,
                    "{made} of {blocks}"
                ),
            }
        }
    }
    // The first block is not in a group here.
    for blocks in [
        24_676,
        3 * GROUP_OF_SMALL_BLOCKS + 1,
        25 * GROUP_OF_SMALL_BLOCKS + 200,
    ] {
        check(blocks * 1024, &Options::default());
    }
}
