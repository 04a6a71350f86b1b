//! Chooses sizes and features, and returns them as a superblock.

use std::ops::RangeInclusive;

use pext4_ondisk::casefold;
use pext4_ondisk::dirhash::HashVersion;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::geometry::{Geometry, MAX_CLUSTERS_PER_GROUP};
use pext4_ondisk::inode::EXTRA_SIZE;
use pext4_ondisk::superblock::{self, ErrorPolicy, Flags, LABEL_BYTES, State, Superblock};
use pext4_ondisk::{InodeNumber, checksum, journal};
use pext4_sync::time;
use uuid::Uuid;

use super::contents::{MIN_JOURNAL_BLOCKS, default_journal_blocks};
use super::features::{FileSystem, features};
use super::inode_counts::set_inode_counts;
use super::layout::min_blocks;
use crate::error::{Error, Result};

/// Log2 of the number of groups in a flexible group.
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// By how many blocks groups become smaller: their bitmaps have whole bytes.
const GROUP_STEP: u32 = 8;
/// The minimum size of a file system in blocks.
const MIN_BLOCKS: u64 = 64;
/// The range of block sizes in bytes.
const BLOCK_SIZES: RangeInclusive<u32> = 1024..=65536;
/// `user_xattr` and `acl`, which upstream turns on.
const DEFAULT_MOUNT_OPTIONS: u32 = 0x0C;
/// The modes of encryption that upstream notes, which no implementation reads: AES-256-XTS for
/// contents, AES-256-CTS for names.
const ENCRYPTION_MODES: [u8; 4] = [1, 4, 0, 0];

