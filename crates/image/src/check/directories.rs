//! Pass 2: every name of every directory.
//!
//! Each thread takes directory after directory. The leaves of a large indexed directory are split
//! into pieces, in the order of their hashes. The pieces wait until every directory was looked at,
//! so that many threads also share one directory of a million names; once many wait, a thread
//! checks the pieces of its directory itself. The names of a directory, or of a piece, are kept
//! until duplicates among them have been reported, so findings do not depend on who checks a piece.

mod entries;

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{FileType, max_blocks};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::{BlockNumber, InodeNumber};
use pext4_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::budget::Budget;
use super::catalogue::Kind;
use super::encryption::PolicyNumber;
use super::findings::Place;
use super::htree::{self, Index, Leaf};
use super::inodes::{Directories, Directory, DirectoryRun, Inodes, Known};
use super::leaf;
use super::names::Seen;
use super::parallel::Workers;
use super::{Examination, Pass};

/// The number of leaves in a piece.
const LEAVES_AT_ONCE: usize = 256;
/// Once this many leaves wait in pieces, those of further directories do not. A leaf takes 24
/// bytes, and small images can have many leaves: nodes without checksums may lie in one place.
const MAX_WAITING_LEAVES: u64 = 1 << 20;
/// After this many blocks whose chain of records is broken, a directory is not read on: blocks of
/// holes are broken, and an image can have millions of them that take no space.
pub(super) const MAX_BROKEN_BLOCKS: u32 = 1000;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// The parent of a directory for which no name was found.
const NO_PARENT: u32 = u32::MAX;

/// All directories, and the connections between them that the pass finds.
pub(super) struct Tree<'a> {
    pub(super) examination: &'a Examination,
    pub(super) inodes: &'a Inodes,
    pub(super) directories: &'a Directories,
    /// For each directory: the index in the list of the directory that has a name for it, or
    /// [`NO_PARENT`]. If several have one, it is the first of the list, whoever checks it.
    parents: Vec<AtomicU32>,
    /// For each directory: the inode number of its `..`.
    dot_dots: Vec<AtomicU32>,
    workers: &'a Workers<'a>,
    /// The number of directory blocks that may still be read.
    left: Budget,
    waiting: WaitingLeaves,
    /// There were more blocks, which were not read.
    is_cut_short: AtomicBool,
    /// There were names that were not compared with the others of their directory.
    are_names_left: AtomicBool,
}

/// The state of one thread.
#[derive(Default)]
pub(super) struct ThreadState {
    pub(super) seen: Seen,
    buffer: Vec<u8>,
    pieces: Vec<Piece>,
}

/// Leaves of a large directory, in the order of their hashes.
struct Piece {
    directory: usize,
    hasher: Option<Hasher>,
    leaves: Vec<Leaf>,
}

/// Counts the leaves that wait in pieces.
struct WaitingLeaves {
    count: AtomicU64,
    limit: u64,
}

impl WaitingLeaves {
    fn new(limit: u64) -> Self {
        Self {
            count: AtomicU64::new(0),
            limit,
        }
    }

    /// Whether the leaves of another directory may wait. A directory larger than the limit may if
    /// no others do, since it is the one that needs all threads.
    fn add(&self, leaves: usize) -> bool {
        self.count.fetch_add(leaves as u64, Ordering::Relaxed) < self.limit
    }
}

