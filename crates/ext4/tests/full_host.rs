//! A host without space for the data that a file gets: that write fails, and the volume goes on.

mod images;

use std::io::{self, IoSlice};
use std::sync::Arc;

use images::Image;
use pext4_block::{Device, RamDevice};
use pext4_fs::{Error, MountOptions, Volume};

/// The bytes for which the host has no space.
const TOO_MUCH: u8 = 0x77;

struct FullHost {
    below: RamDevice,
    /// How the host refuses them.
    kind: io::ErrorKind,
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
        if from.iter().any(is_data) {
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
        let below = RamDevice::load(&image.path).expect("the image");
        let device = Arc::new(FullHost { below, kind });
        let over: Arc<dyn Device> = Arc::<FullHost>::clone(&device);
        let volume = Volume::open(over, MountOptions::default()).expect("a mount");
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