/// Options of mkfs. `Default` gives the defaults of mke2fs for the device's size.
#[derive(Clone, Debug)]
pub struct Options {
    /// The type whose features [`Self::features`] changes.
    pub file_system: FileSystem,
    /// Block size in bytes: a power of two from 1024 to 65536. Linux mounts blocks of more than
    /// 4096 bytes only in recent versions, or where its pages are as large. The default depends on
    /// the size.
    pub block_size: Option<u32>,
    /// Number of inodes, rounded up to whole blocks of every group's table.
    pub inodes: Option<u64>,
    /// Bytes of the file system for each inode, if their number is not given; at least 1024. The
    /// default depends on the size.
    pub bytes_per_inode: Option<u64>,
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
    /// Size of the journal in blocks, without the part for fast commits (`fast_commit`), which has
    /// a 64th as many more. The default is that of mke2fs.
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
            bytes_per_inode: None,
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

impl Options {
    /// The block size on a device of `size` bytes.
    #[must_use]
    pub fn block_size_at(&self, size: u64) -> u32 {
        const SMALL: u64 = 512 << 20;
        let usual = if size < SMALL { 1024 } else { 4096 };
        self.block_size.unwrap_or(usual)
    }
}

pub(super) fn impossible(text: impl Into<String>) -> Error {
    Error::Impossible(text.into())
}

/// The superblock for these options on a device of `size` bytes, without the free counts, and its
/// geometry.
pub(crate) fn plan(size: u64, options: &Options) -> Result<(Superblock, Geometry)> {
    let mut features = features(options.file_system, &options.features)?;
    let block_size = options.block_size_at(size);
    if !BLOCK_SIZES.contains(&block_size) || !block_size.is_power_of_two() {
        return Err(impossible(format!(
            "block size {block_size}: 1024, 2048 or 4096 bytes are possible, or a larger power of two \
             up to 65536"
        )));
    }
    if features.has_compat(Compat::RESIZE_INODE) && block_size >= 4096 {
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
    if options.label.len() > LABEL_BYTES {
        return Err(impossible(format!(
            "a label has at most {LABEL_BYTES} bytes"
        )));
    }
    let blocks = size / u64::from(block_size);
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
    set_counts(&mut superblock, options, size, blocks)?;
    let blocks = superblock.blocks_count;
    let geometry = geometry(&superblock, blocks)?;
    superblock.reserved_blocks = reserved_blocks(blocks, options.reserved_percent)?;
    Ok((superblock, geometry))
}

/// Sets the numbers of blocks and inodes, and the sizes of groups. The inodes of a group are as
/// many as a block has bits, at most: as in mke2fs groups become smaller, and thus more, until they
/// have room for all that are wanted.
fn set_counts(
    superblock: &mut Superblock,
    options: &Options,
    size: u64,
    blocks: u64,
) -> Result<()> {
    while !counts_suit_groups(superblock, options, size, blocks)? {
        let smaller = superblock.blocks_per_group.saturating_sub(GROUP_STEP);
        if smaller == 0 {
            return Err(impossible(format!(
                "{size} bytes have no room for the groups of that many inodes: ask for fewer with -N, \
                 or for more bytes for each with -i"
            )));
        }
        superblock.blocks_per_group = smaller;
        superblock.clusters_per_group = smaller;
    }
    Ok(())
}

/// Sets the numbers of blocks and inodes for groups of this size, without a last group that is too
/// short for its metadata. False if the groups are too few for the inodes, perhaps only without the
/// last one.
fn counts_suit_groups(
    superblock: &mut Superblock,
    options: &Options,
    size: u64,
    blocks: u64,
) -> Result<bool> {
    superblock.blocks_count = blocks;
    loop {
        set_backup_groups(superblock);
        if !set_inode_counts(superblock, options, size)? {
            return Ok(false);
        }
        superblock.reserved_gdt_blocks = reserved_descriptor_blocks(superblock);
        match without_too_small_last_group(superblock)? {
            Some(shorter) if shorter >= MIN_BLOCKS => superblock.blocks_count = shorter,
            _ => return Ok(true),
        }
    }
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

/// The options, without a journal if the device is too small for one and the caller did not request
/// it, as in mke2fs.
pub(crate) fn without_journal_that_does_not_fit(size: u64, options: &Options) -> Options {
    let block_size = options.block_size_at(size);
    let blocks = size / u64::from(block_size.max(1));
    let names = ["has_journal", "fast_commit"];
    let is_asked_for = options.journal_blocks.is_some()
        || options
            .features
            .iter()
            .any(|name| names.contains(&name.trim()));
    let mut options = options.clone();
    if default_journal_blocks(blocks) == 0 && !is_asked_for {
        options.features.push("^has_journal".to_owned());
    }
    options
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
    superblock.blocks_per_group = (8 * block_size).min(MAX_CLUSTERS_PER_GROUP);
    superblock.clusters_per_group = superblock.blocks_per_group;
    superblock.max_mount_count = u16::MAX;
    superblock.revision = 1;
    superblock.first_inode = 11;
    superblock.inode_size = options.inode_size;
    superblock.uuid = options.uuid.unwrap_or_else(|| Uuid::new_v4().into_bytes());
    let length = options.label.len().min(LABEL_BYTES);
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
    if features.has_incompat(Incompat::ENCRYPT) {
        superblock.encryption_modes = ENCRYPTION_MODES;
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

/// With `sparse_super2` the second and the last group have the copies of the superblock.
fn set_backup_groups(superblock: &mut Superblock) {
    if !superblock.features.has_compat(Compat::SPARSE_SUPER2) {
        return;
    }
    let data = superblock.blocks_count - u64::from(superblock.first_data_block);
    let last = (data - 1) / u64::from(superblock.blocks_per_group);
    // A count of groups that does not fit is refused with the rest of the geometry.
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    superblock.backup_groups = match last {
        0 => [0, 0],
        1 => [1, 0],
        last => [1, last],
    };
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

pub(crate) fn reserved_blocks(blocks: u64, percent: f64) -> Result<u64> {
    if !(0.0..=50.0).contains(&percent) {
        return Err(impossible(format!(
            "{percent} percent reserved: 0 to 50 are possible"
        )));
    }
    Ok(superblock::reserved_blocks(blocks, percent))
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
