//! Archives in and out: what GNU tar reads of ours, what we read of its, and hostile ones.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use common::filled;
use pext4_edit::{Change, EditOptions, EditSession, Reader};
use pext4_fs::{DeviceNumber, FileType, InodeNumber};
use pext4_ondisk::acl;
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::walk;

fn has_tar() -> bool {
    let found = Command::new("tar")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("SKIPPED: tar is not installed");
    }
    found
}

fn fresh(folder: &Path, name: &str) -> std::path::PathBuf {
    let image = folder.join(name);
    Format::new(16 << 20, 1024, Features::Upstream)
        .inodes(2048)
        .make(&image)
        .expect("made");
    image
}

fn tree(image: &Path) -> Tree {
    let reader = Reader::open(image).expect("a sound image");
    walk(reader.volume(), InodeNumber::ROOT).expect("a sound image")
}

/// An image with everything that a tar can hold.
fn rich(folder: &Path) -> std::path::PathBuf {
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
    let image = folder.join("rich");
    filled(&format, &mut Random::new(9))
        .save(&image)
        .expect("room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let long = format!("/usr/{}/{}", "d".repeat(200), "f".repeat(255));
    let path = |text: &str| text.as_bytes().to_vec();
    let node = |text: &str, kind, major, minor| Change::MakeNode {
        path: path(text),
        kind,
        device: DeviceNumber { major, minor },
        permissions: Some(0o640),
    };
    for change in [
        Change::MakeDirectory {
            path: path(&format!("/usr/{}", "d".repeat(200))),
            parents: true,
            permissions: None,
        },
        common::write(&long, 2000, &mut Random::new(2)),
        common::write("/caf\u{e9} and blank", 10, &mut Random::new(2)),
        node("/null", FileType::CharacterDevice, 1, 3),
        node("/sda", FileType::BlockDevice, 8, 70_000),
        node("/pipe", FileType::Fifo, 0, 0),
        Change::Symlink {
            target: vec![b't'; 300],
            path: path("/far"),
            force: false,
        },
        Change::SetOwner {
            path: path("/null"),
            uid: Some(4_000_000_000),
            gid: Some(70_000),
            recursive: false,
            no_follow: false,
        },
        Change::SetXattr {
            path: path("/usr"),
            name: path("trusted.bytes"),
            value: vec![0, b'\n', 255, b'='],
        },
        Change::Touch {
            path: path("/etc"),
            time: Some(pext4_fs::Time {
                seconds: -77,
                nanoseconds: 250_000_000,
            }),
            no_create: true,
        },
    ] {
        session.apply(&change).expect("there is room");
    }
    let holes = session.volume().paths().create("holes").expect("room");
    drop(holes);
    let held = session.volume().paths().resolve("holes").expect("there");
    for piece in 0..60u64 {
        let written = session
            .volume()
            .write(held.inode(), piece * 40_000, b"data");
        assert_eq!(written.expect("room"), 4);
    }
    let change = pext4_fs::SetAttributes {
        size: Some(5_000_000),
        ..Default::default()
    };
    session
        .volume()
        .set_attributes(held.inode(), &change)
        .expect("a hole");
    drop(held);
    session.finish().expect("there is room");
    e2fsck(&image).expect("sound");
    image
}

fn export(image: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let reader = Reader::open(image).expect("sound");
    reader.export("/", &mut archive).expect("memory");
    archive
}

fn apply(image: &Path, archive: &[u8]) -> Result<(), String> {
    let mut session = EditSession::open(image, &EditOptions::default()).expect("it opens");
    session
        .apply_tar(&mut &archive[..], b"/")
        .map_err(|error| error.to_string())?;
    session
        .finish()
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Two trees but for what a new image has of its own: inode numbers, space, change times.
fn assert_alike(one: &Tree, two: &Tree) {
    let paths = |tree: &Tree| tree.items.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(one), paths(two));
    for (path, item) in &one.items {
        let other = &two.items[path];
        let path = String::from_utf8_lossy(path);
        assert!(item.content == other.content, "{path}");
        assert_eq!(item.link, other.link, "{path}");
        assert_eq!(item.xattrs, other.xattrs, "{path}");
        let mut facts = item.facts;
        facts.inode = other.facts.inode;
        facts.changed = other.facts.changed;
        if item.content.is_none() {
            facts.sectors = other.facts.sectors;
            facts.size = other.facts.size;
        }
        assert_eq!(facts, other.facts, "{path}");
    }
}

#[test]
fn an_exported_tree_comes_back() {
    let folder = scratch();
    let image = rich(folder.path());
    let archive = export(&image);
    assert_eq!(archive.len() % 512, 0);
    let again = fresh(folder.path(), "again");
    apply(&again, &archive).expect("it is our own");
    e2fsck(&again).expect("sound");
    assert_alike(&tree(&image), &tree(&again));
    assert!(
        export(&again) == archive,
        "the archive of the copy is the same"
    );
}

#[test]
fn gnu_tar_reads_what_is_exported() {
    if !has_tar() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs tar and root");
        return;
    }
    let folder = scratch();
    let image = rich(folder.path());
    let (archive, out, got) = (
        folder.path().join("tar"),
        folder.path().join("out"),
        folder.path().join("got"),
    );
    fs::write(&archive, export(&image)).expect("room");
    fs::create_dir(&out).expect("fresh");
    let told = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "-xpf"])
        .arg(&archive)
        .arg("-C")
        .arg(&out)
        .output()
        .expect("it runs");
    assert!(told.status.success(), "{told:?}");
    // It believes no time before 1970, and keeps it all the same.
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    let complaints = words
        .lines()
        .filter(|line| !line.contains("implausibly old"));
    assert_eq!(complaints.count(), 0, "{words}");
    let reader = Reader::open(&image).expect("sound");
    reader
        .get("/", &got, &pext4_edit::GetOptions::default())
        .expect("there is room");
    let (theirs, ours) = (host_tree(&out), host_tree(&got));
    assert_eq!(theirs.len(), tree(&image).items.len());
    for (one, two) in theirs.iter().zip(&ours) {
        assert_eq!(one, two);
    }
    let holes = fs::metadata(out.join("holes")).expect("there");
    assert!(holes.blocks() * 512 < holes.len() / 2, "sparse: {holes:?}");
}

