//! An edit session: any number of changes to an image, and then all of them or none.
//!
//! Life: opened over an image, which it locks; changes are applied and can be seen through
//! [`EditSession::volume`] at once; [`EditSession::prepare`] ends the changes and tells which way
//! they will go to the image; [`Prepared::commit`] does it. Dropped at any moment before that,
//! nothing has happened to the image but that its journal, if it had to be, was replayed, and that
//! blocks that nobody uses may hold other bytes.
//!
//! The file system runs over a [`Staging`] device without a log: what it commits and writes home
//! stays in memory (or in free blocks of the image). The sum of it all is one set of changed
//! blocks, and that is made true in one of two ways.
//!
//! - *A transaction.* Blocks whose home is free are written there; all others are one transaction
//!   of the image's journal ([`OfflineJournal`]).
//! - *A clone.* Where there is no journal or it is too small, the changes go to a copy of the image
//!   file ([`Twin`]), which is renamed into place at the end. A session that outgrows the journal on
//!   its way changes over by itself, and nothing needs to be done again.
//!
//! A session belongs to one thread. Asked for a fixed time it gives the same bytes for the same
//! image and the same changes, on every machine: the clock is held, generations are counted, and
//! commits happen at places that depend on the changes alone.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, Page, loops};
use pext4_fs::options::{BusyGroups, Reserve, Scaling, StreamGoals, Width};
use pext4_fs::{CommitOutcome, MountOptions, OfflineJournal, Time, Volume};
use pext4_ondisk::superblock::{self, State, Superblock};
use pext4_ondisk::{BlockNumber, checksum};
use pext4_sync::{time, topology};

use crate::error::{At, EditError, On, Result};
use crate::free::{FreeMap, read_superblock};
use crate::progress::Progress;
use crate::staging::{Changes, Staging, write_blocks};
use crate::twin::{Made, Twin};

/// Inodes that are made or removed between two commits: few enough that no commit comes unasked.
const STEPS_PER_COMMIT: u32 = 128;

/// Which way a session may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// A transaction where it fits, else a clone.
    #[default]
    Auto,
    /// A transaction; where it does not fit that is an error.
    Transaction,
    /// A clone.
    Clone,
}

/// How a session works.
#[derive(Clone, Debug)]
pub struct EditOptions {
    /// All that is stamped is stamped with this time (since 1970), and the same edit of the same
    /// image gives the same bytes.
    pub time: Option<Duration>,
    /// Which way to take.
    pub way: Way,
    /// How long to wait for whoever uses the image.
    pub wait: Duration,
    /// Bytes of new data kept in memory; what is more is written to free blocks of the image at
    /// once.
    pub memory: usize,
    /// Is told before the image is copied, and why: that can take a while.
    pub tell: fn(&str),
    /// Where the session counts what it does, and where it can be asked to stop.
    pub progress: Arc<Progress>,
}

impl Default for EditOptions {
    fn default() -> Self {
        Self {
            time: None,
            way: Way::Auto,
            wait: Duration::from_secs(5),
            memory: 64 << 20,
            tell: |_| {},
            progress: Arc::default(),
        }
    }
}

/// What makes the changes of a session true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// There is nothing to do.
    Nothing,
    /// One transaction of the journal.
    Transaction {
        /// Blocks in it.
        blocks: usize,
        /// Blocks of new data, directories and trees, written beforehand where nobody looks; those
        /// not counted that were too many for memory.
        free: usize,
    },
    /// A clone, renamed into place.
    Clone {
        /// How it came to be.
        made: Made,
        /// Why no transaction does.
        reason: String,
    },
}

/// Changes to an image that are not its own yet.
pub struct EditSession {
    /// What errors call the image.
    name: PathBuf,
    /// The image's file, where it is one.
    file: Option<Arc<FileDevice>>,
    below: Arc<dyn Device>,
    staging: Arc<Staging>,
    journal: Option<OfflineJournal>,
    /// [some until prepared]
    volume: Option<Volume>,
    /// The superblock before the first change.
    before: Superblock,
    block_size: u32,
    options: EditOptions,
    twin: RefCell<Option<(Twin, String)>>,
    steps: Cell<u32>,
    notes: Vec<String>,
    progress: Arc<Progress>,
}

