//! What the superblock decides for a mount, as tune2fs sets it: the group of new files, discards
//! and who may use the reserve; the revision, which rises with the first feature; and the count of
//! what was written.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice, RamDevice};
use pext4_fs::options::Reserve;
use pext4_fs::{
    CreateAttributes, InodeNumber, MountOptions, Refusal, SetAttributes, SetXattrMode, Volume,
};
use pext4_ondisk::superblock::Superblock;

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;
const SET_GROUP_ID: u16 = 0o2000;

fn tune(image: &Image, arguments: &[&str]) {
    let mut tune2fs = Command::new("tune2fs");
    let output = tune2fs.args(arguments).arg(&image.path).output();
    let output = output.expect("e2fsprogs is there, for mke2fs was");
    assert!(output.status.success(), "{output:?}");
}

fn open(image: &Image, options: MountOptions) -> Volume {
    let device = RamDevice::load(&image.path).expect("the image");
    Volume::open(Arc::new(device), options).expect("a mount")
}

fn of_group(gid: u32) -> CreateAttributes {
    CreateAttributes {
        permissions: 0o755,
        gid,
        ..CreateAttributes::default()
    }
}

#[test]
fn the_superblock_or_the_mount_gives_new_files_their_directorys_group() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    tune(&image, &["-o", "bsdgroups"]);
    for (inherit_group, expected) in [(None, 50), (Some(true), 50), (Some(false), 7)] {
        let options = MountOptions {
            inherit_group,
            ..MountOptions::default()
        };
        let volume = open(&image, options);
        let outer = volume
            .make_directory(ROOT, b"outer", &of_group(7))
            .expect("room")
            .inode;
        let change = SetAttributes {
            gid: Some(50),
            ..SetAttributes::default()
        };
        volume.set_attributes(outer, &change).expect("allowed");
        let file = volume.create(outer, b"file", &of_group(7)).expect("room");
        assert_eq!(file.attributes.gid, expected, "{inherit_group:?}");
        // With its bit set a directory gives its group in any case, and the bit in one.
        let change = SetAttributes {
            permissions: Some(0o755 | SET_GROUP_ID),
            ..SetAttributes::default()
        };
        volume.set_attributes(outer, &change).expect("allowed");
        let inner = volume
            .make_directory(outer, b"inner", &of_group(7))
            .expect("room");
        assert_eq!(inner.attributes.gid, 50);
        let has_bit = inner.attributes.mode & SET_GROUP_ID != 0;
        assert_eq!(has_bit, inherit_group == Some(false), "{inherit_group:?}");
    }
}

#[test]
fn the_superblock_or_the_mount_has_freed_blocks_discarded() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    for (default, discard, expected) in [
        ("^discard", None, false),
        ("^discard", Some(true), true),
        ("discard", None, true),
        ("discard", Some(false), false),
    ] {
        tune(&image, &["-o", default]);
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let options = MountOptions {
            discard,
            ..MountOptions::default()
        };
        let volume = Volume::open(Arc::<RamDevice>::clone(&device), options).expect("a mount");
        volume
            .paths()
            .write("/file", vec![7; 8 << 20])
            .expect("room");
        volume.sync().expect("durable");
        let before = device.used();
        volume.unlink(ROOT, b"file").expect("it is there");
        volume.close().expect("it closes");
        let is_discarded = device.used() + (4 << 20) < before;
        assert_eq!(is_discarded, expected, "{default}, {discard:?}");
    }
}

