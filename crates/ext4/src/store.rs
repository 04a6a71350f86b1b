//! The base of every layer of the file system: the device, the buffers, the journal, and the
//! properties of the image that do not change while it is mounted.
//!
//! Layers hold `Arc<Store>` and their own state; no layer is passed "the whole file system". Blocks
//! are read through [`Store::read_block`], which refuses numbers outside the file system, so no
//! caller has to check a pointer read from disk a second time.
//!
//! What it does about errors is in `failure`; the superblock, as the journalled object that it is,
//! in `superblock`; the inodes that it names in `system_inodes`.

mod failure;
mod superblock;
mod system_inodes;

use std::sync::{Arc, OnceLock};

use pext4_block::{Buffer, Cache, Device};
use pext4_jbd2::{Handle, Journal};
use pext4_ondisk::extent::Bounds;
use pext4_ondisk::feature::{Features, ReadOnlyCompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::quota::OwnerKind;
use pext4_ondisk::superblock::{BSD_GROUPS, DISCARD, Superblock};
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, RwLock, ShardRef, time};

use self::superblock::SuperblockState;
use self::system_inodes::SystemInodes;
use crate::error::{Refusal, Result};
use crate::options::{MountOptions, Reserve};
use crate::statistics::Tally;

/// See [`Store::quota_credits`]: each of three owners, before and after.
const QUOTA_CREDITS: u32 = 6;

/// Is told of corruption when it is found.
pub type CorruptionObserver = dyn Fn(&Corrupt) + Send + Sync;

/// The device, buffers, journal and properties of one mounted volume.
pub struct Store {
    /// The device that holds the image. [immutable after mount]
    pub device: Arc<dyn Device>,
    /// Metadata blocks in memory.
    pub cache: Arc<Cache>,
    /// Shape of the image. [immutable after mount]
    pub geometry: Geometry,
    /// Features the image was mounted with. [immutable after mount]
    pub features: Features,
    /// Whether inodes are the Hurd's. [immutable after mount]
    pub is_for_hurd: bool,
    /// How it was mounted. [immutable after mount]
    pub options: MountOptions,
    /// Whether every new inode gets its directory's group. [immutable after mount]
    pub inherits_group: bool,
    /// Whether freed blocks become holes of the device. [immutable after mount]
    pub discards: bool,
    /// The user and the group besides root whose files may use the reserve. [immutable after mount]
    reserve_owners: (u32, u32),
    /// Counters of events.
    pub tally: Tally,
    journal: OnceLock<Arc<Journal>>,
    superblock: Arc<SuperblockState>,
    read_only: AtomicBool,
    /// Who is told of corruption.
    observers: RwLock<Vec<Arc<CorruptionObserver>>>,
    /// The corruption for which the journal was stopped.
    stopped_for: OnceLock<Corrupt>,
    /// Whether the superblock in memory records errors that are in no transaction yet.
    has_noted_errors: AtomicBool,
    /// Inodes of the file system itself. [immutable after mount]
    system_inodes: SystemInodes,
    /// See [`Store::quota_credits`]. [immutable after mount]
    quota_credits: u32,
}

impl Store {
    /// A store over `device`; the journal follows through [`Store::attach_journal`].
    #[must_use]
    pub fn new(
        device: Arc<dyn Device>,
        cache: Arc<Cache>,
        geometry: Geometry,
        superblock: Superblock,
        options: MountOptions,
    ) -> Self {
        let system_inodes = SystemInodes::of(&superblock);
        let superblock_state = SuperblockState::new(superblock.clone(), geometry.block_size);
        Self {
            device,
            cache,
            features: superblock.features,
            geometry,
            read_only: AtomicBool::new(options.read_only),
            observers: RwLock::new(Class::Leaf, Vec::new()),
            stopped_for: OnceLock::new(),
            has_noted_errors: AtomicBool::new(false),
            is_for_hurd: superblock.is_for_hurd(),
            quota_credits: match system_inodes.quota_kinds() {
                Some(_) => QUOTA_CREDITS,
                None => 0,
            },
            system_inodes,
            inherits_group: options
                .inherit_group
                .unwrap_or(superblock.default_mount_options & BSD_GROUPS != 0),
            discards: options
                .discard
                .unwrap_or(superblock.default_mount_options & DISCARD != 0),
            reserve_owners: (
                options
                    .reserve_uid
                    .unwrap_or(superblock.reserved_uid.into()),
                options
                    .reserve_gid
                    .unwrap_or(superblock.reserved_gid.into()),
            ),
            options,
            tally: Tally::new(),
            journal: OnceLock::new(),
            superblock: Arc::new(superblock_state),
        }
    }

    /// Whether a file of this user and group may use the reserve. The group root, which the
    /// superblock names by default, has no such right.
    #[must_use]
    pub fn may_use_reserve(&self, uid: u32, gid: u32) -> bool {
        let (user, group) = self.reserve_owners;
        self.options.reserve == Reserve::Owner
            && (uid == 0 || uid == user || (gid == group && group != 0))
    }

    /// Gives the store its journal, once, before the first operation.
    ///
    /// # Panics
    ///
    /// If it has one already.
    pub fn attach_journal(&self, journal: Arc<Journal>) {
        assert!(self.journal.set(journal).is_ok(), "a store has one journal");
    }

