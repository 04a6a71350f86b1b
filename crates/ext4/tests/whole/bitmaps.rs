//! Wrong bitmaps: blocks in use that are marked free, and bitmaps that cannot be read.

use std::ops::RangeInclusive;
use std::sync::{Arc, mpsc};

use pext4_block::fault::{FaultDevice, Operation};
use pext4_block::{Device, RamDevice};
use pext4_fs::options::OnError;
use pext4_fs::{InodeNumber, MountOptions, Refusal, Volume};
use pext4_ondisk::superblock::Superblock;

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

/// The first run of blocks of a file, as listed by debugfs.
fn first_run(image: &Image, file: &str) -> RangeInclusive<u64> {
    let blocks: Vec<u64> = image
        .debugfs(&format!("blocks {file}"))
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let first = *blocks.first().expect("it has blocks");
    let follows = (first..)
        .zip(&blocks)
        .take_while(|(wanted, block)| wanted == *block);
    first..=first + follows.count() as u64 - 1
}

#[test]
fn blocks_of_the_journal_are_not_allocated_though_a_bitmap_marks_them_free() {
    let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-O", "^metadata_csum"]) else {
        return;
    };
    let journal = first_run(&image, "<8>");
    let (first, count) = (journal.start() + 100, 800);
    assert!(journal.contains(&(first + count)), "{journal:?}");
    image.debugfs_write(&format!("freeb {first} {count}"));
    // The group's free count is consistent with this.
    let group = (first - 1) / 8192;
    image.debugfs_write(&format!(
        "set_bg {group} free_blocks_count {}",
        4096 + count
    ));
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let volume = Volume::open(Arc::<RamDevice>::clone(&device), MountOptions::default());
    let volume = volume.expect("a mount");
    let mut taken = Vec::new();
    for number in 0..1000 {
        let name = format!("/file{number}");
        match volume.paths().write(&name, [7; 200 << 10]) {
            Err(error) if error.is(Refusal::NoSpace) => break,
            written => written.expect("room, or none"),
        };
        let file = volume.paths().resolve_link(&name).expect("there").inode();
        for extent in volume.extents(file, 0, usize::MAX).expect("sound") {
            taken.push(extent.physical / 1024);
        }
    }
    assert!(taken.len() > 10, "{taken:?}");
    assert!(
        !taken.iter().any(|block| journal.contains(block)),
        "{taken:?} {journal:?}"
    );
}

/// The blocks are lost, because the bitmap cannot be updated: the image is marked as having errors.
#[test]
fn blocks_lost_with_an_unreadable_bitmap_are_reported() {
    let Some(image) = Image::make(&["-b", "1024", "-m", "0", "-e", "continue"]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/file", [7; 100_000]).expect("room");
    volume.close().expect("it closes");
    let block = *first_run(&image, "/file").start();
    let group = (block - 1) / 8192;
    let told = image.debugfs("stats");
    let bitmap: u64 = told
        .split(&format!("Group {group:2}: block bitmap at "))
        .nth(1)
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .expect("a group has one");
    let ram = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
    let volume = Volume::open(Arc::<FaultDevice>::clone(&device), MountOptions::default());
    let volume = volume.expect("a mount");
    device.fail_touching(Operation::Read, bitmap * 1024..(bitmap + 1) * 1024);
    volume.unlink(ROOT, b"file").expect("the name can go");
    device.heal();
    volume.close().expect("it closes");
    ram.save(&image.path).expect("saved");
    let state = image.debugfs("stats");
    assert!(state.contains("clean with errors"), "{state}");
}

/// Wrong checksums of all block bitmaps, and what the superblock notes about them after one file
/// was made.
fn with_wrong_bitmaps(on_error: OnError) -> Option<(Vec<String>, Superblock)> {
    let image = Image::make(&["-b", "1024", "-m", "0"])?;
    let told = image.debugfs("stats");
    let places = told.split("block bitmap at ").skip(1);
    let bitmaps: Vec<usize> = places
        .filter_map(|rest| rest.split(',').next()?.parse().ok())
        .collect();
    assert!(bitmaps.len() > 1, "{told}");
    image.change(|bytes| {
        for bitmap in bitmaps {
            bytes[bitmap * 1024 + 1000] ^= 1;
        }
    });
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let options = MountOptions {
        on_error: Some(on_error),
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::<RamDevice>::clone(&device), options).expect("a mount");
    let (tell, told) = mpsc::channel();
    let (tell_other, told_other) = mpsc::channel();
    volume.observe_corruption(move |corrupt| drop(tell.send(corrupt.to_string())));
    volume.observe_corruption(move |corrupt| drop(tell_other.send(corrupt.to_string())));
    // It may find some room, since there are groups whose bitmaps nobody has written yet; but not
    // as much as the device has, so every group is asked.
    let whole = usize::try_from(device.size()).expect("memory");
    let _ = volume.paths().write("/file", vec![7; whole]);
    // After an abort it reports that.
    let closed = volume.close();
    assert_eq!(closed.is_ok(), on_error == OnError::Continue);
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).expect("memory");
    let superblock = Superblock::decode(&bytes).expect("it is whole");
    let told: Vec<String> = told.try_iter().collect();
    assert_eq!(told_other.try_iter().collect::<Vec<_>>(), told);
    Some((told, superblock))
}

#[test]
fn corrupt_bitmaps_are_told_and_noted_by_name() {
    for on_error in [OnError::Continue, OnError::ReadOnly] {
        let Some((told, superblock)) = with_wrong_bitmaps(on_error) else {
            return;
        };
        let first = told.first().expect("somebody is told");
        assert!(first.contains("block bitmap (group"), "{first}");
        let noted = &superblock.first_error.function;
        assert!(noted.starts_with(b"block bitmap\0"), "{on_error:?}");
        assert_ne!(superblock.first_error.block, 0);
    }
}
