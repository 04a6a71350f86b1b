//! Panics that are not the volume's own: of a program that uses it, whose destructors still use it
//! or drop it; and of the device, after which the volume must not go on as if nothing had happened.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pext4_block::{Device, RamDevice};
use pext4_fs::{MountOptions, Volume};

use crate::images::Image;

/// A device whose write panics when the countdown is at 0.
struct PanickingDevice {
    below: RamDevice,
    countdown: AtomicI64,
}

impl Device for PanickingDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        assert!(
            self.countdown.fetch_sub(1, Ordering::SeqCst) != 0,
            "of the device"
        );
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
}

fn open(device: Arc<dyn Device>) -> Volume {
    Volume::open(device, MountOptions::default()).expect("a mount")
}

/// Writes what is in memory over the image, on which e2fsck must find nothing. That an error was
/// noted is no finding.
fn check(device: &RamDevice, image: &Path) {
    device.save(image).expect("a temporary file");
    let e2fsck = Command::new("e2fsck").arg("-fn").arg(image).output();
    let output = e2fsck.expect("e2fsprogs is there");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_volume_that_is_dropped_by_a_panic_of_its_user_is_closed_cleanly() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    for syncs in [false, true] {
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let volume = open(Arc::<RamDevice>::clone(&device));
            volume.paths().write("/file", "content").expect("room");
            if syncs {
                volume.sync().expect("durable");
            }
            panic!("of the user");
        }));
        assert!(panicked.is_err());
        let volume = open(Arc::<RamDevice>::clone(&device));
        assert_eq!(volume.notes(), &[] as &[String], "{syncs}");
        let content = volume.paths().read("/file").expect("it is there");
        assert_eq!(content, b"content", "{syncs}");
        volume.close().expect("a clean close");
    }
}

/// Appends a line to a log, and has it on the device, when it is dropped.
struct LastLine(Arc<Volume>);

impl Drop for LastLine {
    fn drop(&mut self) {
        let log = self.0.paths().open("/log").expect("it is there");
        log.sync_data().expect("a sound device");
        self.0.sync().expect("a sound device");
    }
}

#[test]
fn a_destructor_that_syncs_during_a_panic_of_its_thread_stops_nobody() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = Arc::new(image.open());
    volume.paths().write("/log", "begun").expect("room");
    volume.sync().expect("durable");
    let last_line = LastLine(Arc::clone(&volume));
    let panicked = std::thread::spawn(move || {
        let _last_line = last_line;
        panic!("of the user");
    });
    assert!(panicked.join().is_err());
    assert!(volume.failure().is_none(), "{:?}", volume.failure());
    volume.paths().write("/other", "more").expect("it goes on");
    let volume = Arc::into_inner(volume).expect("the only one left");
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// Each write of an operation panics in its turn. What was durable stays, and nothing is lost.
#[test]
fn after_a_panic_of_the_device_nothing_half_done_is_committed() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let fresh = RamDevice::load(&image.path).expect("the image");
    for number in 0.. {
        let device = Arc::new(PanickingDevice {
            below: fresh.fork(),
            countdown: AtomicI64::new(-1),
        });
        let volume = open(Arc::<PanickingDevice>::clone(&device));
        volume.paths().write("/first", [1; 5000]).expect("room");
        volume.sync().expect("durable");
        // Its group is in the running transaction already.
        volume.paths().write("/second", [2; 5000]).expect("room");
        device.countdown.store(number, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            for file in 0..4 {
                let _ = volume.paths().write(format!("/{file}"), [7; 20000]);
            }
        }));
        let has_panicked = panicked.is_err();
        device.countdown.store(-1, Ordering::SeqCst);
        assert_eq!(volume.is_read_only(), has_panicked, "{number}");
        assert_eq!(volume.close().is_err(), has_panicked, "{number}");
        let volume = open(Arc::<PanickingDevice>::clone(&device));
        assert_eq!(volume.paths().read("/first").expect("durable"), [1; 5000]);
        volume.close().expect("a clean close");
        check(&device.below, &image.path);
        if !has_panicked {
            assert!(number >= 4, "each file has a write");
            return;
        }
    }
}
