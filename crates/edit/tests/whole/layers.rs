//! Layers of container images over an image: what their marks hide, in any order of the entries.

use std::path::Path;

use pext4_edit::{EditOptions, EditSession, Reader};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;

use crate::common::archives::{archive, changed, fresh, header};

fn file(name: &str) -> Vec<u8> {
    header(name, b'0', 0, "")
}

fn directory(name: &str) -> Vec<u8> {
    header(name, b'5', 0, "")
}

/// Unpacks archives into an image, the first as files and the others as layers. Returns the image's
/// paths.
fn unpacked(folder: &Path, archives: &[&[Vec<u8>]]) -> Vec<String> {
    let image = folder.join("image");
    let _ = std::fs::remove_file(&image);
    fresh(folder, "image");
    for (index, parts) in archives.iter().enumerate() {
        let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
        let bytes = archive(parts);
        let done = match index {
            0 => session.apply_tar(&mut &bytes[..], b"/"),
            _ => session.apply_layer(&mut &bytes[..], b"/"),
        };
        done.expect("a sound archive");
        session.finish().expect("there is room");
    }
    e2fsck(&image).expect("a sound image");
    let reader = Reader::open(&image).expect("sound");
    let mut paths = Vec::new();
    let walked = reader.walk("/", &mut |file| {
        let path = String::from_utf8_lossy(&file.path).into_owned();
        paths.push(path);
        Ok(())
    });
    walked.expect("sound");
    paths.retain(|path| path != "/" && !path.starts_with("/lost+found"));
    paths.sort();
    paths
}

#[test]
fn marks_hide_what_the_image_had_and_nothing_of_the_layer() {
    let lower: Vec<Vec<u8>> = [
        "etc/gone",
        "etc/kept",
        "opaque/old",
        "opaque/sub/old",
        "removed/x",
        "again/old",
        "deep/a/old",
    ]
    .map(file)
    .into();
    let mut marks: Vec<Vec<u8>> = [
        "etc/.wh.gone",
        "etc/.wh.never",
        "opaque/.wh..wh..opq",
        ".wh.removed",
        ".wh.again",
        ".wh.deep",
        "etc/.wh.new",
        ".wh..wh.plnk/12.34",
    ]
    .map(file)
    .into();
    let own: Vec<Vec<u8>> = [
        "etc/new",
        "opaque/sub/new",
        "opaque/own",
        "again/new",
        "deep/a/new",
    ]
    .map(file)
    .into();
    let expected = [
        "/again",
        "/again/new",
        "/deep",
        "/deep/a",
        "/deep/a/new",
        "/etc",
        "/etc/kept",
        "/etc/new",
        "/opaque",
        "/opaque/own",
        "/opaque/sub",
        "/opaque/sub/new",
    ];
    let folder = scratch();
    let first = [marks.clone(), own.clone()].concat();
    assert_eq!(
        unpacked(folder.path(), &[&lower, &first]),
        expected,
        "marks first"
    );
    marks.reverse();
    let last = [own, marks].concat();
    assert_eq!(
        unpacked(folder.path(), &[&lower, &last]),
        expected,
        "marks last"
    );
}

#[test]
fn a_file_of_a_layer_replaces_whatever_has_its_name() {
    let lower = [
        directory("usr/lib/"),
        file("usr/lib/old"),
        header("lib", b'2', 0, "usr/lib"),
        file("was-file"),
        file("was-directory/x"),
        file("kept"),
    ];
    let layer = [
        file("lib/through-link"),
        directory("was-file/"),
        file("was-file/x"),
        file("was-directory"),
        header("usr/lib/hard", b'1', 0, "kept"),
        file(".wh.kept"),
    ];
    let folder = scratch();
    let paths = unpacked(folder.path(), &[&lower, &layer]);
    let expected = [
        "/lib",
        "/usr",
        "/usr/lib",
        "/usr/lib/hard",
        "/usr/lib/old",
        "/usr/lib/through-link",
        "/was-directory",
        "/was-file",
        "/was-file/x",
    ];
    assert_eq!(paths, expected);
    let next = [directory("lib/"), file("lib/own")];
    let paths = unpacked(folder.path(), &[&lower, &next]);
    assert!(paths.contains(&"/lib/own".to_owned()), "{paths:?}");
    assert!(
        !paths.contains(&"/usr/lib/own".to_owned()),
        "the link was replaced"
    );
}

