//! Calls that find no space: one of fallocate takes back what it got, so the file and the volume
//! are as they were, and e2fsck is content; and what a commit frees is waited for.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::options::Reserve;
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, MountOptions, Refusal, SetAttributes, Volume,
};

use crate::images::{Image, inode};

const BLOCK: usize = 4096;
const SMALL: usize = 1024;

/// Fills a volume with files of one block and removes every second one, so that no two free blocks
/// are neighbours.
fn fragment(volume: &Volume) {
    volume.paths().create_dir("/small").expect("room");
    let name = |number: u32| format!("/small/{number}");
    let mut count = 0;
    while volume.paths().write(name(count), [1; BLOCK]).is_ok() {
        count += 1;
    }
    for number in (0..count).step_by(2) {
        volume
            .paths()
            .remove_file(name(number))
            .expect("it is there");
    }
    volume.sync().expect("a sound device");
}

/// The size, the sectors, and the free blocks.
fn state(volume: &Volume, inode: InodeNumber) -> (u64, u64, u64) {
    volume.sync().expect("a sound device");
    let attributes = volume.attributes(inode).expect("it is there");
    let free = volume.statfs().free_blocks;
    (attributes.size, attributes.sectors, free)
}

#[test]
fn a_call_without_space_leaves_no_blocks_behind_the_size() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "20000"]) else {
        return;
    };
    let volume = image.open();
    fragment(&volume);
    let content = vec![7; 7 * BLOCK];
    volume.paths().write("/file", &content).expect("room");
    let inode = volume
        .paths()
        .attributes("/file")
        .expect("it is there")
        .inode;
    let before = state(&volume, inode);
    for mode in [
        AllocateMode::Extend,
        AllocateMode::ZeroRange { keep_size: false },
    ] {
        let error = volume
            .allocate(inode, mode, 5 * BLOCK as u64, 100 << 20)
            .expect_err("there is less");
        assert!(error.is(Refusal::NoSpace), "{error}");
        assert_eq!(state(&volume, inode), before, "{mode:?}");
        assert_eq!(volume.paths().read("/file").expect("sound"), content);
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// Each run of blocks is committed with the size that shows it.
#[test]
fn the_size_grows_with_the_blocks() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "20000"]) else {
        return;
    };
    let volume = image.open();
    fragment(&volume);
    volume.paths().write("/file", b"").expect("room");
    let inode = volume
        .paths()
        .attributes("/file")
        .expect("it is there")
        .inode;
    let free = volume.statfs().free_blocks;
    let wanted = free / 2 * BLOCK as u64 + 5;
    volume
        .allocate(inode, AllocateMode::Extend, 0, wanted)
        .expect("there is more");
    assert_eq!(volume.attributes(inode).expect("there").size, wanted);
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// Zeroing needs no space where a file has blocks, not even space that is kept for root.
#[test]
fn zeroing_inside_the_reserve_keeps_the_blocks() {
    let Some(image) = Image::make(&["-b", "4096", "-m", "50"]) else {
        return;
    };
    let content = vec![7; 12 << 20];
    let volume = image.open_with(MountOptions {
        reserve: Reserve::Everybody,
        ..MountOptions::default()
    });
    volume.paths().write("/file", &content).expect("room");
    let free = usize::try_from(volume.statfs().free_blocks).expect("a small image");
    let large = vec![1; (free - 7168) * BLOCK];
    volume.paths().write("/large", large).expect("room");
    volume.close().expect("a clean close");
    let volume = image.open_with(MountOptions {
        reserve: Reserve::Nobody,
        ..MountOptions::default()
    });
    let file = inode(&volume, "/file");
    let place = |volume: &Volume| {
        let extents = volume.extents(file, 0, 100).expect("sound");
        let place = extents.first().expect("it has blocks").physical;
        (place, state(volume, file))
    };
    let before = place(&volume);
    let mode = AllocateMode::ZeroRange { keep_size: false };
    // An odd range: its first and last block keep a part of their content.
    let end = content.len() as u64 - 100;
    volume
        .allocate(file, mode, 5000, end - 5000)
        .expect("every block is allocated");
    assert_eq!(place(&volume), before, "the blocks are the same");
    let mut zeroed = content;
    zeroed[5000..usize::try_from(end).expect("small")].fill(0);
    assert!(volume.paths().read("/file").expect("sound") == zeroed);
    volume.close().expect("a clean close");
    image.assert_clean();
    let volume = image.open();
    assert!(volume.paths().read("/file").expect("sound") == zeroed);
    let data = volume.seek_hole(file, 0).expect("a file");
    assert_eq!(data, 8192, "what was zeroed counts as a hole");
}

