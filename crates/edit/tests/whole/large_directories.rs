//! A directory with many names is copied name by name.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pext4_block::{Device, RamDevice};
use pext4_edit::Reader;
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};
use pext4_testkit::oracle::format::{Features, Format};

const FILES: u32 = 3000;

/// A device that counts the bytes that are read.
struct Counted {
    below: RamDevice,
    read: AtomicU64,
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
}

/// Accepts some bytes.
struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(self.left);
        self.left -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn image() -> RamDevice {
    let format = Format::new(16 << 20, 1024, Features::NoJournal).inodes(FILES + 100);
    let device = Arc::new(format.device().expect("mke2fs makes it"));
    let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(over, MountOptions::default()).expect("a fresh image");
    for number in 0..FILES {
        let name = format!("{number:04}");
        let new = CreateAttributes::default();
        let made = volume.create(InodeNumber::ROOT, name.as_bytes(), &new);
        volume.forget(made.expect("room").inode, 1);
    }
    volume.close().expect("a ram device works");
    Arc::try_unwrap(device).unwrap_or_else(|device| device.fork())
}

#[test]
fn an_inode_is_read_when_its_name_is_written() {
    let device = Arc::new(Counted {
        below: image(),
        read: AtomicU64::new(0),
    });
    let reader = Reader::from_device(Arc::clone(&device) as Arc<dyn Device>);
    let reader = reader.expect("a sound image");
    let before = device.read.load(Ordering::Relaxed);
    let read = || device.read.load(Ordering::Relaxed) - before;
    let tables = u64::from(FILES) * 256;
    let exported = reader.export("/", &mut Full { left: 20_000 }).map(drop);
    exported.expect_err("there is no room for all");
    assert!(read() < tables / 2, "{} bytes", read());
    let exported = reader.export("/", &mut io::sink()).expect("room");
    assert_eq!(exported.files, u64::from(FILES) + 2);
    assert!(read() > tables, "{} bytes", read());

    let mut names = Vec::new();
    let walked = reader.walk("/", &mut |file| {
        names.push(file.path.clone());
        Ok(())
    });
    walked.expect("a sound image");
    assert_eq!(names.len(), FILES as usize + 2);
    assert!(names.is_sorted(), "in the order of their bytes");
}
