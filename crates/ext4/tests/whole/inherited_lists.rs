//! Access control lists of new inodes whose values have inodes of their own (`ea_inode`).

use std::collections::BTreeSet;
use std::sync::Arc;

use pext4_block::{Event, RamDevice, RecordDevice};
use pext4_fs::{
    Acls, AllocateMode, CreateAttributes, DeviceNumber, FileType, InodeNumber, MountOptions,
    Refusal, RenameMode, Volume, Whiteout,
};
use pext4_ondisk::acl::{self, Entry};

use crate::images::{self, Image};

const ROOT: InodeNumber = InodeNumber::ROOT;
const OWNER: CreateAttributes = CreateAttributes {
    permissions: 0o755,
    uid: 7,
    gid: 8,
};

/// Lists with so many named users: one that a file inherits, and a default list that differs.
fn lists_of(users: u32) -> [Vec<u8>; 2] {
    [5, 7].map(|permissions| {
        let entry = |tag, id| Entry {
            tag,
            permissions,
            id,
        };
        let named = (0..users).map(|user| entry(acl::USER, 1000 + user));
        let others = [acl::GROUP_OBJECT, acl::MASK, acl::OTHER].map(|tag| entry(tag, acl::NO_ID));
        let first = std::iter::once(entry(acl::USER_OBJECT, acl::NO_ID));
        acl::encode(&first.chain(named).chain(others).collect::<Vec<_>>())
    })
}

/// The lists that a new inode of this kind gets.
fn lists_for(kind: FileType, [access, default]: &[Vec<u8>; 2]) -> Acls<'_> {
    Acls {
        access: Some(access),
        default: (kind == FileType::Directory).then_some(default),
    }
}

fn make(
    volume: &Volume,
    parent: InodeNumber,
    name: &str,
    kind: FileType,
    lists: &[Vec<u8>; 2],
) -> Result<InodeNumber, pext4_fs::Error> {
    let acls = lists_for(kind, lists);
    let none = DeviceNumber::default();
    let made = volume.make_with_acls(parent, name.as_bytes(), &OWNER, kind, none, &acls)?;
    volume.forget(made.inode, 1);
    Ok(made.inode)
}

fn assert_has_lists(volume: &Volume, inode: InodeNumber, kind: FileType, lists: &[Vec<u8>; 2]) {
    let acls = lists_for(kind, lists);
    for (name, list) in [(acl::ACCESS, acls.access), (acl::DEFAULT, acls.default)] {
        assert_eq!(volume.xattr(inode, name).ok().as_deref(), list, "{inode}");
    }
}

fn free(volume: &Volume) -> (u64, u64) {
    volume.sync().expect("durable");
    let statistics = volume.statfs();
    (statistics.free_blocks, statistics.free_inodes)
}

/// More names than one block has, so that the directory has an index and names are added to leaves.
fn names() -> Vec<(String, FileType)> {
    let kinds = [FileType::Directory, FileType::Regular, FileType::Fifo];
    let kinds = kinds.into_iter().cycle();
    let numbers = (0..150).map(|number| format!("a-name-of-some-length-{number}"));
    numbers.zip(kinds).collect()
}

/// Where both lists have room in one block, where only one has, and where none has.
#[test]
fn new_inodes_get_lists_of_any_length() {
    for (block_size, users, values) in [
        ("4096", 200, 0),
        ("4096", 250, 1),
        ("4096", 600, 2),
        ("1024", 40, 0),
        ("1024", 60, 1),
        ("1024", 130, 2),
    ] {
        for features in ["ea_inode", "ea_inode,inline_data", "ea_inode,quota"] {
            let Some(image) = Image::make(&["-b", block_size, "-I", "256", "-O", features]) else {
                return;
            };
            let lists = lists_of(users);
            let volume = image.open();
            let before = free(&volume);
            let made = volume.make_directory(ROOT, b"parent", &OWNER);
            let parent = made.expect("room").inode;
            for (name, kind) in names() {
                let made = make(&volume, parent, &name, kind, &lists);
                let made = made.unwrap_or_else(|error| panic!("{users} users, {name}: {error}"));
                assert_has_lists(&volume, made, kind, &lists);
            }
            let used = before.1 - free(&volume).1;
            assert_eq!(
                used,
                1 + 150 + values,
                "{users} users: equal lists are shared"
            );
            volume.forget(parent, 1);
            volume.close().expect("it closes");
            image.assert_clean();

            let volume = image.open();
            let parent = images::inode(&volume, "/parent");
            for (name, kind) in names() {
                let found = volume.lookup(parent, name.as_bytes()).expect("it is there");
                assert_has_lists(&volume, found.inode, kind, &lists);
                volume.forget(found.inode, 1);
                let removed = match kind {
                    FileType::Directory => volume.remove_directory(parent, name.as_bytes()),
                    _ => volume.unlink(parent, name.as_bytes()),
                };
                removed.expect("it goes");
            }
            volume
                .remove_directory(ROOT, b"parent")
                .expect("it is empty");
            assert_eq!(free(&volume), before, "{users} users: nothing is left");
            volume.close().expect("it closes");
            image.assert_clean();
        }
    }
}

