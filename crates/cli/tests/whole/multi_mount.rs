//! Images that several machines may use (multiple mount protection, the feature `mmp`).

use std::fs;
use std::process::Command;

use pext4_testkit::oracle::mount::Access;

use crate::common::{Place, fail, has, pext4, succeed};

/// What debugfs shows of the block by which machines know of each other.
fn shared_block(place: &Place) -> String {
    let mut debugfs = Command::new("debugfs");
    succeed(debugfs.args(["-R", "dump_mmp"]).arg(&place.image))
}

#[test]
fn a_mount_claims_the_image_and_releases_it() {
    let Some(place) = Place::empty_if_mountable() else {
        return;
    };
    let mut mkfs = pext4(["mkfs", "-q", "-O", "mmp", "--size", "16M"]);
    succeed(mkfs.arg(&place.image));
    place.check();
    let refused = fail(pext4(["mkdir"]).arg(&place.image).arg("/new"), 1);
    assert!(refused.contains("mmp"), "{refused}");

    let mount = place.mount(&[]);
    fs::write(mount.path("file"), "content").expect("it is writable");
    if has("debugfs") {
        let shown = shared_block(&place);
        let is_in_use = !shown.contains("sequence: ff4d4d50");
        assert!(is_in_use && shown.contains("device_name: pext4"), "{shown}");
    }
    mount.unmount();

    place.check();
    if has("debugfs") {
        let shown = shared_block(&place);
        assert!(shown.contains("sequence: ff4d4d50"), "{shown}");
    }
    let Some(by_linux) = place.by_linux(Access::ReadWrite, "an image with mmp") else {
        return;
    };
    let file = by_linux.path().join("file");
    assert_eq!(fs::read(file).expect("it is there"), b"content");
}
