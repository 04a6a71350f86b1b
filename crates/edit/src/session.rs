//! An edit session: any number of changes to an image, and then all of them or none.
//!
//! Life cycle: a session is opened over an image, which it locks. Changes are applied and visible
//! through [`EditSession::volume`] at once. [`EditSession::prepare`] ends the changes and decides
//! which way they go to the image, and [`Prepared::commit`] writes them. If the session is dropped
//! before that, the image has not changed, except that its journal was replayed if it needed
//! replay, and that free blocks may hold other bytes: zeroes, and no space of the host, if the
//! image is sparse.
//!
//! The file system runs over a [`Staging`] device without a log: what it commits and writes home
//! stays in memory (or in free blocks of the image). The result is one set of changed blocks, which
//! is applied in one of two ways.
//!
//! - *A transaction.* Blocks whose home is free are written there; all others are one transaction
//!   of the image's journal ([`OfflineJournal`]).
//! - *A clone.* If there is no journal or it is too small, the changes go to a copy of the image
//!   file ([`EditedClone`]), which is renamed into place at the end. A session that outgrows the
//!   journal while it works changes over by itself, and nothing needs to be done again. Without a
//!   journal it does so once it holds [`EditOptions::memory`], else at its end: an edit that fails
//!   or changes nothing copies nothing.
//!
//! One thread at a time uses a session. With a fixed time it gives the same bytes for the same
//! image and the same changes, on every machine: the clock is held, generations are counted, and
//! commits happen at places that depend on the changes alone.

mod ending;
mod opening;
mod options;
mod prepared;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_block::{FileDevice, Phase, Progress, loops};
use pext4_fs::{OfflineJournal, Time, Volume};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::Superblock;
use pext4_sync::{time, topology};

use crate::change::PutTogether;
use crate::edited_clone::EditedClone;
use crate::error::{EditError, FsContext, HostContext, ImageContext, Result};
use crate::staging::Staging;
use crate::tune::Tuning;

pub use options::{EditOptions, OnClone, Way};
pub use prepared::{Plan, Prepared};

/// Steps (see [`EditSession::step`]) between two commits: few enough that the journal never commits
/// by itself.
const STEPS_PER_COMMIT: u32 = 128;

/// Why an image without a journal gets no transaction.
const NO_JOURNAL: &str = "the image has no journal";

/// An open image and changes to it that are not committed yet.
#[must_use = "nothing is changed unless it is prepared and committed"]
pub struct EditSession {
    /// The image's name in errors.
    name: PathBuf,
    /// The image's file, if it is one.
    file: Option<Arc<FileDevice>>,
    staging: Arc<Staging>,
    journal: Option<OfflineJournal>,
    /// [some until prepared]
    volume: Option<Volume>,
    /// The superblock before the first change.
    before: Superblock,
    block_size: u32,
    options: EditOptions,
    clone: RefCell<Option<(EditedClone, String)>>,
    steps: Cell<u32>,
    /// The number of files that were created, changed or removed.
    changed_files: Cell<u64>,
    /// Whether a change failed, of which a part may have been applied: the session can only end.
    has_failed: bool,
    notes: Vec<String>,
    pub(crate) put_together: PutTogether,
    tuning: Tuning,
}

/// A session may be given to another thread; one at a time uses it.
const _: () = {
    const fn is_given<T: Send>() {}
    is_given::<EditSession>();
};

