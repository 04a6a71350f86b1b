//! Projects: who inherits one, what may enter a directory that passes its own on, and that nothing
//! else changes the number.

use pext4_fs::{
    CreateAttributes, DeviceNumber, Entry, FileType, InodeNumber, Refusal, RenameMode, Result,
    SetAttributes, SetXattrMode, Volume, Whiteout,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;
const PASSES_ON: u32 = InodeFlags::PROJINHERIT.bits();
const IMMUTABLE: u32 = InodeFlags::IMMUTABLE.bits();
const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o644,
    uid: 0,
    gid: 0,
};

fn set(volume: &Volume, inode: InodeNumber, change: &SetAttributes) -> Result<()> {
    volume.set_attributes(inode, change).map(|_| ())
}

fn set_project(volume: &Volume, inode: InodeNumber, project: u32) -> Result<()> {
    let change = SetAttributes {
        project: Some(project),
        ..SetAttributes::default()
    };
    set(volume, inode, &change)
}

fn project(volume: &Volume, inode: InodeNumber) -> u32 {
    volume.attributes(inode).expect("it is there").project
}

fn passes_on(volume: &Volume, inode: InodeNumber) -> bool {
    let flags = volume.attributes(inode).expect("it is there").flags;
    flags & PASSES_ON != 0
}

/// A directory of this project, in the root, that passes it on.
fn tree(volume: &Volume, name: &[u8], project: u32) -> InodeNumber {
    let made = volume.make_directory(ROOT, name, &NEW).expect("room");
    let flags = made.attributes.flags | PASSES_ON;
    let change = SetAttributes {
        flags: Some(flags),
        project: Some(project),
        ..SetAttributes::default()
    };
    set(volume, made.inode, &change).expect("it may have one");
    made.inode
}

fn assert_refused<R: std::fmt::Debug>(result: Result<R>, refusal: Refusal, what: &str) {
    match result {
        Err(error) => assert!(error.is(refusal), "{what}: {error}"),
        Ok(_) => panic!("{what}: it was not refused"),
    }
}

/// One inode of each kind in this directory.
fn make_all(volume: &Volume, directory: InodeNumber) -> Vec<InodeNumber> {
    let node =
        |name: &[u8], kind| volume.make_node(directory, name, &NEW, kind, DeviceNumber::default());
    let long = [b'x'; 100];
    let made: [Result<Entry>; 7] = [
        volume.create(directory, b"file", &NEW),
        volume.make_directory(directory, b"directory", &NEW),
        volume.make_symlink(directory, b"short", b"target", &NEW),
        volume.make_symlink(directory, b"long", &long, &NEW),
        node(b"fifo", FileType::Fifo),
        node(b"device", FileType::CharacterDevice),
        volume.create_unnamed(directory, &NEW),
    ];
    made.map(|made| made.expect("room").inode).to_vec()
}

#[test]
fn what_is_made_in_a_tree_gets_its_project() {
    for arguments in [&["-O", "project"][..], &["-O", "project,inline_data"]] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        assert!(!volume.is_read_only(), "{:?}", volume.notes());
        let tree = tree(&volume, b"tree", 7);
        let alone = volume.make_directory(ROOT, b"alone", &NEW).expect("room");
        set_project(&volume, alone.inode, 9).expect("it may have one");
        for (directory, inherited) in [(tree, 7), (alone.inode, 0), (ROOT, 0)] {
            for made in make_all(&volume, directory) {
                assert_eq!(project(&volume, made), inherited, "{made} in {directory}");
            }
        }
        let below = inode(&volume, "/tree/directory");
        assert!(passes_on(&volume, below), "and so on, down the tree");
        assert!(!passes_on(&volume, inode(&volume, "/tree/file")));
        let deep = volume.create(below, b"deep", &NEW).expect("room").inode;
        assert_eq!(project(&volume, deep), 7);
        volume.close().expect("it closes");
        image.assert_clean();
        for (path, on_disk) in [
            ("/tree/directory/deep", 7),
            ("/alone", 9),
            ("/alone/file", 0),
        ] {
            let told = image.debugfs(&format!("stat {path}"));
            let expected = format!("Project:     {on_disk} ");
            assert!(told.contains(&expected), "{path}: {told}");
        }
    }
}

