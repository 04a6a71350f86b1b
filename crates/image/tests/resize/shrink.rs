//! Shrinking, with inodes and blocks that must move, under every set of features that affects the
//! location of metadata.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use pext4_image::resize::{Options, Resize, Summary, Target, Way};
use pext4_image::{Error, Phase};

use super::rig::{
    MIB, NAMED_JOURNAL, assert_attributes, assert_clean, assert_holds, assert_journal_backup,
    field, image, image_with_gaps, journal_number, open, resize, scattered_image, scratch, source,
    text, tools,
};

/// Shrinks an image of `size` to each of `sizes`, then to the minimum, then grows it again. Returns
/// the total of what the steps moved.
fn check(options: &str, size: u64, sizes: &[u64]) -> (u64, u64) {
    if !tools() {
        return (1, 1);
    }
    let folder = scratch();
    let tree = source(folder.path(), 400 << 10);
    let path = scattered_image(folder.path(), options, size, &tree);
    let mut moved = (0, 0);
    let mut step = |target: Target| -> Summary {
        let when = format!("{options}, {target:?}");
        let (summary, way, length) =
            resize(&path, target, false).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_clean(&path, &when);
        if summary.moved_blocks + summary.moved_inodes > 0 {
            assert_holds(&path, &tree, &when);
            assert_attributes(&path, &when);
        }
        if !options.contains("ext2") && !options.contains("^has_journal") {
            assert_journal_backup(&path, &when);
        }
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
    let moved = check("-t ext4 -b 4096", 200 * MIB, &[131 * MIB]);
    assert!(moved.0 > 0);
    check("-t ext4 -b 4096 -O orphan_file", 60 * MIB, &[50 * MIB]);
}

fn check_all(all: &[&str]) {
    for options in all {
        let options = format!("{options} -N 640 -b 1024");
        let moved = check(&options, 36 * MIB, &[25 * MIB + 1024]);
        assert!(moved.1 > 0, "{options}: {moved:?}");
    }
}

#[test]
fn checksums_and_inodes() {
    check_all(&[
        "-t ext4 -g 2048",
        "-t ext4 -g 2048 -O orphan_file",
        "-t ext4 -g 2048 -O ^metadata_csum",
        "-t ext4 -g 2048 -O ^metadata_csum,uninit_bg,^flex_bg",
        "-t ext4 -g 2048 -I 128",
        "-t ext4 -g 2048 -O ^64bit,^has_journal",
    ]);
}

#[test]
fn a_journal_with_a_name() {
    if !tools() {
        return;
    }
    let options = format!("-t ext4 -g 2048 -N 640 -b 1024 -O ^has_journal{NAMED_JOURNAL}");
    let folder = scratch();
    let tree = source(folder.path(), 400 << 10);
    let path = scattered_image(folder.path(), &options, 36 * MIB, &tree);
    let before = journal_number(&path);
    resize(&path, Target::Smallest, false).expect("it can be smaller");
    assert_clean(&path, "with a journal that has a name");
    assert_holds(&path, &tree, "with a journal that has a name");
    let after = journal_number(&path);
    assert!(after < before, "its inode moves: {before}, {after}");
    assert_eq!(field(&path, "Journal inode:"), after.to_string());
}

#[test]
fn contents_and_values_in_inodes() {
    check_all(&[
        "-t ext4 -g 2048 -O inline_data",
        "-t ext4 -g 2048 -O ea_inode",
        "-t ext4 -g 2048 -O ea_inode -I 128",
        "-t ext4 -g 2048 -O inline_data,ea_inode,^metadata_csum",
    ]);
}

#[test]
fn layouts_and_maps() {
    check_all(&[
        "-t ext4 -g 2048 -O ^flex_bg",
        "-t ext4 -g 1024 -O meta_bg,^resize_inode",
        "-t ext4 -g 1024 -O meta_bg,^resize_inode,^flex_bg",
        "-t ext4 -g 1024 -O sparse_super2",
        "-t ext4 -g 1024 -O sparse_super2,^resize_inode",
        "-t ext4 -g 1024 -O ^resize_inode",
        "-t ext3 -g 2048",
        "-t ext2 -g 2048",
    ]);
}

#[test]
fn the_minimum_is_close_to_that_of_resize2fs() {
    if !tools() {
        return;
    }
    let Ok(probe) = std::process::Command::new("resize2fs").arg("-P").output() else {
        return eprintln!("SKIPPED: resize2fs is not installed (package e2fsprogs)");
    };
    drop(probe);
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = scattered_image(folder.path(), "-t ext4 -b 1024", 80 * MIB, &tree);
    let output = std::process::Command::new("resize2fs")
        .arg("-P")
        .arg(&path)
        .output()
        .expect("it was found before");
    let said = super::rig::text(&output);
    let theirs: u64 = said
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .next_back()
        .unwrap_or_else(|| panic!("no number: {said}"));
    let (summary, _, _) = resize(&path, Target::Smallest, false).expect("it fits");
    assert_clean(&path, "the smallest");
    let ours = summary.blocks;
    assert!(
        ours < theirs + theirs / 8,
        "{ours} blocks, resize2fs says {theirs}"
    );
    let (again, _, _) = resize(&path, Target::Smallest, false).expect("it fits");
    assert!(again.blocks <= ours && again.blocks + 256 > ours);
}

#[test]
fn a_name_of_any_length_has_a_clone_beside_it() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 100 << 10);
    let path = image(folder.path(), "-t ext4 -b 1024", 20 * MIB, &tree);
    let long = folder.path().join("n".repeat(255));
    std::fs::rename(path, &long).expect("a long name");
    let (_, way, _) = resize(&long, Target::Less(MIB), false).expect("it can be smaller");
    assert_eq!(way, Way::Clone);
    assert_clean(&long, "under a long name");
}

