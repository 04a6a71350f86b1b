//! Usage after changes of every kind, from many threads, and after crashes.

use std::collections::BTreeMap;

use pext4_block::Device;
use pext4_fs::{MountOptions, OwnerKind, QuotaLimits, SetAttributes, Volume};
use pext4_ondisk::inode::InodeFlags;

use super::{ROOT, change_everything, chown, create, listed, owned_by, write};
use crate::images::{Image, inode};

/// Sets of features whose inodes have blocks, slots and a journal of different kinds.
const FORMATS: [&[&str]; 7] = [
    &["-O", "quota,project,ea_inode"],
    &["-O", "quota"],
    &["-O", "quota,project", "-b", "1024"],
    &["-O", "quota,project,inline_data"],
    &["-O", "quota,^has_journal"],
    &["-O", "quota,^extent,^64bit,^metadata_csum"],
    &[
        "-O",
        "quota,project,orphan_file,metadata_csum_seed",
        "-I",
        "512",
    ],
];

#[test]
fn usage_follows_every_change() {
    for arguments in FORMATS {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        assert!(!volume.is_read_only(), "{:?}", volume.notes());
        change_everything(&volume);
        volume.close().expect("it closes");
        image.assert_clean();
        let users = listed(&image, "user");
        assert_eq!(
            users.get(&79).map(|usage| usage.1),
            Some(1),
            "{arguments:?}"
        );
        assert_eq!(
            users.get(&77),
            Some(&(0, 0)),
            "{arguments:?}: its file is gone"
        );
        assert!(
            listed(&image, "group").contains_key(&50_003),
            "{arguments:?}"
        );
        // The same image again: what it has counted is what it goes on from.
        let volume = image.open();
        let top = inode(&volume, "/top");
        chown(&volume, top, Some(5), Some(6));
        chown(&volume, inode(&volume, "/top/first"), Some(92), None);
        volume.paths().remove_dir_all("/top").expect("it is there");
        volume.close().expect("it closes");
        image.assert_clean();
        let users = listed(&image, "user");
        assert!(users.contains_key(&92), "{arguments:?}: {users:?}");
        assert!(users.len() > 20, "{arguments:?}: {users:?}");
        let left = users
            .iter()
            .filter(|&(&id, usage)| id != 0 && *usage != (0, 0));
        assert_eq!(left.count(), 0, "{arguments:?}: {users:?}");
    }
}

/// The group is the directory's where it passes that on; `lost+found` is the first inode that is
/// not the file system's own.
#[test]
fn inherited_groups_and_the_first_inode_are_counted() {
    let Some(image) = Image::make(&["-O", "quota"]) else {
        return;
    };
    let volume = image.open();
    let lost = inode(&volume, "/lost+found");
    chown(&volume, lost, Some(11), None);
    let directory = volume.make_directory(ROOT, b"d", &owned_by(1, 4321));
    let directory = directory.expect("room").inode;
    let change = SetAttributes {
        permissions: Some(0o2775),
        ..SetAttributes::default()
    };
    volume.set_attributes(directory, &change).expect("it may");
    for (name, gid) in [(&b"a"[..], 8), (b"b", 9)] {
        create(&volume, directory, name, &owned_by(1, gid));
        create(&volume, ROOT, name, &owned_by(1, gid));
    }
    let change = SetAttributes {
        gid: Some(4322),
        ..SetAttributes::default()
    };
    volume.set_attributes(directory, &change).expect("it may");
    create(&volume, directory, b"c", &owned_by(1, 10));
    volume.close().expect("it closes");
    image.assert_clean();
    assert_eq!(
        listed(&image, "user").get(&11).map(|usage| usage.1),
        Some(1)
    );
    let groups = listed(&image, "group");
    let inodes = |gid| groups.get(&gid).map(|usage| usage.1);
    assert_eq!(
        [4321, 4322, 8, 9, 10].map(inodes),
        [Some(2), Some(2), Some(1), Some(1), None]
    );
}

