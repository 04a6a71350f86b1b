//! Pass 0: checks the journal, and replays it into memory if needed. The length of the journal
//! bounds the memory.

use std::sync::Arc;

use pext4_block::Device;
use pext4_jbd2::recovery::{self, Replay, ReplayedDevice};
use pext4_jbd2::{JournalError, LogArea};
use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::catalogue::Kind;
use super::findings::{Findings, Place};
use super::mapping::{Collector, Run};
use super::volume::{Group, Volume};

/// The minimum number of blocks of a journal.
const MIN_BLOCKS: u64 = 1024;

/// What the passes after this one have to check.
pub(super) enum AfterJournal {
    /// The image as it is: nothing needs replay, or what does is a finding.
    AsIs,
    /// The image after the replay.
    Replayed(Arc<dyn Device>),
    /// Nothing: the image is sound only after a replay that this checker cannot do.
    Unknown,
}

/// Checks the journal, and replays it in memory if it needs replay.
pub(super) fn check(volume: &Volume, groups: &[Group], findings: &Findings) -> AfterJournal {
    let superblock = &volume.superblock;
    let number = superblock.journal_inode;
    if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
        return AfterJournal::AsIs;
    }
    let is_dirty = superblock.features.has_incompat(Incompat::RECOVER);
    if number.get() == 0 {
        return check_external(superblock, is_dirty, findings);
    }
    let Some((area, inode)) = find(volume, groups, number, findings) else {
        return AfterJournal::AsIs;
    };
    check_copy(volume, &inode, findings);
    let journal = match recovery::read_superblock(&*volume.device, &area) {
        Ok(journal) => journal,
        Err(error) => {
            let place = Place::inode(number);
            findings.add(Kind::JournalSuperblock, place, || error.to_string());
            return AfterJournal::AsIs;
        }
    };
    if !check_superblock(number, &journal, findings) {
        return AfterJournal::AsIs;
    }
    if !is_dirty {
        if journal.start != 0 {
            findings.add(Kind::JournalUnflagged, Place::inode(number), || {
                format!("its log starts at block {}", journal.start)
            });
        }
        return AfterJournal::AsIs;
    }
    let error = match replay(volume, &area, &journal, findings) {
        Ok(state) => return state,
        Err(error) => error,
    };
    let (kind, state) = match error {
        JournalError::Unsupported(_) => (Kind::JournalUnsupported, AfterJournal::Unknown),
        _ => (Kind::JournalUnreplayable, AfterJournal::AsIs),
    };
    findings.add(kind, Place::inode(number), || error.to_string());
    state
}

/// Checks the journal's superblock. False if the journal has unknown features and cannot be used.
fn check_superblock(number: InodeNumber, journal: &JournalSuperblock, findings: &Findings) -> bool {
    let place = || Place::inode(number);
    if let Some(unknown) = unknown_features(journal) {
        findings.add(Kind::JournalSuperblock, place(), || unknown);
        return false;
    }
    if journal.users() > 1 {
        findings.add(Kind::JournalSuperblock, place(), || {
            let users = journal.users();
            format!(
                "{users} file systems use it, but only a journal on a device of its own may be shared"
            )
        });
    }
    if journal.fast_commit_blocks() > 0 && u64::from(journal.log_end()) < MIN_BLOCKS {
        findings.add(Kind::JournalSuperblock, place(), || {
            let (fast, all) = (journal.fast_commit_blocks(), journal.max_len);
            format!("{fast} blocks for fast commits leave too little of {all} for the log")
        });
    }
    if journal.errno != 0 {
        findings.add(Kind::StateErrors, place(), || {
            format!("the journal stopped with error {}", journal.errno)
        });
    }
    true
}

/// Checks a journal that lies on another device, which is not read.
fn check_external(superblock: &Superblock, is_dirty: bool, findings: &Findings) -> AfterJournal {
    let is_named = superblock.journal_uuid != [0; 16];
    let (kind, text, state) = match (is_named, is_dirty) {
        (true, false) => return AfterJournal::AsIs,
        (true, true) => (
            Kind::JournalUnsupported,
            "it lies on another device, which is not read: `e2fsck -j DEVICE` replays it",
            AfterJournal::Unknown,
        ),
        (false, true) => (
            Kind::JournalUnreplayable,
            "there is none, here or elsewhere",
            AfterJournal::AsIs,
        ),
        (false, false) => (
            Kind::JournalInode,
            "has_journal is set, and no journal is named, here or elsewhere",
            AfterJournal::AsIs,
        ),
    };
    findings.add(kind, Place::whole(), || text.to_owned());
    state
}