/// Blocks of 1 KiB, none of them free, and `/file` of 600 with four extents, which fill the root of
/// its tree: a hole in the middle of one needs a node. Returns its content.
fn fill_around_a_file(volume: &Volume) -> Vec<u8> {
    let mut content = vec![7; 600 * SMALL];
    volume.paths().write("/file", &content).expect("room");
    let file = inode(volume, "/file");
    for block in [100, 200, 300] {
        let hole = block * SMALL..(block + 1) * SMALL;
        punch(volume, file, &hole);
        content[hole].fill(0);
    }
    volume.sync().expect("a sound device");
    let rest = usize::try_from(volume.statfs().free_blocks).expect("a small image");
    let filled = volume.paths().write("/rest", vec![1; (rest - 8) * SMALL]);
    filled.expect("there is room");
    let mut last = 0;
    while volume.append(inode(volume, "/rest"), &[1; SMALL]).is_ok() {
        last += 1;
    }
    volume.sync().expect("a sound device");
    assert_eq!(volume.statfs().free_blocks, 0, "after {last} blocks more");
    content
}

/// The node that a hole makes of its own block may end in the same transaction. Until that is
/// durable, a crash makes the block data again: nobody else gets it.
#[test]
fn a_block_that_was_a_node_for_a_moment_stays_with_its_file_until_that_is_durable() {
    let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-N", "64"]) else {
        return;
    };
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let open = |device: &Arc<RamDevice>| {
        let device = Arc::<RamDevice>::clone(device);
        Volume::open(device, MountOptions::default()).expect("a mount")
    };
    let volume = open(&device);
    let other = volume.paths().create("/other").expect("room").inode();
    let content = fill_around_a_file(&volume);
    let file = inode(&volume, "/file");
    punch(&volume, file, &(50 * SMALL..51 * SMALL));
    volume.paths().remove_file("/file").expect("there");
    // The power is cut as soon as the data is on the device.
    volume
        .write(other, 0, &[9; SMALL])
        .expect("room, at once or after a commit");
    let crashed = Arc::new(device.fork());
    let after = open(&crashed);
    // It is gone if the write had to wait for a commit.
    if after.paths().exists("/file").expect("sound") {
        let found = after.paths().read("/file").expect("sound");
        assert!(found == content, "foreign bytes");
    }
}

/// On a full volume a hole in the middle of an extent takes the node that it needs from its own
/// blocks.
#[test]
fn a_hole_can_be_punched_where_no_block_is_free() {
    // With a journal, what is freed is not free before the commit.
    let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-N", "64"]) else {
        return;
    };
    let volume = image.open();
    let mut content = fill_around_a_file(&volume);
    let file = inode(&volume, "/file");
    let sectors = |volume: &Volume| volume.attributes(file).expect("there").sectors;
    let before = sectors(&volume);

    // One block, which becomes the node; then some, for which the leaf has room.
    let mut expected = before;
    for (first, end, freed) in [(50, 51, 0), (150, 160, 10), (599, 600, 1), (420, 500, 80)] {
        let hole = first * SMALL..end * SMALL;
        punch(&volume, file, &hole);
        content[hole].fill(0);
        expected -= 2 * freed;
        assert_eq!(sectors(&volume), expected, "blocks {first} to {end}");
    }
    volume.sync().expect("a sound device");
    assert_eq!(volume.statfs().free_blocks, 91);
    assert!(volume.paths().read("/file").expect("sound") == content);
    volume.close().expect("a clean close");
    image.assert_clean();
    let volume = image.open();
    assert!(volume.paths().read("/file").expect("sound") == content);
}

fn punch(volume: &Volume, file: InodeNumber, hole: &std::ops::Range<usize>) {
    let [offset, length] = [hole.start, hole.len()].map(|bytes| bytes as u64);
    let punched = volume.allocate(file, AllocateMode::PunchHole, offset, length);
    punched.unwrap_or_else(|error| panic!("bytes {hole:?}: {error}"));
}

