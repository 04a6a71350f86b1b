//! Quotas: that the quota files count what users, groups and projects have, as e2fsck counts it,
//! after every kind of change, after crashes, from many threads, and where owners are new.

mod damage;
mod entries;
mod usage;
mod values;

use std::collections::BTreeMap;

use pext4_fs::{
    CreateAttributes, InodeNumber, Refusal, RenameMode, SetAttributes, SetXattrMode, Volume,
    Whiteout,
};

use crate::images::Image;

pub(crate) const ROOT: InodeNumber = InodeNumber::ROOT;

pub(crate) fn owned_by(uid: u32, gid: u32) -> CreateAttributes {
    CreateAttributes {
        permissions: 0o755,
        uid,
        gid,
    }
}

/// A new file, which the caller does not hold.
pub(crate) fn create(volume: &Volume, directory: InodeNumber, name: &[u8], new: &CreateAttributes) {
    let made = volume.create(directory, name, new).expect("room");
    volume.forget(made.inode, 1);
}

pub(crate) fn chown(volume: &Volume, inode: InodeNumber, uid: Option<u32>, gid: Option<u32>) {
    let change = SetAttributes {
        uid,
        gid,
        ..SetAttributes::default()
    };
    volume
        .set_attributes(inode, &change)
        .expect("room for owners");
}

pub(crate) fn set_size(volume: &Volume, inode: InodeNumber, size: u64) {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).expect("room");
}

pub(crate) fn write(volume: &Volume, inode: InodeNumber, offset: u64, length: usize) {
    let count = volume.write(inode, offset, &vec![7; length]).expect("room");
    assert_eq!(count, length);
}

/// The owners that debugfs lists in the file of this kind, with their bytes and inodes.
pub(crate) fn listed(image: &Image, kind: &str) -> BTreeMap<u32, (u64, u64)> {
    let told = image.debugfs(&format!("list_quota {kind}"));
    let numbers = |line: &str| -> Vec<u64> {
        let words = line.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    told.lines()
        .filter_map(|line| match numbers(line)[..] {
            [id, space, _, _, inodes, ..] => Some((u32::try_from(id).ok()?, (space, inodes))),
            _ => None,
        })
        .collect()
}

/// Sets an attribute; a value that does not fit into a block gets an inode if it can.
pub(crate) fn set_long_attribute(volume: &Volume, inode: InodeNumber, length: usize) {
    let any = SetXattrMode::Any;
    let set = volume.set_xattr(inode, b"user.long", &vec![b'v'; length], any);
    if let Err(error) = set {
        assert!(error.is(Refusal::AttributesFull), "{error}");
    }
}

/// Changes of every kind that an owner pays for, by several owners.
pub(crate) fn change_everything(volume: &Volume) {
    let top = volume
        .make_directory(ROOT, b"top", &owned_by(1000, 100))
        .expect("room")
        .inode;
    for number in 0..60_u32 {
        let new = owned_by(1000 + number % 7, 100 + number % 3);
        let name = |kind: &str| format!("{kind}-of-a-long-name-{number:040}").into_bytes();
        let file = volume.create(top, &name("file"), &new).expect("room").inode;
        write(volume, file, u64::from(number) * 1000, 30_000);
        let link = vec![b'x'; number as usize * 4 + 1];
        let _ = volume
            .make_symlink(top, &name("link"), &link, &new)
            .expect("room");
        let directory = volume
            .make_directory(top, &name("directory"), &new)
            .expect("room");
        create(volume, directory.inode, b"inside", &new);
        match number % 6 {
            0 => volume.unlink(top, &name("file")).expect("it is there"),
            1 => set_size(volume, file, 5000),
            2 => chown(volume, file, Some(2000 + number), None),
            3 => chown(volume, directory.inode, Some(0), Some(50_000 + number)),
            4 => {
                set_long_attribute(volume, file, 900);
                if number % 4 == 0 {
                    volume.remove_xattr(file, b"user.long").expect("set");
                }
            }
            _ => {
                volume
                    .unlink(directory.inode, b"inside")
                    .expect("it is there");
                volume
                    .remove_directory(top, &name("directory"))
                    .expect("it is empty");
            }
        }
    }
    for name in [&b"first"[..], b"second", b"third"] {
        let file = volume.create(top, name, &owned_by(90, 90)).expect("room");
        // All have the same value, for which each owner pays.
        set_long_attribute(volume, file.inode, 9000);
        match name {
            b"first" => chown(volume, file.inode, Some(91), None),
            b"second" => volume.unlink(top, name).expect("it is there"),
            _ => set_long_attribute(volume, file.inode, 20),
        }
    }
    let held = volume
        .create(top, b"held", &owned_by(77, 77))
        .expect("room")
        .inode;
    write(volume, held, 0, 100_000);
    volume.unlink(top, b"held").expect("it is there");
    let unnamed = volume
        .create_unnamed(top, &owned_by(78, 78))
        .expect("room")
        .inode;
    write(volume, unnamed, 0, 9000);
    let white = Whiteout {
        owner: owned_by(79, 79),
        access_list: None,
    };
    let replace = RenameMode::Replace;
    let (old, new) = (&b"old"[..], &b"new"[..]);
    for name in [old, new] {
        let file = volume
            .create(top, name, &owned_by(80, 80))
            .expect("room")
            .inode;
        write(volume, file, 0, 20_000);
        volume.forget(file, 1);
    }
    volume
        .rename_leaving_whiteout(top, old, top, new, replace, &white)
        .expect("room");
}
