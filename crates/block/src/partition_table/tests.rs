//! Tables on small disks.

use super::{Disk, ENTRY, SECTOR, SIGNATURE, TABLE, partitions};
use crate::{Device, RamDevice, RangeEnd};

/// A disk of a thousand sectors.
fn disk() -> RamDevice {
    RamDevice::new(1000 * SECTOR)
}

fn put(disk: &RamDevice, offset: u64, bytes: &[u8]) {
    disk.write_at(offset, bytes).expect("inside");
}

/// Writes a table into a sector: kinds, first sectors and lengths.
fn put_table(disk: &RamDevice, sector: u64, entries: &[(u8, u32, u32)]) {
    let at = sector * SECTOR;
    for (index, (kind, first, sectors)) in entries.iter().enumerate() {
        let entry = at + (TABLE + index * ENTRY) as u64;
        put(disk, entry + 4, &[*kind]);
        put(disk, entry + 8, &first.to_le_bytes());
        put(disk, entry + 12, &sectors.to_le_bytes());
    }
    put(disk, at + SECTOR - 2, &SIGNATURE);
}

fn found(disk: &RamDevice) -> Vec<(u64, u64)> {
    let found = partitions(disk.size(), |at, into| disk.read_at(at, into)).expect("a ram device");
    let sectors = |bytes: std::ops::Range<u64>| (bytes.start / SECTOR, bytes.end / SECTOR);
    found.into_iter().map(sectors).collect()
}

/// Where what begins at `start` ends, both in sectors of this many bytes.
fn end_of(disk: &RamDevice, sector: u64, start: u64) -> (u64, RangeEnd) {
    let disk = Disk {
        size: disk.size(),
        sector: Some(sector),
        read: &|at, into| disk.read_at(at, into),
    };
    let (end, by) = disk.end_of(start * sector).expect("a ram device");
    (end / sector, by)
}

/// Makes a table of GUID partitions with 128 entries, of which the first are these. Numbers are
/// in sectors: where its copy is, and the first and last one of each partition.
fn put_guids(disk: &RamDevice, sector: u64, copy: u64, entries: &[(u64, u64)]) {
    put_table(disk, 0, &[(0xEE, 1, u32::MAX)]);
    put(disk, sector, b"EFI PART");
    put(disk, sector + 32, &copy.to_le_bytes());
    put(disk, sector + 72, &2u64.to_le_bytes());
    put(disk, sector + 80, &128u32.to_le_bytes());
    put(disk, sector + 84, &128u32.to_le_bytes());
    for (index, (first, last)) in entries.iter().enumerate() {
        let entry = 2 * sector + index as u64 * 128;
        put(disk, entry, &[7; 16]);
        put(disk, entry + 32, &first.to_le_bytes());
        put(disk, entry + 40, &last.to_le_bytes());
    }
}

#[test]
fn what_no_table_has_ends_where_it_names_something_else() {
    let disk = disk();
    assert_eq!(end_of(&disk, 512, 50), (1000, RangeEnd::File), "no table");
    put_table(
        &disk,
        0,
        &[(0x83, 300, 100), (0x83, 100, 90), (0x83, 700, 300)],
    );
    for (start, expected) in [
        (100, (190, RangeEnd::Partition)),
        (700, (1000, RangeEnd::Partition)),
        (50, (100, RangeEnd::Neighbour)),
        (190, (300, RangeEnd::Neighbour)),
        (400, (700, RangeEnd::Neighbour)),
        // Inside a partition.
        (150, (190, RangeEnd::Neighbour)),
        (800, (1000, RangeEnd::File)),
    ] {
        assert_eq!(end_of(&disk, 512, start), expected, "from {start} on");
    }
}

#[test]
fn what_lies_between_logical_partitions_ends_before_their_tables() {
    let disk = disk();
    put_table(&disk, 0, &[(0x05, 100, 600)]);
    put_table(&disk, 100, &[(0x83, 20, 50), (0x05, 200, 400)]);
    put_table(&disk, 300, &[(0x83, 20, 60)]);
    for (start, expected) in [
        (10, (100, RangeEnd::Neighbour)),
        (120, (170, RangeEnd::Partition)),
        (180, (300, RangeEnd::Neighbour)),
        (400, (700, RangeEnd::Neighbour)),
        (800, (1000, RangeEnd::File)),
    ] {
        assert_eq!(end_of(&disk, 512, start), expected, "from {start} on");
    }
}

#[test]
fn what_no_guid_table_has_ends_before_its_copy() {
    for (sector, of_entries) in [(512, 32), (4096, 4)] {
        let disk = RamDevice::new(1000 * sector);
        let copy = 1000 - 1 - of_entries;
        put_guids(&disk, sector, 999, &[(100, 199), (300, 399)]);
        for (start, expected) in [
            (100, (200, RangeEnd::Partition)),
            (50, (100, RangeEnd::Neighbour)),
            (200, (300, RangeEnd::Neighbour)),
            (400, (copy, RangeEnd::Neighbour)),
        ] {
            assert_eq!(end_of(&disk, sector, start), expected, "from {start} on");
        }
        // The copy is where the disk once ended. A header that is not there protects nothing.
        put(&disk, sector + 32, &700u64.to_le_bytes());
        assert_eq!(end_of(&disk, sector, 400).0, copy);
        put(&disk, 700 * sector, b"EFI PART");
        assert_eq!(end_of(&disk, sector, 400).0, 700 - of_entries);
        assert_eq!(end_of(&disk, sector, 701).0, copy);
    }
}

