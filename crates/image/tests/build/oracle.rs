//! The references: e2fsck for the image, the kernel for its contents.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::e2fsck::complaints;

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks that e2fsck finds nothing.
pub fn check(image: &Path) {
    let output = Command::new("e2fsck").arg("-fn").arg(image).output();
    let output = output.expect("e2fsck is installed (package e2fsprogs)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let is_clean = output.status.success() && complaints(&text).is_empty();
    assert!(is_clean, "{}:\n{text}", image.display());
}

/// An image that the kernel has mounted.
pub struct Mounted {
    folder: tempfile::TempDir,
    image: PathBuf,
}

impl Mounted {
    /// Mounts an image read-only; `None`, with a message, if that is not possible.
    pub fn new(image: &Path) -> Option<Self> {
        if !is_root() {
            eprintln!("SKIPPED: comparing with the kernel's view: only root may mount");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = Command::new("mount")
            .args(["-t", "ext4", "-o", "ro,loop"])
            .args([image, folder.path()])
            .output()
            .expect("mount(8) is everywhere");
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(
                !Path::new("/sys/fs/ext4").exists() || text.contains("loop"),
                "the kernel does not mount {}: {text}",
                image.display()
            );
            eprintln!("SKIPPED: comparing with the kernel's view: {text}");
            return None;
        }
        let image = image.canonicalize().expect("it is mounted");
        Some(Self { folder, image })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A program that another test is starting may hold our descriptors: the lazy unmount
        // completes when it executes.
        let folder = self.folder.path();
        let _ = Command::new("umount").arg("-l").arg(folder).status();
        // Whoever replaces the image is refused as long as a loop device has it.
        for _ in 0..1000 {
            if !has_loop_device(&self.image) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether a loop device has a file.
fn has_loop_device(file: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut behind = devices.map(|device| device.path().join("loop/backing_file"));
    behind.any(|behind| {
        let named = fs::read(behind).unwrap_or_default();
        named.trim_ascii_end() == file.as_os_str().as_bytes()
    })
}

/// A description of a tree: one line per path.
pub fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut lines = BTreeMap::new();
    let mut links = BTreeMap::new();
    describe_below(root, root, &mut links, &mut lines);
    lines
}

fn describe_below(
    root: &Path,
    path: &Path,
    links: &mut BTreeMap<u64, PathBuf>,
    lines: &mut BTreeMap<PathBuf, String>,
) {
    let metadata = fs::symlink_metadata(path).expect("it was just listed");
    let name = path.strip_prefix(root).expect("below the root").to_owned();
    if name == Path::new("lost+found") {
        return;
    }
    let kind = metadata.file_type();
    let mut line = format!(
        "{:o} {}:{} {}.{:09}",
        metadata.mode(),
        metadata.uid(),
        metadata.gid(),
        metadata.mtime(),
        metadata.mtime_nsec()
    );
    if kind.is_file() {
        let sum = Sha256::digest(fs::read(path).expect("readable"));
        line += &format!(" {} bytes {}", metadata.len(), hex(&sum));
    } else if kind.is_symlink() {
        line += &format!(" -> {:?}", fs::read_link(path).expect("a link"));
    } else if kind.is_char_device() || kind.is_block_device() {
        line += &format!(" device {:#x}", metadata.rdev());
    }
    if !kind.is_dir() && metadata.nlink() > 1 {
        let first = links.entry(metadata.ino()).or_insert_with(|| name.clone());
        line += &format!(" = {}", first.display());
    }
    for (name, value) in attributes(path) {
        line += &format!(" {name}={}", hex(&value));
    }
    lines.insert(name, line);
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        names.sort();
        for child in names {
            describe_below(root, &child, links, lines);
        }
    }
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 65536];
    let length = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(length) => length,
        Err(_) => return BTreeMap::new(),
    };
    list[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])
                .expect("it was just listed");
            value.truncate(length);
            (String::from_utf8_lossy(name).into_owned(), value)
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that the image is valid and that the kernel sees the contents of `source` in it.
pub fn compare(image: &Path, source: &Path) {
    check(image);
    let Some(mounted) = Mounted::new(image) else {
        return;
    };
    same(&describe(source), &describe(mounted.path()));
}

/// Two trees have the same lines.
pub fn same(left: &BTreeMap<PathBuf, String>, right: &BTreeMap<PathBuf, String>) {
    for (path, line) in left {
        assert_eq!(Some(line), right.get(path), "{}", path.display());
    }
    for path in right.keys() {
        assert!(left.contains_key(path), "{} is too much", path.display());
    }
}