#[test]
fn zeroing_an_inline_file_without_space_leaves_its_content() {
    let Some(image) = Image::make(&["-b", "4096", "-m", "0", "-O", "inline_data"]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/file", b"precious").expect("room");
    // Until nothing is left.
    volume
        .paths()
        .write("/large", vec![1; 70 << 20])
        .expect_err("the image is smaller");
    let file = inode(&volume, "/file");
    let mode = AllocateMode::ZeroRange { keep_size: false };
    let error = volume
        .allocate(file, mode, 0, 1 << 20)
        .expect_err("no space");
    assert!(error.is(Refusal::NoSpace), "{error}");
    assert_eq!(volume.paths().read("/file").expect("sound"), b"precious");
}

/// A volume with blocks of 1 KiB, of which some runs of 12 are free and no others, and the empty
/// file `/new`.
fn with_free_runs(image: &Image, runs: u32) -> (Volume, InodeNumber) {
    let volume = image.open();
    let paths = volume.paths();
    let name = |number: u32| format!("/small-{number}");
    for number in 0..2 * runs {
        let wrote = paths.write(name(number), vec![1; 12 * SMALL]);
        wrote.expect("room");
    }
    paths.write("/new", b"").expect("room");
    paths.write("/rest", b"").expect("room");
    let rest = inode(&volume, "/rest");
    while volume.append(rest, &[1; 64 * SMALL]).is_ok() {}
    while volume.append(rest, &[1; SMALL]).is_ok() {}
    // What is too little for a block of a large file and the pointers to it.
    let mut last = 0;
    while paths.write(format!("/last-{last}"), [1; SMALL]).is_ok() {
        last += 1;
    }
    for number in (0..2 * runs).step_by(2) {
        paths.remove_file(name(number)).expect("there");
    }
    volume.sync().expect("a sound device");
    assert_eq!(volume.statfs().free_blocks, 12 * u64::from(runs));
    let new = inode(&volume, "/new");
    (volume, new)
}

/// The fifth extent needs a node, as does the 13th block of a file with a block map. It is made of
/// the last block: nothing else is free.
#[test]
fn the_last_blocks_of_a_volume_hold_a_file_and_its_node() {
    for (features, runs) in [("extent", 5), ("^extent,^64bit", 2)] {
        let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-N", "64", "-O", features])
        else {
            return;
        };
        let (volume, new) = with_free_runs(&image, runs);
        let free = 12 * runs as usize;
        let content = vec![7; free * SMALL];
        let wrote = volume.write(new, 0, &content).expect("room");
        assert_eq!(wrote, (free - 1) * SMALL, "{features}");
        let error = volume.append(new, &[7]).expect_err("it is full");
        assert!(error.is(Refusal::NoSpace), "{error}");
        let sectors = 2 * free as u64;
        assert_eq!(
            state(&volume, new),
            (wrote as u64, sectors, 0),
            "{features}"
        );
        volume.close().expect("a clean close");
        image.assert_clean();
        let volume = image.open();
        assert!(volume.paths().read("/new").expect("sound") == content[..wrote]);
    }
}

/// So do those that a file gets before they are written; a range that does not fit takes none.
#[test]
fn the_last_blocks_of_a_volume_can_be_allocated_beforehand() {
    let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-N", "64"]) else {
        return;
    };
    let (volume, new) = with_free_runs(&image, 5);
    let mode = AllocateMode::Extend;
    let error = volume.allocate(new, mode, 0, 60 * SMALL as u64);
    let error = error.expect_err("a node is needed too");
    assert!(error.is(Refusal::NoSpace), "{error}");
    assert_eq!(state(&volume, new), (0, 0, 60));
    let size = 59 * SMALL as u64;
    volume.allocate(new, mode, 0, size).expect("it fits");
    assert_eq!(state(&volume, new), (size, 120, 0));
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// What a commit frees is there for all of an append, as it is for a write, and nobody else appends
/// in between.
#[test]
fn an_append_waits_for_freed_blocks() {
    let Some(image) = Image::make(&["-b", "4096", "-m", "0"]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/gone", vec![1; 8 << 20]).expect("room");
    paths.write("/file", b"").expect("room");
    paths
        .write("/large", vec![1; 70 << 20])
        .expect_err("the image is smaller");
    let large = inode(&volume, "/large");
    let shorter = SetAttributes {
        size: Some(volume.attributes(large).expect("there").size - (1 << 20)),
        ..SetAttributes::default()
    };
    volume
        .set_attributes(large, &shorter)
        .expect("it is shorter");
    volume.sync().expect("a sound device");
    paths.remove_file("/gone").expect("there");
    let appended = volume.append(inode(&volume, "/file"), &vec![3; 4 << 20]);
    assert_eq!(appended.expect("room"), (0, 4 << 20));
}

/// What root's files have taken counts when the next block is granted to others.
#[test]
fn the_reserve_stays_roots_also_where_root_has_filled_the_rest() {
    let Some(image) = Image::make(&["-b", "1024", "-m", "5"]) else {
        return;
    };
    let volume = image.open_with(MountOptions {
        reserve: Reserve::Owner,
        ..MountOptions::default()
    });
    let made = |name: &[u8], uid| {
        let attributes = CreateAttributes {
            uid,
            ..CreateAttributes::default()
        };
        let made = volume.create(InodeNumber::ROOT, name, &attributes);
        made.expect("room").inode
    };
    let (roots, others) = (made(b"roots", 0), made(b"others", 1000));
    // Not small files, which share runs of blocks.
    volume.append(others, &[1; SMALL]).expect("room");
    let statfs = volume.statfs();
    let reserved = statfs.free_blocks - statfs.available_blocks;
    assert!(reserved > 3000, "{reserved}");
    let mut position = 0;
    while volume.statfs().available_blocks > 8 {
        let left = usize::try_from(volume.statfs().available_blocks).expect("small");
        let piece = vec![2; (left * SMALL / 2).clamp(SMALL, 4 << 20)];
        let wrote = volume.write(roots, position, &piece).expect("room");
        position += wrote as u64;
    }
    let mut granted = 0;
    while volume.append(others, &[1; SMALL]).is_ok() {
        granted += 1;
        assert!(granted < 100, "the reserve is not theirs");
    }
    let after = volume.statfs().free_blocks;
    assert!(
        after + 8 >= reserved,
        "{after} blocks of {reserved} are left"
    );
    volume.write(roots, position, &[3; SMALL]).expect("root's");
    volume.close().expect("a clean close");
    image.assert_clean();
}
