//! The main path from end to end: an image of mke2fs is mounted, filled, closed, and checked by
//! e2fsck.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, MountOptions, RenameMode, SetAttributes,
    SetXattrMode, Volume,
};

/// A child process that another test is just starting holds the image's lock until its exec:
/// opening waits that long.
const PATIENCE: Duration = Duration::from_secs(10);

struct Image {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

/// A fresh image, or `None`, with a message, if mke2fs is missing.
fn image(size: &str, arguments: &[&str]) -> Option<Image> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("image");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(arguments)
        .arg(&path)
        .arg(size)
        .status();
    let Ok(status) = made else {
        eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        return None;
    };
    assert!(status.success(), "mke2fs {arguments:?}");
    Some(Image {
        _folder: folder,
        path,
    })
}

fn open(path: &Path) -> Volume {
    let device = FileDevice::open(path, Access::ReadWrite, PATIENCE).expect("the image");
    Volume::open(Arc::new(device), MountOptions::default()).expect("a mount")
}

fn assert_clean(path: &Path) {
    let output = Command::new("e2fsck")
        .arg("-fn")
        .arg(path)
        .output()
        .expect("e2fsck");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
}

const FEATURE_SETS: [&[&str]; 6] = [
    &[],
    &["-O", "orphan_file,metadata_csum_seed"],
    &["-b", "1024", "-O", "orphan_file,^64bit"],
    &["-b", "1024", "-O", "^has_journal"],
    &["-b", "1024", "-J", "size=1"],
    &["-b", "4096", "-J", "size=4"],
];

#[test]
fn nothing_done_leaves_a_clean_image() {
    for arguments in FEATURE_SETS {
        let Some(image) = image("64M", arguments) else {
            return;
        };
        open(&image.path).close().expect("a clean close");
        assert_clean(&image.path);
    }
}

#[test]
fn a_small_tree_survives_a_remount() {
    for arguments in FEATURE_SETS {
        let Some(image) = image("64M", arguments) else {
            return;
        };
        let volume = open(&image.path);
        let paths = volume.paths();
        paths.create_dir("/a").expect("mkdir");
        paths.create_dir("/a/b").expect("mkdir");
        paths.write("/a/b/file", vec![7u8; 100_000]).expect("write");
        paths.symlink("b/file", "/a/link").expect("symlink");
        let long = "/a/b/".to_owned() + &"x/../".repeat(30);
        paths.symlink(&long, "/a/long").expect("long symlink");
        paths.hard_link("/a/b/file", "/second").expect("link");
        let file = paths.resolve("/second").expect("resolve");
        volume
            .set_xattr(file.inode(), b"user.color", b"blue", SetXattrMode::Any)
            .expect("setxattr");
        drop(file);
        paths.rename("/a/b", "/moved").expect("rename");
        volume.close().expect("a clean close");
        assert_clean(&image.path);

        let volume = open(&image.path);
        let paths = volume.paths();
        assert_eq!(paths.read("/moved/file").expect("read"), vec![7u8; 100_000]);
        assert_eq!(paths.read_link("/a/link").expect("readlink"), b"b/file");
        assert_eq!(
            paths.read_link("/a/long").expect("readlink"),
            long.as_bytes()
        );
        let file = paths.resolve("/second").expect("resolve");
        assert_eq!(
            volume.xattr(file.inode(), b"user.color").expect("getxattr"),
            b"blue"
        );
        assert_eq!(file.attributes().expect("stat").links, 2);
        drop(file);
        paths.remove_file("/second").expect("unlink");
        paths.remove_file("/moved/file").expect("unlink");
        paths.remove_dir("/moved").expect("rmdir");
        volume.close().expect("a clean close");
        assert_clean(&image.path);
    }
}

#[test]
fn many_files_come_and_go() {
    for arguments in FEATURE_SETS {
        let Some(image) = image("64M", arguments) else {
            return;
        };
        let volume = open(&image.path);
        let paths = volume.paths();
        paths.create_dir("/many").expect("mkdir");
        for number in 0..3000 {
            paths
                .write(format!("/many/file-{number}"), format!("{number}"))
                .expect("create");
        }
        assert_eq!(paths.read_dir("/many").expect("list").count(), 3000);
        volume.sync().expect("sync");
        for number in (0..3000).step_by(2) {
            paths
                .remove_file(format!("/many/file-{number}"))
                .expect("unlink");
        }
        volume.close().expect("a clean close");
        assert_clean(&image.path);
        let volume = open(&image.path);
        assert_eq!(
            volume.paths().read_dir("/many").expect("list").count(),
            1500
        );
        assert_eq!(
            volume.paths().read("/many/file-2999").expect("read"),
            b"2999"
        );
    }
}

