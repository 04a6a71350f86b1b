//! Mounting and unmounting: from a device to a volume and back.
//!
//! Mounting: a device that other machines may use is claimed (`multi_mount`); the superblock is
//! read and checked (features, absurd counts, the device's size); the journal is found and its
//! replay planned; what the replay will leave is checked, and only then it is done, or for a
//! read-only mount shown without being done; then the layers are built from the bottom up,
//! `recover` and `orphan_present` are set durably before the first commit can happen (rule 11), and
//! orphans are finished.
//!
//! Closing: inodes without a name are deleted, everything is committed and written home, the log is
//! emptied, and only then is the superblock marked clean, with exact counts. If a step fails, the
//! journal is shut down all the same, and the first error is returned.

mod advice;
mod fast_commits;
mod features;
mod image;
mod journal;
mod lone_superblock;
pub mod offline;
mod orphans;
mod quotas;
mod raw_files;
mod recovery;
mod superblock;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Cache, CountingDevice, Device};
use pext4_jbd2::Journal;
use pext4_ondisk::Corrupt;
use pext4_ondisk::casefold::{self, Naming};
use pext4_ondisk::directory::Format;
use pext4_ondisk::dirhash::{Hasher, Signedness};
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::{BASE_SIZE, EXTRA_SIZE};
use pext4_ondisk::superblock::{State, Superblock};
use pext4_sync::Mutex;
use pext4_sync::atomic::AtomicU32;
use pext4_sync::order::Class;
use pext4_sync::thread;

use crate::dir::{DirectorySettings, VolumeDirectories};
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::inode::inodes::Inodes;
use crate::inode::table;
use crate::mbcache::{Counting, SharedBlocks};
use crate::multi_mount::{self, Claim, Keeper};
use crate::options::{LeafSearch, MountOptions};
use crate::orphan::Orphans;
use crate::quota::Quotas;
use crate::store::{Store, now};
use crate::volume::Volume;

/// What a mount has opened and found out; the fields are those of the [`Volume`].
struct Parts {
    inodes: Inodes,
    quotas: Option<Arc<Quotas>>,
    device: Arc<CountingDevice>,
    overhead_blocks: u64,
    was_clean: bool,
    notes: Vec<String>,
    keeper: Option<Keeper>,
}

impl Volume {
    /// Mounts the file system on `device`, after replaying its journal if necessary.
    ///
    /// If the device cannot be written, or the image has features that this version only reads, the
    /// volume is read-only whatever the options say: [`Volume::is_read_only`] tells, and
    /// [`Volume::notes`] says why.
    ///
    /// A device that a volume writes to belongs to that volume alone; a second one would destroy
    /// what the first one writes. A [`FileDevice`](pext4_block::FileDevice) keeps others out by
    /// itself; for any other device that is the caller's part.
    ///
    /// # Errors
    ///
    /// `Corrupt` and `Unsupported` name what in the image prevents the mount, `Io` comes from the
    /// device, `NotExt4` or `TooShort` if there is no file system, `InUse` if another machine has
    /// claimed it, `Options` if the options contradict each other. Nothing is written before every
    /// check has passed, also of what the journal brings; but a claim is made before, and released
    /// if a check fails.
    pub fn open(device: Arc<dyn Device>, options: MountOptions) -> Result<Self> {
        let opened = Self::open_unfinished(Arc::clone(&device), options.clone());
        let opened = opened.map_err(|error| advice::add(error, &device, &options));
        opened?.finish_orphans()
    }