/// Everything of a tree on the host that both ways must agree on.
fn host_tree(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = vec![top.to_owned()];
    while let Some(path) = rest.pop() {
        let stat = fs::symlink_metadata(&path).expect("there");
        let content = if stat.is_file() {
            fs::read(&path).expect("readable")
        } else if stat.is_symlink() {
            fs::read_link(&path)
                .expect("readable")
                .into_os_string()
                .into_encoded_bytes()
        } else {
            Vec::new()
        };
        let sum = content.iter().fold(0u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        found.push(format!(
            "{:?} {:o} {}:{} {} {} {}.{} {sum:x}",
            path.strip_prefix(top).expect("below"),
            stat.mode(),
            stat.uid(),
            stat.gid(),
            if stat.is_dir() { 0 } else { stat.len() },
            stat.rdev(),
            stat.mtime(),
            stat.mtime_nsec(),
        ));
        if stat.is_dir() {
            let entries = fs::read_dir(&path).expect("readable");
            rest.extend(entries.map(|entry| entry.expect("readable").path()));
        }
    }
    found.sort();
    found
}

#[test]
fn archives_of_gnu_tar_are_read_in_all_their_forms() {
    if !has_tar() {
        return;
    }
    let folder = scratch();
    let host = folder.path().join("tree");
    fs::create_dir_all(host.join("e".repeat(120)).join("sub")).expect("fresh");
    fs::write(host.join("file"), vec![3; 3000]).expect("fresh");
    fs::write(host.join("e".repeat(120)).join("g".repeat(130)), b"long").expect("fresh");
    fs::hard_link(host.join("file"), host.join("other")).expect("fresh");
    std::os::unix::fs::symlink("h".repeat(150), host.join("link")).expect("fresh");
    let sparse = fs::File::create(host.join("sparse")).expect("fresh");
    for piece in 0..30 {
        sparse.write_all_at(b"x", piece * 70_000).expect("room");
    }
    sparse.set_len(4_000_000).expect("room");
    let mut trees = Vec::new();
    for (number, form) in [
        &["--format=gnu"][..],
        &["--format=gnu", "-S"],
        &["--format=pax"],
        &["--format=pax", "-S", "--sparse-version=1.0"],
        &["--format=pax", "-S", "--sparse-version=0.1"],
    ]
    .into_iter()
    .enumerate()
    {
        let told = Command::new("tar")
            .args(form)
            .arg("--mtime=@1234567890")
            .args(["--sort=name", "-C"])
            .arg(&host)
            .args(["-cf", "-", "."])
            .stdout(Stdio::piped())
            .output()
            .expect("it runs");
        assert!(told.status.success(), "{told:?}");
        let image = fresh(folder.path(), &format!("image{number}"));
        apply(&image, &told.stdout).unwrap_or_else(|error| panic!("{form:?}: {error}"));
        e2fsck(&image).expect("sound");
        let tree = tree(&image);
        let content = Reader::open(&image).expect("sound");
        let content = content.volume().paths().read("sparse").expect("there");
        assert!(
            content == fs::read(host.join("sparse")).expect("there"),
            "{form:?}"
        );
        if form.contains(&"-S") {
            let sectors = tree.items[&b"sparse"[..]].facts.sectors;
            assert!(sectors * 512 < 1_000_000, "{form:?}: {sectors}");
        }
        trees.push(tree);
    }
    let paths = |tree: &Tree| tree.items.keys().cloned().collect::<Vec<_>>();
    assert!(trees.iter().all(|tree| paths(tree) == paths(&trees[0])));
    assert_eq!(trees[0].items[&b"file"[..]].facts.links, 2);
}

/// A header for `name`; data must follow.
fn header(name: &str, kind: u8, size: usize, link: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = parts.concat();
    archive.extend_from_slice(&[0; 1024]);
    archive
}

#[test]
fn hostile_archives_change_nothing() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let data = |bytes: usize| vec![7; bytes.next_multiple_of(512)];
    let first = [header("good", b'0', 600, ""), data(600)].concat();
    for (parts, says) in [
        (vec![header("../evil", b'0', 0, "")], "leads upwards"),
        (vec![header("a/../../evil", b'0', 0, "")], "leads upwards"),
        (vec![header("/etc/evil", b'0', 0, "")], "absolute"),
        (vec![header("hard", b'1', 0, "later")], "not there (yet)"),
        (
            vec![header("hard", b'1', 0, "../../etc/passwd")],
            "leads upwards",
        ),
        (vec![header("hard", b'1', 0, "/etc/passwd")], "absolute"),
        (vec![header("file", b'Z', 0, "")], "unknown"),
        (vec![header("good/below", b'0', 0, "")], "not a directory"),
        (vec![header(".", b'0', 0, "")], "root is a directory"),
        (vec![header("big", b'0', 0o7_7777_7777, "")], "cut short"),
        (
            vec![
                header("x", b'x', 9, ""),
                b"99 nothing".repeat(52)[..512].to_vec(),
            ],
            "damaged",
        ),
        (vec![header("x", b'x', 0o7777_7777, "")], "absurdly large"),
        (vec![vec![9; 512]], "checksum is wrong"),
        (vec![b"\x1f\x8b".repeat(256)], "compressed"),
    ] {
        let archive = archive(&[vec![first.clone()], parts].concat());
        let error = apply(&image, &archive).expect_err(says);
        assert!(error.contains(says), "{error} / {says}");
        assert!(fs::read(&image).expect("readable") == before, "{says}");
    }
}

