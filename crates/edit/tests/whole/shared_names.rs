//! Images whose directories share their blocks of names: what is listed of them has a limit.

use std::io;
use std::path::{Path, PathBuf};

use pext4_edit::{
    Change, DirectoryLimit, EditOptions, EditSession, ExportOptions, GetOptions, ModeChange,
    Reader, change,
};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::shared_names::{self, DIRECTORIES, FITTING, NAMES, Placement};

fn image(placement: Placement) -> (tempfile::TempDir, PathBuf) {
    let folder = scratch();
    let image = folder.path().join("image");
    shared_names::make(&image, placement).expect("mke2fs and debugfs are there");
    (folder, image)
}

fn check_told(told: &str, path: &str) {
    assert!(told.contains(path), "{told}");
    let problem = "larger than the file system";
    assert!(told.contains(problem), "{told}");
    assert!(told.contains("directories share blocks"), "{told}");
}

fn apply(image: &Path, change: Change) -> String {
    let mut session = EditSession::open(image, &EditOptions::default()).expect("it opens");
    let applied = session.apply(&change);
    applied.expect_err("it is too much").to_string()
}

#[test]
fn directories_of_the_same_blocks_are_not_copied_without_end() {
    let (folder, image) = image(Placement::InRoot);
    let reader = Reader::open(&image).expect("a sound superblock");
    let exported = reader.export("/", &mut io::sink()).map(drop);
    let copy = folder.path().join("copy");
    let copied = reader.get("/", &copy, &GetOptions::default()).map(drop);
    assert!(!copy.exists(), "nothing is left of it");
    let mut visited = 0;
    let walked = reader.walk("/", &mut |_| {
        visited += 1;
        Ok(())
    });
    for done in [exported, copied, walked] {
        check_told(&done.expect_err("it is too much").to_string(), "image:/!");
    }
    // The root, the directories that were listed, and the one that was not.
    assert_eq!(visited, 1 + FITTING * (1 + NAMES) + 1);
}

#[test]
fn of_such_directories_some_can_be_skipped() {
    let (_folder, image) = image(Placement::InRoot);
    let reader = Reader::open(&image).expect("a sound superblock");
    let mut skipped = Vec::new();
    let options = ExportOptions {
        on_skipped: Some(&mut |error| skipped.push(error.to_string())),
        ..ExportOptions::default()
    };
    let exported = reader.export_with("/", &mut io::sink(), options);
    let exported = exported.expect("the rest is left out");
    assert_eq!(skipped.len(), (DIRECTORIES - FITTING) as usize);
    skipped.iter().for_each(|told| check_told(told, "image:/!"));
    // With the root, lost+found and two files.
    let files = 4 + DIRECTORIES + FITTING * NAMES;
    assert_eq!(exported.files, u64::from(files));
}

#[test]
fn directories_may_share_blocks_where_the_image_says_so() {
    let (_folder, image) = image(Placement::InRoot);
    debugfs::command(&image, &["feature shared_blocks".into()]).expect("debugfs knows it");
    let reader = Reader::open(&image).expect("it can be read");
    let exported = reader.export("/", &mut io::sink());
    let exported = exported.expect("sixteen times the image may be");
    let files = 4 + DIRECTORIES * (1 + NAMES);
    assert_eq!(exported.files, u64::from(files));
}

/// The names of all directories on the way are kept at a time.
#[test]
fn nor_are_they_gone_through_in_one_another() {
    let (_folder, image) = image(Placement::InOneAnother);
    let all = [
        Change::SetMode(change::SetMode {
            recursive: true,
            ..change::SetMode::new("/!", ModeChange::exactly(0o750))
        }),
        Change::CopyFile(change::CopyFile {
            recursive: true,
            ..change::CopyFile::new("/!", "/copy")
        }),
        Change::Remove(change::Remove {
            recursive: true,
            ..change::Remove::new("/!")
        }),
    ];
    let before = std::fs::read(&image).expect("it is there");
    for change in all {
        check_told(&apply(&image, change), "/!/!/!");
    }
    assert!(before == std::fs::read(&image).expect("it is there"));
    let reader = Reader::open(&image).expect("a sound superblock");
    let mut visited = 0;
    let walked = reader.walk("/", &mut |_| {
        visited += 1;
        Ok(())
    });
    check_told(&walked.expect_err("it is too much").to_string(), "/!/!/!");
    assert_eq!(visited, 1 + FITTING + 1, "names come after the directories");
}

#[test]
fn a_directory_that_is_not_counted_takes_nothing_of_the_limit() {
    let (_folder, image) = image(Placement::InRoot);
    let reader = Reader::open(&image).expect("a sound superblock");
    let volume = reader.volume();
    let mut directory = volume.paths().link_attributes("/!0").expect("it is there");
    let limit = DirectoryLimit::new(volume);
    directory.size = shared_names::SIZE + 1;
    limit.take(&directory).expect_err("it is too large");
    directory.size = shared_names::SIZE;
    limit.take(&directory).expect("all is left");
    directory.size = 1;
    limit.take(&directory).expect_err("nothing is left");
}
