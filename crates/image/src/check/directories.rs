//! Pass 2: every name of every directory.
//!
//! Each thread takes directory after directory. The leaves of a large indexed directory are split
//! into pieces, in the order of their hashes. The pieces wait until every directory was looked at,
//! so that many threads also share one directory of a million names; once many wait, a thread
//! checks the pieces of its directory itself. The names of a directory, or of a piece, are kept
//! until duplicates among them have been reported, so findings do not depend on who checks a piece.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::{BlockNumber, InodeNumber};
use pext4_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::budget::Budget;
use super::catalogue::Kind;
use super::encryption::{self, PolicyNumber};
use super::findings::Place;
use super::htree::{self, Index, Leaf};
use super::inodes::{Directories, Directory, DirectoryRun, Inodes, Known, State};
use super::leaf;
use super::names::Seen;
use super::parallel::Workers;
use super::{Examination, Pass};

/// The number of leaves in a piece.
const LEAVES_AT_ONCE: usize = 256;
/// Once this many leaves wait in pieces, those of further directories do not. A leaf takes 24
/// bytes, and small images can have many leaves: nodes without checksums may lie in one place.
const MAX_WAITING_LEAVES: u64 = 1 << 20;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// The parent of a directory for which no name was found.
const NO_PARENT: u32 = u32::MAX;

/// The directory in the root to which a repair attaches lost inodes.
const LOST_FOUND: &[u8] = b"lost+found";

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
            left: Budget::new(examination.volume.geometry.blocks_count),
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
            Known::Absent | Known::Uninitialised => None,
        }
    }
}