    /// How long [`Volume::open`] waits to see whether another machine uses the file system on
    /// `device`, if it has multiple mount protection (the feature `mmp`) and is to be written. That
    /// is a second, or more than twenty if the last user did not release it.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub fn claim_time(
        device: &Arc<dyn Device>,
        options: &MountOptions,
    ) -> Result<Option<Duration>> {
        match to_claim(device, options)? {
            None => Ok(None),
            Some((superblock, geometry)) => multi_mount::claim_time(device, &superblock, &geometry),
        }
    }

    /// As [`Volume::open`], with the orphans as they are.
    fn open_unfinished(device: Arc<dyn Device>, options: MountOptions) -> Result<Self> {
        let mut options = options;
        let mut notes = Vec::new();
        let claim = claim(&device, &options)?;
        let device = claim.as_ref().map_or(device, Claim::device);
        let keeper = claim.map(Keeper::start).transpose()?;
        let counting = Arc::new(CountingDevice::new(device));
        let device = Arc::clone(&counting) as Arc<dyn Device>;
        let is_read_only = device.is_read_only();
        let found = superblock::read(&*device, &mut options, &mut notes)?;
        let before = found.to_seek_the_log();
        let geometry = checked_geometry(before, &*device, is_read_only, &mut options, &mut notes)?;
        features::note_state(before, &mut notes);
        features::note_options(before, &mut notes);
        let mut journal =
            recovery::find_journal(Arc::clone(&device), before, geometry, &options, &mut notes)?;
        // The replay may change the superblock.
        let view = journal.view(&found, &options)?;
        let mut superblock = found.as_replayed(&*view, &mut options, &mut notes)?;
        superblock::keep_errors(&mut superblock, before, journal.had_stopped);
        let geometry =
            checked_geometry(&superblock, &*view, is_read_only, &mut options, &mut notes)?;
        check_same_journal(before, &superblock)?;
        if journal.will_write() {
            let search = recovery::search_options(&options);
            let store = new_store(Arc::clone(&view), superblock.clone(), geometry, search);
            let blocks = journal.journal_blocks.clone();
            let (groups, _) = lowest_layers(&Arc::new(store), blocks)?;
            quotas::open(&groups)?;
        }
        let log = journal.replay(before, geometry.blocks_count, &mut notes)?;
        let was_clean = superblock.state.contains(State::CLEAN);
        let device = if log.is_some() { device } else { view };
        let store = Arc::new(new_store(device, superblock, geometry, options));
        let overhead_blocks = overhead_blocks(&store, &journal.journal_blocks);
        let (groups, orphans) = lowest_layers(&store, journal.journal_blocks)?;
        note_damage(&groups, &mut notes);
        let table = table::empty_table();
        let attribute_blocks = Arc::new(shared_blocks(&store));
        let mut quotas = None;
        if !store.options.read_only {
            quotas = quotas::open(&groups)?;
            let layers = journal::Layers {
                store: &store,
                groups: &groups,
                inodes: &table,
                attribute_blocks: &attribute_blocks,
                quotas: quotas.as_ref(),
            };
            journal::begin(&layers, log)?;
        }
        if let Some(keeper) = &keeper {
            keeper.attach(Arc::downgrade(&store));
        }
        let inodes = Inodes::new(store, groups, orphans, table, attribute_blocks);
        Ok(Self::assemble(Parts {
            inodes,
            quotas,
            device: counting,
            overhead_blocks,
            was_clean,
            notes,
            keeper,
        }))
    }

    fn assemble(parts: Parts) -> Self {
        let Parts {
            inodes,
            quotas,
            device,
            overhead_blocks,
            was_clean,
            notes,
            keeper,
        } = parts;
        let store = &inodes.store;
        let folds = store.features.has_incompat(Incompat::CASEFOLD);
        let directories = VolumeDirectories::new(directory_settings(store), folds);
        let is_encoding_strict = folds
            && store.superblock(|superblock| superblock.encoding_flags & casefold::STRICT != 0);
        let many_subdirectories = store
            .features
            .has_read_only_compat(ReadOnlyCompat::DIR_NLINK)
            && store.features.has_compat(Compat::DIR_INDEX);
        let new_inode_extra_size = new_inode_extra_size(store);
        let begins_inline = store.features.has_incompat(Incompat::INLINE_DATA);
        let counted_generation = store.options.deterministic.map(AtomicU32::new);
        Self {
            inodes,
            quotas,
            directories,
            is_encoding_strict,
            rename_lock: Mutex::new(Class::Rename, ()),
            many_subdirectories,
            generation_seed: random_seed(),
            counted_generation,
            new_inode_extra_size,
            begins_inline,
            overhead_blocks,
            notes,
            device,
            is_open: true,
            was_clean,
            keeper,
        }
    }

    /// Commits everything, writes it home and marks the file system clean. Dropping a volume does
    /// the same but cannot report errors.
    ///
    /// # Errors
    ///
    /// `Io`, or the error of the journal's abort; the image keeps what was durable, and the next
    /// mount replays the journal.
    pub fn close(mut self) -> Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_open, false) {
            return Ok(());
        }
        let ended = self.end_journal();
        let released = match self.keeper.take() {
            Some(keeper) => keeper.release(),
            None => Ok(()),
        };
        ended.and(released)
    }

    /// Commits everything, ends the journal and marks the file system clean.
    fn end_journal(&self) -> Result<()> {
        let store = Arc::clone(&self.inodes.store);
        let Some(journal) = store.try_journal() else {
            return Ok(());
        };
        let committed = self.commit_all(journal);
        let zeroed = match committed.is_ok() && !store.is_read_only() {
            true => self.inodes.zero_tails(),
            false => Ok(()),
        };
        // Even after a failure: the journal's threads and lists keep the volume's layers, and with
        // them the device, in memory.
        let shut_down = journal.shutdown().map_err(Error::from);
        // A tail that cannot be zeroed, because its file is corrupt, does not keep the image dirty.
        let marked = match committed.is_ok() && shut_down.is_ok() && !store.is_read_only() {
            true => self.mark_clean(),
            false => Ok(()),
        };
        committed.and(zeroed).and(shut_down).and(marked)
    }

    fn commit_all(&self, journal: &Journal) -> Result<()> {
        if self.inodes.store.is_read_only() {
            return Ok(());
        }
        self.end_unnamed();
        Ok(journal.commit_running()?)
    }

    /// Deletes inodes without a name, even if they are held.
    fn end_unnamed(&self) {
        let mut unnamed = Vec::new();
        self.inodes.for_each(|inode| {
            if inode.state(|state| state.slot.links == 0 && !state.dead) {
                unnamed.push(Arc::clone(inode));
            }
        });
        for inode in unnamed {
            self.inodes.release(inode.number(), u64::MAX);
            // An inode that cannot be deleted stays an orphan, which the next mount finishes.
            let _ = self.run(|| self.reap_if_due(&inode));
        }
    }

    fn mark_clean(&self) -> Result<()> {
        let (groups, was_clean) = (&self.inodes.groups, self.was_clean);
        let no_orphans = self.inodes.orphans.snapshot().is_empty();
        let (free_blocks, free_inodes) = (groups.free_blocks(), groups.free_inodes());
        // How much is written depends on the time at which threads write, so repeatable images have
        // no such count.
        let is_repeatable = self.inodes.store.options.deterministic.is_some();
        let kbytes_written = if is_repeatable {
            0
        } else {
            self.device.written() >> 10
        };
        self.inodes.store.write_superblock(|superblock| {
            superblock.free_blocks = free_blocks;
            superblock.free_inodes = u32::try_from(free_inodes).unwrap_or(u32::MAX);
            superblock.write_time = now().seconds;
            superblock.kbytes_written = superblock.kbytes_written.wrapping_add(kbytes_written);
            superblock.features.incompat.remove(Incompat::RECOVER);
            if no_orphans {
                superblock
                    .features
                    .read_only_compat
                    .remove(ReadOnlyCompat::ORPHAN_PRESENT);
            }
            // An image that was not clean before stays so until it has been checked.
            superblock.state.set(State::CLEAN, was_clean);
        })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A caller that wants the errors calls `close`; the journal keeps what was durable.
        let _ = self.take_down();
    }
}