impl fmt::Debug for EditSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EditSession")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl EditSession {
    /// The file system with the changes so far. Changes that are made here directly belong to the
    /// session too, but only those by [`EditSession::apply`](crate::EditSession::apply) are
    /// deterministic.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        self.volume
            .as_ref()
            .expect("it is there until the session is consumed")
    }

    /// Notes for the user: whether a journal was replayed or orphans were deleted, and what was
    /// left out of a change.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The progress of the session, which other threads may read while it works.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.options.progress)
    }

    /// The superblock before the first change.
    pub(crate) fn superblock_before(&self) -> &Superblock {
        &self.before
    }

    /// An edit of this image that is refused.
    pub(crate) fn refused(&self, problem: &str) -> EditError {
        EditError::Refused(format!("{}: {problem}", self.name.display()))
    }

    /// Adds changes of the superblock, which were checked.
    pub(crate) fn add_tuning(&mut self, tuning: &Tuning) {
        self.tuning = tuning.or(&self.tuning);
    }

    /// Adds a note for the user.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Whether this device and inode number are those of the image's file, or of the clone that the
    /// session works on.
    pub(crate) fn is_edited_file(&self, device: u64, inode: u64) -> bool {
        let is_image = |file: &Arc<FileDevice>| file.is_stored_in(device, inode);
        let is_clone = |(clone, _): &(EditedClone, String)| clone.is_stored_in(device, inode);
        self.file.as_ref().is_some_and(is_image)
            || self.clone.borrow().as_ref().is_some_and(is_clone)
    }

    /// Whether what begins at a byte of a file is the image of this session, under any name.
    pub(crate) fn is_of(&self, image: &Path, offset: u64) -> bool {
        self.file.as_ref().is_some_and(|file| {
            let start = file.range().map_or(0, |range| range.start);
            loops::are_same_place((file.path(), start), (image, offset))
        })
    }

    /// Whether a path leads to the file that the image of this session is a part of, or is.
    pub(crate) fn is_beside(&self, image: &Path) -> bool {
        let metadata = fs::metadata(image);
        let is_edited = |found: &fs::Metadata| self.is_edited_file(found.dev(), found.ino());
        metadata.as_ref().is_ok_and(is_edited)
    }

    /// Whether there may be directories in which case does not matter.
    pub(crate) fn folds_names(&self) -> bool {
        self.before.features.has_incompat(Incompat::CASEFOLD)
    }

    /// The time of all time stamps, if it is fixed.
    pub(crate) fn fixed_time(&self) -> Option<Time> {
        self.options.time.map(|time| Time {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: time.subsec_nanos(),
        })
    }

    /// Pins this thread to a shard, and holds its clock if the time is fixed, until the guard is
    /// dropped.
    pub(crate) fn pin_thread(&self) -> impl Sized + use<> {
        pin_thread(&self.options)
    }

    /// Makes a change, and remembers if it failed, or panicked. Errors name the image.
    pub(crate) fn change<R>(&mut self, make: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let _pinned = self.pin_thread();
        let had_failed = std::mem::replace(&mut self.has_failed, true);
        let made = make(self);
        self.has_failed = had_failed || made.is_err();
        made.in_image(self.file.as_deref().map(FileDevice::path))
    }

    /// Counts an inode that was created, changed or removed, or one write of data. Every
    /// [`STEPS_PER_COMMIT`] steps it commits, so that commits depend on the changes alone, and
    /// switches to a clone if the journal has become too small.
    fn step(&self) -> Result<()> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps.is_multiple_of(STEPS_PER_COMMIT) {
            return self.sync();
        }
        // Without a journal data is kept in memory too, which may exceed it before the next commit.
        match self.journal {
            Some(_) => Ok(()),
            None => self.switch_to_clone_if_full(),
        }
    }

    /// A step for a file that was created, changed or removed.
    pub(crate) fn step_file(&self) -> Result<()> {
        self.changed_files.set(self.changed_files.get() + 1);
        self.options.progress.count(1, 0)?;
        self.step()
    }

    /// A step for data that was written.
    pub(crate) fn step_data(&self, bytes: usize) -> Result<()> {
        self.options.progress.count(0, bytes as u64)?;
        self.step()
    }

    /// Commits, after which freed blocks can be used again.
    pub(crate) fn sync(&self) -> Result<()> {
        self.volume().sync().with_image(&self.name)?;
        self.switch_to_clone_if_full()
    }

    /// Switches to a clone if the blocks written so far do not fit into a transaction, or without a
    /// journal into the memory.
    fn switch_to_clone_if_full(&self) -> Result<()> {
        if self.staging.is_on_clone() {
            return Ok(());
        }
        let is_clone_wanted = self.options.way == Way::Clone;
        let held = self.staging.held().saturating_mul(self.block_size as usize);
        if self.journal.is_none() && !is_clone_wanted && held <= self.options.memory {
            return Ok(());
        }
        match self.reason_for_clone(self.staging.used()) {
            Some(reason) => self.switch_to_clone(reason),
            None => Ok(()),
        }
    }

    /// Why a session with so many changed blocks needs a clone; `None` if it does not.
    fn reason_for_clone(&self, blocks: usize) -> Option<String> {
        let fits = |journal: &OfflineJournal| journal.fits(blocks);
        match (&self.journal, self.options.way) {
            (_, Way::Clone) => Some("as asked for".to_owned()),
            (None, _) => Some(NO_JOURNAL.to_owned()),
            (Some(journal), _) if !fits(journal) => {
                Some(format!("{blocks} blocks do not fit into the journal"))
            }
            _ => None,
        }
    }

    /// Refuses an image at once to which no change can go: it has no journal, and there is no
    /// clone.
    fn refuse_without_journal_or_clone(&self) -> Result<()> {
        match self.journal {
            None if self.file_to_clone().is_none() => Err(self.no_transaction(NO_JOURNAL)),
            _ => Ok(()),
        }
    }

    /// The image's file, if a clone of it may take its place. A block device has only its own
    /// place.
    fn file_to_clone(&self) -> Option<&Arc<FileDevice>> {
        let file = self.file.as_ref()?;
        (self.options.way != Way::Transaction && !file.is_block_device()).then_some(file)
    }

    /// The error of changes that fit no transaction where there is no clone.
    fn no_transaction(&self, reason: &str) -> EditError {
        let is_block_device = |file: &Arc<FileDevice>| file.is_block_device();
        let problem = match self.file.as_ref().map(is_block_device) {
            Some(true) if self.journal.is_none() => {
                "it has no journal, and a block device cannot be replaced by a copy: add one with \
                 `tune2fs -j`, or mount it"
                    .to_owned()
            }
            Some(true) if self.options.way == Way::Clone => {
                "a block device cannot be replaced by a copy: leave the choice of the way to the \
                 edit"
                    .to_owned()
            }
            Some(true) => format!(
                "it cannot be made in one transaction: {reason}; and a block device cannot be \
                 replaced by a copy: split the edit, or give the image a larger journal"
            ),
            Some(false) => {
                format!("it cannot be made in one transaction: {reason}; a clone could take it")
            }
            None => format!("it cannot be made in one transaction: {reason}"),
        };
        self.refused(&problem)
    }

    fn switch_to_clone(&self, reason: String) -> Result<()> {
        let Some(file) = self.file_to_clone() else {
            return Err(self.no_transaction(&reason));
        };
        if let Some(on_clone) = &self.options.on_clone {
            on_clone(&reason);
        }
        let progress = &self.options.progress;
        let clone = progress.during(Phase::Cloning, || EditedClone::new(file, progress))?;
        self.staging
            .switch_to(clone.device())
            .with_host_file(file.path(), "write the changes to a copy")?;
        *self.clone.borrow_mut() = Some((clone, reason));
        Ok(())
    }
}

impl Drop for EditSession {
    fn drop(&mut self) {
        // The volume is closed when it is dropped, and that must not write to the image. After a
        // commit in place nothing is staged any more; after a clone, what is staged belongs to the
        // old image.
        self.staging.abandon();
    }
}

fn pin_thread(options: &EditOptions) -> impl Sized + use<> {
    (topology::pin(0), options.time.map(time::freeze))
}