#[test]
fn files_grow_shrink_and_have_holes() {
    for arguments in FEATURE_SETS {
        let Some(image) = image("64M", arguments) else {
            return;
        };
        let volume = open(&image.path);
        let root = pext4_fs::InodeNumber::ROOT;
        let new = CreateAttributes {
            permissions: 0o644,
            ..CreateAttributes::default()
        };
        let file = volume.create(root, b"file", &new).expect("create").inode;
        for piece in 0..200u8 {
            volume
                .write(file, u64::from(piece) * 16384, &[piece; 5000])
                .expect("write");
        }
        volume
            .allocate(file, AllocateMode::KeepSize, 8 << 20, 1 << 20)
            .expect("fallocate");
        volume
            .allocate(file, AllocateMode::PunchHole, 10_000, 500_000)
            .expect("punch");
        let mut bytes = vec![1; 20_000];
        assert_eq!(volume.read(file, 0, &mut bytes).expect("read"), 20_000);
        assert!(bytes[..16_384].iter().all(|&byte| byte == 0));
        assert!(bytes[16_384..].iter().all(|&byte| byte == 0));
        let size = Some(700_001);
        volume
            .set_attributes(
                file,
                &SetAttributes {
                    size,
                    ..SetAttributes::default()
                },
            )
            .expect("truncate");
        let size = Some(900_000);
        volume
            .set_attributes(
                file,
                &SetAttributes {
                    size,
                    ..SetAttributes::default()
                },
            )
            .expect("extend");
        let mut bytes = vec![1; 300_000];
        assert_eq!(
            volume.read(file, 700_000, &mut bytes).expect("read"),
            200_000
        );
        assert!(bytes[1..200_000].iter().all(|&byte| byte == 0));
        volume
            .rename(root, b"file", root, b"renamed", RenameMode::NoReplace)
            .expect("rename");
        volume.unlink(root, b"renamed").expect("unlink");
        volume
            .write(file, 0, b"still here")
            .expect("write to a file without a name");
        volume.forget(file, 1);
        volume.close().expect("a clean close");
        assert_clean(&image.path);
    }
}

/// Linux assumes that the bytes after the end of a file are zero when the file grows.
#[test]
fn nothing_is_left_behind_the_end_of_a_cut_file() {
    let Some(image) = image("16M", &[]) else {
        return;
    };
    let marker = b"old bytes behind the end";
    let volume = open(&image.path);
    let mut file = volume.paths().create("/file").expect("room");
    file.write_all(&[&b"kept"[..], &marker[..]].concat())
        .expect("room");
    drop(file);
    let inode = volume
        .paths()
        .attributes("/file")
        .expect("it is there")
        .inode;
    let cut = SetAttributes {
        size: Some(4),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &cut).expect("a cut");
    volume.close().expect("a clean end");
    let bytes = std::fs::read(&image.path).expect("the image");
    let found = bytes.windows(marker.len()).any(|window| window == marker);
    assert!(!found, "the bytes that were cut off are on the image");
    assert_clean(&image.path);
}

/// At the end of the mount, the number of a truncated file belongs to a symbolic link.
#[test]
fn a_link_in_the_place_of_a_cut_file_is_left_alone() {
    let Some(image) = image("16M", &[]) else {
        return;
    };
    let volume = open(&image.path);
    let mut file = volume.paths().create("/file").expect("room");
    file.write_all(b"some bytes").expect("room");
    drop(file);
    let before = volume
        .paths()
        .attributes("/file")
        .expect("it is there")
        .inode;
    let cut = SetAttributes {
        size: Some(4),
        ..SetAttributes::default()
    };
    volume.set_attributes(before, &cut).expect("a cut");
    volume.unlink(InodeNumber::ROOT, b"file").expect("it goes");
    let link = volume
        .make_symlink(
            InodeNumber::ROOT,
            b"link",
            b"ttttt",
            &CreateAttributes::default(),
        )
        .expect("a link");
    assert_eq!(link.inode, before, "the number is used again");
    volume.close().expect("a clean end");
    assert_clean(&image.path);
}

/// A program that depends on this crate alone can write down every type that it gets.
#[test]
fn types_of_the_interface_have_names() {
    fn cause(error: &pext4_fs::Error) -> Option<(&pext4_fs::Corrupt, &pext4_fs::JournalError)> {
        let pext4_fs::Error::Journal(journal) = error else {
            return None;
        };
        match &**journal {
            pext4_fs::JournalError::Corrupt(corrupt) => Some((corrupt, journal)),
            _ => None,
        }
    }
    let corrupt = pext4_fs::Corrupt::new("journal", "it makes no sense");
    let error = pext4_fs::Error::from(pext4_fs::JournalError::Corrupt(corrupt));
    assert!(cause(&error).is_some());
    type Blocks = Vec<(pext4_fs::BlockNumber, pext4_fs::Page)>;
    type Written = Result<(), pext4_fs::CommitError>;
    let write: fn(pext4_fs::OfflineJournal, Blocks) -> Written = pext4_fs::OfflineJournal::write;
    let _ = write;
}
