//! The replay of the journal's log.
//!
//! The log is found, and its replay planned, before any layer exists, with a temporary store that
//! is dropped afterwards, since the replay changes blocks that the search has read. The mount looks
//! at the file system as the replay will leave it ([`FoundJournal::view`]) before the replay writes
//! anything: a log that destroys the file system is refused, and the image stays as it was.

use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Device, OverlayDevice, Page};
use pext4_jbd2::recovery::{Replay, ReplayedDevice};
use pext4_jbd2::{Log, LogArea, recovery};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, journal};

use super::raw_files::{file_blocks, raw_slot};
use super::superblock::{Found, keep_errors_in};
use super::{fast_commits, new_store};
use crate::error::{Error, ErrorText, Result};
use crate::options::MountOptions;
use crate::store::Store;

/// The cache size for the search, in bytes: it reads only a few blocks.
const SEARCH_CACHE: u64 = 1 << 20;

/// What is said of a log that is not replayed, because the superblock does not ask for it.
pub(super) const IGNORED_LOG: &str = "the journal holds transactions whose replay the superblock \
                                      does not ask for: they are dropped";

/// The journal of an image, and what is to be done with it.
pub(super) struct FoundJournal {
    device: Arc<dyn Device>,
    /// `None` for a mount that will not write to a log.
    log: Option<Log>,
    /// The replay that is to be done, or for a read-only mount only shown.
    replay: Option<Arc<Replay>>,
    /// The image as the fast commits behind the log leave it, if there are any and they were
    /// applied.
    applied: Option<Arc<OverlayDevice>>,
    /// The blocks of the journal.
    pub journal_blocks: Vec<Range<u64>>,
    /// Whether the journal had been aborted with an error: the file system may be inconsistent
    /// since then.
    pub had_stopped: bool,
}

impl FoundJournal {
    /// For a mount that will not write to a log.
    fn without_log(device: Arc<dyn Device>, journal_blocks: Vec<Range<u64>>) -> Self {
        Self {
            device,
            log: None,
            replay: None,
            applied: None,
            journal_blocks,
            had_stopped: false,
        }
    }

    /// The device as it will be after the replay. Nothing has been written. Fast commits are
    /// applied once for it, in memory, to the file system that the superblock `found` led to.
    pub(super) fn view(
        &mut self,
        found: &Found,
        options: &MountOptions,
    ) -> Result<Arc<dyn Device>> {
        let device = Arc::clone(&self.device);
        let Some(replay) = &self.replay else {
            return Ok(device);
        };
        let replayed: Arc<dyn Device> = Arc::new(ReplayedDevice::new(device, Arc::clone(replay)));
        if replay.fast_commits().is_empty() {
            return Ok(replayed);
        }
        let applied = fast_commits::apply(replayed, found, replay.fast_commits(), options);
        let applied = applied?;
        self.applied = Some(Arc::clone(&applied));
        Ok(applied)
    }

    /// Whether [`Self::replay`] will write to the device.
    pub(super) fn will_write(&self) -> bool {
        let log = self.log.as_ref();
        log.is_some_and(|log| self.replay.is_some() || log.superblock.start != 0)
    }

    /// Does the replay, and empties a log whose content does not count. Returns the log that the
    /// mount writes to. The replay leaves a file system of `blocks` blocks. Errors that `before`,
    /// the superblock at home, records and the logged one does not are in what it writes, so that
    /// no power cut loses them.
    pub(super) fn replay(
        &mut self,
        before: &Superblock,
        blocks: u64,
        notes: &mut Vec<String>,
    ) -> Result<Option<Log>> {
        let Some(mut log) = self.log.take() else {
            return Ok(None);
        };
        match self.replay.take() {
            Some(replay) => {
                let had_stopped = self.had_stopped;
                let (superblock_home, offset) = superblock::place(log.area.block_size());
                let amend = |home: BlockNumber, bytes: &mut [u8]| {
                    if home == superblock_home {
                        keep_errors_in(&mut bytes[offset as usize..], before, had_stopped);
                    }
                };
                let changes = self.changes(log.area.block_size())?;
                let report = match changes.is_empty() {
                    true => replay.write(&*self.device, &mut log.superblock, blocks, amend),
                    false => replay.write_with_fast_commits(
                        &self.device,
                        &mut log,
                        blocks,
                        changes,
                        amend,
                    ),
                };
                let report = report.map_err(Error::opening)?;
                note_replay(&report, "on the image", notes);
            }
            // The log must be durably empty before this mount sets `recover`.
            None if log.superblock.start != 0 => {
                notes.push(IGNORED_LOG.to_owned());
                recovery::discard(&*self.device, &log.area, &mut log.superblock)
                    .map_err(Error::opening)?;
            }
            None => {}
        }
        if log.superblock.errno != 0 {
            let errno = i64::from(log.superblock.errno).abs();
            notes.push(format!("the journal had stopped before with error {errno}"));
        }
        Ok(Some(log))
    }

