//! Encrypted directories without their key: a mount answers every call as Linux does, except that
//! content can be read, as it is stored.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::xattr::{self, Attribute};
use pext4_testkit::oracle::debugfs;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mknodat, openat};
use rustix::fs::{XattrFlags, renameat_with, setxattr};

use crate::common::{Access, Place, fail, has, pext4, succeed};

const FILE: &str = "ciphertext-a-file";
const OTHER: &str = "ciphertext-other";
const FOLDER: &str = "ciphertext-folder";
const INNER: &str = "ciphertext-inner";
const EMPTY: &str = "ciphertext-empty";
const PIPE: &str = "ciphertext-a-pipe";

/// A mountable image with the encrypted directory `/vault`, and `/plain` beside it.
fn encrypted() -> Option<Place> {
    if !has("mke2fs") || !has("debugfs") {
        return None;
    }
    let place = Place::empty_if_mountable()?;
    let host = place.image.with_file_name("content");
    fs::write(&host, [7; 5000]).expect("a fresh place");
    let host = host.display();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args([
        "-q",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "encrypt,^metadata_csum",
    ]);
    succeed(mke2fs.arg(&place.image).arg("16M"));
    let vault = |name: &str| format!("/vault/{name}");
    let inner = format!("/vault/{FOLDER}/{INNER}");
    let requests = [
        "mkdir /vault".to_owned(),
        "mkdir /plain".to_owned(),
        "mkdir /plain/directory".to_owned(),
        format!("mkdir {}", vault(FOLDER)),
        format!("mkdir {}", vault(EMPTY)),
        format!("write {host} {}", vault(FILE)),
        format!("write {host} {}", vault(OTHER)),
        format!("write {host} {inner}"),
        format!("write {host} /plain/file"),
        "mknod pipe p".to_owned(),
        format!("ln pipe {}", vault(PIPE)),
        "unlink pipe".to_owned(),
    ];
    debugfs::command(&place.image, &requests).expect("debugfs works");
    encrypt(&place.image, "/vault");
    for name in [FILE, OTHER, FOLDER, EMPTY] {
        encrypt(&place.image, &vault(name));
    }
    encrypt(&place.image, &inner);
    place.check();
    Some(place)
}

/// Encrypts an inode as far as one sees without the key: the flag, and the attribute that holds
/// policy and nonce. The image has no checksums.
fn encrypt(image: &Path, path: &str) {
    let told = debugfs::ask(image, &format!("imap {path}")).expect("debugfs works");
    let number = |before: &str, radix| {
        let rest = told.split(before).nth(1).expect("debugfs knows the path");
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        usize::from_str_radix(&digits, radix).expect("a number")
    };
    let start = number("located at block ", 10) * 4096 + number("offset 0x", 16);
    let mut bytes = fs::read(image).expect("the image");
    let slot = &mut bytes[start..][..256];
    let mut inode = Inode::decode(slot, InodeNumber(1), None).expect("debugfs made it");
    inode.flags |= InodeFlags::ENCRYPT;
    let context = [&b"\x02\x01\x04\x03\0\0\0\0name of some key"[..], &[7; 16]].concat();
    xattr::encode_inode_area(&[Attribute::new(9, b"c", &context)], &mut inode.tail)
        .expect("there is room");
    inode.encode(slot, InodeNumber(1), None);
    fs::write(image, &bytes).expect("the image");
}

/// The paths of what is encrypted, under the names that the mount gives them: Linux encodes them.
struct Vault {
    mount: PathBuf,
    file: PathBuf,
    other: PathBuf,
    folder: PathBuf,
    inner: PathBuf,
    empty: PathBuf,
    pipe: PathBuf,
}

impl Vault {
    fn find(place: &Place, mount: &Path) -> Self {
        let by_name = |directory: &Path, path: String| {
            let told = debugfs::ask(&place.image, &format!("imap {path}")).expect("debugfs works");
            let number = told.split_whitespace().nth(1).expect("a number");
            let number: u64 = number.parse().expect("a number");
            let mut entries = fs::read_dir(directory).expect("it can be listed").flatten();
            let found = entries.find(|entry| entry.metadata().is_ok_and(|is| is.ino() == number));
            found.expect("it is listed").path()
        };
        let vault = mount.join("vault");
        let inside = |name: &str| by_name(&vault, format!("/vault/{name}"));
        let folder = inside(FOLDER);
        let inner = by_name(&folder, format!("/vault/{FOLDER}/{INNER}"));
        Self {
            mount: mount.to_owned(),
            file: inside(FILE),
            other: inside(OTHER),
            empty: inside(EMPTY),
            pipe: inside(PIPE),
            folder,
            inner,
        }
    }

