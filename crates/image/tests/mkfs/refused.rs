//! What cannot be made.

use pext4_image::mkfs::Options;

use super::{MIB, make};

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
        ("bigalloc", "bigalloc"),
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
        "18446744073709551615 inodes: a file system counts at most 4294967295",
    );
    refuse(
        64 * MIB,
        Options {
            inodes: Some(262_144),
            ..Options::default()
        },
        "262144 inodes of 256 bytes leave no room in 67108864 bytes",
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
