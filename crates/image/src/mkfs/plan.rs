//! Chooses sizes and features, and returns them as a superblock.

use pext4_ondisk::casefold;
use pext4_ondisk::dirhash::HashVersion;
use pext4_ondisk::feature::{Compat, Feature, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::EXTRA_SIZE;
use pext4_ondisk::superblock::{ErrorPolicy, Flags, State, Superblock};
use pext4_ondisk::{InodeNumber, checksum, journal};
use pext4_sync::time;
use uuid::Uuid;

use super::contents::{MIN_JOURNAL_BLOCKS, default_journal_blocks};
use super::layout::min_blocks;
use crate::error::{Error, Result};

/// Log2 of the number of groups in a flexible group.
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// Maximum length of the label in bytes.
const MAX_LABEL_BYTES: usize = 16;
/// The minimum size of a file system in blocks.
const MIN_BLOCKS: u64 = 64;
/// The minimum number of inodes in a group: group 0 needs them for the reserved inodes and the
/// special files.
const MIN_INODES: u64 = 16;
/// `user_xattr` and `acl`, which upstream turns on.
const DEFAULT_MOUNT_OPTIONS: u32 = 0x0C;

/// The file system type. All types have the same format, with different features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    /// No journal, extents or checksums.
    Ext2,
    /// ext2 with a journal.
    Ext3,
    /// With the default features of mke2fs.
    #[default]
    Ext4,
}

/// Options of mkfs. `Default` gives the defaults of mke2fs for the device's size.
#[derive(Clone, Debug)]
pub struct Options {
    /// The type whose features [`Self::features`] changes.
    pub file_system: FileSystem,
    /// Block size in bytes: 1024, 2048 or 4096. The default depends on the size.
    pub block_size: Option<u32>,
    /// Number of inodes, rounded up to whole blocks of every group's table. The default depends on
    /// the size.
    pub inodes: Option<u64>,
    /// Inode size in bytes: a power of two from 128 to the block size.
    pub inode_size: u16,
    /// The label, at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID; random by default.
    pub uuid: Option<[u8; 16]>,
    /// Share of the blocks that only the superuser may use, in percent (0 to 50).
    pub reserved_percent: f64,
    /// Features to turn on, by their names in e2fsprogs, or off, with `^` before the name.
    pub features: Vec<String>,
    /// Size of the journal in blocks. The default is that of mke2fs.
    pub journal_blocks: Option<u32>,
    /// Seed of directory hashes; random by default.
    pub hash_seed: Option<[u32; 4]>,
    /// All times in the image, in seconds since 1970; now by default.
    pub time: Option<i64>,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            file_system: FileSystem::default(),
            block_size: None,
            inodes: None,
            inode_size: 256,
            label: Vec::new(),
            uuid: None,
            reserved_percent: 5.0,
            features: Vec::new(),
            journal_blocks: None,
            hash_seed: None,
            time: None,
            root_owner: (0, 0),
        }
    }
}

fn impossible(text: impl Into<String>) -> Error {
    Error::Impossible(text.into())
}

/// The superblock for these options on a device of `size` bytes, without the free counts, and its
/// geometry.
pub(crate) fn plan(size: u64, options: &Options) -> Result<(Superblock, Geometry)> {
    let mut features = features(options.file_system, &options.features)?;
    let block_size = options
        .block_size
        .unwrap_or_else(|| default_block_size(size));
    if !matches!(block_size, 1024 | 2048 | 4096) {
        return Err(impossible(format!(
            "block size {block_size}: 1024, 2048 or 4096 bytes are possible"
        )));
    }
    if features.has_compat(Compat::RESIZE_INODE) && block_size == 4096 {
        // Its inode claims all that two levels of pointers can address: more than 2 GiB.
        features.read_only_compat.insert(ReadOnlyCompat::LARGE_FILE);
    }
    check_journal(options, &features, block_size)?;
    if features.has_incompat(Incompat::INLINE_DATA) && options.inode_size < 256 {
        return Err(impossible(
            "inline_data needs inodes of 256 bytes or more, to hold the data",
        ));
    }
    if features.has_read_only_compat(ReadOnlyCompat::PROJECT) && options.inode_size < 256 {
        return Err(impossible(
            "project needs inodes of 256 bytes or more, to hold the project's number",
        ));
    }
    if options.label.len() > MAX_LABEL_BYTES {
        return Err(impossible(format!(
            "a label has at most {MAX_LABEL_BYTES} bytes"
        )));
    }
    let mut blocks = size / u64::from(block_size);
    if blocks < MIN_BLOCKS {
        return Err(impossible(format!(
            "{size} bytes are too small: at least {} are needed",
            MIN_BLOCKS * u64::from(block_size)
        )));
    }
    if blocks > u64::from(u32::MAX) && !features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        return Err(impossible(format!(
            "{blocks} blocks of {block_size} bytes need the feature 64bit, or larger blocks"
        )));
    }
    let mut superblock = new_superblock(options, &features, block_size);
    loop {
        superblock.blocks_count = blocks;
        set_inode_counts(&mut superblock, options, size)?;
        superblock.reserved_gdt_blocks = reserved_descriptor_blocks(&superblock);
        match without_too_small_last_group(&superblock)? {
            Some(shorter) if shorter >= MIN_BLOCKS => blocks = shorter,
            _ => break,
        }
    }
    let geometry = geometry(&superblock, blocks)?;
    superblock.reserved_blocks = reserved_blocks(blocks, options.reserved_percent)?;
    Ok((superblock, geometry))
}

