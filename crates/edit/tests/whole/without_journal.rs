//! Images without a journal: each change goes to a clone, and nothing else makes one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_edit::{Change, EditOptions, EditSession, Plan, Reader, Way, change};
use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};

use crate::common::{filled, mixture, write};

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    let format = Format::new(16 << 20, 1024, Features::NoJournal);
    let filled = filled(&format, &mut Random::new(5));
    filled.save(&image).expect("there is room");
    image
}

/// Options, and how often the image was copied with them.
fn counting(memory: usize) -> (EditOptions, Arc<AtomicU32>) {
    let copies = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&copies);
    let count = move |reason: &str| {
        assert_eq!(reason, "the image has no journal");
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let options = EditOptions {
        memory,
        on_clone: Some(Arc::new(count)),
        ..EditOptions::default()
    };
    (options, copies)
}

#[test]
fn what_changes_nothing_or_fails_copies_nothing() {
    let folder = scratch();
    let image = image(folder.path());
    let before = (fs::read(&image), fs::metadata(&image).map(|it| it.ino()));
    let (options, copies) = counting(64 << 20);
    let remove = |force| {
        Change::Remove(change::Remove {
            path: b"/missing".to_vec(),
            recursive: false,
            force,
        })
    };
    let mut session = EditSession::open(&image, &options).expect("it opens");
    session.apply(&remove(true)).expect("it is not there");
    assert_eq!(session.finish().expect("nothing can fail"), Plan::Nothing);
    let mut session = EditSession::open(&image, &options).expect("it opens");
    mixture(&mut session, &mut Random::new(1));
    session.apply(&remove(false)).expect_err("it is not there");
    session.finish().expect_err("a change failed");
    assert_eq!(copies.load(Ordering::Relaxed), 0);
    let after = (fs::read(&image), fs::metadata(&image).map(|it| it.ino()));
    assert_eq!(after.1.expect("there"), before.1.expect("there"));
    assert!(after.0.expect("there") == before.0.expect("there"));
}

#[test]
fn a_change_is_copied_at_the_end_or_once_the_memory_is_full() {
    for (memory, is_full) in [(64 << 20, false), (300_000, true)] {
        let folder = scratch();
        let image = image(folder.path());
        let before = fs::read(&image).expect("there");
        let (options, copies) = counting(memory);
        let mut session = EditSession::open(&image, &options).expect("it opens");
        for number in 0..5 {
            let change = write(&format!("/{number}"), 700_000, &mut Random::new(number));
            session.apply(&change).expect("there is room");
        }
        assert_eq!(copies.load(Ordering::Relaxed), u32::from(is_full));
        let prepared = session.prepare().expect("there is room");
        assert_eq!(copies.load(Ordering::Relaxed), 1);
        assert!(fs::read(&image).expect("there") == before, "not yet");
        let plan = prepared.commit().expect("there is room");
        assert!(matches!(plan, Plan::Clone { .. }), "{plan:?}");
        e2fsck(&image).expect("sound");
        let reader = Reader::open(&image).expect("sound");
        let written = reader.volume().paths().attributes("/4").expect("there");
        assert_eq!(written.size, 700_000);
    }
}

/// At once, and not after all the changes.
#[test]
fn no_transaction_is_promised() {
    let folder = scratch();
    let image = image(folder.path());
    let options = EditOptions {
        way: Way::Transaction,
        ..EditOptions::default()
    };
    let told = EditSession::open(&image, &options).expect_err("it has no journal");
    let says = "the image has no journal; a clone could take it";
    assert!(told.to_string().contains(says), "{told}");
}
