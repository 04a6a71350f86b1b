//! The tree of a quota file.
//!
//! Every block of the tree is entered once, and references are followed only as often as the image
//! could have entries, so a walk ends on any bytes.

use std::collections::{BTreeMap, HashMap, HashSet};

use pext4_ondisk::inode::Inode;
use pext4_ondisk::quota::{self, BLOCK_SIZE, DEPTH, ENTRIES, ROOT};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Examination;
use super::catalogue::Kind;
use super::findings::Place;
use super::mapping::{Collector, Run};
use super::parallel::Workers;
use super::quota::Taken;
use super::volume::Volume;

/// The maximum number of blocks of a file that are kept in memory.
const MAX_KEPT: usize = 4096;

/// A quota file, read block by block.
pub(super) struct File<'a> {
    volume: &'a Volume,
    number: InodeNumber,
    runs: Vec<Run>,
    /// There are more runs than are kept.
    is_cut_short: bool,
    kept: HashMap<u32, Vec<u8>>,
}

impl<'a> File<'a> {
    pub(super) fn new(examination: &'a Examination, number: InodeNumber, inode: &Inode) -> Self {
        let volume = &examination.volume;
        let collected = Collector::collect(volume, number, inode);
        let is_cut_short = collected
            .faults
            .iter()
            .any(|(kind, _)| *kind == Kind::LimitReached);
        if is_cut_short {
            report_limit(examination, number, "its map is too long to keep");
        }
        Self {
            volume,
            number,
            runs: collected.runs,
            is_cut_short,
            kept: HashMap::new(),
        }
    }

    /// Whether a block may be in the part of the map that was not kept.
    fn is_lost(&self, number: u32) -> bool {
        self.is_cut_short && self.place(self.logical(number)).is_none()
    }

    /// The logical block that contains a block of 1 KiB.
    fn logical(&self, number: u32) -> u32 {
        number / u32::try_from(self.per_block()).unwrap_or(1)
    }

    fn per_block(&self) -> usize {
        (self.volume.block_size() / BLOCK_SIZE).max(1)
    }

    /// A block of 1 KiB, and the block of the file system that contains it. Zeroes in a hole, empty
    /// if the device failed.
    pub(super) fn block(&mut self, number: u32) -> (Option<BlockNumber>, &[u8]) {
        let within = number as usize % self.per_block() * BLOCK_SIZE;
        let run = self.place(self.logical(number));
        let block = run.map(|(block, _)| block);
        if self.kept.len() >= MAX_KEPT {
            self.kept.clear();
        }
        let volume = self.volume;
        let bytes = self.kept.entry(number).or_insert_with(|| match run {
            Some((block, false)) => {
                let bytes = volume.block(block).unwrap_or_default();
                let part = bytes.get(within..within + BLOCK_SIZE);
                part.unwrap_or_default().to_vec()
            }
            Some((_, true)) | None => vec![0; BLOCK_SIZE],
        });
        (block, bytes)
    }

    /// The location of a logical block, and whether it reads as zeroes.
    fn place(&self, logical: u32) -> Option<(BlockNumber, bool)> {
        let behind = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let offset = logical - run.logical;
        let block = run.start.checked_add(offset)?;
        (offset < run.length).then_some((block, run.unwritten))
    }
}

fn report_limit(examination: &Examination, number: InodeNumber, why: &str) {
    let text = || format!("{why}: a part of the quota file was not checked");
    let place = Place::inode(number);
    examination.findings.add(Kind::LimitReached, place, text);
}

/// An owner's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) taken: Taken,
    /// Its block in the file system.
    pub(super) block: Option<BlockNumber>,
    /// Its leaf's number in the file.
    leaf: u32,
    /// Whether the tree leads to it by the owner's number.
    is_found: bool,
}

/// The entries of a tree.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// By owner.
    pub(super) entries: BTreeMap<u32, Entry>,
    /// Parts of the tree were not read.
    pub(super) is_partial: bool,
}

/// Reads the tree of a file with this number of blocks of 1 KiB.
pub(super) fn read(
    examination: &Examination,
    workers: &Workers<'_>,
    file: &mut File<'_>,
    blocks: u32,
) -> Recorded {
    let per_block = file.per_block() as u64;
    let kibibytes = examination.blocks_to_read.saturating_mul(per_block);
    let mut walk = Walk {
        examination,
        workers,
        file,
        blocks,
        nodes: HashSet::new(),
        leaves: HashSet::new(),
        left: kibibytes.saturating_mul(ENTRIES as u64),
        is_cut_short: false,
        recorded: Recorded::default(),
    };
    walk.node(ROOT, 0, 0);
    walk.report_unreachable_entries();
    walk.recorded
}

