//! Images that were made for the Hurd, whose inodes have other fields where Linux has the upper
//! halves of numbers.

use pext4_fs::{InodeNumber, Refusal, SetXattrMode};

use crate::images::Image;

/// The operating system that a superblock names.
const CREATOR_OS: usize = 1024 + 0x48;
const HURD: u8 = 1;
/// The upper half of the block count, then that of the attribute block's number.
const UPPER_HALVES: usize = 0x74;

/// Where the slot of `/file` lies.
fn slot_of_file(image: &Image) -> usize {
    let told = image.debugfs("imap /file");
    let place = told
        .split("located at block ")
        .nth(1)
        .expect("debugfs says where");
    let (block, offset) = place.split_once(", offset 0x").expect("and where in it");
    let offset = offset.split_whitespace().next().expect("a number");
    let block: usize = block.parse().expect("a number");
    block * 1024 + usize::from_str_radix(offset, 16).expect("a number")
}

#[test]
fn they_are_read_as_the_hurd_reads_them_and_not_written() {
    let features = "^metadata_csum,^64bit,^huge_file,^uninit_bg,^metadata_csum_seed,^orphan_file";
    let Some(image) = Image::make(&["-b", "1024", "-I", "128", "-O", features]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/file", b"content").expect("room");
    let file = volume
        .paths()
        .attributes("/file")
        .expect("it is there")
        .inode;
    volume
        .set_xattr(file, b"user.one", b"value", SetXattrMode::Any)
        .expect("room");
    let blocks = volume.attributes(file).expect("it is there").sectors;
    volume.close().expect("a clean close");
    let slot = slot_of_file(&image);
    image.change(|bytes| {
        bytes[CREATOR_OS] = HURD;
        let upper_halves = &mut bytes[slot + UPPER_HALVES..][..4];
        assert_eq!(upper_halves, [0; 4], "no slot of an inode");
        upper_halves.copy_from_slice(&[0, 0, 5, 0]);
    });
    image.assert_clean();
    image.change(|bytes| bytes[slot + UPPER_HALVES] = 3);

    let volume = image.open();
    assert!(volume.is_read_only());
    assert!(
        volume.notes().join("\n").contains("Hurd"),
        "{:?}",
        volume.notes()
    );
    assert_eq!(
        volume.paths().read("/file").expect("it is whole"),
        b"content"
    );
    let value = volume.xattr(file, b"user.one").expect("its block is whole");
    assert_eq!(value, b"value");
    assert_eq!(
        volume.attributes(file).expect("it is there").sectors,
        blocks
    );
    let refused = volume.unlink(InodeNumber::ROOT, b"file").err();
    assert!(refused.is_some_and(|error| error.is(Refusal::ReadOnly)));
}
