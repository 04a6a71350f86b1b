//! Guarantees of Linux on which callers rely: times as they are read back, flags that are honoured
//! or refused, whiteouts, generations.

use std::collections::HashSet;
use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::{
    AllocateMode, CreateAttributes, Error, FileType, InodeNumber, MappedRange, MountOptions,
    Refusal, RenameMode, SetAttributes, SetTime, SetXattrMode, Time, Volume, Whiteout,
};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
/// SECRM, UNRM, COMPR and NOTAIL.
const HEEDED_BY_NOBODY: u32 = 0x8007;
const NODUMP: u32 = 0x40;
const JOURNAL_DATA: u32 = 0x4000;
const TOPDIR: u32 = 0x2_0000;
const EXTENTS: u32 = 0x8_0000;
const NOCOW: u32 = 0x80_0000;
const PROJINHERIT: u32 = 0x2000_0000;
const EOFBLOCKS: u32 = 0x40_0000;
const DAX: u32 = 0x200_0000;
/// A bit that no flag has.
const NAMELESS: u32 = 0x8000_0000;

fn file(volume: &Volume, name: &[u8]) -> InodeNumber {
    let made = volume.create(ROOT, name, &CreateAttributes::default());
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
        .make_directory(ROOT, b"directory", &CreateAttributes::default())
        .expect("room")
        .inode;
    assert_eq!(
        set_flags(&volume, inode, EXTENTS | NODUMP).expect("nodump"),
        EXTENTS | NODUMP
    );
    let refused = [
        EXTENTS | NAMELESS,
        EXTENTS | JOURNAL_DATA,
        EXTENTS | TOPDIR,
        EXTENTS | NOCOW,
        EXTENTS | PROJINHERIT,
    ];
    for flags in refused {
        let error = set_flags(&volume, inode, flags).expect_err("it would not be heeded");
        assert!(error.is(Refusal::NotSupported), "{flags:#x}: {error}");
    }
    assert_eq!(
        set_flags(&volume, inode, EXTENTS | NODUMP | EOFBLOCKS).expect("ignored, as on Linux"),
        EXTENTS | NODUMP
    );
    let of_directories = EXTENTS | TOPDIR | PROJINHERIT | DAX | HEEDED_BY_NOBODY;
    set_flags(&volume, directory, of_directories).expect("flags of directories");
    let made = volume.create(directory, b"heir", &CreateAttributes::default());
    let inherited = made.expect("room").attributes.flags;
    let expected = EXTENTS | DAX | HEEDED_BY_NOBODY;
    assert_eq!(inherited, expected, "as on Linux");
    let told = volume.attributes(inode).expect("it is there").flags;
    assert_eq!(told, EXTENTS | NODUMP, "a refusal changes nothing");
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_removed_directory_permits_no_file_without_a_name() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    let directory = volume.make_directory(ROOT, b"directory", &CreateAttributes::default());
    let directory = directory.expect("room").inode;
    volume
        .remove_directory(ROOT, b"directory")
        .expect("it is empty");
    let error = volume
        .create_unnamed(directory, &CreateAttributes::default())
        .expect_err("it is gone");
    assert!(error.is(Refusal::NotPermitted), "{error}");
    volume.forget(directory, 1);
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn a_hole_leaves_the_blocks_behind_the_end_of_the_file() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    volume.write(inode, 0, &[1; 5000]).expect("room");
    let set_aside = volume.allocate(inode, AllocateMode::KeepSize, 0, 16 * 4096);
    set_aside.expect("room");
    let blocks = || volume.attributes(inode).expect("it is there").sectors / 8;
    for (range, left) in [
        (4 * 4096..12 * 4096, 16),
        (9000..1 << 40, 16),
        (0..16 * 4096, 14),
    ] {
        let length = range.end - range.start;
        let punched = volume.allocate(inode, AllocateMode::PunchHole, range.start, length);
        punched.expect("a hole");
        assert_eq!(blocks(), left, "{range:?}");
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn zeroing_what_was_never_written_leaves_the_file_where_it_is() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let set_aside = volume.allocate(inode, AllocateMode::Extend, 0, 1 << 20);
    set_aside.expect("room");
    let before = volume.extents(inode, 0, 100).expect("a map");
    assert_eq!(before.len(), 1);
    let zero = AllocateMode::ZeroRange { keep_size: false };
    for block in [1, 3, 5, 200] {
        volume
            .allocate(inode, zero, block * 4096, 4096)
            .expect("room");
    }
    let after = volume.extents(inode, 0, 100).expect("a map");
    assert_eq!(after, before);
    // What was written reads as zeroes afterwards, and more of the file can be set aside.
    volume.write(inode, 8192, &[7; 4096]).expect("room");
    volume.allocate(inode, zero, 4096, 2 << 20).expect("room");
    let mut read = [1; 16384];
    let count = volume.read(inode, 0, &mut read).expect("a file");
    assert_eq!((count, read), (16384, [0; 16384]));
    assert_eq!(
        volume.attributes(inode).expect("a file").size,
        (2 << 20) + 4096
    );
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// The cache's clock may be ahead of ours by a tick.
#[test]
fn an_immutable_file_takes_the_time_of_a_write_just_before() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    set_flags(&volume, inode, EXTENTS | IMMUTABLE).expect("immutable");
    let locked = volume.attributes(inode).expect("it is there").changed;
    let after = |nanoseconds: u32| {
        let sum = locked.nanoseconds + nanoseconds;
        let seconds = locked.seconds + i64::from(sum / 1_000_000_000);
        time(seconds, sum % 1_000_000_000)
    };
    let a_tick = volume.set_times_from_cache(inode, after(8_000_000), after(8_000_000));
    let told = a_tick.expect("the write came before");
    assert_eq!((told.modified, told.changed), (after(8_000_000), locked));
    let later = volume.set_times_from_cache(inode, after(20_000_000), after(20_000_000));
    assert!(later.is_err(), "that one came after");
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
    let (then, later) = (time(1_000_000, 5), time(1_000_001, 0));
    let told = volume
        .set_times_from_cache(inode, then, later)
        .expect("written");
    assert_eq!((told.modified, told.changed), (then, later));
    let refused = [
        written,
        SetAttributes {
            modified: Some(SetTime::Now),
            ..SetAttributes::default()
        },
        SetAttributes {
            modified: Some(SetTime::To(then)),
            ..now
        },
        SetAttributes {
            accessed: Some(SetTime::To(time(5, 5))),
            ..now
        },
        SetAttributes {
            modified: None,
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
    let made = volume.make_directory(ROOT, b"kept", &CreateAttributes::default());
    let directory = made.expect("room for a directory").inode;
    for name in [&b"old"[..], b"old2"] {
        let made = volume.create(directory, name, &CreateAttributes::default());
        let _ = made.expect("room for a file");
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
    // As a default list for owner, group and others gives it, with one user beside.
    let entry = |tag: u16, user: &[u8]| [&tag.to_le_bytes()[..], &[0, 0], user].concat();
    let list = [
        vec![1, 0, 0, 0],
        entry(0x01, &[]),
        entry(0x02, &[9, 0, 0, 0]),
        entry(0x04, &[]),
        entry(0x10, &[]),
        entry(0x20, &[]),
    ]
    .concat();
    let owner = Whiteout {
        owner: CreateAttributes {
            permissions: 0o777,
            uid: 7,
            gid: 8,
        },
        access_list: Some(&list),
    };
    let lower = volume
        .make_directory(ROOT, b"lower", &CreateAttributes::default())
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
        let kept = volume.xattr(left.inode, b"system.posix_acl_access");
        assert_eq!(kept.expect("the list that it inherits"), list);
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

#[test]
fn a_file_that_could_not_be_allocated_has_the_size_that_it_had() {
    let Some(image) = Image::make(&["-m", "0"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(InodeNumber::ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    let statistics = volume.statfs();
    let twice = 2 * statistics.free_blocks * u64::from(statistics.block_size);
    let full = volume
        .allocate(file, AllocateMode::Extend, 0, twice)
        .expect_err("twice what there is");
    assert!(full.is(Refusal::NoSpace), "{full}");
    assert_eq!(volume.attributes(file).expect("there").size, 0);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_read_only_mount_knows_more_files_than_it_has_memory_for() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let name = |number: u32| format!("f{number}").into_bytes();
    for number in 0..6000 {
        let file = file(&volume, &name(number));
        volume.forget(file, 1);
    }
    volume.close().expect("it closes");
    let device = RamDevice::load(&image.path).expect("the image");
    let options = MountOptions {
        read_only: true,
        cache_size: 4 << 20,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(device), options).expect("a mount");
    for number in 0..6000 {
        let entry = volume.lookup(InodeNumber::ROOT, &name(number));
        volume.forget(entry.expect("it is there").inode, 1);
    }
}

/// Fills the volume to its last block.
fn fill(volume: &Volume) {
    let hog = file(volume, b"hog");
    let mut end = 0;
    for step in [1u64 << 20, 65536, 4096] {
        while volume
            .allocate(hog, AllocateMode::Extend, end, step)
            .is_ok()
        {
            end += step;
        }
    }
}

#[test]
fn what_was_set_aside_can_be_written_where_nothing_is_left() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 1024;
    for mode in [AllocateMode::Extend, AllocateMode::KeepSize] {
        let Some(image) = Image::make(&["-b", "4096", "-m", "0"]) else {
            return;
        };
        let volume = image.open();
        let inode = file(&volume, b"set aside");
        let allocated = volume.allocate(inode, mode, 0, BLOCKS * BLOCK);
        allocated.expect("there is room");
        fill(&volume);
        for block in (1..64).step_by(2) {
            let written = volume.write(inode, block * BLOCK, &[1; 4096]);
            assert_eq!(written.expect("it was set aside"), 4096);
        }
        let size = volume.attributes(inode).expect("it is there").size;
        let mut content = vec![7; usize::try_from(size).expect("small")];
        volume.read(inode, 0, &mut content).expect("it can be read");
        for (block, bytes) in content.chunks(4096).enumerate() {
            let expected = u8::from(block < 64 && block % 2 == 1);
            assert!(bytes.iter().all(|&byte| byte == expected), "block {block}");
        }
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

#[test]
fn a_name_moves_far_below_the_root() {
    const DEPTH: u32 = 66_000;
    let Some(image) = Image::make(&[
        "-b",
        "1024",
        "-N",
        "70000",
        "-I",
        "256",
        "-O",
        "inline_data",
    ]) else {
        return;
    };
    let volume = image.open();
    let mut below = [ROOT, ROOT];
    for _ in 0..DEPTH {
        let made = volume.make_directory(below[1], b"d", &CreateAttributes::default());
        below = [below[1], made.expect("there is room").inode];
    }
    let _ = volume
        .create(below[1], b"f", &CreateAttributes::default())
        .expect("room");
    let moved = volume.rename(below[1], b"f", below[0], b"f", RenameMode::Replace);
    moved.expect("it is no loop");
    let _ = volume.lookup(below[0], b"f").expect("it is there");
}

#[test]
fn flags_of_what_stays_immutable_stay() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let flags = set_flags(&volume, inode, IMMUTABLE).expect("it is ours") | IMMUTABLE;
    let refused = set_flags(&volume, inode, flags | NODUMP).expect_err("it is locked");
    assert!(refused.is(Refusal::NotPermitted), "{refused}");
    set_flags(&volume, inode, flags).expect("nothing changes");
    set_flags(&volume, inode, (flags | NODUMP) & !IMMUTABLE).expect("it is unlocked");
}

#[test]
fn one_call_stamps_all_inodes_with_one_time() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let made = time(1_000_000_000, 8);
    let change = SetAttributes {
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::To(made)),
        changed: Some(SetTime::To(made)),
        ..SetAttributes::default()
    };
    let told = volume.set_attributes(inode, &change).expect("it is ours");
    assert_eq!(told.accessed, made);
}

#[test]
fn a_range_is_made_zero_where_nothing_is_left() {
    let Some(image) = Image::make(&["-b", "4096", "-m", "0"]) else {
        return;
    };
    let volume = image.open();
    let inode = file(&volume, b"file");
    let content = vec![1; 1 << 20];
    volume.write(inode, 0, &content).expect("there is room");
    let blocks = volume.attributes(inode).expect("it is there").sectors;
    // Every block of the file, by its place on the device.
    let places = |runs: &[MappedRange]| -> Vec<u64> {
        let blocks = |run: &MappedRange| (run.physical..run.physical + run.length).step_by(4096);
        runs.iter().flat_map(blocks).collect()
    };
    let before = volume.extents(inode, 0, 100).expect("they can be listed");
    fill(&volume);
    let mode = AllocateMode::ZeroRange { keep_size: false };
    volume
        .allocate(inode, mode, 100, 500_000)
        .expect("it has its blocks");
    // A further run does not fit into the inode, and no block is left for a node: zeroes are
    // written.
    volume
        .allocate(inode, mode, 600_000, 100_000)
        .expect("it has its blocks");
    let after = volume.extents(inode, 0, 100).expect("they can be listed");
    let states: Vec<bool> = after.iter().map(|run| run.unwritten).collect();
    assert_eq!(states, [false, true, false], "{after:?}");
    assert_eq!(places(&after), places(&before), "it gave blocks back");
    let mut zeroed = content;
    zeroed[100..500_100].fill(0);
    zeroed[600_000..700_000].fill(0);
    let mut read = vec![7; zeroed.len()];
    volume.read(inode, 0, &mut read).expect("it can be read");
    assert!(read == zeroed);
    assert_eq!(
        volume.attributes(inode).expect("it is there").sectors,
        blocks
    );
    volume.close().expect("it closes");
    image.assert_clean();
}

/// What a cut leaves behind the end of the file is zeroed when it grows, not before the cut is
/// durable; who must not wait for that can ask.
#[test]
fn a_write_waits_only_after_a_cut_inside_a_block_that_is_not_durable() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(ROOT, b"file", &CreateAttributes::default());
    let file = made.expect("a file").inode;
    let written = volume.write(file, 0, &[7; 4096]);
    assert_eq!(written.expect("written"), 4096);
    volume.sync().expect("the device works");
    let cut = |size| {
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        volume.set_attributes(file, &change).expect("a new size");
    };
    assert!(!volume.write_waits(file, 5000), "it was not cut");
    cut(2048);
    assert!(
        !volume.write_waits(file, 5000),
        "there is no rest of a block"
    );
    cut(1500);
    assert!(volume.write_waits(file, 5000));
    assert!(!volume.write_waits(file, 1400), "it does not grow");
    volume.sync().expect("the device works");
    assert!(!volume.write_waits(file, 5000), "the cut is durable");
    cut(5000);
    cut(4999);
    cut(5001);
    assert!(!volume.write_waits(file, 6000), "it has grown");
}