    /// The journal.
    ///
    /// # Panics
    ///
    /// If the mount has not attached it yet.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        self.journal
            .get()
            .expect("mount attaches the journal before any operation")
    }

    /// The journal, if it is attached already.
    #[must_use]
    pub fn try_journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.geometry.block_size
    }

    /// The range of blocks in which files may have blocks.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.geometry.bounds()
    }

    /// Whether `count` blocks from `start` on are inside the file system.
    #[must_use]
    pub fn contains(&self, start: BlockNumber, count: u64) -> bool {
        self.geometry.contains(start, count)
    }

    /// A metadata block, from memory or the device.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the number is outside the file system, `Io` if the device fails.
    pub fn read_block(&self, block: BlockNumber) -> Result<Arc<Buffer>> {
        self.check_inside(block)?;
        Ok(self.cache.get(block)?)
    }

    /// As [`Store::read_block`], for blocks that every core may use again and again: those of
    /// trees. The reference returned is counted on the core's own cache lines.
    ///
    /// # Errors
    ///
    /// As [`Store::read_block`].
    pub fn read_frequent_block(&self, block: BlockNumber) -> Result<ShardRef<Buffer>> {
        self.check_inside(block)?;
        Ok(self.cache.get_frequent(block)?)
    }

    fn check_inside(&self, block: BlockNumber) -> Result<()> {
        if self.contains(block, 1) {
            return Ok(());
        }
        Err(
            Corrupt::new("block pointer", "lies outside the file system")
                .in_block(block)
                .into(),
        )
    }

    /// An inode from the bytes of its slot.
    ///
    /// # Errors
    ///
    /// `Corrupt` if its checksum is wrong or it cannot be one.
    pub fn decode_slot(
        &self,
        bytes: &[u8],
        number: InodeNumber,
    ) -> std::result::Result<Inode, Corrupt> {
        let slot = Inode::decode(bytes, number, self.geometry.checksum_seed())?;
        let slot = slot.as_read_with(&self.features);
        Ok(match self.is_for_hurd {
            true => slot.as_of_hurd(),
            false => slot,
        })
    }

    /// Whether an inode belongs to the file system itself. No name may refer to it, but for a
    /// [named journal](Self::is_named_journal).
    #[must_use]
    pub fn is_system_inode(&self, number: InodeNumber) -> bool {
        self.system_inodes.contains(number)
    }

    /// Whether a name may refer to an inode of this number, other than the root.
    #[must_use]
    pub fn may_have_name(&self, number: InodeNumber) -> bool {
        let is_own = self.is_system_inode(number) && !self.is_named_journal(number);
        number >= self.geometry.first_inode && !is_own
    }

    /// Whether an inode is the journal and may have a name: a file `.journal` in the root, which
    /// `tune2fs -j` makes where the file system is mounted, and which e2fsck makes nameless later.
    #[must_use]
    pub fn is_named_journal(&self, number: InodeNumber) -> bool {
        self.system_inodes.journal == Some(number) && number >= self.geometry.first_inode
    }

    /// Fails if the volume refuses writes.
    ///
    /// # Errors
    ///
    /// `Refused(ReadOnly)`.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Refusal::ReadOnly.into());
        }
        Ok(())
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Refuses all writes from now on.
    pub fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Relaxed);
    }

    /// Starts a handle for an operation that may dirty `credits` metadata blocks.
    ///
    /// # Errors
    ///
    /// `Refused(ReadOnly)`, or the journal's error once it has stopped.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        self.check_writable()?;
        let credits = credits.saturating_add(self.quota_credits());
        Ok(self.journal().start(credits)?)
    }

    /// The quota file of a kind of owner, if there is one.
    #[must_use]
    pub fn quota_inode(&self, kind: OwnerKind) -> Option<InodeNumber> {
        self.system_inodes.quota(kind)
    }

    /// The kinds of owners that have a quota file, in the order of [`OwnerKind::ALL`]; `None` if
    /// none has.
    #[must_use]
    pub fn quota_kinds(&self) -> Option<[bool; 3]> {
        self.system_inodes.quota_kinds()
    }

    /// Blocks of quota files that an operation may dirty besides its own: mostly it changes the
    /// usage of the owners of at most two inodes, or of one inode that changes its owners. One that
    /// drops many values of attributes may take more than it asked for.
    #[must_use]
    pub fn quota_credits(&self) -> u32 {
        self.quota_credits
    }

    /// Adds `blocks` (may be negative) to an inode's block count. False if the inode cannot count
    /// so many.
    pub fn count_blocks(&self, slot: &mut Inode, blocks: i64) -> bool {
        let block_size = self.block_size();
        let huge_file = ReadOnlyCompat::HUGE_FILE;
        let huge = self.features.has_read_only_compat(huge_file);
        let change = blocks.unsigned_abs() * u64::from(block_size / 512);
        let before = slot.sectors(block_size);
        let sectors = if blocks < 0 {
            before.saturating_sub(change)
        } else {
            before.saturating_add(change)
        };
        slot.set_sectors(sectors, block_size, huge)
    }
}

/// The current time.
#[must_use]
pub fn now() -> Time {
    let since = time::since_epoch();
    Time {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}
