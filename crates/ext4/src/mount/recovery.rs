//! Recovery after a crash: replay of the journal's log, and of inodes that were being deleted or
//! truncated.
//!
//! The log is found, and its replay planned, before any layer exists, with a temporary store that
//! is dropped afterwards, since the replay changes blocks that the search has read. The mount looks
//! at the file system as the replay will leave it ([`FoundJournal::view`]) before the replay writes
//! anything: a log that destroys the file system is refused, and the image stays as it was.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use pext4_block::Device;
use pext4_jbd2::recovery::{Replay, ReplayedDevice};
use pext4_jbd2::{Log, LogArea, recovery};
use pext4_ondisk::extent::{self, Bounds};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::Inode as Slot;
use pext4_ondisk::superblock::{self, State, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock, indirect, journal};

use super::superblock::keep_errors_in;
use super::{MAX_NOTES, new_store};
use crate::error::{Error, Refusal, Result};
use crate::groups::open::{decode_descriptor, with_advice};
use crate::inode::extents::{self, Extent, NodeStore};
use crate::options::MountOptions;
use crate::orphan::{OrphanFile, OrphanPlace};
use crate::store::Store;
use crate::types::FileType;
use crate::volume::Volume;

/// The cache size for the search, in bytes: it reads only a few blocks.
const SEARCH_CACHE: u64 = 1 << 20;

/// The journal of an image, and what is to be done with it.
pub(super) struct FoundJournal {
    device: Arc<dyn Device>,
    /// `None` for a mount that will not write to a log.
    log: Option<Log>,
    /// The replay that is to be done, or for a read-only mount only shown.
    replay: Option<Arc<Replay>>,
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
            journal_blocks,
            had_stopped: false,
        }
    }

    /// The device as it will be after the replay. Nothing has been written.
    pub(super) fn view(&self) -> Arc<dyn Device> {
        let device = Arc::clone(&self.device);
        match &self.replay {
            Some(replay) => Arc::new(ReplayedDevice::new(device, Arc::clone(replay))),
            None => device,
        }
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
        let device = &*self.device;
        match self.replay.take() {
            Some(replay) => {
                let had_stopped = self.had_stopped;
                let (superblock_home, offset) = superblock::place(log.area.block_size());
                let report = replay.write(device, &mut log.superblock, blocks, |home, bytes| {
                    if home == superblock_home {
                        keep_errors_in(&mut bytes[offset as usize..], before, had_stopped);
                    }
                });
                let report = report.map_err(Error::opening)?;
                note_replay(&report, "on the image", notes);
            }
            // The log must be durably empty before this mount sets `recover`.
            None if log.superblock.start != 0 => {
                recovery::discard(device, &log.area, &mut log.superblock)
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
        return Err(Error::Options(why));
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
        Err(error) if options.read_only => Err(advise_skipping(error)),
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
        let replay = replay.map_err(Error::opening);
        Some(Arc::new(match options.read_only {
            true => replay.map_err(advise_skipping)?,
            false => replay?,
        }))
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
        journal_blocks,
    })
}

/// Adds how the image can be read without its journal.
fn advise_skipping(error: Error) -> Error {
    match error {
        Error::Corrupt(corrupt) => {
            let advice = "a mount with `-o ro,noload` reads the image without it";
            corrupt.adding(advice).into()
        }
        Error::Unsupported(what) => Error::Unsupported(format!(
            "{what}; a mount with `-o ro,noload` reads the image without its journal"
        )),
        error => error,
    }
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
        return Err(Error::Unsupported("an external journal".to_owned()));
    }
    let search = search_options(options);
    let store = new_store(Arc::clone(device), superblock.clone(), geometry, search);
    let (area, journal_blocks) = find_log(&store, superblock.journal_inode)?;
    let journal = recovery::read_superblock(&**device, &area).map_err(Error::opening)?;
    let log = Log {
        area,
        superblock: journal,
        keeps_checksums: store.metadata_csum,
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
        return Err(Error::Unsupported(what.to_owned()));
    }
    Ok(FoundJournal {
        had_stopped: log.superblock.errno != 0,
        ..FoundJournal::without_log(device, journal_blocks)
    })
}

