//! A set of changed blocks, all or none, on an image that is not mounted.
//!
//! Who has worked on a copy in memory (an edit session does: a volume over a device that keeps what
//! is written to itself) ends up with blocks whose home is in use, and blocks that were free. The
//! latter can be written as they are: nobody looks there. The former go through the journal as one
//! transaction: before its commit record is durable the image is what it was, after that it is what
//! it is meant to be, since whoever opens it next replays the journal.
//!
//! The steps: `recover` is set in the superblock and made durable, which also makes durable what
//! was written to free blocks; the transaction is committed; the blocks go home; the log is emptied;
//! `recover` is cleared. The new superblock is one of the blocks, and keeps `recover` until the end.

use std::sync::Arc;

use pext4_block::{Device, Page};
use pext4_jbd2::Whole;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

use super::{check_shape, recovery, superblock};
use crate::error::{Error, Result};
use crate::options::MountOptions;
use crate::store::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

/// The journal of an image that is not mounted, ready for one transaction.
pub struct OfflineJournal {
    device: Arc<dyn Device>,
    superblock: Superblock,
    geometry: Geometry,
    whole: Whole,
    journal_blocks: Vec<std::ops::Range<u64>>,
}

/// What has become of blocks that were not all written home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The image is the old one.
    Nothing,
    /// It is the old one or the new one, as whoever opens it next finds out.
    AllOrNothing,
    /// It is the new one as soon as somebody opens it for writing.
    InTheLog,
}

/// Why blocks were not written home, and what has become of them.
#[derive(Debug)]
pub struct NotWritten {
    /// What has become of them.
    pub written: Written,
    /// Why.
    pub error: Error,
}

impl Written {
    fn because(self, error: impl Into<Error>) -> NotWritten {
        NotWritten {
            written: self,
            error: error.into(),
        }
    }
}

impl OfflineJournal {
    /// The journal of an image; `None` if it has none.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the journal is not empty (open and close a volume to replay it) or of a kind
    /// that is not written, `Corrupt`, `Io`.
    pub fn open(device: Arc<dyn Device>) -> Result<Option<Self>> {
        let mut options = MountOptions::default();
        let superblock = superblock::read(&*device, &mut options, &mut Vec::new())?;
        let geometry = check_shape(&superblock, &*device)?;
        if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        if superblock.journal_inode.get() == 0 {
            return Err(Error::Unsupported("an external journal".to_owned()));
        }
        let (mut log, journal_blocks) = recovery::log_of(&device, &superblock, geometry, &options)?;
        if superblock.features.incompat.contains(Incompat::RECOVER) {
            let what = "a transaction in a journal that has to be replayed first";
            return Err(Error::Unsupported(what.to_owned()));
        }
        if log.superblock.start != 0 {
            // The superblock says that what is in it is of no concern.
            pext4_jbd2::recovery::discard(&*device, &log.area, &mut log.superblock)?;
        }
        let whole = Whole::open(Arc::clone(&device), log)?;
        Ok(Some(Self {
            device,
            superblock,
            geometry,
            whole,
            journal_blocks,
        }))
    }

    /// Whether a transaction of this many blocks fits.
    #[must_use]
    pub fn fits(&self, blocks: usize) -> bool {
        self.whole.fits(blocks)
    }

    /// Whether a block belongs to the journal.
    #[must_use]
    pub fn owns(&self, block: BlockNumber) -> bool {
        let is_in = |run: &std::ops::Range<u64>| run.contains(&block.get());
        self.journal_blocks.iter().any(is_in)
    }

    /// Writes the blocks, all or none, durably. What was written before to blocks that the image
    /// does not use is durable before them.
    ///
    /// # Errors
    ///
    /// `Journal` if they do not fit, before anything is written; `Corrupt` if the superblock among
    /// them is none; `Io` or `Journal` of the device, with what has become of the blocks.
    pub fn write(
        mut self,
        mut blocks: Vec<(BlockNumber, Page)>,
    ) -> std::result::Result<(), NotWritten> {
        let new = match self.new_superblock(&mut blocks) {
            Ok(Some(new)) => new,
            Ok(None) => self.superblock.clone(),
            Err(error) => return Err(Written::Nothing.because(error)),
        };
        if !self.whole.fits(blocks.len()) {
            // It says by how much.
            let told = self.whole.commit(blocks);
            return told.map_err(|error| Written::Nothing.because(error));
        }
        self.superblock.features.incompat |= Incompat::RECOVER;
        self.write_superblock(&self.superblock)
            .map_err(|error| Written::Nothing.because(error))?;
        self.whole
            .commit(blocks)
            .map_err(|error| Written::AllOrNothing.because(error))?;
        let (device, whole) = (Arc::clone(&self.device), self.whole);
        whole
            .finish()
            .map_err(|error| Written::InTheLog.because(error))?;
        device
            .write_at(SUPERBLOCK_OFFSET, &new.encode())
            .and_then(|()| device.flush())
            .map_err(|error| Written::InTheLog.because(error))
    }

    /// The superblock among the blocks, if it is there; it stays there with `recover` set.
    fn new_superblock(&self, blocks: &mut [(BlockNumber, Page)]) -> Result<Option<Superblock>> {
        let block_size = u64::from(self.geometry.block_size);
        let home = BlockNumber(SUPERBLOCK_OFFSET / block_size);
        let start = usize::try_from(SUPERBLOCK_OFFSET % block_size).expect("below the block size");
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

    fn write_superblock(&self, superblock: &Superblock) -> Result<()> {
        self.device
            .write_at(SUPERBLOCK_OFFSET, &superblock.encode())?;
        Ok(self.device.flush()?)
    }
}
