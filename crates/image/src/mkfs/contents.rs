//! The files of an empty file system: the root directory, lost+found, the journal, the orphan file,
//! quota files, the inode that reserves descriptor blocks, and the block of multiple mount
//! protection.

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{self, Entry, Format};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::inode::{EXTRA_SIZE, Inode};
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::mmp::Mmp;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, InodeNumber, orphan_file};

use super::layout::Layout;
use super::map::map_blocks;
use super::plan::Options;
use super::quotas::{self, Placed, Usage};
use super::resize_inode;
use crate::error::{Error, Result};
use pext4_ondisk::directory::FileType;

/// Size of lost+found in bytes: a checker need not allocate blocks in a damaged image.
const LOST_FOUND_BYTES: u64 = 16 << 10;
/// Its maximum in blocks: with small blocks it needs no indirect block.
const MAX_LOST_FOUND_BLOCKS: u64 = 12;
/// The minimum size of a journal in blocks. ext4 implementations refuse smaller ones.
pub(super) const MIN_JOURNAL_BLOCKS: u32 = 1024;
/// Seconds between updates of the block of multiple mount protection, as in mke2fs.
const MULTI_MOUNT_SECONDS: u16 = 5;
/// How many blocks of the log there are for each block of fast commits, as in mke2fs.
const LOG_OVER_FAST_COMMITS: u32 = 64;

/// Inodes and blocks to write.
#[derive(Default)]
pub(crate) struct Files {
    pub inodes: Vec<(InodeNumber, Inode)>,
    pub blocks: Vec<(BlockNumber, Vec<u8>)>,
    pub journal_blocks: u32,
    /// Quota files, whose content comes last.
    pub quotas: Vec<Placed>,
}

/// Places the files of an empty file system.
pub(super) fn place(
    layout: &mut Layout,
    superblock: &mut Superblock,
    options: &Options,
) -> Result<Files> {
    let mut files = Files::default();
    let lost_found = layout.allocate_inode();
    place_root(layout, superblock, options, lost_found, &mut files)?;
    place_lost_found(layout, superblock, lost_found, &mut files)?;
    let (uid, gid) = options.root_owner;
    let mut owners = Usage::default();
    owners.charge([uid, gid, 0], 0);
    owners.charge([0; 3], 0);
    place_system(layout, superblock, options, &owners, &mut files)?;
    let mut usage = Usage::default();
    for (number, inode) in &files.inodes {
        if *number == InodeNumber::ROOT || *number == lost_found {
            let space = inode.sectors(layout.geometry.block_size) * 512;
            usage.charge([inode.uid, inode.gid, inode.project], space);
        }
    }
    files.fill_quotas(&usage, layout.geometry.block_size);
    Ok(files)
}

/// Places what is in no directory: the inode that reserves descriptor blocks, the block of multiple
/// mount protection, the orphan file, the quota files for `owners`, whose usage the caller enters
/// later, and the journal.
pub(crate) fn place_system(
    layout: &mut Layout,
    superblock: &mut Superblock,
    options: &Options,
    owners: &Usage,
    files: &mut Files,
) -> Result<()> {
    if superblock.features.has_compat(Compat::RESIZE_INODE) {
        resize_inode::place(layout, superblock, files)?;
    }
    if superblock.features.has_incompat(Incompat::MMP) {
        place_multi_mount_block(layout, superblock, files)?;
    }
    if superblock.features.has_compat(Compat::ORPHAN_FILE) {
        place_orphan_file(layout, superblock, files)?;
    }
    quotas::place(layout, superblock, owners, files)?;
    if superblock.features.has_compat(Compat::HAS_JOURNAL) {
        place_journal(layout, superblock, options, files)?;
    }
    Ok(())
}

/// The `i_extra_isize` of inodes of this size.
pub(crate) fn extra_size(inode_size: u16) -> u16 {
    if inode_size > 128 { EXTRA_SIZE } else { 0 }
}