/// The geometry of a superblock for `blocks` blocks, or for these rounded up to whole groups. If
/// it is not possible, the request is to blame, and not the superblock that was made for it.
fn geometry(superblock: &Superblock, blocks: u64) -> Result<Geometry> {
    Geometry::of(superblock).map_err(|corrupt| {
        let block_size = 1024 << superblock.log_block_size;
        impossible(format!(
            "{blocks} blocks of {block_size} bytes cannot be: {}; larger blocks, or -O ^resize_inode, \
             allow more",
            corrupt.problem()
        ))
    })
}

/// Fails if the size of the journal is invalid for every file system.
fn check_journal(options: &Options, features: &Features, block_size: u32) -> Result<()> {
    let Some(blocks) = options.journal_blocks else {
        return Ok(());
    };
    if !features.has_compat(Compat::HAS_JOURNAL) {
        return Err(impossible(
            "a journal's size is given, and there is none without the feature has_journal: give one of \
             the two up",
        ));
    }
    if !(MIN_JOURNAL_BLOCKS..=journal::MAX_BLOCKS).contains(&blocks) {
        let [bytes, min_bytes, max_bytes] = [blocks, MIN_JOURNAL_BLOCKS, journal::MAX_BLOCKS]
            .map(|blocks| u64::from(blocks) * u64::from(block_size));
        return Err(impossible(format!(
            "a journal of {bytes} bytes: with blocks of {block_size} bytes {min_bytes} to {max_bytes} \
             are possible"
        )));
    }
    Ok(())
}

/// Fails if the number of inodes is invalid for every size.
pub(crate) fn check_inodes(inodes: Option<u64>) -> Result<()> {
    match inodes {
        Some(wanted) if wanted > u64::from(u32::MAX) => Err(impossible(format!(
            "{wanted} inodes: a file system counts at most {}",
            u32::MAX
        ))),
        _ => Ok(()),
    }
}

/// The options, without a journal if the device is too small for one and the caller did not request
/// it, as in mke2fs.
pub(crate) fn without_journal_that_does_not_fit(size: u64, options: &Options) -> Options {
    let block_size = options
        .block_size
        .unwrap_or_else(|| default_block_size(size));
    let blocks = size / u64::from(block_size.max(1));
    let is_asked_for = options.journal_blocks.is_some()
        || options.features.iter().any(|name| name == "has_journal");
    let mut options = options.clone();
    if default_journal_blocks(blocks) == 0 && !is_asked_for {
        options.features.push("^has_journal".to_owned());
    }
    options
}

impl FileSystem {
    /// The defaults of `mke2fs.conf(5)`.
    fn features(self) -> Features {
        let ext2 = Features {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            read_only_compat: ReadOnlyCompat::SPARSE_SUPER | ReadOnlyCompat::LARGE_FILE,
        };
        match self {
            Self::Ext2 => ext2,
            Self::Ext3 => Features {
                compat: ext2.compat | Compat::HAS_JOURNAL,
                ..ext2
            },
            Self::Ext4 => Features {
                compat: ext2.compat | Compat::HAS_JOURNAL | Compat::ORPHAN_FILE,
                incompat: ext2.incompat
                    | Incompat::EXTENTS
                    | Incompat::SIXTY_FOUR_BIT
                    | Incompat::FLEX_BG
                    | Incompat::CSUM_SEED,
                read_only_compat: ext2.read_only_compat
                    | ReadOnlyCompat::HUGE_FILE
                    | ReadOnlyCompat::DIR_NLINK
                    | ReadOnlyCompat::EXTRA_ISIZE
                    | ReadOnlyCompat::METADATA_CSUM,
            },
        }
    }
}

