//! Attributes of files: what a copy gets of them, and what is said when they do not fit.

use std::fs;
use std::path::Path;

use pext4_edit::{Change, EditOptions, EditSession, GetOptions, Reader, change};
use pext4_fs::{DeviceNumber, FileType, SetAttributes, Volume};
use pext4_ondisk::acl::{self, Entry};
use pext4_ondisk::inode::InodeFlags;
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::archives::{apply, fresh};
use crate::common::filled;

const BLOCK: u32 = 1024;

fn save(name: &Path) {
    let format = Format::new(16 << 20, BLOCK, Features::Upstream).inodes(2048);
    let device = filled(&format, &mut Random::new(1));
    device.save(name).expect("there is room");
}

fn flags(volume: &Volume, path: &str) -> InodeFlags {
    let found = volume.paths().attributes(path).expect("it is there");
    InodeFlags::from_bits_retain(found.flags) & InodeFlags::USER_MODIFIABLE & !InodeFlags::EXTENTS
}

fn add_flags(volume: &Volume, path: &str, flags: InodeFlags) {
    let held = volume.paths().resolve_link(path).expect("it is there");
    let present = volume.attributes(held.inode()).expect("it is there").flags;
    let change = SetAttributes {
        flags: Some(present | flags.bits()),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(held.inode(), &change)
        .expect("they suit it");
}

fn copy(image: Option<&Path>, from: &str, to: &str) -> Change {
    Change::CopyFile(change::CopyFile {
        image: image.map(Path::to_owned),
        image_offset: 0,
        from: from.into(),
        to: to.into(),
        no_target_directory: true,
        recursive: true,
    })
}

#[test]
fn a_copy_has_the_flags_that_users_set() {
    let folder = scratch();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    save(&first);
    save(&second);
    let of_file = InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::SYNC;
    let of_directory = InodeFlags::NOATIME | InodeFlags::DIRSYNC | InodeFlags::TOPDIR;
    let mut session = EditSession::open(&first, &EditOptions::default()).expect("it opens");
    let volume = session.volume();
    add_flags(volume, "usr", of_directory);
    add_flags(volume, "usr/share/file1", of_file);
    add_flags(volume, "usr/share/file2", InodeFlags::IMMUTABLE);
    add_flags(
        volume,
        "usr/share/file3",
        InodeFlags::APPEND | InodeFlags::NODUMP,
    );
    add_flags(volume, "link", InodeFlags::NODUMP);
    session.apply(&copy(None, "usr", "copy")).expect("room");
    session.apply(&copy(None, "link", "link2")).expect("room");
    session.finish().expect("room");
    let mut session = EditSession::open(&second, &EditOptions::default()).expect("it opens");
    session
        .apply(&copy(Some(&first), "usr", "copy"))
        .expect("room");
    session
        .apply(&copy(Some(&first), "link", "link2"))
        .expect("room");
    session.finish().expect("room");
    for image in [&first, &second] {
        e2fsck(image).expect("sound");
        let reader = Reader::open(image).expect("sound");
        let flags = |path| flags(reader.volume(), path);
        assert_eq!(flags("copy"), of_directory);
        assert_eq!(flags("copy/share/file1"), of_file);
        assert_eq!(flags("copy/share/file2"), InodeFlags::empty());
        assert_eq!(flags("copy/share/file3"), InodeFlags::NODUMP);
        assert_eq!(flags("copy/share/file4"), InodeFlags::empty());
        let held = reader
            .volume()
            .paths()
            .resolve_link("link2")
            .expect("there");
        let found = reader.volume().attributes(held.inode()).expect("there");
        assert!(found.flags & InodeFlags::NODUMP.bits() != 0);
    }
}

#[test]
fn attributes_without_room_say_what_limits_them() {
    let folder = scratch();
    let image = folder.path().join("image");
    save(&image);
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let set = Change::SetXattr(change::SetXattr {
        path: b"/./etc//passwd".to_vec(),
        name: b"user.large".to_vec(),
        value: vec![7; 2000],
    });
    let told = session.apply(&set).unwrap_err().to_string();
    let place = format!("{}:/etc/passwd", image.display());
    assert!(
        told.starts_with(&format!("{place}: no room for more extended")),
        "{told}"
    );
    assert!(
        told.ends_with("one block of the image, of 1024 bytes"),
        "{told}"
    );
}

/// The host's directory has a list for what is made in it, which lets in somebody whom the image
/// keeps out.
#[test]
fn a_copy_has_no_list_of_the_hosts_directory() {
    let folder = scratch();
    let image = folder.path().join("image");
    save(&image);
    let node = change::MakeNode {
        path: b"/pipe".to_vec(),
        kind: FileType::Fifo,
        device: DeviceNumber { major: 0, minor: 0 },
        permissions: Some(0o640),
    };
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("an image");
    session.apply(&Change::MakeNode(node)).expect("room");
    session.finish().expect("sound");
    let entry = |tag, id| Entry {
        tag,
        permissions: 7,
        id,
    };
    let list = acl::encode_call(&[
        entry(acl::USER_OBJECT, acl::NO_ID),
        entry(acl::USER, 65534),
        entry(acl::GROUP_OBJECT, acl::NO_ID),
        entry(acl::MASK, acl::NO_ID),
        entry(acl::OTHER, acl::NO_ID),
    ]);
    let host = folder.path().join("host");
    fs::create_dir(&host).expect("room");
    let default = std::str::from_utf8(acl::DEFAULT).expect("a name");
    let set = rustix::fs::setxattr(&host, default, &list, rustix::fs::XattrFlags::empty());
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        return eprintln!("SKIPPED: no access control lists in {}", host.display());
    }
    set.expect("the folder is ours");
    let access = std::str::from_utf8(acl::ACCESS).expect("a name");
    let lists_of = |path: &Path| {
        let has = |name| rustix::fs::getxattr(path, name, &mut [0; 200][..]).is_ok();
        (has(access), has(default))
    };
    let witness = host.join("witness");
    fs::write(&witness, "x").expect("room");
    assert_eq!(
        lists_of(&witness),
        (true, false),
        "the host's list is at work"
    );
    let (reader, options) = (
        Reader::open(&image).expect("an image"),
        GetOptions::default(),
    );
    for path in ["/etc", "/etc/passwd", "/pipe"] {
        let got = host.join(path.rsplit('/').next().expect("a name"));
        reader.get(path, &got, &options).expect("there is room");
        assert_eq!(lists_of(&got), (false, false), "{path}");
    }
    assert_eq!(lists_of(&host.join("etc/passwd")), (false, false));
}

/// Linux reads none there, and takes none from an archive or a copy.
#[test]
fn users_attributes_of_a_link_are_not_copied() {
    let folder = scratch();
    let image = folder.path().join("image");
    save(&image);
    let set = ["ea_set /link user.a value", "ea_set /link security.b value"];
    debugfs::command(&image, &set.map(str::to_owned)).expect("debugfs is there");
    let reader = Reader::open(&image).expect("an image");
    let mut archive = Vec::new();
    reader.export("/", &mut archive).expect("sound");
    let holds = |text: &[u8]| archive.windows(text.len()).any(|window| window == text);
    assert!(holds(b"security.b") && !holds(b"user.a="));
    let other = fresh(folder.path(), "other");
    apply(&other, &archive).expect("it is our own");
    let copy = Change::CopyFile(change::CopyFile {
        image: Some(image.clone()),
        image_offset: 0,
        from: b"/link".to_vec(),
        to: b"/copy".to_vec(),
        no_target_directory: false,
        recursive: true,
    });
    let mut session = EditSession::open(&other, &EditOptions::default()).expect("it opens");
    session.apply(&copy).expect("its other attribute is copied");
    session.finish().expect("sound");
}
