//! Superblocks in the log: the valid one is known only after the replay.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::{MountOptions, Volume};

use crate::images::Image;

const SUPERBLOCK: usize = 1024;
const BLOCKS_COUNT: usize = SUPERBLOCK + 4;
const COMPATIBLE: usize = SUPERBLOCK + 92;
const READ_ONLY_COMPATIBLE: usize = SUPERBLOCK + 100;
const JOURNAL_INODE: usize = SUPERBLOCK + 224;

#[test]
fn the_size_of_a_file_system_that_was_being_grown_is_in_its_log() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "^metadata_csum"]) else {
        return;
    };
    let whole = image.first_block();
    image.write_to_journal(&[(0, &whole), (16_383, &[0; 4096])]);
    image.change(|bytes| {
        bytes[BLOCKS_COUNT..BLOCKS_COUNT + 4].copy_from_slice(&16_000u32.to_le_bytes());
    });
    image.open().close().expect("a clean close");
    assert_eq!(
        image.first_block()[BLOCKS_COUNT..][..4],
        16_384u32.to_le_bytes()
    );
}

/// A partition of a disk may end where its file system does, and another one begin.
#[test]
fn what_lies_behind_the_file_system_is_not_replayed() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "^metadata_csum"]) else {
        return;
    };
    let [inside, behind] = [15_999, 16_000].map(|block| block * 4096..(block + 1) * 4096);
    image.write_to_journal(&[(15_999, &[1; 4096]), (16_000, &[1; 4096])]);
    image.change(|bytes| {
        bytes[BLOCKS_COUNT..BLOCKS_COUNT + 4].copy_from_slice(&16_000u32.to_le_bytes());
        bytes[behind.clone()].fill(7);
    });
    let volume = image.open();
    let notes = format!("{:?}", volume.notes());
    assert!(notes.contains("(1 block)"), "{notes}");
    volume.close().expect("a clean close");
    image.change(|bytes| {
        assert!(bytes[inside] == [1; 4096]);
        assert!(bytes[behind] == [7; 4096]);
    });
}

#[test]
fn features_of_a_superblock_in_the_log_are_checked() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "^metadata_csum"]) else {
        return;
    };
    const SHARED_BLOCKS: u8 = 0x40;
    let mut block = image.first_block();
    block[READ_ONLY_COMPATIBLE + 1] |= SHARED_BLOCKS;
    image.write_to_journal(&[(0, &block)]);
    let volume = image.open();
    assert!(volume.is_read_only(), "{:?}", volume.notes());
}

/// The log was found with the superblock from before the replay.
#[test]
fn one_with_another_journal_is_refused() {
    for (at, value) in [(COMPATIBLE, None), (JOURNAL_INODE, Some(9))] {
        let Some(image) = Image::make(&["-b", "4096", "-O", "^metadata_csum"]) else {
            return;
        };
        const HAS_JOURNAL: u8 = 4;
        let mut block = image.first_block();
        block[at] = value.unwrap_or(block[at] & !HAS_JOURNAL);
        image.write_to_journal(&[(0, &block)]);
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let opened = Volume::open(device, MountOptions::default());
        let told = opened.expect_err("it is refused").to_string();
        assert!(told.contains("another journal"), "{told}");
    }
}