/// The default features of a type, changed by `names`.
fn features(file_system: FileSystem, names: &[String]) -> Result<Features> {
    let mut features = file_system.features();
    for name in names.iter().map(|name| name.trim()) {
        let (name, on) = match name.strip_prefix('^') {
            Some(name) => (name, false),
            None => (name, true),
        };
        if name.is_empty() {
            continue;
        }
        let feature = Feature::parse(name).ok_or_else(|| match name {
            "none" => impossible(
                "none is no feature: turn single ones off, with ^ before their names, like \
                 ^has_journal",
            ),
            name => impossible(format!("unknown feature {name}")),
        })?;
        features.set(feature, on);
    }
    resolve_features(&mut features)?;
    Ok(features)
}

/// All features that mkfs supports.
fn supported() -> Features {
    let usual = FileSystem::Ext4.features();
    Features {
        compat: usual.compat | Compat::STABLE_INODES,
        incompat: usual.incompat
            | Incompat::EA_INODE
            | Incompat::INLINE_DATA
            | Incompat::LARGEDIR
            | Incompat::CASEFOLD,
        read_only_compat: usual.read_only_compat | ReadOnlyCompat::QUOTA | ReadOnlyCompat::PROJECT,
    }
}

/// Adds features that others need, removes those that need a missing one, and fails for unsupported
/// ones.
fn resolve_features(features: &mut Features) -> Result<()> {
    if !features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM) {
        features.incompat.remove(Incompat::CSUM_SEED);
    }
    if features
        .incompat
        .intersects(Incompat::INLINE_DATA | Incompat::EA_INODE)
    {
        // Both store data in extended attributes.
        features.compat.insert(Compat::EXT_ATTR);
    }
    if !features.has_compat(Compat::HAS_JOURNAL) {
        features.compat.remove(Compat::ORPHAN_FILE);
    }
    let supported = supported();
    let other = Features {
        compat: features.compat.difference(supported.compat),
        incompat: features.incompat.difference(supported.incompat),
        read_only_compat: features
            .read_only_compat
            .difference(supported.read_only_compat),
    };
    if !other.names().is_empty() {
        return Err(Error::Unsupported(format!(
            "this version does not make images with the features: {}",
            other.names().join(", ")
        )));
    }
    let has_types = features.has_incompat(Incompat::FILETYPE);
    let is_sparse = features.has_read_only_compat(ReadOnlyCompat::SPARSE_SUPER);
    if !has_types || !is_sparse {
        return Err(impossible(
            "the features filetype and sparse_super cannot be turned off",
        ));
    }
    if features.has_incompat(Incompat::SIXTY_FOUR_BIT) && !features.has_incompat(Incompat::EXTENTS)
    {
        return Err(impossible(
            "64bit needs extents: turn off both, or none of them",
        ));
    }
    Ok(())
}

fn default_block_size(size: u64) -> u32 {
    const SMALL: u64 = 512 << 20;
    if size < SMALL { 1024 } else { 4096 }
}

pub(crate) fn default_bytes_per_inode(size: u64) -> u64 {
    const FLOPPY: u64 = 3 << 20;
    const SMALL: u64 = 512 << 20;
    const BIG: u64 = 4 << 40;
    const HUGE: u64 = 16 << 40;
    match size {
        0..FLOPPY => 8192,
        FLOPPY..SMALL => 4096,
        SMALL..BIG => 16384,
        BIG..HUGE => 32768,
        _ => 65536,
    }
}

