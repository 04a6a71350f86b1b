//! Images made by `mkfs`, checked by e2fsck: every size class, block size and feature set.

#[path = "common/e2fsck.rs"]
mod e2fsck;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2fsck::complaints;
use pext4_block::{Access, Device, FileDevice, RamDevice};
use pext4_image::mkfs::{FileSystem, Options, mkfs};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

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
    let asked = Options {
        features: vec!["has_journal".to_owned()],
        ..Options::default()
    };
    let error = make(&path, MIB, &asked).expect_err("it does not fit");
    assert!(error.to_string().contains("-O ^has_journal"), "{error}");
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
fn features_can_be_switched_one_by_one() {
    let names = [
        "^has_journal",
        "^resize_inode",
        "^dir_index",
        "^orphan_file",
        "^64bit",
        "^flex_bg",
        "^metadata_csum_seed",
        "^metadata_csum",
        "^huge_file",
        "^dir_nlink",
        "^extra_isize",
        "^large_file",
        "^filetype",
        "^sparse_super",
        "none",
        "none,has_journal,extent",
        "meta_bg",
        "meta_bg,^flex_bg,^metadata_csum",
        "sparse_super2",
        "sparse_super2,meta_bg",
        "uninit_bg,^metadata_csum",
        "uninit_bg,^metadata_csum,^flex_bg",
        "fast_commit",
        "encrypt",
        "encrypt,casefold",
        "verity",
        "large_dir",
        "casefold",
        "inline_data",
        "ea_inode",
        "stable_inodes",
        "project",
        "quota",
        "quota,project",
    ];
    for name in names {
        for block_size in [1024, 4096] {
            let features = name.split(',').map(str::to_owned).collect();
            check(
                300 * MIB,
                &Options {
                    features,
                    block_size: Some(block_size),
                    ..Options::default()
                },
            );
        }
    }
}

/// e2fsck looks at copies only if the original is damaged.
#[test]
fn copies_of_descriptors_are_the_descriptors() {
    // 38 groups, whose descriptors fill three blocks.
    for (features, copies) in [
        ("large_dir", 3 * 7),
        ("meta_bg", 2 + 2 + 1),
        ("sparse_super2", 3 * 2),
        ("^sparse_super", 3 * 37),
    ] {
        let device = RamDevice::new(300 * MIB);
        let options = Options {
            features: vec![features.to_owned()],
            block_size: Some(1024),
            ..Options::default()
        };
        mkfs(&device, &options).expect("sound");
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).expect("inside");
        let superblock = Superblock::decode(&bytes).expect("a superblock");
        let geometry = Geometry::of(&superblock).expect("sound");
        let block = |number: BlockNumber| {
            let mut bytes = [0; 1024];
            let read = device.read_at(number.get() * 1024, &mut bytes);
            read.expect("inside");
            bytes
        };
        let mut found = 0;
        for index in 0..geometry.descriptor_blocks {
            let original = block(geometry.descriptor_block(index));
            assert!(original != [0; 1024], "{features}: nothing in {index}");
            for copy in geometry.descriptor_block_copies(index) {
                assert!(block(copy) == original, "{features}: {copy} of {index}");
                found += 1;
            }
        }
        assert_eq!(found, copies, "{features}");
    }
}

/// What dumpe2fs prints of the superblocks of an image and of its journal, without what differs
/// between any two images.
fn dumped(path: &Path) -> Option<Vec<String>> {
    const OF_ITS_OWN: [&str; 9] = [
        "Filesystem UUID:",
        "Filesystem created:",
        "Last write time:",
        "Last checked:",
        "Lifetime writes:",
        "Directory Hash Seed:",
        "Checksum",
        // Quota and orphan files come in another order.
        "Free blocks:",
        "Orphan file inode:",
    ];
    let dumped = Command::new("dumpe2fs").arg("-h").arg(path).output().ok()?;
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    let lines = text.lines().filter(|line| {
        let is_own = OF_ITS_OWN.iter().any(|start| line.starts_with(start));
        !is_own && !line.to_lowercase().contains("checksum")
    });
    Some(lines.map(str::to_owned).collect())
}