/// Features that this library does not know, and without which even an empty journal can be neither
/// read nor written.
fn unknown_features(journal: &JournalSuperblock) -> Option<String> {
    let to_write = journal.read_only_compat.bits();
    let to_read = journal.incompat.unknown();
    to_read
        .or_else(|| (to_write != 0).then(|| format!("journal features {to_write:#x} (ro_compat)")))
}

/// The location of the log, and the journal's inode.
fn find(
    volume: &Volume,
    groups: &[Group],
    number: InodeNumber,
    findings: &Findings,
) -> Option<(LogArea, Inode)> {
    let report = |text: String| {
        findings.add(Kind::JournalInode, Place::inode(number), || text);
    };
    let Ok(inode) = volume.inode(groups, number) else {
        report("it cannot be read".to_owned());
        return None;
    };
    let blocks = inode.size.div_ceil(u64::from(volume.geometry.block_size));
    if inode.file_type() != Some(FileType::Regular) || inode.links == 0 || blocks < MIN_BLOCKS {
        let (mode, links) = (inode.mode, inode.links);
        report(format!("mode {mode:06o}, {links} links, {blocks} blocks"));
        return None;
    }
    let collected = Collector::collect(volume, number, &inode);
    let runs = match without_holes(&collected.runs, blocks) {
        Some(runs) if collected.is_sound() => runs,
        _ => {
            report(format!("its {blocks} blocks are not all there"));
            return None;
        }
    };
    match LogArea::new(volume.geometry.block_size, &runs) {
        Ok(area) => Some((area, inode)),
        Err(corrupt) => {
            report(corrupt.problem().to_owned());
            None
        }
    }
}

/// The runs of a file's first blocks, if there is no hole among them.
fn without_holes(runs: &[Run], blocks: u64) -> Option<Vec<(BlockNumber, u32)>> {
    let mut end = 0;
    let mut placed = Vec::with_capacity(runs.len());
    for run in runs {
        if end >= blocks {
            break;
        }
        if u64::from(run.logical) != end || run.unwritten {
            return None;
        }
        placed.push((run.start, run.length));
        end = run.end();
    }
    (end >= blocks).then_some(placed)
}

/// Checks the superblock's copy of the journal's map, which is used if the inode is lost.
fn check_copy(volume: &Volume, inode: &Inode, findings: &Findings) {
    if volume.superblock.journal_backup_type != 1 {
        return;
    }
    let words = volume.superblock.journal_backup;
    let mut bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let same_map = inode.block.iter().all(|&byte| bytes.next() == Some(byte));
    let size = u64::from(words[15]) << 32 | u64::from(words[16]);
    if !same_map || size != inode.size {
        let place = Place::inode(volume.superblock.journal_inode);
        findings.add(Kind::JournalBackup, place, || {
            let what = if same_map { "size" } else { "block map" };
            format!("the superblock's copy has another {what}")
        });
    }
}

fn replay(
    volume: &Volume,
    area: &LogArea,
    journal: &JournalSuperblock,
    findings: &Findings,
) -> Result<AfterJournal, JournalError> {
    // If a resize was interrupted, the new size of the file system is only in the log, so the bound
    // is the device's size.
    let blocks = volume.device.size() / u64::from(volume.geometry.block_size);
    let replay = Replay::plan(&*volume.device, area, journal, blocks)?;
    replay.refuse_fast_commits()?;
    let report = replay.report();
    if report.blocks == 0 {
        return Ok(AfterJournal::AsIs);
    }
    let place = || Place::inode(volume.superblock.journal_inode);
    let damaged = replay.damaged_superseded(&*volume.device);
    if let Some(first) = damaged.first() {
        findings.add(Kind::JournalSupersededDamage, place(), || {
            match damaged.len() {
                1 => format!("1 block, which belongs to block {first}"),
                count => format!("{count} blocks, the first of which belongs to block {first}"),
            }
        });
    }
    findings.add(Kind::JournalPending, place(), || {
        let (transactions, blocks) = (report.transactions, report.blocks);
        format!("replayed in memory (transactions: {transactions}, blocks: {blocks})")
    });
    let device = Arc::clone(&volume.device);
    let replayed = ReplayedDevice::new(device, Arc::new(replay));
    Ok(AfterJournal::Replayed(Arc::new(replayed)))
}
