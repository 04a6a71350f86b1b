//! Opening a session: an image that may be edited is locked, and its journal is replayed if it
//! needs that. Nothing of a refused image is written.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice};
use pext4_fs::options::{BusyGroups, Reserve, Scaling, StreamGoals, Width};
use pext4_fs::{MountOptions, OfflineJournal, Volume};
use pext4_ondisk::checksum;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{State, Superblock};
use pext4_sync::time;

use super::{EditOptions, EditSession, pin_thread};
use crate::change::PutTogether;
use crate::error::{EditError, FsContext, Result};
use crate::free::{FreeMap, read_superblock};
use crate::staging::Staging;
use crate::tune::Tuning;

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
        // Before the replay, since a refused image must not be written, also not if only the replay
        // brings the errors. A torn superblock can be judged only as replayed; a log that cannot be
        // read is an error of the replay.
        let unreplayed = read_superblock(&*below);
        let replayed = OfflineJournal::superblock_after_replay(Arc::clone(&below));
        for superblock in unreplayed.iter().chain(&replayed) {
            refuse(superblock, name)?;
        }
        replay_journal(&below, options, &mut notes).with_image(name)?;
        let before = read_superblock(&*below).with_image(name)?;
        // The mount may have met damage when it finished orphans.
        refuse(&before, name)?;
        let journal = OfflineJournal::open(Arc::clone(&below)).with_image(name)?;
        notes.extend(
            journal
                .iter()
                .filter_map(|journal| journal.note())
                .map(str::to_owned),
        );
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
        };
        session.refuse_without_journal_or_clone()?;
        session.switch_to_clone_if_full()?;
        Ok(session)
    }
}

/// Refuses an image with a superblock that no edit may work on.
fn refuse(superblock: &Superblock, name: &Path) -> Result<()> {
    refuse_noted_errors(superblock, name)?;
    refuse_other_machines(superblock, name)
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

/// Refuses an image that other machines may use at the same time: no claim of it would pass over to
/// a clone.
fn refuse_other_machines(superblock: &Superblock, name: &Path) -> Result<()> {
    if !superblock.features.has_incompat(Incompat::MMP) {
        return Ok(());
    }
    Err(EditError::Refused(format!(
        "{}: it cannot be edited: other machines may use it (mmp); a mount can change it, and so can \
         an edit after `tune2fs -O ^mmp`",
        name.display()
    )))
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
        is_device_shared: false,
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
