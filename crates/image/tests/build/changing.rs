//! Sources that change between being found and being read: one error that names the path, and
//! nothing left behind.
//!
//! The first source changes. The second is a stream, whose first byte is read after the scan of the
//! first source and before any content is read: the change happens at that moment, on every machine
//! and with any number of threads.

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use pext4_image::build::{Builder, Error, Map, Source};
use pext4_ondisk::time::Time;

use crate::archives::Packer;
use crate::oracle::check;

/// Small files are read in batches, large ones in pieces by several threads.
const SIZES: [usize; 2] = [5000, 20 << 20];

/// An archive that runs a closure before it returns its first byte.
struct Meddler<F> {
    change: Option<F>,
    archive: Cursor<Vec<u8>>,
}

impl<F: FnOnce()> Read for Meddler<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if let Some(change) = self.change.take() {
            change();
        }
        self.archive.read(into)
    }
}

/// A tree with one file in its own directory, and a directory for the image.
struct Place {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Place {
    fn new(size: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("tree/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        let file = inner.join("file");
        write_in_the_past(&file, &vec![7; size]);
        Self { folder, file }
    }

    fn tree(&self) -> Source {
        Source::Directory(self.folder.path().join("tree"))
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("out/image")
    }

    /// Builds from a source that changes after the scan.
    fn build(
        &self,
        builder: Builder,
        source: Source,
        change: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let stream = Box::new(Meddler {
            change: Some(change),
            archive: Cursor::new(Packer::new().file("other", b"x").finish()),
        });
        builder
            .source(source)
            .source(Source::Stream("the archive".to_owned(), stream))
            .build(self.image())
            .map(drop)
    }

    /// The build fails with an error about the path, and leaves nothing.
    fn refuses(
        &self,
        source: Source,
        path: &Path,
        change: impl FnOnce() + Send + 'static,
    ) -> Error {
        let error = self.build(Builder::new().threads(2), source, change);
        let error = error.unwrap_err();
        let told = error.to_string();
        assert!(told.starts_with(&format!("{}: ", path.display())), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        let left = fs::read_dir(self.folder.path().join("out")).unwrap();
        assert_eq!(left.count(), 0, "something was left: {told}");
        error
    }
}

/// Host times are coarse: two writes in a row may have the same mtime.
fn write_in_the_past(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(past))
        .unwrap();
}

fn has_changed(error: &Error) {
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

#[test]
fn what_does_not_change_is_built() {
    for size in SIZES {
        let place = Place::new(size);
        place.build(Builder::new(), place.tree(), || ()).unwrap();
        check(&place.image());
    }
}

#[test]
fn a_file_that_shrinks_grows_or_is_written_is_refused() {
    type Change = fn(&Path, usize);
    let changes: [Change; 4] = [
        |path, size| cut(path, size / 2),
        |path, _| cut(path, 0),
        |path, size| cut(path, size + 1),
        |path, size| fs::write(path, vec![8; size]).unwrap(),
    ];
    for size in SIZES {
        for change in changes {
            let place = Place::new(size);
            let file = place.file.clone();
            let error = place.refuses(place.tree(), &place.file, move || change(&file, size));
            has_changed(&error);
        }
    }
}

/// Options for the times in the image do not disable the check.
#[test]
fn a_file_whose_time_is_changed_in_the_image_is_refused_all_the_same() {
    let map = |text: &str| Map::parse(text).unwrap();
    let builders = || {
        [
            Builder::new().mtime(Time {
                seconds: 5,
                nanoseconds: 0,
            }),
            Builder::new().map(map("path nothing* mtime=@5")),
            Builder::new().map(map("path file mtime=@5")),
            // Both mtimes are later than the limit.
            Builder::new().date(5),
        ]
    };
    for size in SIZES {
        for builder in builders() {
            let place = Place::new(size);
            let file = place.file.clone();
            let change = move || fs::write(&file, vec![8; size]).unwrap();
            let error = place.build(builder, place.tree(), change).unwrap_err();
            has_changed(&error);
        }
        for builder in builders() {
            let place = Place::new(size);
            // A rule for one name of a file applies to the file.
            fs::hard_link(&place.file, place.file.with_file_name("another")).unwrap();
            place.build(builder, place.tree(), || ()).unwrap();
        }
    }
}

fn cut(path: &Path, size: usize) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(size as u64).unwrap();
}

#[test]
fn a_file_that_vanishes_or_turns_into_something_else_is_refused() {
    type Change = fn(&Path);
    let changes: [Change; 5] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::remove_dir_all(path.parent().unwrap()).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
        },
    ];
    for size in SIZES {
        for change in changes {
            let place = Place::new(size);
            let file = place.file.clone();
            let error = place.refuses(place.tree(), &place.file, move || change(&file));
            assert!(matches!(error, Error::Source { .. }), "{error}");
        }
    }
}

#[test]
fn changed_files_are_not_skipped() {
    let place = Place::new(5000);
    let file = place.file.clone();
    let builder = Builder::new().skip_unreadable(true);
    let vanished = place.build(builder, place.tree(), move || {
        fs::remove_file(file).unwrap();
    });
    assert!(matches!(vanished, Err(Error::Source { .. })));
    assert!(!place.image().exists());
}

#[test]
fn a_changed_file_leaves_the_old_image() {
    let place = Place::new(5000);
    let file = place.file.clone();
    fs::write(place.image(), [0; 9]).unwrap();
    let builder = Builder::new().replace(true);
    let error = place.build(builder, place.tree(), move || cut(&file, 1));
    has_changed(&error.unwrap_err());
    assert_eq!(fs::read(place.image()).unwrap(), [0; 9]);
    let left = fs::read_dir(place.folder.path().join("out")).unwrap();
    assert_eq!(left.count(), 1);
}

#[test]
fn an_archive_that_changes_is_refused() {
    type Change = fn(&Path, usize);
    let changes: [Change; 3] = [
        |path, _| cut(path, 1024),
        |path, size| cut(path, size + 512),
        |path, size| fs::write(path, vec![8; size]).unwrap(),
    ];
    for change in changes {
        let place = Place::new(1);
        let archive = place.folder.path().join("a.tar");
        let bytes = Packer::new().file("file", &[7; 5000]).finish();
        write_in_the_past(&archive, &bytes);
        let (changing, size) = (archive.clone(), bytes.len());
        let source = Source::Archive(archive.clone());
        let error = place.refuses(source, &archive, move || change(&changing, size));
        has_changed(&error);
    }
}
