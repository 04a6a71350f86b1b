//! Images with something in them, and edits of all kinds.

#![allow(dead_code, reason = "each test file uses its share")]

pub mod archives;

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_edit::{Change, EditOptions, EditSession, ModeChange, change};
use pext4_fs::{FileType, MountOptions, SetXattrMode, Volume};
use pext4_testkit::Random;
use pext4_testkit::oracle::format::Format;

/// A write of bytes that depend on `random`.
pub fn write(path: &str, length: usize, random: &mut Random) -> Change {
    let word = random.word();
    let content: Vec<u8> = (0..length)
        .map(|at| (word.rotate_left(u32::try_from(at % 61).expect("small")) & 0xFF) as u8)
        .collect();
    change::WriteFile::new(path, content).into()
}

/// An image with directories, files of several sizes, links and attributes.
pub fn filled(format: &Format, random: &mut Random) -> RamDevice {
    let device = Arc::new(format.device().expect("mke2fs is there"));
    let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(over, MountOptions::default()).expect("a fresh image");
    let paths = volume.paths();
    for directory in ["etc", "usr", "usr/share", "big"] {
        paths.create_dir(directory).expect("it is new");
    }
    for number in 0..40 {
        let path = format!("usr/share/file{number}");
        let length = random.index(9000);
        paths
            .write(&path, vec![b'a' + number; length])
            .expect("there is room");
    }
    paths
        .write("etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        .expect("room");
    paths.write("big/large", vec![7; 700_000]).expect("room");
    paths.symlink("usr/share", "link").expect("room");
    paths.hard_link("etc/passwd", "etc/passwd-").expect("room");
    let held = paths.resolve("etc/passwd").expect("it is there");
    volume
        .set_xattr(held.inode(), b"user.note", b"old", SetXattrMode::Any)
        .expect("room");
    drop(held);
    volume.close().expect("a ram device works");
    Arc::try_unwrap(device).unwrap_or_else(|device| device.fork())
}

/// Changes of every kind, some from `random`.
pub fn mixture(session: &mut EditSession, random: &mut Random) {
    let path = |text: &str| text.as_bytes().to_vec();
    let mut changes = vec![
        write("/etc/hostname", 9, random),
        write("/link/../new file", 100_000, random),
        Change::MakeDirectory(change::MakeDirectory {
            path: path("/var/lib/app"),
            parents: true,
            mode: Some(ModeChange::exactly(0o750)),
        }),
        Change::CopyFile(change::CopyFile {
            recursive: true,
            ..change::CopyFile::new("/usr", "/var/")
        }),
        Change::Remove(change::Remove {
            path: path("/big"),
            recursive: true,
            force: false,
        }),
        write("/again", 650_000, random),
        Change::Rename(change::Rename {
            no_target_directory: false,
            no_clobber: false,
            from: path("/etc/passwd-"),
            to: path("/var/lib"),
        }),
        Change::Symlink(change::Symlink {
            into: pext4_edit::IntoDirectory::Always,
            target: path("/nowhere"),
            path: path("/dangling"),
            force: false,
        }),
        Change::Link(change::Link {
            into: pext4_edit::IntoDirectory::Always,
            target: path("/etc/passwd"),
            path: path("/etc/group"),
            force: false,
        }),
        Change::MakeNode(change::MakeNode {
            path: path("/null"),
            kind: FileType::CharacterDevice,
            device: pext4_fs::DeviceNumber { major: 1, minor: 3 },
            permissions: Some(0o666),
        }),
        Change::SetMode(change::SetMode {
            path: path("/usr"),
            mode: "go-w,u+s".parse().expect("a mode"),
            recursive: true,
        }),
        Change::SetOwner(change::SetOwner {
            path: path("/var"),
            uid: Some(1000),
            gid: Some(100_000),
            recursive: true,
            no_follow: false,
        }),
        Change::SetXattr(change::SetXattr {
            path: path("/etc/passwd"),
            name: path("user.note"),
            value: b"new and longer".to_vec(),
        }),
        Change::RemoveXattr(change::RemoveXattr {
            path: path("/etc/passwd"),
            name: path("user.note"),
        }),
        Change::Touch(change::Touch {
            path: path("/touched"),
            time: Some(pext4_fs::Time {
                seconds: 1_000_000_000,
                nanoseconds: 5,
            }),
            no_create: false,
        }),
    ];
    for number in 0..random.index(60) {
        let file = random.index(40);
        changes.push(match random.index(3) {
            0 => write(
                &format!("/usr/share/file{file}"),
                random.index(20_000),
                random,
            ),
            1 => write(&format!("/made{number}"), random.index(3000), random),
            _ => Change::Remove(change::Remove {
                path: path(&format!("/var/usr/share/file{file}")),
                recursive: false,
                force: true,
            }),
        });
    }
    for change in &changes {
        session
            .apply(change)
            .unwrap_or_else(|error| panic!("{change:?}: {error}"));
    }
}

/// Options with a fixed time.
pub fn fixed() -> EditOptions {
    EditOptions {
        time: Some(std::time::Duration::new(1_600_000_000, 0)),
        ..EditOptions::default()
    }
}