#[test]
fn whiteouts_get_lists_of_any_length() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "ea_inode"]) else {
        return;
    };
    let [list, _] = lists_of(130);
    let whiteout = Whiteout {
        owner: OWNER,
        access_list: Some(&list),
    };
    let volume = image.open();
    let before = free(&volume);
    let made = volume.create(ROOT, b"old", &OWNER).expect("room").inode;
    let leave = |from: &[u8], to: &[u8]| {
        let mode = RenameMode::Replace;
        volume.rename_leaving_whiteout(ROOT, from, ROOT, to, mode, &whiteout)
    };
    leave(b"old", b"new").expect("a move");
    let left = volume.lookup(ROOT, b"old").expect("a whiteout").inode;
    assert_eq!(volume.xattr(left, acl::ACCESS).expect("its list"), list);
    let refused = leave(b"absent", b"other").expect_err("nothing to move");
    assert!(refused.is(Refusal::NotFound), "{refused}");
    for (inode, name) in [(left, b"old"), (made, b"new")] {
        volume.forget(inode, 1);
        volume.unlink(ROOT, name).expect("it goes");
    }
    assert_eq!(free(&volume), before, "nothing is left");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_full_disk_leaves_neither_the_inode_nor_its_lists() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "ea_inode"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(ROOT, b"filler", &CreateAttributes::default());
    let filler = made.expect("room").inode;
    let mut end = 0;
    for step in [1 << 20, 1024] {
        let extend = |end| volume.allocate(filler, AllocateMode::Extend, end, step);
        while extend(end).is_ok() {
            end += step;
        }
    }
    let before = free(&volume);
    // One more block each time, from none to enough for the new directory and its lists.
    let mut refused = 0;
    loop {
        match make(
            &volume,
            ROOT,
            "directory",
            FileType::Directory,
            &lists_of(130),
        ) {
            Ok(made) => {
                assert_has_lists(&volume, made, FileType::Directory, &lists_of(130));
                break;
            }
            Err(error) => assert!(error.is(Refusal::NoSpace), "{error}"),
        }
        assert_eq!(free(&volume), (before.0 + refused, before.1));
        refused += 1;
        let change = pext4_fs::SetAttributes {
            size: Some(end - refused * 1024),
            ..pext4_fs::SetAttributes::default()
        };
        volume.set_attributes(filler, &change).expect("it shrinks");
    }
    assert!((3..20).contains(&refused), "{refused} times");
    volume.forget(filler, 1);
    volume.close().expect("it closes");
    image.assert_clean();
}

/// After a power cut at any write, what has a name has its lists.
#[test]
fn no_power_cut_shows_an_inode_without_its_lists() {
    for (block_size, users) in [("4096", 250), ("1024", 130)] {
        let Some(image) = Image::make(&["-b", block_size, "-O", "ea_inode"]) else {
            return;
        };
        let disk = RamDevice::load(&image.path).expect("the image");
        let events = events_of_making(&disk, users);
        let mut counts = BTreeSet::new();
        for (number, event) in events.iter().enumerate() {
            event.apply(&disk).expect("it is memory");
            if number % (events.len() / 30).max(1) != 0 {
                continue;
            }
            let after = Arc::new(disk.fork());
            let volume = Volume::open(Arc::<RamDevice>::clone(&after), MountOptions::default());
            let volume = volume.expect("a mount");
            counts.insert(count_directories(&volume, users));
            volume.close().expect("it closes");
            after.save(&image.path).expect("a temporary file");
            image.assert_clean();
        }
        assert!(counts.len() > 5, "commits between: {counts:?}");
    }
}

/// Makes directories, each with lists of its own, which are not shared.
fn events_of_making(disk: &RamDevice, users: u32) -> Vec<Event> {
    let device = Arc::new(RecordDevice::new(Arc::new(disk.fork())));
    let volume = Volume::open(Arc::<RecordDevice>::clone(&device), MountOptions::default());
    let volume = volume.expect("a mount");
    for number in 0..20 {
        let lists = lists_of(users + number);
        let name = number.to_string();
        make(&volume, ROOT, &name, FileType::Directory, &lists).expect("room");
        if number % 2 == 0 {
            volume.sync().expect("the device works");
        }
    }
    volume.close().expect("it closes");
    device.events()
}

/// How many of these directories exist, which all have their lists.
fn count_directories(volume: &Volume, users: u32) -> u32 {
    let exists = |number: &u32| match volume.lookup(ROOT, number.to_string().as_bytes()) {
        Ok(found) => {
            let lists = lists_of(users + number);
            assert_has_lists(volume, found.inode, FileType::Directory, &lists);
            volume.forget(found.inode, 1);
            true
        }
        Err(error) => {
            assert!(error.is(Refusal::NotFound), "{error}");
            false
        }
    };
    (0..20).filter(exists).count() as u32
}
