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
//! A session belongs to one thread. With a fixed time it gives the same bytes for the same image
//! and the same changes, on every machine: the clock is held, generations are counted, and commits
//! happen at places that depend on the changes alone.

mod prepared;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, loops};
use pext4_fs::options::{BusyGroups, Reserve, Scaling, StreamGoals, Width};
use pext4_fs::{MountOptions, OfflineJournal, Time, Volume};
use pext4_ondisk::checksum;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{self, ErrorRecord, State, Superblock};
use pext4_sync::{time, topology};

use crate::change::PutTogether;
use crate::edited_clone::EditedClone;
use crate::error::{EditError, FsContext, HostContext, Result};
use crate::free::{FreeMap, read_superblock};
use crate::progress::Progress;
use crate::staging::{Changes, Staging};
use crate::tune::Tuning;

pub use prepared::{Plan, Prepared};

/// Steps (see [`EditSession::step`]) between two commits: few enough that the journal never commits
/// by itself.
const STEPS_PER_COMMIT: u32 = 128;

/// Why an image without a journal gets no transaction.
const NO_JOURNAL: &str = "the image has no journal";

/// How a session may apply its changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// A transaction if the changes fit into one, else a clone.
    #[default]
    Auto,
    /// A transaction. If the changes do not fit, that is an error.
    Transaction,
    /// A clone.
    Clone,
}

/// Gets the reason why an image is copied.
pub type OnClone = dyn Fn(&str) + Send + Sync;

/// How a session works.
#[derive(Clone)]
pub struct EditOptions {
    /// The time (since 1970) of all time stamps. With it the same edit of the same image gives the
    /// same bytes.
    pub time: Option<Duration>,
    /// How to apply the changes.
    pub way: Way,
    /// How long to wait for another program that uses the image.
    pub wait: Duration,
    /// The maximum number of bytes of new data kept in memory. What exceeds it is written to free
    /// blocks of the image. Without a journal, of all changed blocks: what exceeds it is written to
    /// a clone.
    pub memory: usize,
    /// Called with the reason before the image is copied, which can take a while.
    pub on_clone: Option<Arc<OnClone>>,
    /// Counts what the session does, and can stop it.
    pub progress: Arc<Progress>,
}

impl Default for EditOptions {
    fn default() -> Self {
        Self {
            time: None,
            way: Way::Auto,
            wait: Duration::from_secs(5),
            memory: 64 << 20,
            on_clone: None,
            progress: Arc::default(),
        }
    }
}

impl fmt::Debug for EditOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EditOptions")
            .field("time", &self.time)
            .field("way", &self.way)
            .field("wait", &self.wait)
            .field("memory", &self.memory)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// An open image and changes to it that are not committed yet.
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
    progress: Arc<Progress>,
}

