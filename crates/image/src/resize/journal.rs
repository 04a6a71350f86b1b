//! The image's journal: it is replayed before planning, and a plan may be written through it.
//!
//! A plan is a single transaction in an empty log, so it begins at the log's first block. It has
//! the number that the empty log names, so old log contents can never be taken for a continuation
//! of it. A mount does not use that number, so a plan of which only the start is missing is never
//! taken for the mount's first transaction.

use std::time::Duration;

use pext4_block::Device;
use pext4_jbd2::{LogArea, recovery};
use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::journal::{
    Commit, DescriptorWriter, JournalIncompat, JournalSuperblock, RecordFormat, TransactionSum,
    header,
};
use pext4_ondisk::superblock::{self, State, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock};

use super::image::{Image, read_superblock};
use super::map;
use crate::error::{Error, Result};

/// The maximum number of blocks of a journal: nothing makes longer ones.
pub(super) const MAX_BLOCKS: u64 = pext4_ondisk::journal::MAX_BLOCKS as u64;

/// A journal with an empty log.
pub(super) struct Log {
    area: LogArea,
    superblock: JournalSuperblock,
}

/// The result of recovery.
pub(super) struct Recovered {
    pub log: Option<Log>,
    /// Number of transactions that were replayed.
    pub replayed: u32,
    /// Whether the log held transactions that were dropped instead.
    pub has_dropped: bool,
}

/// Replays the journal if necessary, and refuses a damaged image.
pub(super) fn recover(device: &dyn Device) -> Result<Recovered> {
    let superblock = read_superblock(device)?;
    check_errors(&superblock)?;
    let is_dirty = superblock.features.has_incompat(Incompat::RECOVER);
    let found = if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
        if is_dirty {
            let problem = "a journal is to be replayed, but there is none";
            return Err(Corrupt::new("superblock", problem).into());
        }
        Recovered {
            log: None,
            replayed: 0,
            has_dropped: false,
        }
    } else if superblock.journal_inode.get() == 0 {
        if is_dirty {
            return Err(refusal(
                "its external journal must be replayed first: run `e2fsck`",
            ));
        }
        Recovered {
            log: None,
            replayed: 0,
            has_dropped: false,
        }
    } else {
        recover_internal(device, &superblock, is_dirty)?
    };
    check_state(&read_superblock(device)?, found.log.is_some())?;
    Ok(found)
}

fn recover_internal(
    device: &dyn Device,
    superblock: &Superblock,
    is_dirty: bool,
) -> Result<Recovered> {
    let mut log = open_log(device, superblock)?;
    let (mut replayed, mut has_dropped) = (0, false);
    if log.superblock.errno != 0 {
        return Err(refusal(
            "its journal had stopped with an error: run `e2fsck -f` first",
        ));
    }
    if is_dirty {
        // After an interrupted growth, only the log contains the new size.
        let blocks = device.size() / (1024 << superblock.log_block_size.min(6));
        let report = recovery::recover(device, &log.area, &mut log.superblock, blocks)?;
        replayed = report.transactions;
    } else if log.superblock.start != 0 {
        // The superblock says that the log need not be replayed.
        recovery::discard(device, &log.area, &mut log.superblock)?;
        has_dropped = true;
    }
    Ok(Recovered {
        log: Some(log),
        replayed,
        has_dropped,
    })
}

fn refusal(text: &str) -> Error {
    Error::Impossible(text.to_owned())
}

fn check_errors(superblock: &Superblock) -> Result<()> {
    if superblock.state.contains(State::ERRORS) {
        return Err(refusal("errors are noted in it: run `e2fsck -f` first"));
    }
    Ok(())
}

fn check_state(superblock: &Superblock, has_log: bool) -> Result<()> {
    check_errors(superblock)?;
    if !has_log && !superblock.state.contains(State::CLEAN) {
        return Err(refusal(
            "it was not unmounted cleanly: run `e2fsck -f` first",
        ));
    }
    Ok(())
}

/// Opens the journal of an image whose log may contain transactions.
fn open_log(device: &dyn Device, superblock: &Superblock) -> Result<Log> {
    let number = superblock.journal_inode;
    let absent =
        || Error::from(Corrupt::new("superblock", "its journal has no inode").in_inode(number));
    // Descriptors of other groups may be torn until the log is replayed.
    let groups =
        number.get().checked_sub(1).ok_or_else(absent)? / superblock.inodes_per_group.max(1) + 1;
    let image = Image::open_unreplayed(device, groups)?;
    let inode = image.inode(number)?;
    if inode.file_type() != Some(FileType::Regular) || inode.links == 0 {
        return Err(Corrupt::new("journal", "is no regular file")
            .in_inode(number)
            .into());
    }
    let runs = runs(&image, number, MAX_BLOCKS)?;
    let area = LogArea::new(image.geometry.block_size, &runs)
        .map_err(|corrupt| corrupt.in_inode(number))?;
    let superblock = recovery::read_superblock(device, &area)?;
    Ok(Log { area, superblock })
}

