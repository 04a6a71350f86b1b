//! Assigns blocks to all files.
//!
//! Contents are placed in the order of the inodes into the free runs of the image, from its start.
//! Each file goes into the first run that can hold it whole; only a file that no run can hold is
//! split. So files that are listed together are close together, and the result depends only on the
//! input and the options.

use std::collections::HashMap;
use std::ops::Range;

use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::xattr::MAX_REFERENCES;
use pext4_ondisk::{BlockNumber, LogicalBlock};

use super::order::Order;
use super::shape::{EXTENTS_IN_INODE, Shape, block_ranges};
use super::tree::{Id, Tree};
use crate::mkfs::layout::{Layout, MAX_EXTENT_BLOCKS};

/// Maximum number of files in a batch.
const MAX_BATCH_FILES: usize = 1024;
/// A batch ends when its contents reach this number of bytes.
const BATCH_BYTES: u64 = 4 << 20;
/// Files of at least this many bytes are copied in separate pieces.
pub(super) const LARGE: u64 = 8 << 20;
/// Size of such a piece in bytes: a multiple of every block size.
const PIECE_BYTES: u64 = 16 << 20;

/// The block map of a file that is not one run of at most four extents.
pub(super) struct BlockMap {
    pub runs: Box<[extent::Run]>,
    pub extents: Box<[Extent]>,
    /// Blocks of the nodes of its extent tree.
    pub nodes: Box<[u64]>,
}

/// A set of attributes and the block that holds those which do not fit into the inode.
pub(super) struct PlacedAttributes {
    pub set: u32,
    /// 0 for none.
    pub block: u64,
    /// Number of inodes that share the block.
    pub users: u32,
}

/// A part of a large file.
pub(super) struct Piece {
    pub id: Id,
    pub bytes: Range<u64>,
}

/// The location of everything.
pub(super) struct Placement {
    /// Ranges of the order's inodes that are written together.
    pub batches: Vec<Range<u32>>,
    pub pieces: Vec<Piece>,
    pub maps: HashMap<Id, BlockMap>,
    /// After placement, a node's `attributes` is an index into this.
    pub attributes: Vec<PlacedAttributes>,
    /// Bytes of contents: their whole blocks, without holes.
    pub bytes: u64,
    /// Bytes of contents that are copied.
    pub copied: u64,
}

impl Placement {
    /// The number of blocks that a file takes: its content, the nodes of its map, and the block of
    /// its attributes, which may be shared.
    pub fn blocks_of(&self, tree: &Tree, shape: &Shape, id: Id) -> u64 {
        let placed = &self.attributes[tree.node(id).attributes as usize];
        let nodes = self.maps.get(&id).map_or(0, |map| map.nodes.len() as u64);
        shape.content_blocks(tree, id) + nodes + u64::from(placed.block != 0)
    }

    /// Forgets the placement, so that everything can be placed anew.
    pub fn undo(self, tree: &mut Tree, order: &Order) {
        self.restore_sets(tree, &order.inodes);
    }

    /// Gives files that were placed the numbers of their sets again.
    fn restore_sets(&self, tree: &mut Tree, placed: &[Id]) {
        for &id in placed {
            let node = tree.node_mut(id);
            node.attributes = self.attributes[node.attributes as usize].set;
        }
    }
}

/// Not enough blocks are free.
pub(super) struct NoSpace;

/// The free runs. Each is allocated from its start.
struct FreeSpace {
    runs: Vec<Range<u64>>,
    /// Runs before this one are full.
    first: usize,
    allocated: Vec<Range<u64>>,
}

impl FreeSpace {
    fn new(runs: Vec<Range<u64>>) -> Self {
        Self {
            allocated: runs.iter().map(|run| run.start..run.start).collect(),
            runs,
            first: 0,
        }
    }

    /// Allocates blocks from the start of a run.
    fn take_from(&mut self, run: usize, blocks: u64) -> Range<u64> {
        let start = self.runs[run].start;
        self.runs[run].start += blocks;
        self.allocated[run].end += blocks;
        while self.first < self.runs.len() && self.runs[self.first].is_empty() {
            self.first += 1;
        }
        start..start + blocks
    }

    /// Allocates blocks: one run if any run is large enough, else the first free blocks.
    fn allocate(&mut self, blocks: u64) -> Result<Vec<Range<u64>>, NoSpace> {
        let length = |run: &Range<u64>| run.end - run.start;
        let whole = (self.first..self.runs.len()).find(|&run| length(&self.runs[run]) >= blocks);
        if let Some(run) = whole {
            return Ok(vec![self.take_from(run, blocks)]);
        }
        let all: u64 = self.runs[self.first..].iter().map(length).sum();
        if all < blocks {
            return Err(NoSpace);
        }
        let (mut left, mut taken) = (blocks, Vec::new());
        let mut run = self.first;
        while left > 0 {
            let part = length(&self.runs[run]).min(left);
            if part > 0 {
                taken.push(self.take_from(run, part));
            }
            left -= part;
            run += 1;
        }
        Ok(taken)
    }