    /// The blocks that the fast commits change.
    fn changes(&self, block_size: u32) -> Result<Vec<(BlockNumber, Page)>> {
        let Some(applied) = &self.applied else {
            return Ok(Vec::new());
        };
        let changed = applied.changed_blocks(block_size as usize)?;
        let numbered = changed.into_iter();
        Ok(numbered
            .map(|(block, page)| (BlockNumber(block), page))
            .collect())
    }
}

/// Finds the journal and plans its replay, if that is necessary. Writes nothing.
pub(super) fn find_journal(
    device: Arc<dyn Device>,
    superblock: &Superblock,
    geometry: Geometry,
    options: &MountOptions,
    notes: &mut Vec<String>,
) -> Result<FoundJournal> {
    let is_dirty = superblock.features.has_incompat(Incompat::RECOVER);
    if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
        if is_dirty {
            let problem = "a journal is to be replayed, but there is none";
            return Err(Corrupt::new("superblock", problem).into());
        }
        return Ok(FoundJournal::without_log(device, Vec::new()));
    }
    if options.skip_replay && !options.read_only {
        let why = "an image is not written without its journal: `noload` needs `ro`";
        return Err(Error::Options(ErrorText::new(why)));
    }
    let skips_log = options.read_only && (options.skip_replay || !is_dirty);
    let found = log_of(&device, superblock, geometry, options);
    if skips_log && is_dirty {
        notes.push("the journal was not replayed: the last changes are missing".to_owned());
    }
    match found {
        Ok((_, blocks)) if skips_log => Ok(FoundJournal::without_log(device, blocks)),
        // Only its blocks were wanted, so that no file can claim them.
        Err(error @ (Error::Corrupt(_) | Error::Unsupported(_))) if skips_log => {
            notes.push(format!("the journal is not looked at: {error}"));
            Ok(FoundJournal::without_log(device, Vec::new()))
        }
        Err(error) => Err(error),
        Ok((log, blocks)) if options.bypass_journal && !options.read_only => {
            bypass_log(device, &log, is_dirty, blocks)
        }
        Ok((log, blocks)) => with_log(device, log, blocks, is_dirty, options, notes),
    }
}

/// The journal with a planned replay if the image is dirty.
fn with_log(
    device: Arc<dyn Device>,
    log: Log,
    journal_blocks: Vec<Range<u64>>,
    is_dirty: bool,
    options: &MountOptions,
    notes: &mut Vec<String>,
) -> Result<FoundJournal> {
    let replay = if is_dirty {
        // The new size of a file system that was being grown may be in the log only.
        let blocks = device.size() / u64::from(log.area.block_size());
        let replay = Replay::plan(&*device, &log.area, &log.superblock, blocks);
        Some(Arc::new(replay.map_err(Error::opening)?))
    } else {
        // Without `recover` the content of the log does not count.
        None
    };
    if options.read_only
        && let Some(replay) = &replay
    {
        note_replay(&replay.report(), "in memory", notes);
        return Ok(FoundJournal {
            replay: Some(Arc::clone(replay)),
            ..FoundJournal::without_log(device, journal_blocks)
        });
    }
    Ok(FoundJournal {
        had_stopped: log.superblock.errno != 0,
        device,
        log: Some(log),
        replay,
        applied: None,
        journal_blocks,
    })
}

