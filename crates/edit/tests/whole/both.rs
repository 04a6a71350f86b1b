//! `edit --tar` and `build` read the same files from an archive, whichever program made it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use pext4_edit::{EditOptions, EditSession, ExportOptions, Reader};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::tree::Tree;

use crate::common::archives::{
    apply, archive, build, changed, export, fresh, header, record, records, tree,
};

/// The results of both for one archive.
fn both(folder: &Path, name: &str, archive: &[u8]) -> [Result<Tree, String>; 2] {
    let edited = fresh(folder, &format!("{name}-edited"));
    let built = folder.join(format!("{name}-built"));
    let seen = |image: &Path| {
        e2fsck(image).expect("sound");
        tree(image)
    };
    [
        apply(&edited, archive).map(|()| seen(&edited)),
        build(&built, archive).map(|()| seen(&built)),
    ]
}

fn content(tree: &Tree, path: &str) -> Vec<u8> {
    let item = tree.items.get(path.as_bytes());
    let item = item.unwrap_or_else(|| panic!("{path} is there"));
    let content = item.content.as_ref().expect("a file");
    content.read(0, content.size())
}

fn data(byte: u8, length: usize) -> Vec<u8> {
    let mut data = vec![byte; length];
    data.resize(length.next_multiple_of(512), 0);
    data
}

/// An entry between two files: of this type, with a size, with or without as much content.
fn odd(kind: u8, name: &str, form: &[u8], size: usize, has_content: bool) -> Vec<u8> {
    let link = if matches!(kind, b'1' | b'2') {
        "first"
    } else {
        ""
    };
    let posix = match form {
        b"posix" => record("mtime", "1000000.5"),
        _ => Vec::new(),
    };
    let magic = if form == b"posix" {
        b"ustar\x0000"
    } else {
        form
    };
    archive(&[
        header("first", b'0', 600, ""),
        data(b'A', 600),
        posix,
        changed(header(name, kind, size, link), 257, magic),
        if has_content {
            data(b'B', size)
        } else {
            Vec::new()
        },
        header("after", b'0', 3, ""),
        data(b'C', 3),
    ])
}

/// The forms of headers: POSIX' old one, GNU's, the oldest, and the one with records.
const FORMS: [&[u8]; 4] = [b"ustar\x0000", b"ustar  \0", &[0; 8], b"posix"];

#[test]
fn a_size_without_content_hides_no_entry() {
    let folder = scratch();
    for (number, form) in FORMS.into_iter().enumerate() {
        for (kind, name) in [
            (b'1', "odd"),
            (b'2', "odd"),
            (b'3', "odd"),
            (b'4', "odd"),
            (b'5', "odd"),
            (b'6', "odd"),
            (b'0', "odd/"),
        ] {
            let bytes = odd(kind, name, form, 600, false);
            let name = format!("{}-{number}", char::from(kind));
            for tree in both(folder.path(), &name, &bytes) {
                let tree = tree.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(tree.items.contains_key(&b"odd"[..]), "{name}");
                assert_eq!(content(&tree, "after"), b"CCC", "{name}");
            }
        }
    }
}

#[test]
fn content_behind_what_has_none_is_passed_over() {
    let folder = scratch();
    for (kind, name) in [(b'1', "odd"), (b'0', "odd/")] {
        for size in [1, 512, 600, 5000] {
            let bytes = odd(kind, name, b"posix", size, true);
            let name = format!("{}-{size}", char::from(kind));
            for tree in both(folder.path(), &name, &bytes) {
                let tree = tree.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(content(&tree, "after"), b"CCC", "{name}");
                assert_eq!(content(&tree, "first"), [b'A'; 600], "{name}");
            }
        }
    }
    // No more of it than there is.
    for size in [5 << 20, 0o777_7777_7777] {
        let parts = [
            header("first", b'0', 0, ""),
            record("mtime", "1000000.5"),
            header("odd", b'1', size, "first"),
            data(b'B', 600),
        ];
        for told in both(folder.path(), "cut", &archive(&parts)) {
            let error = told.expect_err("it ends early");
            assert!(
                error.contains("ends inside it") || error.contains("cut short"),
                "{error}"
            );
        }
    }
}

/// Some archivers write no end mark. Where the last entry has no content, nothing follows it,
/// whatever size it states.
#[test]
fn an_archive_may_end_behind_an_entry() {
    let folder = scratch();
    let ends = [
        vec![header("last", b'0', 512, ""), data(b'D', 512)],
        vec![header("last", b'5', 0, "")],
        vec![record("mtime", "1.5"), header("last", b'1', 600, "first")],
        vec![header("last/", b'0', 600, "")],
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let first = [header("first", b'0', 600, ""), data(b'A', 600)].concat();
        let bytes = [first, end.concat()].concat();
        for tree in both(folder.path(), &number.to_string(), &bytes) {
            let tree = tree.unwrap_or_else(|error| panic!("{number}: {error}"));
            assert!(tree.items.contains_key(&b"last"[..]), "{number}");
            assert_eq!(content(&tree, "first"), [b'A'; 600], "{number}");
        }
        for told in both(folder.path(), "cut", &[&bytes[..], &[0; 100]].concat()) {
            let error = told.expect_err("a part of a block");
            assert!(error.contains("cut short"), "{number}: {error}");
        }
        let notes_of = |bytes: &[u8]| {
            let image = fresh(folder.path(), "noted");
            let options = EditOptions::default();
            let mut session = EditSession::open(&image, &options).expect("it opens");
            session.apply_tar(&mut &*bytes, b"/").expect("sound");
            session.notes().to_vec()
        };
        let notes = notes_of(&bytes);
        let is_noted = notes.len() == 1 && notes[0].contains("without an end mark");
        assert!(is_noted, "{number}: {notes:?}");
        // What would be content behind the others is content of zeroes.
        if number < 2 {
            let notes = notes_of(&archive(&[bytes]));
            assert!(notes.is_empty(), "{number}: {notes:?}");
        }
    }
}

