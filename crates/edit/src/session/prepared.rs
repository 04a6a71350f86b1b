//! The end of an edit session: its changes are a set of blocks, and the way in which these go to
//! the image is decided. Nothing but [`Prepared::commit`] writes to it from here on.

use std::fmt;

use pext4_block::{CloneError, CloneMethod, leads_to};
use pext4_fs::CommitOutcome;

use super::EditSession;
use crate::edited_clone::from_clone;
use crate::error::{EditError, FsContext, Result};
use crate::staging::Changes;

/// How the changes of a session are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing has changed.
    Nothing,
    /// One transaction of the journal.
    Transaction {
        /// The number of blocks in it.
        blocks: usize,
        /// The number of blocks of new data, directories and trees that are written to free homes
        /// before it. Blocks that exceeded [`memory`](crate::EditOptions::memory) are not
        /// counted.
        free: usize,
    },
    /// A clone, renamed into place.
    Clone {
        /// How the image was copied.
        method: CloneMethod,
        /// Why a transaction was not possible.
        reason: String,
    },
}

/// Changes that are ready to be committed.
#[must_use = "nothing is changed unless it is committed"]
pub struct Prepared {
    pub(super) session: EditSession,
    pub(super) changes: Changes,
    /// Whether the superblock has changed otherwise than each edit changes it.
    pub(super) is_tuned: bool,
    pub(super) plan: Plan,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Prepared")
            .field("session", &self.session)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// How the changes will be applied.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How many objects the session changed: each name that was made, replaced, moved or removed,
    /// each time that attributes of an existing file were set, and the superblock. 0 if the plan is
    /// [`Plan::Nothing`]. Changes made on [`EditSession::volume`] directly do not count.
    #[must_use]
    pub fn changes(&self) -> u64 {
        match self.plan {
            Plan::Nothing => 0,
            _ => self.session.changed_files.get() + u64::from(self.is_tuned),
        }
    }

    /// Applies the changes durably.
    ///
    /// # Errors
    ///
    /// Errors of the device or the host. The image then has all of the changes or none: none,
    /// unless it is an [`EditError::Commit`], whose `outcome` tells. If the session is stopped
    /// before the first lasting write, or before a clone is renamed into place, it has none.
    pub fn commit(mut self) -> Result<Plan> {
        let _pinned = self.session.pin_thread();
        self.session.options.progress.check()?;
        match self.plan {
            Plan::Nothing => {}
            Plan::Transaction { .. } => {
                self.check_place()?;
                self.write_transaction()?;
            }
            Plan::Clone { .. } => {
                let clone = self.session.clone.take();
                let (clone, _) = clone.expect("a plan of a clone is made of one");
                clone.put_in_place(&self.session.options.progress)?;
            }
        }
        Ok(self.plan)
    }

    /// Fails if the path of the image leads elsewhere by now: the changes would be made in a file
    /// that nobody finds.
    fn check_place(&self) -> Result<()> {
        let Some(file) = &self.session.file else {
            return Ok(());
        };
        match leads_to(file.path(), file.file()).unwrap_or(false) {
            true => Ok(()),
            false => Err(from_clone(CloneError::Replaced(file.path().to_owned()))),
        }
    }

    fn write_transaction(&mut self) -> Result<()> {
        let session = &mut self.session;
        let free = std::mem::take(&mut self.changes.free);
        let freely = session.staging.write_free(&free);
        freely
            .map_err(pext4_fs::Error::from)
            .with_image(&session.name)?;
        let journal = session.journal.take();
        let journal = journal.expect("a plan of a transaction is made of one");
        let blocks = std::mem::take(&mut self.changes.used);
        // The transaction refers to these blocks, and a failure may leave it in the log.
        let written = session.staging.take_written();
        journal.write(blocks).map_err(|failed| {
            let uncommitted = [CommitOutcome::NotCommitted, CommitOutcome::Abandoned];
            if uncommitted.contains(&failed.outcome) {
                session.staging.give_back(&written);
            }
            EditError::Commit {
                path: session.name.clone(),
                outcome: failed.outcome,
                source: failed.error,
            }
        })
    }
}
