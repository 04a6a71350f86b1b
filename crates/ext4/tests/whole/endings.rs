//! Ends of life: removed directories that are still held, inodes whose last hold and last name are
//! removed at the same time, mounts that an error stopped.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use pext4_block::fault::{FaultDevice, Operation};
use pext4_block::{Access, Device, Event, FileDevice, RamDevice, RecordDevice};
use pext4_fs::{
    CreateAttributes, Error, InodeNumber, MountOptions, Refusal, RenameMode, SetAttributes, Volume,
};
use pext4_ondisk::superblock::{ERROR_IO, State, Superblock};

use crate::images::Image;

/// An interval so long that no commit happens unasked.
fn options() -> MountOptions {
    MountOptions {
        commit_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    }
}

fn open(device: Arc<dyn Device>) -> Volume {
    Volume::open(device, options()).expect("a mount")
}

fn load(image: &Image) -> Arc<RamDevice> {
    Arc::new(RamDevice::load(&image.path).expect("the image"))
}

fn superblock(device: &dyn Device) -> Superblock {
    let mut bytes = [0; 1024];
    device
        .read_at(1024, &mut bytes)
        .expect("a ram device works");
    Superblock::decode(&bytes).expect("a sound superblock")
}

#[test]
fn a_removed_directory_that_is_held_has_no_names() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let device = load(&image);
    let volume = open(Arc::<RamDevice>::clone(&device));
    let root = InodeNumber::ROOT;
    let d = volume
        .make_directory(root, b"d", &CreateAttributes::default())
        .expect("mkdir")
        .inode;
    for number in 0..200 {
        let entry = volume
            .create(
                d,
                format!("{number:050}").as_bytes(),
                &CreateAttributes::default(),
            )
            .expect("create");
        volume.forget(entry.inode, 1);
    }
    assert_ne!(
        volume.attributes(d).expect("stat").flags & 0x1000,
        0,
        "it has an index"
    );
    for number in 0..200 {
        volume
            .unlink(d, format!("{number:050}").as_bytes())
            .expect("unlink");
    }
    volume.paths().write("/file", b"content").expect("write");
    volume.remove_directory(root, b"d").expect("rmdir");
    let none =
        |result: pext4_fs::Result<()>| result.is_err_and(|error| error.is(Refusal::NotFound));
    assert!(none(volume.lookup(d, b"x").map(drop)));
    assert!(none(volume.lookup(d, b"..").map(drop)));
    assert!(none(volume.read_directory(d, 0, &mut |_| true)));
    assert!(none(
        volume
            .create(d, b"x", &CreateAttributes::default())
            .map(drop)
    ));
    assert!(none(volume.rename(
        root,
        b"file",
        d,
        b"x",
        RenameMode::Replace
    )));
    assert!(none(volume.rename(
        d,
        b"x",
        root,
        b"y",
        RenameMode::Replace
    )));
    assert_eq!(volume.attributes(d).expect("it is held").links, 0);
    volume.forget(d, 1);
    volume
        .paths()
        .write("/file", b"changed")
        .expect("the volume is still writable");
    volume.close().expect("a clean close");
    device.save(&image.path).expect("saved");
    image.assert_clean();
}

/// One thread removes the last name, another drops the last hold.
#[test]
fn the_last_name_and_the_last_hold_may_go_together() {
    for features in ["orphan_file", "^orphan_file"] {
        let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
            return;
        };
        let device = load(&image);
        let volume = Arc::new(open(Arc::<RamDevice>::clone(&device)));
        let threads: u32 = 4;
        let barrier = Arc::new(Barrier::new(threads as usize));
        let pairs: Vec<_> = (0..threads / 2)
            .flat_map(|pair| [(pair, true), (pair, false)])
            .map(|(pair, unlinks)| {
                let (volume, barrier) = (Arc::clone(&volume), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    let name = format!("{pair}");
                    for _ in 0..1500 {
                        if unlinks {
                            let _ = volume
                                .create(
                                    InodeNumber::ROOT,
                                    name.as_bytes(),
                                    &CreateAttributes::default(),
                                )
                                .expect("create");
                        }
                        barrier.wait();
                        let found = (!unlinks).then(|| {
                            volume
                                .lookup(InodeNumber::ROOT, name.as_bytes())
                                .expect("lookup")
                        });
                        barrier.wait();
                        match found {
                            Some(found) => volume.forget(found.inode, 2),
                            None => volume
                                .unlink(InodeNumber::ROOT, name.as_bytes())
                                .expect("unlink"),
                        }
                        barrier.wait();
                    }
                })
            })
            .collect();
        for thread in pairs {
            thread.join().expect("no thread fails");
        }
        let volume = Arc::into_inner(volume).expect("all threads have ended");
        volume.close().expect("a clean close");
        device.save(&image.path).expect("saved");
        image.assert_clean();
        let features = image.debugfs("features");
        assert!(!features.contains("orphan_present"), "{features}");
    }
}