/// The superblock without the fields that depend on the number of blocks.
fn new_superblock(options: &Options, features: &Features, block_size: u32) -> Superblock {
    let mut superblock = Superblock::blank();
    let log_block_size = block_size.trailing_zeros() - 10;
    let time = options.time.unwrap_or_else(now);
    superblock.features = *features;
    superblock.log_block_size = log_block_size;
    superblock.log_cluster_size = log_block_size;
    superblock.first_data_block = u32::from(block_size == 1024);
    superblock.blocks_per_group = 8 * block_size;
    superblock.clusters_per_group = 8 * block_size;
    superblock.max_mount_count = u16::MAX;
    superblock.revision = 1;
    superblock.first_inode = 11;
    superblock.inode_size = options.inode_size;
    superblock.uuid = options.uuid.unwrap_or_else(|| Uuid::new_v4().into_bytes());
    let length = options.label.len().min(MAX_LABEL_BYTES);
    superblock.volume_name[..length].copy_from_slice(&options.label[..length]);
    superblock.default_hash_version = HashVersion::HalfMd4.to_raw();
    let random_seed = || hash_seed(Uuid::new_v4().into_bytes());
    superblock.hash_seed = options.hash_seed.unwrap_or_else(random_seed);
    superblock.flags = Flags::SIGNED_HASH;
    superblock.default_mount_options = DEFAULT_MOUNT_OPTIONS;
    superblock.state = State::CLEAN;
    superblock.errors = ErrorPolicy::Continue;
    superblock.write_time = time;
    superblock.check_time = time;
    superblock.make_time = time;
    if features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        superblock.desc_size = 64;
    }
    if features.has_incompat(Incompat::FLEX_BG) {
        superblock.log_groups_per_flex = LOG_GROUPS_PER_FLEX;
    }
    if options.inode_size > 128 {
        superblock.min_extra_isize = EXTRA_SIZE;
        superblock.want_extra_isize = EXTRA_SIZE;
    }
    if features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM) {
        superblock.checksum_type = 1;
    }
    if features.has_incompat(Incompat::CSUM_SEED) {
        superblock.checksum_seed = checksum::crc32c(u32::MAX, &superblock.uuid);
    }
    if features.has_incompat(Incompat::CASEFOLD) {
        superblock.encoding = casefold::UTF8_12_1;
    }
    superblock.lost_found_inode = InodeNumber(0);
    superblock
}

/// The seed of directory hashes whose bytes, as on disk, are those of a UUID.
#[must_use]
pub fn hash_seed(uuid: [u8; 16]) -> [u32; 4] {
    let (words, _) = uuid.as_chunks::<4>();
    std::array::from_fn(|index| u32::from_le_bytes(words[index]))
}

/// The current time, in seconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(time::since_epoch().as_secs()).unwrap_or(i64::MAX)
}

/// Sets the number of inodes: the same in every group, in whole blocks of the table and whole bytes
/// of the bitmap.
fn set_inode_counts(superblock: &mut Superblock, options: &Options, size: u64) -> Result<()> {
    check_inode_size(options.inode_size, 1024 << superblock.log_block_size)?;
    let counts = InodeCounts::new(superblock, options, size);
    superblock.inodes_count = counts.checked_total(superblock, options, size)?;
    superblock.inodes_per_group =
        u32::try_from(counts.per_group).expect("bounded by a block's bits");
    Ok(())
}

fn check_inode_size(inode_size: u16, block_size: u32) -> Result<()> {
    let is_possible = inode_size.is_power_of_two() && inode_size >= 128;
    if is_possible && u32::from(inode_size) <= block_size {
        return Ok(());
    }
    Err(impossible(format!(
        "inode size {inode_size}: a power of two from 128 to {block_size} is possible"
    )))
}

/// How many inodes a file system gets.
struct InodeCounts {
    groups: u64,
    /// The requested or the default number.
    wanted: u64,
    /// Inodes in a block of the table.
    per_block: u64,
    per_group: u64,
    /// The largest `per_group` with which the format counts all inodes; 0 if there is none.
    max_per_group: u64,
    step: u64,
}

impl InodeCounts {
    /// The counts for a valid inode size. They may exceed what the format supports.
    fn new(superblock: &Superblock, options: &Options, size: u64) -> Self {
        let block_size = 1024u64 << superblock.log_block_size;
        let per_block = block_size / u64::from(options.inode_size);
        let data = superblock.blocks_count - u64::from(superblock.first_data_block);
        let groups = data.div_ceil(u64::from(superblock.blocks_per_group));
        let wanted = options
            .inodes
            .unwrap_or_else(|| size / default_bytes_per_inode(size))
            .max(16);
        let step = per_block.max(8);
        let max_per_group = (8 * block_size).min(65536 - per_block) / step * step;
        let countable = u64::from(u32::MAX) / groups / step * step;
        let max_per_group = max_per_group.min(countable);
        let share = wanted.div_ceil(groups).max(MIN_INODES);
        let per_group = match options.inodes {
            Some(_) => share.next_multiple_of(step).min(max_per_group),
            // A default is rounded down to whole bytes of the bitmap, as in mke2fs, and is smaller
            // in a very large file system.
            None => (share.next_multiple_of(per_block) / step * step).min(max_per_group),
        };
        Self {
            groups,
            wanted,
            per_block,
            per_group,
            max_per_group,
            step,
        }
    }

