//! Images from directories of the host.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pext4_image::build::{Builder, Error, Map, Size, Source};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::oracle::{Mounted, check, compare, describe, is_root};

/// An access list with a named user, as programs see it.
const ACCESS_LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 255, 255,
    255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
/// A capability, version 2: net_raw, effective and permitted.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    if let Err(errno) = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        eprintln!("SKIPPED: attribute {name} on {}: {errno}", path.display());
    }
}

fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .expect("times can be set");
}

fn make_contents(root: &Path) {
    fs::create_dir_all(root.join("many")).unwrap();
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for number in 0..3000 {
        let name = format!("many/a-file-with-a-longer-name-{number:05}");
        fs::write(root.join(name), []).unwrap();
    }
    for size in [
        0usize, 1, 1023, 1024, 1025, 4095, 4096, 4097, 100_000, 300_000,
    ] {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
        fs::write(root.join(format!("file-{size}")), bytes).unwrap();
    }
    let large: Vec<u8> = (0..20u32 << 20).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write(root.join("deep/er/large"), large).unwrap();
    fs::write(root.join("x".repeat(255)), "long name").unwrap();
    fs::write(root.join("deep/not ascii \u{e4}\u{f6}"), "bytes").unwrap();
    fs::hard_link(root.join("file-4097"), root.join("deep/link-a")).unwrap();
    fs::hard_link(root.join("file-4097"), root.join("deep/er/link-b")).unwrap();
    for length in [1, 59, 60, 900] {
        symlink("t".repeat(length), root.join(format!("link-{length}"))).unwrap();
    }
}

fn make_sparse(root: &Path) {
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    for at in [0, 5 << 20, (30 << 20) + 12345, (40 << 20) - 3] {
        sparse.write_all_at(b"xyz", at).unwrap();
    }
    let holes = File::create(root.join("holes only")).unwrap();
    holes.set_len(123_456_789).unwrap();
    // More extents than fit into an inode.
    let pieces = File::create(root.join("pieces")).unwrap();
    pieces.set_len(100 << 16).unwrap();
    for piece in 0..50u64 {
        pieces
            .write_all_at(&[piece as u8; 100], piece << 17)
            .unwrap();
    }
}

fn make_special(root: &Path) {
    let fifo = root.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    if !is_root() {
        eprintln!("SKIPPED: devices: only root may make them");
        return;
    }
    for (name, kind, major, minor) in [
        ("null", FileType::CharacterDevice, 1, 3),
        ("disk", FileType::BlockDevice, 259, 70_000),
    ] {
        let device = rustix::fs::makedev(major, minor);
        let mode = Mode::from_raw_mode(0o660);
        rustix::fs::mknodat(CWD, root.join(name), kind, mode, device).unwrap();
    }
    std::os::unix::fs::chown(root.join("file-1"), Some(70_000), Some(100_000)).unwrap();
    std::os::unix::fs::lchown(root.join("link-1"), Some(5), Some(6)).unwrap();
    set_attribute(&root.join("file-1"), "security.capability", &CAPABILITY);
    set_attribute(&root.join("link-1"), "trusted.link", b"on a link");
}

/// A tree with every kind of file that the host supports.
pub fn everything(root: &Path) {
    make_contents(root);
    make_sparse(root);
    make_special(root);
    fs::set_permissions(root.join("file-0"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    set_attribute(&root.join("file-1023"), "user.small", b"value");
    set_attribute(&root.join("file-1024"), "user.large", &[b'v'; 700]);
    set_attribute(&root.join("file-1025"), "user.large", &[b'v'; 700]);
    set_attribute(&root.join("file-1025"), "user.empty", b"");
    set_attribute(&root.join("deep"), "user.directory", b"yes");
    set_attribute(
        &root.join("file-4095"),
        "system.posix_acl_access",
        &ACCESS_LIST,
    );
    set_attribute(&root.join("deep"), "system.posix_acl_default", &ACCESS_LIST);
    set_time(&root.join("file-1"), 1_234_567_890, 123_456_789);
    set_time(&root.join("file-0"), -1000, 5);
    set_time(&root.join("link-59"), 5_000_000_000, 999_999_999);
    set_time(&root.join("deep"), 0, 1);
}

#[test]
fn a_tree_with_everything_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    for (name, block_size) in [("four", 4096), ("two", 2048), ("one", 1024)] {
        let image = folder.path().join(name);
        let summary = Builder::new()
            .source(Source::Directory(tree.clone()))
            .block_size(block_size)
            .build(&image)
            .unwrap();
        assert_eq!(summary.block_size, block_size);
        compare(&image, &tree);
    }
}

#[test]
fn every_feature_can_be_switched() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_contents(&tree);
    make_sparse(&tree);
    for (number, feature) in [
        "^has_journal",
        "^64bit",
        "^metadata_csum",
        "^dir_index",
        "^flex_bg",
        "^resize_inode",
        "^orphan_file",
        "^extra_isize",
        "^huge_file",
        "large_dir",
        "^metadata_csum_seed",
        "^filetype",
        "^sparse_super",
        "none,extent,ext_attr",
        "meta_bg",
        "sparse_super2",
        "uninit_bg,^metadata_csum",
        "fast_commit",
        "encrypt,verity",
    ]
    .into_iter()
    .enumerate()
    {
        let image = folder.path().join(format!("image-{number}"));
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .features(feature.split(','))
            .build(&image)
            .unwrap_or_else(|error| panic!("{feature}: {error}"));
        compare(&image, &tree);
        fs::remove_file(&image).unwrap();
    }
}