#[test]
fn after_a_failed_commit_no_sync_succeeds() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let below = load(&image);
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
    let watched = Arc::downgrade(&device);
    let volume = open(device);
    let device = || watched.upgrade().expect("the volume keeps it");
    volume.paths().write("/file", b"content").expect("write");
    let file = volume
        .paths()
        .resolve("/file")
        .expect("it is there")
        .inode();
    device().fail_nth(Operation::Flush, 0);
    assert!(volume.fsync(file).is_err(), "the flush failed");
    device().heal();
    assert!(volume.fsync(file).is_err(), "it is not durable");
    assert!(volume.fdatasync(file).is_err(), "nor is its data");
    assert!(volume.sync().is_err(), "nor is anything");
    assert!(volume.is_read_only());
    assert!(volume.close().is_err());
    assert!(
        watched.upgrade().is_none(),
        "a volume that was stopped lets go of its device"
    );
}

#[test]
fn the_errors_of_a_stopped_mount_survive_the_replay() {
    // The first large file changes the superblock, so a version of it is in the log.
    let Some(image) = Image::make(&["-O", "^large_file"]) else {
        return;
    };
    let below = load(&image);
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&below)));
    let volume = open(Arc::<FaultDevice>::clone(&device));
    volume.paths().write("/file", b"content").expect("write");
    let file = volume
        .paths()
        .resolve("/file")
        .expect("it is there")
        .inode();
    let large = SetAttributes {
        size: Some(3 << 30),
        ..SetAttributes::default()
    };
    volume.set_attributes(file, &large).expect("truncate");
    volume.sync().expect("nothing fails yet");
    volume.paths().write("/file", b"more").expect("write");
    device.fail_nth(Operation::Flush, 0);
    assert!(volume.sync().is_err());
    drop(volume);
    let noted = superblock(&*below);
    assert!(noted.state.contains(State::ERRORS) && noted.error_count == 1);
    assert_eq!(noted.last_error.code, ERROR_IO);
    let crashed = Arc::new(below.fork());
    let recorded = Arc::new(RecordDevice::new(crashed));
    let volume = open(Arc::<RecordDevice>::clone(&recorded));
    let has_note = |found: &dyn Fn(&str) -> bool| volume.notes().iter().any(|note| found(note));
    assert!(has_note(&|note| note.starts_with("replayed")));
    assert!(has_note(&|note| note.contains("had stopped before")));
    volume.close().expect("a clean close");
    // A power cut may end that mount after any write.
    let events = recorded.events();
    for survived in 0..=events.len() {
        let left = below.fork();
        for event in &events[..survived] {
            event.apply(&left).expect("a ram device works");
        }
        let after = superblock(&left);
        let kept = (after.error_count, after.last_error);
        assert_eq!(kept, (1, noted.last_error.clone()), "{survived} events");
        assert!(after.state.contains(State::ERRORS), "it is to be checked");
    }
}

/// A separate process tries the mount, with a stack size that no thread can get.
#[test]
fn a_mount_that_gets_no_threads_leaves_the_image_as_it_was() {
    const IMAGE: &str = "PEXT4_TEST_IMAGE";
    if let Some(path) = std::env::var_os(IMAGE) {
        let device = FileDevice::open(&path, Access::ReadWrite, Duration::from_secs(10));
        let refused = Volume::open(Arc::new(device.expect("the image")), options()).err();
        let text = refused.expect("there are no threads").to_string();
        assert!(text.contains("starting a thread of the journal"), "{text}");
        return;
    }
    for features in ["has_journal", "^has_journal"] {
        let Some(image) = Image::make(&["-O", features]) else {
            return;
        };
        let before = std::fs::read(&image.path).expect("the image");
        let child = Command::new(std::env::current_exe().expect("it runs"))
            .args([
                "endings::a_mount_that_gets_no_threads_leaves_the_image_as_it_was",
                "--exact",
            ])
            .arg("--test-threads=1")
            .env(IMAGE, &image.path)
            .env("RUST_MIN_STACK", (1u64 << 47).to_string())
            .output()
            .expect("it starts");
        let told = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && told.contains("1 passed"),
            "{told}"
        );
        let after = std::fs::read(&image.path).expect("the image");
        assert!(before == after, "{features}");
    }
}