/// A directory that is being checked.
#[derive(Clone, Copy)]
pub(super) struct DirectorySubject<'a> {
    pub(super) tree: &'a Tree<'a>,
    pub(super) place: usize,
    pub(super) directory: &'a Directory,
    pub(super) runs: &'a [DirectoryRun],
    /// Its encryption policy, if it is encrypted and the policy is known.
    pub(super) policy: Option<PolicyNumber>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(
        examination: &'a Examination,
        inodes: &'a Inodes,
        directories: &'a Directories,
        workers: &'a Workers<'a>,
    ) -> Self {
        let all = |value| {
            let mut all = Vec::new();
            all.resize_with(directories.list.len(), || AtomicU32::new(value));
            all
        };
        Self {
            examination,
            inodes,
            directories,
            parents: all(NO_PARENT),
            dot_dots: all(0),
            workers,
            left: Budget::new(examination.blocks_to_read),
            waiting: WaitingLeaves::new(MAX_WAITING_LEAVES),
            is_cut_short: AtomicBool::new(false),
            are_names_left: AtomicBool::new(false),
        }
    }

    /// Runs the pass.
    pub(super) fn examine(&self) {
        let pieces = self.examine_directories();
        self.examine_pieces(&pieces);
    }

    /// Checks all directories but for the pieces that it returns.
    fn examine_directories(&self) -> Vec<Piece> {
        let count = u32::try_from(self.directories.list.len()).unwrap_or(u32::MAX);
        let threads = self.workers.each(
            Pass::Directories,
            count,
            ThreadState::default,
            |thread, place| {
                self.subject(place as usize).examine(thread);
            },
        );
        let pieces = threads.into_iter().flat_map(|thread| thread.pieces);
        pieces.collect()
    }

    fn examine_pieces(&self, pieces: &[Piece]) {
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        self.workers.each(
            Pass::Directories,
            count,
            ThreadState::default,
            |thread, number| {
                let piece = &pieces[number as usize];
                let subject = self.subject(piece.directory);
                subject.leaves(thread, &piece.leaves, piece.hasher);
                subject.find_duplicates(thread);
            },
        );
    }

    /// Whether directories have blocks that were not read, or names that were not compared.
    pub(super) fn is_cut_short(&self) -> bool {
        self.is_cut_short.load(Ordering::Relaxed) || self.are_names_left.load(Ordering::Relaxed)
    }

    pub(super) fn subject(&self, place: usize) -> DirectorySubject<'_> {
        let directory = &self.directories.list[place];
        let inode = InodeNumber(directory.inode);
        let policy = match directory.is_encrypted {
            true => self.examination.policies.of(inode).flatten(),
            false => None,
        };
        DirectorySubject {
            tree: self,
            place,
            directory,
            runs: self.directories.runs_of(directory),
            policy,
        }
    }

    /// The index of the directory that has a name for this one.
    pub(super) fn parent(&self, place: usize) -> Option<usize> {
        let parent = self.parents[place].load(Ordering::Relaxed);
        (parent != NO_PARENT).then_some(parent as usize)
    }

    /// The inode number of this directory's `..`.
    pub(super) fn dot_dot(&self, place: usize) -> InodeNumber {
        InodeNumber(self.dot_dots[place].load(Ordering::Relaxed))
    }

    fn kind_of(&self, inode: InodeNumber) -> Option<FileType> {
        match self.inodes.state(inode) {
            Known::State(state) => FileType::from_entry(state.kind()),
            Known::Absent | Known::Lost | Known::Uninitialised => None,
        }
    }
}

