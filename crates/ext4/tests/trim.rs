//! Discarding free space on request: the guarantees of `FITRIM` for ranges and for blocks that were
//! just freed.

mod images;

use images::Image;
use pext4_fs::{Refusal, Volume};

const MIB: u64 = 1 << 20;

/// The number of bytes that a trim of the whole volume discards.
fn trim_all(volume: &Volume) -> u64 {
    volume.trim(0, u64::MAX, 0).expect("the file system can")
}

#[test]
fn what_was_removed_before_the_call_is_free_in_it() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let content = vec![7; usize::try_from(MIB).expect("small")];
    volume.paths().write("/file", &content).expect("room");
    let before = trim_all(&volume);
    volume.paths().remove_file("/file").expect("it is there");
    let after = trim_all(&volume);
    assert!(after >= before + MIB, "{before} and then {after}");
    let free = volume.statfs().free_blocks;
    assert_eq!(after, free * 1024);
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn only_whole_blocks_of_the_range_are_given_back() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let size = std::fs::metadata(&image.path).expect("it is there").len();
    let trimmed = |start, length, least| volume.trim(start, length, least);
    assert_eq!(trimmed(size - 4096, 4096, 0).expect("free"), 4096);
    assert_eq!(trimmed(size - 4095, 4095, 0).expect("free"), 3072);
    assert_eq!(trimmed(size - 4096, 4095, 0).expect("free"), 3072);
    assert_eq!(trimmed(size - 4096, u64::MAX, 4096).expect("free"), 4096);
    assert_eq!(trimmed(size - 4096, u64::MAX, 4097).expect("free"), 0);
    let longest = 8 * 1024 * 1024;
    for (start, length, least) in [(size, 4096, 0), (0, 1023, 0), (0, u64::MAX, longest + 1)] {
        let refused = trimmed(start, length, least).expect_err("it makes no sense");
        assert!(refused.is(Refusal::Invalid), "{refused}");
    }
    trimmed(0, u64::MAX, longest).expect("a group is that long");
    volume.close().expect("a clean close");
    image.assert_clean();
}