fn note_replay(report: &recovery::Recovered, place: &str, notes: &mut Vec<String>) {
    if report.transactions > 0 {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (transactions, blocks) = (report.transactions, report.blocks);
        notes.push(format!(
            "replayed {transactions} transaction{} of the journal ({blocks} block{}) {place}",
            plural(u64::from(transactions)),
            plural(blocks),
        ));
    }
}

/// The slot of an inode, read without the inode table in memory.
fn raw_slot(store: &Store, inode: InodeNumber) -> Result<Slot> {
    let geometry = &store.geometry;
    let absent =
        || Corrupt::new("superblock", "names an inode that does not exist").in_inode(inode);
    let (group, index) = geometry.inode_group(inode).ok_or_else(absent)?;
    let (block, offset) = geometry.descriptor_location(group);
    let descriptor = {
        let buffer = store.read_block(block)?;
        let state = buffer.read();
        let start = offset as usize;
        let bytes = &state.page[start..start + usize::from(geometry.descriptor_size)];
        let (descriptor, _) = decode_descriptor(store, group, bytes)
            .map_err(|corrupt| corrupt.in_group(group).in_block(block))
            .map_err(|corrupt| match store.options.read_only {
                true => corrupt.into(),
                false => with_advice(corrupt),
            })?;
        descriptor
    };
    let (block, offset) = geometry
        .inode_slot(descriptor.inode_table, index)
        .ok_or_else(absent)?;
    let buffer = store.read_block(block)?;
    let state = buffer.read();
    let start = offset as usize;
    let bytes = &state.page[start..start + usize::from(geometry.inode_size)];
    Ok(store
        .decode_slot(bytes, inode)
        .map_err(|corrupt| corrupt.in_inode(inode).in_block(block))?)
}

/// The blocks of one of the file system's own files, which must have no holes.
fn file_blocks(
    store: &Store,
    inode: InodeNumber,
    slot: &Slot,
    what: &'static str,
) -> Result<Vec<Extent>> {
    let corrupt = |problem: &'static str| Error::from(Corrupt::new(what, problem).in_inode(inode));
    if slot.file_type() != Some(FileType::Regular) || slot.links == 0 {
        return Err(corrupt("is no regular file"));
    }
    let count = slot.size / u64::from(store.block_size());
    // Without holes it cannot have more blocks than the file system.
    let count = u32::try_from(count)
        .ok()
        .filter(|&count| u64::from(count) <= store.geometry.blocks_count);
    let count = count.ok_or_else(|| corrupt("is absurdly large"))?;
    let runs = if slot.has_extents() {
        extents_of(store, inode, slot, count)?
    } else {
        mapped_blocks(store, slot, count).map_err(|error| error.in_inode(inode))?
    };
    let mut next = 0;
    for run in &runs {
        if u64::from(run.logical.get()) != next || run.unwritten {
            return Err(corrupt("has a hole"));
        }
        next = run.end();
    }
    if next < u64::from(count) || count == 0 {
        return Err(corrupt("has a hole at its end"));
    }
    Ok(runs)
}

fn extents_of(store: &Store, inode: InodeNumber, slot: &Slot, count: u32) -> Result<Vec<Extent>> {
    let nodes = RawNodes {
        store,
        inode,
        generation: slot.generation,
    };
    let mut runs = Vec::new();
    extents::walk(&slot.block, &nodes, 0..u64::from(count), &mut |extent| {
        runs.push(extent);
        ControlFlow::Continue(())
    })
    .map_err(|error| error.in_inode(inode))?;
    Ok(runs)
}

