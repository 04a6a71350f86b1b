//! Archives that are hostile, broken or not to be held are refused, and change nothing.

use std::fs;
use std::io::Read;

use pext4_edit::{EditOptions, EditSession, Reader};
use pext4_fs::DeviceNumber;
use pext4_testkit::effort::scratch;

use crate::common::archives::{apply, archive, build, changed, fresh, header, record};

#[test]
fn hostile_archives_change_nothing() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let data = |bytes: usize| vec![7; bytes.next_multiple_of(512)];
    let first = [header("good", b'0', 600, ""), data(600)].concat();
    for (parts, says) in [
        (
            vec![header("../evil", b'0', 0, "")],
            "leads out of a directory",
        ),
        (
            vec![header("a/../../evil", b'0', 0, "")],
            "leads out of a directory",
        ),
        (vec![header("/etc/evil", b'0', 0, "")], "absolute"),
        (vec![header("hard", b'1', 0, "later")], "not there (yet)"),
        (
            vec![header("hard", b'1', 0, "../../etc/passwd")],
            "leads out of a directory",
        ),
        (vec![header("hard", b'1', 0, "/etc/passwd")], "absolute"),
        (vec![header("file", b'Z', 0, "")], "not understood"),
        (
            vec![record("path", "a\0b"), header("x", b'0', 0, "")],
            "its name holds a NUL byte",
        ),
        (
            vec![record("linkpath", "a\0b"), header("soft", b'2', 0, "")],
            "soft: it is a link to a path that holds a NUL byte",
        ),
        (
            vec![header("soft", b'2', 0, "")],
            "soft: it is a link that leads nowhere",
        ),
        (
            vec![
                record("SCHILY.xattr.user.a\0b", "v"),
                header("laden", b'0', 0, ""),
            ],
            "laden: the name of its attribute user.a",
        ),
        (
            vec![
                record("LIBARCHIVE.xattr.user.a%00b", "dg=="),
                header("laden", b'0', 0, ""),
            ],
            "holds a NUL byte",
        ),
        (vec![header("good/below", b'0', 0, "")], "not a directory"),
        (vec![header(".", b'0', 0, "")], "root, which is a directory"),
        (
            vec![header(".", b'1', 0, "good")],
            "root, which is a directory",
        ),
        (vec![header("big", b'0', 0o7_7777_7777, "")], "cut short"),
        (
            vec![
                header("x", b'x', 9, ""),
                b"99 nothing".repeat(52)[..512].to_vec(),
            ],
            "makes no sense",
        ),
        (vec![header("x", b'x', 0o7777_7777, "")], "are believed"),
        (vec![vec![9; 512]], "checksum is wrong"),
        (vec![b"\x1f\x8b".repeat(256)], "compressed"),
    ] {
        let archive = archive(&[vec![first.clone()], parts].concat());
        let error = apply(&image, &archive).expect_err(says);
        assert!(error.contains(says), "{error} / {says}");
        assert!(fs::read(&image).expect("readable") == before, "{says}");
    }
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
        (device(b'3', b"no digit", b"0000001\0"), "is no number"),
        (
            device(b'4', b"0000010\0", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"),
            "is no number",
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
    let there = reader
        .volume()
        .paths()
        .attributes("dev/odd")
        .expect("there");
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
    let there = reader.volume().paths().attributes("odd").expect("there");
    assert_eq!(there.device.minor, 300_000);
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
    for length in [0, 100, 512, 700, 1100, 1535, 1537, 2048, 2100, 2500] {
        let error = apply(&image, &whole[..length]).expect_err("it is cut");
        assert!(error.contains("cut short"), "{length}: {error}");
    }
    assert!(fs::read(&image).expect("readable") == before);
    apply(&image, &whole[..whole.len() - 512]).expect("one block of zeroes ends it");
}

/// As `cat` joins them; what makes no header there is nobody's.
#[test]
fn an_archive_behind_the_end_mark_is_not_lost_silently() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let first = archive(&[header("one", b'0', 0, "")]);
    let second = archive(&[header("two", b'0', 0, "")]);
    for padding in [0, 9216, 1 << 20, 10 << 20] {
        let both = [&first[..], &vec![0; padding], &second].concat();
        let built = folder.path().join("built");
        for error in [apply(&image, &both), build(&built, &both)] {
            let error = error.expect_err("two archives");
            assert!(error.contains("another archive follows"), "{error}");
        }
    }
    assert!(fs::read(&image).expect("readable") == before);
    for junk in [vec![b'?'; 700], vec![0; 65 << 20]] {
        let long = [&first[..], &junk].concat();
        build(&folder.path().join("built"), &long).expect("one archive");
        apply(&image, &long).expect("one archive");
    }
}

/// The first kilobyte of an image is mostly zeroes, as an archive without entries.
#[test]
fn an_image_is_not_taken_for_an_empty_archive() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let before = fs::read(&image).expect("readable");
    let built = folder.path().join("built");
    for error in [apply(&image, &before), build(&built, &before)] {
        let error = error.expect_err("it is an image");
        assert!(error.contains("is no tar archive"), "{error}");
    }
    assert!(fs::read(&image).expect("readable") == before);
    for zeroes in [512, 1024, 10_240] {
        build(&built, &vec![0; zeroes]).expect("an archive without entries");
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

/// A message names the entry, whatever stands in its way.
#[test]
fn an_entry_that_cannot_be_made_is_named() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let parts = [header("d/x", b'0', 0, ""), header("l", b'2', 0, "d")];
    apply(&image, &archive(&parts)).expect("sound");
    for (parts, says) in [
        (
            vec![header("a", b'0', 0, ""), header("a/b", b'0', 0, "")],
            ("a/b", "/a/: not a directory"),
        ),
        (
            vec![header("d", b'0', 0, "")],
            ("d", "/d: a directory is here"),
        ),
        (
            vec![header("d/x", b'0', 0, ""), header("d", b'1', 0, "d/x")],
            ("d", "/d: a directory is here"),
        ),
    ] {
        let error = apply(&image, &archive(&parts)).expect_err("it is refused");
        let (entry, problem) = says;
        let expected = format!("tar: {entry}: {}:{problem}", image.display());
        assert!(error.contains(&expected), "{error}");
    }
    for (start, command) in [
        (&b"\x1f\x8b\x08"[..], "gzip -dc"),
        (b"\xfd7zXZ\0", "xz -dc"),
    ] {
        let error = apply(&image, start).expect_err("it is compressed");
        assert!(error.contains(command), "{error}");
    }
}

/// They are kept until the end for directories, so they are refused as soon as they are read.
#[test]
fn attributes_that_no_file_of_the_image_can_hold_are_refused_at_once() {
    let folder = scratch();
    let image = fresh(folder.path(), "image");
    let large = [
        record("SCHILY.xattr.user.a", &"x".repeat(2000)),
        header("./", b'5', 0, ""),
    ];
    let told = apply(&image, &archive(&large)).expect_err("there is no room");
    let said = ["user.a of 2000 bytes finds no room", "--exclude-xattr"];
    assert!(said.iter().all(|part| told.contains(part)), "{told}");
}
