//! Walks over the maps of files: extent trees and block maps.
//!
//! A walk calls a [`Visitor`] for every block of the map, every run of data, and every error. It
//! ends on any bytes: the depth decreases with each step, and the visitor decides for each block of
//! the map whether to enter it, which it allows only once.

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::extent::{Extent, Header, Index, Node, verify_node};
use pext4_ondisk::indirect::{self, DIRECT};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::catalogue::Kind;
use super::volume::Volume;

/// Blocks of a file that are contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) logical: u32,
    pub(super) start: BlockNumber,
    pub(super) length: u32,
    pub(super) unwritten: bool,
}

impl Run {
    /// The first logical block after it.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.length)
    }
}

/// The callbacks of a walk.
pub(super) trait Visitor {
    /// A block of the map. Returns whether to enter it.
    fn node(&mut self, block: BlockNumber) -> bool;

    /// A run of data.
    fn run(&mut self, run: Run);

    /// An error because of which a part of the map is skipped.
    fn fault(&mut self, kind: Kind, block: Option<BlockNumber>, text: String);

    /// An error that does not stop the walk.
    fn flaw(&mut self, kind: Kind, block: Option<BlockNumber>, text: String);
}

/// Walks over an inode's map of either kind.
pub(super) fn walk(
    volume: &Volume,
    number: InodeNumber,
    inode: &Inode,
    visitor: &mut impl Visitor,
) {
    if inode.has_extents() {
        ExtentTree {
            volume,
            number,
            generation: inode.generation,
            visitor,
        }
        .root(&inode.block);
    } else {
        Map { volume, visitor }.root(&inode.block);
    }
}

struct ExtentTree<'a, V> {
    volume: &'a Volume,
    number: InodeNumber,
    generation: u32,
    visitor: &'a mut V,
}

/// The maximum depth that an extent tree with blocks of this size can need, with one leaf entry per
/// logical block.
pub(super) fn max_depth(block_size: usize) -> u16 {
    let entries = u64::try_from(pext4_ondisk::extent::capacity(block_size)).unwrap_or(u64::MAX);
    let (mut depth, mut reach) = (0, 4u64);
    while reach < 1 << 32 && depth < pext4_ondisk::extent::MAX_DEPTH {
        reach = reach.saturating_mul(entries.max(2));
        depth += 1;
    }
    depth
}

impl<V: Visitor> ExtentTree<'_, V> {
    fn root(&mut self, root: &[u8]) {
        match Node::parse(root) {
            Err(corrupt) => {
                let text = format!("root: {}", corrupt.problem());
                self.visitor.fault(Kind::ExtentHeader, None, text);
            }
            Ok(node) if node.depth() > max_depth(self.volume.block_size()) => {
                let text = format!("root: a tree {} levels deep", node.depth());
                self.visitor.fault(Kind::ExtentHeader, None, text);
            }
            Ok(node) => self.node(&node, None, 0, 1 << 32),
        }
    }

    /// The entries of a node that maps logical blocks from `start` to before `end`.
    fn node(&mut self, node: &Node<'_>, block: Option<BlockNumber>, start: u64, end: u64) {
        if node.depth() == 0 {
            self.leaf(node, block, start, end);
        } else {
            self.index(node, block, start, end);
        }
    }

    fn leaf(&mut self, node: &Node<'_>, block: Option<BlockNumber>, start: u64, end: u64) {
        let mut start = start;
        for (slot, entry) in node.entries().iter().enumerate() {
            let extent = match Extent::decode(entry) {
                Ok(extent) => extent,
                Err(corrupt) => {
                    let text = format!("entry {slot}: {}", corrupt.problem());
                    self.visitor.fault(Kind::ExtentEntry, block, text);
                    continue;
                }
            };
            if u64::from(extent.logical.get()) < start {
                let text = format!("entry {slot}: {extent}, after logical block {start}");
                self.visitor.fault(Kind::ExtentOrder, block, text);
                continue;
            }
            if !self.volume.bounds.contains(extent.start, extent.length) {
                let text = format!("entry {slot}: {extent}");
                self.visitor.fault(Kind::BlockOutside, block, text);
                continue;
            }
            if extent.end() > end {
                let text = format!("entry {slot}: {extent} reaches beyond logical block {end}");
                self.visitor.flaw(Kind::ExtentIndex, block, text);
            }
            start = extent.end();
            self.visitor.run(Run {
                logical: extent.logical.get(),
                start: extent.start,
                length: extent.length,
                unwritten: extent.unwritten,
            });
        }
    }

    fn index(&mut self, node: &Node<'_>, block: Option<BlockNumber>, start: u64, end: u64) {
        let mut start = start;
        for (slot, entry) in node.entries().iter().enumerate() {
            let index = Index::decode(entry);
            let logical = u64::from(index.logical.get());
            if logical < start || logical >= end {
                let text = format!("entry {slot} at logical block {logical}, after {start}");
                self.visitor.fault(Kind::ExtentOrder, block, text);
                continue;
            }
            start = logical + 1;
            if !self.volume.bounds.contains(index.child, 1) {
                let text = format!("entry {slot}: its node is block {}", index.child);
                self.visitor.fault(Kind::BlockOutside, block, text);
                continue;
            }
            let behind = node.entries().get(slot + 1).map_or(end, |next| {
                u64::from(Index::decode(next).logical.get()).min(end)
            });
            self.child(&index, node.depth() - 1, behind.max(start));
        }
    }

    fn child(&mut self, index: &Index, depth: u16, end: u64) {
        let block = index.child;
        if !self.visitor.node(block) {
            return;
        }
        let bytes = match self.volume.block(block) {
            Ok(bytes) => bytes,
            Err(error) => {
                let text = format!("extent node: {error}");
                return self.visitor.fault(Kind::Unreadable, Some(block), text);
            }
        };
        let node = match Node::parse(&bytes) {
            Ok(node) if node.depth() == depth && !node.is_empty() => node,
            Ok(node) => {
                let Header { depth: own, .. } = node.header();
                let text = format!("depth {own} with {} entries at depth {depth}", node.len());
                return self.visitor.fault(Kind::ExtentHeader, Some(block), text);
            }
            Err(corrupt) => {
                let text = corrupt.problem().to_owned();
                return self.visitor.fault(Kind::ExtentHeader, Some(block), text);
            }
        };
        if let Some(seed) = self.volume.seed
            && let Err(corrupt) =
                verify_node(InodeSeed::new(seed, self.number, self.generation), &bytes)
        {
            let text = corrupt.problem().to_owned();
            self.visitor.flaw(Kind::ExtentChecksum, Some(block), text);
        }
        let (first, expected) = (node.logical(0), index.logical);
        if first != expected {
            let text = format!("begins at logical block {first}, its parent says {expected}");
            self.visitor.flaw(Kind::ExtentIndex, Some(block), text);
        }
        self.node(&node, Some(block), u64::from(expected.get()), end);
    }
}