/// Notes about damage of one kind; more would hide the others, and a hostile image could ask for
/// millions.
const MAX_NOTES: usize = 10;

/// Notes which structures a read-only mount does without.
fn note_damage(groups: &Groups, notes: &mut Vec<String>) {
    let named = groups.damage().take(MAX_NOTES);
    notes.extend(named.map(|corrupt| format!("{corrupt}; run `e2fsck -f` to repair it")));
    let others = groups.damage().skip(MAX_NOTES).count();
    if others > 0 {
        notes.push(format!("{others} more group descriptors are as bad"));
    }
}

/// Claims the file system on a device that other machines may use, if it has multiple mount
/// protection and will be written.
fn claim(device: &Arc<dyn Device>, options: &MountOptions) -> Result<Option<Claim>> {
    match to_claim(device, options)? {
        None => Ok(None),
        Some((superblock, geometry)) => {
            Claim::take(device, &superblock, &geometry, &mut thread::sleep)
        }
    }
}

/// The superblock and the geometry of a file system that may have to be claimed. They are read anew
/// after the claim, and what is to be noted is noted then.
fn to_claim(
    device: &Arc<dyn Device>,
    options: &MountOptions,
) -> Result<Option<(Superblock, Geometry)>> {
    if !options.is_device_shared || options.read_only {
        return Ok(None);
    }
    let (mut options, mut notes) = (options.clone(), Vec::new());
    let found = superblock::read(device, &mut options, &mut notes)?;
    let superblock = found.to_seek_the_log();
    let geometry = checked_geometry(
        superblock,
        device,
        device.is_read_only(),
        &mut options,
        &mut notes,
    )?;
    Ok((!options.read_only).then(|| (superblock.clone(), geometry)))
}

