//! A device as it will be after a replay that has not been done.
//!
//! A block that the replay would write home is read from its place in the log, each time, so that
//! memory is bounded by the number of such blocks and not by their size. It is how a read-only
//! mount sees an image whose log is not empty, and how a mount checks what a replay would bring
//! before it writes anything.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::BlockNumber;

use super::Replay;

/// A device below, with the blocks of a log over it. It refuses writes.
pub struct ReplayedDevice {
    below: Arc<dyn Device>,
    replay: Arc<Replay>,
}

impl fmt::Debug for ReplayedDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReplayedDevice")
            .finish_non_exhaustive()
    }
}

impl ReplayedDevice {
    /// The device `below`, whose log `replay` was planned from.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, replay: Arc<Replay>) -> Self {
        Self { below, replay }
    }

    /// Replaces what lies in one of the log's blocks by the bytes there.
    fn cover(&self, offset: u64, into: &mut [u8], home: BlockNumber) -> io::Result<()> {
        let size = u64::from(self.replay.area.block_size());
        let bytes = self.replay.read(&*self.below, home)?;
        let start = home.get() * size;
        let from = offset.max(start);
        let end = (offset + into.len() as u64).min(start + size);
        let place = |at: u64, origin: u64| usize::try_from(at - origin).expect("in memory");
        into[place(from, offset)..place(end, offset)]
            .copy_from_slice(&bytes[place(from, start)..place(end, start)]);
        Ok(())
    }
}

impl Device for ReplayedDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)?;
        let size = u64::from(self.replay.area.block_size());
        let end = (offset + into.len() as u64).div_ceil(size);
        let blocks = BlockNumber(offset / size)..BlockNumber(end);
        let mut covered = self.replay.survivors.range(blocks);
        covered.try_for_each(|(&home, _)| self.cover(offset, into, home))
    }

    fn write_at(&self, _offset: u64, _from: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        if at >= end {
            return Ok(None);
        }
        let size = u64::from(self.replay.area.block_size());
        let blocks = BlockNumber(at / size)..BlockNumber(end.div_ceil(size));
        let covered = self.replay.survivors.range(blocks).next();
        let covered = covered.map(|(home, _)| {
            let start = home.get() * size;
            start.max(at)..(start + size).min(end)
        });
        let below = self.below.next_data(at, end)?;
        Ok(match (covered, below) {
            (Some(covered), Some(below)) if below.start <= covered.start => Some(below),
            (Some(covered), _) => Some(covered),
            (None, below) => below,
        })
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
