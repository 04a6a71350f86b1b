//! A device in memory.
//!
//! Its bytes are in chunks of 64 KiB, each with its own lock and made by the first write to it.
//! Tables of chunks are made on demand too, so a device of terabytes takes only the memory that is
//! written. Chunks are [`Page`]s: a [`RamDevice::fork`] shares them with the original until one of
//! the two writes. A flush does nothing, since the content ends with the process.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use pext4_sync::{Class, RwLock};

use crate::device::{Device, Part, check_range, parts};
use crate::page::Page;

const CHUNK_SIZE: usize = 64 << 10;
const CHUNKS_IN_TABLE: u64 = 1024;

/// A chunk that was never written, or was discarded, is absent and reads as zeroes.
type Chunk = RwLock<Option<Page>>;

/// A device in memory, sparse.
pub struct RamDevice {
    /// [immutable]
    size: u64,
    /// [each set once] Tables of chunks.
    tables: Box<[OnceLock<Box<[Chunk]>>]>,
}

impl fmt::Debug for RamDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RamDevice")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl RamDevice {
    /// `size` bytes, all zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let tables = size.div_ceil(CHUNK_SIZE as u64).div_ceil(CHUNKS_IN_TABLE);
        Self {
            size,
            tables: (0..tables).map(|_| OnceLock::new()).collect(),
        }
    }

    /// A copy of a file's bytes; chunks of zeroes take no memory.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or read.
    pub fn load(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = File::open(path)?;
        let device = Self::new(fs::metadata(path)?.len());
        let (mut bytes, zeroes) = (vec![0; CHUNK_SIZE], vec![0; CHUNK_SIZE]);
        for start in (0..device.size).step_by(CHUNK_SIZE) {
            let length = (device.size - start).min(CHUNK_SIZE as u64) as usize;
            file.read_exact_at(&mut bytes[..length], start)?;
            // Compared with one `memcmp`, since images are large and mostly zeroes.
            if bytes[..length] != zeroes[..length] {
                device.write_at(start, &bytes[..length])?;
            }
        }
        Ok(device)
    }

    /// Writes the bytes to a file, which is made or truncated, with holes for absent chunks.
    ///
    /// # Errors
    ///
    /// The file cannot be made or written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        for (number, page) in self.present() {
            let start = number * CHUNK_SIZE as u64;
            let length = (self.size - start).min(CHUNK_SIZE as u64) as usize;
            file.write_all_at(&page[..length], start)?;
        }
        Ok(())
    }

    /// A copy of the device; later writes to one do not affect the other.
    #[must_use]
    pub fn fork(&self) -> Self {
        let fork = Self::new(self.size);
        for (number, page) in self.present() {
            *fork.chunk(number).write() = Some(page);
        }
        fork
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        (self.present().count() * CHUNK_SIZE) as u64
    }

    /// The chunk with this number; its table is made if it is absent.
    fn chunk(&self, number: u64) -> &Chunk {
        let table = self.tables[(number / CHUNKS_IN_TABLE) as usize].get_or_init(|| {
            (0..CHUNKS_IN_TABLE)
                .map(|_| RwLock::new(Class::Leaf, None))
                .collect()
        });
        &table[(number % CHUNKS_IN_TABLE) as usize]
    }

    /// As [`RamDevice::chunk`], but `None` if its table is absent.
    fn existing_chunk(&self, number: u64) -> Option<&Chunk> {
        let table = self.tables[(number / CHUNKS_IN_TABLE) as usize].get()?;
        table.get((number % CHUNKS_IN_TABLE) as usize)
    }

    /// The chunks that are present, by number.
    fn present(&self) -> impl Iterator<Item = (u64, Page)> {
        self.tables.iter().zip(0u64..).flat_map(|(table, index)| {
            let chunks = table.get().into_iter().flatten().zip(0u64..);
            chunks.filter_map(move |(chunk, within)| {
                let page = chunk.read().clone()?;
                Some((index * CHUNKS_IN_TABLE + within, page))
            })
        })
    }

    fn discard_part(&self, part: Part) {
        let Some(chunk) = self.existing_chunk(part.chunk) else {
            return;
        };
        let mut chunk = chunk.write();
        if part.length == CHUNK_SIZE {
            *chunk = None;
        } else if let Some(page) = chunk.as_mut() {
            page.make_mut()[part.within..][..part.length].fill(0);
        }
    }
}

