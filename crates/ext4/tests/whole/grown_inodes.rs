//! Inodes whose extra part is too small for the times that they are given.

use std::process::Command;

use pext4_fs::{InodeNumber, SetAttributes, SetTime, SetXattrMode, Volume};
use pext4_ondisk::time::Time;

use crate::images::Image;

/// In 2040, which the first word of a time cannot hold.
const LATE: Time = Time {
    seconds: 2_208_988_800,
    nanoseconds: 123_456_789,
};
/// The last time that the first word can hold.
const CLAMPED: Time = Time {
    seconds: 0x7FFF_FFFF,
    nanoseconds: 0,
};

fn file(volume: &Volume) -> InodeNumber {
    let file = volume.lookup(InodeNumber::ROOT, b"file");
    file.expect("it is there").inode
}

/// Sets the times of `/file`, and returns what they are after a new mount.
fn set_late_times(image: &Image) -> Time {
    let volume = image.open();
    let change = SetAttributes {
        accessed: Some(SetTime::To(LATE)),
        modified: Some(SetTime::To(LATE)),
        ..SetAttributes::default()
    };
    let set = volume.set_attributes(file(&volume), &change);
    let set = set.expect("times are set");
    volume.close().expect("a clean end");
    image.assert_clean();
    let volume = image.open();
    let found = volume.attributes(file(&volume)).expect("it is there");
    assert_eq!(
        (found.modified, found.created),
        (set.modified, set.created),
        "as before the mount"
    );
    assert_eq!(found.accessed, found.modified);
    let read = volume.paths().read("/file").expect("it is there");
    assert_eq!(read, b"content");
    found.modified
}

fn requests(requests: &[&str]) -> Option<Image> {
    Image::with_file(&["-I", "256"], b"content", requests)
}

#[test]
fn an_inode_grows_where_its_times_need_it() {
    for size in [0, 4, 12, 28] {
        let request = format!("set_inode_field file extra_isize {size}");
        let Some(image) = requests(&[&request]) else {
            return;
        };
        assert_eq!(set_late_times(&image), LATE, "{size}");
        let shown = image.debugfs("stat file");
        assert!(shown.contains("Size of extra inode fields: 32"), "{shown}");
        if size < 20 {
            assert!(shown.contains("crtime: 0x00000000"), "{size}: {shown}");
        }
    }
}

#[test]
fn attributes_move_if_there_is_room_for_them() {
    // Of 124 bytes 96 are left.
    for (length, expected) in [(44, LATE), (48, CLAMPED)] {
        let value = "v".repeat(length);
        let set = format!("ea_set file user.a {value}");
        let made = requests(&[
            "set_inode_field file extra_isize 4",
            &set,
            "ea_set file user.b w",
        ]);
        let Some(image) = made else { return };
        assert_eq!(set_late_times(&image), expected, "{length}");
        let volume = image.open();
        let found = volume.xattr(file(&volume), b"user.a").expect("it is there");
        assert_eq!(found, value.as_bytes());
        let found = volume.xattr(file(&volume), b"user.b").expect("it is there");
        assert_eq!(found, b"w");
        // What changes later finds the room that is left.
        let long = [b'l'; 90];
        let put = volume.set_xattr(file(&volume), b"user.b", &long, SetXattrMode::Any);
        put.expect("there is a block for it");
        volume.close().expect("a clean end");
        image.assert_clean();
    }
}

#[test]
fn inodes_that_tune2fs_enlarged_grow() {
    let features = ["-O", "^flex_bg,^metadata_csum", "-I", "128"];
    let Some(image) = Image::with_file(&features, b"content", &[]) else {
        return;
    };
    let mut tune2fs = Command::new("tune2fs");
    let output = tune2fs.args(["-I", "256"]).arg(&image.path).output();
    let output = output.expect("e2fsprogs is there, for mke2fs was");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(set_late_times(&image), LATE);
}