    /// What each of a sequence of calls returns: its name, and the errno of a failure.
    fn outcomes(&self) -> Vec<(&'static str, Option<i32>)> {
        let mut outcomes = Vec::new();
        let mut note = |what, result: io::Result<()>| {
            let errno = result
                .err()
                .map(|error| error.raw_os_error().expect("an errno"));
            outcomes.push((what, errno));
        };
        self.make(&mut note);
        self.move_names(&mut note);
        self.change(&mut note);
        self.remove(&mut note);
        outcomes
    }

    fn make(&self, note: &mut dyn FnMut(&'static str, io::Result<()>)) {
        let at = |path: &str| self.mount.join(path);
        note("create", File::create(at("vault/new")).map(drop));
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY;
        let unnamed = openat(CWD, at("vault"), unnamed, Mode::RWXU);
        note("create unnamed", unnamed.map(drop).map_err(Into::into));
        let exclusive = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&self.file);
        note("create what is there", exclusive.map(drop));
        note("mkdir", fs::create_dir(at("vault/new")));
        note("mkdir what is there", fs::create_dir(&self.folder));
        note("mkdir below", fs::create_dir(self.folder.join("new")));
        note("symlink", symlink("target", at("vault/new")));
        let pipe = mknodat(CWD, at("vault/new"), FileType::Fifo, Mode::RWXU, 0);
        note("mknod", pipe.map_err(Into::into));
        let link = |from: &Path, to: &str| {
            linkat(CWD, from, CWD, at(to), AtFlags::empty()).map_err(Into::into)
        };
        note("link into", link(&at("plain/file"), "vault/new"));
        note("link inside", link(&self.file, "vault/new"));
        note("link out", link(&self.file, "plain/out"));
        note("link pipe out", link(&self.pipe, "plain/pipe"));
        note("link outside", link(&at("plain/out"), "plain/more"));
    }

    fn move_names(&self, note: &mut dyn FnMut(&'static str, io::Result<()>)) {
        let at = |path: &str| self.mount.join(path);
        note("rename inside", fs::rename(&self.file, at("vault/new")));
        note("rename over", fs::rename(&self.file, &self.other));
        note(
            "rename down",
            fs::rename(&self.file, self.folder.join("new")),
        );
        note("rename out", fs::rename(&self.file, at("plain/new")));
        note("rename out over", fs::rename(&self.file, at("plain/file")));
        note(
            "rename directory out",
            fs::rename(&self.folder, at("plain/new")),
        );
        note("rename into", fs::rename(at("plain/file"), at("vault/new")));
        note("rename into over", fs::rename(at("plain/file"), &self.file));
        note(
            "rename of none",
            fs::rename(at("vault/none"), at("plain/new")),
        );
        note("rename to itself", fs::rename(&self.file, at("plain/out")));
        note(
            "rename outside",
            fs::rename(at("plain/more"), at("plain/moved")),
        );
        let exchange = |from: &Path, to: &Path| {
            renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).map_err(Into::into)
        };
        note("exchange inside", exchange(&self.file, &self.other));
        note("exchange out", exchange(&self.file, &at("plain/file")));
        note("exchange in", exchange(&at("plain/file"), &self.file));
        note(
            "rename the vault",
            fs::rename(at("vault"), at("plain/vault")),
        );
        note("rename it back", fs::rename(at("plain/vault"), at("vault")));
        note(
            "rename over the vault",
            fs::rename(at("plain/directory"), at("vault")),
        );
        note(
            "rename into itself",
            fs::rename(at("vault"), at("vault/new")),
        );
    }

