//! Encrypted files and directories without their key: what is stored can be read and removed, and
//! not changed, and everything beside them is as on any image. What Linux does is in the tests of
//! the command.

use pext4_fs::path::OpenOptions;
use pext4_fs::{
    AllocateMode, CreateAttributes, DeviceNumber, FileType, InodeNumber, Refusal, RenameMode,
    Result, SetAttributes, SetXattrMode, Time, Volume, Whiteout,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o644,
    uid: 0,
    gid: 0,
};
const FILE: &[u8] = b"ciphertext-a-file";
const OTHER: &[u8] = b"ciphertext-other";
const FOLDER: &[u8] = b"ciphertext-folder";
const LINK: &[u8] = b"ciphertext-a-link";

/// An image with the encrypted directory `/vault`, and `/plain` beside it.
fn image() -> Option<Image> {
    let format = ["-b", "1024", "-O", "encrypt,^metadata_csum"];
    let image = Image::with_file(&format, &[7; 5000], &["mkdir vault", "mkdir plain"])?;
    let target = "t".repeat(18);
    for request in [
        "mkdir vault/ciphertext-folder",
        "ln file vault/ciphertext-a-file",
        "unlink file",
        "write /dev/null vault/ciphertext-other",
        "write /dev/null plain/file",
        &format!("symlink vault/ciphertext-a-link {target}"),
        "sif vault/ciphertext-a-link block[0] 0x74740010",
    ] {
        image.debugfs_write(request);
    }
    image.encrypt("vault");
    for name in [FILE, OTHER, FOLDER, LINK] {
        image.encrypt(&format!("vault/{}", String::from_utf8_lossy(name)));
    }
    image.assert_clean();
    Some(image)
}

fn assert_refused<R: std::fmt::Debug>(result: Result<R>, refusal: Refusal, what: &str) {
    match result {
        Err(error) => assert!(error.is(refusal), "{what}: {error}"),
        Ok(_) => panic!("{what}: it was not refused"),
    }
}

fn find(volume: &Volume, directory: InodeNumber, name: &[u8]) -> InodeNumber {
    volume.lookup(directory, name).expect("it is there").inode
}

fn names(volume: &Volume, directory: InodeNumber) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut take = |entry: pext4_fs::DirectoryEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    volume
        .read_directory(directory, 0, &mut take)
        .expect("sound");
    names
}