fn succeed(command: &mut Command) {
    let output = command
        .output()
        .expect("it is installed (package e2fsprogs)");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The paths below a folder, relative to `root`; those of regular files with their contents.
fn contents_below(root: &Path, folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            contents.append(&mut contents_below(root, &path));
        }
        let bytes = if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        contents.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
    }
    contents
}

/// Blocks that are larger than the pages of most systems, whose kernels do not mount them.
#[test]
fn large_blocks_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (tree, copy) = (folder.path().join("tree"), folder.path().join("copy"));
    fs::create_dir(&tree).unwrap();
    make_contents(&tree);
    let contents = contents_below(&tree, &tree);
    for block_size in [8192, 16384, 32768, 65536] {
        let image = folder.path().join(format!("image-{block_size}"));
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .block_size(block_size)
            .build(&image)
            .unwrap_or_else(|error| panic!("{block_size}: {error}"));
        check(&image);
        fs::create_dir(&copy).unwrap();
        let request = format!("rdump / {}", copy.display());
        let mut debugfs = Command::new("debugfs");
        succeed(debugfs.args(["-R", &request]).arg(&image));
        fs::remove_dir(copy.join("lost+found")).unwrap();
        assert!(contents_below(&copy, &copy) == contents, "{block_size}");
        fs::remove_dir_all(&copy).unwrap();
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn small_contents_are_inline() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    for size in [1, 59, 60, 61, 100, 160, 161, 200] {
        fs::write(tree.join(format!("of {size} bytes")), vec![b'x'; size]).unwrap();
    }
    for names in 0..12 {
        let directory = tree.join(format!("with {names} names"));
        fs::create_dir(&directory).unwrap();
        (0..names).for_each(|name| fs::write(directory.join(format!("name-{name}")), "").unwrap());
    }
    let build = |features: &[&str], name: &str| {
        let image = folder.path().join(name);
        let summary = Builder::new()
            .source(Source::Directory(tree.clone()))
            .size(Size::Bytes(64 << 20))
            .features(features.iter().copied())
            .build(&image)
            .unwrap();
        compare(&image, &tree);
        summary.blocks - summary.free_blocks
    };
    let inside = build(&["inline_data"], "inside");
    let outside = build(&[], "outside");
    // Four files of up to 100 bytes and 9 directories at least, a block each.
    assert!(inside + 13 <= outside, "{inside} {outside}");
}

#[test]
fn small_inodes_hold_less_but_are_sound() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(tree))
        .inode_size(128)
        .build(&image)
        .unwrap();
    check(&image);
}

#[test]
fn rules_change_what_goes_in() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("keep/drop/below")).unwrap();
    for name in ["a.o", "a.c", "keep/b.o", "keep/su", "keep/drop/c.c"] {
        fs::write(tree.join(name), name).unwrap();
    }
    let image = folder.path().join("image");
    let map = Map::parse("path /keep/su mode=4755 owner=7:8 mtime=@42.5\n").unwrap();
    let summary = Builder::new()
        .source(Source::Directory(tree))
        .exclude("*.o")
        .exclude("/keep/drop")
        .owner(1, 2)
        .date(1_000_000)
        .map(map)
        .build(&image)
        .unwrap();
    assert_eq!(summary.names, 3);
    check(&image);
    let Some(mounted) = Mounted::new(&image) else {
        return;
    };
    let lines = describe(mounted.path());
    let paths: Vec<&str> = lines.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(paths, ["", "a.c", "keep", "keep/su"]);
    assert!(lines[Path::new("a.c")].starts_with("100644 1:2 1000000.000000000 "));
    assert!(lines[Path::new("keep/su")].starts_with("104755 7:8 42.500000000 "));
}