    /// Allocates from the first run only, if it is large enough. Avoids the list for the most
    /// frequent case.
    fn allocate_contiguous(&mut self, blocks: u64) -> Option<u64> {
        let run = self.runs.get(self.first)?;
        (run.end - run.start >= blocks).then(|| self.take_from(self.first, blocks).start)
    }
}

/// Assigns blocks to all files and marks them in the layout.
pub(super) fn place(
    tree: &mut Tree,
    order: &Order,
    shape: &Shape,
    layout: &mut Layout,
) -> Result<Placement, NoSpace> {
    let mut placer = Placer {
        free: FreeSpace::new(layout.free_runs()),
        shape,
        open_blocks: vec![None; shape.sets.len()],
        placement: Placement {
            batches: Vec::new(),
            pieces: Vec::new(),
            maps: HashMap::new(),
            attributes: Vec::new(),
            bytes: 0,
            copied: 0,
        },
    };
    let (mut start, mut bytes) = (0, 0);
    for (index, &id) in order.inodes.iter().enumerate() {
        if index - start >= MAX_BATCH_FILES || bytes >= BATCH_BYTES {
            placer.close_batch(start, index);
            (start, bytes) = (index, 0);
        }
        match placer.place(tree, id) {
            Ok(written) => bytes += written,
            Err(NoSpace) => {
                // Another size can be tried.
                placer.placement.restore_sets(tree, &order.inodes[..index]);
                return Err(NoSpace);
            }
        }
    }
    placer.close_batch(start, order.inodes.len());
    for run in placer.free.allocated.iter().filter(|run| !run.is_empty()) {
        layout.mark(run.clone());
    }
    Ok(placer.placement)
}

struct Placer<'a> {
    free: FreeSpace,
    shape: &'a Shape,
    /// For each set: the element of `placement.attributes` that can get another user.
    open_blocks: Vec<Option<u32>>,
    placement: Placement,
}

impl Placer<'_> {
    fn close_batch(&mut self, start: usize, end: usize) {
        let number = |index: usize| u32::try_from(index).expect("inodes were counted");
        if start < end {
            self.placement.batches.push(number(start)..number(end));
        }
    }

    /// Places a file. Returns the number of bytes that its batch writes for it.
    fn place(&mut self, tree: &mut Tree, id: Id) -> Result<u64, NoSpace> {
        let blocks = self.shape.content_blocks(tree, id);
        let bytes = blocks * self.shape.block_size;
        let is_plain = blocks <= EXTENTS_IN_INODE as u64 * MAX_EXTENT_BLOCKS
            && !tree.segments.contains_key(&id);
        let whole = (is_plain && blocks > 0)
            .then(|| self.free.allocate_contiguous(blocks))
            .flatten();
        match whole {
            Some(start) => tree.node_mut(id).first_block = start,
            None if blocks > 0 || tree.segments.contains_key(&id) => self.map(tree, id, blocks)?,
            None => {}
        }
        self.place_attributes(tree, id)?;
        if !tree.node(id).is_regular() {
            return Ok(bytes);
        }
        self.placement.bytes += bytes;
        self.placement.copied += tree.data_bytes(id);
        if bytes < LARGE {
            return Ok(bytes);
        }
        let ranges = pieces(tree.node(id).size, tree.segments.get(&id).map(|all| &**all));
        let pieces = ranges.into_iter().map(|bytes| Piece { id, bytes });
        self.placement.pieces.extend(pieces);
        Ok(0)
    }

    /// Places a file that may need several runs.
    fn map(&mut self, tree: &mut Tree, id: Id, blocks: u64) -> Result<(), NoSpace> {
        let all = 0..blocks;
        let logical = match tree.segments.get(&id) {
            Some(segments) => block_ranges(segments, self.shape.block_size),
            None => vec![all.clone()],
        };
        let physical = self.free.allocate(blocks)?;
        let runs = join(&logical, &physical);
        let extents = extent::extents_of(&runs).expect("runs follow each other and are not empty");
        let block_size = usize::try_from(self.shape.block_size).expect("a block fits into memory");
        let mut nodes = Vec::new();
        for _ in 0..extent::nodes_needed(extents.len(), block_size) {
            nodes.push(self.free.allocate(1)?[0].start);
        }
        tree.node_mut(id).first_block = physical.first().map_or(0, |run| run.start);
        let is_plain =
            nodes.is_empty() && physical.len() == 1 && logical == std::slice::from_ref(&all);
        if !is_plain {
            let map = BlockMap {
                runs: runs.into_boxed_slice(),
                extents: extents.into_boxed_slice(),
                nodes: nodes.into_boxed_slice(),
            };
            self.placement.maps.insert(id, map);
        }
        Ok(())
    }

    fn place_attributes(&mut self, tree: &mut Tree, id: Id) -> Result<(), NoSpace> {
        let set = tree.node(id).attributes;
        let open = self.open_blocks[set as usize];
        let placed = match open {
            Some(placed) => placed,
            None => {
                let has_block = self.shape.sets[set as usize].has_block;
                let block = if has_block {
                    self.free.allocate(1)?[0].start
                } else {
                    0
                };
                let number = u32::try_from(self.placement.attributes.len()).map_err(|_| NoSpace)?;
                self.placement.attributes.push(PlacedAttributes {
                    set,
                    block,
                    users: 0,
                });
                number
            }
        };
        let entry = &mut self.placement.attributes[placed as usize];
        entry.users = entry.users.saturating_add(1);
        let is_full = entry.block != 0 && entry.users == MAX_REFERENCES;
        self.open_blocks[set as usize] = (!is_full).then_some(placed);
        tree.node_mut(id).attributes = placed;
        Ok(())
    }
}