#[test]
fn projects_are_counted_where_they_are_inherited_and_set() {
    let Some(image) = Image::make(&["-O", "quota,project", "-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    let tree = volume
        .make_directory(ROOT, b"tree", &owned_by(0, 0))
        .expect("room");
    let change = SetAttributes {
        flags: Some(tree.attributes.flags | InodeFlags::PROJINHERIT.bits()),
        project: Some(7),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(tree.inode, &change)
        .expect("it may have one");
    for name in [&b"a"[..], b"b", b"c"] {
        let file = volume
            .create(tree.inode, name, &owned_by(1, 1))
            .expect("room")
            .inode;
        write(&volume, file, 0, 8192);
    }
    let moved = SetAttributes {
        project: Some(70_000),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(inode(&volume, "/tree/a"), &moved)
        .expect("it may");
    volume.close().expect("it closes");
    image.assert_clean();
    let projects = listed(&image, "project");
    assert_eq!(projects.get(&7), Some(&(4096 + 2 * 8192, 3)));
    assert_eq!(projects.get(&70_000), Some(&(8192, 1)));
}

#[test]
fn many_threads_count_together() {
    let Some(image) = Image::make(&["-O", "quota,project"]) else {
        return;
    };
    let volume = image.open();
    std::thread::scope(|scope| {
        for thread in 0..6_u32 {
            let volume = &volume;
            scope.spawn(move || {
                let name = format!("d{thread}");
                let own = volume.make_directory(ROOT, name.as_bytes(), &owned_by(thread, 9));
                let own = own.expect("room").inode;
                for number in 0..200_u32 {
                    let name = format!("f{number}");
                    // Some owners are new to all threads at once.
                    let new = owned_by(500 + number / 10, thread % 2);
                    let file = volume
                        .create(own, name.as_bytes(), &new)
                        .expect("room")
                        .inode;
                    write(volume, file, 0, 6000);
                    volume.forget(file, 1);
                    if number % 3 == 0 {
                        volume.unlink(own, name.as_bytes()).expect("it is there");
                    }
                    if number % 50 == 0 {
                        volume.sync().expect("it commits");
                    }
                }
            });
        }
    });
    volume.close().expect("it closes");
    image.assert_clean();
    assert_eq!(listed(&image, "user").len(), 26);
}

/// What a replay leaves is of one transaction: usage and inodes.
#[test]
fn a_crash_leaves_usage_and_inodes_of_one_transaction() {
    for arguments in FORMATS {
        if arguments
            .iter()
            .any(|argument| argument.contains("^has_journal"))
        {
            continue;
        }
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let (device, volume) = image.load();
        change_everything(&volume);
        volume.sync().expect("it commits");
        for number in 0..50_u32 {
            let name = format!("late-{number}");
            let new = owned_by(9000 + number, number);
            let file = volume
                .create(ROOT, name.as_bytes(), &new)
                .expect("room")
                .inode;
            write(&volume, file, 0, 5000);
            if number == 25 {
                volume.sync().expect("it commits");
            }
        }
        let mut bytes = vec![0; usize::try_from(device.size()).expect("64 MiB")];
        device.read_at(0, &mut bytes).expect("memory");
        std::fs::write(&image.path, &bytes).expect("room for the copy");
        drop(volume);
        image.open().close().expect("it closes");
        image.assert_clean();
        let users = listed(&image, "user");
        assert!(users.contains_key(&9025), "{arguments:?}: it was synced");
        assert_eq!(
            users.get(&77),
            Some(&(0, 0)),
            "{arguments:?}: an orphan was reaped"
        );
    }
}

/// What a volume tells of its quota files is what debugfs reads from them, while it is written and
/// when it is only read.
#[test]
fn a_volume_tells_what_owners_use() {
    for features in ["quota,project", "quota", "^quota"] {
        let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
            return;
        };
        let volume = image.open();
        change_everything(&volume);
        volume.close().expect("it closes");
        let volume = image.open();
        let told = |volume: &Volume| {
            OwnerKind::ALL.map(|owner| volume.usage(owner).expect("the files are sound"))
        };
        let written = told(&volume);
        volume.close().expect("it closes");
        let kinds = ["user", "group", "project"];
        let counted = [
            features != "^quota",
            features != "^quota",
            features == "quota,project",
        ];
        for ((usage, kind), is_counted) in written.iter().zip(kinds).zip(counted) {
            assert_eq!(usage.is_some(), is_counted, "{features}, {kind}");
            let Some(usage) = usage else { continue };
            assert!(usage.is_sorted_by_key(|usage| usage.id));
            assert!(
                usage
                    .iter()
                    .all(|usage| usage.limits == QuotaLimits::default())
            );
            let all = usage
                .iter()
                .map(|usage| (usage.id, (usage.space, usage.inodes)));
            assert_eq!(
                all.collect::<BTreeMap<_, _>>(),
                listed(&image, kind),
                "{kind}"
            );
        }
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        assert_eq!(told(&image.open_with(options)), written, "{features}");
    }
}

/// A quota file that cannot be true is told as damage, by a volume that is only read.
#[test]
fn usage_of_a_damaged_file_is_refused() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "quota,^metadata_csum"]) else {
        return;
    };
    image.debugfs_write("zap_block -f <3> -p 0x55 0");
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = image.open_with(options);
    let refused = volume
        .usage(OwnerKind::User)
        .expect_err("the magic number is wrong");
    assert!(refused.to_string().contains("magic"), "{refused}");
    volume.usage(OwnerKind::Group).expect("this one is sound");
}
