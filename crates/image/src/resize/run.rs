//! Writes a plan, in an order that is safe at a power cut.
//!
//! First it writes moved blocks, cleared tables and everything behind the old end; then it flushes.
//! A growing file system does not use these blocks, so until here the image contains the old file
//! system. Moves of a shrink may overwrite metadata that the shrink releases.
//!
//! *Through the journal*: it writes the changed blocks to the log as one transaction. Before that,
//! the superblock on the device gets `recover`, with the log still empty. Writing the log's start,
//! one sector, is the commit point: from now on every open replays the transaction and finds the
//! new file system. If a step before fails, the old superblock is written back; if one after it
//! fails, the error says that the resize is made. Then it writes the blocks home and the copies,
//! empties the log, and removes `recover`. (A superblock with the new size before the descriptors
//! are there, or the reverse, would be no valid file system; no order of plain writes avoids that.)
//!
//! *Directly*: it writes the changed blocks, then the superblock, then the copies. This is for a
//! clone, which nobody sees before it is complete, and for resizes in place: there the superblock
//! has the error flag until everything is written, so that an interrupted resize is detected.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Device, Phase, Progress};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{SIZE, State, Superblock};
use pext4_sync::time;

use super::copies::Copy;
use super::journal::{Log, write_primary};
use super::plan::{Move, Plan};
use crate::error::{Error, Result};
use crate::mkfs::Run;

/// Size of one copy or write in bytes.
const CHUNK: u64 = 4 << 20;

/// How a plan is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On the image, in one transaction of its journal: an interruption leaves the old or the new
    /// file system.
    Journal,
    /// On a clone that replaces the image when it is complete: an interruption leaves the old file
    /// system.
    Clone,
    /// On the image, directly: an interruption leaves a damaged file system.
    InPlace,
}

impl Plan {
    /// Writes the plan to `to`, which must be large enough and contain the same data as `from` in
    /// the range of both file systems; they may be the same device. From byte `zero_from` on, `to`
    /// reads as zeroes.
    ///
    /// # Errors
    ///
    /// `Io`; `AfterCommit` if only the last steps of [`Way::Journal`] failed; `Impossible` for it
    /// if [`Plan::fits_journal`] is false.
    pub fn run(
        &mut self,
        from: &dyn Device,
        to: &dyn Device,
        way: Way,
        zero_from: u64,
    ) -> Result<()> {
        let progress = Arc::clone(&self.progress);
        let writer = Writer {
            device: to,
            block_size: u64::from(self.shape.geometry.block_size),
            progress: &progress,
            may_stop: way == Way::Clone,
        };
        progress.enter(Phase::Writing, 0, self.bytes_to_write());
        if way == Way::InPlace {
            let mut old = self.old.clone();
            // A missing CLEAN flag alone would be ignored in a file system with a journal. Mounts
            // report ERRORS, and a resize refuses it.
            old.state.remove(State::CLEAN);
            old.state.insert(State::ERRORS);
            write_primary(to, &old)?;
        }
        self.shape.superblock.write_time = i64::try_from(self.time().as_secs()).unwrap_or(i64::MAX);
        for moved in self.table_moves.iter().chain(&self.moves) {
            writer.copy(from, moved)?;
        }
        for run in &self.clears {
            writer.clear(run, zero_from)?;
        }
        for (block, bytes) in &self.fresh {
            writer.write(*block, bytes)?;
        }
        to.flush()?;
        match way {
            Way::Journal => self.commit(&writer),
            Way::Clone | Way::InPlace => self.write_directly(&writer),
        }
    }

    /// The time of all time stamps, since 1970.
    fn time(&self) -> Duration {
        self.time.unwrap_or_else(time::since_epoch)
    }

    /// The number of bytes that the run writes, without the log.
    fn bytes_to_write(&self) -> u64 {
        let moves = self.table_moves.iter().chain(&self.moves);
        let moved: u64 = moves.map(|moved| moved.count).sum();
        let cleared: u64 = self.clears.iter().map(|run| run.end - run.start).sum();
        let single = self.fresh.len() + self.changed.len() + self.copies.len();
        (moved + cleared + single as u64) * u64::from(self.shape.geometry.block_size)
    }

    /// Whether one transaction of the image's journal holds all changes.
    #[must_use]
    pub fn fits_journal(&self) -> bool {
        let grows = self.shape.geometry.blocks_count >= self.old.blocks_count;
        let highest = self
            .changed
            .keys()
            .next_back()
            .map_or(0, |block| block.get());
        let fits = |log: &Log| {
            log.has_room(self.changed.len() + 1, highest)
                && !self.changed.keys().any(|&block| log.contains(block))
        };
        grows && self.moves.is_empty() && self.log.as_ref().is_some_and(fits)
    }

    fn write_directly(&self, writer: &Writer<'_>) -> Result<()> {
        for (block, bytes) in &self.changed {
            writer.write(*block, bytes)?;
        }
        writer.device.flush()?;
        write_primary(writer.device, &self.shape.superblock)?;
        writer.write_copies(&self.copies)
    }