impl EditSession {
    /// Opens an image for changes.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is in use, is no ext4 or one that this version does not write.
    pub fn open(image: &Path, options: &EditOptions) -> Result<Self> {
        let device = FileDevice::open(image, Access::ReadWrite, options.wait);
        Self::over(device.map_err(EditError::Unopened)?, options)
    }

    /// Opens an image whose file was opened for writing, and so is locked.
    ///
    /// # Errors
    ///
    /// It is no ext4 or one that this version does not write; it was asked to stop while it was copied.
    pub fn over(device: FileDevice, options: &EditOptions) -> Result<Self> {
        let device = Arc::new(device);
        let image = device.path().to_owned();
        let below = Arc::<FileDevice>::clone(&device);
        Self::start(below, Some(device), &image, options)
    }

    /// Opens an image on any device. Without a file there is no clone: what does not fit into a
    /// transaction is an error.
    ///
    /// # Errors
    ///
    /// As [`EditSession::open`].
    pub fn on(device: Arc<dyn Device>, options: &EditOptions) -> Result<Self> {
        Self::start(device, None, Path::new("image"), options)
    }

    fn start(
        below: Arc<dyn Device>,
        file: Option<Arc<FileDevice>>,
        name: &Path,
        options: &EditOptions,
    ) -> Result<Self> {
        let _stand = stand_still(options);
        let mut notes = Vec::new();
        settle(&below, options, &mut notes).of(name)?;
        let before = read_superblock(&*below).of(name)?;
        if before.state.contains(State::ERRORS) {
            return Err(EditError::Whole(format!(
                "{}: it notes errors of its file system; let `e2fsck -f` repair it first",
                name.display()
            )));
        }
        let journal = OfflineJournal::open(Arc::clone(&below)).of(name)?;
        let free = FreeMap::open(&*below).of(name)?;
        let block_size = 1024u32
            .checked_shl(before.log_block_size)
            .expect("the geometry was checked");
        let staging = Staging::new(Arc::clone(&below), free, block_size, options.memory);
        let staging = Arc::new(staging);
        let over: Arc<dyn Device> = Arc::<Staging>::clone(&staging);
        let volume = Volume::open(over, volume_options(&before, options)).of(name)?;
        if volume.is_read_only() {
            let why = volume.notes().join("; ");
            let name = name.display();
            return Err(EditError::Whole(format!(
                "{name}: it cannot be edited: {why}"
            )));
        }
        let session = Self {
            name: name.to_owned(),
            file,
            below,
            staging,
            journal,
            volume: Some(volume),
            before,
            block_size,
            options: options.clone(),
            twin: RefCell::new(None),
            steps: Cell::new(0),
            notes,
            progress: Arc::clone(&options.progress),
        };
        session.look_at_room()?;
        Ok(session)
    }

