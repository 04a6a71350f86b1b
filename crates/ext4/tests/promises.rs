//! What Linux promises of inodes and callers rely on: times as they are read back, flags that are
//! heeded or refused, whiteouts, generations.

mod images;

use std::collections::HashSet;

use images::Image;
use pext4_fs::{
    Error, FileType, InodeNumber, New, Refusal, RenameMode, SetAttributes, SetTime, SetXattrMode,
    Time, Volume,
};

const ROOT: InodeNumber = InodeNumber::ROOT;

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const JOURNAL_DATA: u32 = 0x4000;
const TOPDIR: u32 = 0x2_0000;
const EXTENTS: u32 = 0x8_0000;
const NOCOW: u32 = 0x80_0000;
const PROJINHERIT: u32 = 0x2000_0000;
const EOFBLOCKS: u32 = 0x40_0000;

fn file(volume: &Volume, name: &[u8]) -> InodeNumber {
    let made = volume.create(ROOT, name, &New::default());
    made.expect("room for a file").inode
}

fn set_flags(volume: &Volume, inode: InodeNumber, flags: u32) -> Result<u32, Error> {
    let change = SetAttributes {
        flags: Some(flags),
        ..SetAttributes::default()
    };
    let set = volume.set_attributes(inode, &change)?;
    Ok(set.flags)
}

fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time {
        seconds,
        nanoseconds,
    }
}

