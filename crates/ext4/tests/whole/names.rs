//! Threads that compete for one name of an indexed directory: exactly one of them succeeds.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use pext4_fs::{CreateAttributes, Error, InodeNumber, Refusal, Volume};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;
const THREADS: u32 = 4;
const ROUNDS: u32 = 2000;

/// A directory with enough names to have an index.
fn directory(volume: &Volume) -> InodeNumber {
    let made = volume.make_directory(ROOT, b"all", &CreateAttributes::default());
    let directory = made.expect("room for a directory").inode;
    for number in 0..300 {
        create(volume, directory, &format!("a name that is there {number}")).expect("a new name");
    }
    directory
}

fn create(volume: &Volume, directory: InodeNumber, name: &str) -> Result<(), Error> {
    let made = volume.create(directory, name.as_bytes(), &CreateAttributes::default())?;
    volume.forget(made.inode, 1);
    Ok(())
}

/// Runs the same operation on all threads at the same moment, in rounds: in each round one
/// succeeds, and the others fail with `refusal`.
fn one_a_round(act: impl Fn(u32) -> Result<(), Error> + Sync, refusal: Refusal) {
    let barrier = Barrier::new(THREADS as usize);
    // A panic between the barriers would leave the other threads waiting.
    let run = || {
        let mut won = Vec::new();
        let mut errors = Vec::new();
        for round in 0..ROUNDS {
            barrier.wait();
            match act(round) {
                Ok(()) => won.push(round),
                Err(error) if error.is(refusal) => {}
                Err(error) => errors.push(format!("round {round}: {error}")),
            }
        }
        (won, errors)
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    let (won, errors): (Vec<Vec<u32>>, Vec<Vec<String>>) = ended.into_iter().unzip();
    assert_eq!(errors.concat(), Vec::<String>::new());
    let mut won = won.concat();
    won.sort_unstable();
    assert!(won.iter().copied().eq(0..ROUNDS), "{won:?}");
}

#[test]
fn of_threads_that_make_or_remove_one_name_one_succeeds() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "16384"]) else {
        return;
    };
    let volume = image.open();
    let directory = directory(&volume);
    let before = volume.statfs().free_inodes;
    let name = |round: u32| format!("fought for {round}");
    one_a_round(
        |round| create(&volume, directory, &name(round)),
        Refusal::Exists,
    );
    one_a_round(
        |round| volume.unlink(directory, name(round).as_bytes()),
        Refusal::NotFound,
    );
    volume.sync().expect("durable");
    let after = volume.statfs().free_inodes;
    assert_eq!(after, before, "what lost was taken back");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// A name is linked and unlinked while other threads look it up; the inode has no other name.
#[test]
fn a_file_without_names_gets_one_while_others_look_it_up() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "16384"]) else {
        return;
    };
    let volume = image.open();
    let directory = directory(&volume);
    let made = volume.create(directory, b"file", &CreateAttributes::default());
    let file = made.expect("a new name").inode;
    volume.unlink(directory, b"file").expect("it is there");
    let looker = |is_done: &AtomicU32| {
        while is_done.load(Ordering::Relaxed) == 0 {
            match volume.lookup(directory, b"file") {
                Ok(found) => {
                    assert_eq!(found.inode, file);
                    volume.forget(found.inode, 1);
                }
                Err(error) => assert!(error.is(Refusal::NotFound), "{error}"),
            }
        }
    };
    let is_done = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(|| looker(&is_done));
        }
        for _ in 0..ROUNDS {
            let linked = volume.link(file, directory, b"file");
            let _ = linked.expect("it is held");
            volume.forget(file, 1);
            volume.unlink(directory, b"file").expect("it is there");
        }
        is_done.store(1, Ordering::Relaxed);
    });
    volume.forget(file, 1);
    volume.close().expect("it closes");
    image.assert_clean();
}

/// A directory without an index is listed by an order of its names, which is kept.
#[test]
fn a_linear_directory_is_listed_as_it_is_now() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "^dir_index"]) else {
        return;
    };
    let volume = image.open();
    let names = || {
        let mut names = BTreeSet::new();
        volume
            .read_directory(ROOT, 0, &mut |entry| names.insert(entry.name.to_vec()))
            .expect("it is sound");
        names
    };
    for number in 0..300 {
        create(&volume, ROOT, &format!("a name of some length {number}")).expect("a new name");
    }
    let mut expected = names();
    assert_eq!(expected.len(), 303, "dots, lost+found, and 300");
    for number in (0..300).step_by(30) {
        let name = format!("a name of some length {number}").into_bytes();
        volume.unlink(ROOT, &name).expect("it is there");
        expected.remove(&name);
        assert_eq!(names(), expected);
        create(&volume, ROOT, &format!("new {number}")).expect("a new name");
        expected.insert(format!("new {number}").into_bytes());
        assert_eq!(names(), expected);
    }
    // Names longer than any before need a block of their own.
    for number in 0..10 {
        let name = format!("{number:0>255}");
        create(&volume, ROOT, &name).expect("a new name");
        expected.insert(name.into_bytes());
        assert_eq!(names(), expected);
    }
    volume.close().expect("it closes");
    image.assert_clean();
}