#[test]
fn a_clone_keeps_owner_and_mode_and_refuses_hard_links() {
    use std::os::unix::fs::PermissionsExt;
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = scattered_image(folder.path(), "-t ext4 -b 1024", 60 * MIB, &tree);
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("an image");
        metadata.permissions().mode() & 0o7777
    };
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("it is ours");
    let link = folder.path().join("symbolic");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    resize(&link, Target::Bytes(40 * MIB), false).expect("it fits");
    assert!(link.is_symlink(), "the link still leads to the image");
    assert_eq!(mode(&path), 0o640);
    let other = folder.path().join("hard");
    std::fs::hard_link(&path, &other).expect("a link");
    let options = Options::default();
    let target = Target::Bytes(30 * MIB);
    // A dry run promises nothing that the run refuses.
    let told = Resize::preview(open(&path), target, options.clone()).expect_err("two names");
    assert!(told.to_string().contains("--in-place"), "{told}");
    let told = Resize::prepare(open(&path), target, options).err();
    let told = told.expect("two names").to_string();
    assert!(told.contains("--in-place"), "{told}");
    assert_clean(&path, "after a refusal");
    let (_, way, _) = resize(&path, Target::Bytes(30 * MIB), true).expect("it fits");
    assert_eq!(way, Way::InPlace);
    assert_clean(&other, "in place");
    assert_holds(&path, &tree, "in place");
    let left = std::fs::read_dir(folder.path()).expect("a folder");
    let names: Vec<_> = left
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("resize-"))
        .collect();
    assert!(names.is_empty(), "left behind: {names:?}");
}

#[test]
fn a_clone_that_is_stopped_leaves_the_image_and_nothing_else() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1 << 20);
    let path = scattered_image(folder.path(), "-t ext4 -b 1024", 60 * MIB, &tree);
    let before = std::fs::read(&path).expect("an image");
    let names = || std::fs::read_dir(folder.path()).expect("a folder").count();
    let count = names();
    let device = FileDevice::open(&path, Access::ReadWrite, Duration::ZERO).expect("an image");
    let options = Options::default();
    let progress = Arc::clone(&options.progress);
    let resize = Resize::prepare(device, Target::Bytes(40 * MIB), options).expect("it fits");
    assert_eq!(resize.planned().way, Way::Clone);
    assert_eq!(progress.state().phase, Phase::Planning);
    progress.stop();
    let stopped = resize.run().expect_err("it was asked to stop");
    assert!(matches!(stopped, Error::Interrupted), "{stopped}");
    assert!(std::fs::read(&path).expect("an image") == before);
    assert_eq!(names(), count, "nothing was left behind");
}

/// The journal is in nobody's quota, so its map may get more pieces. That of a file may not, and
/// the smallest size is one at which it stays where it is.
#[test]
fn the_smallest_size_under_quota() {
    if !tools() {
        return;
    }
    for (journal, has_file_behind) in [("4", false), ("1", true)] {
        let when = format!("quota, a file behind the rest: {has_file_behind}");
        let folder = scratch();
        let tree = source(folder.path(), 100 << 10);
        if has_file_behind {
            std::fs::write(tree.join("zz behind"), vec![b'x'; 4 << 20]).expect("a file");
        }
        let options = format!("-t ext4 -O quota -b 1024 -g 2048 -N 4000 -J size={journal}");
        let path = image_with_gaps(folder.path(), &options, 60 * MIB, &tree);
        if has_file_behind {
            let told = resize(&path, Target::Bytes(9 * MIB), false).expect_err("it would move");
            assert!(
                told.to_string().contains("does not correct quota"),
                "{told}"
            );
        }
        let (summary, ..) = resize(&path, Target::Smallest, false)
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(summary.blocks < summary.old_blocks, "{when}");
        assert!(has_file_behind || summary.moved_blocks > 0, "{when}");
        assert_clean(&path, &when);
        assert_holds(&path, &tree, &when);
    }
}

/// An inode of the last group gets a number in one of which nothing was ever written.
#[test]
fn a_group_that_gets_an_inode_gets_both_bitmaps() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = folder.path().join("source");
    std::fs::create_dir(&tree).expect("a folder");
    // With the reserved ones, all inodes of the first group.
    for index in 0..53 {
        std::fs::write(tree.join(format!("{index}")), b"").expect("a file");
    }
    let options = "-t ext4 -b 1024 -g 8192 -N 256 -O ^flex_bg,^resize_inode,^has_journal";
    let path = image(folder.path(), options, 32 * MIB, &tree);
    for request in ["copy_inode <12> <200>", "seti <200>", "link <200> far"] {
        let mut debugfs = Command::new("debugfs");
        debugfs.args(["-w", "-R", request]).arg(&path);
        assert!(debugfs.status().expect("it is there").success());
    }
    let repaired = Command::new("e2fsck").arg("-fy").arg(&path).output();
    assert!(repaired.is_ok());
    let flags = |group: &str| {
        let told = Command::new("dumpe2fs").arg(&path).output();
        let told = text(&told.expect("it is there"));
        let line = told.lines().find(|line| line.starts_with(group));
        line.expect("the group").to_owned()
    };
    assert!(flags("Group 1:").contains("INODE_UNINIT, BLOCK_UNINIT"));
    let (summary, ..) = resize(&path, Target::Bytes(24 * MIB), false).expect("it can be");
    assert_eq!(summary.moved_inodes, 1);
    let after = flags("Group 1:");
    assert!(!after.contains("UNINIT"), "{after}");
    assert_clean(&path, "after the resize");
}
