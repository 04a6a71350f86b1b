//! How many inodes a new file system gets: the same in every group, in whole blocks of the table
//! and whole bytes of the bitmap.

use pext4_ondisk::geometry::max_inodes_per_group;
use pext4_ondisk::superblock::Superblock;

use super::plan::{Options, impossible};
use crate::error::{Error, Result};

/// The minimum number of inodes in a group: group 0 needs them for the reserved inodes and the
/// special files.
const MIN_INODES: u64 = 16;
/// The minimum number of bytes for each inode, as in mke2fs.
pub const MIN_BYTES_PER_INODE: u64 = 1024;

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

/// The bytes for each inode in a file system of `size` bytes, as in mke2fs: at least a block.
pub(crate) fn default_bytes_per_inode(size: u64, block_size: u64) -> u64 {
    const FLOPPY: u64 = 3 << 20;
    const SMALL: u64 = 512 << 20;
    const BIG: u64 = 4 << 40;
    const HUGE: u64 = 16 << 40;
    let usual = match size {
        0..FLOPPY => 8192,
        FLOPPY..SMALL => 4096,
        SMALL..BIG => 16384,
        BIG..HUGE => 32768,
        _ => 65536,
    };
    usual.max(block_size)
}

/// Sets the number of inodes: the same in every group, in whole blocks of the table and whole bytes
/// of the bitmap. False, and nothing set, if groups of this size are too few for the inodes.
pub(super) fn set_inode_counts(
    superblock: &mut Superblock,
    options: &Options,
    size: u64,
) -> Result<bool> {
    check_inode_size(options.inode_size, 1024 << superblock.log_block_size)?;
    check_bytes_per_inode(options.bytes_per_inode)?;
    check_inodes(options.inodes)?;
    let counts = InodeCounts::new(superblock, options, size);
    if counts.wanted.saturating_mul(options.inode_size.into()) >= size {
        return Err(no_room(counts.wanted, options, size));
    }
    if counts.share > counts.max_share {
        return Ok(false);
    }
    superblock.inodes_count = counts.checked_total(superblock, options, size)?;
    superblock.inodes_per_group =
        u32::try_from(counts.per_group).expect("bounded by a block's bits");
    Ok(true)
}

/// The error for inodes whose tables do not fit.
fn no_room(wanted: u64, options: &Options, size: u64) -> Error {
    impossible(format!(
        "{wanted} inodes of {} bytes leave no room in {size} bytes: ask for fewer with -N, or for \
         smaller ones with -I",
        options.inode_size
    ))
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

fn check_bytes_per_inode(bytes: Option<u64>) -> Result<()> {
    match bytes {
        Some(bytes) if bytes < MIN_BYTES_PER_INODE => Err(impossible(format!(
            "{bytes} bytes for each inode: at least {MIN_BYTES_PER_INODE} are possible"
        ))),
        _ => Ok(()),
    }
}

/// How many inodes a file system gets.
struct InodeCounts {
    groups: u64,
    /// The requested or the default number.
    wanted: u64,
    /// Inodes in a block of the table.
    per_block: u64,
    /// How many of the wanted ones each group must have.
    share: u64,
    /// The largest share for which groups need not be smaller, and thus more.
    max_share: u64,
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
        let wanted = wanted(options, size, block_size);
        let share = wanted.div_ceil(groups).max(MIN_INODES);
        let step = per_block.max(8);
        let most = max_inodes_per_group(block_size, per_block) / step * step;
        let countable = u64::from(u32::MAX) / groups / step * step;
        let max_per_group = most.min(countable);
        let (share_in_steps, max_share) = match options.inodes {
            Some(_) => (share.next_multiple_of(step), most),
            // As in mke2fs, a default is rounded down to whole bytes of the bitmap, and is smaller
            // where blocks have more bits than a group may have inodes, and in a very large file
            // system.
            None => (
                share.next_multiple_of(per_block) / step * step,
                8 * block_size,
            ),
        };
        Self {
            groups,
            wanted,
            per_block,
            share,
            max_share,
            per_group: share_in_steps.min(max_per_group),
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
            return Err(no_room(*wanted, options, size));
        }
        Ok(u32::try_from(total).expect("not more than the format counts"))
    }
}

/// The requested number of inodes, or by their bytes the one for the whole blocks of `size` bytes.
fn wanted(options: &Options, size: u64, block_size: u64) -> u64 {
    let by_share = || {
        let share = options.bytes_per_inode;
        let share = share.unwrap_or_else(|| default_bytes_per_inode(size, block_size));
        (size / block_size * block_size / share).min(u32::MAX.into())
    };
    options.inodes.unwrap_or_else(by_share).max(MIN_INODES)
}
