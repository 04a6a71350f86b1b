//! Devices that are files, and parts of files.

use std::io::{self, IoSlice};
use std::time::Duration;

use pext4_sync::thread;
use tempfile::TempDir;

use super::{Access, Errno, FileDevice, MAX_SLICES_OF_CALL, RangeEnd, count_written, data_sync};
use crate::device::Device;

fn directory() -> TempDir {
    tempfile::tempdir().expect("there is room for a directory")
}

#[test]
fn keeps_bytes_from_one_open_to_the_next() {
    let directory = directory();
    let path = directory.path().join("image");
    let device = FileDevice::create(&path, 10_000).expect("it is made");
    device.write_at(9_990, b"0123456789").expect("it fits");
    device.flush().expect("the file takes it");
    drop(device);
    let device = FileDevice::open(&path, Access::ReadOnly, Duration::ZERO).expect("it is free");
    assert_eq!(device.size(), 10_000);
    assert!(device.is_read_only());
    let mut bytes = [0; 11];
    device
        .read_at(9_989, &mut bytes)
        .expect("the range lies within");
    assert_eq!(&bytes, b"\x000123456789");
    assert!(device.write_at(0, b"x").is_err());
}

/// A system says once that it lost a write, and then that all is well.
#[test]
fn after_a_failed_flush_none_succeeds() {
    let directory = directory();
    let path = directory.path().join("image");
    let mut device = FileDevice::create(&path, 10_000).expect("it is made");
    device.flush().expect("the file takes it");
    device.sync = |_| Err(Errno::IO);
    let first = device.flush().expect_err("the system says so");
    device.sync = data_sync;
    let second = device.flush().expect_err("what was lost stays lost");
    for error in [&first, &second] {
        assert!(error.to_string().contains("cannot flush it"), "{error}");
        assert!(error.to_string().contains("image"), "{error}");
    }
    assert!(second.to_string().contains("failed before"), "{second}");
    device.write_at(0, b"x").expect("it still writes");
    assert!(device.flush().is_err());
}

#[test]
fn more_slices_than_one_call_takes_are_all_written() {
    let directory = directory();
    let device = FileDevice::create(directory.path().join("image"), 1 << 20).expect("it is made");
    let bytes: Vec<u8> = (0..=255).cycle().take(3 * MAX_SLICES_OF_CALL + 5).collect();
    // Slices of two bytes, and one of none; more than one call takes.
    let mut slices: Vec<IoSlice<'_>> = bytes.chunks(2).map(IoSlice::new).collect();
    slices.insert(1, IoSlice::new(&[]));
    device.write_vectored_at(77, &slices).expect("it fits");
    let mut read = vec![0; bytes.len()];
    device
        .read_at(77, &mut read)
        .expect("the range lies within");
    assert_eq!(read, bytes);
    assert!(device.write_vectored_at((1 << 20) - 10, &slices).is_err());
}

#[test]
fn a_short_write_ends_anywhere() {
    let slices = [&b"abc"[..], b"", b"de", b"f"].map(IoSlice::new);
    let expected = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0), (4, 0)];
    for (written, expected) in expected.into_iter().enumerate() {
        assert_eq!(
            count_written(&slices, written),
            expected,
            "after {written} bytes"
        );
    }
}

#[test]
fn discarded_bytes_are_zero() {
    let directory = directory();
    let device = FileDevice::create(directory.path().join("image"), 1 << 20).expect("it is made");
    device.write_at(0, &[7; 20_000]).expect("it fits");
    if device.discard(5, 10_000).expect("the range lies within") {
        let mut bytes = vec![1; 10_002];
        device
            .read_at(4, &mut bytes)
            .expect("the range lies within");
        assert_eq!((bytes[0], bytes[10_001]), (7, 7));
        assert!(bytes[1..10_001].iter().all(|byte| *byte == 0));
    }
    assert_eq!(device.size(), 1 << 20);
}

