//! Where the partitions of a disk lie, and what else its tables say is not free.
//!
//! The first sector of a disk has a table of four partitions (MBR), of which some may hold a chain
//! of further ones. A disk with a table of GUID partitions (GPT) says so there by one that covers
//! all of it; a copy of that table is at the end of the disk. Numbers in tables count sectors of
//! the disk. A file does not say how long its sectors were: they are those of its GUID table, or
//! else of 512 bytes, unless only longer ones give a partition to what is looked for.
//!
//! Nothing is trusted: only partitions that begin within the disk count, and no table has this read
//! more than a thousand entries. Checksums are not verified: a wrong table at most makes a file
//! system seem to be cut short, which its opening reports.

use std::io;
use std::ops::Range;

use crate::file::RangeEnd;

/// The most partitions that are looked at.
const MOST: usize = 1024;
/// Bytes of a first sector that are read. Those of a longer one have no meaning.
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
/// The length of that header in bytes.
const GUID_HEADER: usize = 92;
/// The sizes of sectors that disks have.
const SECTOR_SIZES: [u64; 2] = [512, 4096];

/// A disk with tables, perhaps.
pub(crate) struct Disk<'a> {
    /// Its length in bytes.
    pub(crate) size: u64,
    /// Bytes of a sector, if they are known; not 0.
    pub(crate) sector: Option<u64>,
    /// Fills a buffer from an offset.
    pub(crate) read: &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>,
}

/// What the tables of a disk name, in bytes.
#[derive(Debug, Default)]
struct Layout {
    /// In the order of the tables.
    partitions: Vec<Range<u64>>,
    /// The tables, and the areas that hold chains of partitions.
    others: Vec<Range<u64>>,
}

impl Layout {
    /// The end of the partition that begins at `start`, if one does.
    fn end_of_partition(&self, start: u64) -> Option<u64> {
        let same = self.partitions.iter().filter(|part| part.start == start);
        // Two tables may name it differently: what both give to it is its own.
        same.map(|part| part.end).min()
    }

    /// Where what begins at `start`, and is no partition, ends at the latest.
    fn limit_behind(&self, start: u64) -> Option<u64> {
        let limits = self.partitions.iter().chain(&self.others);
        let limits = limits.flat_map(|named| [named.start, named.end]);
        limits.filter(|&limit| limit > start).min()
    }
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
    Disk {
        size,
        sector: None,
        read: &read,
    }
    .partitions()
}

impl Disk<'_> {
    /// As the function [`partitions`].
    pub(crate) fn partitions(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(layout(self)?.partitions)
    }

    /// The byte at which what begins at byte `start` ends, and what says so: the partition that
    /// begins there, or else whatever the tables name next.
    pub(crate) fn end_of(&self, start: u64) -> io::Result<(u64, RangeEnd)> {
        let layout = layout(self)?;
        if let Some(end) = layout.end_of_partition(start) {
            return Ok((end, RangeEnd::Partition));
        }
        let limit = match self.end_by_long_sectors(start)? {
            Some(end) => Some(end),
            None => layout.limit_behind(start),
        };
        Ok(match limit {
            Some(limit) if limit < self.size => (limit, RangeEnd::Neighbour),
            _ => (self.size, RangeEnd::File),
        })
    }

    /// The end of the partition that begins at `start` if the table of the first sector counts
    /// longer sectors than it seems to, as in a file that is the copy of such a disk. That is so
    /// only if all partitions would lie on the disk.
    fn end_by_long_sectors(&self, start: u64) -> io::Result<Option<u64>> {
        let [.., sector] = SECTOR_SIZES;
        let is_long = |entry: &Entry| {
            let end = (entry.first + entry.sectors).checked_mul(sector);
            entry.kind != PROTECTIVE && end.is_some_and(|end| end <= self.size)
        };
        if self.sector == Some(sector) || !read_table(self, 0)?.iter().all(is_long) {
            return Ok(None);
        }
        let disk = Disk {
            sector: Some(sector),
            ..*self
        };
        Ok(layout(&disk)?.end_of_partition(start))
    }

    /// The number of the last sector, if they have this many bytes.
    fn last_sector(&self, sector: u64) -> u64 {
        (self.size / sector).saturating_sub(1)
    }
}

