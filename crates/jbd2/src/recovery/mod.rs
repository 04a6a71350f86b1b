//! Recovery: writes home what a crash left in the log, before anything else touches the image.
//!
//! There are three passes, each in its own file. The *scan* walks the log from its start and finds
//! the committed transactions; the first record that does not continue them ends the log. The
//! *revoke* pass finds the logged blocks that must not be written. The *replay* writes the last
//! version of each of the others to the device; until then, or for a read-only mount for ever, a
//! [`ReplayedDevice`] shows what it would write.
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

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use pext4_block::Device;
use pext4_ondisk::journal::fast_commit::Record;
use pext4_ondisk::journal::superblock::SUPERBLOCK_SIZE;
use pext4_ondisk::journal::{JournalCompat, JournalIncompat, JournalSuperblock, RecordFormat};
use pext4_ondisk::{BlockNumber, Corrupt, Tid};

use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::ring::Ring;

pub use replayed_device::ReplayedDevice;

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Committed transactions found in the log.
    pub transactions: u32,
    /// Blocks written home, each counted once.
    pub blocks: u64,
    /// Logged versions that were not written because of revokes.
    pub revoked: u64,
    /// Fast commits behind the log.
    pub fast_commits: u32,
    /// The error of an earlier abort, as a negative errno; 0 for none. It stays in the journal's
    /// superblock until [`Journal::clear_error`](crate::Journal::clear_error).
    pub errno: i32,
}

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

/// Reads the journal's superblock and checks it against the area.
///
/// # Errors
///
/// `Corrupt` if it is invalid or contradicts the area, `Io`.
pub fn read_superblock(
    device: &dyn Device,
    area: &LogArea,
) -> Result<JournalSuperblock, JournalError> {
    let (home, _) = area.place(0).expect("an area has blocks");
    let offset = home.get().saturating_mul(u64::from(area.block_size()));
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device
        .read_at(offset, &mut bytes)
        .map_err(JournalError::io("reading the journal's superblock"))?;
    let superblock = JournalSuperblock::decode(&bytes).map_err(|corrupt| corrupt.in_block(home))?;
    check_area(&superblock, area).map_err(|corrupt| corrupt.in_block(home))?;
    Ok(superblock)
}

fn check_area(superblock: &JournalSuperblock, area: &LogArea) -> Result<(), Corrupt> {
    let problem = if superblock.block_size != area.block_size() {
        format!(
            "block size is {}, the file system's is {}",
            superblock.block_size,
            area.block_size()
        )
    } else if superblock.max_len > area.blocks() {
        format!(
            "says {} blocks, the journal has {}",
            superblock.max_len,
            area.blocks()
        )
    } else {
        return Ok(());
    };
    Err(Corrupt::new("journal superblock", problem))
}

/// Writes the journal's superblock and makes it durable.
pub(crate) fn write_superblock(
    device: &dyn Device,
    area: &LogArea,
    superblock: &JournalSuperblock,
) -> Result<(), JournalError> {
    let (home, _) = area.place(0).expect("an area has blocks");
    let offset = home.get() * u64::from(area.block_size());
    device
        .write_at(offset, &superblock.encode())
        .and_then(|()| device.flush())
        .map_err(JournalError::io("writing the journal's superblock"))
}

/// Durably declares the log empty without replaying it. The next transaction gets a number that no
/// record in the log can continue.
///
/// # Errors
///
/// `Unsupported` by name, `Io`.
pub fn discard(
    device: &dyn Device,
    area: &LogArea,
    superblock: &mut JournalSuperblock,
) -> Result<(), JournalError> {
    declare_empty(area, superblock)?;
    write_superblock(device, area, superblock)
}

/// As [`discard`], in memory only.
///
/// # Errors
///
/// `Unsupported` by name.
pub fn declare_empty(
    area: &LogArea,
    superblock: &mut JournalSuperblock,
) -> Result<(), JournalError> {
    check_writable(superblock)?;
    superblock.start = 0;
    superblock.sequence = Tid(superblock.sequence.0.wrapping_add(area.blocks()));
    Ok(())
}

/// Replays the log to the device, which has `blocks` blocks, durably, and leaves it empty.
///
/// # Errors
///
/// `Corrupt` if the log is invalid or names an invalid home, `Unsupported` by name, and that also
/// where fast commits wait, `Io`. Nothing has been written then, unless the device failed while
/// writing; recovery may be tried again.
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

/// What a replay would do, with all checks of the log passed. Nothing has been written.
pub struct Replay {
    area: LogArea,
    format: RecordFormat,
    ring: Ring,
    survivors: BTreeMap<BlockNumber, scan::LoggedBlock>,
    /// The first transaction that was not committed.
    next: Tid,
    /// The records of the fast commits behind the log, which belong to that transaction.
    fast_commits: Vec<Vec<Record>>,
    report: Recovered,
}