/// The directory's attributes, which are set at the end, are not those of what replaced it.
#[test]
fn the_last_entry_of_a_name_counts_also_if_it_was_a_directory() {
    let directory = changed(directory("name/"), 100, b"0000755");
    let layer = [directory, changed(file("name"), 100, b"0000600")];
    let folder = scratch();
    unpacked(folder.path(), &[&[], &layer]);
    let reader = Reader::open(folder.path().join("image")).expect("sound");
    let found = reader.volume().paths().link_attributes("/name");
    let mode = found.expect("it is there").mode;
    assert_eq!(mode, 0o100_600, "{mode:o}");
}

/// As for `build`: names and targets of hard links may be absolute, as `tar -P` writes them.
#[test]
fn absolute_names_of_a_layer_begin_at_its_directory() {
    let lower = [file("etc/gone"), file("kept")];
    let layer = [
        directory("/"),
        file("/etc/motd"),
        file("//etc/.wh.gone"),
        header("/hard", b'1', 0, "/etc/motd"),
    ];
    let folder = scratch();
    let paths = unpacked(folder.path(), &[&lower, &layer]);
    assert_eq!(paths, ["/etc", "/etc/motd", "/hard", "/kept"]);
    let reader = Reader::open(folder.path().join("image")).expect("sound");
    let links = reader.volume().paths().attributes("/hard").expect("there");
    assert_eq!(links.links, 2);
    let image = folder.path().join("image");
    drop(reader);
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let bytes = archive(&[file("/../up")]);
    let told = session.apply_layer(&mut &bytes[..], b"/").expect_err("up");
    assert!(
        told.to_string().contains("leads out of a directory"),
        "{told}"
    );
}

#[test]
fn without_being_a_layer_an_archive_has_no_marks() {
    let folder = scratch();
    let paths = unpacked(folder.path(), &[&[file("a"), file(".wh.a")]]);
    assert_eq!(paths, ["/.wh.a", "/a"]);
}

/// Entries of a layer, in this order and with the marks last.
fn in_both_orders(folder: &Path, lower: &[Vec<u8>], names: &[&str]) -> Vec<String> {
    let parts = |names: &[&str]| -> Vec<Vec<u8>> {
        let part = |name: &&str| match name.split_once(" -> ") {
            Some((name, target)) => header(name, b'2', 0, target),
            None if name.ends_with('/') => directory(name),
            None => file(name),
        };
        names.iter().map(part).collect()
    };
    let first = unpacked(folder, &[lower, &parts(names)]);
    let mut sorted = names.to_vec();
    sorted.sort_by_key(|name| name.contains(".wh."));
    let last = unpacked(folder, &[lower, &parts(&sorted)]);
    assert_eq!(first, last, "{names:?}");
    first
}