/// A later entry counts, and a directory of an archive follows no link of the same archive.
#[test]
fn later_entries_replace_earlier_ones_alike() {
    let folder = scratch();
    let link = |name, target| header(name, b'2', 0, target);
    let directory = |name, mode: &[u8]| {
        let header = changed(header(name, b'5', 0, ""), 100, mode);
        changed(header, 108, b"0000007")
    };
    let file = |name, mode: &[u8]| {
        let header = changed(header(name, b'0', 0, ""), 100, mode);
        changed(header, 108, b"0000011")
    };
    let plain = b"0000755";
    let start = || vec![directory("d/", b"0000700"), link("l", "d")];
    let with = |rest: &[Vec<u8>]| [start(), rest.to_vec()].concat();
    for (name, parts) in [
        ("directory", with(&[directory("l/", b"0002755")])),
        (
            "file",
            with(&[directory("l/", b"0002755"), file("l", b"0000600")]),
        ),
        (
            "full",
            with(&[
                directory("l/", plain),
                file("l/x", plain),
                file("l", b"0000600"),
            ]),
        ),
        ("unnamed", vec![file("u/v/w", plain), file("u", b"0000600")]),
        (
            "hard",
            vec![
                directory("h/", plain),
                file("x", plain),
                header("h", b'1', 0, "x"),
            ],
        ),
        (
            "retargeted",
            with(&[
                directory("e/", plain),
                directory("l/s/", b"0002755"),
                link("l", "e"),
                file("l/s", b"0000600"),
            ]),
        ),
        ("above", vec![link("d", ".."), directory("d/", b"0002750")]),
        (
            "below itself",
            vec![link("l", "."), directory("l/l/", b"0002750")],
        ),
        ("itself", vec![link("d", "."), directory("d/", b"0002750")]),
    ] {
        let [edited, built] = both(folder.path(), name, &archive(&parts));
        let (edited, built) = (edited.expect(name), built.expect(name));
        let facts = |tree: &Tree| -> BTreeMap<Vec<u8>, _> {
            let fact = |item: &pext4_testkit::tree::Item| {
                let facts = &item.facts;
                (facts.kind, facts.permissions, facts.uid, item.link.clone())
            };
            let items = tree.items.iter();
            items
                .map(|(path, item)| (path.clone(), fact(item)))
                .collect()
        };
        assert_eq!(facts(&edited), facts(&built), "{name}");
    }
}

/// The extended attributes of `file`.
fn attributes(tree: &Tree) -> BTreeMap<String, Vec<u8>> {
    let item = &tree.items[&b"file"[..]];
    let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    let own = item.xattrs.iter();
    own.map(|(name, value)| (text(name), value.clone()))
        .collect()
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
    pairs.collect()
}

const ODD_NAMES: [(&str, &str); 5] = [
    ("user.100%", "full"),
    ("user.a=b", "c=d"),
    ("user.b c", ""),
    ("user.e%3Df", "%3D"),
    ("user.plain", ""),
];

#[test]
fn names_and_values_of_attributes_survive() {
    let folder = scratch();
    // As GNU tar and as bsdtar write them.
    let gnu = [
        ("SCHILY.xattr.user.100%25", "full"),
        ("SCHILY.xattr.user.a%3Db", "c=d"),
        ("SCHILY.xattr.user.b c", ""),
        ("SCHILY.xattr.user.e%253Df", "%3D"),
        ("SCHILY.xattr.user.plain", ""),
    ];
    let bsd = [
        ("LIBARCHIVE.xattr.user.100%25", "ZnVsbA"),
        ("SCHILY.xattr.user.100%25", "full"),
        ("LIBARCHIVE.xattr.user.a%3Db", "Yz1k"),
        ("SCHILY.xattr.user.a%3Db", "c=d"),
        ("LIBARCHIVE.xattr.user.b%20c", ""),
        ("SCHILY.xattr.user.b%20c", ""),
        ("LIBARCHIVE.xattr.user.e%253Df", "JTNE"),
        ("LIBARCHIVE.xattr.user.plain", ""),
    ];
    for (name, said) in [("gnu", &gnu[..]), ("bsd", &bsd)] {
        let bytes = archive(&[records(said), header("file", b'0', 0, "")]);
        for tree in both(folder.path(), name, &bytes) {
            let found = attributes(&tree.expect("it makes sense"));
            assert_eq!(found, expected(&ODD_NAMES), "{name}");
        }
    }
    let exported = export(&folder.path().join("gnu-edited"));
    for tree in both(folder.path(), "again", &exported) {
        let found = attributes(&tree.expect("it is our own"));
        assert_eq!(found, expected(&ODD_NAMES));
    }
}