/// A header with other bytes at one place.
fn changed(mut header: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// An extended header with one record.
fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = rest + if rest + 2 < 100 { 2 } else { 3 };
    let mut data = format!("{length} {key}={value}\n").into_bytes();
    assert_eq!(data.len(), length);
    data.resize(length.next_multiple_of(512), 0);
    [header("x", b'x', length, ""), data].concat()
}

#[test]
fn device_numbers_that_ext4_cannot_hold_are_refused() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let device = |kind, major: &[u8], minor: &[u8]| {
        let header = changed(header("dev/odd", kind, 0, ""), 329, major);
        archive(&[changed(header, 337, minor)])
    };
    for (archive, says) in [
        (device(b'3', b"0010000\0", b"0000001\0"), "4095"),
        (device(b'4', b"0000010\0", b"4000000\0"), "1048575"),
        (device(b'3', b"no digit", b"0000001\0"), "makes no sense"),
        (
            device(b'4', b"0000010\0", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"),
            "makes no sense",
        ),
    ] {
        let error = apply(&image, &archive).expect_err(says);
        assert!(
            error.contains("dev/odd") && error.contains(says),
            "{error} / {says}"
        );
        assert!(fs::read(&image).expect("readable") == before, "{says}");
    }
    // The largest that there are; and what stands there in the header of a file does not matter.
    let largest = device(b'4', b"0007777\0", b"3777777\0");
    let file = changed(header("file", b'0', 0, ""), 329, b"no digit");
    apply(&image, &[file, largest].concat()).expect("it can be held");
    let reader = Reader::open(&image).expect("sound");
    let there = reader.volume().paths().metadata("dev/odd").expect("there");
    let expected = DeviceNumber {
        major: 4095,
        minor: 1_048_575,
    };
    assert_eq!(there.device, expected);
}

