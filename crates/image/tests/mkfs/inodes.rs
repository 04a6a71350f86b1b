//! How many inodes there are, and how large.

use pext4_block::RamDevice;
use pext4_image::mkfs::{Options, mkfs};

use super::{MIB, check, make};

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
