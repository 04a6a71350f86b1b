//! Journals that are damaged, or would destroy the file system: an image is never made worse by
//! opening it, and what does not depend on its journal can be read.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{Error, MountOptions, Result, Volume};

use crate::images::Image;

const BLOCK: usize = 4096;

/// An image with a file.
fn image(features: &str) -> Option<Image> {
    let image = Image::make(&["-b", "4096", "-O", features])?;
    let volume = image.open();
    volume.paths().write("/file", b"content").expect("room");
    volume.close().expect("a clean close");
    Some(image)
}

/// Opens the image's bytes; returns also what has become of them.
fn open(image: &Image, options: MountOptions) -> (Arc<RamDevice>, Result<Volume>) {
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn Device>, options);
    (device, volume)
}

fn read_only(skip_replay: bool) -> MountOptions {
    MountOptions {
        read_only: true,
        skip_replay,
        ..MountOptions::default()
    }
}

fn assert_reads(volume: Result<Volume>) -> Volume {
    let volume = volume.expect("it can be read");
    assert_eq!(volume.paths().read("/file").expect("sound"), b"content");
    volume
}

fn assert_unchanged(image: &Image, device: &RamDevice) {
    let before = std::fs::read(&image.path).expect("the image");
    let mut after = vec![0; before.len()];
    device.read_at(0, &mut after).expect("memory");
    assert!(before == after, "nothing was written");
}

/// The device block that holds block `index` of the journal.
fn journal_block(image: &Image, index: u32) -> usize {
    let told = image.debugfs(&format!("bmap <8> {index}"));
    let number = told.lines().find_map(|line| line.trim().parse().ok());
    number.expect("a number in a line of its own")
}

#[test]
fn a_log_that_destroys_the_file_system_is_not_replayed() {
    let Some(image) = image("^metadata_csum,^64bit") else {
        return;
    };
    let told = image.debugfs("imap <2>");
    let (_, behind) = told.split_once("at block ").expect("a place");
    let (table, _) = behind.split_once(',').expect("an offset too");
    let table: u64 = table.parse().expect("a number");
    let sound = std::fs::read(&image.path).expect("the image");
    for (what, block) in [("superblock", 0), ("descriptors", 1), ("root", table)] {
        std::fs::write(&image.path, &sound).expect("the image");
        image.write_to_journal(&[(block, &[0; BLOCK])]);
        let (device, opened) = open(&image, MountOptions::default());
        let error = opened.expect_err(what);
        assert!(!matches!(error, Error::Journal(_)), "{what}: {error}");
        assert_unchanged(&image, &device);
        let shown = open(&image, read_only(false)).1.expect_err(what);
        for error in [error, shown] {
            // A repair would write what the log brings.
            let advice = "`-o ro,noload` reads the image without its journal: save";
            assert!(error.to_string().contains(advice), "{what}: {error}");
        }
        let volume = assert_reads(open(&image, read_only(true)).1);
        let notes = volume.notes().join("\n");
        assert!(notes.contains("was not replayed"), "{notes}");
    }
}

#[test]
fn a_damaged_journal_hides_nothing_of_a_clean_image() {
    let Some(image) = image("metadata_csum") else {
        return;
    };
    let superblock = journal_block(&image, 0);
    image.change(|bytes| bytes[superblock * BLOCK..][..BLOCK].fill(0));
    let (device, opened) = open(&image, MountOptions::default());
    let error = opened.expect_err("it cannot be written").to_string();
    assert!(error.contains("journal superblock"), "{error}");
    assert!(error.contains(&format!("block {superblock}")), "{error}");
    assert!(error.contains("e2fsck"), "{error}");
    assert_unchanged(&image, &device);
    let volume = assert_reads(open(&image, read_only(false)).1);
    let notes = volume.notes().join("\n");
    assert!(notes.contains("journal superblock"), "{notes}");
}

#[test]
fn without_its_journal_an_image_is_only_read() {
    let Some(image) = image("metadata_csum") else {
        return;
    };
    let options = MountOptions {
        skip_replay: true,
        ..MountOptions::default()
    };
    let error = open(&image, options).1.expect_err("it would be written");
    assert!(matches!(error, Error::Options(_)), "{error}");
    assert_eq!(error.errno(), 22);
    assert!(error.to_string().contains("`noload` needs `ro`"), "{error}");
}

