//! A host without space for the data that a file gets: that write fails, and the volume goes on.

use std::io::{self, IoSlice};
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{AllocateMode, Error, MountOptions, SetAttributes, Volume};

use crate::images::Image;

/// The bytes for which the host has no space.
const TOO_MUCH: u8 = 0x77;

struct FullHost {
    below: RamDevice,
    /// How the host refuses them.
    kind: io::ErrorKind,
    /// How many of them it takes before.
    prefix: usize,
}

impl FullHost {
    fn open(image: &Image, kind: io::ErrorKind, prefix: usize) -> (Arc<Self>, Volume) {
        let below = RamDevice::load(&image.path).expect("the image");
        let device = Arc::new(Self {
            below,
            kind,
            prefix,
        });
        let over: Arc<dyn Device> = Arc::<Self>::clone(&device);
        let volume = Volume::open(over, MountOptions::default()).expect("a mount");
        (device, volume)
    }
}

impl Device for FullHost {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        let is_data = |piece: &IoSlice<'_>| piece.starts_with(&[TOO_MUCH; 512]);
        if let Some(at) = from.iter().position(is_data) {
            let before: usize = from[..at].iter().map(|piece| piece.len()).sum();
            let taken = &from[at][..self.prefix];
            self.below.write_at(offset + before as u64, taken)?;
            return Err(self.kind.into());
        }
        self.below.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
}

#[test]
fn only_the_write_fails_for_which_the_host_has_no_space() {
    let (full, quota) = (io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded);
    for (features, kind, errno) in [
        ("extent", full, 28),
        ("^has_journal", full, 28),
        ("^extent,^64bit", full, 28),
        // To its owner the host gives no more space, though others may get some.
        ("extent", quota, 122),
    ] {
        let Some(image) = Image::make(&["-O", features]) else {
            return;
        };
        let (device, volume) = FullHost::open(&image, kind, 0);
        let paths = volume.paths();
        paths.write("/kept", [1; 100_000]).expect("space");
        let kept = paths.resolve("/kept").expect("a file").inode();
        let free = volume.statfs().free_blocks;
        // Into a hole, and over what is there.
        for offset in [0, 50_000, 200_000] {
            let failed = volume.write(kept, offset, &[TOO_MUCH; 8192]);
            let failed = failed.expect_err("the host is full");
            assert_eq!(failed.errno(), errno, "{failed}");
            assert!(matches!(failed, Error::Io(_)));
        }
        volume.sync().expect("nothing has stopped");
        assert_eq!(volume.statfs().free_blocks, free);
        assert!(!volume.is_read_only());
        assert_eq!(paths.read("/kept").expect("a file"), [1; 100_000]);
        paths.write("/more", [2; 100_000]).expect("space");
        paths.remove_file("/kept").expect("it can be removed");
        volume.close().expect("it closes");
        device.below.save(&image.path).expect("room");
        image.assert_clean();
    }
}

/// The host takes a part of what is appended in the block in which a file ends.
#[test]
fn what_a_failed_append_has_written_is_not_shown() {
    let Some(image) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let (device, volume) = FullHost::open(&image, io::ErrorKind::StorageFull, 600);
    let paths = volume.paths();
    paths.write("/file", [1; 1000]).expect("space");
    let file = paths.resolve("/file").expect("a file").inode();
    let append = || {
        let failed = volume.write(file, 1000, &[TOO_MUCH; 2000]);
        failed.expect_err("the host is full")
    };
    let place = volume.extents(file, 0, 1).expect("a sound map")[0].physical;
    let on_device = || {
        let mut bytes = [0; 4096];
        device.below.read_at(place, &mut bytes).expect("there");
        bytes
    };
    let mut expected = [0; 4096];
    expected[..1000].fill(1);

    assert!(matches!(append(), Error::Io(_)));
    assert_eq!(on_device()[1000..1600], [TOO_MUCH; 600]);
    volume.sync().expect("nothing has stopped");
    assert!(on_device() == expected, "others find zeroes there, too");

    append();
    let longer = SetAttributes {
        size: Some(4096),
        ..SetAttributes::default()
    };
    let _ = volume.set_attributes(file, &longer).expect("it can grow");
    assert!(paths.read("/file").expect("a file") == expected);
    volume.close().expect("it closes");
    device.below.save(&image.path).expect("room");
    image.assert_clean();
}

/// The host has no space for the second piece of a write: the first one is written, as on a volume
/// that is full.
#[test]
fn a_write_for_which_the_host_has_space_in_part_is_short() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        let Some(image) = Image::make(&["-b", "4096"]) else {
            return;
        };
        let (device, volume) = FullHost::open(&image, kind, 0);
        let paths = volume.paths();
        paths.write("/file", [1; 4096]).expect("space");
        let file = paths.resolve("/file").expect("a file").inode();
        let reserved = volume.allocate(file, AllocateMode::KeepSize, 4096, 4096);
        reserved.expect("space");
        let mut data = [3; 3 * 4096];
        data[2 * 4096..].fill(TOO_MUCH);
        // Over what is there, into a block that is allocated, and into a hole.
        let written = volume.write(file, 0, &data);
        assert_eq!(written.expect("a part fits"), 2 * 4096);
        assert!(paths.read("/file").expect("a file") == data[..2 * 4096]);
        let failed = volume.write(file, 2 * 4096, &data[2 * 4096..]);
        assert!(matches!(failed, Err(Error::Io(_))));
        volume.close().expect("it closes");
        device.below.save(&image.path).expect("room");
        image.assert_clean();
    }
}
