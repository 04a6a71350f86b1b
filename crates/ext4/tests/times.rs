//! The times of directories, although not every change of names stores them; and of files that are
//! written back later than they were changed.

mod images;

use std::time::Duration;

use images::Image;
use pext4_fs::{AccessTimes, AllocateMode, CreateAttributes, InodeNumber, SetAttributes, SetTime};
use pext4_ondisk::time::Time;
use pext4_sync::time;

#[test]
fn a_change_of_names_after_the_times_were_set_back_is_told() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let root = InodeNumber::ROOT;
    // All of this happens within one tick of the clock and in one transaction.
    let _frozen = time::freeze(Duration::new(1_700_000_000, 5));
    let modified = || volume.attributes(root).expect("the root").modified;
    let now = Time {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    };
    for (number, name) in [&b"a"[..], b"b", b"c"].into_iter().enumerate() {
        let _ = volume
            .create(root, name, &CreateAttributes::default())
            .expect("room for a file");
        assert_eq!(modified(), now, "after file {number}");
    }
    let past = Time {
        seconds: 1,
        nanoseconds: 0,
    };
    let back = SetAttributes {
        modified: Some(SetTime::To(past)),
        ..SetAttributes::default()
    };
    volume.set_attributes(root, &back).expect("times are set");
    assert_eq!(modified(), past);
    volume.unlink(root, b"b").expect("the file is there");
    assert_eq!(modified(), now);
    volume.close().expect("a clean end");
    image.assert_clean();
}

#[test]
fn names_changed_on_many_threads_set_the_times_for_good() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 40;
    const START: u64 = 1_700_000_000;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let root = InodeNumber::ROOT;
    let seconds = || {
        let told = volume.attributes(root).expect("the root");
        assert_eq!(told.modified, told.changed);
        u64::try_from(told.modified.seconds).expect("a time of now")
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, seconds) = (&volume, &seconds);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let _frozen = time::freeze(Duration::from_secs(START + round));
                    let name = format!("{thread}-{round}");
                    let made = volume.create(root, name.as_bytes(), &CreateAttributes::default());
                    let inode = made.expect("room for a file").inode;
                    assert!((START..START + ROUNDS).contains(&seconds()));
                    match round % 4 {
                        0 => volume.fsync(root).expect("it is durable"),
                        1 => volume.unlink(root, name.as_bytes()).expect("it is there"),
                        _ => {}
                    }
                    volume.forget(inode, 1);
                }
            });
        }
    });
    volume.fdatasync(root).expect("it is durable");
    // The second comes in the same transaction.
    for now in START + ROUNDS..START + ROUNDS + 2 {
        let _frozen = time::freeze(Duration::from_secs(now));
        let name = format!("at {now}");
        let made = volume.create(root, name.as_bytes(), &CreateAttributes::default());
        let _ = made.expect("room for a file");
        assert_eq!(seconds(), now);
    }
    let told = volume.attributes(root).expect("the root");
    volume.close().expect("a clean end");
    let volume = image.open();
    let kept = volume.attributes(root).expect("the root");
    assert_eq!((kept.modified, kept.changed), (told.modified, told.changed));
    volume.close().expect("a clean end");
    image.assert_clean();
}

#[test]
fn what_a_cache_writes_back_late_leaves_the_times() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let mut clock = Duration::new(1_700_000_000, 0);
    let made = {
        let _frozen = time::freeze(clock);
        volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default())
    };
    let file = made.expect("room for a file").inode;
    let born = volume.attributes(file).expect("it is held");
    clock += Duration::from_secs(6);
    let _frozen = time::freeze(clock);
    let written = volume.write_from_cache(file, 0, &[7; 10_000]);
    assert_eq!(written.expect("room for content"), 10_000);
    let told = volume.attributes(file).expect("it is held");
    assert_eq!(told.size, 10_000);
    assert_eq!((told.modified, told.changed), (born.modified, born.changed));
    let whole = AllocateMode::ZeroRange { keep_size: false };
    for mode in [AllocateMode::Extend, AllocateMode::PunchHole, whole] {
        let allocated = volume.allocate_from_cache(file, mode, 0, 20_000);
        allocated.expect("room for content");
        let told = volume.attributes(file).expect("it is held");
        let times = (told.modified, told.changed);
        assert_eq!(times, (born.modified, born.changed), "{mode:?}");
    }
    volume.write(file, 0, b"now").expect("room for content");
    let told = volume.attributes(file).expect("it is held");
    assert_eq!(told.modified.seconds, 1_700_000_006);
    volume.close().expect("a clean end");
    image.assert_clean();
}

#[test]
fn an_access_is_noted_as_the_policy_wants_it() {
    const NO_ACCESS_TIMES: u32 = 0x80;
    const DAY: u64 = 24 * 3600;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let start = 1_700_000_000;
    let at = |seconds: u64| Time::from_seconds(i64::try_from(start + seconds).expect("small"));
    let clock = |seconds: u64| time::freeze(Duration::from_secs(start + seconds));
    let born = clock(0);
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let inode = made.expect("room").inode;
    drop(born);
    let noted = |seconds: u64, policy| {
        let _held = clock(seconds);
        volume.note_access(inode, policy).expect("a file");
        volume.attributes(inode).expect("a file").accessed
    };
    assert_eq!(noted(10, AccessTimes::Never), at(0));
    assert_eq!(
        noted(10, AccessTimes::Relative),
        at(10),
        "as old as its content"
    );
    assert_eq!(noted(20, AccessTimes::Relative), at(10));
    assert_eq!(noted(20, AccessTimes::Strict), at(20));
    assert_eq!(noted(19 + DAY, AccessTimes::Relative), at(20));
    assert_eq!(
        noted(20 + DAY, AccessTimes::Relative),
        at(20 + DAY),
        "a day old"
    );
    let told = volume.attributes(inode).expect("a file");
    assert_eq!((told.modified, told.changed), (at(0), at(0)));
    let change = SetAttributes {
        flags: Some(told.flags | NO_ACCESS_TIMES),
        changed: Some(SetTime::To(at(3 * DAY))),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).expect("a flag");
    assert_eq!(noted(4 * DAY, AccessTimes::Strict), at(20 + DAY));
    volume.close().expect("a clean end");
    image.assert_clean();
}
