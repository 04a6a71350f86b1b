//! Edge cases that random operations reach too rarely.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Refusal, Volume};
use pext4_testkit::campaign::{Stage, check_device};
use pext4_testkit::content::pattern;
use pext4_testkit::oracle::format::{Features, Format};

const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o644,
    uid: 0,
    gid: 0,
};

fn open(size: u64, block_size: u32, features: Features) -> (Arc<RamDevice>, Volume) {
    let inodes = u32::try_from(size >> 12).expect("test images are small");
    let format = Format::new(size, block_size, features).inodes(inodes);
    let stage = Stage::new(format).expect("mke2fs makes it");
    let device = stage.device();
    let volume = Volume::open(device.clone(), MountOptions::default()).expect("mountable");
    (device, volume)
}

fn finish(device: &RamDevice, volume: Volume) {
    volume.close().expect("it closes");
    check_device(device).expect("clean");
}

#[test]
fn a_file_has_at_most_65000_names() {
    let (device, volume) = open(32 << 20, 4096, Features::Debian12);
    let root = InodeNumber::ROOT;
    let file = volume
        .create(root, b"0", &NEW)
        .expect("there is room")
        .inode;
    for number in 1..65_000 {
        let linked = volume.link(file, root, number.to_string().as_bytes());
        let _ = linked.unwrap_or_else(|error| panic!("name {number}: {error}"));
    }
    let refused = volume
        .link(file, root, b"one too many")
        .expect_err("65000 is the most");
    assert!(refused.is(Refusal::TooManyLinks), "{refused}");
    assert_eq!(volume.attributes(file).expect("there").links, 65_000);
    volume.unlink(root, b"77").expect("there");
    let _ = volume.link(file, root, b"again").expect("one is free");
    volume.forget(file, 65_001);
    finish(&device, volume);
}

#[test]
fn a_directory_with_more_subdirectories_than_it_can_count() {
    let (device, volume) = open(400 << 20, 4096, Features::Debian12);
    let parent = volume
        .make_directory(InodeNumber::ROOT, b"d", &NEW)
        .expect("there is room")
        .inode;
    for number in 0..65_100 {
        let made = volume.make_directory(parent, number.to_string().as_bytes(), &NEW);
        let made = made.unwrap_or_else(|error| panic!("directory {number}: {error}"));
        volume.forget(made.inode, 1);
    }
    assert_eq!(
        volume.attributes(parent).expect("there").links,
        1,
        "1 stands for unknown"
    );
    for number in 0..200 {
        volume
            .remove_directory(parent, number.to_string().as_bytes())
            .expect("it is empty");
    }
    volume.forget(parent, 1);
    finish(&device, volume);
}

#[test]
fn dot_and_dot_dot() {
    let (device, volume) = open(16 << 20, 1024, Features::Upstream);
    let root = InodeNumber::ROOT;
    let entry = volume
        .make_directory(root, b"d", &NEW)
        .expect("there is room");
    for (start, name, end) in [
        (root, b".".as_slice(), root),
        (root, b"..", root),
        (entry.inode, b".", entry.inode),
        (entry.inode, b"..", root),
    ] {
        let found = volume.lookup(start, name).expect("always there");
        assert_eq!(found.inode, end);
        volume.forget(end, 1);
    }
    for name in [b".".as_slice(), b"..", b"", b"a/b", b"a\0b"] {
        assert!(volume.create(root, name, &NEW).is_err(), "{name:?}");
        assert!(volume.make_directory(root, name, &NEW).is_err(), "{name:?}");
        assert!(volume.unlink(root, name).is_err(), "{name:?}");
        assert!(
            volume.remove_directory(entry.inode, name).is_err(),
            "{name:?}"
        );
    }
    volume.forget(entry.inode, 1);
    finish(&device, volume);
}

/// Every second block of a file: one extent each, several tree levels, then all removed.
#[test]
fn a_tree_of_extents_grows_and_shrinks() {
    for (block, features) in [(1024_u64, Features::Upstream), (4096, Features::Debian12)] {
        let (device, volume) = open(96 << 20, block as u32, features);
        let file = volume
            .create(InodeNumber::ROOT, b"a", &NEW)
            .expect("there is room")
            .inode;
        let count = 9000;
        for piece in 0..count {
            // From both ends, so that leaves split at different places.
            let piece = if piece % 2 == 0 {
                piece / 2
            } else {
                count - 1 - piece / 2
            };
            let wrote = volume.write(file, piece * 2 * block, &pattern(piece + 1, block as usize));
            wrote.unwrap_or_else(|error| panic!("piece {piece}: {error}"));
        }
        let mut bytes = vec![0; block as usize];
        for piece in (0..count).step_by(101) {
            volume
                .read(file, piece * 2 * block, &mut bytes)
                .expect("readable");
            assert_eq!(bytes, pattern(piece + 1, block as usize), "piece {piece}");
        }
        let found = volume.extents(file, 0, usize::MAX).expect("listable");
        assert_eq!(
            found.iter().map(|range| range.length).sum::<u64>(),
            count * block
        );
        let hole = pext4_fs::AllocateMode::PunchHole;
        volume
            .allocate(file, hole, 3 * block, (count - 10) * 2 * block)
            .expect("punched");
        volume
            .write(file, 4 * block, &pattern(1, 5000))
            .expect("there is room");
        let nothing = pext4_fs::SetAttributes {
            size: Some(0),
            ..Default::default()
        };
        volume.set_attributes(file, &nothing).expect("cut");
        assert_eq!(volume.attributes(file).expect("there").sectors, 0);
        volume.forget(file, 1);
        finish(&device, volume);
    }
}

#[test]
fn a_read_only_volume_writes_nothing_and_says_so() {
    let stage =
        Stage::new(Format::new(16 << 20, 1024, Features::Upstream)).expect("mke2fs makes it");
    let device = Arc::new(pext4_block::RecordDevice::new(stage.device()));
    let below: Arc<dyn Device> = device.clone();
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(below, options).expect("mountable");
    let root = InodeNumber::ROOT;
    assert!(volume.is_read_only());
    assert!(
        volume
            .create(root, b"a", &NEW)
            .expect_err("refused")
            .is(Refusal::ReadOnly)
    );
    assert!(volume.unlink(root, b"lost+found").is_err());
    assert!(volume.lookup(root, b"lost+found").is_ok());
    volume.forget(InodeNumber(11), 1);
    volume.close().expect("it closes");
    assert_eq!(device.mark(), 0);
}

/// A clean close leaves a journal without anything to replay.
#[test]
fn a_closed_volume_is_marked_clean() {
    for features in [Features::Upstream, Features::Debian12, Features::NoJournal] {
        let (device, volume) = open(16 << 20, 1024, features);
        let entry = volume
            .create(InodeNumber::ROOT, b"a", &NEW)
            .expect("there is room");
        volume
            .write(entry.inode, 0, b"text")
            .expect("there is room");
        volume.forget(entry.inode, 1);
        volume.close().expect("it closes");
        let folder = pext4_testkit::effort::scratch();
        let path = folder.path().join("image");
        device.save(&path).expect("saved");
        let told = pext4_testkit::oracle::run(
            pext4_testkit::oracle::tool("dumpe2fs").arg("-h").arg(&path),
        );
        let told = told.expect("readable");
        assert!(
            told.lines()
                .any(|line| line.starts_with("Filesystem state:") && line.ends_with("clean")),
            "{told}"
        );
        assert!(!told.contains("needs_recovery"), "{told}");
        assert!(!told.contains("orphan_present"), "{told}");
    }
}