#[test]
fn nothing_of_another_project_enters_a_tree() {
    let Some(image) = Image::make(&["-O", "project"]) else {
        return;
    };
    let volume = image.open();
    let (seven, eight) = (tree(&volume, b"seven", 7), tree(&volume, b"eight", 8));
    let _ = (
        make_all(&volume, seven),
        make_all(&volume, eight),
        make_all(&volume, ROOT),
    );
    let file = |directory: InodeNumber| volume.lookup(directory, b"file").expect("made").inode;
    let rename = |from, name: &[u8], to, new: &[u8], mode| volume.rename(from, name, to, new, mode);
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    let other = Refusal::OtherProject;
    for (from, to) in [(seven, eight), (eight, seven), (ROOT, seven)] {
        let what = format!("{from} to {to}");
        assert_refused(volume.link(file(from), to, b"new"), other, &what);
        for name in [&b"file"[..], b"directory", b"short", b"fifo"] {
            assert_refused(rename(from, name, to, b"new", replace), other, &what);
            assert_refused(rename(from, name, to, name, replace), other, &what);
            assert_refused(rename(from, name, to, name, exchange), other, &what);
            assert_refused(rename(to, name, from, name, exchange), other, &what);
        }
        let white = Whiteout::default();
        let white = volume.rename_leaving_whiteout(from, b"file", to, b"new", replace, &white);
        assert_refused(white, other, &what);
        let unnamed = volume.create_unnamed(from, &NEW).expect("room").inode;
        assert_refused(volume.link(unnamed, to, b"new"), other, &what);
    }
    // Outside, everything may be; and inside, what has the tree's project.
    let _ = volume
        .link(file(seven), ROOT, b"linked")
        .expect("out of the tree");
    rename(eight, b"directory", ROOT, b"moved", replace).expect("out of the tree");
    let below = inode(&volume, "/seven/directory");
    rename(seven, b"file", below, b"file", replace).expect("inside the tree");
    let _ = volume
        .link(file(below), seven, b"file")
        .expect("inside the tree");
    let unnamed = volume.create_unnamed(seven, &NEW).expect("room").inode;
    let _ = volume
        .link(unnamed, seven, b"named")
        .expect("inside the tree");
    rename(ROOT, b"linked", seven, b"linked", replace).expect("it has the same project");
    // A project that was changed inside the tree.
    let stranger = inode(&volume, "/seven/short");
    set_project(&volume, stranger, 3).expect("it may");
    assert_refused(
        rename(seven, b"short", seven, b"x", replace),
        other,
        "renamed",
    );
    assert_refused(
        rename(seven, b"short", seven, b"fifo", exchange),
        other,
        "exchanged",
    );
    assert_refused(
        rename(seven, b"fifo", seven, b"short", exchange),
        other,
        "exchanged",
    );
    rename(seven, b"fifo", seven, b"short", replace).expect("the other one goes");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_project_stays_through_every_other_change() {
    let Some(image) = Image::make(&["-O", "project"]) else {
        return;
    };
    let volume = image.open();
    assert!(!volume.is_read_only(), "{:?}", volume.notes());
    let file = volume.create(ROOT, b"file", &NEW).expect("room").inode;
    set_project(&volume, file, 70_000).expect("it may");
    let count = volume.write(file, 0, &[7; 50_000]).expect("room");
    assert_eq!(count, 50_000);
    for change in [
        SetAttributes {
            permissions: Some(0o600),
            uid: Some(1000),
            ..SetAttributes::default()
        },
        SetAttributes {
            size: Some(3),
            ..SetAttributes::default()
        },
        SetAttributes {
            flags: Some(volume.attributes(file).expect("there").flags | 0x40),
            ..SetAttributes::default()
        },
    ] {
        set(&volume, file, &change).expect("it may");
    }
    volume
        .set_xattr(file, b"user.name", b"value", SetXattrMode::Any)
        .expect("room");
    volume
        .rename(ROOT, b"file", ROOT, b"moved", RenameMode::Replace)
        .expect("it may");
    volume.close().expect("it closes");
    image.assert_clean();
    let volume = image.open();
    assert_eq!(project(&volume, file), 70_000);
    volume.paths().write("/moved", b"again").expect("room");
    volume.close().expect("it closes");
    assert!(image.debugfs("stat moved").contains("Project: 70000 "));
    image.assert_clean();
}

#[test]
fn a_project_needs_a_place_and_the_right_to_change() {
    let Some(image) = Image::make(&["-O", "project,^metadata_csum"]) else {
        return;
    };
    for request in [
        "write /dev/null old",
        "sif old extra_isize 28",
        "sif old projid 5",
        "write /dev/null full",
        "sif full extra_isize 28",
        &format!("ea_set full user.a {}", "v".repeat(72)),
    ] {
        image.debugfs_write(request);
    }
    let volume = image.open();
    let full = inode(&volume, "/full");
    assert_refused(
        set_project(&volume, full, 5),
        Refusal::NotSupported,
        "its attribute is where the field would be",
    );
    set_project(&volume, full, 0).expect("as it is");
    let old = inode(&volume, "/old");
    assert_eq!(project(&volume, old), 0, "it has no such field");
    set_project(&volume, old, 5).expect("there is room for one");
    assert_eq!(project(&volume, old), 5);
    let file = volume.create(ROOT, b"file", &NEW).expect("room");
    let no_project = set_project(&volume, file.inode, u32::MAX);
    assert_refused(no_project, Refusal::Invalid, "that is no project");
    let flags = |flags, project| SetAttributes {
        flags: Some(file.attributes.flags | flags),
        project: Some(project),
        ..SetAttributes::default()
    };
    let change = |change| set(&volume, file.inode, &change);
    change(flags(IMMUTABLE, 5)).expect("both at once");
    assert_eq!(project(&volume, file.inode), 5);
    let refused = set_project(&volume, file.inode, 6);
    assert_refused(refused, Refusal::NotPermitted, "immutable");
    assert_refused(
        change(flags(IMMUTABLE, 6)),
        Refusal::NotPermitted,
        "stays so",
    );
    change(flags(IMMUTABLE, 5)).expect("as it is");
    change(flags(0, 6)).expect("both at once");
    assert_eq!(project(&volume, file.inode), 6);
    volume.close().expect("it closes");
    image.assert_clean();
    assert_eq!(project(&image.open(), old), 5, "it is stored");
}

/// The flag may have been set before, and the bytes may hold anything.
#[test]
fn without_the_feature_there_are_no_projects() {
    let Some(image) = Image::make(&["-O", "^metadata_csum"]) else {
        return;
    };
    for request in [
        "mkdir tree",
        "sif tree projid 7",
        "sif tree flags 0x20080000",
        "write /dev/null file",
    ] {
        image.debugfs_write(request);
    }
    let volume = image.open();
    let (tree, file) = (inode(&volume, "/tree"), inode(&volume, "/file"));
    assert_eq!(project(&volume, tree), 0);
    let _ = volume.link(file, tree, b"file").expect("all have the same");
    let made = volume.create(tree, b"new", &NEW).expect("room");
    assert_eq!(made.attributes.project, 0);
    assert_refused(
        set_project(&volume, file, 7),
        Refusal::NotSupported,
        "no feature",
    );
    volume.close().expect("it closes");
    image.assert_clean();
}
