//! What a replay would do, planned and checked before anything is written, and its writing.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use pext4_block::Device;
use pext4_ondisk::journal::fast_commit::Record;
use pext4_ondisk::journal::{JournalCompat, JournalIncompat, JournalSuperblock, RecordFormat};
use pext4_ondisk::{BlockNumber, Tid};

use super::scan::{self, LoggedBlock, Scan};
use super::{LogReader, fast_commits, survivors};
use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::ring::Ring;
use crate::superblock::{check_area, check_writable, write_superblock};

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

/// What a replay would do, with all checks of the log passed. Nothing has been written.
pub struct Replay {
    pub(super) area: LogArea,
    pub(super) format: RecordFormat,
    pub(super) ring: Ring,
    pub(super) survivors: BTreeMap<BlockNumber, LoggedBlock>,
    /// The versions of blocks that a later transaction writes again.
    pub(super) superseded: Vec<LoggedBlock>,
    /// The first transaction that was not committed.
    pub(super) next: Tid,
    /// The records of the fast commits behind the log, which belong to that transaction.
    pub(super) fast_commits: Vec<Vec<Record>>,
    pub(super) report: Recovered,
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
    /// As [`recover`](super::recover).
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
            Scan::empty(superblock.sequence)
        } else {
            scan::scan(&log, superblock)?
        };
        scan.check_homes(area, blocks)?;
        let selected = survivors::select(&log, superblock, &mut scan)?;
        let fast_commits = fast_commits::read(&log, superblock, scan.next)?;
        let report = Recovered {
            transactions: scan.transactions,
            blocks: selected.survivors.len() as u64,
            revoked: selected.revoked,
            fast_commits: u32::try_from(fast_commits.len()).unwrap_or(u32::MAX),
            errno: superblock.errno,
        };
        Ok(Self {
            area: area.clone(),
            format,
            ring,
            survivors: selected.survivors,
            superseded: selected.superseded,
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
    pub(super) fn write_home(
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
    pub(super) fn read(&self, device: &dyn Device, home: BlockNumber) -> io::Result<Vec<u8>> {
        let log = LogReader {
            device,
            area: &self.area,
            format: self.format,
            ring: self.ring,
        };
        self.survivors[&home].read(&log)
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
