//! Archives in and out: GNU tar reads ours, we read GNU tar's, and hostile ones are refused.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use pext4_edit::{Change, EditOptions, EditSession, Reader, change};
use pext4_fs::{DeviceNumber, FileType};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;

use crate::common::archives::{apply, archive, changed, export, fresh, header, tree};
use crate::common::{self, filled};

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

/// An image with everything that a tar can hold.
fn rich(folder: &Path) -> std::path::PathBuf {
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(2048);
    let image = folder.join("rich");
    filled(&format, &mut Random::new(9))
        .save(&image)
        .expect("room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let long = format!("/usr/{}/{}", "d".repeat(200), "f".repeat(255));
    // A slash is the last byte of its name in the header.
    let cut = format!("/usr/{}/{}", "d".repeat(45), "d".repeat(49));
    let path = |text: &str| text.as_bytes().to_vec();
    let node = |text: &str, kind, major, minor| {
        Change::MakeNode(change::MakeNode {
            path: path(text),
            kind,
            device: DeviceNumber { major, minor },
            permissions: Some(0o640),
        })
    };
    for change in [
        Change::MakeDirectory(change::MakeDirectory {
            path: path(&format!("/usr/{}", "d".repeat(200))),
            parents: true,
            mode: None,
        }),
        common::write(&long, 2000, &mut Random::new(2)),
        Change::MakeDirectory(change::MakeDirectory {
            path: path(&cut),
            parents: true,
            mode: None,
        }),
        common::write(&format!("{cut}/file"), 2000, &mut Random::new(2)),
        common::write("/caf\u{e9} and blank", 10, &mut Random::new(2)),
        node("/null", FileType::CharacterDevice, 1, 3),
        node("/sda", FileType::BlockDevice, 8, 70_000),
        node("/pipe", FileType::Fifo, 0, 0),
        Change::Symlink(change::Symlink {
            into: pext4_edit::IntoDirectory::Always,
            target: vec![b't'; 300],
            path: path("/far"),
            force: false,
        }),
        Change::SetOwner(change::SetOwner {
            path: path("/null"),
            uid: Some(4_000_000_000),
            gid: Some(70_000),
            recursive: false,
            no_follow: false,
        }),
        Change::SetXattr(change::SetXattr {
            path: path("/usr"),
            name: path("trusted.bytes"),
            value: vec![0, b'\n', 255, b'='],
        }),
        Change::Touch(change::Touch {
            path: path("/etc"),
            time: Some(pext4_fs::Time {
                seconds: -77,
                nanoseconds: 250_000_000,
            }),
            no_create: true,
        }),
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

/// Compares two trees except for what differs in a new image: inode numbers, space, change times.
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
    // GNU tar warns of times before 1970, and keeps them nevertheless.
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

/// Everything of a tree on the host in which both directions must agree.
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
        &["--format=pax", "-S", "--sparse-version=0.0"],
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

#[test]
fn the_root_of_an_archive_is_a_directory_wherever_it_goes() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    for kind in [b'0', b'1', b'2'] {
        let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
        let bytes = archive(&[header(".", kind, 0, "good")]);
        let told = session.apply_tar(&mut &bytes[..], b"/dir");
        let told = told.expect_err("the root is a directory").to_string();
        assert!(told.contains("root, which is a directory"), "{told}");
    }
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
        entry("both/", b"0000755\0", b"00000000200\0"),
        entry("link/", b"0000750\0", b"00000000200\0"),
    ]);
    let link = common::archives::archive(&[header("link", b'2', 0, "way")]);
    apply(&image, &link).expect("a sound archive");
    apply(&image, &archive).expect("a sound archive");
    let reader = Reader::open(&image).expect("sound");
    for (path, mode) in [("both", 0o755), ("way", 0o750)] {
        let there = reader.volume().paths().attributes(path).expect("there");
        assert_eq!(there.mode & 0o7777, mode, "{path}");
        assert_eq!(there.modified.seconds, 0o200, "{path}");
    }
}

/// As `build` and GNU tar do.
#[test]
fn a_directory_replaces_what_is_none() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let links = [
        ("dangling", "nowhere"),
        ("circle", "circle"),
        ("through", "file/x"),
    ];
    let mut before = vec![header("file", b'0', 0, ""), header("d/kept", b'0', 0, "")];
    before.extend(links.map(|(name, target)| header(name, b'2', 0, target)));
    before.push(header("link", b'2', 0, "d"));
    apply(&image, &archive(&before)).expect("sound");
    let names = ["file", "dangling", "circle", "through", "link"];
    let after = names.map(|name| {
        [
            header(name, b'5', 0, ""),
            header(&format!("{name}/x"), b'0', 0, ""),
        ]
    });
    apply(&image, &archive(&after.concat())).expect("sound");
    let items = tree(&image).items;
    for name in &names[..4] {
        assert!(items.contains_key(format!("{name}/x").as_bytes()), "{name}");
    }
    // A link to a directory leads to it.
    assert!(items.contains_key(&b"d/x"[..]) && items.contains_key(&b"d/kept"[..]));
}