impl DirectorySubject<'_> {
    pub(super) fn number(&self) -> InodeNumber {
        InodeNumber(self.directory.inode)
    }

    pub(super) fn place(&self, block: Option<u64>) -> Place {
        Place {
            block: block.map(BlockNumber),
            ..Place::inode(self.number())
        }
    }

    pub(super) fn report(&self, kind: Kind, block: Option<u64>, text: impl FnOnce() -> String) {
        let place = self.place(block);
        self.tree.examination.findings.add(kind, place, text);
    }

    /// The number of blocks by the directory's size, but no more than are mapped, and than a
    /// directory can have.
    pub(super) fn blocks(&self) -> u32 {
        self.claimed_blocks().min(self.most_blocks())
    }

    /// The number of blocks by the directory's size, but no more than are mapped.
    fn claimed_blocks(&self) -> u32 {
        let mapped = self
            .runs
            .last()
            .map_or(0, |run| run.logical.saturating_add(run.length));
        self.directory.blocks.min(mapped)
    }

    fn most_blocks(&self) -> u32 {
        let geometry = &self.tree.examination.volume.geometry;
        let may_be_large = geometry.features.has_incompat(Incompat::LARGEDIR);
        max_blocks(may_be_large, geometry.block_size)
    }

    /// The location of a logical block.
    pub(super) fn block(&self, logical: u32) -> Option<u64> {
        let behind = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let offset = logical - run.logical;
        (offset < run.length).then(|| run.start + u64::from(offset))
    }

    /// Whether `count` more blocks may be read. False if the check was cancelled, or if directories
    /// that share blocks have more of them than the image.
    pub(super) fn may_read(&self, count: u32) -> bool {
        if self.tree.workers.is_cancelled() {
            return false;
        }
        let may = self.tree.left.take(u64::from(count));
        if !may && !self.tree.is_cut_short.swap(true, Ordering::Relaxed) {
            self.report(Kind::BlockShared, None, || {
                "directories have more blocks than there are: from here on they are not read"
                    .to_owned()
            });
        }
        may
    }

    /// Reports, for one directory of the image, that it has more names than are kept.
    pub(super) fn stop_comparing(&self) {
        if !self.tree.are_names_left.swap(true, Ordering::Relaxed) {
            self.report(Kind::LimitReached, None, || {
                "it has too many names to compare all: among the rest duplicates are not found"
                    .to_owned()
            });
        }
    }

    fn examine(&self, thread: &mut ThreadState) {
        // '.' should lead to this directory. Count the link even if it does not.
        self.tree.inodes.link(self.number());
        if self.directory.is_inline {
            leaf::inline(self, thread);
            return self.find_duplicates(thread);
        }
        self.check_length();
        self.check_holes();
        if !self.directory.is_indexed {
            self.linear(thread, &[]);
            return self.find_duplicates(thread);
        }
        match htree::walk(self) {
            Index {
                is_sound: true,
                hasher,
                leaves,
                ..
            } => self.indexed(thread, &leaves, hasher),
            Index { nodes, .. } => {
                self.linear(thread, &nodes);
                self.find_duplicates(thread);
            }
        }
    }

    fn check_length(&self) {
        let (claimed, most) = (self.claimed_blocks(), self.most_blocks());
        if claimed > most {
            self.report(Kind::LimitReached, None, || {
                format!("it has {claimed} blocks: those after the first {most} are not read")
            });
        }
    }

    fn check_holes(&self) {
        let mut end = 0;
        let blocks = self.blocks();
        for run in self.runs.iter().filter(|run| run.logical < blocks) {
            if run.logical > end {
                let count = run.logical - end;
                self.report(Kind::DirectoryHole, None, || {
                    format!("logical block {end}, {count} long")
                });
            }
            end = run.logical.saturating_add(run.length);
        }
    }

    /// Checks all blocks in order, except for those that are known to be nodes of the index.
    fn linear(&self, thread: &mut ThreadState, nodes: &[u32]) {
        let block_size = self.tree.examination.volume.block_size();
        let at_once = u32::try_from((CHUNK / block_size).max(1)).expect("at most a MiB");
        let end = self.blocks();
        let mut buffer = std::mem::take(&mut thread.buffer);
        let mut broken = 0;
        'runs: for run in self.runs.iter().filter(|run| run.logical < end) {
            let length = run.length.min(end - run.logical);
            for first in (0..length).step_by(at_once as usize) {
                let count = at_once.min(length - first);
                if !self.may_read(count) {
                    break 'runs;
                }
                buffer.resize(count as usize * block_size, 0);
                let start = run.start + u64::from(first);
                self.read(start, &mut buffer);
                for (offset, bytes) in (first..).zip(buffer.chunks_exact(block_size)) {
                    let logical = run.logical + offset;
                    if nodes.binary_search(&logical).is_ok() {
                        continue;
                    }
                    let block = run.start + u64::from(offset);
                    if broken == MAX_BROKEN_BLOCKS {
                        self.stop_reading(block);
                        break 'runs;
                    }
                    let is_whole = leaf::block(self, thread, logical, block, bytes, None);
                    broken += u32::from(!is_whole);
                }
            }
        }
        thread.buffer = buffer;
    }

    fn stop_reading(&self, block: u64) {
        self.report(Kind::LimitReached, Some(block), || {
            format!("{MAX_BROKEN_BLOCKS} of its blocks are broken: from here on it is not read")
        });
    }

    /// Reads blocks. A block that cannot be read is treated as empty.
    fn read(&self, start: u64, into: &mut [u8]) {
        let volume = &self.tree.examination.volume;
        if volume.read(BlockNumber(start), into).is_ok() {
            return;
        }
        let size = volume.block_size();
        for (block, bytes) in (start..).zip(into.chunks_exact_mut(size)) {
            if let Err(error) = volume.read(BlockNumber(block), bytes) {
                self.report(Kind::Unreadable, Some(block), || {
                    format!("directory block: {error}")
                });
                pext4_ondisk::directory::init_empty(bytes, volume.format);
                if let Some(seed) = volume.seed {
                    let generation = self.directory.generation;
                    pext4_ondisk::directory::stamp_leaf(
                        InodeSeed::new(seed, self.number(), generation),
                        bytes,
                    );
                }
            }
        }
    }

    /// Checks the leaves of a sound index. If there are many, adds them as pieces for all threads.
    fn indexed(&self, thread: &mut ThreadState, leaves: &[Leaf], hasher: Option<Hasher>) {
        if leaves.len() <= 2 * LEAVES_AT_ONCE {
            self.leaves(thread, leaves, hasher);
            return self.find_duplicates(thread);
        }
        let may_wait = self.tree.waiting.add(leaves.len());
        for piece in cut(leaves) {
            if may_wait {
                thread.pieces.push(Piece {
                    directory: self.place,
                    hasher,
                    leaves: piece.to_vec(),
                });
            } else {
                self.leaves(thread, piece, hasher);
                self.find_duplicates(thread);
            }
        }
    }

    fn leaves(&self, thread: &mut ThreadState, leaves: &[Leaf], hasher: Option<Hasher>) {
        let mut buffer = std::mem::take(&mut thread.buffer);
        buffer.resize(self.tree.examination.volume.block_size(), 0);
        for leaf in leaves {
            let Some(block) = self.block(leaf.logical) else {
                continue;
            };
            if !self.may_read(1) {
                break;
            }
            self.read(block, &mut buffer);
            let expected = Some((leaf, hasher));
            leaf::block(self, thread, leaf.logical, block, &buffer, expected);
        }
        thread.buffer = buffer;
    }

    fn find_duplicates(&self, thread: &mut ThreadState) {
        thread.seen.duplicates(|name| {
            self.report(Kind::NameDuplicate, None, || {
                format!("'{}'", name.escape_ascii())
            });
        });
    }
}

/// Cuts the leaves of a directory into pieces. Names of one hash stay together.
fn cut(leaves: &[Leaf]) -> impl Iterator<Item = &[Leaf]> {
    let mut rest = leaves;
    std::iter::from_fn(move || {
        let end = (LEAVES_AT_ONCE..rest.len()).find(|&at| !rest[at].continues);
        let (piece, later) = rest.split_at(end.unwrap_or(rest.len()));
        rest = later;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests;