#[test]
fn large_device_numbers_in_records_count() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let archive = archive(&[
        record("SCHILY.devminor", "300000"),
        header("odd", b'3', 0, ""),
    ]);
    apply(&image, &archive).expect("it can be held");
    let reader = Reader::open(&image).expect("sound");
    let there = reader.volume().paths().metadata("odd").expect("there");
    assert_eq!(there.device.minor, 300_000);
}

#[test]
fn the_last_entry_of_a_directory_counts() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let entry = |name, mode: &[u8], time: &[u8]| {
        let header = changed(header(name, b'5', 0, ""), 100, mode);
        changed(header, 136, time)
    };
    let archive = archive(&[
        entry("both", b"0000700\0", b"00000000100\0"),
        header("both/file", b'0', 0, ""),
        entry("way/", b"0000711\0", b"00000000100\0"),
        header("link", b'2', 0, "way"),
        entry("both/", b"0000755\0", b"00000000200\0"),
        entry("link/", b"0000750\0", b"00000000200\0"),
    ]);
    apply(&image, &archive).expect("a sound archive");
    let reader = Reader::open(&image).expect("sound");
    for (path, mode) in [("both", 0o755), ("way", 0o750)] {
        let there = reader.volume().paths().metadata(path).expect("there");
        assert_eq!(there.mode & 0o7777, mode, "{path}");
        assert_eq!(there.modified.seconds, 0o200, "{path}");
    }
}

/// The permission bits of a file, and its list of this name in the form of system calls.
fn list_of(image: &Path, path: &str, name: &[u8]) -> (u16, Vec<acl::Entry>) {
    let reader = Reader::open(image).expect("sound");
    let held = reader.volume().paths().resolve(path).expect("there");
    let value = reader
        .volume()
        .xattr(held.inode(), name)
        .expect("it has one");
    let mode = reader.volume().paths().metadata(path).expect("there").mode & 0o7777;
    (mode, acl::decode(&value).expect("sound"))
}

fn acl_entry(tag: u16, permissions: u16, id: u32) -> acl::Entry {
    acl::Entry {
        tag,
        permissions,
        id,
    }
}