/// The runs of a file of the file system's own. Fails if it has holes, or more than `max_blocks`
/// blocks in a map of pointers, which needs only a few blocks to name any number of them.
pub(super) fn runs(
    image: &Image<'_>,
    number: InodeNumber,
    max_blocks: u64,
) -> Result<Vec<(BlockNumber, u32)>> {
    let inode = image.inode(number)?;
    let mut runs = Runs {
        number,
        next: 0,
        runs: Vec::new(),
    };
    if inode.has_extents() {
        for extent in map::extents(image, number, &inode)?.extents {
            runs.push(extent.logical, extent.start, extent.length)?;
        }
        return Ok(runs.runs);
    }
    // Without holes, a map has fewer blocks of pointers than of data.
    let mut left = image.geometry.blocks_count.min(2 * max_blocks + 1);
    let mut walk = map::IndirectWalk::new(number, &inode);
    while let Some((logical, block)) = walk.next(image, &mut left)? {
        if runs.next == max_blocks {
            let problem = format!("has more than {max_blocks} blocks");
            return Err(runs.wrong(problem));
        }
        runs.push(logical, block, 1)?;
    }
    Ok(runs.runs)
}

/// The runs of a file without holes.
struct Runs {
    number: InodeNumber,
    /// The next logical block.
    next: u64,
    runs: Vec<(BlockNumber, u32)>,
}

impl Runs {
    fn push(&mut self, logical: LogicalBlock, start: BlockNumber, length: u32) -> Result<()> {
        if u64::from(logical.get()) != self.next {
            let problem = format!("has a hole at block {}", self.next);
            return Err(self.wrong(problem));
        }
        self.next += u64::from(length);
        if let Some((last, count)) = self.runs.last_mut()
            && last.checked_add(*count) == Some(start)
            && let Some(sum) = count.checked_add(length)
        {
            *count = sum;
            return Ok(());
        }
        self.runs.push((start, length));
        Ok(())
    }

    fn wrong(&self, problem: String) -> Error {
        let corrupt = Corrupt::new("file of the system", problem);
        corrupt.in_inode(self.number).into()
    }
}

impl Log {
    /// Whether `blocks` blocks, up to number `highest`, fit into one transaction.
    pub fn has_room(&self, blocks: usize, highest: u64) -> bool {
        let format = self.format();
        let wide = self.superblock.incompat.contains(JournalIncompat::BIT64);
        let room = self
            .superblock
            .log_end()
            .saturating_sub(self.superblock.first);
        // One block stays free, since a full ring looks like an empty one.
        let fits = format.footprint(blocks, 0) < room as usize;
        fits && (wide || highest <= u64::from(u32::MAX))
    }

    /// Whether a block is part of the journal.
    pub fn contains(&self, block: BlockNumber) -> bool {
        self.area.contains(block)
    }

    fn format(&self) -> RecordFormat {
        RecordFormat::of(&self.superblock)
    }

    /// Writes a transaction of this time, since 1970, and makes it durable. It is not replayed
    /// before [`Log::begin`].
    pub fn write(
        &self,
        device: &dyn Device,
        blocks: &[(BlockNumber, &[u8])],
        time: Duration,
    ) -> Result<()> {
        let format = self.format();
        let tid = self.superblock.sequence;
        let mut at = self.superblock.first;
        for described in blocks.chunks(format.tags_per_block()) {
            let mut writer = DescriptorWriter::new(&format, tid, self.superblock.uuid);
            let mut logged = Vec::with_capacity(described.len());
            for &(block, bytes) in described {
                let mut bytes = bytes.to_vec();
                let escaped = header::begins_with_magic(&bytes);
                if escaped {
                    bytes[..4].fill(0);
                }
                let checksum = format.data_checksum(tid, &bytes);
                assert!(
                    writer.push(block, escaped, checksum),
                    "a chunk is what fits a descriptor"
                );
                logged.push(bytes);
            }
            let descriptor = writer.finish();
            let row: Vec<&[u8]> = std::iter::once(&descriptor[..])
                .chain(logged.iter().map(Vec::as_slice))
                .collect();
            self.area.write(device, at, &row)?;
            at += u32::try_from(row.len()).expect("a descriptor and what it describes");
        }
        device.flush()?;
        let commit = Commit {
            sequence: tid,
            seconds: time.as_secs(),
            nanoseconds: time.subsec_nanos(),
            transaction_sum: TransactionSum::None,
        };
        self.area.write(device, at, &[&commit.encode(&format)])?;
        Ok(device.flush()?)
    }

    /// Sets the log's start. From now on opening the image replays the transaction.
    pub fn begin(&mut self, device: &dyn Device) -> Result<()> {
        self.superblock.start = self.superblock.first;
        self.write_superblock(device)
    }

    /// Empties the log after all blocks were written home.
    pub fn finish(&mut self, device: &dyn Device) -> Result<()> {
        self.superblock.start = 0;
        self.superblock.sequence = self.superblock.sequence.next();
        self.write_superblock(device)
    }

    /// Whether the log on the device holds no transaction.
    pub fn is_empty(&self, device: &dyn Device) -> Result<bool> {
        Ok(recovery::read_superblock(device, &self.area)?.start == 0)
    }

    fn write_superblock(&self, device: &dyn Device) -> Result<()> {
        let (home, _) = self.area.place(0).expect("a journal has blocks");
        let offset = home.get() * u64::from(self.area.block_size());
        device.write_at(offset, &self.superblock.encode())?;
        Ok(device.flush()?)
    }
}

/// Writes the primary superblock and makes it durable.
pub(super) fn write_primary(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    device.write_at(superblock::OFFSET, &superblock.encode())?;
    Ok(device.flush()?)
}
