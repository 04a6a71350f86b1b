//! What mke2fs makes with the same options is the same in all that a file system states of itself.

use std::path::Path;
use std::process::{Command, Stdio};

use pext4_image::mkfs::{FileSystem, Options};

use super::{MIB, check, make};

/// What dumpe2fs prints of the superblocks of an image and of its journal, without what differs
/// between any two images.
fn dumped(path: &Path) -> Option<Vec<String>> {
    const OF_ITS_OWN: [&str; 12] = [
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
        // When and where mke2fs made it.
        "    mmp_update_",
        "    mmp_node_name:",
        "    mmp_device_name:",
    ];
    let dumped = Command::new("dumpe2fs").arg("-h").arg(path).output().ok()?;
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    let lines = text.lines().filter(|line| {
        let is_own = OF_ITS_OWN.iter().any(|start| line.starts_with(start));
        !is_own && !line.to_lowercase().contains("checksum")
    });
    Some(lines.map(str::to_owned).collect())
}

/// Makes an image of `size` bytes with mke2fs. Says so and returns false if there is no mke2fs, or
/// one that is older than the features.
fn made_upstream(path: &Path, size: u64, arguments: &[&str]) -> bool {
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(size).expect("a sparse file");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-F"]).args(arguments).arg(path);
    let Ok(made) = mke2fs.stdin(Stdio::null()).output() else {
        eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        return false;
    };
    let told = String::from_utf8_lossy(&made.stderr);
    let is_old = told.contains("Invalid filesystem option set");
    if is_old {
        eprintln!("SKIPPED: mke2fs {arguments:?}: {told}");
    }
    assert!(is_old || made.status.success(), "{mke2fs:?}: {told}");
    !is_old
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
        ("mmp", 1024),
        ("mmp", 4096),
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
        let defaults = match features.contains("^metadata_csum") {
            true => "orphan_file",
            false => "orphan_file,metadata_csum_seed",
        };
        let with_defaults = format!("{defaults},{features}");
        let block_size_text = block_size.to_string();
        let arguments = ["-t", "ext4", "-O", &with_defaults, "-b", &block_size_text];
        if !made_upstream(&theirs, 700 * MIB, &arguments) {
            return;
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
        let owner = format!("root_owner={uid}:{gid}");
        let arguments = ["-t", "ext4", "-O", "quota,project", "-E", &owner];
        if !made_upstream(&theirs, 64 * MIB, &arguments) {
            return;
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
        if made_upstream(&theirs, 64 * MIB, &["-t", name]) {
            assert_eq!(feature_words(&ours), feature_words(&theirs), "{name}");
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
            if !made_upstream(
                &theirs,
                size,
                &["-t", "ext4", "-b", &block_size.to_string()],
            ) {
                return;
            }
            let what = format!("{size} bytes, blocks of {block_size}");
            assert_eq!(inode_count(&ours), inode_count(&theirs), "{what}");
        }
    }
}

/// As many inodes as are wanted, in groups that are smaller where a bitmap of one block is too
/// short for a group's share.
#[test]
fn groups_are_as_small_as_upstreams_where_many_inodes_are_wanted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let by_bytes = |bytes| (Some(bytes), None, "-i", bytes);
    let by_number = |inodes| (None, Some(inodes), "-N", inodes);
    for (size, block_size, inode_size, features, wanted) in [
        (1 << 30, 4096, 256, "", by_bytes(1024)),
        (1 << 30, 4096, 128, "", by_bytes(1500)),
        (1 << 30, 4096, 512, "", by_bytes(2000)),
        (1 << 30, 4096, 256, "", by_bytes(4096)),
        (1 << 30, 4096, 256, "", by_number(400_000)),
        (1 << 30, 4096, 256, "", by_number(2_000_000)),
        (1 << 30, 4096, 256, "^flex_bg", by_number(300_000)),
        (1 << 30, 4096, 256, "^resize_inode", by_bytes(1024)),
        (1 << 30, 4096, 256, "meta_bg,^resize_inode", by_bytes(1024)),
        (1 << 30, 4096, 256, "sparse_super2", by_bytes(1300)),
        (1 << 30, 2048, 256, "", by_bytes(1100)),
        (1 << 30, 8192, 256, "", by_bytes(4096)),
        (1 << 30, 8192, 256, "", by_bytes(7000)),
        (64 << 20, 4096, 256, "", by_bytes(1024)),
        // Without their short last groups these have too few inodes.
        ((128 << 20) + 4096, 4096, 256, "", by_bytes(4096)),
        ((384 << 20) + 4096, 4096, 256, "", by_bytes(4096)),
        (9000 << 10, 1024, 256, "", by_bytes(1024)),
        (9000 << 10, 1024, 256, "^sparse_super", by_bytes(1024)),
        (3 << 40, 4096, 256, "^has_journal", by_bytes(1024)),
        // More than the format can count.
        (5 << 40, 4096, 256, "^has_journal", by_bytes(1024)),
    ] {
        let (bytes_per_inode, inodes, name, count) = wanted;
        let features = features.replace("^sparse_super", "^sparse_super,^resize_inode");
        let options = Options {
            features: features.split(',').map(str::to_owned).collect(),
            block_size: Some(block_size),
            inode_size,
            bytes_per_inode,
            inodes,
            ..Options::default()
        };
        if size < 1 << 40 {
            check(size, &options);
        }
        make(&ours, size, &options).expect("as mke2fs makes it");
        let [block_size, inode_size] = [block_size, inode_size.into()].map(|size| size.to_string());
        let count = count.to_string();
        let with_defaults = match features.contains("^has_journal") {
            true => format!("metadata_csum_seed,{features}"),
            false => format!("orphan_file,metadata_csum_seed,{features}"),
        };
        let arguments = [
            ["-t", "ext4"],
            ["-O", &with_defaults],
            ["-b", &block_size],
            ["-I", &inode_size],
            [name, &count],
        ];
        if !made_upstream(&theirs, size, arguments.as_flattened()) {
            return;
        }
        // mke2fs reserves a share of what an attempt had left that it gave up.
        let comparable = |path| {
            let lines = dumped(path).expect("dumpe2fs is where mke2fs is");
            let is_kept = |line: &String| !line.starts_with("Reserved block count:");
            lines.into_iter().filter(is_kept).collect::<Vec<_>>()
        };
        let what = format!("{size} bytes, {arguments:?}");
        assert_eq!(comparable(&ours), comparable(&theirs), "{what}");
    }
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
        let features = "orphan_file,metadata_csum_seed";
        let block_size_text = block_size.to_string();
        let arguments = ["-t", "ext4", "-O", features, "-b", &block_size_text];
        if !made_upstream(&theirs, 1024 * MIB, &arguments) {
            return;
        }
        assert_eq!(noted(&ours), noted(&theirs));
    }
}
