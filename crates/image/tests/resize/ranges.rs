//! A file system in a part of a file of which only that part is locked.

use std::fs;
use std::path::Path;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use pext4_image::resize::{Options, Resize, Target, Way};

use super::rig::{MIB, assert_clean, image, scratch, tools};

const START: u64 = MIB;
const LENGTH: u64 = 64 * MIB;

/// Opens the part; others may use other parts of the file.
fn open(path: &Path, access: Access) -> FileDevice {
    let opened = FileDevice::open_range(path, START, Some(LENGTH), access, Duration::from_secs(10));
    opened.expect("nobody uses it")
}

/// A clone would replace the whole file, and undo what others write to the rest of it meanwhile.
#[test]
fn a_file_of_which_only_a_part_is_locked_is_not_replaced_by_a_clone() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("room");
    let apart = image(folder.path(), "-t ext4", LENGTH, &tree);
    let path = folder.path().join("disk");
    let content = fs::read(&apart).expect("it was made");
    let start = usize::try_from(START).expect("it is small");
    fs::write(&path, [vec![7; start], content, vec![7; start]].concat()).expect("room");
    let before = fs::read(&path).expect("it was made");
    let target = Target::Bytes(20 * MIB);

    // A plan is for whoever opens the file to change it.
    let read = open(&path, Access::ReadOnly);
    let planned = Resize::preview(read, target, Options::default()).expect("it is possible");
    assert_eq!(planned.way, Way::Clone);
    let part = open(&path, Access::ReadWrite);
    let refused = Resize::prepare(part, target, Options::default());
    let told = refused
        .expect_err("others may write to the file")
        .to_string();
    assert!(told.contains("only a part of the file is locked"), "{told}");
    assert!(told.contains("`FileDevice::into_range`"), "{told}");
    let part = open(&path, Access::ReadWrite);
    let refused = Resize::prepare(part, Target::Bytes(2 * LENGTH), Options::default());
    let told = refused.expect_err("there is no room").to_string();
    assert!(told.contains("open a larger part"), "{told}");
    assert!(fs::read(&path).expect("it is there") == before);

    let whole = FileDevice::open(&path, Access::ReadWrite, Duration::from_secs(10));
    let part = whole.and_then(|file| file.into_range(START, Some(LENGTH)));
    let resize = Resize::prepare(part.expect("nobody uses it"), target, Options::default());
    let resize = resize.expect("nobody else writes to the file");
    assert_eq!(resize.planned().way, Way::Clone);
    resize.run().expect("there is room");
    // The file itself is not replaced by these.
    for (target, in_place) in [(Target::Bytes(40 * MIB), false), (target, true)] {
        let options = Options {
            in_place,
            ..Options::default()
        };
        let resize = Resize::prepare(open(&path, Access::ReadWrite), target, options);
        resize
            .expect("it is possible")
            .run()
            .expect("there is room");
    }
    let after = fs::read(&path).expect("it is there");
    assert_eq!(after.len(), before.len());
    fs::write(&apart, &after[start..after.len() - start]).expect("room");
    assert_clean(&apart, "after all of them");
}