/// Sizes, counts and places in superblocks are those that mke2fs chooses for the same features and
/// block sizes.
#[test]
fn superblocks_are_upstreams() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let cases = [
        ("none", 4096),
        ("none", 1024),
        ("encrypt,verity", 4096),
        ("sparse_super2", 1024),
        ("sparse_super2", 4096),
        ("meta_bg,^resize_inode", 1024),
        ("meta_bg,^resize_inode", 4096),
        ("uninit_bg,^metadata_csum", 4096),
        ("^sparse_super,^resize_inode", 1024),
        ("fast_commit", 1024),
        ("fast_commit", 4096),
        ("large_dir", 8192),
        ("large_dir", 16384),
        ("large_dir", 65536),
    ];
    for (features, block_size) in cases {
        let options = Options {
            features: features.split(',').map(str::to_owned).collect(),
            block_size: Some(block_size),
            ..Options::default()
        };
        make(&ours, 700 * MIB, &options).expect("a plain image");
        let file = std::fs::File::create(&theirs).expect("a file");
        file.set_len(700 * MIB).expect("a sparse file");
        let defaults = match features.contains("^metadata_csum") {
            true => "orphan_file",
            false => "orphan_file,metadata_csum_seed",
        };
        let with_defaults = format!("{defaults},{features}");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-F", "-t", "ext4", "-O", &with_defaults]);
        let made = mke2fs
            .args(["-b", &block_size.to_string()])
            .arg(&theirs)
            .stdin(std::process::Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return eprintln!("SKIPPED: mke2fs with orphan_file is not installed (e2fsprogs 1.47)");
        }
        let what = format!("{features}, blocks of {block_size}");
        assert_eq!(dumped(&ours), dumped(&theirs), "{what}");
    }
}

/// The files of users, groups and projects that mke2fs makes for the same owners are the same.
#[test]
fn quota_files_are_upstreams() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    for (uid, gid) in [(0, 0), (1000, 70_000)] {
        let options = Options {
            features: vec!["quota".to_owned(), "project".to_owned()],
            root_owner: (uid, gid),
            ..Options::default()
        };
        make(&ours, 64 * MIB, &options).expect("a plain image");
        let file = std::fs::File::create(&theirs).expect("a file");
        file.set_len(64 * MIB).expect("a sparse file");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "quota,project", "-E"]);
        let made = mke2fs
            .arg(format!("root_owner={uid}:{gid}"))
            .arg(&theirs)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        }
        let dump = folder.path().join("file");
        let file = |image: &Path, inode: &str| {
            let request = format!("dump {inode} {}", dump.display());
            let mut debugfs = Command::new("debugfs");
            let done = debugfs.args(["-R", &request]).arg(image).output();
            done.expect("debugfs is where mke2fs is");
            std::fs::read(&dump).expect("debugfs wrote it")
        };
        // The projects' file is behind the orphan file, which mke2fs 1.47.0 does not make.
        for (our_inode, their_inode) in [("<3>", "<3>"), ("<4>", "<4>"), ("<13>", "<12>")] {
            let (ours, theirs) = (file(&ours, our_inode), file(&theirs, their_inode));
            assert!(ours == theirs, "{our_inode}, owned by {uid}:{gid}");
        }
        let flags = |image: &Path| {
            let mut debugfs = Command::new("debugfs");
            let told = debugfs
                .args(["-R", "stat <3>"])
                .arg(image)
                .output()
                .expect("it is there");
            let told = String::from_utf8_lossy(&told.stdout).into_owned();
            let line = told.lines().next().expect("an inode").to_owned();
            line.split("Flags: ").nth(1).map(str::to_owned)
        };
        assert_eq!(flags(&ours), flags(&theirs));
    }
}

#[test]
fn projects_need_room_in_the_inode() {
    let options = Options {
        features: vec!["project".to_owned()],
        inode_size: 128,
        ..Options::default()
    };
    let error = mkfs(&RamDevice::new(64 * MIB), &options).expect_err("no room");
    assert!(error.to_string().contains("256 bytes"), "{error}");
}

/// The resize inode claims more than 2 GiB only with blocks of 4 KiB.
#[test]
fn large_files_are_a_choice_where_the_resize_inode_allows_it() {
    for block_size in [1024, 2048, 4096] {
        let device = RamDevice::new(64 * MIB);
        let options = Options {
            features: vec!["^large_file".to_owned()],
            block_size: Some(block_size),
            ..Options::default()
        };
        mkfs(&device, &options).expect("sound");
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).expect("inside");
        let made = Superblock::decode(&bytes).expect("a superblock");
        let is_there = made
            .features
            .has_read_only_compat(ReadOnlyCompat::LARGE_FILE);
        assert_eq!(is_there, block_size == 4096, "{block_size}");
    }
}

/// The features of an image, as dumpe2fs prints them.
fn feature_words(path: &Path) -> [u8; 12] {
    use std::os::unix::fs::FileExt;
    const FEATURES_AT: u64 = 1024 + 0x5C;
    let mut words = [0; 12];
    let file = std::fs::File::open(path).expect("the image");
    file.read_exact_at(&mut words, FEATURES_AT)
        .expect("a superblock");
    words
}