#[test]
fn a_log_without_the_recover_feature_is_never_replayed() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let device = load(&image);
    let volume = open(Arc::<RamDevice>::clone(&device));
    volume.paths().write("/file", b"content").expect("write");
    volume.sync().expect("sync");
    device.fork().save(&image.path).expect("saved");
    drop(volume);
    image.debugfs_write("feature -needs_recovery");
    let device = load(&image);
    let volume = open(Arc::<RamDevice>::clone(&device));
    let crashed = Arc::new(device.fork());
    drop(volume);
    let volume = open(crashed);
    assert!(
        !volume
            .notes()
            .iter()
            .any(|note| note.starts_with("replayed")),
        "{:?}",
        volume.notes()
    );
}

/// A device that blocks flushes at a gate and records the order of events.
struct Gated {
    below: RamDevice,
    log: Mutex<Vec<&'static str>>,
    /// The number of flushes that may still begin without waiting; `None` if all may.
    passes: Mutex<Option<u32>>,
    opened: Condvar,
    waits: AtomicBool,
    /// Flushes fail, including those at the gate.
    fails: AtomicBool,
}

impl Gated {
    /// Lets all flushes pass.
    fn load(image: &Image) -> Arc<Self> {
        Arc::new(Self {
            below: RamDevice::load(&image.path).expect("the image"),
            log: Mutex::default(),
            passes: Mutex::new(None),
            opened: Condvar::new(),
            waits: AtomicBool::new(false),
            fails: AtomicBool::new(false),
        })
    }

    fn wait_for_one_at_the_gate(&self) {
        while !self.waits.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn pass_only(&self, flushes: Option<u32>) {
        *self.passes.lock().expect("no thread panicked with it") = flushes;
        self.opened.notify_all();
    }
}

impl Device for Gated {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)?;
        if from == b"DATA" {
            self.log
                .lock()
                .expect("no thread panicked with it")
                .push("data");
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.log
            .lock()
            .expect("no thread panicked with it")
            .push("flush");
        let mut passes = self.passes.lock().expect("no thread panicked with it");
        while *passes == Some(0) {
            self.waits.store(true, Ordering::SeqCst);
            passes = self
                .opened
                .wait(passes)
                .expect("no thread panicked with it");
        }
        *passes = passes.map(|left| left - 1);
        match self.fails.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the cable is out")),
            false => Ok(()),
        }
    }
}

/// Data that is overwritten while a commit is in its last flush is not covered by that commit.
#[test]
fn fdatasync_covers_data_written_during_a_commit() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let device = Gated::load(&image);
    let volume = Arc::new(open(Arc::<Gated>::clone(&device)));
    volume.paths().write("/warm", b"up").expect("write");
    volume.sync().expect("sync");
    volume.paths().write("/file", b"old data").expect("write");
    let file = volume.paths().resolve("/file").expect("it is there");
    let number = file.inode();
    // The log's body passes; the commit block's flush waits.
    device.pass_only(Some(1));
    let syncs = |data_only| {
        let volume = Arc::clone(&volume);
        std::thread::spawn(move || {
            let synced = match data_only {
                true => volume.fdatasync(number),
                false => volume.fsync(number),
            };
            synced.expect("nothing fails");
        })
    };
    let first = syncs(false);
    device.wait_for_one_at_the_gate();
    volume.write(number, 0, b"DATA").expect("write over");
    let second = syncs(true);
    // It sees that the commit is running, or finds it done: both must work.
    std::thread::sleep(Duration::from_millis(50));
    device.pass_only(None);
    first.join().expect("synced");
    second.join().expect("synced");
    let log = device.log.lock().unwrap();
    let written = log
        .iter()
        .position(|event| *event == "data")
        .expect("it was written");
    assert!(
        log[written..].contains(&"flush"),
        "no flush began after the data was written"
    );
}

/// The commit that fails is not the last: the objects on the next transaction's list keep much in
/// memory.
#[test]
fn a_close_that_fails_releases_the_device() {
    for features in ["has_journal", "^has_journal"] {
        let Some(image) = Image::make(&["-O", features]) else {
            return;
        };
        let device = Gated::load(&image);
        let options = MountOptions {
            commit_interval: Duration::from_millis(1),
            ..options()
        };
        let volume = Volume::open(Arc::<Gated>::clone(&device), options).expect("a mount");
        device.pass_only(Some(0));
        volume.paths().write("/file", b"content").expect("write");
        device.wait_for_one_at_the_gate();
        volume.paths().write("/later", b"content").expect("write");
        device.fails.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Time for the close to begin waiting.
                std::thread::sleep(Duration::from_millis(50));
                device.pass_only(None);
            });
            assert!(volume.close().is_err(), "{features}");
        });
        assert_eq!(Arc::strong_count(&device), 1, "{features}");
    }
}

