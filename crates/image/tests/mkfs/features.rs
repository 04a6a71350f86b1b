//! Features, one by one, and what they exclude.

use pext4_block::{Device, RamDevice};
use pext4_image::mkfs::{FileSystem, Options, mkfs};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

use super::{MIB, check};

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
        "mmp",
        "mmp,^metadata_csum",
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