#[test]
fn access_control_lists_in_text_come_along() {
    let folder = scratch();
    let expected = [
        acl_entry(acl::USER_OBJECT, 7, acl::NO_ID),
        acl_entry(acl::USER, 7, 1000),
        acl_entry(acl::GROUP_OBJECT, 1, acl::NO_ID),
        acl_entry(acl::MASK, 5, acl::NO_ID),
        acl_entry(acl::OTHER, 0, acl::NO_ID),
    ];
    for (number, text) in [
        "user::rwx,user:1000:rwx,group::--x,mask::r-x,other::---",
        "user::rwx\nuser:1000:rwx\t#effective:r-x\ngroup::--x\nmask::r-x\nother::---\n",
        "other::,user::rwx,user:lisa:rwx:1000,group::x,mask::rx",
        "u::rwx,u:1000:rwx,g::--x,m::r-x,o::---",
    ]
    .into_iter()
    .enumerate()
    {
        let image = fresh(folder.path(), &format!("image{number}"));
        let set_user = changed(header("file", b'0', 0, ""), 100, b"0004644\0");
        let directory = changed(header("dir/", b'5', 0, ""), 100, b"0000700\0");
        let archive = archive(&[
            record("SCHILY.acl.access", text),
            set_user,
            record("SCHILY.acl.default", text),
            directory,
        ]);
        apply(&image, &archive).expect(text);
        e2fsck(&image).expect("sound");
        let (mode, list) = list_of(&image, "file", acl::ACCESS);
        assert_eq!((mode, &list[..]), (0o4750, &expected[..]), "{text:?}");
        let (mode, list) = list_of(&image, "dir", acl::DEFAULT);
        assert_eq!((mode, &list[..]), (0o700, &expected[..]), "{text:?}");
    }
    // Without a mask the group's own entry decides.
    let image = fresh(folder.path(), "plain");
    let parts = [
        record("SCHILY.acl.access", "user::rw-,group::-w-,other::r--"),
        header("file", b'0', 0, ""),
    ];
    apply(&image, &archive(&parts)).expect("it makes sense");
    assert_eq!(list_of(&image, "file", acl::ACCESS).0, 0o624);
}

#[test]
fn access_control_lists_that_cannot_be_kept_are_refused() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let base = "user::rwx,group::r-x,other::r-x";
    for (list, kind, says) in [
        (format!("{base},mask::r-x,user:lisa:rwx"), b'0', "`lisa`"),
        (
            format!("{base},mask::r-x,group:\x1b[31m:rwx"),
            b'0',
            "`\\u{1b}[31m`",
        ),
        (format!("{base},user:1000:rwx"), b'0', "mask"),
        (format!("{base},other::r--"), b'0', "twice"),
        (
            format!("{base},mask::r-x,user:1:r--,user:1:rwx"),
            b'0',
            "twice",
        ),
        (
            format!("{base},mask::r-x,user:4294967295:r--"),
            b'0',
            "4294967295",
        ),
        ("user::rwx,group::r-x".to_owned(), b'0', "other::"),
        (format!("{base},mask"), b'0', "`mask`"),
        (format!("{base},mask::rwz"), b'0', "`mask::rwz`"),
        (format!("{base},nobody::rwx"), b'0', "`nobody::rwx`"),
        (base.to_owned(), b'2', "symbolic link"),
    ] {
        let parts = [
            record("SCHILY.acl.access", &list),
            header("dir/odd", kind, 0, "x"),
        ];
        let error = apply(&image, &archive(&parts)).expect_err(says);
        assert!(
            error.contains("dir/odd") && error.contains(says),
            "{error} / {says}"
        );
        assert!(!error.contains('\x1b'), "{error:?}");
        assert!(fs::read(&image).expect("readable") == before, "{says}");
    }
    let parts = [
        record("SCHILY.acl.default", base),
        header("dir/odd", b'0', 0, ""),
    ];
    let error = apply(&image, &archive(&parts)).expect_err("it is for directories");
    assert!(
        error.contains("dir/odd") && error.contains("directories"),
        "{error}"
    );
}

