//! What an edit refuses: the error names the path, and nothing is changed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, Page, RamDevice};
use pext4_edit::{
    Change, CommitOutcome, EditError, EditOptions, EditSession, Overrides, Reader, Tuning, Way,
    change,
};
use pext4_fs::OfflineJournal;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::superblock::{State, Superblock};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::{filled, write};

fn format(features: Features) -> Format {
    Format::new(16 << 20, 1024, features).inodes(2048)
}

fn save(device: &RamDevice, folder: &Path) -> std::path::PathBuf {
    let image = folder.join("image");
    device.save(&image).expect("there is room");
    image
}

#[test]
fn refusals_name_the_path() {
    let device = filled(&format(Features::Upstream), &mut Random::new(1));
    let path = |text: &str| text.as_bytes().to_vec();
    let remove = |text: &str, recursive| {
        Change::Remove(change::Remove {
            path: path(text),
            recursive,
            force: false,
        })
    };
    let copy = |from: &str, to: &str| {
        Change::CopyFile(change::CopyFile {
            recursive: true,
            ..change::CopyFile::new(from, to)
        })
    };
    for (change, says) in [
        (remove("/usr", false), "/usr: is a directory; -r"),
        (remove("/nothing", true), "/nothing: no such file"),
        (remove("/", true), "/: the path must end in a name"),
        (copy("/usr", "/usr/share"), "into itself"),
        (copy("/etc/passwd", "/etc/passwd"), "same file"),
        (copy("/nothing", "/x"), "/nothing: no such file"),
        (
            write("/etc/passwd/x", 1, &mut Random::new(1)),
            "not a directory",
        ),
        (
            write("/usr", 1, &mut Random::new(1)),
            "/usr: a directory is here",
        ),
        (
            Change::MakeDirectory(change::MakeDirectory {
                path: path("/usr"),
                parents: false,
                mode: None,
            }),
            "/usr: file exists",
        ),
        (
            Change::SetXattr(change::SetXattr {
                path: path("/usr"),
                name: path("strange.name"),
                value: Vec::new(),
            }),
            "/usr: an attribute cannot be called `strange.name`",
        ),
        (
            Change::SetXattr(change::SetXattr {
                path: path("/usr"),
                name: path("user.a\0b"),
                value: Vec::new(),
            }),
            "a name holds no NUL byte",
        ),
        (
            Change::RemoveXattr(change::RemoveXattr {
                path: path("/usr"),
                name: path("user.a\0b"),
            }),
            "a name holds no NUL byte",
        ),
        (
            Change::Put(change::Put {
                from: "/proc/self/status".into(),
                to: path("/x"),
                no_target_directory: true,
                xattrs: true,
                overrides: Overrides::default(),
            }),
            "/proc/self/status: cannot copy it: it says that it is empty and is not",
        ),
        (
            Change::Put(change::Put {
                from: "/nonexistent/host".into(),
                to: path("/x"),
                no_target_directory: true,
                xattrs: true,
                overrides: Overrides::default(),
            }),
            "/nonexistent/host: cannot look at it",
        ),
    ] {
        let device = std::sync::Arc::new(device.fork());
        let mut session =
            EditSession::from_device(device, &EditOptions::default()).expect("it opens");
        let error = session.apply(&change).expect_err(says).to_string();
        assert!(error.contains(says), "{error} / {says}");
    }
}

#[test]
fn a_session_in_which_a_change_failed_is_not_committed() {
    let image = filled(&format(Features::Upstream), &mut Random::new(1));
    let kept = Change::MakeDirectory(change::MakeDirectory {
        path: b"/kept".to_vec(),
        parents: false,
        mode: None,
    });
    let fails: [&dyn Fn(&mut EditSession) -> bool; 4] = [
        &|session| session.apply(&kept).is_err(),
        &|session| {
            let written = session.write_from(b"/kept", &mut &b"a line"[..], Overrides::default());
            written.is_err()
        },
        &|session| session.apply_tar(&mut &[1; 512][..], b"/").is_err(),
        &|session| {
            let tuning = Tuning {
                label: Some(vec![b'x'; 17]),
                ..Tuning::default()
            };
            session.tune(&tuning).is_err()
        },
    ];
    for fail in fails {
        let device = Arc::new(image.fork());
        let mut session =
            EditSession::from_device(Arc::<RamDevice>::clone(&device), &EditOptions::default())
                .expect("it opens");
        session.apply(&kept).expect("there is room");
        assert!(fail(&mut session), "the second change fails");
        assert!(matches!(session.finish(), Err(EditError::ChangeFailed)));
        let reader = Reader::from_device(device).expect("it opens");
        assert!(reader.volume().paths().resolve("/kept").is_err());
    }
}

