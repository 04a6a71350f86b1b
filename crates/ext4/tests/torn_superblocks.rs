//! A primary superblock whose checksum is wrong: torn by a power cut, or damaged.

mod images;

use std::sync::Arc;

use images::Image;
use pext4_block::fault::Operation;
use pext4_block::{FaultDevice, RamDevice};
use pext4_fs::{Error, MountOptions, Volume};
use pext4_ondisk::Corrupt;
use pext4_ondisk::superblock::{ERROR_IO, State, Superblock};

const AT: usize = 1024;
const SECTOR: usize = 512;

fn superblock(bytes: &[u8]) -> Superblock {
    let bytes = bytes[AT..AT + 1024].try_into().expect("1024 bytes");
    Superblock::decode(bytes).expect("it is whole")
}

/// An image with `/file` and several groups, and a list of orphans in the superblock.
fn image() -> Option<Image> {
    let image = Image::make(&["-b", "1024", "-O", "metadata_csum,^orphan_file"])?;
    let volume = image.open();
    volume.paths().write("/file", b"content").expect("write");
    volume.paths().write("/orphan", b"bytes").expect("write");
    volume.close().expect("a clean close");
    Some(image)
}

/// Leaves of the write that `change` stands for the first sector, and of what was there the second.
fn tear(image: &Image, change: impl FnOnce(&mut Superblock)) {
    image.change(|bytes| {
        let mut after = superblock(bytes);
        change(&mut after);
        bytes[AT..AT + SECTOR].copy_from_slice(&after.encode()[..SECTOR]);
    });
}

#[test]
fn one_that_a_write_tore_keeps_what_only_the_primary_knows() {
    let Some(image) = image() else {
        return;
    };
    for request in [
        "unlink /orphan",
        "sif <13> links_count 0",
        "ssv last_orphan 13",
    ] {
        image.debugfs_write(request);
    }
    tear(&image, |superblock| superblock.write_time += 77);
    let volume = image.open();
    let notes = volume.notes().join("\n");
    assert!(
        notes.contains("torn") && notes.contains("finished 1 deletions"),
        "{notes}"
    );
    assert!(!volume.is_read_only(), "{notes}");
    assert_eq!(volume.paths().read("/file").expect("read"), b"content");
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// A crash while the label is changed may leave the copies with the old one.
#[test]
fn one_with_a_label_of_its_own_may_be_torn_as_well() {
    let Some(image) = image() else {
        return;
    };
    image.change(|bytes| {
        let mut primary = superblock(bytes);
        primary.volume_name = *b"another\0\0\0\0\0\0\0\0\0";
        bytes[AT..AT + 1024].copy_from_slice(&primary.encode());
    });
    tear(&image, |superblock| superblock.write_time += 77);
    let volume = image.open();
    let notes = volume.notes().join("\n");
    assert!(!volume.is_read_only() && notes.contains("torn"), "{notes}");
}

#[test]
fn one_that_was_torn_as_an_error_was_noted_tells_of_it() {
    let Some(image) = image() else {
        return;
    };
    tear(&image, |superblock| {
        superblock.record_error(&Corrupt::new("journal", "it stopped"), ERROR_IO, 1_000);
    });
    image.open().close().expect("a close");
    let kept = superblock(&std::fs::read(&image.path).expect("the image"));
    assert!(kept.state.contains(State::ERRORS));
    assert_eq!((kept.error_count, kept.last_error.time), (1, 1_000));
}

/// A write leaves a sector as it is or as it was: no write has left this one.
#[test]
fn one_that_is_damaged_is_read_by_its_copy_and_never_written() {
    let Some(image) = image() else {
        return;
    };
    for damage in [
        |bytes: &mut [u8]| bytes[SECTOR..].fill(0xA5),
        // Inodes in a group, and where orphans begin.
        |bytes: &mut [u8]| bytes[0x28..0x2C].fill(0x55),
        |bytes: &mut [u8]| bytes[0x280] ^= 1,
    ] {
        let whole = std::fs::read(&image.path).expect("the image");
        image.change(|bytes| damage(&mut bytes[AT..AT + 1024]));
        let before = std::fs::read(&image.path).expect("the image");
        let volume = image.open();
        assert!(volume.is_read_only(), "{:?}", volume.notes());
        let notes: Vec<_> = volume
            .notes()
            .iter()
            .filter(|note| note.contains("e2fsck"))
            .collect();
        assert_eq!(notes.len(), 1, "{:?}", volume.notes());
        assert_eq!(volume.paths().read("/file").expect("read"), b"content");
        volume.close().expect("a close");
        assert!(before == std::fs::read(&image.path).expect("the image"));
        std::fs::write(&image.path, whole).expect("the image");
    }
}

/// Without its own magic number and UUID nobody knows whose copy it is.
#[test]
fn one_that_shows_nothing_is_refused() {
    let Some(image) = image() else {
        return;
    };
    for lost in [0x38..0x3A, 0x68..0x78] {
        let whole = std::fs::read(&image.path).expect("the image");
        image.change(|bytes| bytes[AT..][lost].fill(0));
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        assert!(Volume::open(device, MountOptions::default()).is_err());
        std::fs::write(&image.path, whole).expect("the image");
    }
}

/// The copy is looked for at the places of every block size: one that cannot be read is none.
#[test]
fn a_place_without_the_copy_need_not_be_readable() {
    let Some(image) = Image::make(&["-b", "2048", "-O", "metadata_csum"]) else {
        return;
    };
    image.change(|bytes| bytes[AT + SECTOR..AT + 1024].fill(0xA5));
    let faulty = FaultDevice::new(Arc::new(RamDevice::load(&image.path).expect("the image")));
    let place = 8193 * 1024;
    faulty.fail_touching(Operation::Read, place..place + 1024);
    let volume =
        Volume::open(Arc::new(faulty), MountOptions::default()).expect("the copy is whole");
    assert!(volume.is_read_only(), "{:?}", volume.notes());
}

#[test]
fn a_file_without_any_superblock_is_told_from_a_damaged_image() {
    let Some(image) = image() else {
        return;
    };
    image.change(|bytes| bytes[AT..AT + 1024].fill(7));
    let open = |device: RamDevice| {
        let opened = Volume::open(Arc::new(device), MountOptions::default());
        opened.expect_err("there is no superblock")
    };
    let damaged = open(RamDevice::load(&image.path).expect("the image"));
    assert!(matches!(damaged, Error::Corrupt(_)), "{damaged}");
    assert!(damaged.to_string().contains("e2fsck"), "{damaged}");
    let nothing = open(RamDevice::new(64 << 20));
    let expected =
        "it is no ext4 file system: its superblock would have 0xEF53 at byte 1080, not 0x0000";
    assert_eq!(nothing.to_string(), expected);
}

/// The copy is found where the primary says that group 1 begins.
#[test]
fn groups_of_another_size_have_their_copy_elsewhere() {
    let arguments = ["-b", "1024", "-g", "4096", "-O", "metadata_csum"];
    let Some(image) = Image::make(&arguments) else {
        return;
    };
    tear(&image, |superblock| superblock.write_time += 77);
    let volume = image.open();
    let notes = volume.notes().join("\n");
    assert!(notes.contains("a torn write explains it"), "{notes}");
    volume.close().expect("a clean close");
    image.assert_clean();
}
