//! Writes a set of changed blocks, all or none, to an image that is not mounted.
//!
//! A caller that has changed a copy in memory (such as an edit session: a volume over a device that
//! keeps writes in memory) has two kinds of changed blocks: those that the image on disk uses, and
//! those that are free there. It can write the free ones directly, since nothing reads them. The
//! used ones go through the journal as one transaction: before its commit record is durable, the
//! image is the old one; after that it is the new one, since the next mount replays the journal.
//!
//! The steps: empty a log whose content does not count; set `recover` in the superblock and flush,
//! which also makes the blocks durable that the caller has written directly; commit the
//! transaction; write the blocks home; empty the log; clear `recover`. The new superblock is
//! usually one of the blocks, and keeps `recover` until the last step. A failure before the commit
//! record undoes what was done: it empties the log and clears `recover`. All of these blocks were
//! written before, so a full host does not prevent that.

use std::fmt;
use std::sync::Arc;

use pext4_block::{Device, FailStopDevice, Page};
use pext4_jbd2::recovery::{declare_empty, discard};
use pext4_jbd2::{Committed, LogArea, OfflineTransaction};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::superblock::{
    OFFSET as SUPERBLOCK_OFFSET, SIZE as SUPERBLOCK_SIZE, Superblock, place as superblock_place,
};

use super::{check_shape, features, recovery, superblock};
use crate::error::{Error, Result};
use crate::options::MountOptions;

/// The journal of an image that is not mounted, ready for one transaction.
pub struct OfflineJournal {
    device: Arc<dyn Device>,
    superblock: Superblock,
    geometry: Geometry,
    transaction: OfflineTransaction,
    area: LogArea,
    /// As on the device. If it has a start, the log holds what does not count, since the superblock
    /// has no `recover`: it is emptied before the superblock gets that.
    log: JournalSuperblock,
}

impl fmt::Debug for OfflineJournal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OfflineJournal")
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

/// The state of the image after [`OfflineJournal::write`] has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The image is the old one.
    NotCommitted,
    /// The content of the image is the old one, but the superblock may have `recover`, and the log
    /// a beginning: the next mount for writing replays a log without a transaction.
    Abandoned,
    /// The image is the old one or the new one; the next mount finds out which.
    Unknown,
    /// The transaction is durable in the log: the next mount for writing makes the image the new
    /// one.
    Committed,
}

/// Why [`OfflineJournal::write`] failed, and the state of the image.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {outcome}")]
#[non_exhaustive]
pub struct CommitError {
    /// The state of the image.
    pub outcome: CommitOutcome,
    /// The cause.
    #[source]
    pub error: Error,
}

impl fmt::Display for CommitOutcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::NotCommitted => "nothing was changed",
            Self::Abandoned => {
                "nothing was changed, but the next mount may have an empty journal to replay"
            }
            Self::Unknown => "the change is made or not, as the next mount will find",
            Self::Committed => "the change is made as soon as the image is opened for writing",
        })
    }
}

impl CommitOutcome {
    fn because(self, error: impl Into<Error>) -> CommitError {
        CommitError {
            outcome: self,
            error: error.into(),
        }
    }
}

impl CommitError {
    /// The failure of a transaction that is not durable. What was done for it has been undone, or
    /// that failed too.
    fn uncommitted(error: impl Into<Error>, undone: Result<()>) -> Self {
        let outcome = match undone {
            Ok(()) => CommitOutcome::NotCommitted,
            Err(_) => CommitOutcome::Abandoned,
        };
        outcome.because(error)
    }
}