#[test]
fn times_are_told_as_they_will_be_read_back() {
    for arguments in [&[][..], &["-I", "128", "-O", "^metadata_csum"]] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let asked = [
            time(0, 0),
            time(-1, 999_999_999),
            time(-2_208_988_800, 1),
            time(1 << 31, 8),
            time(7_258_118_400, 123_456_789),
            time(1 << 40, 3),
        ];
        let volume = image.open();
        let inode = file(&volume, b"file");
        let born = volume.attributes(inode).expect("it is there");
        for asked in asked {
            let change = SetAttributes {
                accessed: Some(SetTime::To(asked)),
                modified: Some(SetTime::To(asked)),
                ..SetAttributes::default()
            };
            let name = format!("{}.{}", asked.seconds, asked.nanoseconds);
            let inode = file(&volume, name.as_bytes());
            volume.set_attributes(inode, &change).expect("any time");
        }
        let told = |volume: &Volume, name: &[u8]| {
            let found = volume.lookup(ROOT, name).expect("it is there");
            let found = found.attributes;
            [found.accessed, found.modified, found.changed]
        };
        let names: Vec<_> = asked
            .map(|time| format!("{}.{}", time.seconds, time.nanoseconds))
            .into();
        let before: Vec<_> = names
            .iter()
            .map(|name| told(&volume, name.as_bytes()))
            .collect();
        volume.close().expect("a clean close");
        let volume = image.open();
        for (name, before) in names.iter().zip(before) {
            assert_eq!(
                told(&volume, name.as_bytes()),
                before,
                "{arguments:?}: {name}"
            );
        }
        let again = volume
            .lookup(ROOT, b"file")
            .expect("it is there")
            .attributes;
        assert_eq!(
            (again.modified, again.created),
            (born.modified, born.created)
        );
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

#[test]
fn flags_are_heeded_or_refused() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let directory = volume
        .make_directory(ROOT, b"directory", &New::default())
        .expect("room")
        .inode;
    assert_eq!(
        set_flags(&volume, inode, EXTENTS | NODUMP).expect("nodump"),
        EXTENTS | NODUMP
    );
    let refused = [
        0,
        EXTENTS | JOURNAL_DATA,
        EXTENTS | TOPDIR,
        EXTENTS | NOCOW,
        EXTENTS | PROJINHERIT,
        EXTENTS | EOFBLOCKS,
    ];
    for flags in refused {
        let error = set_flags(&volume, inode, flags).expect_err("it would not be heeded");
        assert!(error.is(Refusal::NotSupported), "{flags:#x}: {error}");
    }
    set_flags(&volume, directory, EXTENTS | TOPDIR).expect("a flag of directories");
    let told = volume.attributes(inode).expect("it is there").flags;
    assert_eq!(told, EXTENTS | NODUMP, "a refusal changes nothing");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn an_append_only_file_takes_the_times_of_its_writers() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    set_flags(&volume, inode, EXTENTS | APPEND).expect("append only");
    volume.write(inode, 0, b"appended").expect("it may grow");
    let now = SetAttributes {
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::Now),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &now).expect("touched");
    let written = SetAttributes {
        modified: Some(SetTime::To(time(1_000_000, 5))),
        changed: Some(SetTime::To(time(1_000_000, 5))),
        ..SetAttributes::default()
    };
    let told = volume.set_attributes(inode, &written).expect("written");
    assert_eq!(told.modified, time(1_000_000, 5));
    let refused = [
        SetAttributes {
            accessed: Some(SetTime::To(time(5, 5))),
            ..now
        },
        SetAttributes {
            permissions: Some(0o777),
            ..now
        },
        SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        },
    ];
    for change in refused {
        let error = volume
            .set_attributes(inode, &change)
            .expect_err("append only");
        assert!(error.is(Refusal::NotPermitted), "{error}");
    }
    set_flags(&volume, inode, EXTENTS | IMMUTABLE).expect("immutable");
    let error = volume.set_attributes(inode, &now).expect_err("immutable");
    assert!(error.is(Refusal::NotPermitted), "{error}");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn an_append_only_directory_keeps_its_names() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let made = volume.make_directory(ROOT, b"kept", &New::default());
    let directory = made.expect("room for a directory").inode;
    for name in [&b"old"[..], b"old2"] {
        let made = volume.create(directory, name, &New::default());
        made.expect("room for a file");
    }
    for name in [&b"new"[..], b"new2", b"new3"] {
        file(&volume, name);
    }
    set_flags(&volume, directory, EXTENTS | APPEND).expect("append only");
    let over = |from: &[u8], to: &[u8], mode| volume.rename(ROOT, from, directory, to, mode);
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let error = over(b"new", b"old", mode).expect_err("append only");
        assert!(error.is(Refusal::NotPermitted), "{error}");
    }
    over(b"new3", b"new3", RenameMode::Replace).expect("it may grow");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_move_may_leave_a_whiteout() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let owner = New {
        permissions: 0o777,
        uid: 7,
        gid: 8,
    };
    let lower = volume
        .make_directory(ROOT, b"lower", &New::default())
        .expect("room")
        .inode;
    let moved = file(&volume, b"old");
    file(&volume, b"replaced");
    let mode = RenameMode::Replace;
    volume
        .rename_leaving_whiteout(ROOT, b"old", ROOT, b"replaced", mode, &owner)
        .expect("a move");
    volume
        .rename_leaving_whiteout(
            ROOT,
            b"replaced",
            lower,
            b"new",
            RenameMode::NoReplace,
            &owner,
        )
        .expect("a move between directories");
    volume
        .rename_leaving_whiteout(ROOT, b"lower", ROOT, b"upper", mode, &owner)
        .expect("a directory's move");
    for name in [&b"old"[..], b"replaced", b"lower"] {
        let left = volume.lookup(ROOT, name).expect("a whiteout").attributes;
        assert_eq!(left.file_type, FileType::CharacterDevice);
        assert_eq!((left.device.major, left.device.minor), (0, 0));
        assert_eq!(
            (left.mode & 0o7777, left.uid, left.gid, left.links),
            (0, 7, 8, 1)
        );
    }
    let found = volume.lookup(lower, b"new").expect("the file");
    assert_eq!(found.inode, moved);
    let error = volume
        .rename_leaving_whiteout(ROOT, b"old", lower, b"new", RenameMode::Exchange, &owner)
        .expect_err("nothing would be left");
    assert!(error.is(Refusal::Invalid), "{error}");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_number_begins_each_life_with_another_generation() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let mut seen = HashSet::new();
    for life in 0..500 {
        let inode = file(&volume, b"file");
        let generation = volume.attributes(inode).expect("it is there").generation;
        assert!(seen.insert((inode, generation)), "life {life} of {inode}");
        volume.unlink(ROOT, b"file").expect("it is there");
        volume.forget(inode, 1);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_name_without_its_end_is_no_attribute() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    for name in [&b"user."[..], b"trusted.", b"security."] {
        let error = volume
            .set_xattr(inode, name, b"value", SetXattrMode::Any)
            .expect_err("no name");
        assert!(error.is(Refusal::Invalid), "{error}");
    }
    volume.close().expect("a clean close");
}