struct Map<'a, V> {
    volume: &'a Volume,
    visitor: &'a mut V,
}

/// A run to which pointers are added while they are contiguous.
#[derive(Default)]
struct PendingRun(Option<Run>);

impl PendingRun {
    fn add(&mut self, logical: u32, block: BlockNumber, visitor: &mut impl Visitor) {
        if let Some(run) = &mut self.0
            && run.end() == u64::from(logical)
            && run.start.checked_add(run.length) == Some(block)
        {
            run.length += 1;
            return;
        }
        self.end(visitor);
        self.0 = Some(Run {
            logical,
            start: block,
            length: 1,
            unwritten: false,
        });
    }

    fn end(&mut self, visitor: &mut impl Visitor) {
        if let Some(run) = self.0.take() {
            visitor.run(run);
        }
    }
}

impl<V: Visitor> Map<'_, V> {
    fn root(&mut self, root: &[u8]) {
        let mut pending = PendingRun::default();
        let mut logical = 0u64;
        for slot in 0..DIRECT {
            let pointer = indirect::entry(root, slot);
            self.pointer(pointer, None, logical, &mut pending);
            logical += 1;
        }
        let mut reach = 1;
        for depth in 1..=indirect::MAX_DEPTH {
            reach *= u64::from(indirect::pointers_per_block(
                self.volume.geometry.block_size,
            ));
            let pointer = indirect::entry(root, DIRECT + depth - 1);
            self.subtree(pointer, None, depth, logical, reach, &mut pending);
            logical += reach;
        }
        pending.end(self.visitor);
    }

    /// A pointer to data.
    fn pointer(
        &mut self,
        pointer: u32,
        block: Option<BlockNumber>,
        logical: u64,
        pending: &mut PendingRun,
    ) {
        let target = BlockNumber(u64::from(pointer));
        let Ok(logical) = u32::try_from(logical) else {
            return;
        };
        if pointer == 0 {
            return;
        }
        if self.volume.bounds.contains(target, 1) {
            pending.add(logical, target, self.visitor);
        } else {
            let text = format!("logical block {logical} is block {target}");
            self.visitor.fault(Kind::BlockOutside, block, text);
        }
    }

    /// A pointer to a block of pointers that together reach `reach` blocks.
    fn subtree(
        &mut self,
        pointer: u32,
        parent: Option<BlockNumber>,
        depth: usize,
        logical: u64,
        reach: u64,
        pending: &mut PendingRun,
    ) {
        let block = BlockNumber(u64::from(pointer));
        if pointer == 0 || logical >= 1 << 32 {
            return;
        }
        if !self.volume.bounds.contains(block, 1) {
            let text = format!("pointers for logical block {logical} are block {block}");
            return self.visitor.fault(Kind::BlockOutside, parent, text);
        }
        if !self.visitor.node(block) {
            return;
        }
        let bytes = match self.volume.block(block) {
            Ok(bytes) => bytes,
            Err(error) => {
                let text = format!("block of pointers: {error}");
                return self.visitor.fault(Kind::Unreadable, Some(block), text);
            }
        };
        let (words, _) = bytes.as_chunks::<4>();
        let step = reach / words.len() as u64;
        for (word, at) in words.iter().zip((logical..).step_by(step as usize)) {
            let pointer = u32::from_le_bytes(*word);
            if pointer == 0 {
                continue;
            }
            if depth == 1 {
                self.pointer(pointer, Some(block), at, pending);
            } else {
                self.subtree(pointer, Some(block), depth - 1, at, step, pending);
            }
        }
    }
}

