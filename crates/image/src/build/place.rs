//! Which blocks everything gets.
//!
//! Contents are placed in the order of the inodes into the free runs of the image, from its start:
//! each goes, in one piece, into the first run that has room for it. Only what no run can hold whole
//! is cut. So files that are listed together lie together, and nothing depends on anything but the
//! input and the options.

use std::collections::HashMap;
use std::ops::Range;

use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::xattr::MAX_REFERENCES;
use pext4_ondisk::{BlockNumber, LogicalBlock};

use super::order::Order;
use super::shape::{IN_INODE, LONGEST, Shape, block_ranges};
use super::tree::{Id, Tree};
use crate::mkfs::layout::Layout;

/// The most files of a batch.
const FILES: usize = 1024;
/// Bytes of a batch's contents, more or less.
const BYTES: u64 = 4 << 20;
/// Files from this size on are copied in pieces of their own.
pub(super) const LARGE: u64 = 8 << 20;
/// Bytes of such a piece: a multiple of every block size.
const PIECE: u64 = 16 << 20;

/// How a file that is not one short run of blocks is mapped.
pub(super) struct Map {
    pub runs: Box<[extent::Run]>,
    pub extents: Box<[Extent]>,
    /// Blocks for the nodes of its tree.
    pub nodes: Box<[u64]>,
}

/// Attributes and the block that holds what the inode does not.
pub(super) struct Spot {
    pub set: u32,
    /// 0 for none.
    pub block: u64,
    /// Inodes that share it.
    pub users: u32,
}

/// A part of a large file.
pub(super) struct Piece {
    pub id: Id,
    pub bytes: Range<u64>,
}

/// Where everything lies.
pub(super) struct Places {
    /// Parts of the order's inodes that are written together.
    pub batches: Vec<Range<u32>>,
    pub pieces: Vec<Piece>,
    pub maps: HashMap<Id, Map>,
    /// A record's `attributes` is a place here, once it was placed.
    pub spots: Vec<Spot>,
    /// Bytes of contents.
    pub bytes: u64,
}

/// There is not enough room.
pub(super) struct Full;

/// The free runs, filled from their starts.
struct Room {
    runs: Vec<Range<u64>>,
    /// Runs before this one are full.
    first: usize,
    given: Vec<Range<u64>>,
}

impl Room {
    fn new(runs: Vec<Range<u64>>) -> Self {
        Self {
            given: runs.iter().map(|run| run.start..run.start).collect(),
            runs,
            first: 0,
        }
    }

    /// Takes blocks from the start of a run.
    fn cut(&mut self, run: usize, blocks: u64) -> Range<u64> {
        let start = self.runs[run].start;
        self.runs[run].start += blocks;
        self.given[run].end += blocks;
        while self.first < self.runs.len() && self.runs[self.first].is_empty() {
            self.first += 1;
        }
        start..start + blocks
    }

    /// As few runs as there are for so many blocks: one, if any run has room.
    fn take(&mut self, blocks: u64) -> Result<Vec<Range<u64>>, Full> {
        let length = |run: &Range<u64>| run.end - run.start;
        let whole = (self.first..self.runs.len()).find(|&run| length(&self.runs[run]) >= blocks);
        if let Some(run) = whole {
            return Ok(vec![self.cut(run, blocks)]);
        }
        let all: u64 = self.runs[self.first..].iter().map(length).sum();
        if all < blocks {
            return Err(Full);
        }
        let (mut left, mut taken) = (blocks, Vec::new());
        let mut run = self.first;
        while left > 0 {
            let part = length(&self.runs[run]).min(left);
            if part > 0 {
                taken.push(self.cut(run, part));
            }
            left -= part;
            run += 1;
        }
        Ok(taken)
    }

    /// One run, if any has room: no list is made for what is mostly asked.
    fn take_whole(&mut self, blocks: u64) -> Option<u64> {
        let run = self.runs.get(self.first)?;
        (run.end - run.start >= blocks).then(|| self.cut(self.first, blocks).start)
    }
}

/// Places everything and marks it in the layout.
pub(super) fn place(
    tree: &mut Tree,
    order: &Order,
    shape: &Shape,
    layout: &mut Layout,
) -> Result<Places, Full> {
    let mut placing = Placing {
        room: Room::new(layout.free_runs()),
        shape,
        open_spots: vec![None; shape.splits.len()],
        places: Places {
            batches: Vec::new(),
            pieces: Vec::new(),
            maps: HashMap::new(),
            spots: Vec::new(),
            bytes: 0,
        },
    };
    let (mut start, mut bytes) = (0, 0);
    for (index, &id) in order.inodes.iter().enumerate() {
        if index - start >= FILES || bytes >= BYTES {
            placing.close_batch(start, index);
            (start, bytes) = (index, 0);
        }
        match placing.place(tree, id) {
            Ok(written) => bytes += written,
            Err(Full) => {
                // Sets go back to their numbers, so that another size can be tried.
                for &id in &order.inodes[..index] {
                    let node = tree.node_mut(id);
                    node.attributes = placing.places.spots[node.attributes as usize].set;
                }
                return Err(Full);
            }
        }
    }
    placing.close_batch(start, order.inodes.len());
    for run in placing.room.given.iter().filter(|run| !run.is_empty()) {
        layout.mark(run.clone());
    }
    Ok(placing.places)
}