impl fmt::Debug for EditSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EditSession")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl EditSession {
    /// Opens an image for changes.
    ///
    /// # Errors
    ///
    /// The image cannot be opened, is in use, or is not an ext4 that this version writes.
    pub fn open(image: impl AsRef<Path>, options: &EditOptions) -> Result<Self> {
        let device = FileDevice::open(image, Access::ReadWrite, options.wait);
        Self::from_file(device.map_err(EditError::OpenImage)?, options)
    }

    /// Opens an image whose file was opened for writing, and so is locked.
    ///
    /// # Errors
    ///
    /// The image is not an ext4 that this version writes; the session was stopped while it copied
    /// the image.
    pub fn from_file(device: FileDevice, options: &EditOptions) -> Result<Self> {
        let device = Arc::new(device);
        let image = device.path().to_owned();
        let below = Arc::<FileDevice>::clone(&device);
        Self::start(below, Some(device), &image, options)
    }

    /// Opens an image on any device. Without a file there is no clone: changes that do not fit into
    /// a transaction are an error.
    ///
    /// # Errors
    ///
    /// As [`EditSession::open`].
    pub fn from_device(device: Arc<dyn Device>, options: &EditOptions) -> Result<Self> {
        Self::start(device, None, Path::new("image"), options)
    }

    fn start(
        below: Arc<dyn Device>,
        file: Option<Arc<FileDevice>>,
        name: &Path,
        options: &EditOptions,
    ) -> Result<Self> {
        let _pinned = pin_thread(options);
        let mut notes = Vec::new();
        // Before the replay, since a refused image must not be written. A torn superblock is
        // repaired by the replay, and a replay may bring a superblock with errors.
        if let Ok(unreplayed) = read_superblock(&*below) {
            refuse_noted_errors(&unreplayed, name)?;
        }
        replay_journal(&below, options, &mut notes).with_image(name)?;
        let before = read_superblock(&*below).with_image(name)?;
        refuse_noted_errors(&before, name)?;
        let journal = OfflineJournal::open(Arc::clone(&below)).with_image(name)?;
        let free = FreeMap::open(&*below).with_image(name)?;
        let block_size = 1024u32
            .checked_shl(before.log_block_size)
            .expect("the geometry was checked");
        let is_sparse = file.as_ref().is_some_and(|file| file.is_sparse());
        // Without a journal the changes go to a clone, so nothing is written to the image.
        let memory = journal.as_ref().map_or(usize::MAX, |_| options.memory);
        let staging = Staging::new(below, free, block_size, memory, is_sparse);
        let staging = Arc::new(staging);
        let over: Arc<dyn Device> = Arc::<Staging>::clone(&staging);
        let volume = Volume::open(over, volume_options(&before, options)).with_image(name)?;
        if volume.is_read_only() {
            let why = volume.notes().join("; ");
            let name = name.display();
            return Err(EditError::Refused(format!(
                "{name}: it cannot be edited: {why}"
            )));
        }
        let session = Self {
            name: name.to_owned(),
            file,
            staging,
            journal,
            volume: Some(volume),
            before,
            block_size,
            options: options.clone(),
            clone: RefCell::new(None),
            steps: Cell::new(0),
            changed_files: Cell::new(0),
            has_failed: false,
            put_together: PutTogether::default(),
            notes,
            tuning: Tuning::default(),
            progress: Arc::clone(&options.progress),
        };
        session.refuse_without_journal_or_clone()?;
        session.switch_to_clone_if_full()?;
        Ok(session)
    }

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
        Arc::clone(&self.progress)
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

    /// Makes a change, and remembers if it failed.
    pub(crate) fn change<R>(&mut self, make: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let _pinned = self.pin_thread();
        let made = make(self);
        self.has_failed |= made.is_err();
        made
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
        self.progress.add_file()?;
        self.step()
    }

    /// A step for data that was written.
    pub(crate) fn step_data(&self, bytes: usize) -> Result<()> {
        self.progress.add_bytes(bytes)?;
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
        let clone = self
            .progress
            .copying(|| EditedClone::new(file, &self.progress))?;
        self.staging
            .switch_to(clone.device())
            .with_host_file(file.path(), "write the changes to a copy")?;
        *self.clone.borrow_mut() = Some((clone, reason));
        Ok(())
    }

    /// Ends the changes and decides which way they go to the image.
    ///
    /// # Errors
    ///
    /// `ChangeFailed` after a change that failed; errors of the device, or of the host if a clone
    /// is needed; the changes met damage in the image. The image has not changed then.
    pub fn prepare(mut self) -> Result<Prepared> {
        let _pinned = self.pin_thread();
        if self.has_failed {
            return Err(EditError::ChangeFailed);
        }
        let volume = self.volume.take().expect("only this takes it");
        volume.close().with_image(&self.name)?;
        self.refuse_new_errors()?;
        self.restore_mount_fields().with_image(&self.name)?;
        self.tuning.apply(&*self.staging).with_image(&self.name)?;
        let changes = self.staging.changes().map_err(pext4_fs::Error::from);
        let changes = changes.with_image(&self.name)?;
        let is_tuned = self.changes_superblock().with_image(&self.name)?;
        let plan = self.plan(&changes, is_tuned)?;
        Ok(Prepared {
            session: self,
            changes,
            is_tuned,
            plan,
        })
    }

    /// [`EditSession::prepare`] and [`Prepared::commit`].
    ///
    /// # Errors
    ///
    /// The errors of both.
    pub fn finish(self) -> Result<Plan> {
        self.prepare()?.commit()
    }

    /// Refuses the changes if damage was met while they were made. A removal goes on past damage as
    /// Linux does, and only notes it in the superblock: the image would then be one that the next
    /// edit refuses.
    fn refuse_new_errors(&self) -> Result<()> {
        let superblock = read_superblock(&*self.staging).with_image(&self.name)?;
        let is_new = superblock.error_count > self.before.error_count;
        if !is_new && !superblock.state.contains(State::ERRORS) {
            return Ok(());
        }
        Err(EditError::Refused(format!(
            "{}: {} was met, so nothing was changed; let `e2fsck -f` repair it first",
            self.name.display(),
            noted_damage(&superblock.last_error)
        )))
    }

    /// Restores the mount count, mount time and place of the last mount, since an edit is no mount.
    fn restore_mount_fields(&self) -> pext4_fs::Result<()> {
        let mut superblock = read_superblock(&*self.staging)?;
        superblock.mount_time = self.before.mount_time;
        superblock.mount_count = self.before.mount_count;
        superblock.last_mounted = self.before.last_mounted;
        let bytes = superblock.encode();
        Ok(self.staging.write_at(superblock::OFFSET, &bytes)?)
    }

    /// Decides on the way of the changes. Switches to a clone if they do not fit into a
    /// transaction; only blocks whose bytes differ from the image count.
    fn plan(&self, changes: &Changes, is_tuned: bool) -> Result<Plan> {
        if !self.staging.is_on_clone() {
            let home = superblock::OFFSET / u64::from(self.block_size);
            if !is_tuned && changes.used.iter().all(|(block, _)| *block == home) {
                return Ok(Plan::Nothing);
            }
            let Some(reason) = self.reason_for_clone(changes.used.len()) else {
                return Ok(Plan::Transaction {
                    blocks: changes.used.len(),
                    free: changes.free.len(),
                });
            };
            self.switch_to_clone(reason)?;
        }
        let clone = self.clone.borrow();
        let (clone, reason) = clone.as_ref().expect("the session has switched to it");
        Ok(Plan::Clone {
            method: clone.method(),
            reason: reason.clone(),
        })
    }

    /// Whether the superblock differs in more than the time of the last write and the counts, which
    /// every edit changes, and with them the checksum.
    fn changes_superblock(&self) -> pext4_fs::Result<bool> {
        let mut now = read_superblock(&*self.staging)?;
        now.write_time = self.before.write_time;
        now.kbytes_written = self.before.kbytes_written;
        now.free_blocks = self.before.free_blocks;
        now.free_inodes = self.before.free_inodes;
        Ok(now.encode() != self.before.encode())
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

/// Refuses an image whose superblock notes errors.
fn refuse_noted_errors(superblock: &Superblock, name: &Path) -> Result<()> {
    if !superblock.state.contains(State::ERRORS) {
        return Ok(());
    }
    Err(EditError::Refused(format!(
        "{}: it notes errors of its file system; let `e2fsck -f` repair it first",
        name.display()
    )))
}

/// What a superblock notes about an error: the structure, and where it is.
fn noted_damage(error: &ErrorRecord) -> String {
    let name = error.function.split(|&byte| byte == 0).next();
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    let numbers = [("inode", u64::from(error.inode)), ("block", error.block)];
    let places: Vec<String> = numbers
        .into_iter()
        .filter(|&(_, number)| number != 0)
        .map(|(what, number)| format!("{what} {number}"))
        .collect();
    match places.is_empty() {
        true => format!("damage ({name})"),
        false => format!("damage ({name}, {})", places.join(", ")),
    }
}

/// Replays the journal if it needs replay: the edit begins with the replayed image.
fn replay_journal(
    below: &Arc<dyn Device>,
    options: &EditOptions,
    notes: &mut Vec<String>,
) -> pext4_fs::Result<()> {
    let superblock = read_superblock(&**below);
    // A mount also repairs a torn superblock.
    let is_clean = superblock.as_ref().is_ok_and(|superblock| {
        let dirty = superblock.features.has_incompat(Incompat::RECOVER);
        !dirty && superblock.state.contains(State::CLEAN)
    });
    if is_clean {
        return Ok(());
    }
    let no_journal = superblock.is_ok_and(|superblock| {
        let journal = pext4_ondisk::feature::Compat::HAS_JOURNAL;
        !superblock.features.has_compat(journal)
    });
    if no_journal {
        let problem = "was not closed cleanly and has no journal";
        return Err(pext4_ondisk::Corrupt::new("file system", problem).into());
    }
    let mount = MountOptions {
        commit_interval: NEVER,
        deterministic: options.time.map(|_| 0),
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::clone(below), mount)?;
    notes.extend_from_slice(volume.notes());
    volume.close()
}

/// Longer than any edit.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

fn volume_options(before: &Superblock, options: &EditOptions) -> MountOptions {
    let first = match options.time {
        // The superblock's counts or times differ from edit to edit, so this number does too.
        Some(_) => checksum::crc32c(!0, &before.encode()),
        None => time::now().subsec_nanos() ^ time::since_epoch().subsec_nanos().rotate_left(2),
    };
    MountOptions {
        commit_interval: NEVER,
        bypass_journal: true,
        reserve: Reserve::Everybody,
        deterministic: Some(first),
        // There is one thread, and its allocations must not depend on what the committer does now.
        scaling: Scaling {
            busy_groups: BusyGroups::Wait,
            stream_goals: StreamGoals::Slots(Width::Fixed(1)),
            ..Scaling::FULL
        },
        ..MountOptions::default()
    }
}

fn pin_thread(options: &EditOptions) -> impl Sized + use<> {
    (topology::pin(0), options.time.map(time::freeze))
}