    /// The file system as the changes so far have made it. Changes made here belong to the session
    /// too, but [`EditSession::apply`](crate::EditSession::apply) is the way that repeats exactly.
    ///
    /// # Panics
    ///
    /// Never: a session has its volume until it is consumed.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        self.volume
            .as_ref()
            .expect("it is there until the session is consumed")
    }

    /// What a person should know: a journal that was replayed, orphans that were finished.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How far the session is, to be looked at while it works.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Whether a path leads to the image of this session, by whatever name.
    pub(crate) fn is_of(&self, image: &Path) -> bool {
        let file = self.file.as_ref();
        file.is_some_and(|file| loops::are_same(file.path(), image))
    }

    /// The time by which everything is stamped, if it is fixed.
    pub(crate) fn fixed_time(&self) -> Option<Time> {
        self.options.time.map(|time| Time {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: time.subsec_nanos(),
        })
    }

    /// Holds clock and shard of this thread while it works for the session.
    pub(crate) fn stand(&self) -> impl Sized + use<> {
        stand_still(&self.options)
    }

    /// One inode has been made, removed or filled with much data. Commits now and then, at moments
    /// that depend on the changes alone, and changes over to a clone when the journal is outgrown.
    fn step(&self) -> Result<()> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps.is_multiple_of(STEPS_PER_COMMIT) {
            self.sync()?;
        }
        Ok(())
    }

    /// A step for a file that was made, changed or removed.
    pub(crate) fn step_file(&self) -> Result<()> {
        self.progress.add_file()?;
        self.step()
    }

    /// A step for data that was written.
    pub(crate) fn step_data(&self, bytes: usize) -> Result<()> {
        self.progress.add_bytes(bytes)?;
        self.step()
    }

    /// Commits: what was freed can be used again.
    pub(crate) fn sync(&self) -> Result<()> {
        self.volume().sync().of(&self.name)?;
        self.look_at_room()
    }

    /// Changes over to a clone if need be.
    fn look_at_room(&self) -> Result<()> {
        if self.staging.is_on_clone() {
            return Ok(());
        }
        match self.why_clone(self.staging.used()) {
            Some(reason) => self.change_over(reason),
            None => Ok(()),
        }
    }

    fn why_clone(&self, blocks: usize) -> Option<String> {
        let fits = |journal: &OfflineJournal| journal.fits(blocks);
        match (&self.journal, self.options.way) {
            (_, Way::Clone) => Some("as asked for".to_owned()),
            (None, _) => Some("the image has no journal".to_owned()),
            (Some(journal), _) if !fits(journal) => {
                Some(format!("{blocks} blocks do not fit into the journal"))
            }
            _ => None,
        }
    }

    fn change_over(&self, reason: String) -> Result<()> {
        let Some(file) = &self.file else {
            let name = self.name.display();
            return Err(EditError::Whole(format!(
                "{name}: it takes more than one transaction: {reason}"
            )));
        };
        if self.options.way == Way::Transaction {
            let name = self.name.display();
            return Err(EditError::Whole(format!(
                "{name}: it takes more than one transaction: {reason}; a clone could take it"
            )));
        }
        (self.options.tell)(&reason);
        let twin = self.progress.copying(|| Twin::new(file, &self.progress))?;
        self.staging
            .move_to(twin.device())
            .on(file.path(), "write the changes to a copy")?;
        *self.twin.borrow_mut() = Some((twin, reason));
        Ok(())
    }

    /// Ends the changes and says which way they will go to the image.
    ///
    /// # Errors
    ///
    /// The device's, or the host's if it takes a clone. Nothing has been changed then.
    pub fn prepare(mut self) -> Result<Prepared> {
        let _stand = self.stand();
        let volume = self.volume.take().expect("only this takes it");
        volume.close().of(&self.name)?;
        self.mend_superblock().of(&self.name)?;
        self.look_at_final_room()?;
        let changes = self.staging.changes().map_err(pext4_fs::Error::from);
        let changes = changes.of(&self.name)?;
        let plan = self.plan(&changes);
        Ok(Prepared {
            session: self,
            changes,
            plan,
        })
    }

    /// [`EditSession::prepare`] and [`Prepared::commit`].
    ///
    /// # Errors
    ///
    /// Theirs.
    pub fn finish(self) -> Result<Plan> {
        self.prepare()?.commit()
    }

    /// An edit is no mount: what the superblock tells of the last one stays.
    fn mend_superblock(&self) -> pext4_fs::Result<()> {
        let mut superblock = read_superblock(&*self.staging)?;
        superblock.mount_time = self.before.mount_time;
        superblock.mount_count = self.before.mount_count;
        superblock.last_mounted = self.before.last_mounted;
        let bytes = superblock.encode();
        Ok(self.staging.write_at(superblock::OFFSET, &bytes)?)
    }

    /// As [`EditSession::look_at_room`], by what has really changed.
    fn look_at_final_room(&self) -> Result<()> {
        if self.staging.is_on_clone() || self.why_clone(self.staging.used()).is_none() {
            return Ok(());
        }
        let changes = self.staging.changes().map_err(pext4_fs::Error::from);
        match self.why_clone(changes.of(&self.name)?.used.len()) {
            Some(reason) => self.change_over(reason),
            None => Ok(()),
        }
    }

    fn plan(&self, changes: &Changes) -> Plan {
        if let Some((twin, reason)) = &*self.twin.borrow() {
            return Plan::Clone {
                made: twin.made(),
                reason: reason.clone(),
            };
        }
        let home = self.superblock_home();
        if changes.used.iter().all(|(block, _)| *block == home) {
            return Plan::Nothing;
        }
        Plan::Transaction {
            blocks: changes.used.len(),
            free: changes.free.len(),
        }
    }

    fn superblock_home(&self) -> u64 {
        superblock::OFFSET / u64::from(self.block_size)
    }
}