#[test]
fn attributes_that_cannot_be_stored_are_told() {
    let folder = scratch();
    for (key, value, says) in [
        ("SCHILY.xattr.system.data", "x", "system.data"),
        ("SCHILY.xattr.system.nfs4_acl", "x", "system.nfs4_acl"),
        (
            "SCHILY.xattr.btrfs.compression",
            "zstd",
            "btrfs.compression",
        ),
        ("LIBARCHIVE.xattr.user.%61", "d*g", "user.a"),
    ] {
        let bytes = archive(&[record(key, value), header("dir/odd", b'0', 0, "")]);
        for told in both(folder.path(), "told", &bytes) {
            let error = told.expect_err(key);
            assert!(error.contains("dir/odd") && error.contains(says), "{error}");
        }
    }
}

#[test]
fn an_empty_record_takes_the_general_one_back() {
    let folder = scratch();
    let general = records(&[("path", "everywhere"), ("uid", "77")]);
    let general = [
        changed(general[..512].to_vec(), 156, b"g"),
        general[512..].to_vec(),
    ]
    .concat();
    let parts = [
        general,
        records(&[("path", ""), ("uid", "")]),
        header("file", b'0', 0, ""),
    ];
    for tree in both(folder.path(), "back", &archive(&parts)) {
        let tree = tree.expect("it makes sense");
        assert_eq!(tree.items[&b"file"[..]].facts.uid, 0);
    }
}

#[test]
fn names_of_attributes_go_to_other_programs_and_back() {
    let folder = scratch();
    let run = |command: &str, arguments: &[&str]| {
        let done = Command::new(command)
            .args(arguments)
            .current_dir(folder.path())
            .output();
        let done = done.ok().filter(|done| done.status.success());
        if done.is_none() {
            eprintln!("SKIPPED: {command} {arguments:?} does not work here");
        }
        done.map(|done| done.stdout)
    };
    fs::write(folder.path().join("file"), b"x").expect("room");
    for (name, value) in ODD_NAMES {
        if run("setfattr", &["-n", name, "-v", value, "file"]).is_none() {
            return;
        }
    }
    for (program, format) in [("tar", "posix"), ("bsdtar", "pax")] {
        let format = format!("--format={format}");
        let Some(bytes) = run(program, &["--xattrs", &format, "-cf", "-", "file"]) else {
            continue;
        };
        for tree in both(folder.path(), program, &bytes) {
            let found = attributes(&tree.expect(program));
            assert_eq!(found, expected(&ODD_NAMES), "{program}");
        }
    }
    let exported = export(&folder.path().join("tar-edited"));
    fs::write(folder.path().join("ours"), exported).expect("room");
    fs::remove_file(folder.path().join("file")).expect("there");
    if run("tar", &["--xattrs", "-xf", "ours", "./file"]).is_none() {
        return;
    }
    for (name, value) in ODD_NAMES {
        let told = run("getfattr", &["--only-values", "-n", name, "file"]);
        assert_eq!(told.as_deref(), Some(value.as_bytes()), "{name}");
    }
}

#[test]
fn what_cannot_be_read_is_left_out_of_an_export_if_that_is_wanted() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let parts = [
        header("dir/before", b'0', 3, ""),
        data(b'A', 3),
        header("dir/odd", b'0', 3, ""),
        data(b'B', 3),
        header("dir/tail", b'0', 3, ""),
        data(b'C', 3),
    ];
    apply(&image, &archive(&parts)).expect("it makes sense");
    // The header of its extents is none any more.
    let request = "set_inode_field dir/odd block[0] 1".to_owned();
    pext4_testkit::oracle::debugfs::command(&image, &[request]).expect("debugfs is there");
    let reader = Reader::open(&image).expect("the rest is sound");
    let mut bytes = Vec::new();
    let error = reader
        .export("/", &mut bytes)
        .expect_err("it cannot be read");
    assert!(error.to_string().contains("/dir/odd: "), "{error}");
    bytes.clear();
    let mut told = Vec::new();
    let mut leave = |error: &pext4_edit::EditError| told.push(error.to_string());
    let options = ExportOptions {
        on_skipped: Some(&mut leave),
        ..ExportOptions::default()
    };
    let exported = reader.export_with("/", &mut bytes, options);
    assert_eq!(exported.expect("it is left out").unreadable_skipped, 1);
    assert!(
        matches!(&told[..], [one] if one.contains("/dir/odd: ")),
        "{told:?}"
    );
    for tree in both(folder.path(), "rest", &bytes) {
        let tree = tree.expect("it is our own");
        assert!(!tree.items.contains_key(&b"dir/odd"[..]));
        assert_eq!(content(&tree, "dir/tail"), b"CCC");
    }
}
