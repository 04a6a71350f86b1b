//! Where the partitions of a disk lie.
//!
//! The first sector of a disk has a table of four partitions (MBR), of which some may hold a chain
//! of further ones. A disk with a table of GUID partitions (GPT) says so there by one that covers
//! all of it. Nothing is trusted: only partitions that begin within the disk count, and no table
//! has this read more than a thousand entries. Checksums are not verified: a wrong table at most
//! makes a file system seem to be cut short, which its opening reports.

use std::io;
use std::ops::Range;

/// The most partitions that are looked at.
const MOST: usize = 1024;
/// Bytes of a sector in the table of the first sector.
const SECTOR: u64 = 512;
/// Where the first sector has its table, and the length of an entry.
const TABLE: usize = 446;
const ENTRY: usize = 16;
/// The end of a sector with a table.
const SIGNATURE: [u8; 2] = [0x55, 0xAA];
/// Kinds of partitions that hold a chain of others.
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// The kind of the partition that stands for a table of GUID partitions.
const PROTECTIVE: u8 = 0xEE;
/// The beginning of the header of a table of GUID partitions, which is in the second sector.
const GUID_SIGNATURE: &[u8; 8] = b"EFI PART";
/// The sizes of sectors that disks have.
const SECTOR_SIZES: [u64; 2] = [512, 4096];

/// The disk.
struct Disk<'a> {
    size: u64,
    read: &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>,
}

/// The partitions of a disk of `size` bytes, in bytes, in the order of its table; none if it has no
/// table. `read` fills a buffer from an offset.
///
/// # Errors
///
/// Those of `read`.
pub fn partitions(
    size: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<Range<u64>>> {
    let disk = &Disk { size, read: &read };
    let mut found = Vec::new();
    for entry in read_table(disk, 0)? {
        match entry.kind {
            PROTECTIVE => found.extend(guid_partitions(disk)?),
            kind if EXTENDED.contains(&kind) => {
                found.extend(logical_partitions(disk, entry.first)?);
            }
            _ => found.extend(within(disk, entry.first, entry.sectors, SECTOR)),
        }
    }
    found.truncate(MOST);
    Ok(found)
}

/// An entry of the table in a first sector. Numbers are in sectors.
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

/// The used entries of the table in the sector at `offset`; none if there is no table.
fn read_table(disk: &Disk<'_>, offset: u64) -> io::Result<Vec<Entry>> {
    let mut sector = [0; SECTOR as usize];
    if !read(disk, offset, &mut sector)? || !sector.ends_with(&SIGNATURE) {
        return Ok(Vec::new());
    }
    let table = &sector[TABLE..sector.len() - SIGNATURE.len()];
    let entries = table.chunks_exact(ENTRY);
    // The first byte of an entry tells whether it is booted from; in code or text it is another.
    if entries.clone().any(|entry| entry[0] & 0x7F != 0) {
        return Ok(Vec::new());
    }
    let entries = entries.map(|entry| Entry {
        kind: entry[4],
        first: number(&entry[8..12]),
        sectors: number(&entry[12..16]),
    });
    Ok(entries.filter(|entry| entry.kind != 0).collect())
}

/// The partitions in the chain that begins at sector `start`: each link has a table with a
/// partition, from that link on, and the next link, from the start on.
fn logical_partitions(disk: &Disk<'_>, start: u64) -> io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut link = start;
    for _ in 0..MOST {
        let mut next = None;
        for entry in read_table(disk, link * SECTOR)? {
            if EXTENDED.contains(&entry.kind) {
                next = Some(start + entry.first);
            } else {
                found.extend(within(disk, link + entry.first, entry.sectors, SECTOR));
            }
        }
        match next {
            // A chain only leads forward.
            Some(next) if next > link => link = next,
            _ => break,
        }
    }
    Ok(found)
}

fn guid_partitions(disk: &Disk<'_>) -> io::Result<Vec<Range<u64>>> {
    for sector in SECTOR_SIZES {
        let mut header = [0; 92];
        if read(disk, sector, &mut header)? && header.starts_with(GUID_SIGNATURE) {
            return guid_table(disk, sector, &header);
        }
    }
    Ok(Vec::new())
}

/// The partitions of the table that a header describes: from a sector on, so many entries of so
/// many bytes.
fn guid_table(disk: &Disk<'_>, sector: u64, header: &[u8; 92]) -> io::Result<Vec<Range<u64>>> {
    let start = number(&header[72..80]).checked_mul(sector);
    let count = number(&header[80..84]).min(MOST as u64);
    let length = number(&header[84..88]);
    let mut found = Vec::new();
    for index in 0..count {
        let offset = start.and_then(|start| start.checked_add(index * length));
        let mut entry = [0; 48];
        let Some(offset) = offset else { break };
        if !read(disk, offset, &mut entry)? {
            break;
        }
        let (kind, first, last) = (&entry[..16], number(&entry[32..40]), number(&entry[40..48]));
        if kind.iter().any(|&byte| byte != 0) && last >= first {
            let sectors = (last - first).saturating_add(1);
            found.extend(within(disk, first, sectors, sector));
        }
    }
    Ok(found)
}

/// The bytes of a partition, as far as they are on the disk.
fn within(disk: &Disk<'_>, first: u64, sectors: u64, sector: u64) -> Option<Range<u64>> {
    let start = first.checked_mul(sector)?;
    let end = sectors.saturating_mul(sector).saturating_add(start);
    let bytes = start..end.min(disk.size);
    (start > 0 && !bytes.is_empty()).then_some(bytes)
}

/// Fills `into`; false if the disk ends before.
fn read(disk: &Disk<'_>, offset: u64, into: &mut [u8]) -> io::Result<bool> {
    let end = offset.checked_add(into.len() as u64);
    if end.is_none_or(|end| end > disk.size) {
        return Ok(false);
    }
    (disk.read)(offset, into).map(|()| true)
}

/// A number in little-endian bytes, of which there are at most eight.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ENTRY, SECTOR, SIGNATURE, TABLE, partitions};
    use crate::{Device, RamDevice};

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
        let found =
            partitions(disk.size(), |at, into| disk.read_at(at, into)).expect("a ram device");
        let sectors = |bytes: std::ops::Range<u64>| (bytes.start / SECTOR, bytes.end / SECTOR);
        found.into_iter().map(sectors).collect()
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
}