/// Whatever the layer has below the name of a link goes through the link, unless it hides that.
#[test]
fn no_entry_goes_through_a_link_that_its_layer_hides() {
    let folder = scratch();
    let lower = [file("x/a/old"), header("x/s", b'2', 0, "a"), file("x/f")];
    for (names, expected) in [
        (
            &["x/", "x/.wh..wh..opq", "x/s/n"][..],
            &["/x", "/x/s", "/x/s/n"][..],
        ),
        (
            &["x/", "x/.wh..wh..opq", "x/f/n"],
            &["/x", "/x/f", "/x/f/n"],
        ),
        (
            &["x/.wh.s", "x/s/n"],
            &["/x", "/x/a", "/x/a/old", "/x/f", "/x/s", "/x/s/n"],
        ),
        (
            &["x/.wh.f", "x/f/n"],
            &["/x", "/x/a", "/x/a/old", "/x/f", "/x/f/n", "/x/s"],
        ),
        // The directory of the mark takes the place of the file.
        (
            &["x/f/.wh.q", "x/f/", "x/f/n"],
            &["/x", "/x/a", "/x/a/old", "/x/f", "/x/f/n", "/x/s"],
        ),
        // What the link leads to is hidden, and the link is not.
        (
            &["x/.wh.a", "x/s/n"],
            &["/x", "/x/a", "/x/a/n", "/x/f", "/x/s"],
        ),
        // The mark below the hidden link hides nothing beside it.
        (
            &["x/.wh.s", "x/s/.wh.old"],
            &["/x", "/x/a", "/x/a/old", "/x/f", "/x/s"],
        ),
        // No mark hides the link.
        (
            &["x/s/.wh.old", "x/s/n"],
            &["/x", "/x/a", "/x/a/n", "/x/f", "/x/s"],
        ),
        // A link of the layer itself.
        (
            &["x/t -> a", "x/.wh.a", "x/t/n"],
            &["/x", "/x/a", "/x/a/n", "/x/f", "/x/s", "/x/t"],
        ),
        // What is behind an entry that has waited is later.
        (
            &["x/.wh.f", "x/s/n", "x/s/n/", "x/s/n/m"],
            &["/x", "/x/a", "/x/a/n", "/x/a/n/m", "/x/a/old", "/x/s"],
        ),
    ] {
        let paths = in_both_orders(folder.path(), &lower, names);
        assert_eq!(paths, expected, "{names:?}");
    }
    let lower = [
        file("a/b/old"),
        header("a/t", b'2', 0, "b"),
        header("s", b'2', 0, "a"),
    ];
    let paths = in_both_orders(folder.path(), &lower, &["s/t/.wh.old", "s/.wh.t", "s/t/n"]);
    assert_eq!(paths, ["/a", "/a/b", "/a/b/old", "/a/t", "/a/t/n", "/s"]);
}

/// A mark hides nothing behind a link whose place something of the layer takes, wherever it stands.
#[test]
fn no_mark_goes_through_a_link_that_its_layer_replaces() {
    let folder = scratch();
    let lower = [
        file("a/old"),
        header("s", b'2', 0, "a"),
        file("y/old"),
        file("y/kept"),
    ];
    for (names, expected) in [
        (
            &["s/.wh..wh..opq", "s/", "s/n"][..],
            &["/a", "/a/old", "/s", "/s/n", "/y", "/y/kept", "/y/old"][..],
        ),
        (
            &["s/.wh.old", "s/", "s/n"],
            &["/a", "/a/old", "/s", "/s/n", "/y", "/y/kept", "/y/old"],
        ),
        (
            &["s/.wh.old", "s -> y"],
            &["/a", "/a/old", "/s", "/y", "/y/kept"],
        ),
    ] {
        let paths = in_both_orders(folder.path(), &lower, names);
        assert_eq!(paths, expected, "{names:?}");
    }
}

/// Such links are the image's, and what takes their place is the layer's.
#[test]
fn what_leads_through_a_link_may_replace_or_hide_it() {
    let folder = scratch();
    let lower = [file("d/old"), header("here", b'2', 0, "."), file("z")];
    let paths = in_both_orders(folder.path(), &lower, &["here/.wh..wh..opq", "new"]);
    assert_eq!(paths, ["/new"]);
    let paths = in_both_orders(folder.path(), &lower, &["here/here"]);
    assert_eq!(paths, ["/d", "/d/old", "/here", "/z"]);
}

/// Only the hidden name is one of a file: the whiteout's is four bytes longer.
#[test]
fn a_whiteout_hides_the_longest_names() {
    let long = |name: &str| {
        let mut content = name.as_bytes().to_vec();
        content.resize(512, 0);
        let announced = header("././@LongLink", b'L', name.len(), "");
        [announced, content, file("its start")]
    };
    let folder = scratch();
    let name = "n".repeat(255);
    let paths = unpacked(
        folder.path(),
        &[&long(&name), &long(&format!(".wh.{name}"))],
    );
    assert!(paths.is_empty(), "{paths:?}");
}