#[test]
fn a_damaged_log_names_the_way_to_read_the_image_without_it() {
    let Some(image) = image("^metadata_csum,^64bit") else {
        return;
    };
    // The tag's block number is outside the file system.
    image.write_to_journal(&[(9000, &[7; BLOCK])]);
    let log = (0..40).map(|index| journal_block(&image, index));
    let bytes = std::fs::read(&image.path).expect("the image");
    let is_descriptor =
        |block: &usize| bytes[block * BLOCK..].starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 1]);
    let descriptor = log.into_iter().find(is_descriptor).expect("it was written");
    image.change(|bytes| bytes[descriptor * BLOCK + 12..][..4].fill(0xFF));
    let (device, opened) = open(&image, MountOptions::default());
    let error = opened.expect_err("damaged");
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert_unchanged(&image, &device);
    let shown = open(&image, read_only(false)).1.expect_err("damaged");
    for error in [error, shown] {
        assert!(error.to_string().contains("-o ro,noload"), "{error}");
    }
    assert_reads(open(&image, read_only(true)).1);
}

#[test]
fn a_journal_device_is_refused_by_name() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "journal_dev"]) else {
        return;
    };
    for options in [MountOptions::default(), read_only(false)] {
        let error = open(&image, options).1.expect_err("it has no files");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(error.to_string().contains("journal_dev"), "{error}");
    }
}

#[test]
fn an_image_that_is_refused_after_its_journal_was_read_stays_as_it_was() {
    let Some(image) = image("orphan_file,metadata_csum") else {
        return;
    };
    // A block that nothing uses.
    image.write_to_journal(&[(16_000, &[7; BLOCK])]);
    let dirty = std::fs::read(&image.path).expect("the image");
    // The log of an image that needs no replay is emptied, which is a write too.
    image.debugfs_write("feature -needs_recovery");
    image.debugfs_write("sif <2> mode 0100644");
    let (device, opened) = open(&image, MountOptions::default());
    opened.expect_err("the root is no directory");
    assert_unchanged(&image, &device);

    std::fs::write(&image.path, &dirty).expect("the image");
    let told = image.debugfs("stats -h");
    let number = told
        .split("Orphan file inode:")
        .nth(1)
        .expect("there is one");
    let number = number.split_whitespace().next().expect("a number");
    let told = image.debugfs(&format!("bmap <{number}> 0"));
    let block = told.lines().find_map(|line| line.trim().parse().ok());
    let block: usize = block.expect("a number in a line of its own");
    image.change(|bytes| bytes[block * BLOCK..][..BLOCK].fill(9));
    let (device, opened) = open(&image, MountOptions::default());
    opened.expect_err("the orphan file is damaged");
    assert_unchanged(&image, &device);
}

/// Programs that know no checksums in a journal can then read such an image.
#[test]
fn an_empty_log_has_checksums_where_the_file_system_has_some() {
    const INCOMPATIBLE_FEATURES: usize = 0x28;
    const CHECKSUMS: u8 = 0x10;
    for (features, expected) in [("metadata_csum", CHECKSUMS), ("^metadata_csum", 0)] {
        let Some(image) = image(features) else {
            return;
        };
        let bytes = std::fs::read(&image.path).expect("the image");
        let at = journal_block(&image, 0) * BLOCK + INCOMPATIBLE_FEATURES;
        assert_eq!(bytes[at + 3] & CHECKSUMS, expected, "{features}");
    }
}

/// As Linux, which says nothing; `check` reports such a log.
#[test]
fn a_log_whose_replay_the_superblock_does_not_ask_for_is_dropped_with_a_note() {
    const RECOVER: u8 = 4;
    let Some(image) = image("^metadata_csum,^64bit") else {
        return;
    };
    image.write_to_journal(&[(9000, &[0; BLOCK])]);
    image.change(|bytes| bytes[1024 + 0x60] &= !RECOVER);
    let volume = open(&image, MountOptions::default()).1;
    let volume = assert_reads(volume);
    let notes = volume.notes().join("\n");
    assert!(notes.contains("they are dropped"), "{notes}");
    volume.close().expect("memory");
}
