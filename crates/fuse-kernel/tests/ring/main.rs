//! FUSE over `io_uring`, with the kernel: a file system with one file in memory is mounted. Needs
//! root, and a kernel that has it; each test says loudly if it is skipped.
//!
//! The kernel offers rings only while a parameter of its module says so, which the tests set and
//! restore. One test runs at a time.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mounted::{FILE, Machine, Mounted, Sending, content};
use pext4_fuse_kernel::Features;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SIZES: [usize; 12] = [
    1,
    100,
    1024,
    1025,
    4095,
    4096,
    4097,
    65_536,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (3 << 20) + 7,
];

fn opened(mounted: &Mounted, is_direct: bool) -> File {
    const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(if is_direct { O_DIRECT } else { 0 });
    options.open(mounted.file()).expect("it is there")
}

/// Writes and reads files of all sizes, past the page cache and through it.
fn write_and_read_all_sizes(mounted: &Mounted) {
    for (number, size) in SIZES.into_iter().enumerate() {
        for is_direct in [false, true] {
            let written = content(size, number as u8);
            let mut file = opened(mounted, is_direct);
            file.set_len(0).expect("it can be cut");
            file.write_all(&written).expect("it can be written");
            assert!(*mounted.server.content.lock().expect("no panic") == written);
            // Read ahead of the caller.
            mounted.invalidate();
            let read = fs::read(mounted.file()).expect("it can be read");
            assert!(read == written, "{size} bytes");
            let mut read = vec![0; size];
            let direct = opened(mounted, true);
            direct.read_exact_at(&mut read, 0).expect("it is as long");
            assert!(read == written, "{size} bytes past the cache");
        }
    }
}

#[test]
fn content_of_every_size_passes_through_the_rings() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    let mounted = machine.mount(Features::OVER_IO_URING, 2);
    mounted.count_from_rings_on();
    write_and_read_all_sizes(&mounted);
    let names: Vec<_> = fs::read_dir(mounted.directory())
        .expect("it can be listed")
        .map(|entry| entry.expect("it can be read").file_name())
        .collect();
    assert_eq!(names, [FILE]);
    let missing = fs::metadata(mounted.directory().join("missing"));
    assert_eq!(missing.err().and_then(|e| e.raw_os_error()), Some(2));
    // A target that is borrowed, and one that is copied.
    for length in [10, 4000] {
        let target = "t".repeat(length);
        let link = mounted.directory().join("link");
        let made = std::os::unix::fs::symlink(&target, link);
        assert_eq!(made.err().and_then(|e| e.raw_os_error()), Some(1));
        assert_eq!(
            *mounted.server.target.lock().expect("no panic"),
            target.as_bytes()
        );
    }
    let through_rings = mounted.server.through_rings.load(Ordering::Relaxed);
    let over_device = mounted.server.over_device.load(Ordering::Relaxed);
    assert!(
        through_rings > 100,
        "{through_rings} requests came through rings"
    );
    assert_eq!(over_device, 0, "requests over /dev/fuse");
    assert!(mounted::ring_threads() > 0);
    mounted.end(UnmountFlags::empty()).expect("nothing failed");
    assert_eq!(mounted::ring_threads(), 0);
}

#[test]
fn content_passes_if_the_kernel_writes_late() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    let mounted = machine.mount(Features::OVER_IO_URING | Features::WRITEBACK_CACHE, 1);
    for size in SIZES {
        let written = content(size, 3);
        let mut file = opened(&mounted, false);
        file.set_len(0).expect("it can be cut");
        file.write_all(&written).expect("it can be written");
        file.sync_all().expect("it can be made durable");
        assert!(*mounted.server.content.lock().expect("no panic") == written);
    }
    mounted.end(UnmountFlags::empty()).expect("nothing failed");
}

/// Several threads write and read ranges of their own.
fn write_and_read_at_once(mounted: &Mounted, rounds: usize) {
    const ROOM: usize = 2 << 20;
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let file = opened(mounted, true);
                for round in 0..rounds {
                    let size = SIZES[(round * 5 + number) % (SIZES.len() - 1)];
                    let written = content(size, (number + 4 * round) as u8);
                    let offset = (number * ROOM) as u64;
                    file.write_all_at(&written, offset)
                        .expect("it can be written");
                    let mut read = vec![0; size];
                    file.read_exact_at(&mut read, offset)
                        .expect("it is as long");
                    assert!(read == written, "{size} bytes of thread {number}");
                }
            });
        }
    });
}

