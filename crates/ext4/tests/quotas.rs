//! Quotas: that the quota files count what users, groups and projects have, as e2fsck counts it,
//! after every kind of change, after crashes, from many threads, and where owners are new.

mod images;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use images::{Image, inode};
use pext4_block::{Device, RamDevice};
use pext4_fs::{
    CreateAttributes, InodeNumber, MountOptions, Refusal, RenameMode, SetAttributes, SetXattrMode,
    Volume, Whiteout,
};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::quota::{Entry, Header, LeafHeader, Owner, encode_file};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn owned_by(uid: u32, gid: u32) -> CreateAttributes {
    CreateAttributes {
        permissions: 0o755,
        uid,
        gid,
    }
}

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

/// A new file, which the caller does not hold.
fn create(volume: &Volume, directory: InodeNumber, name: &[u8], new: &CreateAttributes) {
    let made = volume.create(directory, name, new).expect("room");
    volume.forget(made.inode, 1);
}

fn chown(volume: &Volume, inode: InodeNumber, uid: Option<u32>, gid: Option<u32>) {
    let change = SetAttributes {
        uid,
        gid,
        ..SetAttributes::default()
    };
    volume
        .set_attributes(inode, &change)
        .expect("room for owners");
}

fn set_size(volume: &Volume, inode: InodeNumber, size: u64) {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).expect("room");
}

fn write(volume: &Volume, inode: InodeNumber, offset: u64, length: usize) {
    let count = volume.write(inode, offset, &vec![7; length]).expect("room");
    assert_eq!(count, length);
}

