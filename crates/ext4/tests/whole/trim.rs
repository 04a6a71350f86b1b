//! Discarding free space on request: the guarantees of `FITRIM` for ranges and for blocks that were
//! just freed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pext4_block::{Device, RamDevice};
use pext4_fs::{MountOptions, Refusal, Volume};

use crate::images::Image;

const MIB: u64 = 1 << 20;

/// The number of bytes that a trim of the whole volume discards.
fn trim_all(volume: &Volume) -> u64 {
    volume.trim(0, u64::MAX, 0).expect("the file system can")
}

#[test]
fn what_was_removed_before_the_call_is_free_in_it() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let content = vec![7; usize::try_from(MIB).expect("small")];
    volume.paths().write("/file", &content).expect("room");
    let before = trim_all(&volume);
    volume.paths().remove_file("/file").expect("it is there");
    let after = trim_all(&volume);
    assert!(after >= before + MIB, "{before} and then {after}");
    let free = volume.statfs().free_blocks;
    assert_eq!(after, free * 1024);
    volume.close().expect("a clean close");
    image.assert_clean();
}

#[test]
fn only_whole_blocks_of_the_range_are_given_back() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let size = std::fs::metadata(&image.path).expect("it is there").len();
    let trimmed = |start, length, least| volume.trim(start, length, least);
    assert_eq!(trimmed(size - 4096, 4096, 0).expect("free"), 4096);
    assert_eq!(trimmed(size - 4095, 4095, 0).expect("free"), 3072);
    assert_eq!(trimmed(size - 4096, 4095, 0).expect("free"), 3072);
    assert_eq!(trimmed(size - 4096, u64::MAX, 4096).expect("free"), 4096);
    assert_eq!(trimmed(size - 4096, u64::MAX, 4097).expect("free"), 0);
    let longest = 8 * 1024 * 1024;
    let too_long = longest + 1024;
    for (start, length, least) in [(size, 4096, 0), (0, 1023, 0), (0, u64::MAX, too_long)] {
        let refused = trimmed(start, length, least).expect_err("it makes no sense");
        assert!(refused.is(Refusal::Invalid), "{refused}");
    }
    trimmed(0, u64::MAX, longest).expect("a group is that long");
    assert_eq!(
        trimmed(0, u64::MAX, too_long - 1).expect("whole blocks count"),
        0
    );
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// A host that may have no space for what is written, as it has for what is trimmed.
struct FullHost {
    below: RamDevice,
    is_full: AtomicBool,
}

impl Device for FullHost {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.below.write_at(offset, from)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.below.discard(offset, length)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
}

/// The call commits what was freed before; if the host has no space for that, the journal stops.
#[test]
fn a_journal_that_stops_refuses_the_call_as_it_refuses_all_others() {
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let device = Arc::new(FullHost {
        below: RamDevice::load(&image.path).expect("the image"),
        is_full: AtomicBool::new(false),
    });
    let options = MountOptions {
        commit_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::<FullHost>::clone(&device), options).expect("a mount");
    volume.paths().write("/file", [1; 100]).expect("room");
    device.is_full.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let refused = volume.trim(0, u64::MAX, 0).expect_err("it cannot commit");
        assert!(refused.is(Refusal::ReadOnly), "{refused}");
    }
    let refused = volume.paths().write("/other", [1; 100]);
    refused.expect_err("the volume is read-only now");
    assert!(volume.failure().is_some(), "why is known");
}