#[test]
fn a_file_knows_its_names_and_its_holes() {
    use std::os::unix::fs::MetadataExt;
    let directory = directory();
    let [path, alias, other] = ["image", "alias", "other"].map(|name| directory.path().join(name));
    let device = FileDevice::create(&path, 1 << 20).expect("it is made");
    std::fs::hard_link(&path, &alias).expect("there is room");
    std::fs::write(&other, b"x").expect("there is room");
    let is_stored_in = |path| {
        let file = std::fs::metadata(path).expect("it is there");
        device.is_stored_in(file.dev(), file.ino())
    };
    assert!(is_stored_in(&path) && is_stored_in(&alias) && !is_stored_in(&other));
    assert!(device.is_sparse());
    device.write_at(0, &[7; 1 << 20]).expect("it fits");
    device.flush().expect("the file takes it");
    assert!(!device.is_sparse());
}

#[test]
fn writers_exclude_and_readers_share() {
    let directory = directory();
    let path = directory.path().join("image");
    drop(FileDevice::create(&path, 4096).expect("it is made"));
    let open = |access| FileDevice::open(&path, access, Duration::ZERO);
    let reader = open(Access::ReadOnly).expect("it is free");
    let another = open(Access::ReadOnly).expect("readers share");
    let refusal = open(Access::ReadWrite).expect_err("readers keep writers out");
    assert_eq!(refusal.kind(), io::ErrorKind::ResourceBusy);
    assert!(refusal.to_string().contains("image"), "{refusal}");
    drop((reader, another));
    let writer = open(Access::ReadWrite).expect("it is free again");
    assert!(open(Access::ReadOnly).is_err());
    assert!(
        FileDevice::create(&path, 0).is_err(),
        "a file in use is not emptied"
    );
    drop(writer);
    assert_eq!(
        open(Access::ReadOnly).expect("it is free again").size(),
        4096
    );
}

#[test]
fn a_file_gets_longer_and_shorter() {
    let directory = directory();
    let path = directory.path().join("image");
    let mut device = FileDevice::create(&path, 4096).expect("it is made");
    device.set_length(8192).expect("a file can grow");
    device.write_at(8000, b"end").expect("it lies within now");
    device.set_length(100).expect("a file can shrink");
    assert_eq!(device.size(), 100);
    assert!(device.write_at(8000, b"end").is_err());
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 100);
}

#[test]
fn a_range_is_a_device_of_its_own() {
    let directory = directory();
    let path = directory.path().join("disk");
    let whole = FileDevice::create(&path, 10_000).expect("it is made");
    whole.write_at(0, &[1; 10_000]).expect("it fits");
    let mut part = whole
        .into_range(1000, Some(8000))
        .expect("it lies within")
        .into_range(1000, None)
        .expect("so does this");
    assert_eq!((part.size(), part.range()), (7000, Some(2000..9000)));
    part.write_at(0, b"begin").expect("it fits");
    let slices = [&b"e"[..], b"nd"].map(IoSlice::new);
    part.write_vectored_at(6997, &slices).expect("it fits");
    assert!(part.write_at(6998, b"end").is_err());
    assert!(part.read_at(7000, &mut [0]).is_err());
    assert!(part.set_length(100).is_err(), "others have the rest");
    let is_zeroed = part.discard(5, 6992).expect("it lies within");
    let mut bytes = [0; 3];
    part.read_at(6997, &mut bytes).expect("it lies within");
    assert_eq!(&bytes, b"end");
    let file = std::fs::read(&path).expect("it is there");
    let inner = if is_zeroed { 0 } else { 1 };
    assert!(
        file[..2000]
            .iter()
            .chain(&file[9000..])
            .all(|&byte| byte == 1)
    );
    assert!(file[2005..8997].iter().all(|&byte| byte == inner));
    assert_eq!(
        (&file[2000..2005], &file[8997..9000]),
        (&b"begin"[..], &b"end"[..])
    );
    let other = FileDevice::open(&path, Access::ReadOnly, Duration::ZERO);
    assert!(other.is_err(), "a part keeps the lock of the whole");
    let refusal = part
        .into_range(7001, None)
        .expect_err("it begins behind the end");
    assert!(refusal.to_string().contains("disk"), "{refusal}");
}

