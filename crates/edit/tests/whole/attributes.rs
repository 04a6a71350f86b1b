//! Attributes of files: what a copy gets of them, and what is said when they do not fit.

use std::path::Path;

use pext4_edit::{Change, EditOptions, EditSession, Reader, change};
use pext4_fs::{SetAttributes, Volume};
use pext4_ondisk::inode::InodeFlags;
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};

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