#[test]
fn several_threads_at_once_and_replies_from_another_thread() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    let mounted = machine.mount(Features::OVER_IO_URING, 1);
    write_and_read_at_once(&mounted, 100);
    for sending in [Sending::Later, Sending::FromElsewhere] {
        mounted.server.set_sending(sending);
        write_and_read_at_once(&mounted, 60);
        write_and_read_all_sizes(&mounted);
    }
    mounted.end(UnmountFlags::empty()).expect("nothing failed");
}

#[test]
fn a_panic_of_the_server_is_an_error_of_one_request() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    let mounted = machine.mount(Features::OVER_IO_URING, 1);
    for _ in 0..20 {
        let failed = fs::metadata(mounted.directory().join("panic"));
        assert_eq!(failed.err().and_then(|e| e.raw_os_error()), Some(5));
        assert!(fs::metadata(mounted.file()).is_ok());
    }
    let failed = mounted
        .end(UnmountFlags::empty())
        .map_err(|e| e.to_string());
    assert_eq!(failed, Err("a panic".to_owned()));
}

#[test]
fn the_connection_ends_while_requests_are_served() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    // Some entries, and all entries of all queues, wait for replies that do not come.
    for callers in [3, 300] {
        let mounted = machine.mount(Features::OVER_IO_URING, 1);
        let name = mounted.directory().join("held");
        let waiting: Vec<_> = (0..callers)
            .map(|number| {
                let name = name.with_file_name(format!("held{number}"));
                thread::spawn(move || fs::metadata(name).err())
            })
            .collect();
        let held = || mounted.server.held.lock().expect("no panic").len();
        let begun = Instant::now();
        while held() < 3 || callers > 3 && begun.elapsed() < Duration::from_millis(500) {
            thread::sleep(Duration::from_millis(10));
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{} are held",
                held()
            );
        }
        let server = mounted.server.clone();
        let forced = UnmountFlags::FORCE | UnmountFlags::DETACH;
        mounted.end(forced).expect("nothing failed");
        for caller in waiting {
            assert!(caller.join().expect("no panic").is_some());
        }
        // These come too late.
        server.held.lock().expect("no panic").clear();
    }
}

#[test]
fn the_connection_ends_during_transfers() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    for sending in [Sending::AtOnce, Sending::Later] {
        let mounted = machine.mount(Features::OVER_IO_URING, 1);
        mounted.server.set_sending(sending);
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let file = opened(&mounted, true);
                thread::spawn(move || {
                    let written = content(200_000, number);
                    let mut count = 0;
                    while file.write_all_at(&written, 0).is_ok() {
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        let forced = UnmountFlags::FORCE | UnmountFlags::DETACH;
        mounted.end(forced).expect("nothing failed");
        for worker in workers {
            assert!(worker.join().expect("no panic") > 0);
        }
    }
}

#[test]
fn rings_that_cannot_be_made_leave_requests_to_the_device() {
    let Some(machine) = Machine::with_rings() else {
        return;
    };
    /// Restores the limit.
    struct Limited(Rlimit);
    impl Drop for Limited {
        fn drop(&mut self) {
            let _ = setrlimit(Resource::Nofile, self.0);
        }
    }
    let negotiated = machine.negotiate(Features::OVER_IO_URING);
    assert!(negotiated.session.is_over_io_uring());
    let usual = Limited(getrlimit(Resource::Nofile));
    let limit = Rlimit {
        current: Some(3),
        maximum: usual.0.maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("it may be lowered");
    let mounted = negotiated.run(2);
    // The kernel holds back requests until the rings are given up.
    assert!(fs::metadata(mounted.file()).is_ok());
    drop(usual);
    assert_eq!(mounted::ring_threads(), 0);
    write_and_read_all_sizes(&mounted);
    assert_eq!(mounted.server.through_rings.load(Ordering::Relaxed), 0);
    mounted.end(UnmountFlags::empty()).expect("nothing failed");
}