#[test]
fn ext2_and_ext3_are_clean_and_have_upstreams_features() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    for (file_system, name) in [(FileSystem::Ext2, "ext2"), (FileSystem::Ext3, "ext3")] {
        let options = Options {
            file_system,
            ..Options::default()
        };
        for size in [MIB, 2 * MIB, 64 * MIB, 600 * MIB, 40_000 * MIB] {
            check(size, &options);
        }
        for (block_size, journal_blocks) in [(1024, None), (2048, Some(3000)), (4096, None)] {
            let options = Options {
                block_size: Some(block_size),
                journal_blocks: journal_blocks.filter(|_| file_system == FileSystem::Ext3),
                ..options.clone()
            };
            check(1100 * MIB, &options);
        }
        make(&ours, 64 * MIB, &options).expect("a plain image");
        let file = std::fs::File::create(&theirs).expect("a file");
        file.set_len(64 * MIB).expect("a sparse file");
        let mut mke2fs = Command::new("mke2fs");
        let made = mke2fs.args(["-q", "-F", "-t", name]).arg(&theirs).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(feature_words(&ours), feature_words(&theirs), "{name}");
        } else {
            eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        }
    }
}

#[test]
fn small_images_have_as_many_inodes_as_upstreams() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    for size in [1, 2, 3, 4, 20, 33, 100].map(|count| count * MIB) {
        for block_size in [1024, 4096] {
            let options = Options {
                block_size: Some(block_size),
                ..Options::default()
            };
            check(size, &options);
            make(&ours, size, &options).expect("a plain image");
            let file = std::fs::File::create(&theirs).expect("a file");
            file.set_len(size).expect("a sparse file");
            let mut mke2fs = Command::new("mke2fs");
            mke2fs.args(["-q", "-F", "-t", "ext4", "-b", &block_size.to_string()]);
            let made = mke2fs.arg(&theirs).status();
            if !made.is_ok_and(|status| status.success()) {
                return eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
            }
            let what = format!("{size} bytes, blocks of {block_size}");
            assert_eq!(inode_count(&ours), inode_count(&theirs), "{what}");
        }
    }
}

fn inode_count(path: &Path) -> [u8; 4] {
    use std::os::unix::fs::FileExt;
    let mut count = [0; 4];
    let file = std::fs::File::open(path).expect("the image");
    file.read_exact_at(&mut count, 1024).expect("a superblock");
    count
}

/// Journals whose maps have two and three levels of pointers.
#[test]
fn files_without_extents_are_mapped_as_far_as_pointers_reach() {
    for journal_blocks in [1024, 12 + 256 + 256 * 256 + 1] {
        let options = Options {
            file_system: FileSystem::Ext3,
            block_size: Some(1024),
            journal_blocks: Some(journal_blocks),
            ..Options::default()
        };
        check(300 * MIB, &options);
    }
    for features in [
        "^extent,^64bit",
        "^extent,^64bit,^flex_bg",
        "^extent,^64bit,inline_data",
    ] {
        let options = Options {
            features: features.split(',').map(str::to_owned).collect(),
            ..Options::default()
        };
        check(300 * MIB, &options);
    }
}

#[test]
fn inodes_can_be_many_few_and_small() {
    for (inodes, inode_size) in [
        (Some(16), 256),
        (Some(200_000), 256),
        (None, 128),
        (None, 512),
        (Some(5000), 1024),
    ] {
        check(
            200 * MIB,
            &Options {
                inodes,
                inode_size,
                ..Options::default()
            },
        );
    }
    for (bytes_per_inode, inodes) in [(1024, 65536), (1 << 20, 128)] {
        let options = Options {
            bytes_per_inode: Some(bytes_per_inode),
            ..Options::default()
        };
        check(64 * MIB, &options);
        let made = mkfs(&RamDevice::new(64 * MIB), &options).expect("sound");
        assert_eq!(made.inodes, inodes);
    }
}

#[test]
fn inodes_that_leave_no_room_are_refused_with_advice() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        block_size: Some(4096),
        inode_size: 4096,
        ..Options::default()
    };
    let refused = make(&folder.path().join("image"), 256 * MIB, &options);
    let refused = refused.expect_err("there is no room").to_string();
    assert!(
        refused.contains("-N") && !refused.contains("corrupt"),
        "{refused}"
    );
}