/// The geometry of an image, after its features were checked, which may make the mount read-only,
/// and then its shape, which unknown features may change. Whether it can be written is decided by
/// the device itself, not by the view of it.
fn checked_geometry(
    superblock: &Superblock,
    view: &dyn Device,
    is_device_read_only: bool,
    options: &mut MountOptions,
    notes: &mut Vec<String>,
) -> Result<Geometry> {
    features::check(superblock, options, is_device_read_only, notes)?;
    check_shape(superblock, view)
}

/// The groups and the orphans, and with them all that can prevent a mount: it is opened once before
/// anything is written, and once more from what was written. The blocks of the journal and of the
/// orphan file are protected from all other files.
fn lowest_layers(
    store: &Arc<Store>,
    journal_blocks: Vec<Range<u64>>,
) -> Result<(Arc<Groups>, Orphans)> {
    let groups = Groups::open(Arc::clone(store))?;
    let found = orphans::find(store)?;
    raw_files::check_root(store)?;
    let mut own = journal_blocks;
    if let Some((_, homes)) = &found.file {
        own.extend(homes.iter().map(|home| home.get()..home.get() + 1));
    }
    groups.protect(own)?;
    let orphans = Orphans::open(Arc::clone(store), found.file, found.chain)?;
    Ok((groups, orphans))
}

/// The geometry of the image; fails if the device is too small for it.
fn check_shape(superblock: &Superblock, device: &dyn Device) -> Result<Geometry> {
    let geometry = Geometry::of(superblock)?;
    let needed = geometry
        .blocks_count
        .checked_mul(u64::from(geometry.block_size));
    if needed.is_none_or(|needed| needed > device.size()) {
        return Err(cut_short(&geometry, device.size()).into());
    }
    Ok(geometry)
}

/// The error of a device that is too small for the file system.
fn cut_short(geometry: &Geometry, size: u64) -> Corrupt {
    let (blocks, block_size) = (geometry.blocks_count, geometry.block_size);
    let problem = format!(
        "the file system has {blocks} blocks of {block_size} bytes, the device only {size} bytes: \
         it was cut short, or its partition or `sizelimit` is too small"
    );
    let needed = u128::from(blocks) * u128::from(block_size);
    let missing = needed.saturating_sub(size.into());
    // By how much, not to which size: the device may be a part of the file.
    let remedy = format!(
        "give the partition its size, or copy the file anew; if that is impossible, `truncate -s \
         +{missing}` makes a file long enough for what is left of it to be read"
    );
    Corrupt::new("image", problem).advising(remedy)
}