fn mapped_blocks(store: &Store, slot: &Slot, count: u32) -> Result<Vec<Extent>> {
    let mut runs: Vec<Extent> = Vec::new();
    // The starts of runs: detects a block of pointers that is reached again and again without end.
    let mut begun = HashSet::new();
    for logical in (0..count).map(LogicalBlock) {
        let read = |block: BlockNumber, index: usize| -> Result<u32> {
            let buffer = store.read_block(block)?;
            Ok(indirect::entry(&buffer.read().page, index))
        };
        let Some(start) = indirect::lookup(&slot.block, store.block_size(), logical, read)? else {
            // A hole, which the caller refuses.
            break;
        };
        let bad = |problem| Corrupt::new("block map", problem).in_block(start);
        if !store.contains(start, 1) {
            return Err(bad("leads outside the file system").into());
        }
        match runs.last_mut() {
            Some(last) if continues(last, logical, start) => last.length += 1,
            _ if !begun.insert(start) => return Err(bad("leads to a block twice").into()),
            _ => runs.push(Extent {
                logical,
                start,
                length: 1,
                unwritten: false,
            }),
        }
    }
    Ok(runs)
}

fn continues(run: &Extent, logical: LogicalBlock, start: BlockNumber) -> bool {
    run.end() == u64::from(logical.get()) && run.start.checked_add(run.length) == Some(start)
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

/// Read-only access to tree nodes before there is a journal.
struct RawNodes<'a> {
    store: &'a Store,
    inode: InodeNumber,
    generation: u32,
}

impl NodeStore for RawNodes<'_> {
    fn bounds(&self) -> Bounds {
        self.store.bounds()
    }

    fn block_size(&self) -> usize {
        self.store.block_size() as usize
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let buffer = self.store.read_block(block)?;
        let page = buffer.page();
        if self.store.metadata_csum {
            extent::verify_node(self.store.checksum_seed, self.inode, self.generation, &page)
                .map_err(|corrupt| corrupt.in_block(block))?;
        }
        extents::check_node(&page, depth, &self.bounds())
            .map_err(|corrupt| corrupt.in_block(block))?;
        look(&page)
    }

    fn edit<R>(&mut self, _block: BlockNumber, _change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Err(Refusal::ReadOnly.into())
    }

    fn reserve(&mut self, _nodes: u32) -> Result<()> {
        Err(Refusal::ReadOnly.into())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        Err(Refusal::ReadOnly.into())
    }

    fn free(&mut self, _block: BlockNumber) -> Result<()> {
        Err(Refusal::ReadOnly.into())
    }
}

/// The orphans that an image holds.
#[derive(Default)]
pub(super) struct FoundOrphans {
    pub file: Option<(OrphanFile, Vec<BlockNumber>)>,
    pub chain: Vec<InodeNumber>,
}

/// Refuses an image whose root is not a directory. Called before anything but the replay is
/// written.
pub(super) fn check_root(store: &Store) -> Result<()> {
    let root = raw_slot(store, InodeNumber::ROOT)?;
    if root.file_type() != Some(FileType::Directory) || root.links == 0 {
        return Err(Corrupt::new("root directory", "inode 2 is no directory")
            .in_inode(InodeNumber::ROOT)
            .into());
    }
    Ok(())
}

/// Reads which inodes are orphans; a read-only mount does not need them.
pub(super) fn find_orphans(store: &Store) -> Result<FoundOrphans> {
    if store.options.read_only {
        return Ok(FoundOrphans::default());
    }
    let (file, first, had_errors) = store.superblock(|superblock| {
        (
            superblock.orphan_file_inode,
            superblock.last_orphan,
            superblock.state.contains(State::ERRORS),
        )
    });
    let file = if store.features.has_compat(Compat::ORPHAN_FILE) {
        Some(orphan_file(store, file)?)
    } else {
        None
    };
    // On an image with errors the chain may be corrupt: it is left to e2fsck.
    let chain = if had_errors {
        Vec::new()
    } else {
        orphan_chain(store, first)?
    };
    Ok(FoundOrphans { file, chain })
}