#[test]
fn device_numbers_that_ext4_cannot_hold_are_refused() {
    let folder = scratch();
    let format = format(Features::Upstream);
    let image = save(&filled(&format, &mut Random::new(1)), folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let node = |major, minor| {
        Change::MakeNode(change::MakeNode {
            path: b"/odd".to_vec(),
            kind: pext4_fs::FileType::BlockDevice,
            device: pext4_fs::DeviceNumber { major, minor },
            permissions: None,
        })
    };
    for (major, minor, says) in [(4096, 0, "4095"), (8, 1 << 20, "1048575")] {
        let error = session.apply(&node(major, minor)).expect_err(says);
        let error = error.to_string();
        assert!(error.contains("/odd") && error.contains(says), "{error}");
    }
    session
        .apply(&node(4095, (1 << 20) - 1))
        .expect("it can be held");
}

/// A removal goes on past damage, as in Linux, and only notes it. The edit must not: the image
/// would be one that the next edit refuses.
#[test]
fn an_edit_that_meets_damage_changes_nothing() {
    let folder = scratch();
    let format = format(Features::NoChecksums);
    let image = save(&filled(&format, &mut Random::new(1)), folder.path());
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let victim = write("/victim", 100, &mut Random::new(1));
    session.apply(&victim).expect("room");
    session.finish().expect("room");
    // The bitmaps have other counts.
    let counts = [0, 1].map(|group| format!("set_block_group {group} free_inodes_count 77"));
    debugfs::command(&image, &counts).expect("debugfs is there");
    let before = fs::read(&image).expect("an image");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let remove = Change::Remove(change::Remove {
        path: b"/victim".to_vec(),
        recursive: false,
        force: false,
    });
    let told = session
        .apply(&remove)
        .and_then(|()| session.finish().map(drop))
        .expect_err("damage")
        .to_string();
    for part in [
        "damage (inode bitmap, block ",
        "nothing was changed",
        "`e2fsck -f`",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(fs::read(&image).expect("an image") == before);
}

#[test]
fn an_image_that_notes_errors_is_refused_before_it_is_written() {
    let folder = scratch();
    let format = format(Features::Upstream);
    let image = save(&filled(&format, &mut Random::new(1)), folder.path());
    let file = fs::OpenOptions::new().read(true).write(true).open(&image);
    let file = file.expect("an image");
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, 1024).expect("a superblock");
    let mut superblock = Superblock::decode(&bytes).expect("a superblock");
    // Neither clean nor sound, as a crash after an error leaves it.
    superblock.state = State::ERRORS;
    file.write_all_at(&superblock.encode(), 1024).expect("room");
    let before = fs::read(&image).expect("an image");
    let told = EditSession::open(&image, &EditOptions::default())
        .expect_err("errors are noted")
        .to_string();
    assert!(told.contains("it notes errors"), "{told}");
    assert!(fs::read(&image).expect("an image") == before);
}

/// The image with this superblock in a log that is to be replayed.
fn with_logged_superblock(image: &RamDevice, superblock: &Superblock) -> RamDevice {
    let logged = || vec![(BlockNumber(1), Page::from(superblock.encode().to_vec()))];
    for nth in 0.. {
        let below = Arc::new(image.fork());
        let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
        let journal = OfflineJournal::open(Arc::<FaultDevice>::clone(&device));
        let journal = journal.expect("it is sound").expect("it has a journal");
        device.fail_from(Operation::Write, nth);
        let failed = journal.write(logged()).expect_err("a write fails");
        if failed.outcome == CommitOutcome::Committed {
            return below.fork();
        }
    }
    unreachable!("a commit has an end");
}

/// What only the replay brings into the superblock.
#[test]
fn an_image_whose_journal_brings_errors_is_refused_before_it_is_replayed() {
    let folder = scratch();
    let base = filled(&format(Features::Upstream), &mut Random::new(1));
    let mut bytes = [0; 1024];
    base.read_at(1024, &mut bytes).expect("a superblock");
    let sound = Superblock::decode(&bytes).expect("a superblock");
    let mut noted = sound.clone();
    noted.state = State::CLEAN | State::ERRORS;
    for (logged, errno) in [(&sound, -5), (&noted, 0)] {
        let dirty = with_logged_superblock(&base, logged);
        let image = save(&dirty, folder.path());
        let journal = block_of_journal(&image) * 1024;
        let mut bytes = [0; 1024];
        dirty.read_at(journal, &mut bytes).expect("a journal");
        let mut superblock = JournalSuperblock::decode(&bytes).expect("a journal");
        assert!(superblock.start != 0, "there is something to replay");
        superblock.errno = errno;
        dirty.write_at(journal, &superblock.encode()).expect("room");
        let image = save(&dirty, folder.path());
        let before = fs::read(&image).expect("an image");
        for way in [Way::Auto, Way::Clone] {
            let options = EditOptions {
                way,
                ..EditOptions::default()
            };
            let told = EditSession::open(&image, &options).expect_err("errors are noted");
            assert!(told.to_string().contains("it notes errors"), "{told}");
            assert!(fs::read(&image).expect("an image") == before, "{errno}");
        }
    }
}

/// Where the journal begins.
fn block_of_journal(image: &Path) -> u64 {
    let place = debugfs::command(image, &["bmap <8> 0".to_owned()]).expect("debugfs is there");
    let block = place.lines().find_map(|line| line.trim().parse().ok());
    block.expect("a block")
}

/// A log that does not count, since the superblock has no `recover`, is emptied by what is
/// committed, and not by an edit that fails.
#[test]
fn an_edit_that_fails_does_not_empty_a_log() {
    let folder = scratch();
    let image = save(
        &filled(&format(Features::Upstream), &mut Random::new(1)),
        folder.path(),
    );
    let path = image.display();
    let block = block_of_journal(&image);
    let file = fs::OpenOptions::new().read(true).write(true).open(&image);
    let file = file.expect("an image");
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, block * 1024)
        .expect("a journal");
    let mut journal = JournalSuperblock::decode(&bytes).expect("a journal");
    journal.start = 2;
    file.write_all_at(&journal.encode(), block * 1024)
        .expect("room");
    let before = fs::read(&image).expect("an image");
    let remove = Change::Remove(change::Remove {
        path: b"/nothing".to_vec(),
        recursive: false,
        force: false,
    });
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    session.apply(&remove).expect_err("it is not there");
    drop(session);
    assert!(fs::read(&image).expect("an image") == before, "{path}");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    let file = write("/new", 100, &mut Random::new(1));
    session.apply(&file).expect("room");
    session.finish().expect("room");
    pext4_testkit::oracle::check::e2fsck(&image).expect("a sound image");
}

