//! Full volumes: the errors that writers get, and that the mount continues to serve.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;

use crate::common::Place;

#[test]
fn a_full_disk_says_so_and_stays_whole() {
    let Some(place) = Place::new("8M") else {
        return;
    };
    let mount = place.mount(&[]);
    let file = File::create(mount.path("file")).unwrap();
    let mut offset = 0;
    let refused = loop {
        let written = file
            .write_all_at(&[4; 65536], offset)
            .and_then(|()| file.sync_all());
        offset += 65536;
        assert!(offset < 16 << 20, "more was written than there is room for");
        if let Err(error) = written {
            break error;
        }
    };
    assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    drop(file);
    fs::remove_file(mount.path("file")).unwrap();
    fs::write(mount.path("small"), b"there is room again").unwrap();
    mount.unmount();
}

/// Each is a request of its own, and while a deleted file is open each is tried again on a thread
/// that may wait.
#[test]
fn hundreds_of_late_writes_that_find_no_space_do_not_wait_for_each_other() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let held = File::create(mount.path("held")).unwrap();
    (&held).write_all(b"x").unwrap();
    held.sync_all().unwrap();
    fs::remove_file(mount.path("held")).unwrap();
    let fill = File::create(mount.path("fill")).unwrap();
    let mut end = 0;
    for step in [1 << 20, 65536, 4096] {
        while fallocate(&fill, FallocateFlags::empty(), end, step).is_ok() {
            end += step;
        }
    }
    let scattered = File::create(mount.path("scattered")).unwrap();
    let told = (0..1000).find_map(|piece| scattered.write_all_at(&[1; 4096], piece * 8192).err());
    let told = told.or_else(|| scattered.sync_all().err());
    assert_eq!(
        told.unwrap().raw_os_error(),
        Some(Errno::NOSPC.raw_os_error())
    );
    drop((scattered, held, fill));
    mount.unmount();
    place.check();
}

#[test]
fn a_writer_learns_of_a_full_disk_though_the_kernel_writes_later() {
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    let piece = vec![7; 1 << 20];
    // Many times the image: without an error the kernel would take it all.
    let fill = || {
        let mut file = File::create(mount.path("endless")).unwrap();
        let full = (0..2000).find_map(|_| file.write_all(&piece).err());
        let full = full.expect("sooner or later there is no space");
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        drop(file);
        fs::remove_file(mount.path("endless")).unwrap();
    };
    fill();
    // A deleted file that stays open releases no space, however long the test waits.
    let nameless = File::create(mount.path("nameless")).unwrap();
    (&nameless).write_all(&piece).unwrap();
    fs::remove_file(mount.path("nameless")).unwrap();
    fill();
    let again = File::create(mount.path("again")).unwrap();
    (&again).write_all(&piece).unwrap();
    again.sync_all().unwrap();
    drop((again, nameless));
    assert_eq!(fs::read(mount.path("again")).unwrap(), piece);
    mount.unmount();
    place.check();
}

/// The kernel sends the pieces of such a write at once, and takes a short one for a failure of the
/// device.
#[test]
fn a_direct_write_that_fits_only_in_part_is_no_failure_of_the_device() {
    #[repr(C, align(4096))]
    struct Aligned([u8; 1 << 20]);
    let Some(place) = Place::new("16M") else {
        return;
    };
    let mount = place.mount(&[]);
    File::create(mount.path("sparse"))
        .and_then(|file| file.set_len(32 << 20))
        .unwrap();
    let fill = File::create(mount.path("fill")).unwrap();
    let mut end = 0;
    while fallocate(&fill, FallocateFlags::empty(), end, 65536).is_ok() {
        end += 65536;
    }
    fill.set_len(end - (512 << 10)).unwrap();
    fill.sync_all().unwrap();
    let direct = OFlags::RDWR | OFlags::DIRECT;
    let sparse = rustix::fs::open(mount.path("sparse"), direct, Mode::empty()).unwrap();
    let bytes = Box::new(Aligned([1; 1 << 20]));
    let sparse = File::from(sparse);
    // Behind the end, from which the kernel cuts what was written, and inside the file.
    for offset in [32 << 20, 1 << 20] {
        let written = sparse.write_at(&bytes.0, offset);
        let refused = written.expect_err("there is half as much room");
        assert_eq!(refused.raw_os_error(), Some(28), "{refused}");
    }
    drop((sparse, fill));
    mount.unmount();
    place.check();
}
