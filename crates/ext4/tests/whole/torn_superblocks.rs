//! A primary superblock whose checksum is wrong: torn by a power cut, or damaged.

use std::io::Write;
use std::sync::Arc;

use pext4_block::fault::Operation;
use pext4_block::{Device, Event, FaultDevice, RamDevice, RecordDevice};
use pext4_fs::{Error, MountOptions, Volume};
use pext4_ondisk::Corrupt;
use pext4_ondisk::superblock::{ERROR_IO, State, Superblock};

use crate::images::Image;

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
        notes.contains("torn") && notes.contains("finished 1 deletion or truncation that"),
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

/// All writes up to the one with this index, and of that one only one of the sectors of the
/// superblock.
fn torn_at(device: &RamDevice, events: &[Event], index: usize, is_first_new: bool) -> RamDevice {
    let device = device.fork();
    for event in &events[..index] {
        event.apply(&device).expect("memory");
    }
    let Event::Write { offset, bytes } = &events[index] else {
        panic!("it is a write");
    };
    let edge = AT + SECTOR - usize::try_from(*offset).expect("a small number");
    let (first, second) = bytes.split_at(edge);
    let written = match is_first_new {
        true => device.write_at(*offset, first),
        false => device.write_at((AT + SECTOR) as u64, second),
    };
    written.expect("memory");
    device
}

/// Also where there is no copy, since the file system has one group.
#[test]
fn whichever_write_of_it_is_torn_the_next_mount_writes() {
    let formats: [&[&str]; 4] = [
        &["-b", "4096", "-O", "metadata_csum"],
        &[
            "-b",
            "4096",
            "-O",
            "metadata_csum,metadata_csum_seed,orphan_file,bigalloc",
        ],
        &["-b", "4096", "-O", "metadata_csum,^has_journal"],
        &["-b", "1024", "-O", "metadata_csum,^orphan_file"],
    ];
    for format in formats {
        let Some(image) = Image::make(format) else {
            return;
        };
        let before = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let device = Arc::new(RecordDevice::new(Arc::new(before.fork())));
        let volume = Volume::open(Arc::<RecordDevice>::clone(&device), MountOptions::default());
        let volume = volume.expect("a mount");
        let mut file = volume.paths().create("/file").expect("room");
        file.write_all(b"content").expect("room");
        file.sync_all().expect("a device in memory");
        drop(file);
        let synced = device.mark();
        volume.close().expect("a clean close");
        let events = device.events();
        let covers = |event: &Event| match event {
            Event::Write { offset, bytes } => {
                *offset <= AT as u64 && offset + bytes.len() as u64 >= AT as u64 + 1024
            }
            _ => false,
        };
        let writes: Vec<_> = (0..events.len())
            .filter(|&at| covers(&events[at]))
            .collect();
        assert!(writes.len() >= 2, "at the mount and at the close");
        for (at, is_first_new) in writes.into_iter().flat_map(|at| [(at, false), (at, true)]) {
            let torn = torn_at(&before, &events, at, is_first_new);
            let what = format!("{format:?}, write {at}, first sector new: {is_first_new}");
            let volume = Volume::open(Arc::new(torn.fork()), MountOptions::default());
            let volume = volume.unwrap_or_else(|error| panic!("{what}: {error}"));
            let notes = volume.notes().join("\n");
            assert!(!volume.is_read_only(), "{what}: {notes}");
            if at >= synced {
                let content = volume.paths().read("/file").expect("it was synced");
                assert_eq!(content, b"content", "{what}");
            }
            volume.close().expect("a clean close");
            let device = Arc::new(torn);
            let volume = Volume::open(Arc::<RamDevice>::clone(&device), MountOptions::default());
            volume.expect("as before").close().expect("a clean close");
            device.save(&image.path).expect("room");
            image.assert_clean();
        }
    }
}

/// Damage shows, since other checksums begin with the UUID and are found by sizes and places.
#[test]
fn a_damaged_one_without_a_copy_is_refused() {
    type Damage = (&'static str, fn(&mut [u8]));
    let damages: [Damage; 5] = [
        ("UUID", |bytes| bytes[0x68] ^= 1),
        ("size of an inode", |bytes| bytes[0x59] ^= 3),
        ("size of a descriptor", |bytes| bytes[0xFE] ^= 0xC0),
        ("the journal's inode", |bytes| bytes[0xE0] ^= 1),
        ("backup of the journal", |bytes| bytes[0x10C + 20] ^= 1),
    ];
    for (features, damages) in [
        ("metadata_csum", &damages[..]),
        ("metadata_csum,^has_journal", &damages[..3]),
    ] {
        let Some(image) = Image::make(&["-b", "4096", "-O", features]) else {
            return;
        };
        let whole = std::fs::read(&image.path).expect("the image");
        for (what, damage) in damages {
            image.change(|bytes| damage(&mut bytes[AT..AT + 1024]));
            for read_only in [false, true] {
                let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
                let options = MountOptions {
                    read_only,
                    ..MountOptions::default()
                };
                let refused = Volume::open(device, options).expect_err(what);
                assert!(matches!(refused, Error::Corrupt(_)), "{what}: {refused}");
            }
            std::fs::write(&image.path, &whole).expect("the image");
        }
    }
}

/// A log whose own checksums are right, and which would destroy the superblock.
#[test]
fn one_that_is_whole_is_not_replaced_by_a_damaged_one_from_the_log() {
    for format in [
        ["-b", "4096", "-O", "metadata_csum"],
        ["-b", "1024", "-O", "metadata_csum"],
    ] {
        let Some(image) = Image::make(&format) else {
            return;
        };
        let mut block = image.first_block();
        let (home, at) = match format[1] {
            "4096" => (0, AT),
            _ => (1, 0),
        };
        if home == 1 {
            let bytes = std::fs::read(&image.path).expect("the image");
            block = bytes[AT..AT + 1024].to_vec();
        }
        block[at + 0x280] ^= 1;
        image.write_to_journal(&[(home, &block)]);
        let before = std::fs::read(&image.path).expect("the image");
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let opened = Volume::open(Arc::<RamDevice>::clone(&device), MountOptions::default());
        let told = opened.expect_err("it is refused").to_string();
        assert!(
            told.contains("log") && told.contains("superblock"),
            "{told}"
        );
        device.save(&image.path).expect("room");
        assert!(std::fs::read(&image.path).expect("the image") == before);
    }
}
