//! Paths that end in a symbolic link or in a slash.

use std::path::{Path, PathBuf};

use pext4_edit::{Change, EditOptions, EditSession, IntoDirectory, Overrides, Reader, change};
use pext4_fs::{DeviceNumber, FileType, Time};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::filled;

/// Applies one change to a fresh image. Returns the image and the result.
fn tried(folder: &Path, change: &Change) -> (PathBuf, Result<(), String>) {
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
    let image = folder.join("image");
    let filled = filled(&format, &mut Random::new(3));
    filled.save(&image).expect("there is room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let link = |target: &str, path: &str| {
        Change::Symlink(change::Symlink {
            into: IntoDirectory::Always,
            target: target.as_bytes().to_vec(),
            path: path.as_bytes().to_vec(),
            force: false,
        })
    };
    for (target, path) in [
        ("absent", "/etc/near"),
        ("/usr/absent", "/far"),
        ("nowhere/absent", "/lost"),
        ("circle", "/circle"),
        ("/etc/near", "/twice"),
        ("usr", "/tree"),
    ] {
        session.apply(&link(target, path)).expect("room");
    }
    let told = session.apply(change).map_err(|error| error.to_string());
    if told.is_ok() {
        session.finish().expect("room");
        e2fsck(&image).expect("sound");
    }
    (image, told)
}

#[test]
fn touch_makes_what_a_link_leads_to() {
    let touch = |path: &str| {
        Change::Touch(change::Touch {
            path: path.as_bytes().to_vec(),
            time: Some(Time {
                seconds: 99,
                nanoseconds: 0,
            }),
            no_create: false,
        })
    };
    for (path, made) in [
        ("/etc/near", "/etc/absent"),
        ("/far", "/usr/absent"),
        ("twice", "/etc/absent"),
        ("tree/new", "/usr/new"),
    ] {
        let folder = scratch();
        let (image, told) = tried(folder.path(), &touch(path));
        told.expect(path);
        let reader = Reader::open(&image).expect("sound");
        let there = reader.volume().paths().link_attributes(made);
        let there = there.expect(path);
        assert_eq!(there.file_type, FileType::Regular, "{path}");
        assert_eq!(there.modified.seconds, 99, "{path}");
        let link = reader.volume().paths().link_attributes("/etc/near");
        assert_eq!(link.expect("kept").file_type, FileType::Symlink);
    }
    for (path, says) in [
        ("/lost", "/nowhere: "),
        ("/circle", "/circle"),
        ("/new/", "/new/"),
    ] {
        let folder = scratch();
        let (_, told) = tried(folder.path(), &touch(path));
        let error = told.expect_err(path);
        assert!(error.contains(says), "{error}");
    }
}

/// What is written is a file, so its path names no directory, whether there is one or not.
#[test]
fn nothing_is_written_to_a_path_that_ends_in_a_slash() {
    for path in ["/new/", "/etc/passwd/", "/etc/", "new//"] {
        let folder = scratch();
        let write = change::WriteFile::new(path, "content").into();
        let (image, told) = tried(folder.path(), &write);
        let told = told.expect_err(path);
        assert!(told.contains("not a directory"), "{path}: {told}");
        let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
        let written = session.write_from(path.as_bytes(), &mut &b"x"[..], Overrides::default());
        let told = written.expect_err(path).to_string();
        assert!(told.contains("not a directory"), "{path}: {told}");
    }
}

#[test]
fn a_slash_behind_a_name_is_for_directories() {
    let path = |text: &str| text.as_bytes().to_vec();
    let remove = |text: &str| {
        Change::Remove(change::Remove {
            path: path(text),
            recursive: true,
            force: false,
        })
    };
    let rename = |from: &str| {
        Change::Rename(change::Rename {
            no_target_directory: false,
            no_clobber: false,
            from: path(from),
            to: path("/moved"),
        })
    };
    for change in [
        remove("/etc/passwd/"),
        remove("/tree/"),
        rename("/etc/passwd/"),
        rename("/tree//"),
        Change::Touch(change::Touch {
            path: path("/etc/passwd/"),
            time: None,
            no_create: true,
        }),
        Change::SetOwner(change::SetOwner {
            path: path("/etc/passwd/"),
            uid: Some(1),
            gid: None,
            recursive: false,
            no_follow: true,
        }),
        Change::Link(change::Link {
            into: IntoDirectory::Always,
            target: path("/etc/passwd/"),
            path: path("/other"),
            force: false,
        }),
        Change::MakeNode(change::MakeNode {
            path: path("/pipe/"),
            kind: FileType::Fifo,
            device: DeviceNumber::default(),
            permissions: None,
        }),
    ] {
        let folder = scratch();
        let (_, told) = tried(folder.path(), &change);
        let error = told.expect_err("it is no directory");
        assert!(error.contains("/: not a directory"), "{change:?}: {error}");
    }
    for change in [remove("/usr/share/"), rename("/etc/")] {
        let folder = scratch();
        let (_, told) = tried(folder.path(), &change);
        told.expect("it is a directory");
    }
}
