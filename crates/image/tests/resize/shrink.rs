//! Shrinking, with inodes and blocks in the way, under every set of features.

use super::rig::{MIB, assert_clean, assert_holds, resize, scattered_image, source, tools};
use pext4_image::resize::{Summary, Target, Way};

/// Shrinks an image of `size` to each of `sizes`, then as far as it goes, then makes it large again.
/// The answer: what the steps moved, together.
fn check(options: &str, size: u64, sizes: &[u64]) -> (u64, u64) {
    if !tools() {
        return (1, 1);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tree = source(folder.path(), 1 << 20);
    let path = scattered_image(folder.path(), options, size, &tree);
    let mut moved = (0, 0);
    let mut step = |target: Target| -> Summary {
        let when = format!("{options}, {target:?}");
        let (summary, way, length) =
            resize(&path, target, false).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_clean(&path, &when);
        assert_holds(&path, &tree, &when);
        if summary.blocks < summary.old_blocks {
            assert_eq!(way, Way::Clone, "{when}");
            assert_eq!(length, summary.bytes(), "{when}");
        }
        moved.0 += summary.moved_blocks;
        moved.1 += summary.moved_inodes;
        summary
    };
    for &size in sizes {
        let summary = step(Target::Bytes(size));
        assert!(
            summary.bytes() <= size && summary.blocks < summary.old_blocks,
            "{options}"
        );
    }
    let smallest = step(Target::Smallest);
    assert!(smallest.blocks < smallest.old_blocks, "{options}");
    step(Target::Bytes(size));
    step(Target::Less(3 * MIB));
    moved
}

#[test]
fn default_features() {
    let moved = check("-t ext4 -b 4096", 200 * MIB, &[150 * MIB, 131 * MIB]);
    assert!(moved.0 > 0);
    check(
        "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed",
        60 * MIB,
        &[50 * MIB],
    );
}

#[test]
fn inodes_and_blocks_in_the_way() {
    for options in [
        "-t ext4 -b 1024 -g 2048 -N 1100",
        "-t ext4 -b 1024 -g 2048 -N 1100 -O orphan_file",
        "-t ext4 -b 1024 -g 2048 -N 1100 -O ^metadata_csum",
        "-t ext4 -b 1024 -g 2048 -N 1100 -O ^metadata_csum,uninit_bg,^flex_bg",
        "-t ext4 -b 1024 -g 2048 -N 1100 -O ^flex_bg",
        "-t ext4 -b 1024 -g 1024 -N 1100 -O meta_bg,^resize_inode",
        "-t ext4 -b 1024 -g 1024 -N 1100 -O meta_bg,^resize_inode,^flex_bg",
        "-t ext4 -b 1024 -g 1024 -N 1100 -O sparse_super2",
        "-t ext4 -b 1024 -g 1024 -N 1100 -O sparse_super2,^resize_inode",
        "-t ext4 -b 1024 -g 1024 -N 1100 -O ^resize_inode",
        "-t ext4 -b 1024 -g 2048 -N 1100 -I 128",
        "-t ext4 -b 1024 -g 2048 -N 1100 -O ^64bit,^has_journal",
        "-t ext3 -b 1024 -g 2048 -N 1100",
        "-t ext2 -b 1024 -g 2048 -N 1100",
    ] {
        let moved = check(options, 60 * MIB, &[49 * MIB + 1024, 37 * MIB]);
        assert!(moved.0 > 0 && moved.1 > 0, "{options}: {moved:?}");
    }
}