#[test]
fn inodes_of_128_bytes_hold_no_content() {
    let options = Options {
        inode_size: 128,
        features: vec!["inline_data".to_owned()],
        ..Options::default()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = make(&folder.path().join("image"), 16 * MIB, &options);
    let refused = refused.expect_err("there is no room");
    assert!(refused.to_string().contains("inline_data"), "{refused}");
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

#[test]
fn what_cannot_be_made_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refuse = |size: u64, options: Options, word: &str| {
        let path = folder.path().join("image");
        let error = make(&path, size, &options).expect_err("an impossible image");
        assert!(
            error.to_string().contains(word),
            "{error} does not speak of {word}"
        );
    };
    let small_blocks = Options {
        block_size: Some(1024),
        ..Options::default()
    };
    // The descriptors of so many groups do not fit into one; the last group is not whole.
    refuse(1 << 40, small_blocks, "larger blocks, or -O ^resize_inode");
    let label = Options {
        label: vec![b'x'; 17],
        ..Options::default()
    };
    refuse(8 * MIB, label, "at most 16 bytes");
    refuse(
        1000,
        Options::default(),
        "1000 bytes are too small: at least 65536 are needed",
    );
    refuse(
        1000,
        Options {
            block_size: Some(4096),
            ..Options::default()
        },
        "at least 262144 are needed",
    );
    for (features, word) in [
        ("^extent", "64bit needs extents"),
        ("meta_bg,resize_inode", "exclude each other"),
        ("none,resize_inode", "needs sparse_super"),
        ("fast_commit,^has_journal", "needs a journal"),
        ("mmp", "mmp"),
        ("nonsense", "nonsense"),
    ] {
        let features = features.split(',').map(str::to_owned).collect();
        let options = Options {
            features,
            ..Options::default()
        };
        refuse(64 * MIB, options, word);
    }
    let dense = Options {
        bytes_per_inode: Some(1023),
        ..Options::default()
    };
    refuse(64 * MIB, dense, "at least 1024");
    refuse(
        64 * MIB,
        Options {
            block_size: Some(3000),
            ..Options::default()
        },
        "block size",
    );
    refuse(
        64 * MIB,
        Options {
            inode_size: 200,
            ..Options::default()
        },
        "inode size",
    );
    refuse(
        64 * MIB,
        Options {
            reserved_percent: 80.0,
            ..Options::default()
        },
        "percent",
    );
    refuse(
        64 * MIB,
        Options {
            inodes: Some(u64::MAX),
            ..Options::default()
        },
        "18446744073709551615 inodes: at most 65536 fit this size",
    );
    let small = |features: &[&str], inodes| Options {
        block_size: Some(1024),
        inode_size: 1024,
        features: features.iter().map(|&name| name.to_owned()).collect(),
        inodes: Some(inodes),
        ..Options::default()
    };
    let too_small = "too small for this many inodes";
    refuse(160 * MIB, small(&["^has_journal"], 158_000), too_small);
    let apart = ["^has_journal", "^flex_bg"];
    refuse(56 * MIB, small(&apart, 56_000), too_small);
    refuse(
        5 << 40,
        small(&["^64bit"], 1 << 20),
        "need the feature 64bit",
    );
}

/// The overhead that `statfs` subtracts.
#[test]
fn the_noted_overhead_is_that_of_mke2fs() {
    use std::os::unix::fs::FileExt;
    const OVERHEAD_AT: u64 = 1024 + 0x248;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let noted = |path: &std::path::Path| {
        let mut bytes = [0; 4];
        let file = std::fs::File::open(path).expect("the image");
        file.read_exact_at(&mut bytes, OVERHEAD_AT)
            .expect("a superblock");
        u32::from_le_bytes(bytes)
    };
    for block_size in [1024, 4096] {
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        let options = Options {
            block_size: Some(block_size),
            ..Options::default()
        };
        make(&ours, 1024 * MIB, &options).expect("a plain image");
        let file = std::fs::File::create(&theirs).expect("a file");
        file.set_len(1024 * MIB).expect("a sparse file");
        let made = std::process::Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", &block_size.to_string()])
            .args(["-O", "orphan_file,metadata_csum_seed"])
            .arg(&theirs)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return eprintln!("SKIPPED: mke2fs with orphan_file is not installed (e2fsprogs 1.47)");
        }
        assert_eq!(noted(&ours), noted(&theirs));
    }
}

/// The metadata of a last group takes many blocks if it contains a superblock copy; without room
/// for them the group is left out.
#[test]
fn a_last_group_too_short_for_its_own_metadata_is_left_out() {
    const GROUP: u64 = 32768;
    const GROUP_OF_SMALL_BLOCKS: u64 = 8192;
    for group in [1, 2, 3, 5, 9, 25, 27, 49, 81] {
        for length in [1, 256, 402, 700, 2000] {
            let blocks = group * GROUP + length;
            let options = Options {
                block_size: Some(4096),
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