/// Fails if the replay changed fields with which the log was found. (The size may change, if the
/// file system was being grown.)
fn check_same_journal(before: &Superblock, after: &Superblock) -> Result<()> {
    let journal = |superblock: &Superblock| {
        let has_one = superblock.features.has_compat(Compat::HAS_JOURNAL);
        (has_one, superblock.journal_inode, superblock.log_block_size)
    };
    if journal(before) == journal(after) {
        return Ok(());
    }
    let problem =
        "names another journal, or another size of blocks, than the one before the replay";
    Err(Corrupt::new("superblock in the journal", problem).into())
}

/// A store over a device whose journal was replayed.
fn new_store(
    device: Arc<dyn Device>,
    superblock: Superblock,
    geometry: Geometry,
    options: MountOptions,
) -> Store {
    let cache = Arc::new(Cache::new(
        Arc::clone(&device),
        geometry.block_size,
        options.cache_size / 2,
    ));
    Store::new(device, cache, geometry, superblock, options)
}

/// The cache of attribute blocks. Counting references on each core changes the time at which blocks
/// are freed, so it is not used for repeatable images.
fn shared_blocks(store: &Store) -> SharedBlocks {
    let options = &store.options;
    let counting = match options.deterministic {
        Some(_) => Counting::InBlock,
        None => Counting::WhereMet,
    };
    SharedBlocks::new(
        options.scaling.attribute_cache,
        options.cache_size,
        counting,
    )
}

fn directory_settings(store: &Store) -> DirectorySettings {
    DirectorySettings {
        block_size: store.block_size(),
        format: Format::of(&store.features),
        fingerprints: store.options.scaling.leaf_search == LeafSearch::Fingerprints,
        indexing: store.features.has_compat(Compat::DIR_INDEX),
        large: store.features.has_incompat(Incompat::LARGEDIR),
        hasher: store.superblock(hasher_of),
        cookie_key: random_seed(),
    }
}

/// How names are hashed in directories that are not casefolded. If the image does not record the
/// signedness, it gets that of the most common machines, as a mount by Linux on them would record
/// it.
fn hasher_of(superblock: &Superblock) -> Hasher {
    Hasher {
        version: superblock.hash_version(),
        signedness: superblock.hash_signedness().unwrap_or(Signedness::Signed),
        seed: superblock.hash_seed,
        naming: Naming::Exact,
    }
}

/// The number of blocks of the file system's own structures and of its journal, which statfs
/// subtracts. The number that the superblock records may date from before the file system grew: as
/// in Linux since 5.18, it is used only with clusters of several blocks.
fn overhead_blocks(store: &Store, journal: &[Range<u64>]) -> u64 {
    let geometry = &store.geometry;
    let noted = store.superblock(|superblock| superblock.overhead_clusters);
    let noted = u64::from(noted) << geometry.cluster_bits;
    if geometry.blocks_per_cluster > 1 && (1..=geometry.blocks_count).contains(&noted) {
        return noted;
    }
    let journal: u64 = journal.iter().map(|run| run.end - run.start).sum();
    u64::from(geometry.first_data_block) + geometry.metadata_blocks() + journal
}

/// The size of the extra part of new inodes, in bytes: what the image asks for, but at least 32; if
/// that does not fit the inode size, all the room there is.
fn new_inode_extra_size(store: &Store) -> u16 {
    let room = store.geometry.inode_size.saturating_sub(BASE_SIZE as u16);
    let wanted =
        store.superblock(|superblock| superblock.want_extra_isize.max(superblock.min_extra_isize));
    let wanted = if wanted.is_multiple_of(4) {
        wanted.max(EXTRA_SIZE)
    } else {
        EXTRA_SIZE
    };
    if wanted <= room { wanted } else { room }
}

/// A number that the author of an image cannot predict.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(now())
}