impl DirectorySubject<'_> {
    pub(super) fn number(&self) -> InodeNumber {
        InodeNumber(self.directory.inode)
    }

    pub(super) fn place(&self, block: Option<u64>) -> Place {
        Place {
            block,
            ..Place::inode(self.number())
        }
    }

    pub(super) fn report(&self, kind: Kind, block: Option<u64>, text: impl FnOnce() -> String) {
        let place = self.place(block);
        self.tree.examination.findings.add(kind, place, text);
    }

    /// The number of blocks by the directory's size, but no more than are mapped.
    pub(super) fn blocks(&self) -> u32 {
        let mapped = self
            .runs
            .last()
            .map_or(0, |run| run.logical.saturating_add(run.length));
        self.directory.blocks.min(mapped)
    }

    /// The location of a logical block.
    pub(super) fn block(&self, logical: u32) -> Option<u64> {
        let behind = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let offset = logical - run.logical;
        (offset < run.length).then(|| run.start + u64::from(offset))
    }

    /// Whether `count` more blocks may be read. False if the check was cancelled, or if directories
    /// that share blocks have more of them than the file system.
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
                    if nodes.binary_search(&logical).is_err() {
                        let block = run.start + u64::from(offset);
                        leaf::block(self, thread, logical, block, bytes, None);
                    }
                }
            }
        }
        thread.buffer = buffer;
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
                    pext4_ondisk::directory::stamp_leaf(seed, self.number(), generation, bytes);
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

    /// Checks the target of `.`.
    pub(super) fn dot(&self, target: InodeNumber, block: Option<u64>) {
        if target != self.number() {
            self.report(Kind::DirectoryDot, block, || {
                format!("'.' leads to inode {target}")
            });
        }
    }

    /// Records the target of `..`. Pass 3 checks it, when all names are known.
    pub(super) fn dot_dot(&self, target: InodeNumber) {
        if target.get() == 0 {
            self.report(Kind::DirectoryDotDot, None, || {
                "it leads nowhere".to_owned()
            });
        }
        self.tree.dot_dots[self.place].store(target.get(), Ordering::Relaxed);
    }

    /// Checks the target of a name other than `.` and `..`.
    pub(super) fn entry(
        &self,
        name: &[u8],
        target: InodeNumber,
        file_type: Option<FileType>,
        block: Option<u64>,
    ) {
        let shown = || name.escape_ascii().to_string();
        let Some(state) = self.target(target, block, &shown) else {
            return;
        };
        self.tree.inodes.link(target);
        let volume = &self.tree.examination.volume;
        let stored = file_type.map_or(0, FileType::to_entry);
        // An entry may have no file type.
        if volume.format.has_file_types && stored != 0 && stored != state.kind() {
            let (stored, is) = (name_of(file_type), name_of(self.tree.kind_of(target)));
            self.report(Kind::EntryFileType, block, || {
                format!("'{}', inode {target}: {stored}, it is {is}", shown())
            });
        }
        encryption::check_target(self, target, self.tree.kind_of(target), block, &shown);
        let child = if state.is_directory() {
            self.tree.directories.find(target)
        } else {
            None
        };
        if self.number() == InodeNumber::ROOT && name == LOST_FOUND {
            self.check_lost_found(child, target);
        }
        if let Some(child) = child {
            self.adopt(child, target);
        }
    }

    fn check_lost_found(&self, child: Option<usize>, target: InodeNumber) {
        let is_plain = child.is_some_and(|child| {
            let directory = &self.tree.directories.list[child];
            !directory.is_encrypted && !directory.is_inline
        });
        if !is_plain {
            self.report(Kind::LostFound, None, || format!("inode {target}"));
        }
    }

    /// The state of a name's target, if the name may lead there.
    fn target(
        &self,
        target: InodeNumber,
        block: Option<u64>,
        shown: &dyn Fn() -> String,
    ) -> Option<State> {
        let examination = self.tree.examination;
        let geometry = &examination.volume.geometry;
        let is_absent = target.get() > geometry.inodes_count;
        if is_absent || target < geometry.first_inode || examination.hidden.contains(&target) {
            self.report(Kind::EntryInode, block, || {
                let why = if is_absent {
                    "no such"
                } else {
                    "not for names"
                };
                format!("'{}', inode {target}: {why}", shown())
            });
            return None;
        }
        match self.tree.inodes.state(target) {
            Known::Absent | Known::Uninitialised => {
                self.report(Kind::EntryUninitialised, block, || {
                    format!("'{}', inode {target}", shown())
                });
                None
            }
            Known::State(state) if !state.is_used() => {
                self.report(Kind::EntryUnused, block, || {
                    format!("'{}', inode {target}", shown())
                });
                None
            }
            Known::State(state) if state.holds_value() => {
                self.report(Kind::EntryInode, block, || {
                    format!("'{}', inode {target}: holds an attribute", shown())
                });
                None
            }
            Known::State(state) => Some(state),
        }
    }

    /// Records the name of a directory. Of two names, the one in the later directory of the list is
    /// reported, without what only the thread that met it knows.
    fn adopt(&self, child: usize, target: InodeNumber) {
        let own = u32::try_from(self.place).unwrap_or(NO_PARENT);
        let other = self.tree.parents[child].fetch_min(own, Ordering::Relaxed);
        if other != NO_PARENT {
            let later = self.tree.subject(own.max(other) as usize);
            later.report(Kind::DirectoryLinkedTwice, None, || {
                format!("a name leads to directory inode {target}, which has another")
            });
        }
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

fn name_of(kind: Option<FileType>) -> &'static str {
    match kind {
        Some(FileType::Regular) => "a file",
        Some(FileType::Directory) => "a directory",
        Some(FileType::Symlink) => "a symbolic link",
        Some(FileType::CharacterDevice) => "a character device",
        Some(FileType::BlockDevice) => "a block device",
        Some(FileType::Fifo) => "a pipe",
        Some(FileType::Socket) => "a socket",
        None => "of no known kind",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_block::{Device, RamDevice};

    use super::super::findings::{Finding, Findings};
    use super::super::{Options, inodes, open, prepare};
    use super::{LEAVES_AT_ONCE, Leaf, MAX_WAITING_LEAVES, Tree, WaitingLeaves, Workers, cut};
    use crate::build::{Builder, Source};

    #[test]
    fn pieces_are_all_leaves_and_cut_no_hash() {
        let long = 3 * LEAVES_AT_ONCE + 7;
        // Names of one hash lie across the end of the first piece.
        let continues = |number: usize| (LEAVES_AT_ONCE - 2..LEAVES_AT_ONCE + 5).contains(&number);
        let leaves: Vec<Leaf> = (0..long)
            .map(|number| Leaf::new(u32::try_from(number).expect("few"), continues(number)))
            .collect();
        let pieces: Vec<&[Leaf]> = cut(&leaves).collect();
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(
            lengths,
            [LEAVES_AT_ONCE + 5, LEAVES_AT_ONCE, LEAVES_AT_ONCE, 2]
        );
        let numbers = pieces.concat().into_iter().map(|leaf| leaf.logical);
        assert!(numbers.eq(0..u32::try_from(long).expect("few")));
    }

    /// An image with a directory of some 700 leaves, in which a name is there twice.
    fn image() -> Arc<dyn Device> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = folder.path().join("source");
        std::fs::create_dir(&source).expect("the folder is ours");
        let name = |number: usize| format!("{number:0250}");
        for number in 0..1800 {
            std::fs::write(source.join(name(number)), "").expect("the folder is ours");
        }
        let image = folder.path().join("image");
        Builder::new()
            .source(Source::Directory(source))
            .block_size(1024)
            .features(["^metadata_csum"])
            .build(&image)
            .expect("an image");
        let mut bytes = std::fs::read(&image).expect("the image");
        let at = |bytes: &[u8], text: &str| {
            let mut places = bytes.windows(250).enumerate();
            let found = places.find(|(_, part)| *part == text.as_bytes());
            found.expect("the name is in the image").0
        };
        for (from, to) in [(5, 900), (1200, 30)] {
            let place = at(&bytes, &name(to));
            bytes[place..place + 250].copy_from_slice(name(from).as_bytes());
        }
        device_of(&bytes)
    }

    fn device_of(image: &[u8]) -> Arc<dyn Device> {
        let device = RamDevice::new(image.len() as u64);
        device.write_at(0, image).expect("it lies within");
        Arc::new(device)
    }

    /// The findings of what is done with the directories of an image, and its result.
    fn with_tree<T>(
        device: &Arc<dyn Device>,
        threads: usize,
        run: impl FnOnce(&mut Tree<'_>) -> T,
    ) -> (Vec<Finding>, T) {
        let options = Options::default();
        let workers = Workers {
            options: &options,
            threads,
        };
        let findings = Findings::new();
        let opened = open(Arc::clone(device), &findings).expect("it can be read");
        let (volume, groups) = opened.expect("it can be checked");
        let examination = prepare(volume, groups, findings, &workers);
        let (inodes, directories, ..) = inodes::examine(&examination, &workers);
        let mut tree = Tree::new(&examination, &inodes, &directories, &workers);
        let result = run(&mut tree);
        (examination.findings.take().0, result)
    }

    /// The findings of the pass, and the number of leaves in pieces that waited.
    fn examine(device: &Arc<dyn Device>, limit: u64, threads: usize) -> (Vec<Finding>, usize) {
        with_tree(device, threads, |tree| {
            tree.waiting = WaitingLeaves::new(limit);
            let pieces = tree.examine_directories();
            let waiting = pieces.iter().map(|piece| {
                assert_eq!(piece.leaves.capacity(), piece.leaves.len(), "no slack");
                piece.leaves.len()
            });
            let waiting = waiting.sum();
            tree.examine_pieces(&pieces);
            waiting
        })
    }

    /// Of the names of a directory one is good, and which one does not depend on who comes first.
    #[test]
    fn the_parent_of_a_directory_does_not_depend_on_who_finds_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = folder.path().join("source");
        for name in ["a/child", "b", "c"] {
            std::fs::create_dir_all(source.join(name)).expect("the folder is ours");
        }
        let image = folder.path().join("image");
        Builder::new()
            .source(Source::Directory(source))
            .build(&image)
            .expect("an image");
        let device = device_of(&std::fs::read(&image).expect("the image"));
        let names = |order: &[usize]| {
            with_tree(&device, 1, |tree| {
                let child = tree.directories.list.len() - 1;
                let target = tree.subject(child).number();
                for &place in order {
                    tree.subject(place).adopt(child, target);
                }
                tree.parent(child)
            })
        };
        let expected = names(&[1, 2, 3, 3]);
        assert_eq!(expected.1, Some(1));
        assert_eq!(expected.0.len(), 3);
        for order in [[3, 2, 1, 3], [2, 3, 3, 1], [3, 3, 1, 2]] {
            assert_eq!(names(&order), expected);
        }
    }

    #[test]
    fn findings_are_the_same_whoever_checks_a_piece() {
        let device = image();
        let (expected, waiting) = examine(&device, MAX_WAITING_LEAVES, 2);
        assert!(waiting > 2 * LEAVES_AT_ONCE, "{waiting}");
        assert!(!expected.is_empty(), "two names are not where they belong");
        for threads in [1, 3] {
            assert_eq!(examine(&device, 0, threads), (expected.clone(), 0));
        }
    }
}