/// An archive that cannot be read to its end: its reader panics.
struct PanickingReader<'a>(&'a [u8]);

impl std::io::Read for PanickingReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        assert!(!self.0.is_empty(), "of the reader");
        self.0.read(into)
    }
}

#[test]
fn a_change_that_panicked_is_not_committed_in_part() {
    let device = filled(&format(Features::Upstream), &mut Random::new(1));
    let folder = scratch();
    let image = save(&device, folder.path());
    let before = fs::read(&image).expect("it was saved");
    let source = folder.path().join("tree");
    fs::create_dir(&source).expect("a temporary folder");
    for number in 0..10 {
        fs::write(source.join(format!("{number}")), [7; 3000]).expect("a temporary folder");
    }
    let archive = folder.path().join("archive.tar");
    let mut tar = Command::new("tar");
    let packed = tar.arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".");
    assert!(packed.status().expect("tar is there").success());
    let archive = fs::read(&archive).expect("it was packed");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("an image");
    let half = &archive[..archive.len() / 2];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        session.apply_tar(&mut PanickingReader(half), b"/")
    }));
    assert!(panicked.is_err());
    let error = session.finish().expect_err("half of an archive");
    assert!(error.to_string().contains("failed before"), "{error}");
    assert!(fs::read(&image).expect("it is there") == before);
}