fn layout(disk: &Disk<'_>) -> io::Result<Layout> {
    let mut found = Layout::default();
    let entries = read_table(disk, 0)?;
    let mut sector = disk.sector.unwrap_or(SECTOR);
    if entries.iter().any(|entry| entry.kind == PROTECTIVE)
        && let Some(table) = GuidTable::find(disk)?
    {
        sector = disk.sector.unwrap_or(table.sector);
        table.read(disk, &mut found)?;
    }
    for entry in entries {
        match entry.kind {
            PROTECTIVE => {}
            kind if EXTENDED.contains(&kind) => {
                let area = within(disk, entry.first, entry.sectors, sector);
                found.others.extend(area);
                read_chain(disk, entry.first, sector, &mut found)?;
            }
            _ => {
                let partition = within(disk, entry.first, entry.sectors, sector);
                found.partitions.extend(partition);
            }
        }
    }
    found.partitions.truncate(MOST);
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

/// Adds the partitions in the chain that begins at sector `start`: each link is a sector with a
/// table, which has a partition, from that link on, and the next link, from the start on.
fn read_chain(disk: &Disk<'_>, start: u64, sector: u64, found: &mut Layout) -> io::Result<()> {
    let mut link = start;
    for _ in 0..MOST {
        let mut next = None;
        for entry in read_table(disk, link.saturating_mul(sector))? {
            if EXTENDED.contains(&entry.kind) {
                next = Some(start + entry.first);
            } else {
                let partition = within(disk, link + entry.first, entry.sectors, sector);
                found.partitions.extend(partition);
            }
        }
        found.others.extend(within(disk, link, 1, sector));
        match next {
            // A chain only leads forward.
            Some(next) if next > link => link = next,
            _ => break,
        }
    }
    Ok(())
}

/// The table of GUID partitions that a header describes.
struct GuidTable {
    /// Bytes of a sector.
    sector: u64,
    /// The sectors of the header's copy, and of the first entry.
    copy: u64,
    entries: u64,
    /// The number of entries, and the bytes of one.
    count: u64,
    length: u64,
}

impl GuidTable {
    /// Finds the header in the second sector, or else its copy in the last one.
    fn find(disk: &Disk<'_>) -> io::Result<Option<Self>> {
        let sizes = || disk.sector.into_iter().chain(SECTOR_SIZES);
        let first = sizes().map(|sector| (sector, 1));
        let last = sizes().map(|sector| (sector, disk.last_sector(sector)));
        for (sector, place) in first.chain(last) {
            let mut header = [0; GUID_HEADER];
            let offset = place * sector;
            if read(disk, offset, &mut header)? && header.starts_with(GUID_SIGNATURE) {
                return Ok(Some(Self {
                    sector,
                    copy: number(&header[32..40]),
                    entries: number(&header[72..80]),
                    count: number(&header[80..84]),
                    length: number(&header[84..88]),
                }));
            }
        }
        Ok(None)
    }

    /// Adds the partitions, the table, and the places of its copy.
    fn read(&self, disk: &Disk<'_>, found: &mut Layout) -> io::Result<()> {
        let start = self.entries.checked_mul(self.sector);
        for index in 0..self.count.min(MOST as u64) {
            let offset = start.and_then(|start| start.checked_add(index * self.length));
            let mut entry = [0; 48];
            let Some(offset) = offset else { break };
            if !read(disk, offset, &mut entry)? {
                break;
            }
            let kind = &entry[..16];
            let (first, last) = (number(&entry[32..40]), number(&entry[40..48]));
            if kind.iter().any(|&byte| byte != 0) && last >= first {
                let sectors = (last - first).saturating_add(1);
                let partition = within(disk, first, sectors, self.sector);
                found.partitions.extend(partition);
            }
        }
        let sectors = self.entry_sectors();
        let entries = within(disk, self.entries, sectors, self.sector);
        found.others.extend(entries);
        if self.has_copy(disk)? {
            found.others.extend(self.place_of_copy(disk, self.copy));
        }
        // Programs that repair the table put its copy there, for example if the disk became longer.
        let last = disk.last_sector(self.sector);
        found.others.extend(self.place_of_copy(disk, last));
        Ok(())
    }

    /// Whether the copy of the header is where the header says.
    fn has_copy(&self, disk: &Disk<'_>) -> io::Result<bool> {
        let mut signature = [0; GUID_SIGNATURE.len()];
        let Some(offset) = self.copy.checked_mul(self.sector) else {
            return Ok(false);
        };
        Ok(read(disk, offset, &mut signature)? && signature == *GUID_SIGNATURE)
    }

    /// The sectors of all entries.
    fn entry_sectors(&self) -> u64 {
        let bytes = self.count.saturating_mul(self.length);
        bytes.div_ceil(self.sector)
    }

    /// Where a copy of the table is whose header is in a sector: its entries precede the header.
    fn place_of_copy(&self, disk: &Disk<'_>, header: u64) -> Option<Range<u64>> {
        let sectors = self.entry_sectors();
        let first = header.checked_sub(sectors)?;
        within(disk, first, sectors.saturating_add(1), self.sector)
    }
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
mod tests;