/// A new inode with the times of the image.
pub(super) fn new_inode(superblock: &Superblock, mode: u16, links: u16) -> Inode {
    let extra = extra_size(superblock.inode_size);
    let time = Time {
        seconds: superblock.make_time,
        nanoseconds: 0,
    };
    let mut inode = Inode::new(superblock.inode_size, extra);
    inode.mode = mode;
    inode.links = links;
    inode.accessed = time;
    inode.changed = time;
    inode.modified = time;
    inode.created = inode.created.map(|_| time);
    inode
}

fn stamp_leaf(layout: &Layout, number: InodeNumber, bytes: &mut [u8]) {
    if let Some(seed) = layout.geometry.checksum_seed() {
        directory::stamp_leaf(InodeSeed::new(seed, number, 0), bytes);
    }
}

fn place_root(
    layout: &mut Layout,
    superblock: &Superblock,
    options: &Options,
    lost_found: InodeNumber,
    files: &mut Files,
) -> Result<()> {
    let format = Format::of(&superblock.features);
    let runs = layout.allocate(0, 1)?;
    let mut bytes = vec![0; layout.geometry.block_size as usize];
    directory::init_first_block(&mut bytes, format, InodeNumber::ROOT, InodeNumber::ROOT);
    let entry = Entry {
        inode: lost_found,
        file_type: Some(FileType::Directory),
        name: b"lost+found",
    };
    directory::insert(&mut bytes, format, &entry)?;
    stamp_leaf(layout, InodeNumber::ROOT, &mut bytes);
    files.blocks.push((BlockNumber(runs[0].start), bytes));
    let mut inode = new_inode(superblock, 0o040_755, 3);
    (inode.uid, inode.gid) = options.root_owner;
    map_blocks(layout, InodeNumber::ROOT, &mut inode, &runs, files)?;
    files.inodes.push((InodeNumber::ROOT, inode));
    layout.count_directory(InodeNumber::ROOT);
    Ok(())
}

/// The number of blocks of a new `lost+found`.
pub(crate) fn lost_found_blocks(block_size: usize) -> u32 {
    let blocks = (LOST_FOUND_BYTES / block_size as u64).clamp(1, MAX_LOST_FOUND_BLOCKS);
    u32::try_from(blocks).expect("at most twelve")
}

fn place_lost_found(
    layout: &mut Layout,
    superblock: &mut Superblock,
    number: InodeNumber,
    files: &mut Files,
) -> Result<()> {
    let format = Format::of(&superblock.features);
    let block_size = layout.geometry.block_size as usize;
    let runs = layout.allocate(0, lost_found_blocks(block_size).into())?;
    for (index, block) in runs.iter().flat_map(Clone::clone).enumerate() {
        let mut bytes = vec![0; block_size];
        if index == 0 {
            directory::init_first_block(&mut bytes, format, number, InodeNumber::ROOT);
        } else {
            directory::init_empty(&mut bytes, format);
        }
        stamp_leaf(layout, number, &mut bytes);
        files.blocks.push((BlockNumber(block), bytes));
    }
    let mut inode = new_inode(superblock, 0o040_700, 2);
    map_blocks(layout, number, &mut inode, &runs, files)?;
    files.inodes.push((number, inode));
    superblock.lost_found_inode = number;
    layout.count_directory(number);
    Ok(())
}

fn place_multi_mount_block(
    layout: &mut Layout,
    superblock: &mut Superblock,
    files: &mut Files,
) -> Result<()> {
    let runs = layout.allocate(0, 1)?;
    let block = BlockNumber(runs[0].start);
    let mut bytes = vec![0; layout.geometry.block_size as usize];
    Mmp::clean(MULTI_MOUNT_SECONDS).encode(&mut bytes, layout.geometry.checksum_seed());
    files.blocks.push((block, bytes));
    superblock.mmp_block = block;
    superblock.mmp_update_interval = MULTI_MOUNT_SECONDS;
    Ok(())
}