#[test]
fn later_sources_lie_over_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (low, high) = (folder.path().join("low"), folder.path().join("high"));
    for path in [
        "low/both",
        "low/turns-file/x",
        "high/both",
        "high/turns-dir",
    ] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    fs::write(low.join("both/low"), "low").unwrap();
    fs::write(low.join("both/same"), "low").unwrap();
    fs::write(low.join("turns-dir"), "low").unwrap();
    fs::write(high.join("both/same"), "high!").unwrap();
    fs::write(high.join("turns-file"), "high").unwrap();
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Directory(low))
        .source(Source::Directory(high))
        .build(&image)
        .unwrap();
    check(&image);
    let Some(mounted) = Mounted::new(&image) else {
        return;
    };
    let read = |name: &str| fs::read_to_string(mounted.path().join(name)).unwrap();
    assert_eq!(read("both/low"), "low");
    assert_eq!(read("both/same"), "high!");
    assert_eq!(read("turns-file"), "high");
    assert!(mounted.path().join("turns-dir").is_dir());
}

#[test]
fn unreadable_files_are_skipped_only_when_told() {
    if is_root() {
        eprintln!("SKIPPED: unreadable files: root reads everything");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    fs::write(tree.join("secret"), "x").unwrap();
    fs::set_permissions(tree.join("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let image = folder.path().join("image");
    let build = |skip| {
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .skip_unreadable(skip)
            .build(&image)
    };
    let error = build(false).unwrap_err();
    assert!(matches!(error, Error::Source { .. }), "{error}");
    assert!(!image.exists());
    let summary = build(true).unwrap();
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(summary.skipped, 2);
    check(&image);
}

#[test]
fn the_image_itself_is_not_its_source() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let image = folder.path().join("image");
    let build = || {
        Builder::new()
            .source(Source::Directory(folder.path().to_owned()))
            .mtime(pext4_image::build::parse_time("@5").unwrap())
            .replace(true)
            .build(&image)
            .unwrap()
    };
    let first = build();
    let bytes = fs::read(&image).unwrap();
    assert_eq!(build(), first);
    assert_eq!(fs::read(&image).unwrap(), bytes);
    assert_eq!(first.names, 1);
}

#[test]
fn a_replaced_image_keeps_name_owner_and_mode() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let (old, link) = (folder.path().join("old"), folder.path().join("link"));
    fs::write(&old, "").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&old, Some(7), Some(8)).unwrap();
    }
    let owner = |path| fs::metadata(path).map(|of| (of.uid(), of.gid())).unwrap();
    let before = owner(&old);
    std::os::unix::fs::symlink("old", &link).unwrap();
    let build = |image| {
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .replace(true)
            .build(image)
            .unwrap()
    };
    let summary = build(&link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let replaced = fs::metadata(&old).unwrap();
    assert_eq!(replaced.len(), summary.size);
    assert_eq!(replaced.permissions().mode() & 0o7777, 0o600);
    assert_eq!(owner(&old), before);
    check(&old);
}

/// An image that another process created during the build is not replaced.
#[test]
fn a_file_created_during_the_build_is_not_replaced() {
    struct Late(std::io::Cursor<Vec<u8>>, std::path::PathBuf);
    impl std::io::Read for Late {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            fs::write(&self.1, "another")?;
            self.0.read(buffer)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = crate::archives::Packer::new().file("x", b"x").finish();
    let late = Late(std::io::Cursor::new(archive), image.clone());
    let error = Builder::new()
        .source(Source::Stream("late".to_owned(), Box::new(late)))
        .build(&image)
        .unwrap_err();
    assert!(matches!(error, Error::Output { .. }), "{error}");
    assert_eq!(fs::read(&image).unwrap(), b"another");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn holes_stay_holes() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_sparse(&tree);
    let image = folder.path().join("image");
    let summary = Builder::new()
        .source(Source::Directory(tree))
        .build(&image)
        .unwrap();
    assert!(summary.content <= 60 * 4096, "{}", summary.content);
    let taken = fs::metadata(&image).unwrap().blocks() * 512;
    assert!(taken < 4 << 20, "the image takes {taken} bytes");
}

/// Space that a host has allocated and nobody has written is a hole as well.
#[test]
fn preallocated_space_stays_a_hole() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let log = File::create(tree.join("log")).unwrap();
    log.write_all_at(&[7; 8192], 0).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    if rustix::fs::fallocate(&log, flags, 0, 16 << 20).is_err() {
        return eprintln!("SKIPPED: no fallocate here");
    }
    log.sync_all().unwrap();
    if !matches!(
        rustix::fs::seek(&log, rustix::fs::SeekFrom::Hole(0)),
        Ok(8192)
    ) {
        return eprintln!("SKIPPED: what is allocated is data here");
    }
    let summary = Builder::new()
        .source(Source::Directory(tree))
        .threads(usize::MAX)
        .build(folder.path().join("image"))
        .unwrap();
    assert_eq!(summary.content, 8192);
}