/// The owners that debugfs lists in the file of this kind, with their bytes and inodes.
fn listed(image: &Image, kind: &str) -> BTreeMap<u32, (u64, u64)> {
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
fn set_long_attribute(volume: &Volume, inode: InodeNumber, length: usize) {
    let any = SetXattrMode::Any;
    let set = volume.set_xattr(inode, b"user.long", &vec![b'v'; length], any);
    if let Err(error) = set {
        assert!(error.is(Refusal::AttributesFull), "{error}");
    }
}

/// Changes of every kind that an owner pays for, by several owners.
fn change_everything(volume: &Volume) {
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

/// Puts another content of the same length into a quota file of an image with blocks of 1 KiB.
fn rewrite(image: &Image, inode: u32, file: &[u8]) {
    let told = image.debugfs(&format!("blocks <{inode}>"));
    let blocks = told
        .split_whitespace()
        .filter_map(|word| word.parse::<usize>().ok());
    image.change(|bytes| {
        for (block, part) in blocks.zip(file.chunks(1024)) {
            bytes[block * 1024..][..1024].copy_from_slice(part);
        }
    });
    image.assert_clean();
}

/// A value outlives the owners that it was made for, whose entries Linux then removes.
#[test]
fn a_value_ends_without_the_owners_that_it_was_made_for() {
    let Some(image) = Image::make(&["-O", "quota,ea_inode", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    for number in 0..100 {
        let name = format!("{number}");
        let file = volume.create(ROOT, name.as_bytes(), &owned_by(7, 7));
        let file = file.expect("room").inode;
        set_long_attribute(&volume, file, 9000 + number);
        chown(&volume, file, Some(0), Some(0));
    }
    volume.close().expect("it closes");
    for (inode, owner) in [(3, Owner::User), (4, Owner::Group)] {
        let (space, inodes) = listed(&image, owner.name())[&0];
        let entry = Entry {
            id: 0,
            space,
            inodes,
        };
        rewrite(&image, inode, &encode_file(owner, &[entry]));
    }
    let volume = image.open_with(MountOptions {
        commit_interval: Duration::from_millis(1),
        ..MountOptions::default()
    });
    for number in 0..100 {
        let path = format!("/{number}");
        let file = inode(&volume, &path);
        volume.remove_xattr(file, b"user.long").expect("it was set");
    }
    volume.close().expect("it closes");
    image.assert_clean();
}

/// The inode of a value has the user and the group of the file, and mostly project 0, which has no
/// entry if nothing is of that project: Linux removes entries without usage.
#[test]
fn the_inode_of_a_value_may_have_a_project_without_an_entry() {
    let Some(image) = Image::make(&["-O", "quota,project,ea_inode", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let change = SetAttributes {
        flags: Some(InodeFlags::PROJINHERIT.bits()),
        project: Some(5),
        ..SetAttributes::default()
    };
    for inode in [inode(&volume, "/lost+found"), ROOT] {
        volume.set_attributes(inode, &change).expect("it may");
    }
    volume.close().expect("it closes");
    image.assert_clean();
    let (space, inodes) = listed(&image, "project")[&5];
    let entry = Entry {
        id: 5,
        space,
        inodes,
    };
    let file = encode_file(Owner::Project, &[entry]);
    rewrite(&image, 12, &file);
    assert!(!listed(&image, "project").contains_key(&0));
    // Commits everywhere: also between the making of the inode and its becoming a value.
    let volume = image.open_with(MountOptions {
        commit_interval: Duration::from_millis(1),
        ..MountOptions::default()
    });
    let file = volume.create(ROOT, b"file", &owned_by(0, 0));
    let file = file.expect("room").inode;
    for length in 9000..9200 {
        set_long_attribute(&volume, file, length);
    }
    volume.close().expect("it closes");
    image.assert_clean();
}

/// Owners whose numbers share no byte need nodes of their own, and those that differ in the last
/// byte a leaf of fourteen.
#[test]
fn any_number_of_owners_gets_entries() {
    for arguments in [
        &["-O", "quota", "-b", "1024"][..],
        &["-O", "quota", "-b", "4096"],
    ] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let spread = |number: u32| number.wrapping_mul(0x9E37_79B9);
        let owners: Vec<u32> = (0..300).map(spread).chain(70_000..70_300).collect();
        let volume = image.open();
        for (number, &owner) in owners.iter().enumerate() {
            let name = format!("{number}");
            let new = owned_by(owner, owner.reverse_bits());
            create(&volume, ROOT, name.as_bytes(), &new);
        }
        volume.close().expect("it closes");
        image.assert_clean();
        let users = listed(&image, "user");
        let missing: Vec<_> = owners
            .iter()
            .filter(|&id| !users.contains_key(id))
            .collect();
        assert_eq!(missing, [&0; 0], "{arguments:?}");
        // Found by the tree, not by a look at all leaves.
        for owner in [owners[1], owners[299], 70_299, u32::MAX - 1] {
            let told = image.debugfs(&format!("get_quota user {owner}"));
            let is_there = users.contains_key(&owner);
            let found = told.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&owner.to_string()) && line.contains(" 1 ")
            });
            assert_eq!(found, is_there, "{arguments:?}: {told}");
        }
        let volume = image.open();
        volume.unlink(ROOT, b"5").expect("it is there");
        chown(&volume, inode(&volume, "/6"), Some(70_001), Some(123_456));
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

/// What lies in a quota file's last block behind its end is no part of a new block.
#[test]
fn new_blocks_are_empty_whatever_was_there() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "4096"]) else {
        return;
    };
    image.debugfs_write("zap_block -f <3> -o 2048 -l 2048 -p 0x55 1");
    let volume = image.open();
    for owner in 1..100 {
        let name = format!("{owner}");
        let new = owned_by(owner * 0x0101_0101, 0);
        create(&volume, ROOT, name.as_bytes(), &new);
    }
    volume.close().expect("it closes");
    image.assert_clean();
    assert_eq!(listed(&image, "user").len(), 100);
}

/// The list begins with a leaf that has an empty place, or is empty; a leaf that is full is not on
/// it.
#[test]
fn the_list_of_leaves_with_empty_places_is_kept() {
    for owners in 1..=30_u32 {
        let Some(image) = Image::make(&["-O", "quota", "-b", "4096"]) else {
            return;
        };
        let volume = image.open();
        for owner in 1..=owners {
            create(
                &volume,
                ROOT,
                format!("{owner}").as_bytes(),
                &owned_by(owner, 0),
            );
        }
        volume.close().expect("it closes");
        let dump = image.path.with_file_name("users");
        image.debugfs(&format!("dump <3> {}", dump.display()));
        let file = std::fs::read(dump).expect("debugfs wrote it");
        let size = file.len() as u64;
        let header = Header::decode(&file, Owner::User, size).expect("it is sound");
        let block = |number: u32| &file[number as usize * 1024..][..1024];
        // Owner 0 has an entry from the beginning.
        let is_full = (owners + 1) % 14 == 0;
        assert_eq!(header.free_leaf == 0, is_full, "{owners}: {header:?}");
        if header.free_leaf != 0 {
            let first = LeafHeader::decode(block(header.free_leaf));
            let expected = LeafHeader {
                entries: u16::try_from((owners + 1) % 14).expect("a small number"),
                ..LeafHeader::default()
            };
            assert_eq!(first, expected, "{owners}");
        }
    }
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

/// A new owner whose entry finds no room: the operation fails, and nothing of it is left.
#[test]
fn on_a_full_volume_no_new_owner_gets_files() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let file = volume
        .create(ROOT, b"all", &owned_by(0, 0))
        .expect("room")
        .inode;
    let mut size = 0;
    for length in [1 << 20, 1 << 14, 1 << 10] {
        while let Ok(count) = volume.write(file, size, &vec![1; length]) {
            size += count as u64;
            if count < length {
                break;
            }
        }
    }
    let mut made = 0_u32;
    let refused = loop {
        let owner = made.wrapping_mul(0x0101_0101) + 1;
        let name = format!("f{made}");
        match volume.create(ROOT, name.as_bytes(), &owned_by(owner, owner)) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 10_000, "there must be an end");
    };
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    // Owners that have entries get files.
    create(&volume, ROOT, b"known", &owned_by(0, 0));
    let change = SetAttributes {
        uid: Some(0xFFFF_0000),
        ..SetAttributes::default()
    };
    let refused = volume
        .set_attributes(file, &change)
        .expect_err("no room for an entry");
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    // Block by block there is more room: at first too little for the blocks of an entry.
    let mut tries = 0;
    loop {
        size -= 1024;
        set_size(&volume, file, size);
        let new = owned_by(0xFEDC_BA98, 0);
        match volume.create(ROOT, b"last", &new) {
            Ok(_) => break,
            Err(error) => assert!(error.is(Refusal::NoSpace), "{error}"),
        }
        tries += 1;
        assert!(tries < 50, "there is room");
    }
    assert!(tries > 1, "an entry takes several blocks");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// Usage could not be kept right in a quota file that is none: reading goes on.
#[test]
fn a_quota_file_that_cannot_be_true_prevents_writing() {
    for (request, problem) in [
        ("set_inode_field <3> size 5120", "6 blocks in 5120 bytes"),
        ("set_inode_field <4> links_count 0", "is no regular file"),
        ("zap_block -f <3> -p 0x55 0", "magic is 0x55555555"),
        (
            "zap_block -f <4> -o 1024 -l 4 -p 0x11 0",
            "leads to its block 286331153 of 6",
        ),
        (
            "zap_block -f <4> -o 2048 -l 1 -p 1 0",
            "block 1 has two parents",
        ),
        (
            "zap_block -f <3> -o 0 -l 1 -p 2 1",
            "block 2 is a node and a leaf",
        ),
        (
            "zap_block -f <3> -o 1176 -l 1 -p 1 1",
            "two entries for number 0",
        ),
        ("set_inode_field <3> block[1] 1", "own structures"),
    ] {
        let arguments = ["-O", "quota,^metadata_csum,^extent,^64bit", "-b", "4096"];
        let Some(image) = Image::make(&arguments) else {
            return;
        };
        image.debugfs_write(request);
        let device = || Arc::new(RamDevice::load(&image.path).expect("the image"));
        let refused = Volume::open(device(), MountOptions::default());
        let text = refused.expect_err("usage cannot be counted").to_string();
        assert!(
            text.contains(problem) && text.contains("-o ro"),
            "{request}: {text}"
        );
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let volume = Volume::open(device(), options).expect("reading needs no quota");
        assert!(volume.lookup(ROOT, b"lost+found").is_ok());
    }
}

/// Random bytes in quota files: a mount refuses them or works with them; nothing panics.
#[test]
fn random_quota_files_are_refused_or_used() {
    let Some(image) = Image::make(&["-O", "quota,project,^metadata_csum", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    change_everything(&volume);
    volume.close().expect("it closes");
    let blocks: Vec<usize> = [3, 4]
        .into_iter()
        .flat_map(|file| {
            let told = image.debugfs(&format!("blocks <{file}>"));
            let words: Vec<_> = told.split_whitespace().map(str::to_owned).collect();
            words.into_iter().filter_map(|word| word.parse().ok())
        })
        .collect();
    assert!(blocks.len() > 12, "{blocks:?}");
    let bytes = std::fs::read(&image.path).expect("the image");
    let (mut refused, mut used) = (0, 0);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let start = blocks[random.usize(..blocks.len())] * 1024;
            let at = start + random.usize(..256) * 4;
            let most = if random.bool() { 20 } else { u32::MAX };
            let word = random.u32(..most);
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let device = Arc::new(RamDevice::new(bytes.len() as u64));
        device.write_at(0, &bytes).expect("memory");
        let Ok(volume) = Volume::open(device, MountOptions::default()) else {
            refused += 1;
            continue;
        };
        used += 1;
        for owner in 0..40 {
            let name = format!("new-{owner}");
            // It may fail, and by damage end all writing.
            let _ = volume.create(ROOT, name.as_bytes(), &owned_by(owner * 999, owner));
        }
        let _ = volume.paths().remove_dir_all("/top");
        let _ = volume.close();
    }
    assert!(refused > 3 && used > 3, "{refused} refused, {used} used");
}