#[test]
fn fdatasync_of_a_directory_covers_its_names() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let device = load(&image);
    let volume = open(Arc::<RamDevice>::clone(&device));
    volume.paths().create_dir("/d").expect("mkdir");
    volume.sync().expect("sync");
    volume.paths().write("/d/file", b"").expect("create");
    let d = volume.paths().resolve("/d").expect("it is there").inode();
    volume.fdatasync(d).expect("fdatasync");
    let crashed = open(Arc::new(device.fork()));
    assert!(crashed.paths().attributes("/d/file").is_ok());
}

#[test]
fn a_sync_flushes_the_zeroes_behind_the_end_of_a_cut_file() {
    for features in ["has_journal", "^has_journal"] {
        let Some(image) = Image::make(&["-O", features]) else {
            return;
        };
        let device = Arc::new(RecordDevice::new(load(&image)));
        let volume = open(Arc::<RecordDevice>::clone(&device));
        volume.paths().write("/file", [0xA5; 4096]).expect("write");
        volume.sync().expect("the device works");
        let file = volume.paths().resolve("/file").expect("it is there");
        let cut = SetAttributes {
            size: Some(5),
            ..SetAttributes::default()
        };
        volume.set_attributes(file.inode(), &cut).expect("cut");
        let mark = device.mark();
        volume.sync().expect("the device works");
        let events = device.events_since(mark);
        let is_zeroes = |event: &Event| match event {
            Event::Write { bytes, .. } => bytes.iter().all(|byte| *byte == 0),
            _ => false,
        };
        assert!(events.iter().any(is_zeroes), "{features}");
        assert!(events.last() == Some(&Event::Flush), "{features}");
        let mark = device.mark();
        volume.sync().expect("the device works");
        assert_eq!(device.mark(), mark, "nothing was left to do");
    }
}

#[test]
fn an_error_that_is_only_noted_is_committed() {
    let Some(image) = Image::make(&["-e", "continue", "-b", "1024"]) else {
        return;
    };
    let source = image.path.with_file_name("content");
    std::fs::write(&source, vec![7; 8000]).expect("a temporary file");
    image.debugfs_write(&format!("write {} file", source.display()));
    image.debugfs_write("sif file block[5] 130");
    let device = load(&image);
    let volume = open(Arc::<RamDevice>::clone(&device));
    let file = volume
        .paths()
        .resolve("/file")
        .expect("it is there")
        .inode();
    assert!(matches!(
        volume.read(file, 0, &mut [0; 10]),
        Err(Error::Corrupt(_))
    ));
    assert!(!volume.is_read_only(), "work goes on");
    volume.sync().expect("sync");
    let crashed = Arc::new(device.fork());
    drop(volume);
    drop(open(Arc::<RamDevice>::clone(&crashed)));
    let after = superblock(&*crashed);
    assert!(after.state.contains(State::ERRORS) && after.error_count == 1);
}

#[test]
fn a_mount_says_what_the_image_says_of_itself() {
    let Some(image) = Image::make(&["-O", "^has_journal"]) else {
        return;
    };
    let says = |device: &RamDevice, what: &str| {
        let options = MountOptions {
            read_only: true,
            ..options()
        };
        let volume = Volume::open(Arc::new(device.fork()), options).expect("a mount");
        volume.notes().iter().any(|note| note.contains(what))
    };
    let device = load(&image);
    assert!(!says(&device, "e2fsck"), "it is clean");
    let volume = open(Arc::<RamDevice>::clone(&device));
    volume.paths().write("/file", b"content").expect("write");
    let crashed = device.fork();
    volume.close().expect("a clean close");
    assert!(says(&crashed, "not closed cleanly"));
    assert!(!says(&device, "e2fsck"), "it is clean again");
    image.debugfs_write("set_super_value state 2");
    assert!(says(&load(&image), "having errors"));
}

#[test]
fn a_checkpoint_leaves_the_image_as_it_is_without_its_journal() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    volume
        .paths()
        .write("/new", b"what it holds")
        .expect("room");
    volume.sync().expect("the device works");
    let reads = || image.debugfs("cat /new").contains("what it holds");
    assert!(!reads(), "the name is in the journal alone");
    volume.checkpoint().expect("the device works");
    assert!(reads());
    volume.paths().remove_file("/new").expect("it goes on");
    volume.close().expect("a clean close");
    image.assert_clean();
}