struct Walk<'a, 'b> {
    examination: &'a Examination,
    workers: &'a Workers<'a>,
    file: &'a mut File<'b>,
    blocks: u32,
    /// The blocks of the tree that were entered, and the leaves that were read.
    nodes: HashSet<u32>,
    leaves: HashSet<u32>,
    /// The number of references that may still be followed. A block of the tree is one of the
    /// image, and takes the place of several entries.
    left: u64,
    /// There were more.
    is_cut_short: bool,
    recorded: Recorded,
}

impl Walk<'_, '_> {
    fn report(&self, block: Option<BlockNumber>, text: impl FnOnce() -> String) {
        let mut place = Place::inode(self.file.number);
        place.block = block;
        self.examination.findings.add(Kind::QuotaTree, place, text);
    }

    /// Reports a problem that makes the walk skip a part of the tree.
    fn skip(&mut self, block: Option<BlockNumber>, text: impl FnOnce() -> String) {
        self.recorded.is_partial = true;
        self.report(block, text);
    }

    /// Reads a block of the tree. `prefix` has the leading bytes of the owners' numbers below it.
    fn node(&mut self, number: u32, depth: u32, prefix: u32) {
        if !self.may_follow() {
            return;
        }
        if self.file.is_lost(number) {
            self.recorded.is_partial = true;
            return;
        }
        let (block, bytes) = self.file.block(number);
        let references: Vec<u32> = quota::references(bytes).collect();
        if references.is_empty() {
            return self.skip(block, || {
                format!("block {number} of the file cannot be read")
            });
        }
        if self.leaves.contains(&number) || !self.nodes.insert(number) {
            return self.skip(block, || {
                format!("block {number} of the file has two parents")
            });
        }
        let used = (0..).zip(references).filter(|&(_, child)| child != 0);
        for (slot, child) in used {
            let prefix = prefix << 8 | slot;
            if child >= self.blocks {
                let all = self.blocks;
                self.skip(block, || {
                    format!("block {number} of the file leads to block {child} of {all}")
                });
            } else if depth + 1 < DEPTH {
                self.node(child, depth + 1, prefix);
            } else {
                self.leaf(child, prefix);
            }
        }
    }

    /// The leaf that an owner's number leads to.
    fn leaf(&mut self, number: u32, id: u32) {
        if !self.may_follow() {
            return;
        }
        if self.file.is_lost(number) {
            self.recorded.is_partial = true;
            return;
        }
        let (block, bytes) = self.file.block(number);
        if self.leaves.insert(number) {
            let entries: Vec<quota::Entry> = quota::entries(bytes).collect();
            if bytes.is_empty() {
                self.skip(block, || {
                    format!("block {number} of the file cannot be read")
                });
            }
            for entry in entries {
                self.entry(number, block, entry);
            }
            if self.nodes.contains(&number) {
                self.report(block, || {
                    format!("block {number} of the file has two parents")
                });
            }
        }
        match self.recorded.entries.get_mut(&id) {
            Some(entry) if entry.leaf == number => entry.is_found = true,
            _ => self.report(block, || {
                format!("number {id} leads to block {number} of the file, where it has no entry")
            }),
        }
    }

    /// Takes one of the references that may be followed. False if none is left, which is reported
    /// once, or if the check was cancelled.
    fn may_follow(&mut self) -> bool {
        if let Some(left) = self.left.checked_sub(1)
            && !self.workers.is_cancelled()
        {
            self.left = left;
            return true;
        }
        self.recorded.is_partial = true;
        if self.left == 0 && !std::mem::replace(&mut self.is_cut_short, true) {
            let why = "it has more references than the image could have entries";
            report_limit(self.examination, self.file.number, why);
        }
        false
    }

    fn entry(&mut self, leaf: u32, block: Option<BlockNumber>, entry: quota::Entry) {
        let new = Entry {
            taken: Taken {
                space: entry.space,
                inodes: entry.inodes,
            },
            block,
            leaf,
            is_found: false,
        };
        let id = entry.id;
        if self.recorded.entries.insert(id, new).is_some() {
            self.report(block, || format!("number {id} has two entries"));
        }
    }

    /// Reports entries to which the tree does not lead by their owner's number.
    fn report_unreachable_entries(&self) {
        let lost = self
            .recorded
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_found);
        for (id, entry) in lost.filter(|_| !self.recorded.is_partial) {
            self.report(entry.block, || {
                format!("nothing leads to the entry of number {id}")
            });
        }
    }
}