fn orphan_file(store: &Store, inode: InodeNumber) -> Result<(OrphanFile, Vec<BlockNumber>)> {
    /// Linux refuses larger orphan files.
    const MAX_BLOCKS: u64 = 8 << 10;
    let slot = raw_slot(store, inode)?;
    if slot.size / u64::from(store.block_size()) > MAX_BLOCKS {
        return Err(Corrupt::new("orphan file", "is absurdly large")
            .in_inode(inode)
            .into());
    }
    let runs = file_blocks(store, inode, &slot, "orphan file")?;
    let blocks = runs
        .iter()
        .flat_map(|run| (0..run.length).filter_map(|step| run.start.checked_add(step)))
        .collect();
    Ok((
        OrphanFile {
            inode,
            generation: slot.generation,
        },
        blocks,
    ))
}

fn orphan_chain(store: &Store, first: InodeNumber) -> Result<Vec<InodeNumber>> {
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut next = first;
    while next.get() != 0 {
        if next < store.geometry.first_inode || !seen.insert(next) {
            return Err(
                Corrupt::new("orphan list", format!("leads to inode {next}"))
                    .in_inode(next)
                    .into(),
            );
        }
        let slot = raw_slot(store, next)?;
        chain.push(next);
        next = InodeNumber(slot.deletion_time);
    }
    Ok(chain)
}

impl Volume {
    /// Finishes orphans: deletes inodes without a name and truncates others to their size. An inode
    /// that cannot be finished stays an orphan, with a note.
    ///
    /// On an image with errors any inode may be listed as an orphan by mistake: all are left to
    /// e2fsck, and those in the orphan file stay there.
    pub(super) fn finish_orphans(mut self) -> Result<Self> {
        let orphans = self.inodes.orphans.snapshot();
        let store = &self.inodes.store;
        if !orphans.is_empty()
            && store.superblock(|superblock| superblock.state.contains(State::ERRORS))
        {
            self.notes.push(format!(
                "{} deletions and truncations that a crash had interrupted are left to e2fsck -f",
                orphans.len()
            ));
            return Ok(self);
        }
        let (mut finished, mut left) = (0usize, 0usize);
        for (number, place) in orphans {
            match self.finish_orphan(number, place) {
                Ok(is_finished) => finished += usize::from(is_finished),
                Err(error) if store.journal().failure().is_some() => return Err(error),
                Err(error) => {
                    left += 1;
                    if left <= MAX_NOTES {
                        self.notes.push(format!(
                            "orphan inode {number} could not be finished: {error}"
                        ));
                    }
                }
            }
        }
        let others = left.saturating_sub(MAX_NOTES);
        if others > 0 {
            self.notes.push(format!(
                "{others} more orphan inodes could not be finished; e2fsck -f should mend them"
            ));
        }
        if finished > 0 {
            self.notes.push(format!(
                "finished {finished} deletions and truncations that a crash had interrupted"
            ));
        }
        Ok(self)
    }

    /// Finishes one orphan; false if it was finished before, at another place.
    fn finish_orphan(&self, number: InodeNumber, place: OrphanPlace) -> Result<bool> {
        if number < self.inodes.store.geometry.first_inode {
            return Err(Corrupt::new("orphan", "is a reserved inode")
                .in_inode(number)
                .into());
        }
        let inode = self.inodes.get_orphan(number)?;
        if inode.is_dead() {
            // It is listed twice, and finished. A place that stays would name whatever file gets
            // the number next.
            self.inodes.remove_orphan_place(number, place)?;
            return Ok(false);
        }
        inode.note(|state| state.orphan = Some(place));
        if inode.state(|state| state.slot.links == 0) {
            self.reap_if_due(&inode)?;
        } else {
            self.inodes.finish_cut(&inode)?;
        }
        Ok(true)
    }
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
