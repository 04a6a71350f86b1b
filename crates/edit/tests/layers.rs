//! Layers of container images over an image: what their marks hide, in any order of the entries.

mod common;

use std::path::Path;

use common::archives::{archive, changed, fresh, header};
use pext4_edit::{EditOptions, EditSession, Reader};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;

fn file(name: &str) -> Vec<u8> {
    header(name, b'0', 0, "")
}

fn directory(name: &str) -> Vec<u8> {
    header(name, b'5', 0, "")
}

/// Unpacks archives into an image, the first as files and the others as layers. Returns the image's
/// paths.
fn unpacked(folder: &Path, archives: &[&[Vec<u8>]]) -> Vec<String> {
    let image = fresh(folder, "image");
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
    let found = reader.volume().paths().symlink_metadata("/name");
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
    let links = reader.volume().paths().metadata("/hard").expect("there");
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

/// A link of the image through which the layer made something is not the layer's.
#[test]
fn a_whiteout_of_a_link_removes_it_whatever_went_through_it() {
    let folder = scratch();
    let lower = [file("b/old"), header("a", b'2', 0, "b")];
    let layer = [file("a/x"), file(".wh.a")];
    let paths = unpacked(folder.path(), &[&lower, &layer]);
    assert_eq!(paths, ["/b", "/b/old", "/b/x"]);
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
            reader.volume().paths().metadata("/lost+found").is_ok(),
            "{mark}"
        );
        drop(reader);
        std::fs::remove_file(&image).expect("there");
    }
}