    /// The number of all inodes. Fails if the format cannot represent it, if it is less than
    /// requested, or if the tables fill the groups.
    fn checked_total(&self, superblock: &Superblock, options: &Options, size: u64) -> Result<u32> {
        let Self { groups, wanted, .. } = self;
        if self.per_group == 0 {
            let max_groups = u64::from(u32::MAX) / self.step;
            let max_blocks = max_groups * u64::from(superblock.blocks_per_group);
            return Err(impossible(format!(
                "{size} bytes: a file system of {groups} groups is more than the format can count: with \
                 such blocks and inodes it has up to {} bytes",
                max_blocks << (10 + superblock.log_block_size)
            )));
        }
        let total = self.per_group * self.groups;
        if options.inodes.is_some() && total < self.wanted {
            return Err(impossible(format!(
                "{wanted} inodes: at most {} fit this size",
                self.max_per_group * groups
            )));
        }
        if self.per_group / self.per_block >= u64::from(superblock.blocks_per_group) {
            return Err(impossible(format!(
                "{wanted} inodes of {} bytes leave no room in {size} bytes: ask for fewer with -N, or for \
                 smaller ones with -I",
                options.inode_size
            )));
        }
        Ok(u32::try_from(total).expect("not more than the format counts"))
    }
}

/// Number of descriptor blocks to reserve so that the file system can grow to 1024 times its size.
fn reserved_descriptor_blocks(superblock: &Superblock) -> u16 {
    if !superblock.features.has_compat(Compat::RESIZE_INODE) {
        return 0;
    }
    let block_size = 1024u64 << superblock.log_block_size;
    let descriptor_size = u64::from(superblock.desc_size.max(32));
    let per_block = block_size / descriptor_size;
    let first = u64::from(superblock.first_data_block);
    let groups_of = |blocks: u64| (blocks - first).div_ceil(u64::from(superblock.blocks_per_group));
    let now = groups_of(superblock.blocks_count).div_ceil(per_block);
    let max_blocks = superblock
        .blocks_count
        .saturating_mul(1024)
        .min(u64::from(u32::MAX));
    let then = groups_of(max_blocks.max(superblock.blocks_count)).div_ceil(per_block);
    u16::try_from(then.saturating_sub(now).min(block_size / 4))
        .expect("at most a quarter of a block")
}

fn reserved_blocks(blocks: u64, percent: f64) -> Result<u64> {
    if !(0.0..=50.0).contains(&percent) {
        return Err(impossible(format!(
            "{percent} percent reserved: 0 to 50 are possible"
        )));
    }
    // Integer arithmetic in thousandths of a percent is exact enough.
    let thousandths = format!("{:.0}", percent * 1000.0)
        .parse::<u128>()
        .expect("a small whole number");
    let reserved = u128::from(blocks) * thousandths / 100_000;
    Ok(u64::try_from(reserved).expect("not more than half of the blocks"))
}

/// If the last group cannot hold its own metadata, the number of blocks without it. The metadata is
/// computed for a file system whose last group is complete, since `Geometry` rejects a last group
/// without room for its descriptors.
fn without_too_small_last_group(superblock: &Superblock) -> Result<Option<u64>> {
    let first = u64::from(superblock.first_data_block);
    let per_group = u64::from(superblock.blocks_per_group);
    let left = (superblock.blocks_count - first) % per_group;
    let shorter = superblock.blocks_count - left;
    if left == 0 || shorter == first {
        return Ok(None);
    }
    let mut rounded = superblock.clone();
    rounded.blocks_count = shorter + per_group;
    let geometry = geometry(&rounded, superblock.blocks_count)?;
    let last = geometry.groups().next_back();
    let needed = last.map_or(0, |last| min_blocks(&geometry, last));
    Ok((left < u64::from(needed)).then_some(shorter))
}