/// The pieces of a large file: the ranges of `PIECE_BYTES`, from multiples of them on, that have
/// data. The holes of a file can be a million times as long as its data.
fn pieces(size: u64, segments: Option<&[Range<u64>]>) -> Vec<Range<u64>> {
    let whole = 0..size;
    let mut pieces: Vec<Range<u64>> = Vec::new();
    for segment in segments.unwrap_or(std::slice::from_ref(&whole)) {
        let end = pieces.last().map_or(0, |piece| piece.end);
        let mut at = end.max(segment.start / PIECE_BYTES * PIECE_BYTES);
        while at < segment.end {
            let end = size.min(at.saturating_add(PIECE_BYTES));
            pieces.push(at..end);
            at = end;
        }
    }
    pieces
}

/// Maps ranges of a file's blocks to runs of the device, in order. Both have the same number of
/// blocks.
fn join(logical: &[Range<u64>], physical: &[Range<u64>]) -> Vec<extent::Run> {
    let mut runs = Vec::new();
    let mut free = physical.iter().cloned();
    let mut at = free.next().unwrap_or(0..0);
    for range in logical {
        let mut start = range.start;
        while start < range.end {
            if at.is_empty() {
                at = free
                    .next()
                    .expect("as many blocks were taken as are needed");
            }
            let length = (range.end - start)
                .min(at.end - at.start)
                .min(u64::from(u32::MAX));
            runs.push(extent::Run {
                logical: LogicalBlock(u32::try_from(start).expect("sizes were checked")),
                start: BlockNumber(at.start),
                length: u32::try_from(length).expect("bounded"),
                unwritten: false,
            });
            start += length;
            at.start += length;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::{FreeSpace, PIECE_BYTES, join, pieces};

    #[test]
    fn files_that_no_run_can_hold_are_split() {
        let mut free = FreeSpace::new(vec![10..20, 30..60, 70..75]);
        assert_eq!(
            free.allocate(12).ok().as_deref(),
            Some(std::slice::from_ref(&(30..42)))
        );
        assert_eq!(free.allocate_contiguous(4), Some(10));
        assert_eq!(free.allocate(20).ok(), Some(vec![14..20, 42..56]));
        assert!(free.allocate(10).is_err());
        assert_eq!(free.allocate(9).ok(), Some(vec![56..60, 70..75]));
        assert_eq!(free.allocated, [10..20, 30..60, 70..75]);
        assert!(free.allocate_contiguous(1).is_none());
    }

    #[test]
    fn pieces_are_cut_where_data_is() {
        const PIECE: u64 = PIECE_BYTES;
        assert_eq!(
            pieces(2 * PIECE + 5, None),
            [0..PIECE, PIECE..2 * PIECE, 2 * PIECE..2 * PIECE + 5]
        );
        let size = 16 << 40;
        // Two in one piece, one across two, one that ends where a piece ends, one at the end.
        let segments = [
            0..10,
            PIECE - 5..PIECE,
            5 * PIECE - 1..5 * PIECE + 1,
            9 * PIECE + 7..10 * PIECE,
            size - 1..size,
        ];
        assert_eq!(
            pieces(size, Some(&segments)),
            [
                0..PIECE,
                4 * PIECE..5 * PIECE,
                5 * PIECE..6 * PIECE,
                9 * PIECE..10 * PIECE,
                size - PIECE..size,
            ]
        );
        assert!(pieces(size, Some(&[])).is_empty(), "nothing but a hole");
    }

    #[test]
    fn ranges_are_laid_onto_runs() {
        let runs = join(&[0..4, 10..12], &[100..103, 200..203]);
        let plain: Vec<(u32, u64, u32)> = runs
            .iter()
            .map(|run| (run.logical.get(), run.start.get(), run.length))
            .collect();
        assert_eq!(plain, [(0, 100, 3), (3, 200, 1), (10, 201, 2)]);
    }
}