struct Placing<'a> {
    room: Room,
    shape: &'a Shape,
    /// Of each set of attributes: the spot whose block has room for another user.
    open_spots: Vec<Option<u32>>,
    places: Places,
}

impl Placing<'_> {
    fn close_batch(&mut self, start: usize, end: usize) {
        let number = |index: usize| u32::try_from(index).expect("inodes were counted");
        if start < end {
            self.places.batches.push(number(start)..number(end));
        }
    }

    /// Places a file; the bytes that its batch writes for it.
    fn place(&mut self, tree: &mut Tree, id: Id) -> Result<u64, Full> {
        let blocks = self.shape.content_blocks(tree, id);
        let bytes = blocks * self.shape.block_size;
        let is_plain = blocks <= IN_INODE as u64 * LONGEST && !tree.segments.contains_key(&id);
        let whole = (is_plain && blocks > 0)
            .then(|| self.room.take_whole(blocks))
            .flatten();
        match whole {
            Some(start) => tree.node_mut(id).place = start,
            None if blocks > 0 || tree.segments.contains_key(&id) => self.map(tree, id, blocks)?,
            None => {}
        }
        self.place_attributes(tree, id)?;
        if !tree.node(id).is_regular() {
            return Ok(bytes);
        }
        self.places.bytes += bytes;
        if bytes < LARGE {
            return Ok(bytes);
        }
        let size = tree.node(id).size;
        let mut at = 0;
        while at < size {
            let end = size.min(at + PIECE);
            self.places.pieces.push(Piece { id, bytes: at..end });
            at = end;
        }
        Ok(0)
    }

    /// Places what may need several runs.
    fn map(&mut self, tree: &mut Tree, id: Id, blocks: u64) -> Result<(), Full> {
        let all = 0..blocks;
        let logical = match tree.segments.get(&id) {
            Some(segments) => block_ranges(segments, self.shape.block_size),
            None => vec![all.clone()],
        };
        let physical = self.room.take(blocks)?;
        let runs = join(&logical, &physical);
        let extents = extent::extents_of(&runs).expect("runs follow each other and are not empty");
        let block_size = usize::try_from(self.shape.block_size).expect("a block fits into memory");
        let mut nodes = Vec::new();
        for _ in 0..extent::nodes_needed(extents.len(), block_size) {
            nodes.push(self.room.take(1)?[0].start);
        }
        tree.node_mut(id).place = physical.first().map_or(0, |run| run.start);
        let is_plain =
            nodes.is_empty() && physical.len() == 1 && logical == std::slice::from_ref(&all);
        if !is_plain {
            let map = Map {
                runs: runs.into_boxed_slice(),
                extents: extents.into_boxed_slice(),
                nodes: nodes.into_boxed_slice(),
            };
            self.places.maps.insert(id, map);
        }
        Ok(())
    }

    fn place_attributes(&mut self, tree: &mut Tree, id: Id) -> Result<(), Full> {
        let set = tree.node(id).attributes;
        let open = self.open_spots[set as usize];
        let spot = match open {
            Some(spot) => spot,
            None => {
                let has_block = !self.shape.splits[set as usize].block.is_empty();
                let block = if has_block {
                    self.room.take(1)?[0].start
                } else {
                    0
                };
                let number = u32::try_from(self.places.spots.len()).map_err(|_| Full)?;
                self.places.spots.push(Spot {
                    set,
                    block,
                    users: 0,
                });
                number
            }
        };
        let entry = &mut self.places.spots[spot as usize];
        entry.users = entry.users.saturating_add(1);
        let is_full = entry.block != 0 && entry.users == MAX_REFERENCES;
        self.open_spots[set as usize] = (!is_full).then_some(spot);
        tree.node_mut(id).attributes = spot;
        Ok(())
    }
}

/// Lays ranges of a file's blocks onto runs of the device's, in order; both have as many blocks.
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
    use super::{Room, join};

    #[test]
    fn what_fits_nowhere_whole_is_cut() {
        let mut room = Room::new(vec![10..20, 30..60, 70..75]);
        assert_eq!(
            room.take(12).ok().as_deref(),
            Some(std::slice::from_ref(&(30..42)))
        );
        assert_eq!(room.take_whole(4), Some(10));
        assert_eq!(room.take(20).ok(), Some(vec![14..20, 42..56]));
        assert!(room.take(10).is_err());
        assert_eq!(room.take(9).ok(), Some(vec![56..60, 70..75]));
        assert_eq!(room.given, [10..20, 30..60, 70..75]);
        assert!(room.take_whole(1).is_none());
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