impl Device for RamDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        check_range(self.size, offset, into.len() as u64)?;
        for part in parts(offset, into.len(), CHUNK_SIZE) {
            let into = &mut into[part.at..][..part.length];
            let guard = self.existing_chunk(part.chunk).map(Chunk::read);
            match guard.as_deref() {
                Some(Some(page)) => into.copy_from_slice(&page[part.within..][..part.length]),
                _ => into.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        check_range(self.size, offset, from.len() as u64)?;
        for part in parts(offset, from.len(), CHUNK_SIZE) {
            let mut chunk = self.chunk(part.chunk).write();
            let page = chunk.get_or_insert_with(|| Page::zeroed(CHUNK_SIZE));
            page.make_mut()[part.within..][..part.length]
                .copy_from_slice(&from[part.at..][..part.length]);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        check_range(self.size, offset, length)?;
        // In pieces that fit into a `usize` on all platforms and end at a chunk boundary.
        let end = offset + length;
        let mut start = offset;
        while start < end {
            let stop = (start / CHUNK_SIZE as u64 + 1)
                .saturating_mul(CHUNK_SIZE as u64)
                .min(end);
            parts(start, (stop - start) as usize, CHUNK_SIZE)
                .for_each(|part| self.discard_part(part));
            start = stop;
        }
        Ok(true)
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        const TABLE: u64 = CHUNKS_IN_TABLE * CHUNK_SIZE as u64;
        let end = end.min(self.size);
        let mut at = at;
        while at < end {
            if self.tables[(at / TABLE) as usize].get().is_none() {
                at = (at / TABLE + 1) * TABLE;
                continue;
            }
            let number = at / CHUNK_SIZE as u64;
            let next = (number + 1) * CHUNK_SIZE as u64;
            let chunk = self.existing_chunk(number);
            if chunk.is_some_and(|chunk| chunk.read().is_some()) {
                return Ok(Some(at..next.min(end)));
            }
            at = next;
        }
        Ok(None)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{CHUNK_SIZE, RamDevice};
    use crate::device::Device;

    fn bytes(device: &RamDevice, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; length];
        device
            .read_at(offset, &mut bytes)
            .expect("the range lies within");
        bytes
    }

    #[test]
    fn data_is_where_something_was_written() {
        const MIB: u64 = 1 << 20;
        let device = RamDevice::new(1 << 40);
        device.write_at(500 * MIB + 7, &[1]).expect("within");
        let next = |at, end| device.next_data(at, end).expect("it is no error");
        let chunk = 500 * MIB + CHUNK_SIZE as u64;
        assert_eq!(next(3, 1 << 40), Some(500 * MIB..chunk));
        assert_eq!(
            next(500 * MIB + 9, chunk - 1),
            Some(500 * MIB + 9..chunk - 1)
        );
        assert_eq!(next(chunk, 1 << 41), None);
        assert_eq!(next(3, 500 * MIB), None);
        assert_eq!(next(5, 3), None);
    }

    #[test]
    fn reads_what_was_written_across_chunks() {
        let device = RamDevice::new(1 << 40);
        let offset = (1 << 39) + CHUNK_SIZE as u64 - 3;
        device
            .write_at(offset, &[1, 2, 3, 4, 5, 6])
            .expect("the range lies within");
        assert_eq!(bytes(&device, offset - 1, 8), [0, 1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(bytes(&device, 0, 4), [0; 4]);
        assert_eq!(device.used(), 2 * CHUNK_SIZE as u64);
    }

    #[test]
    fn refuses_what_lies_beyond() {
        let device = RamDevice::new(1000);
        assert!(device.write_at(999, &[1, 2]).is_err());
        assert!(device.read_at(1000, &mut [0]).is_err());
        assert!(device.discard(u64::MAX, 2).is_err());
        assert!(device.write_at(999, &[1]).is_ok());
    }

    #[test]
    fn discarded_bytes_are_zero_and_whole_chunks_are_freed() {
        let device = RamDevice::new(4 * CHUNK_SIZE as u64);
        device
            .write_at(0, &vec![7; 4 * CHUNK_SIZE])
            .expect("it fits");
        let inner = CHUNK_SIZE as u64 - 1..3 * CHUNK_SIZE as u64 + 1;
        assert!(
            device
                .discard(inner.start, inner.end - inner.start)
                .expect("it lies within")
        );
        assert_eq!(bytes(&device, inner.start - 1, 3), [7, 0, 0]);
        assert_eq!(bytes(&device, inner.end - 1, 2), [0, 7]);
        assert_eq!(device.used(), 2 * CHUNK_SIZE as u64);
    }

    #[test]
    fn forks_are_independent() {
        let device = RamDevice::new(1 << 20);
        device.write_at(5, b"common").expect("it fits");
        let fork = device.fork();
        device.write_at(5, b"C").expect("it fits");
        fork.write_at(10, b"N").expect("it fits");
        assert_eq!(bytes(&device, 5, 6), b"Common");
        assert_eq!(bytes(&fork, 5, 6), b"commoN");
    }

    #[test]
    fn survives_a_file() {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let path = directory.path().join("image");
        let device = RamDevice::new(3 * CHUNK_SIZE as u64 + 17);
        device
            .write_at(3 * CHUNK_SIZE as u64, &[9; 17])
            .expect("it fits");
        device.save(&path).expect("the file is made");
        let again = RamDevice::load(&path).expect("the file is there");
        assert_eq!(again.size(), device.size());
        assert_eq!(again.used(), CHUNK_SIZE as u64);
        assert_eq!(bytes(&again, 3 * CHUNK_SIZE as u64, 17), [9; 17]);
    }
}