#[test]
fn no_name_is_made_in_an_encrypted_directory() {
    let Some(image) = image() else {
        return;
    };
    let volume = image.open();
    assert!(!volume.is_read_only(), "{:?}", volume.notes());
    let (vault, plain) = (inode(&volume, "/vault"), inode(&volume, "/plain"));
    let folder = find(&volume, vault, FOLDER);
    let refused = |result: Result<()>, what: &str| assert_refused(result, Refusal::NoKey, what);
    for directory in [vault, folder] {
        let device = DeviceNumber::default();
        let node = volume.make_node(directory, b"new", &NEW, FileType::Fifo, device);
        refused(node.map(drop), "a pipe");
        refused(volume.create(directory, b"new", &NEW).map(drop), "a file");
        refused(
            volume.make_directory(directory, b"new", &NEW).map(drop),
            "a directory",
        );
        refused(
            volume.make_symlink(directory, b"new", b"x", &NEW).map(drop),
            "a link",
        );
        refused(
            volume.create_unnamed(directory, &NEW).map(drop),
            "without a name",
        );
        let file = find(&volume, plain, b"file");
        refused(volume.link(file, directory, b"new").map(drop), "a link");
        let own = find(&volume, vault, FILE);
        refused(volume.link(own, directory, b"new").map(drop), "a link");
    }
    assert_refused(
        volume.create(vault, FILE, &NEW).map(drop),
        Refusal::Exists,
        "a file",
    );
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    let moves: [(InodeNumber, &[u8], InodeNumber, &[u8]); 7] = [
        (vault, FILE, vault, b"new"),
        (vault, FILE, vault, OTHER),
        (vault, FILE, folder, b"new"),
        (vault, FILE, plain, b"new"),
        (vault, FILE, plain, b"file"),
        (plain, b"file", vault, b"new"),
        (plain, b"file", vault, FILE),
    ];
    for (from, name, to, new) in moves {
        let what = format!("{from} to {to}");
        refused(volume.rename(from, name, to, new, replace), &what);
        let white = Whiteout::default();
        let white = volume.rename_leaving_whiteout(from, name, to, new, replace, &white);
        refused(white, &what);
        if new != b"new" {
            refused(volume.rename(from, name, to, new, exchange), &what);
        }
    }
    let missing = volume.rename(vault, b"missing", plain, b"new", replace);
    assert_refused(missing, Refusal::NotFound, "what is not there");
    assert_eq!(names(&volume, vault).len(), 6);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn names_are_removed_and_what_they_name_is_named_elsewhere() {
    let Some(image) = image() else {
        return;
    };
    let volume = image.open();
    let (vault, plain) = (inode(&volume, "/vault"), inode(&volume, "/plain"));
    let file = find(&volume, vault, FILE);
    // The directory in which a name is made governs.
    let _ = volume.link(file, plain, b"out").expect("a name outside");
    let _ = volume.link(file, plain, b"more").expect("and one more");
    let rename =
        |from: &[u8], to: &[u8]| volume.rename(plain, from, plain, to, RenameMode::Replace);
    rename(b"more", b"moved").expect("outside");
    let same = volume.rename(vault, FILE, plain, b"out", RenameMode::Replace);
    same.expect("both names stay, as in Linux");
    volume
        .rename(ROOT, b"vault", plain, b"vault", RenameMode::Replace)
        .expect("the directory itself has a plain name");
    assert_refused(
        volume.unlink(vault, FOLDER),
        Refusal::IsADirectory,
        "a directory",
    );
    let removed = volume.remove_directory(plain, b"vault");
    assert_refused(removed, Refusal::NotEmpty, "full");
    for name in [FILE, OTHER, LINK] {
        volume.unlink(vault, name).expect("it is there");
    }
    volume.remove_directory(vault, FOLDER).expect("it is empty");
    volume
        .remove_directory(plain, b"vault")
        .expect("it is empty");
    volume.close().expect("it closes");
    image.assert_clean();
    let volume = image.open();
    let content = volume
        .paths()
        .read("/plain/moved")
        .expect("as it is stored");
    assert_eq!(content, [7; 5000]);
    volume
        .paths()
        .remove_file("/plain/moved")
        .expect("it can go");
    volume.paths().remove_file("/plain/out").expect("it can go");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// Ciphertext has any bytes; `.` and `..` it cannot be, since it has at least 16.
#[test]
fn stored_names_of_any_bytes_can_be_removed() {
    let Some(image) = image() else {
        return;
    };
    let strange = [
        (FILE, &b"\x01/\0iphertext-/\xFF\xFE."[..]),
        (FOLDER, b"/iphertext-folder"),
    ];
    image.change(|bytes| {
        for (name, stored) in strange {
            let found = bytes.windows(name.len()).position(|part| part == name);
            bytes[found.expect("in the directory")..][..name.len()].copy_from_slice(stored);
        }
    });
    let volume = image.open();
    let vault = inode(&volume, "/vault");
    let listed = names(&volume, vault);
    assert!(
        strange
            .iter()
            .all(|(_, stored)| listed.contains(&stored.to_vec()))
    );
    volume.unlink(vault, strange[0].1).expect("it is there");
    volume
        .remove_directory(vault, strange[1].1)
        .expect("it is there");
    assert_refused(volume.unlink(vault, b""), Refusal::NotFound, "no name");
    assert_refused(
        volume.unlink(vault, &[b'x'; 300]),
        Refusal::NameTooLong,
        "too long",
    );
    assert_eq!(names(&volume, vault).len(), 4);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn the_content_stays_and_the_rest_changes() {
    let Some(image) = image() else {
        return;
    };
    let volume = image.open();
    let vault = inode(&volume, "/vault");
    let file = find(&volume, vault, FILE);
    let mut content = vec![0; 6000];
    assert_eq!(volume.read(file, 0, &mut content).expect("as stored"), 5000);
    let refused = |result: Result<()>, what: &str| assert_refused(result, Refusal::NoKey, what);
    let resize = |size| SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    refused(volume.write(file, 0, b"x").map(drop), "written");
    refused(
        volume.write_from_cache(file, 0, b"x").map(drop),
        "written back",
    );
    refused(volume.append(file, b"x").map(drop), "appended");
    for size in [0, 4999, 5000, 6000] {
        refused(
            volume.set_attributes(file, &resize(size)).map(drop),
            "a size",
        );
    }
    for mode in [
        AllocateMode::Extend,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange { keep_size: false },
    ] {
        refused(volume.allocate(file, mode, 0, 2048), "allocated");
    }
    let late = Time {
        seconds: 4_000_000_000,
        nanoseconds: 0,
    };
    refused(
        volume.set_times_from_cache(file, late, late).map(drop),
        "the times of a write",
    );
    let _ = volume.link(file, ROOT, b"out").expect("a name outside");
    let opened = OpenOptions::new().write(true).open(&volume, "/out");
    refused(opened.map(drop), "opened");
    let opened = OpenOptions::new().read(true).open(&volume, "/out");
    let _ = opened.expect("it can be read");
    for inode in [file, vault] {
        let change = SetAttributes {
            permissions: Some(0o700),
            uid: Some(1000),
            flags: Some(InodeFlags::EXTENTS.bits() | InodeFlags::NODUMP.bits()),
            ..SetAttributes::default()
        };
        volume.set_attributes(inode, &change).expect("attributes");
        for value in [&b"short"[..], &[1; 700]] {
            volume
                .set_xattr(inode, b"user.name", value, SetXattrMode::Any)
                .expect("in the inode or in a block");
        }
        assert_eq!(volume.xattr_names(inode).expect("a list"), [b"user.name"]);
        let flags = volume.attributes(inode).expect("it is there").flags;
        assert_ne!(
            flags & InodeFlags::ENCRYPT.bits(),
            0,
            "as in Linux, it stays"
        );
    }
    volume.close().expect("it closes");
    // It would miss the policy.
    image.assert_clean();
    assert!(image.debugfs("stat /out").contains("User:  1000"));
}

#[test]
fn what_is_made_beside_is_not_encrypted() {
    let Some(image) = image() else {
        return;
    };
    let volume = image.open();
    let plain = inode(&volume, "/plain");
    let directory = volume
        .make_directory(plain, b"directory", &NEW)
        .expect("room");
    let file = volume.create(directory.inode, b"new", &NEW).expect("room");
    for made in [&directory, &file] {
        assert_eq!(made.attributes.flags & InodeFlags::ENCRYPT.bits(), 0);
    }
    assert_eq!(volume.write(file.inode, 0, b"content").expect("room"), 7);
    volume
        .paths()
        .write("/plain/file", b"content")
        .expect("room");
    volume.close().expect("it closes");
    image.assert_clean();
}
