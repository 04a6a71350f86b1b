//! One transaction written without a running journal.
//!
//! For tools that have a prepared set of changed blocks and want all of them on the image or none.
//! There are no handles, threads or epochs. The transaction may fill the whole log, since nothing
//! else is in it.
//!
//! [`OfflineTransaction::commit`] makes the set durable in the log, by the same steps as any
//! commit: after it returns, a recovery shows all of the set; before its last flush, none of it.
//! [`Committed::finish`] then writes the blocks home and empties the log. Beforehand, the
//! caller must make durable what the blocks refer to outside of the set, and `recover` in the file
//! system's superblock (rule 11).

use std::fmt;
use std::sync::Arc;

use pext4_block::{Device, Page, write_pages};
use pext4_ondisk::journal::{JournalIncompat, RecordFormat};
use pext4_ondisk::{BlockNumber, Corrupt, Tid};

use crate::core::prepare;
use crate::error::JournalError;
use crate::journal::Log;
use crate::log_area::LogArea;
use crate::log_writer::LogWriter;
use crate::ring::Ring;
use crate::superblock::SuperblockFile;

/// One transaction for an empty log.
pub struct OfflineTransaction {
    device: Arc<dyn Device>,
    area: Arc<LogArea>,
    format: RecordFormat,
    ring: Ring,
    writer: LogWriter,
    superblock: SuperblockFile,
    tid: Tid,
}

/// Why a transaction was not made durable.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CommitFailure {
    /// The cause.
    #[source]
    pub error: JournalError,
    /// Whether it may be durable all the same: the failure came with its commit block or later. If
    /// not, no recovery finds it.
    pub may_be_durable: bool,
}

impl CommitFailure {
    /// Before the commit block was written.
    fn before(error: JournalError) -> Self {
        Self {
            error,
            may_be_durable: false,
        }
    }
}

impl From<CommitFailure> for JournalError {
    fn from(failure: CommitFailure) -> Self {
        failure.error
    }
}

/// A transaction that is durable in the log, but not home.
#[must_use]
pub struct Committed {
    transaction: OfflineTransaction,
    blocks: Vec<(BlockNumber, Page)>,
}

impl fmt::Debug for OfflineTransaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OfflineTransaction")
            .field("tid", &self.tid)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Committed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Committed")
            .field(&self.transaction)
            .finish()
    }
}

impl OfflineTransaction {
    /// Prepares a transaction for `log`, as recovery left it.
    ///
    /// # Errors
    ///
    /// If the log has not been recovered or uses unknown features.
    pub fn open(device: Arc<dyn Device>, log: Log) -> Result<Self, JournalError> {
        let tid = log.first_tid();
        let mut superblock = log.superblock;
        // The new features reach the disk with the start of the log.
        let prepared = prepare(&mut superblock, &*device)?;
        let log = Log { superblock, ..log };
        Ok(Self::prepared(device, log, tid, prepared))
    }

    /// Prepares the transaction `tid` that takes the place of the fast commits behind `log`, whose
    /// own transactions are home. Until it is durable, the area of the fast commits counts and must
    /// be found.
    pub(crate) fn of_fast_commits(
        device: Arc<dyn Device>,
        log: &Log,
        tid: Tid,
    ) -> Result<Self, JournalError> {
        let mut superblock = log.superblock.clone();
        superblock.start = 0;
        prepare(&mut superblock, &*device)?;
        superblock.incompat.insert(JournalIncompat::FAST_COMMIT);
        // Until then the log may still hold the beginning of another transaction of this number,
        // and only with this feature is its end judged as it was.
        let asynchronous = log.superblock.incompat & JournalIncompat::ASYNC_COMMIT;
        superblock.incompat.insert(asynchronous);
        let prepared = (RecordFormat::of(&superblock), Ring::of(&superblock));
        let log = Log {
            area: log.area.clone(),
            superblock,
            keeps_checksums: log.keeps_checksums,
        };
        Ok(Self::prepared(device, log, tid, prepared))
    }

    fn prepared(
        device: Arc<dyn Device>,
        log: Log,
        tid: Tid,
        (format, ring): (RecordFormat, Ring),
    ) -> Self {
        let Log {
            area,
            superblock,
            keeps_checksums,
        } = log;
        let area = Arc::new(area);
        let uuid = superblock.uuid;
        let writer = LogWriter::new(Arc::clone(&device), Arc::clone(&area), format, uuid, ring);
        let (home, place) = (Arc::clone(&device), Arc::clone(&area));
        let superblock = SuperblockFile::new(home, place, superblock, keeps_checksums);
        Self {
            device,
            area,
            format,
            ring,
            writer,
            superblock,
            tid,
        }
    }

    /// Whether a transaction of this many blocks fits the log.
    #[must_use]
    pub fn fits(&self, blocks: usize) -> bool {
        self.needs(blocks) <= self.ring.blocks() as usize
    }

    /// Blocks of the log that a transaction of this many blocks takes.
    fn needs(&self, blocks: usize) -> usize {
        self.format.footprint(blocks, 0)
    }

    /// Makes all of the blocks durable in the log, or none.
    ///
    /// # Errors
    ///
    /// `LogTooSmall` if they do not fit and `Corrupt` if one belongs to the journal, both before
    /// anything is written; `Io`, with whether the transaction may be durable.
    pub fn commit(
        mut self,
        mut blocks: Vec<(BlockNumber, Page)>,
    ) -> Result<Committed, CommitFailure> {
        blocks.sort_unstable_by_key(|(block, _)| *block);
        self.write_body(&blocks).map_err(CommitFailure::before)?;
        match self.writer.write_commit(self.tid, &blocks, &[]) {
            Ok(_) => Ok(Committed {
                transaction: self,
                blocks,
            }),
            Err(error) => Err(CommitFailure {
                error,
                may_be_durable: true,
            }),
        }
    }

    /// Writes everything but the commit block.
    fn write_body(&mut self, blocks: &[(BlockNumber, Page)]) -> Result<(), JournalError> {
        self.check(blocks)?;
        self.superblock.begin(self.writer.head(), self.tid)?;
        self.writer.write_body(self.tid, blocks, &[])
    }

    /// Looks at the blocks as [`Self::commit`] does before it writes anything.
    ///
    /// # Errors
    ///
    /// `LogTooSmall` if they do not fit the log, `Corrupt` if one belongs to the journal.
    pub fn check(&self, blocks: &[(BlockNumber, Page)]) -> Result<(), JournalError> {
        if !self.fits(blocks.len()) {
            return Err(JournalError::LogTooSmall {
                blocks: blocks.len(),
                needed: self.needs(blocks.len()),
                log: self.ring.blocks(),
            });
        }
        match blocks.iter().find(|(block, _)| self.area.contains(*block)) {
            None => Ok(()),
            Some((block, _)) => {
                let problem = "belongs to the journal and to something else";
                Err(Corrupt::new("block", problem).in_block(*block).into())
            }
        }
    }
}

impl Committed {
    /// Writes the blocks home and empties the log, durably.
    ///
    /// # Errors
    ///
    /// `Io`; the next recovery then writes the blocks home.
    pub fn finish(self) -> Result<(), JournalError> {
        let OfflineTransaction {
            device,
            superblock,
            tid,
            ..
        } = self.transaction;
        write_pages(&*device, &self.blocks)
            .and_then(|()| device.flush())
            .map_err(JournalError::io("writing a transaction home"))?;
        // The number that a recovery would have left, which may come instead of this.
        superblock.finish(tid.next().next())
    }
}