#[test]
fn a_guid_table_whose_header_is_lost_is_found_by_its_copy() {
    for sector in [512, 4096] {
        let disk = RamDevice::new(1000 * sector);
        put_guids(&disk, sector, 999, &[(300, 399)]);
        let mut tables = vec![0; 3 * sector as usize];
        disk.read_at(0, &mut tables).expect("inside");
        let (header, entries) = tables[sector as usize..].split_at(sector as usize);
        put(&disk, 999 * sector, header);
        put(&disk, 999 * sector + 72, &990u64.to_le_bytes());
        put(&disk, 990 * sector, entries);
        put(&disk, sector, &[0; 8]);
        assert_eq!(end_of(&disk, sector, 50), (300, RangeEnd::Neighbour));
        assert_eq!(end_of(&disk, sector, 300), (400, RangeEnd::Partition));
        assert_eq!(found(&disk).len(), 1, "of sectors of any size");
    }
}

/// A hybrid table, which names a partition a second time.
#[test]
fn of_two_tables_the_shorter_partition_counts() {
    let disk = disk();
    put_guids(&disk, 512, 999, &[(100, 199)]);
    for (sectors, end) in [(50, 150), (100, 200), (300, 200)] {
        put_table(&disk, 0, &[(0xEE, 1, 98), (0x83, 100, sectors)]);
        let found = end_of(&disk, 512, 100);
        assert_eq!(found, (end, RangeEnd::Partition), "{sectors} sectors");
    }
}

#[test]
fn tables_count_sectors_of_their_disk() {
    let disk = RamDevice::new(1000 * 4096);
    put_table(&disk, 0, &[(0x83, 100, 50), (0x05, 300, 600)]);
    for (at, first) in [(300, 20), (400, 10)] {
        let next = 4096 / SECTOR * at;
        put_table(&disk, next, &[(0x83, first, 50), (0x05, 100, 400)]);
    }
    for (start, expected) in [
        (100, (150, RangeEnd::Partition)),
        (150, (300, RangeEnd::Neighbour)),
        (320, (370, RangeEnd::Partition)),
        (370, (400, RangeEnd::Neighbour)),
        (410, (460, RangeEnd::Partition)),
    ] {
        assert_eq!(end_of(&disk, 4096, start), expected, "from {start} on");
    }
}

/// Of a disk of such sectors a copy in a file is not cut short.
#[test]
fn the_copy_of_a_disk_with_long_sectors_is_read_with_them() {
    let disk = RamDevice::new(1000 * 4096);
    put_table(&disk, 0, &[(0x83, 10, 400), (0x83, 500, 500)]);
    // Read with short sectors, the table names what contains the partition.
    let (end, by) = end_of(&disk, 512, 80);
    assert_eq!((end / 8, by), (410, RangeEnd::Neighbour));
    assert_eq!(end_of(&disk, 512, 88), (410, RangeEnd::Neighbour));
    assert_eq!(end_of(&disk, 512, 10), (410, RangeEnd::Partition));
    // A partition of long sectors would end behind the disk.
    put_table(&disk, 0, &[(0x83, 10, 400), (0x83, 500, 501)]);
    assert_eq!(end_of(&disk, 512, 80), (410, RangeEnd::Neighbour));
}

#[test]
fn a_first_sector_names_its_partitions() {
    let disk = disk();
    assert_eq!(found(&disk), []);
    put_table(
        &disk,
        0,
        &[
            (0x83, 10, 90),
            (0, 100, 5),
            (0x83, 900, 500),
            (0x83, 2000, 1),
        ],
    );
    assert_eq!(
        found(&disk),
        [(10, 100), (900, 1000)],
        "what is on the disk"
    );
    put(&disk, TABLE as u64, b"M");
    assert_eq!(found(&disk), [], "that is code or text");
    assert_eq!(found(&RamDevice::new(100)), []);
}

#[test]
fn logical_partitions_are_a_chain() {
    let disk = disk();
    put_table(&disk, 0, &[(0x83, 1, 9), (0x05, 100, 900)]);
    put_table(&disk, 100, &[(0x83, 2, 50), (0x05, 200, 100)]);
    put_table(&disk, 300, &[(0x83, 3, 60), (0x05, 0, 100)]);
    assert_eq!(found(&disk), [(1, 10), (102, 152), (303, 363)]);
    // A chain that leads to itself ends.
    put_table(&disk, 300, &[(0x83, 3, 60), (0x05, 200, 100)]);
    assert_eq!(found(&disk).len(), 3);
}

#[test]
fn partitions_with_guids_have_a_table_of_their_own() {
    for sector in [512u64, 4096] {
        let disk = RamDevice::new(1000 * sector);
        put_table(&disk, 0, &[(0xEE, 1, u32::MAX)]);
        assert_eq!(found(&disk), []);
        put(&disk, sector, b"EFI PART");
        put(&disk, sector + 72, &2u64.to_le_bytes());
        put(&disk, sector + 80, &4u32.to_le_bytes());
        put(&disk, sector + 84, &128u32.to_le_bytes());
        for (index, first, last) in [(0, 40u64, 99u64), (2, 500, u64::MAX), (3, 80, 79)] {
            let entry = 2 * sector + index * 128;
            put(&disk, entry, &[7; 16]);
            put(&disk, entry + 32, &first.to_le_bytes());
            put(&disk, entry + 40, &last.to_le_bytes());
        }
        let expected = [(40, 100), (500, 1000)];
        let scale = sector / SECTOR;
        assert_eq!(
            found(&disk),
            expected.map(|(start, end)| (start * scale, end * scale))
        );
        // Nonsense, read to the end of the disk at most.
        put(&disk, sector + 72, &[0xFF; 16]);
        assert_eq!(found(&disk), []);
    }
}
