//! Sessions that end without a commit: the image keeps its content, and a sparse one its space on
//! the host.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pext4_block::{Device, FileDevice};
use pext4_edit::{EditOptions, EditSession, Reader, change};
use pext4_testkit::oracle::check::e2fsck;
use tempfile::TempDir;

use crate::common::archives::fresh;

/// Bytes of the file that is written.
const LENGTH: usize = 4 << 20;
/// Space for what a file system of the host notes about a file.
const SLACK: u64 = 128 << 10;

/// Bytes that the host stores of a file.
fn stored(path: &Path) -> u64 {
    let file = File::open(path).expect("it is there");
    file.sync_all().expect("it works");
    file.metadata().expect("it is there").blocks() * 512
}

/// A folder with a sparse image, or `None` if the host makes no holes in files.
fn sparse_image() -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = fresh(folder.path(), "image");
    let probe = FileDevice::create(folder.path().join("probe"), 1 << 20).expect("there is room");
    let punched = probe.discard(0, 4096).expect("it lies within");
    if !punched || stored(&image) > 12 << 20 {
        eprintln!("SKIPPED: this file system makes no holes");
        return None;
    }
    Some((folder, image))
}

/// A session that has written a file to the free blocks of its image.
fn after_a_write(image: &Path) -> EditSession {
    let options = EditOptions {
        memory: 0,
        ..EditOptions::default()
    };
    let mut session = EditSession::open(image, &options).expect("it opens");
    let large = change::WriteFile::new("/large", vec![7; LENGTH]);
    session.apply(&large.into()).expect("there is room");
    session
}

#[test]
fn an_abandoned_edit_gives_back_the_space_of_a_sparse_image() {
    let Some((_folder, image)) = sparse_image() else {
        return;
    };
    let (space, content) = (stored(&image), fs::read(&image).expect("readable"));
    let session = after_a_write(&image);
    assert!(
        stored(&image) >= space + LENGTH as u64,
        "it is written to its home"
    );
    drop(session);
    assert!(stored(&image) <= space + SLACK, "while it is open");
    let prepared = after_a_write(&image).prepare().expect("it fits");
    drop(prepared);
    assert!(stored(&image) <= space + SLACK, "before the commit");
    assert!(fs::read(&image).expect("readable") == content);
    e2fsck(&image).expect("sound");
}

/// A stop is an error of the commit, before anything refers to the data.
#[test]
fn a_stopped_commit_gives_it_back_too() {
    let Some((_folder, image)) = sparse_image() else {
        return;
    };
    let (space, content) = (stored(&image), fs::read(&image).expect("readable"));
    let session = after_a_write(&image);
    let progress = session.progress();
    let prepared = session.prepare().expect("it fits");
    progress.stop();
    prepared.commit().expect_err("it was asked to stop");
    assert!(stored(&image) <= space + SLACK);
    assert!(fs::read(&image).expect("readable") == content);
}

#[test]
fn a_committed_edit_keeps_its_data() {
    let Some((_folder, image)) = sparse_image() else {
        return;
    };
    after_a_write(&image).finish().expect("it fits");
    e2fsck(&image).expect("sound");
    let reader = Reader::open(&image).expect("sound");
    let read = reader.volume().paths().read("/large").expect("sound");
    assert!(read == vec![7; LENGTH]);
}

/// Its space belongs to it, whatever is in it.
#[test]
fn an_abandoned_edit_takes_no_space_from_a_full_file() {
    let Some((_folder, image)) = sparse_image() else {
        return;
    };
    let content = fs::read(&image).expect("readable");
    fs::write(&image, &content).expect("there is room");
    let space = stored(&image);
    assert!(space >= content.len() as u64);
    drop(after_a_write(&image));
    assert!(stored(&image) >= space);
    e2fsck(&image).expect("sound");
}