/// The content, the attributes and the other names of a file that has waited for the marks.
#[test]
fn a_file_that_has_waited_is_whole() {
    let folder = scratch();
    let lower = [
        file("x/a/n"),
        header("x/s", b'2', 0, "a"),
        directory("kept/"),
        header("kept/link", b'2', 0, "../x/a"),
    ];
    let content = |byte: u8| {
        let mut content = vec![byte; 5000];
        content.resize(5120, 0);
        content
    };
    let first = changed(header("x/s/n", b'0', 5000, ""), 100, b"0004755");
    let layer = [
        first,
        content(b'A'),
        header("x/s/hard", b'1', 0, "x/s/n"),
        header("kept/link/m", b'0', 5000, ""),
        content(b'B'),
        header("out", b'1', 0, "x/a/m"),
        changed(directory("x/s/d/"), 100, b"0000711"),
        file("x/.wh.s"),
    ];
    let paths = unpacked(folder.path(), &[&lower, &layer]);
    let expected = [
        "/kept",
        "/kept/link",
        "/out",
        "/x",
        "/x/a",
        "/x/a/m",
        "/x/a/n",
        "/x/s",
        "/x/s/d",
        "/x/s/hard",
        "/x/s/n",
    ];
    assert_eq!(paths, expected);
    let reader = Reader::open(folder.path().join("image")).expect("sound");
    let paths = reader.volume().paths();
    let of = |path: &str| paths.attributes(path).expect("it is there");
    assert_eq!(paths.read("/x/s/hard").expect("a file"), [b'A'; 5000]);
    assert_eq!(paths.read("/out").expect("a file"), [b'B'; 5000]);
    assert_eq!((of("/x/s/n").mode, of("/x/s/n").links), (0o104_755, 2));
    assert_eq!((of("/x/s/d").mode, of("/x/a/m").links), (0o040_711, 2));
    assert_eq!(of("/x/a/n").size, 0);
}

/// The attributes of directories are set at the end, and only theirs.
#[test]
fn the_attributes_of_a_directory_go_to_no_other_file() {
    let folder = scratch();
    let lower = [directory("d/"), directory("e/"), header("l", b'2', 0, "d")];
    let layer = [
        header("m", b'2', 0, "d"),
        changed(directory("m/s/"), 100, b"0002755"),
        header("m", b'2', 0, "e"),
        changed(file("m/s"), 100, b"0000600"),
        changed(directory("gone/"), 100, b"0002755"),
        file("gone"),
        changed(file("again"), 100, b"0000600"),
    ];
    unpacked(folder.path(), &[&lower, &layer]);
    let reader = Reader::open(folder.path().join("image")).expect("sound");
    let mode = |path: &str| {
        reader
            .volume()
            .paths()
            .attributes(path)
            .expect("there")
            .mode
    };
    assert_eq!((mode("/e/s"), mode("/d/s")), (0o100_600, 0o042_755));
    assert_eq!((mode("/gone"), mode("/again")), (0o100_644, 0o100_600));
}

/// e2fsck makes it again where it is missing.
#[test]
fn no_mark_removes_lost_and_found() {
    let folder = scratch();
    let image = folder.path().join("image");
    for mark in [".wh..wh..opq", ".wh.lost+found"] {
        let paths = unpacked(folder.path(), &[&[file("old")], &[file(mark)]]);
        assert_eq!(paths.is_empty(), mark == ".wh..wh..opq", "{paths:?}");
        let reader = Reader::open(&image).expect("sound");
        assert!(
            reader.volume().paths().attributes("/lost+found").is_ok(),
            "{mark}"
        );
        drop(reader);
        std::fs::remove_file(&image).expect("there");
    }
}
