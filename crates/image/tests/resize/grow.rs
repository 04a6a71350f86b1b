//! Growing, with every set of features that affects the location of metadata.

use std::path::Path;
use std::process::Command;

use pext4_image::resize::{Target, Way};

use super::rig::{
    KIB, MIB, assert_clean, assert_holds, field, image, resize, scratch, source, text, tools,
};

/// Grows an image of `size` to each of `sizes`.
fn check(options: &str, size: u64, sizes: &[u64]) {
    grown(options, size, sizes, |_| ());
}

/// As [`check`], and passes the result to a closure.
fn grown(options: &str, size: u64, sizes: &[u64], look: impl FnOnce(&Path)) {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = image(folder.path(), options, size, &tree);
    for &size in sizes {
        let when = format!("{options} grown to {size}");
        let before: u64 = field(&path, "Block count:").parse().expect("a number");
        let (summary, way, _) = resize(&path, Target::Bytes(size), false)
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        let expected = if options.contains("^has_journal") || options.contains("ext2") {
            Way::Clone
        } else {
            Way::Journal
        };
        assert_eq!(way, expected, "{when}");
        assert_eq!(summary.old_blocks, before, "{when}");
        assert!(summary.blocks > before, "{when}");
        assert!(
            summary.bytes() <= size && summary.bytes() + 8 * MIB + 64 * KIB > size,
            "{when}"
        );
        assert_clean(&path, &when);
        assert_holds(&path, &tree, &when);
        let count: u64 = field(&path, "Block count:").parse().expect("a number");
        assert_eq!(count, summary.blocks, "{when}");
    }
    look(&path);
}

#[test]
fn default_features() {
    check(
        "-t ext4 -b 4096",
        20 * MIB,
        &[33 * MIB + 4 * KIB, 300 * MIB, 5000 * MIB],
    );
    check(
        "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed",
        20 * MIB,
        &[21 * MIB, 1000 * MIB],
    );
}

#[test]
fn small_blocks() {
    check(
        "-t ext4 -b 1024",
        20 * MIB,
        &[20 * MIB + 512 * KIB, 33 * MIB, 300 * MIB, 600 * MIB],
    );
    check(
        "-t ext4 -b 2048 -O bigalloc,^bigalloc",
        20 * MIB,
        &[90 * MIB],
    );
}

#[test]
fn other_layouts() {
    for options in [
        "-t ext4 -b 1024 -O ^flex_bg",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode,^flex_bg -g 1024",
        "-t ext4 -b 1024 -O sparse_super2",
        "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
        "-t ext4 -b 1024 -O ^resize_inode",
        "-t ext4 -b 1024 -O ^sparse_super,^resize_inode -g 1024",
        "-t ext4 -b 1024 -G 4 -g 1024",
    ] {
        check(options, 18 * MIB, &[26 * MIB + 3 * KIB, 77 * MIB]);
    }
}

#[test]
fn other_checksums_inodes_and_maps() {
    for options in [
        "-t ext4 -b 1024 -O ^metadata_csum",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^flex_bg",
        "-t ext4 -b 1024 -O ^64bit",
        "-t ext4 -b 1024 -I 128",
        "-t ext4 -b 4096 -O ^has_journal",
        "-t ext4 -b 4096 -O inline_data",
        "-t ext3 -b 1024",
        "-t ext2 -b 1024",
    ] {
        check(options, 18 * MIB, &[25 * MIB + 3 * KIB, 130 * MIB]);
    }
}

#[test]
fn a_feature_that_growth_needs_makes_the_revision_the_current_one() {
    grown(
        "-t ext2 -r 0 -O none -b 1024",
        8 * MIB,
        &[700 * MIB],
        |path| {
            assert_eq!(field(path, "Filesystem revision #:"), "1 (dynamic)");
            assert_eq!(field(path, "Filesystem features:"), "meta_bg");
        },
    );
}

#[test]
fn descriptors_outgrow_what_is_reserved() {
    // Few descriptor blocks are reserved, so the rest uses meta_bg.
    for options in [
        "-t ext4 -b 1024 -E resize=300000",
        "-t ext4 -b 1024 -g 256 -N 640",
        "-t ext4 -b 1024 -O ^resize_inode -g 512 -N 640",
    ] {
        grown(options, 18 * MIB, &[36 * MIB, 400 * MIB], |path| {
            let features = field(path, "Filesystem features:");
            assert!(features.contains("meta_bg"), "{options}: {features}");
            assert!(!features.contains("resize_inode"), "{options}: {features}");
        });
    }
}

/// Early versions did not create the block of the resize inode if nothing was reserved; a resize
/// adds it.
#[test]
fn a_missing_block_of_the_resize_inode_is_created() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = image(
        folder.path(),
        "-t ext4 -b 4096 -O ^metadata_csum",
        8 * MIB,
        &tree,
    );
    assert_eq!(field(&path, "Reserved GDT blocks:"), "");
    let ask = |request: &str| {
        let done = std::process::Command::new("debugfs")
            .args(["-w", "-R", request])
            .arg(&path)
            .output();
        text(&done.expect("debugfs is beside mke2fs"))
    };
    let told = ask("stat <7>");
    let block = told.split("(DIND):").nth(1).expect("it has one");
    let block: u64 = block
        .split([',', '\n'])
        .next()
        .unwrap_or_default()
        .trim()
        .parse()
        .expect("a number");
    let free: u64 = field(&path, "Free blocks:").parse().expect("a number");
    ask(&format!("freeb {block}"));
    ask("set_inode_field <7> block[DIND] 0");
    ask("set_inode_field <7> blocks 0");
    ask(&format!("ssv free_blocks_count {}", free + 1));
    ask(&format!("set_bg 0 free_blocks_count {}", free + 1));
    resize(&path, Target::Bytes(12 * MIB), false).expect("there is room");
    assert_clean(&path, "the resize inode has its block");
    assert_holds(&path, &tree, "the resize inode has its block");
}

/// Longer than Linux takes, and e2fsck has nothing against it.
#[test]
fn an_orphan_file_that_is_longer_than_usual() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let options = "-t ext4 -b 1024 -O orphan_file -E orphan_file_size=9M";
    let path = image(folder.path(), options, 40 * MIB, &tree);
    let resized = resize(&path, Target::Bytes(60 * MIB), false);
    resized.expect("its blocks are rewritten");
    assert_clean(&path, options);
    assert_holds(&path, &tree, options);
}

#[test]
fn an_image_that_may_have_inodes_of_afs() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = image(folder.path(), "-t ext4 -b 1024", 20 * MIB, &tree);
    let request = ["-w", "-R", "feature imagic_inodes"];
    let mut debugfs = Command::new("debugfs");
    let status = debugfs.args(request).arg(&path).status();
    assert!(status.expect("it is there").success());
    resize(&path, Target::Bytes(30 * MIB), false).expect("it is left alone");
    assert_clean(&path, "imagic_inodes");
    assert_holds(&path, &tree, "imagic_inodes");
}
