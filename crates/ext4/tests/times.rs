//! What directories say of when their names were changed, though not every change writes it down.

mod images;

use std::time::Duration;

use images::Image;
use pext4_fs::{InodeNumber, New, SetAttributes, SetTime};
use pext4_ondisk::time::Time;
use pext4_sync::time;

#[test]
fn a_change_of_names_after_the_times_were_set_back_is_told() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let root = InodeNumber::ROOT;
    // All of this happens within one tick of the clock and one transaction.
    let _held = time::hold(Duration::new(1_700_000_000, 5));
    let modified = || volume.attributes(root).expect("the root").modified;
    let now = Time {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    };
    for (number, name) in [&b"a"[..], b"b", b"c"].into_iter().enumerate() {
        volume
            .create(root, name, &New::default())
            .expect("room for a file");
        assert_eq!(modified(), now, "after file {number}");
    }
    let past = Time {
        seconds: 1,
        nanoseconds: 0,
    };
    let back = SetAttributes {
        modified: Some(SetTime::To(past)),
        ..SetAttributes::default()
    };
    volume.set_attributes(root, &back).expect("times are set");
    assert_eq!(modified(), past);
    volume.unlink(root, b"b").expect("the file is there");
    assert_eq!(modified(), now);
    volume.close().expect("a clean end");
    image.assert_clean();
}