    fn change(&self, note: &mut dyn FnMut(&'static str, io::Result<()>)) {
        note("truncate", truncate(&self.file, 5));
        note("truncate to the same", truncate(&self.file, 5000));
        note(
            "truncate outside",
            truncate(&self.mount.join("plain/out"), 0),
        );
        let permissions = fs::Permissions::from_mode(0o600);
        note("chmod", fs::set_permissions(&self.file, permissions));
        let permissions = fs::Permissions::from_mode(0o711);
        note(
            "chmod directory",
            fs::set_permissions(&self.folder, permissions),
        );
        note(
            "chown",
            std::os::unix::fs::chown(&self.file, Some(5), Some(6)),
        );
        for path in [&self.file, &self.folder] {
            let set = setxattr(path, "user.name", b"value", XattrFlags::empty());
            note("setxattr", set.map_err(Into::into));
        }
    }

    fn remove(&self, note: &mut dyn FnMut(&'static str, io::Result<()>)) {
        let at = |path: &str| self.mount.join(path);
        note("unlink of none", fs::remove_file(at("vault/none")));
        note("unlink directory", fs::remove_file(&self.folder));
        note("unlink", fs::remove_file(&self.file));
        note("unlink pipe", fs::remove_file(&self.pipe));
        note("rmdir of a file", fs::remove_dir(&self.other));
        note("rmdir full", fs::remove_dir(&self.folder));
        note("rmdir empty", fs::remove_dir(&self.empty));
        note("rmdir the vault", fs::remove_dir(at("vault")));
        note("unlink inside", fs::remove_file(&self.inner));
        note("rmdir", fs::remove_dir(&self.folder));
        note("unlink outside", fs::remove_file(at("plain/moved")));
    }
}

/// Linux refuses to open the file, a mount to change its size.
fn truncate(path: &Path, size: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(size)
}

#[test]
fn a_mount_answers_as_linux_does() {
    let Some(place) = encrypted() else {
        return;
    };
    let original = fs::read(&place.image).expect("the image");
    let mount = place.mount(&[]);
    let by_pext4 = Vault::find(&place, &place.point).outcomes();
    mount.unmount();
    let errno = |what: &str| {
        let found = by_pext4.iter().find(|(name, _)| *name == what);
        found.expect("it was called").1
    };
    const ENOKEY: Option<i32> = Some(126);
    for what in [
        "create",
        "rename out",
        "rename into",
        "truncate",
        "truncate outside",
    ] {
        assert_eq!(errno(what), ENOKEY, "{what}");
    }
    for what in ["link out", "rename the vault", "unlink", "rmdir"] {
        assert_eq!(errno(what), None, "{what}");
    }
    fs::write(&place.image, original).expect("the image");
    let test = "a_mount_answers_as_linux_does";
    let Some(linux) = place.by_linux(Access::ReadWrite, test) else {
        return;
    };
    let by_linux = Vault::find(&place, linux.path()).outcomes();
    linux.unmount().expect("nobody uses it");
    assert_eq!(by_pext4, by_linux);
    place.check();
}

#[test]
fn content_is_read_as_stored_and_not_written() {
    let Some(place) = encrypted() else {
        return;
    };
    let mount = place.mount(&[]);
    let vault = Vault::find(&place, &place.point);
    assert_eq!(fs::read(&vault.file).unwrap(), [7; 5000]);
    // The kernel opens files without a request, and the write reaches the server later.
    let file = OpenOptions::new().write(true).open(&vault.file).unwrap();
    file.write_all_at(b"plaintext", 0).unwrap();
    let refused = file.sync_all().expect_err("nobody knows the key");
    assert_eq!(refused.raw_os_error(), Some(126));
    drop(file);
    let refused = File::create(&vault.other).expect_err("nobody knows the key");
    assert_eq!(refused.raw_os_error(), Some(126));
    mount.unmount();
    let mount = place.mount(&["-o", "strict_open"]);
    assert_eq!(fs::read(&vault.file).unwrap(), [7; 5000]);
    let mut append = OpenOptions::new();
    let refused = append.append(true).open(&vault.file);
    let refused = refused.expect_err("the server is asked");
    assert_eq!(refused.raw_os_error(), Some(126));
    mount.unmount();
}

#[test]
fn edits_remove_and_refuse_by_name() {
    let Some(place) = encrypted() else {
        return;
    };
    let host = place.image.with_file_name("host");
    fs::write(&host, b"plaintext").expect("a fresh place");
    let host = host.to_str().expect("text");
    let on = |command: &str, words: &[&str]| {
        let mut pext4 = pext4([command]);
        pext4.arg(&place.image).args(words);
        pext4
    };
    let file = format!("/vault/{FILE}");
    for (command, words) in [
        ("put", [host, "/vault/new"]),
        ("put", [host, "/vault"]),
        ("mv", ["/plain/file", "/vault/new"]),
        ("mv", [&file, "/plain/new"]),
        ("ln", ["/plain/file", "/vault/new"]),
        ("cp", ["/plain/file", "/vault/new"]),
        ("cp", [&file, "/plain/new"]),
    ] {
        let error = fail(&mut on(command, &words), 1);
        assert!(error.contains("encrypted"), "{command}: {error}");
        let blamed = match (command, words) {
            ("mv", [from, "/plain/new"]) => from,
            ("put", [_, "/vault"]) => "/vault/host",
            (_, [_, new]) => new,
        };
        assert!(
            error.contains(&format!(":{blamed}: ")),
            "{command}: {error}"
        );
    }
    let error = fail(&mut on("mkdir", &["/vault/new"]), 1);
    assert!(
        error.contains("/vault/new: ") && error.contains("encrypted"),
        "{error}"
    );
    for size in ["32M", "12M"] {
        let mut resize = pext4(["resize", "-q"]);
        succeed(resize.arg(&place.image).arg(size));
        place.check();
        succeed(pext4(["check"]).arg(&place.image));
    }
    succeed(&mut on("mv", &["/vault", "/moved"]));
    succeed(&mut on("chmod", &["711", "/moved"]));
    place.check();
    succeed(&mut on("rm", &["-r", "/moved"]));
    succeed(&mut on("put", &[host, "/plain/file"]));
    place.check();
    assert_eq!(succeed(&mut on("cat", &["/plain/file"])), "plaintext");
}