fn place_orphan_file(
    layout: &mut Layout,
    superblock: &mut Superblock,
    files: &mut Files,
) -> Result<()> {
    let number = layout.allocate_inode();
    let count = orphan_file::default_blocks(layout.geometry.blocks_count);
    let runs = layout.allocate(0, count)?;
    let block_size = layout.geometry.block_size as usize;
    let seed = layout.geometry.inode_seed(number, 0);
    let slots = vec![0; orphan_file::slots_per_block(block_size)];
    for block in runs.iter().flat_map(Clone::clone) {
        let mut bytes = vec![0; block_size];
        orphan_file::encode(&mut bytes, &slots, BlockNumber(block), seed);
        files.blocks.push((BlockNumber(block), bytes));
    }
    let mut inode = new_inode(superblock, 0o100_600, 1);
    map_blocks(layout, number, &mut inode, &runs, files)?;
    files.inodes.push((number, inode));
    superblock.orphan_file_inode = number;
    Ok(())
}

/// The default journal size of mke2fs for a file system of `blocks` blocks, in blocks; 0 if it is
/// too small for a journal.
pub(crate) fn default_journal_blocks(blocks: u64) -> u32 {
    const STEPS: [(u64, u32); 8] = [
        (2048, 0),
        (32 << 10, 1024),
        (256 << 10, 4096),
        (512 << 10, 8192),
        (4 << 20, 16384),
        (8 << 20, 32768),
        (16 << 20, 65536),
        (32 << 20, 131_072),
    ];
    STEPS
        .iter()
        .find(|&&(end, _)| blocks < end)
        .map_or(262_144, |&(_, size)| size)
}

fn place_journal(
    layout: &mut Layout,
    superblock: &mut Superblock,
    options: &Options,
    files: &mut Files,
) -> Result<()> {
    let blocks = layout.geometry.blocks_count;
    let log = options
        .journal_blocks
        .unwrap_or_else(|| default_journal_blocks(blocks));
    let fast_commits = if superblock.features.has_compat(Compat::FAST_COMMIT) {
        log / LOG_OVER_FAST_COMMITS
    } else {
        0
    };
    let count = log.saturating_add(fast_commits);
    if log < MIN_JOURNAL_BLOCKS || u64::from(log) > blocks / 2 {
        let wanted = match options.journal_blocks {
            Some(count) => format!("a journal of {count} blocks"),
            None => "a journal".to_owned(),
        };
        let text = format!(
            "{wanted} on an image of {blocks} blocks: it needs at least {MIN_JOURNAL_BLOCKS} and at \
             most half of all; make the image larger or turn it off with -O ^has_journal"
        );
        return Err(Error::Impossible(text));
    }
    let goal = layout.geometry.group_count / 2 / layout.geometry.groups_per_flex
        * layout.geometry.groups_per_flex;
    let runs = layout.allocate(goal, u64::from(count))?;
    let mut journal = JournalSuperblock::new(layout.geometry.block_size, count, superblock.uuid);
    journal.num_fast_commit_blocks = fast_commits;
    let mut bytes = vec![0; layout.geometry.block_size as usize];
    bytes[..1024].copy_from_slice(&journal.encode());
    files.blocks.push((BlockNumber(runs[0].start), bytes));
    let mut inode = new_inode(superblock, 0o100_600, 1);
    map_blocks(layout, InodeNumber::JOURNAL, &mut inode, &runs, files)?;
    superblock.journal_inode = InodeNumber::JOURNAL;
    superblock.journal_backup_type = 1;
    let (words, _) = inode.block.as_chunks::<4>();
    for (backup, word) in superblock.journal_backup.iter_mut().zip(words) {
        *backup = u32::from_le_bytes(*word);
    }
    superblock.journal_backup[15] = u32::try_from(inode.size >> 32).expect("32 bits are left");
    superblock.journal_backup[16] = u32::try_from(inode.size & 0xFFFF_FFFF).expect("masked");
    files.inodes.push((InodeNumber::JOURNAL, inode));
    files.journal_blocks = count;
    Ok(())
}
