//! The location of the journal on the device: log block 0 is the journal's superblock, the log
//! follows.
//!
//! The mount reads the runs once from the journal's inode; from then on the journal needs no
//! mapping, and nothing else may write there.

use std::io::{self, IoSlice};

use pext4_block::{Device, MAX_SLICES};
use pext4_ondisk::{BlockNumber, Corrupt};

/// The device blocks of a journal, in the order of the log. Immutable.
#[derive(Clone, Debug)]
pub struct LogArea {
    block_size: u32,
    /// In log order.
    runs: Vec<Run>,
    /// Indices into `runs`, by device block.
    by_block: Vec<usize>,
    blocks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first_index: u32,
    start: BlockNumber,
    length: u32,
}

impl Run {
    fn end(&self) -> u64 {
        self.start.get() + u64::from(self.length)
    }
}

impl LogArea {
    /// The area made of these runs of device blocks (first block, length), in the order of the log.
    ///
    /// # Errors
    ///
    /// If the runs have no blocks or overlap, or if a block number or the sum of the lengths
    /// overflows.
    pub fn new(block_size: u32, runs: &[(BlockNumber, u32)]) -> Result<Self, Corrupt> {
        let mut placed = Vec::with_capacity(runs.len());
        let mut blocks = 0u32;
        for &(start, length) in runs.iter().filter(|(_, length)| *length != 0) {
            let fits = start.checked_add(length).is_some();
            let sum = blocks.checked_add(length).filter(|_| fits);
            placed.push(Run {
                first_index: blocks,
                start,
                length,
            });
            blocks = sum.ok_or_else(|| bad_area("is longer than a journal can be", start))?;
        }
        let mut by_block: Vec<usize> = (0..placed.len()).collect();
        by_block.sort_by_key(|&run| placed[run].start);
        for pair in by_block.windows(2) {
            if placed[pair[0]].end() > placed[pair[1]].start.get() {
                return Err(bad_area("uses a block twice", placed[pair[1]].start));
            }
        }
        if placed.is_empty() {
            return Err(Corrupt::new("journal area", "has no blocks"));
        }
        Ok(Self {
            block_size,
            runs: placed,
            by_block,
            blocks,
        })
    }

    /// The number of blocks in the area, including the superblock's.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether a block of the device belongs to the journal.
    #[must_use]
    pub fn contains(&self, block: BlockNumber) -> bool {
        let after = self
            .by_block
            .partition_point(|&run| self.runs[run].start <= block);
        after > 0 && block.get() < self.runs[self.by_block[after - 1]].end()
    }

    /// The device block of log block `index`, and how many blocks from there on, itself included,
    /// are adjacent on the device. `None` past the end.
    #[must_use]
    pub fn place(&self, index: u32) -> Option<(BlockNumber, u32)> {
        if index >= self.blocks {
            return None;
        }
        let after = self.runs.partition_point(|run| run.first_index <= index);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let offset = index - run.first_index;
        Some((run.start.checked_add(offset)?, run.length - offset))
    }

    /// Reads whole log blocks from `index` on; they may span runs.
    ///
    /// # Errors
    ///
    /// Those of the device, and `InvalidInput` past the end of the area.
    pub fn read(&self, device: &dyn Device, index: u32, into: &mut [u8]) -> io::Result<()> {
        let mut index = index;
        let mut rest = into;
        while !rest.is_empty() {
            let (offset, room) = self.extent(index)?;
            let (now, later) = rest.split_at_mut(rest.len().min(room));
            device.read_at(offset, now)?;
            index += self.blocks_in(now.len());
            rest = later;
        }
        Ok(())
    }

    /// Writes whole log blocks, one from each slice, from `index` on; they may span runs.
    ///
    /// # Errors
    ///
    /// Those of the device, and `InvalidInput` past the end of the area.
    pub fn write(&self, device: &dyn Device, index: u32, blocks: &[&[u8]]) -> io::Result<()> {
        let mut index = index;
        let mut rest = blocks;
        while !rest.is_empty() {
            let (offset, room) = self.extent(index)?;
            let count = rest
                .len()
                .min(room / self.block_size as usize)
                .min(MAX_SLICES);
            let (now, later) = rest.split_at(count);
            let slices: Vec<IoSlice<'_>> = now.iter().map(|block| IoSlice::new(block)).collect();
            device.write_vectored_at(offset, &slices)?;
            index += u32::try_from(count).expect("at most MAX_SLICES");
            rest = later;
        }
        Ok(())
    }

    /// The byte offset of a log block on the device, and the number of bytes from there to the end
    /// of its run.
    fn extent(&self, index: u32) -> io::Result<(u64, usize)> {
        let (block, length) = self.place(index).ok_or(io::ErrorKind::InvalidInput)?;
        let size = u64::from(self.block_size);
        let offset = block
            .get()
            .checked_mul(size)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let room = usize::try_from(u64::from(length) * size).unwrap_or(usize::MAX);
        Ok((offset, room))
    }

    fn blocks_in(&self, bytes: usize) -> u32 {
        u32::try_from(bytes / self.block_size as usize).expect("no more than the area has")
    }
}

fn bad_area(problem: &'static str, block: BlockNumber) -> Corrupt {
    Corrupt::new("journal area", problem).in_block(block)
}

#[cfg(test)]
mod tests {
    use pext4_block::RamDevice;

    use super::{BlockNumber, LogArea};

    fn area() -> LogArea {
        let runs = [
            (BlockNumber(50), 3),
            (BlockNumber(0), 0),
            (BlockNumber(10), 2),
        ];
        LogArea::new(1024, &runs).expect("runs are apart")
    }

    #[test]
    fn places_follow_the_runs() {
        let area = area();
        assert_eq!(area.blocks(), 5);
        assert_eq!(area.place(1), Some((BlockNumber(51), 2)));
        assert_eq!(area.place(3), Some((BlockNumber(10), 2)));
        assert_eq!(area.place(5), None);
        let inside: Vec<u64> = (0..60)
            .filter(|&block| area.contains(BlockNumber(block)))
            .collect();
        assert_eq!(inside, [10, 11, 50, 51, 52]);
    }

    #[test]
    fn a_write_across_runs_is_read_back() {
        let (area, device) = (area(), RamDevice::new(64 * 1024));
        let blocks: Vec<Vec<u8>> = (1..=4).map(|byte| vec![byte; 1024]).collect();
        let slices: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        area.write(&device, 1, &slices).expect("a ram device works");
        let mut read = vec![0; 4096];
        area.read(&device, 1, &mut read)
            .expect("a ram device works");
        assert_eq!(read, blocks.concat());
        assert!(area.read(&device, 2, &mut read).is_err(), "past the end");
    }

    #[test]
    fn invalid_areas_are_refused() {
        let bad: [&[(BlockNumber, u32)]; 4] = [
            &[],
            &[(BlockNumber(5), 3), (BlockNumber(7), 1)],
            &[(BlockNumber(1), u32::MAX), (BlockNumber(1 << 40), 1)],
            &[(BlockNumber(u64::MAX), 1)],
        ];
        for runs in bad {
            assert!(LogArea::new(1024, runs).is_err(), "{runs:?}");
        }
    }
}
