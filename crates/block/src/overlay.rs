//! A device that keeps writes in memory and does not change the device below.
//!
//! A resize that is only tried runs on an overlay, so that the image stays as it is, and fast
//! commits are applied on one. Changed bytes are kept in chunks of 4 KiB; the first write to a
//! chunk reads the rest of it from below.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use pext4_sync::{Class, Map, RwLock};

use crate::device::{Device, Part, check_range, parts};
use crate::page::Page;

const CHUNK_SIZE: usize = 4096;

/// A device whose writes stay in memory.
pub struct OverlayDevice {
    below: Arc<dyn Device>,
    /// From chunk number to its bytes; absent chunks are unchanged.
    chunks: Map<u64, Arc<RwLock<Page>>>,
}

impl fmt::Debug for OverlayDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OverlayDevice")
            .finish_non_exhaustive()
    }
}

impl OverlayDevice {
    /// An overlay without changes on top of `below`.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            chunks: Map::new(Class::Leaf),
        }
    }

    /// Bytes of memory that hold changes.
    #[must_use]
    pub fn used(&self) -> u64 {
        (self.chunks.len() * CHUNK_SIZE) as u64
    }

    /// The blocks of `block_size` bytes (a power of two) that are not as below, in order. A part of
    /// a block at the end of the device is not one.
    ///
    /// # Errors
    ///
    /// Those of reading the device below.
    pub fn changed_blocks(&self, block_size: usize) -> io::Result<Vec<(u64, Page)>> {
        let mut chunks = Vec::new();
        self.chunks.for_each(|&chunk, _| chunks.push(chunk));
        let (size, whole) = (block_size as u64, self.size() / block_size as u64);
        let touched = chunks.into_iter().flat_map(|chunk| {
            let start = chunk * CHUNK_SIZE as u64;
            start / size..(start + CHUNK_SIZE as u64).div_ceil(size).min(whole)
        });
        let touched: BTreeSet<u64> = touched.collect();
        let mut changed = Vec::new();
        let mut old = vec![0; block_size];
        for block in touched {
            let mut page = Page::zeroed(block_size);
            self.read_at(block * size, page.make_mut())?;
            self.below.read_at(block * size, &mut old)?;
            if *page != *old {
                changed.push((block, page));
            }
        }
        Ok(changed)
    }

    /// The chunk that contains `part`, made if it is absent.
    fn chunk(&self, part: Part) -> io::Result<Arc<RwLock<Page>>> {
        if let Some(chunk) = self.chunks.get(&part.chunk) {
            return Ok(chunk);
        }
        let mut page = Page::zeroed(CHUNK_SIZE);
        if part.length < CHUNK_SIZE {
            let start = part.chunk * CHUNK_SIZE as u64;
            let length = (self.below.size() - start).min(CHUNK_SIZE as u64) as usize;
            self.below.read_at(start, &mut page.make_mut()[..length])?;
        }
        let chunk = Arc::new(RwLock::new(Class::Leaf, page));
        // If another writer has inserted the chunk meanwhile, its chunk is used.
        Ok(self.chunks.insert_if_absent(part.chunk, chunk))
    }
}

impl Device for OverlayDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, into.len() as u64)?;
        // Each run of unchanged chunks is read in one call.
        let mut unchanged = 0..0;
        for part in parts(offset, into.len(), CHUNK_SIZE) {
            let Some(chunk) = self.chunks.get(&part.chunk) else {
                unchanged.end = part.at + part.length;
                continue;
            };
            let below = offset + unchanged.start as u64;
            self.below.read_at(below, &mut into[unchanged])?;
            into[part.at..][..part.length]
                .copy_from_slice(&chunk.read()[part.within..][..part.length]);
            unchanged = part.at + part.length..part.at + part.length;
        }
        self.below
            .read_at(offset + unchanged.start as u64, &mut into[unchanged])
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        check_range(self.size(), offset, from.len() as u64)?;
        for part in parts(offset, from.len(), CHUNK_SIZE) {
            let chunk = self.chunk(part)?;
            chunk.write().make_mut()[part.within..][..part.length]
                .copy_from_slice(&from[part.at..][..part.length]);
        }
        Ok(())
    }

    /// Nothing here outlives the process.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::{CHUNK_SIZE, OverlayDevice};
    use crate::device::Device;
    use crate::ram::RamDevice;

    #[test]
    fn changes_are_seen_above_and_not_below() {
        let below = Arc::new(RamDevice::new(5 * CHUNK_SIZE as u64 + 100));
        below
            .write_at(0, &vec![1; 5 * CHUNK_SIZE + 100])
            .expect("it fits");
        let overlay = OverlayDevice::new(Arc::clone(&below) as Arc<dyn Device>);
        let mut expected = vec![1; 5 * CHUNK_SIZE + 100];
        for (offset, length) in [
            (CHUNK_SIZE + 7, 20),
            (2 * CHUNK_SIZE - 5, 10),
            (5 * CHUNK_SIZE + 90, 10),
        ] {
            overlay
                .write_at(offset as u64, &vec![2; length])
                .expect("it fits");
            expected[offset..][..length].fill(2);
        }
        assert_eq!(overlay.used(), 3 * CHUNK_SIZE as u64);
        for (offset, length) in [
            (0, expected.len()),
            (CHUNK_SIZE + 5, 10),
            (3, 10),
            (9, 3 * CHUNK_SIZE),
        ] {
            let mut bytes = vec![0; length];
            overlay
                .read_at(offset as u64, &mut bytes)
                .expect("the range lies within");
            assert!(
                bytes == expected[offset..][..length],
                "{length} bytes at {offset} differ"
            );
        }
        let mut bytes = vec![0; expected.len()];
        below.read_at(0, &mut bytes).expect("the range lies within");
        assert!(
            bytes.iter().all(|byte| *byte == 1),
            "the device below stays as it is"
        );
        assert!(overlay.write_at(5 * CHUNK_SIZE as u64 + 100, &[0]).is_err());
    }

    #[test]
    fn changed_blocks_are_those_that_differ() {
        for (block_size, expected) in [
            (1024, &[4, 9, 10, 20][..]),
            (4096, &[1, 2, 5]),
            (8192, &[0, 1, 2]),
        ] {
            let below = Arc::new(RamDevice::new(6 * CHUNK_SIZE as u64));
            let overlay = OverlayDevice::new(Arc::clone(&below) as Arc<dyn Device>);
            for (offset, length, byte) in [
                (4096, 3, 1),
                (9 * 1024 + 1000, 100, 1),
                (12 * 1024, 1024, 0),
                (20 * 1024, 1, 1),
            ] {
                overlay
                    .write_at(offset, &vec![byte; length])
                    .expect("it fits");
            }
            let changed = overlay.changed_blocks(block_size).expect("memory");
            let blocks: Vec<u64> = changed.iter().map(|(block, _)| *block).collect();
            assert_eq!(blocks, expected, "{block_size}");
            for (block, page) in changed {
                let mut bytes = vec![0; block_size];
                let offset = block * block_size as u64;
                overlay.read_at(offset, &mut bytes).expect("within");
                assert!(*page == *bytes, "block {block} of {block_size}");
            }
        }
    }
}
