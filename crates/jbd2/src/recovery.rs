//! Recovery: writes home what a crash left in the log, before anything else touches the image.
//!
//! The steps, each in its own file: the *scan* walks the log from its start and finds the committed
//! transactions; the first record that does not continue them ends the log. The *revokes* name
//! logged blocks that must not be written. The *survivors* are the last versions of the others,
//! with sound checksums. The *replay* plans all this and then writes the survivors to the device;
//! until then, or for a read-only mount for ever, a [`ReplayedDevice`] shows what it would write.
//!
//! Everything is checked before anything is written: a home outside the device or inside the log,
//! or a block whose checksum is wrong, stops recovery and leaves the image as it was. Memory is
//! bounded by the number of blocks in the log: only revokes of blocks that are in the log are
//! remembered.
//!
//! After a replay to the device the log is empty. Its next transaction number is one more than that
//! of the first transaction that was not committed, so no leftover record can ever continue the
//! log.
//!
//! Behind the log there may be *fast commits*, which this layer reads and does not understand: they
//! speak of inodes and names. `fast_commits.rs` tells how what they change is made durable.

mod fast_commits;
mod replay;
mod replayed_device;
mod revokes;
mod scan;
mod superseded;
mod survivors;

use std::io;

use pext4_block::Device;
use pext4_ondisk::Corrupt;
use pext4_ondisk::journal::{JournalSuperblock, RecordFormat};

use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::ring::Ring;

pub use crate::superblock::{declare_empty, discard, read_superblock};
pub use replay::{Recovered, Replay};
pub use replayed_device::ReplayedDevice;

/// Reads the log's blocks.
struct LogReader<'a> {
    device: &'a dyn Device,
    area: &'a LogArea,
    format: RecordFormat,
    ring: Ring,
}

impl LogReader<'_> {
    fn read(&self, at: u32) -> Result<Vec<u8>, JournalError> {
        self.read_block(at)
            .map_err(JournalError::io("reading the journal"))
    }

    fn read_block(&self, at: u32) -> io::Result<Vec<u8>> {
        let mut block = vec![0; self.format.block_size];
        self.area.read(self.device, at, &mut block)?;
        Ok(block)
    }

    /// What is wrong with the log's block `at`, with the block where it lies.
    fn locate(&self, at: u32, corrupt: Corrupt) -> Corrupt {
        match self.area.place(at) {
            Some((block, _)) => corrupt.in_block(block),
            None => corrupt,
        }
    }
}

/// Replays the log to the device, which has `blocks` blocks, durably, and leaves it empty.
///
/// # Errors
///
/// `Corrupt` if the log is invalid or names an invalid home; `Unsupported` for a feature, by name,
/// and for fast commits behind the log, which only [`Replay::write_with_fast_commits`] makes
/// durable; `Io`. Nothing has been written then, unless the device failed while writing; recovery
/// may be tried again.
pub fn recover(
    device: &dyn Device,
    area: &LogArea,
    superblock: &mut JournalSuperblock,
    blocks: u64,
) -> Result<Recovered, JournalError> {
    let replay = Replay::plan(device, area, superblock, blocks)?;
    replay.refuse_fast_commits()?;
    replay.write(device, superblock, blocks, |_, _| {})
}

#[cfg(all(test, not(loom)))]
mod tests;