/// Who resizes what lies in a range must not write to what others have.
#[test]
fn a_range_from_the_first_byte_on_locks_all() {
    let directory = directory();
    let path = directory.path().join("image");
    std::fs::write(&path, [7; 8192]).expect("there is room");
    let open =
        |start| FileDevice::open_range(&path, start, None, Access::ReadWrite, Duration::ZERO);
    let whole = open(0).expect("it is free");
    assert!(whole.locks_whole_file());
    assert_eq!((whole.size(), whole.range()), (8192, Some(0..8192)));
    assert!(open(4096).is_err(), "a part of what is used");
}

#[test]
fn a_range_that_no_table_has_ends_before_the_next_partition() {
    const SECTOR: u64 = 512;
    let directory = directory();
    let path = directory.path().join("disk");
    let disk = FileDevice::create(&path, 1000 * SECTOR).expect("it is made");
    let mut entry = [0; 16];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&600u32.to_le_bytes());
    entry[12..].copy_from_slice(&100u32.to_le_bytes());
    disk.write_at(446, &entry).expect("it fits");
    disk.write_at(510, &[0x55, 0xAA]).expect("it fits");
    let partitions = disk.partitions().expect("it can be read");
    assert_eq!(partitions.len(), 1);
    assert_eq!(partitions[0], 600 * SECTOR..700 * SECTOR);
    drop(disk);
    for (start, length, end, by) in [
        (100, None, 600, RangeEnd::Neighbour),
        (600, None, 700, RangeEnd::Partition),
        (650, None, 700, RangeEnd::Neighbour),
        (700, None, 1000, RangeEnd::File),
        (100, Some(800), 900, RangeEnd::Given),
    ] {
        let length = length.map(|sectors: u64| sectors * SECTOR);
        let access = Access::ReadWrite;
        let part = FileDevice::open_range(&path, start * SECTOR, length, access, Duration::ZERO);
        let part = part.expect("it lies within");
        assert_eq!(part.range(), Some(start * SECTOR..end * SECTOR));
        assert_eq!(part.range_end(), Some(by), "from {start} on");
        assert!(!part.locks_whole_file());
    }
    let whole = FileDevice::open(&path, Access::ReadWrite, Duration::ZERO).expect("it is free");
    let part = whole.into_range(SECTOR, None).expect("it lies within");
    assert!(part.locks_whole_file());
}

#[test]
fn an_open_waits_for_the_lock() {
    let directory = directory();
    let path = directory.path().join("image");
    let writer = FileDevice::create(&path, 4096).expect("it is made");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            FileDevice::open(&path, Access::ReadWrite, Duration::from_secs(600)).map(drop)
        });
        thread::sleep(Duration::from_millis(30));
        drop(writer);
        waiter
            .join()
            .expect("it does not panic")
            .expect("the lock came free");
    });
}

#[test]
fn a_file_that_must_be_new_replaces_none() {
    let directory = directory();
    let path = directory.path().join("image");
    let new = FileDevice::create_new(&path, 4096).expect("there is none");
    new.write_at(0, b"content").expect("there is room");
    drop(new);
    let refused = FileDevice::create_new(&path, 100).expect_err("there is one");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
    let kept = std::fs::read(&path).expect("it is there");
    assert_eq!((kept.len(), &kept[..7]), (4096, &b"content"[..]));
}

#[test]
fn only_files_and_block_devices_are_opened() {
    let directory = directory();
    let refusal = FileDevice::open(directory.path(), Access::ReadOnly, Duration::ZERO);
    let refusal = refusal.expect_err("a directory is no device").to_string();
    assert!(
        refusal.contains("neither a regular file nor a block device"),
        "{refusal}"
    );
    let missing = directory.path().join("missing");
    let refusal = FileDevice::open(&missing, Access::ReadOnly, Duration::ZERO);
    assert_eq!(
        refusal.expect_err("it is not there").kind(),
        io::ErrorKind::NotFound
    );
}
