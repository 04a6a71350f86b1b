//! Archives without an end mark.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use pext4_image::build::{Builder, Result, Source, Summary};

use crate::archives::Packer;
use crate::layouts::{LAYER, Layout};
use crate::oracle::{Mounted, check};

/// Bytes of an end mark as archivers write it.
const MARK: usize = 1024;

fn without_mark(packer: Packer) -> Vec<u8> {
    let mut bytes = packer.finish();
    bytes.truncate(bytes.len() - MARK);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Builds from a file, from a stream and from a compressed stream.
fn build_all(folder: &Path, bytes: &[u8]) -> [Result<Summary>; 3] {
    let archive = folder.join("archive");
    fs::write(&archive, bytes).unwrap();
    let stream =
        |bytes: Vec<u8>| Source::Stream("archive".to_owned(), Box::new(Cursor::new(bytes)));
    let sources = [
        Source::Archive(archive),
        stream(bytes.to_vec()),
        stream(gzip(bytes)),
    ];
    let image = folder.join("image");
    sources.map(|source| Builder::new().source(source).replace(true).build(&image))
}

fn refused(bytes: &[u8], says: &str) {
    let folder = tempfile::tempdir().unwrap();
    for built in build_all(folder.path(), bytes) {
        let error = built.expect_err(says).to_string();
        assert!(error.contains(says), "{error} / {says}");
    }
}

#[test]
fn an_archive_may_end_behind_an_entry() {
    let folder = tempfile::tempdir().unwrap();
    let file = || Packer::new().file("first", &[7; 600]);
    for packer in [
        file(),
        file().file("second", &[7; 512]),
        file().directory("second/"),
        file().entry(b'1', "second", "first", b""),
    ] {
        for built in build_all(folder.path(), &without_mark(packer)) {
            let notes = built.unwrap().notes;
            let [note] = &notes[..] else {
                panic!("{notes:?}");
            };
            let says = "archive: it ends without an end mark; it may have been cut short";
            assert!(note.ends_with(says), "{note}");
            check(&folder.path().join("image"));
        }
    }
    for built in build_all(folder.path(), &file().finish()) {
        assert!(built.unwrap().notes.is_empty());
    }
}

#[test]
fn an_archive_ends_nowhere_else() {
    let file = || Packer::new().file("first", &[7; 600]);
    let bytes = without_mark(file());
    refused(&bytes[..bytes.len() - 1], "ends inside it");
    // Its content is there, but not all of the padding.
    refused(&bytes[..512 + 600], "ends inside it");
    refused(&[&bytes[..], &[0; 511]].concat(), "ends inside a header");
    let pending = file().entry(b'x', "extension", "", b"15 path=second\n");
    refused(&without_mark(pending), "behind an extension header");
    let long = file().entry(b'L', "././@LongLink", "", b"second\0");
    refused(&without_mark(long), "behind an extension header");
    let nothing = Packer::new().entry(b'g', "extension", "", b"23 comment=of no entry\n");
    refused(&without_mark(nothing), "neither an entry nor an end mark");
}

/// The size and the digest of a layer show that it is complete.
#[test]
fn a_layer_needs_no_end_mark_and_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("layout"));
    let first = without_mark(Packer::new().file("first", b"content"));
    let second = without_mark(Packer::new().file("second", b"content"));
    let layers = [
        layout.blob(&first, LAYER),
        layout.blob(b"", LAYER),
        layout.blob(&gzip(&second), LAYER),
        layout.blob(&gzip(b""), LAYER),
    ];
    layout.index(&[layout.image(&layers)]);
    let image = folder.path().join("image");
    let source = || Source::OciLayout(layout.path.clone());
    let summary = Builder::new().source(source()).build(&image).unwrap();
    assert!(summary.notes.is_empty(), "{:?}", summary.notes);
    assert_eq!(summary.names, 2);
    check(&image);
    if let Some(mounted) = Mounted::new(&image) {
        for name in ["first", "second"] {
            assert_eq!(fs::read(mounted.path().join(name)).unwrap(), b"content");
        }
    }
    let pending = Packer::new().entry(b'x', "extension", "", b"16 path=nothing\n");
    let pending = without_mark(pending);
    layout.index(&[layout.image(&[layout.blob(&pending, LAYER)])]);
    let built = Builder::new().source(source()).replace(true).build(&image);
    let error = built.unwrap_err().to_string();
    assert!(error.contains("behind an extension header"), "{error}");
}