/// The options of a store that only a few blocks are read with.
pub(super) fn search_options(options: &MountOptions) -> MountOptions {
    MountOptions {
        cache_size: SEARCH_CACHE,
        ..options.clone()
    }
}

/// The journal in an inode of the file system, and its blocks.
pub(super) fn log_of(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    geometry: Geometry,
    options: &MountOptions,
) -> Result<(Log, Vec<Range<u64>>)> {
    if superblock.journal_inode.get() == 0 {
        return Err(match superblock.journal_device {
            0 => Corrupt::new("superblock", "has a journal, and does not say where").into(),
            _ => Error::unsupported("an external journal"),
        });
    }
    let search = search_options(options);
    let store = new_store(Arc::clone(device), superblock.clone(), geometry, search);
    let (area, journal_blocks) = find_log(&store, superblock.journal_inode)?;
    let journal = recovery::read_superblock(&**device, &area).map_err(Error::opening)?;
    let log = Log {
        area,
        superblock: journal,
        keeps_checksums: store.geometry.checksum_seed().is_some(),
    };
    Ok((log, journal_blocks))
}

/// For a mount that writes without the log, which must be empty then.
fn bypass_log(
    device: Arc<dyn Device>,
    log: &Log,
    is_dirty: bool,
    journal_blocks: Vec<Range<u64>>,
) -> Result<FoundJournal> {
    if is_dirty {
        let what = "writing past a journal that has to be replayed first";
        return Err(Error::unsupported(what));
    }
    Ok(FoundJournal {
        had_stopped: log.superblock.errno != 0,
        ..FoundJournal::without_log(device, journal_blocks)
    })
}

fn note_replay(report: &recovery::Recovered, place: &str, notes: &mut Vec<String>) {
    let count = |count: u64, what: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {what}{plural}")
    };
    let mut replayed = Vec::new();
    if report.transactions > 0 {
        let transactions = count(report.transactions.into(), "transaction");
        let blocks = count(report.blocks, "block");
        replayed.push(format!("{transactions} of the journal ({blocks})"));
    }
    if report.fast_commits > 0 {
        replayed.push(count(report.fast_commits.into(), "fast commit"));
    }
    if !replayed.is_empty() {
        notes.push(format!("replayed {} {place}", replayed.join(" and ")));
    }
}

fn find_log(store: &Store, inode: InodeNumber) -> Result<(LogArea, Vec<Range<u64>>)> {
    let slot = raw_slot(store, inode)?;
    let runs = file_blocks(store, inode, &slot, "journal inode")?;
    let runs: Vec<(BlockNumber, u32)> = runs.iter().map(|run| (run.start, run.length)).collect();
    check_length(&runs).map_err(|corrupt| corrupt.in_inode(inode))?;
    let area =
        LogArea::new(store.block_size(), &runs).map_err(|corrupt| corrupt.in_inode(inode))?;
    let blocks = runs
        .iter()
        .map(|(start, length)| start.get()..start.get() + u64::from(*length));
    Ok((area, blocks.collect()))
}

/// Refuses a journal that is longer than any can be: the memory for a recovery grows with the log,
/// whose blocks may all be holes in the host's file.
fn check_length(runs: &[(BlockNumber, u32)]) -> std::result::Result<(), Corrupt> {
    let blocks: u64 = runs.iter().map(|(_, length)| u64::from(*length)).sum();
    if blocks <= u64::from(journal::MAX_BLOCKS) {
        return Ok(());
    }
    let most = journal::MAX_BLOCKS;
    let problem = format!("has {blocks} blocks, and no journal has more than {most}");
    Err(Corrupt::new("journal inode", problem))
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::{BlockNumber, journal};

    use super::check_length;

    #[test]
    fn a_journal_longer_than_any_is_refused() {
        let runs = |last| {
            vec![
                (BlockNumber(9), journal::MAX_BLOCKS - 1),
                (BlockNumber(1), last),
            ]
        };
        assert!(check_length(&runs(1)).is_ok());
        let refused = check_length(&runs(2)).expect_err("one block too many");
        assert!(refused.to_string().contains("10240001 blocks"), "{refused}");
    }
}