#[test]
fn access_control_lists_of_other_programs_come_along() {
    let folder = scratch();
    let host = folder.path().join("tree");
    fs::create_dir(&host).expect("fresh");
    fs::write(host.join("file"), b"x").expect("fresh");
    let run = |command: &str, arguments: &[&str]| {
        let done = Command::new(command)
            .args(arguments)
            .current_dir(&host)
            .output();
        done.ok()
            .filter(|done| done.status.success())
            .map(|done| done.stdout)
    };
    let set = run("setfacl", &["-m", "u:1234:rwx,g:77:rx,m::r", "file"])
        .and_then(|_| run("setfacl", &["-d", "-m", "u:1234:rwx", "."]));
    if set.is_none() {
        eprintln!("SKIPPED: setfacl is not installed, or the host keeps no access control lists");
        return;
    }
    let gnu: &[&str] = &["--acls", "--numeric-owner", "-cf", "-", "."];
    let bsd: &[&str] = &["--acls", "--format=pax", "-cf", "-", "."];
    for (command, arguments) in [("tar", gnu), ("bsdtar", bsd)] {
        let Some(archive) = run(command, arguments) else {
            eprintln!("SKIPPED: {command} is not there or knows no --acls");
            continue;
        };
        let image = fresh(folder.path(), command);
        apply(&image, &archive).expect(command);
        e2fsck(&image).expect("sound");
        let (_, list) = list_of(&image, "file", acl::ACCESS);
        assert!(
            list.contains(&acl_entry(acl::USER, 7, 1234)),
            "{command}: {list:?}"
        );
        assert!(
            list.contains(&acl_entry(acl::GROUP, 5, 77)),
            "{command}: {list:?}"
        );
        assert!(
            list.contains(&acl_entry(acl::MASK, 4, acl::NO_ID)),
            "{command}: {list:?}"
        );
        let (_, list) = list_of(&image, "/", acl::DEFAULT);
        assert!(
            list.contains(&acl_entry(acl::USER, 7, 1234)),
            "{command}: {list:?}"
        );
    }
}

#[test]
fn an_archive_that_was_cut_short_changes_nothing() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let whole = archive(&[
        header("one", b'0', 600, ""),
        vec![1; 1024],
        header("two", b'0', 512, ""),
        vec![0; 512],
    ]);
    for length in [0, 100, 512, 700, 1100, 1536, 2048, 2100, 2500] {
        let error = apply(&image, &whole[..length]).expect_err("it is cut");
        assert!(error.contains("cut short"), "{length}: {error}");
    }
    assert!(fs::read(&image).expect("readable") == before);
    apply(&image, &whole[..whole.len() - 512]).expect("one block of zeroes ends it");
}

#[test]
fn links_in_an_archive_stay_inside_the_image() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).expect("fresh");
    let link = outside.to_str().expect("text");
    let archive = archive(&[
        header("out", b'2', 0, link),
        header("up", b'2', 0, "../../../../etc"),
        header("up/file", b'0', 0, ""),
        header("out/file", b'0', 0, ""),
    ]);
    // `up` leads to /etc of the image, which is made; `out` to nothing, in the image too.
    let told = apply(&image, &archive);
    assert_eq!(fs::read_dir(&outside).expect("there").count(), 0);
    if told.is_ok() {
        e2fsck(&image).expect("sound");
    }
}

#[test]
fn a_stream_that_fails_changes_nothing() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::Error::other("the wire broke"));
            }
            self.0 -= 1;
            into.fill(1);
            Ok(into.len())
        }
    }
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let error = session.write_from(b"/file", &mut Broken(2), Default::default());
    let error = error.expect_err("it broke").to_string();
    assert!(error.contains("the wire broke"), "{error}");
    drop(session);
    assert!(fs::read(&image).expect("readable") == before);
}