/// Collects the runs of a file.
pub(super) struct Collector {
    pub(super) runs: Vec<Run>,
    /// The errors, with their blocks.
    pub(super) faults: Vec<(Kind, Option<BlockNumber>)>,
    nodes: std::collections::HashSet<BlockNumber>,
    /// There are more nodes or runs than are kept.
    is_cut_short: bool,
}

/// The maximum number of map blocks that a [`Collector`] enters.
const MAX_NODES: usize = 1 << 16;
/// The maximum number of runs that it keeps. The files it is used for have fewer.
const MAX_RUNS: usize = 1 << 22;
/// The maximum number of errors that it keeps.
const MAX_FAULTS: usize = 1 << 10;

impl Collector {
    /// The runs of an inode's data, in order.
    pub(super) fn collect(volume: &Volume, number: InodeNumber, inode: &Inode) -> Self {
        let mut collector = Self {
            runs: Vec::new(),
            faults: Vec::new(),
            nodes: std::collections::HashSet::new(),
            is_cut_short: false,
        };
        walk(volume, number, inode, &mut collector);
        collector
    }

    /// Whether nothing was wrong.
    pub(super) fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether a block of the map could not be read.
    pub(super) fn is_unread(&self) -> bool {
        self.faults
            .iter()
            .any(|&(kind, _)| kind == Kind::Unreadable)
    }

    fn note(&mut self, kind: Kind, block: Option<BlockNumber>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((kind, block));
        }
    }

    /// Notes, once, that the rest of the map is left out.
    fn cut_short(&mut self) {
        if !std::mem::replace(&mut self.is_cut_short, true) {
            // Beyond `MAX_FAULTS` as well, since a report without it would count as complete.
            self.faults.push((Kind::LimitReached, None));
        }
    }

    /// The blocks of the map.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &BlockNumber> {
        self.nodes.iter()
    }

    /// The location of a logical block.
    pub(super) fn place(&self, logical: u32) -> Option<BlockNumber> {
        let behind = self.runs.partition_point(|run| run.logical <= logical);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let is_mapped = u64::from(logical) < run.end();
        is_mapped.then(|| run.start.checked_add(logical - run.logical))?
    }
}

impl Visitor for Collector {
    fn node(&mut self, block: BlockNumber) -> bool {
        if self.nodes.contains(&block) {
            self.note(Kind::BlockShared, Some(block));
            return false;
        }
        if self.nodes.len() >= MAX_NODES {
            self.cut_short();
            return false;
        }
        self.nodes.insert(block)
    }

    fn run(&mut self, run: Run) {
        if self.runs.len() < MAX_RUNS {
            self.runs.push(run);
        } else {
            self.cut_short();
        }
    }

    fn fault(&mut self, kind: Kind, block: Option<BlockNumber>, _: String) {
        self.note(kind, block);
    }

    fn flaw(&mut self, kind: Kind, block: Option<BlockNumber>, _: String) {
        self.note(kind, block);
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::BlockNumber;

    use super::{Collector, Kind, MAX_FAULTS, MAX_NODES, MAX_RUNS, Run, Visitor, max_depth};

    fn collector() -> Collector {
        Collector {
            runs: Vec::new(),
            faults: Vec::new(),
            nodes: std::collections::HashSet::new(),
            is_cut_short: false,
        }
    }

    #[test]
    fn a_map_with_more_blocks_than_are_kept_is_not_called_a_shared_one() {
        let mut collector = collector();
        let blocks = (0..MAX_NODES as u64 + 5).map(BlockNumber);
        let entered = blocks.filter(|&block| collector.node(block)).count();
        assert_eq!(entered, MAX_NODES);
        assert_eq!(collector.faults, [(Kind::LimitReached, None)]);
        assert!(!collector.node(BlockNumber(7)));
        let shared = (Kind::BlockShared, Some(BlockNumber(7)));
        assert_eq!(collector.faults.last(), Some(&shared));
    }

    #[test]
    fn more_runs_than_are_kept_are_said_once_however_many_errors_there_were() {
        let mut collector = collector();
        for _ in 0..2 * MAX_FAULTS {
            collector.fault(Kind::ExtentEntry, None, String::new());
        }
        for logical in 0..u32::try_from(MAX_RUNS).expect("a small number") + 5 {
            collector.run(Run {
                logical,
                start: BlockNumber(1),
                length: 1,
                unwritten: false,
            });
        }
        assert_eq!(collector.runs.len(), MAX_RUNS);
        assert_eq!(collector.faults.len(), MAX_FAULTS + 1);
        assert_eq!(collector.faults.last(), Some(&(Kind::LimitReached, None)));
    }

    #[test]
    fn trees_are_no_deeper_than_they_can_need_to_be() {
        let depths = [1024, 2048, 4096, 65536].map(max_depth);
        assert_eq!(depths, [5, 5, 4, 3]);
    }
}