impl Drop for EditSession {
    fn drop(&mut self) {
        // The volume closes itself; nobody is to see it.
        self.staging.abandon();
    }
}

/// Changes that wait to be made true.
pub struct Prepared {
    session: EditSession,
    changes: Changes,
    plan: Plan,
}

impl Prepared {
    /// Which way the changes will take.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes the changes true, durably.
    ///
    /// # Errors
    ///
    /// The device's or the host's. The image then has all of the changes or none; with a
    /// transaction the next who opens the image finds out. Asked to stop before the first lasting write, or before
    /// a clone is put in place, it has none.
    pub fn commit(mut self) -> Result<Plan> {
        let _stand = self.session.stand();
        self.session.progress.check()?;
        match self.plan {
            Plan::Nothing => {}
            Plan::Transaction { .. } => self.write_transaction().of(&self.session.name)?,
            Plan::Clone { .. } => {
                let twin = self.session.twin.take();
                let (twin, _) = twin.expect("a plan of a clone is made of one");
                twin.place(&self.session.progress)?;
            }
        }
        Ok(self.plan)
    }

    fn write_transaction(&mut self) -> pext4_fs::Result<()> {
        let session = &mut self.session;
        let free = std::mem::take(&mut self.changes.free);
        write_blocks(&*session.below, u64::from(session.block_size), &free)?;
        let journal = session.journal.take();
        let journal = journal.expect("a plan of a transaction is made of one");
        let used = std::mem::take(&mut self.changes.used);
        let blocks: Vec<(BlockNumber, Page)> = used
            .into_iter()
            .map(|(block, page)| (BlockNumber(block), page))
            .collect();
        journal.write(blocks).map_err(|failed| {
            let outcome = match failed.outcome {
                CommitOutcome::NotCommitted => return failed.error,
                CommitOutcome::Unknown => {
                    "the edit is made or not, as whoever opens the image next will find"
                }
                CommitOutcome::Committed => {
                    "the edit is made as soon as the image is opened for writing"
                }
            };
            std::io::Error::other(format!("{}; {outcome}", failed.error)).into()
        })
    }
}

/// Replays the journal if that is due: the edit begins with the image as it really is.
fn settle(
    below: &Arc<dyn Device>,
    options: &EditOptions,
    notes: &mut Vec<String>,
) -> pext4_fs::Result<()> {
    use pext4_ondisk::feature::Incompat;
    let superblock = read_superblock(&**below);
    // One that is torn is mended by a mount too.
    let is_clean = superblock.as_ref().is_ok_and(|superblock| {
        let dirty = superblock.features.incompat.contains(Incompat::RECOVER);
        !dirty && superblock.state.contains(State::CLEAN)
    });
    if is_clean {
        return Ok(());
    }
    let no_journal = superblock.is_ok_and(|superblock| {
        let journal = pext4_ondisk::feature::Compat::HAS_JOURNAL;
        !superblock.features.compat.contains(journal)
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
        // It differs from edit to edit, since the counts or the times do.
        Some(_) => checksum::crc32c(!0, &before.encode()),
        None => time::now().subsec_nanos() ^ time::since_epoch().subsec_nanos().rotate_left(2),
    };
    MountOptions {
        commit_interval: NEVER,
        bypass_journal: true,
        reserve: Reserve::Everybody,
        deterministic: Some(first),
        // One thread, whose placement must not depend on where the committer is just now.
        scaling: Scaling {
            busy_groups: BusyGroups::Wait,
            stream_goals: StreamGoals::Slots(Width::Fixed(1)),
            ..Scaling::FULL
        },
        ..MountOptions::default()
    }
}

fn stand_still(options: &EditOptions) -> impl Sized + use<> {
    (topology::pin(0), options.time.map(time::hold))
}