    fn commit(&mut self, writer: &Writer<'_>) -> Result<()> {
        if !self.fits_journal() {
            let text = "the changes do not fit one transaction of the journal";
            return Err(Error::Impossible(text.to_owned()));
        }
        let device = writer.device;
        self.change_superblock(device)?;
        if let Err(error) = self.write_log(device) {
            return Err(match self.is_committed(device) {
                Ok(true) => Error::AfterCommit(Box::new(error)),
                Ok(false) => {
                    // If this fails, `recover` stays with an empty log, which is sound.
                    let _ = write_primary(device, &self.old);
                    error
                }
                Err(_) => error,
            });
        }
        self.write_home(writer)
            .map_err(|error| Error::AfterCommit(Box::new(error)))
    }

    /// Adds the block with the superblock to the changed blocks.
    fn change_superblock(&mut self, device: &dyn Device) -> Result<()> {
        let block_size = u64::from(self.shape.geometry.block_size);
        let (home, within) = self.superblock_home();
        let mut primary = vec![0; usize::try_from(block_size).expect("at most 65536")];
        device.read_at(home.get() * block_size, &mut primary)?;
        let new = with_recover(&self.shape.superblock);
        primary[within..within + SIZE].copy_from_slice(&new.encode());
        self.changed.insert(home, primary);
        Ok(())
    }

    /// Writes the changed blocks to the log and begins it, which is the commit.
    fn write_log(&mut self, device: &dyn Device) -> Result<()> {
        write_primary(device, &with_recover(&self.old))?;
        let blocks: Vec<(BlockNumber, &[u8])> = self
            .changed
            .iter()
            .map(|(block, bytes)| (*block, bytes.as_slice()))
            .collect();
        let time = self.time();
        let log = self.log.as_mut().expect("it has room");
        log.write(device, &blocks, time)?;
        log.begin(device)
    }

    /// Whether the log on the device holds the transaction, so that a replay would apply it.
    pub(super) fn is_committed(&self, device: &dyn Device) -> Result<bool> {
        match &self.log {
            Some(log) => Ok(!log.is_empty(device)?),
            None => Ok(false),
        }
    }

    /// Writes the changed blocks home after the commit, and empties the log.
    fn write_home(&mut self, writer: &Writer<'_>) -> Result<()> {
        let device = writer.device;
        for (block, bytes) in &self.changed {
            writer.write(*block, bytes)?;
        }
        writer.write_copies(&self.copies)?;
        self.log.as_mut().expect("it was written").finish(device)?;
        write_primary(device, &self.shape.superblock)
    }
}

/// The superblock with the `recover` flag.
fn with_recover(superblock: &Superblock) -> Superblock {
    let mut marked = superblock.clone();
    marked.features.incompat.insert(Incompat::RECOVER);
    marked
}

struct Writer<'a> {
    device: &'a dyn Device,
    block_size: u64,
    progress: &'a Progress,
    /// Whether the run may stop half-way without damage.
    may_stop: bool,
}

impl Writer<'_> {
    fn write(&self, block: BlockNumber, bytes: &[u8]) -> Result<()> {
        self.progress.add(0, bytes.len() as u64);
        Ok(self.device.write_at(block.get() * self.block_size, bytes)?)
    }

    fn write_copies(&self, copies: &[Copy]) -> Result<()> {
        for (block, bytes) in copies {
            self.write(*block, bytes)?;
        }
        Ok(self.device.flush()?)
    }

    fn copy(&self, from: &dyn Device, moved: &Move) -> Result<()> {
        let length = moved.count * self.block_size;
        let mut done = 0;
        while done < length {
            if self.may_stop {
                self.progress.check()?;
            }
            let step = CHUNK.min(length - done);
            let mut bytes = vec![0; usize::try_from(step).expect("at most a chunk")];
            from.read_at(moved.from * self.block_size + done, &mut bytes)?;
            self.write_sparsely(moved.to * self.block_size + done, &bytes)?;
            self.progress.add(0, step);
            done += step;
        }
        Ok(())
    }

    /// Writes blocks; those of zeroes become holes where the device can have holes.
    fn write_sparsely(&self, mut at: u64, bytes: &[u8]) -> Result<()> {
        let size = usize::try_from(self.block_size).expect("at most 65536");
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_hole = is_zero(&rest[..size]);
            let count = rest
                .chunks(size)
                .take_while(|block| is_zero(block) == is_hole);
            let (piece, behind) = rest.split_at(count.count() * size);
            match is_hole {
                true => zero(self.device, at, at + piece.len() as u64)?,
                false => self.device.write_at(at, piece)?,
            }
            at += piece.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Zeroes blocks, except behind `zero_from`.
    fn clear(&self, run: &Run, zero_from: u64) -> Result<()> {
        let start = run.start * self.block_size;
        let end = run.end * self.block_size;
        zero(self.device, start, end.min(zero_from))?;
        self.progress.add(0, end - start);
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Makes a range of a device read as zeroes: by a hole, where the device can have holes.
pub(super) fn zero(device: &dyn Device, start: u64, end: u64) -> Result<()> {
    if start >= end || device.discard(start, end - start)? {
        return Ok(());
    }
    let mut at = start;
    while at < end {
        let step = CHUNK.min(end - at);
        let zeroes = vec![0; usize::try_from(step).expect("at most a chunk")];
        device.write_at(at, &zeroes)?;
        at += step;
    }
    Ok(())
}