/// Writes until no space is left, as a user of this number and group.
fn fill(volume: &Volume, name: &[u8], uid: u32, gid: u32) {
    let attributes = CreateAttributes {
        uid,
        gid,
        ..CreateAttributes::default()
    };
    let file = volume
        .create(ROOT, name, &attributes)
        .expect("room for a name")
        .inode;
    let piece = vec![1; 64 << 10];
    let mut offset = 0;
    loop {
        match volume.write(file, offset, &piece) {
            Ok(count) => offset += count as u64,
            Err(error) if error.is(Refusal::NoSpace) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_reserve_is_for_those_whom_the_superblock_or_the_mount_names() {
    let Some(image) = Image::make(&["-m", "10", "-I", "128"]) else {
        return;
    };
    tune(&image, &["-u", "1000", "-g", "2000"]);
    for (uid, gid, by_mount) in [
        (0, 5, None),
        (1000, 5, None),
        (5, 2000, None),
        (70_000, 5, Some(70_000)),
        (5, 70_000, Some(70_000)),
    ] {
        let options = MountOptions {
            reserve: Reserve::Owner,
            reserve_uid: by_mount,
            reserve_gid: by_mount,
            ..MountOptions::default()
        };
        let volume = open(&image, options);
        let names: Vec<Vec<u8>> = (0..8)
            .map(|number| format!("of-{number}").into_bytes())
            .collect();
        let files = names.iter().map(|name| {
            let attributes = CreateAttributes {
                uid: 5,
                gid: 5,
                ..CreateAttributes::default()
            };
            volume.create(ROOT, name, &attributes).expect("room").inode
        });
        let files: Vec<InodeNumber> = files.collect();
        fill(&volume, b"of-others", 5, 5);
        let left = volume.statfs().free_blocks;
        let reserved = left - volume.statfs().available_blocks;
        assert!(reserved > 1000, "ten percent of 64 MiB");
        assert!(volume.statfs().available_blocks < 8, "others can use");
        // A new attribute block for each file, all of one user without a right to the reserve.
        let refused = files.iter().find_map(|&file| {
            let value = vec![u8::try_from(file.get() % 251).expect("small"); 700];
            volume
                .set_xattr(file, b"user.a", &value, SetXattrMode::Any)
                .err()
        });
        let refused = refused.expect("the reserve is not theirs");
        assert!(refused.is(Refusal::NoSpace), "{refused}");
        fill(&volume, b"of-those", uid, gid);
        let left = volume.statfs().free_blocks;
        assert!(left < 8, "{uid}, {gid}: {left} of {reserved}");
        volume.close().expect("it closes");
    }
}

#[test]
fn options_in_the_superblock_that_are_not_obeyed_are_noted() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let noted = || {
        let volume = open(&image, MountOptions::default());
        let notes = volume.notes().iter();
        let about_options = notes.filter(|note| note.contains("not obeyed"));
        about_options.cloned().collect::<Vec<String>>()
    };
    assert!(noted().is_empty());
    let options = "data=journal,dioread_lock";
    image.debugfs_write(&format!("set_super_value mount_opts {options}"));
    let notes = noted();
    assert!(notes.len() == 1 && notes[0].contains(options), "{notes:?}");
}

#[test]
fn the_superblock_counts_what_is_written() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let superblock = || {
        let bytes = image.first_block();
        let bytes = bytes[1024..2048].first_chunk().expect("it is long enough");
        Superblock::decode(bytes).expect("a superblock")
    };
    let mut before = superblock().kbytes_written;
    for (name, size) in [("/first", 3 << 20), ("/second", 1 << 20)] {
        let volume = image.open();
        let written = volume.paths().write(name, vec![7; size]);
        written.expect("room");
        volume.close().expect("it closes");
        let counted = superblock().kbytes_written - before;
        let least = (size >> 10) as u64;
        // The journal and the metadata are counted as well.
        assert!((least + 8..least + 1024).contains(&counted), "{counted}");
        before += counted;
    }
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let device = FileDevice::open(&image.path, Access::ReadOnly, Duration::ZERO);
    let volume = Volume::open(Arc::new(device.expect("an image")), options).expect("a mount");
    volume.close().expect("it closes");
    assert_eq!(superblock().kbytes_written, before);
    image.assert_clean();
}

#[test]
fn a_first_feature_raises_the_revision() {
    let Some(image) = Image::make(&["-r", "0", "-O", "none", "-I", "128"]) else {
        return;
    };
    let revision = || {
        let bytes = image.first_block();
        let bytes = bytes[1024..2048].first_chunk().expect("it is long enough");
        Superblock::decode(bytes).expect("a superblock").revision
    };
    assert_eq!(revision(), 0);
    let volume = image.open();
    let made = volume.create(ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("room").inode;
    volume.close().expect("it closes");
    assert_eq!(revision(), 0, "nothing needs another one");
    image.assert_clean();
    let volume = image.open();
    volume
        .set_xattr(file, b"user.a", b"value", SetXattrMode::Any)
        .expect("room for a block");
    volume.close().expect("it closes");
    assert_eq!(revision(), 1);
    image.assert_clean();
}