impl fmt::Debug for Replay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Replay")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Replay {
    /// Reads the log. A home from `blocks` on makes it invalid: the number of blocks of the device,
    /// since the size of a file system that was being grown may be in the log only.
    ///
    /// # Errors
    ///
    /// As [`recover`].
    pub fn plan(
        device: &dyn Device,
        area: &LogArea,
        superblock: &JournalSuperblock,
        blocks: u64,
    ) -> Result<Self, JournalError> {
        check_supported(superblock)?;
        check_area(superblock, area)?;
        let format = RecordFormat::of(superblock);
        let ring = Ring::of(superblock);
        let log = LogReader {
            device,
            area,
            format,
            ring,
        };
        let mut scan = if superblock.start == 0 {
            scan::Scan::empty(superblock.sequence)
        } else {
            scan::scan(&log, superblock)?
        };
        scan.check_homes(area, blocks)?;
        let (survivors, revoked) = replay::select(&log, superblock, &mut scan)?;
        let fast_commits = fast_commits::read(&log, superblock, scan.next)?;
        let report = Recovered {
            transactions: scan.transactions,
            blocks: survivors.len() as u64,
            revoked,
            fast_commits: u32::try_from(fast_commits.len()).unwrap_or(u32::MAX),
            errno: superblock.errno,
        };
        Ok(Self {
            area: area.clone(),
            format,
            ring,
            survivors,
            next: scan.next,
            fast_commits,
            report,
        })
    }

    /// What the log holds.
    #[must_use]
    pub fn report(&self) -> Recovered {
        self.report
    }

    /// Writes the blocks home, durably, and leaves the log empty. `device` and `superblock` are
    /// those of the plan. Homes from `blocks` on, the number of blocks of the file system as the
    /// replay leaves it, are left out: they may belong to a partition behind it. `amend` is shown
    /// each home and what the log has for it, and may change that: a file system's superblock may
    /// have fields at home that were never logged. An interrupted replay is done again from the
    /// start, so it must make the same changes then.
    ///
    /// Fast commits are passed over, and do not count any more once the log begins again: the
    /// caller knows that they change nothing, or calls [`Replay::write_with_fast_commits`].
    ///
    /// # Errors
    ///
    /// `Unsupported` by name, and then nothing has been written; `Io`.
    pub fn write(
        &self,
        device: &dyn Device,
        superblock: &mut JournalSuperblock,
        blocks: u64,
        amend: impl Fn(BlockNumber, &mut [u8]),
    ) -> Result<Recovered, JournalError> {
        check_writable(superblock)?;
        if superblock.start == 0 {
            return Ok(self.report);
        }
        let written = self.write_home(device, blocks, amend)?;
        superblock.start = 0;
        superblock.sequence = self.next.next();
        write_superblock(device, &self.area, superblock)?;
        Ok(Recovered {
            blocks: written,
            ..self.report
        })
    }

    /// Writes the blocks home, durably. Returns how many.
    fn write_home(
        &self,
        device: &dyn Device,
        blocks: u64,
        amend: impl Fn(BlockNumber, &mut [u8]),
    ) -> Result<u64, JournalError> {
        let failed = "replaying the journal";
        let homes = self.survivors.range(..BlockNumber(blocks));
        let mut written = 0;
        for &home in homes.map(|(home, _)| home) {
            let mut bytes = self.read(device, home).map_err(JournalError::io(failed))?;
            amend(home, &mut bytes);
            device
                .write_at(home.get() * u64::from(self.area.block_size()), &bytes)
                .map_err(JournalError::io(failed))?;
            written += 1;
        }
        device.flush().map_err(JournalError::io(failed))?;
        Ok(written)
    }

    /// The bytes that one of the survivors brings home.
    fn read(&self, device: &dyn Device, home: BlockNumber) -> io::Result<Vec<u8>> {
        let log = LogReader {
            device,
            area: &self.area,
            format: self.format,
            ring: self.ring,
        };
        self.survivors[&home].read(&log)
    }
}

/// Fails unless we know all features of a journal that we write to.
pub(crate) fn check_writable(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if let Some(features) = superblock.incompat.unknown() {
        return Err(JournalError::Unsupported(features));
    }
    match superblock.read_only_compat.unknown() {
        Some(features) => Err(JournalError::Unsupported(features)),
        None => Ok(()),
    }
}

fn check_supported(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if let Some(features) = superblock.incompat.unknown() {
        return Err(JournalError::Unsupported(features));
    }
    let unguarded = superblock.incompat.contains(JournalIncompat::ASYNC_COMMIT)
        && !superblock.is_summed()
        && !superblock.compat.contains(JournalCompat::CHECKSUM)
        && superblock.start != 0;
    if unguarded {
        let what = "asynchronous commits without checksums";
        return Err(JournalError::Unsupported(what.into()));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