impl OfflineJournal {
    /// What to tell whoever writes to the image: whether that drops what the log holds.
    #[must_use]
    pub fn note(&self) -> Option<&'static str> {
        (self.log.start != 0).then_some(recovery::IGNORED_LOG)
    }

    /// The superblock with which a mount for writing would begin: as the replay of the journal
    /// leaves it, with the error state if the journal stopped with an error. Nothing is written.
    ///
    /// # Errors
    ///
    /// Those for which a mount refuses the image before it replays the journal.
    pub fn superblock_after_replay(device: Arc<dyn Device>) -> Result<Superblock> {
        let mut options = MountOptions::default();
        let mut notes = Vec::new();
        let found = superblock::read(&*device, &mut options, &mut notes)?;
        let before = found.to_seek_the_log();
        features::refuse_unreadable(before)?;
        let geometry = check_shape(before, &*device)?;
        let mut journal = recovery::find_journal(device, before, geometry, &options, &mut notes)?;
        let view = journal.view(&found, &options)?;
        let mut after = found.as_replayed(&*view, &mut options, &mut notes)?;
        superblock::keep_errors(&mut after, before, journal.had_stopped);
        Ok(after)
    }

    /// The journal of an image; `None` if it has none.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the journal must be replayed first (open and close a volume), is external,
    /// or uses an unknown feature; `Corrupt`; `Io`.
    pub fn open(device: Arc<dyn Device>) -> Result<Option<Self>> {
        // No flush after one that failed is trusted, also not to undo what was done.
        let device: Arc<dyn Device> = Arc::new(FailStopDevice::new(device));
        let mut options = MountOptions::default();
        let superblock = superblock::read(&*device, &mut options, &mut Vec::new())?;
        let superblock = superblock.confirmed(&*device)?;
        features::refuse_unreadable(&superblock)?;
        let geometry = check_shape(&superblock, &*device)?;
        if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let (mut log, _) = recovery::log_of(&device, &superblock, geometry, &options)?;
        if superblock.features.has_incompat(Incompat::RECOVER) {
            let what = "a transaction in a journal that has to be replayed first";
            return Err(Error::unsupported(what));
        }
        if log.superblock.errno != 0 {
            let what = "a journal that stopped with an error: let `e2fsck -f` repair it first";
            return Err(Error::unsupported(what));
        }
        let (area, as_found) = (log.area.clone(), log.superblock.clone());
        // Without `recover` the content of the log does not count.
        if as_found.start != 0 {
            declare_empty(&area, &mut log.superblock).map_err(Error::opening)?;
        }
        let transaction = OfflineTransaction::open(Arc::clone(&device), log);
        let transaction = transaction.map_err(Error::opening)?;
        Ok(Some(Self {
            device,
            superblock,
            geometry,
            transaction,
            area,
            log: as_found,
        }))
    }

    /// Whether a transaction of `blocks` blocks fits the log.
    #[must_use]
    pub fn fits(&self, blocks: usize) -> bool {
        self.transaction.fits(blocks)
    }

    /// Durably writes all of the blocks, or none. Blocks that the caller has written directly
    /// before become durable before them.
    ///
    /// # Errors
    ///
    /// `Journal` if they do not fit and `Corrupt` if the superblock among them is invalid, both
    /// before anything is written; `Io` or `Journal` if the device fails.
    pub fn write(
        self,
        mut blocks: Vec<(BlockNumber, Page)>,
    ) -> std::result::Result<(), CommitError> {
        let new = match self.new_superblock(&mut blocks) {
            Ok(Some(new)) => new,
            Ok(None) => self.superblock.clone(),
            Err(error) => return Err(CommitOutcome::NotCommitted.because(error)),
        };
        let device = Arc::clone(&self.device);
        self.commit(blocks)?
            .finish()
            .map_err(|error| CommitOutcome::Committed.because(error))?;
        write_superblock(&*device, &new).map_err(|error| CommitOutcome::Committed.because(error))
    }

    /// Sets `recover` and makes the blocks durable in the log.
    fn commit(
        mut self,
        blocks: Vec<(BlockNumber, Page)>,
    ) -> std::result::Result<Committed, CommitError> {
        let device = &*self.device;
        self.transaction
            .check(&blocks)
            .map_err(|error| CommitOutcome::NotCommitted.because(error))?;
        if self.log.start != 0 {
            discard(device, &self.area, &mut self.log)
                .map_err(|error| CommitOutcome::NotCommitted.because(Error::opening(error)))?;
        }
        let mut unclean = self.superblock.clone();
        unclean.features.incompat |= Incompat::RECOVER;
        if let Err(error) = write_superblock(device, &unclean) {
            let undone = write_superblock(device, &self.superblock);
            return Err(CommitError::uncommitted(error, undone));
        }
        match self.transaction.commit(blocks) {
            Ok(committed) => Ok(committed),
            Err(failure) if failure.may_be_durable => {
                Err(CommitOutcome::Unknown.because(failure.error))
            }
            Err(failure) => {
                // The log first: without `recover` a log with a start would be a stale one.
                let undone = discard(device, &self.area, &mut self.log)
                    .map_err(Error::from)
                    .and_then(|()| write_superblock(device, &self.superblock));
                Err(CommitError::uncommitted(failure.error, undone))
            }
        }
    }

    /// The superblock among the blocks, if there is one; sets `recover` in the copy among the
    /// blocks.
    fn new_superblock(&self, blocks: &mut [(BlockNumber, Page)]) -> Result<Option<Superblock>> {
        let (home, offset) = superblock_place(self.geometry.block_size);
        let start = offset as usize;
        let Some((_, page)) = blocks.iter_mut().find(|(block, _)| *block == home) else {
            return Ok(None);
        };
        let slot = &mut page.make_mut()[start..start + SUPERBLOCK_SIZE];
        let bytes: &[u8; SUPERBLOCK_SIZE] = (&*slot).try_into().expect("cut to this length");
        let new = Superblock::decode(bytes)?;
        let mut meanwhile = new.clone();
        meanwhile.features.incompat |= Incompat::RECOVER;
        slot.copy_from_slice(&meanwhile.encode());
        Ok(Some(new))
    }
}

/// Writes the superblock durably.
fn write_superblock(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    device.write_at(SUPERBLOCK_OFFSET, &superblock.encode())?;
    Ok(device.flush()?)
}
