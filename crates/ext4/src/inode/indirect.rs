//! The block map of files without extents, as ext2 and ext3 make them: looked up, filled, cut.
//!
//! The inode's slot points to the first 12 blocks and to three trees of pointer blocks, of one, two
//! and three levels; see `pext4_ondisk::indirect`. It has no unwritten blocks and no checksums. A
//! pointer block exists only while it points to something: the first block below it brings it, the
//! last one takes it away.
//!
//! Everything here works on [`NodeStore`], as the extent tree does, and follows its rules: the
//! caller holds the map lock, for writing where something changes; what a change may need is
//! reserved before its first step; nothing read from a pointer is used before it is judged.

use std::ops::Range;

use pext4_ondisk::indirect::{self, DIRECT, MAX_DEPTH, ROOT_SIZE, entry, set_entry};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock, extent};

use super::extents::{Extent, Mapping, NodeStore};
use crate::error::{Error, Refusal, Result};

/// The map in an inode's slot.
type Root = [u8; ROOT_SIZE];

/// Where a logical block lies: the levels of pointer blocks above it, and its place among the
/// blocks below the same pointer of the inode.
#[derive(Clone, Copy, Debug)]
struct Place {
    levels: usize,
    offset: u64,
}

impl Place {
    fn of(logical: LogicalBlock, fan_out: u64) -> Option<Self> {
        let mut offset = u64::from(logical.get());
        let mut reach = DIRECT as u64;
        for levels in 0..=MAX_DEPTH {
            if offset < reach {
                return Some(Self { levels, offset });
            }
            offset -= reach;
            reach = span(fan_out, levels + 1);
        }
        None
    }

    /// The inode's pointer that leads there.
    fn slot(self) -> usize {
        match self.levels {
            0 => index(self.offset),
            levels => DIRECT + levels - 1,
        }
    }

    /// The pointer to take in the block of pointers that has `level` levels below the inode's data,
    /// 1 for those that point to data.
    fn step(self, fan_out: u64, level: usize) -> usize {
        index(self.offset / span(fan_out, level - 1) % fan_out)
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("below the pointers of a block")
}

/// Blocks of a file below a pointer block of so many levels; 1 for 0 levels.
fn span(fan_out: u64, levels: usize) -> u64 {
    (0..levels).fold(1, |span, _| span * fan_out)
}

fn fan_out<N: NodeStore>(nodes: &N) -> u64 {
    nodes.block_size() as u64 / 4
}

/// Bytes of the largest file: what the map reaches, and what the inode can count in 512-byte units
/// where it has no other (`huge_file`).
pub(crate) fn largest_size(block_size: u32, huge: bool) -> u64 {
    let fan_out = u64::from(indirect::pointers_per_block(block_size));
    let countable = u64::from(u32::MAX) / u64::from(block_size / 512);
    let reached = indirect::end(block_size).min(extent::LOGICAL_END - 1);
    let blocks = if huge {
        reached
    } else {
        reached.min(countable - pointer_blocks(countable, fan_out))
    };
    blocks * u64::from(block_size)
}

/// Pointer blocks of a map of so many blocks that has no hole.
fn pointer_blocks(blocks: u64, fan_out: u64) -> u64 {
    let mut rest = blocks.saturating_sub(DIRECT as u64);
    let mut count = 0;
    for levels in 1..=MAX_DEPTH {
        let below = rest.min(span(fan_out, levels));
        rest -= below;
        let on_each = (1..=levels).map(|level| below.div_ceil(span(fan_out, level)));
        count += on_each.sum::<u64>();
    }
    count
}

/// How many runs of neighbours a map has that is all in the inode; none if it has pointer blocks.
pub(crate) fn root_runs(root: &Root) -> Option<u32> {
    if (DIRECT..DIRECT + MAX_DEPTH).any(|slot| entry(root, slot) != 0) {
        return None;
    }
    let blocks = (0..DIRECT).map(|slot| entry(root, slot));
    let (mut runs, mut next) = (0, None);
    for block in blocks.filter(|&block| block != 0) {
        runs += u32::from(next != Some(block));
        next = block.checked_add(1);
    }
    Some(runs)
}

/// The blocks that the inode itself points to.
pub(crate) fn direct_blocks(root: &Root) -> impl Iterator<Item = BlockNumber> + use<'_> {
    let pointers = (0..DIRECT).map(|slot| entry(root, slot));
    pointers
        .filter(|&pointer| pointer != 0)
        .map(|pointer| BlockNumber(u64::from(pointer)))
}

/// How many blocks from `logical` on have their pointers beside each other: a run that is mapped at
/// once is no longer. None past what the map reaches.
pub(crate) fn room(logical: LogicalBlock, block_size: u32) -> Option<u32> {
    let fan_out = u64::from(indirect::pointers_per_block(block_size));
    let place = Place::of(logical, fan_out)?;
    let room = match place.levels {
        0 => DIRECT as u64 - place.offset,
        _ => fan_out - place.offset % fan_out,
    };
    u32::try_from(room).ok()
}

fn corrupt(problem: &'static str) -> Error {
    Corrupt::new("block map", problem).into()
}

/// A pointer that is not 0, judged.
fn judged<N: NodeStore>(nodes: &N, pointer: u32, length: u32) -> Result<BlockNumber> {
    let start = BlockNumber(u64::from(pointer));
    let bounds = nodes.bounds();
    let end = start.get() + u64::from(length);
    if start < bounds.first || end > bounds.end.get() {
        let error = Corrupt::new("block map", "points outside the file system");
        return Err(error.in_block(start).into());
    }
    Ok(start)
}

/// What one block of the file maps to, and how far that goes.
///
/// # Errors
///
/// `Corrupt` for pointers that leave the file system, and the store's own.
pub(crate) fn lookup<N: NodeStore>(
    root: &Root,
    nodes: &N,
    logical: LogicalBlock,
) -> Result<Mapping> {
    let fan_out = fan_out(nodes);
    let Some(place) = Place::of(logical, fan_out) else {
        return Ok(hole(logical, extent::LOGICAL_END));
    };
    if place.levels == 0 {
        return run(nodes, &root[..DIRECT * 4], place.slot(), logical);
    }
    let mut pointer = entry(root, place.slot());
    for level in (1..=place.levels).rev() {
        if pointer == 0 {
            let below = span(fan_out, level);
            return Ok(hole(logical, below - place.offset % below));
        }
        let block = judged(nodes, pointer, 1)?;
        let step = place.step(fan_out, level);
        if level == 1 {
            return nodes.read(block, 0, |page| run(nodes, page, step, logical));
        }
        pointer = nodes.read(block, depth(level), |page| Ok(entry(page, step)))?;
    }
    unreachable!("the last level answers")
}

/// Levels below a pointer block, as stores count them.
fn depth(level: usize) -> u16 {
    u16::try_from(level - 1).expect("three at most")
}

fn hole(logical: LogicalBlock, length: u64) -> Mapping {
    // Never nothing: a size may reach one block further than a map.
    let most = (1 << 32) - u64::from(logical.get());
    let length = u32::try_from(length.min(most)).unwrap_or(u32::MAX);
    Mapping::Hole { logical, length }
}

/// The pointers from `at` on that lead to neighbours, or to nothing.
fn run<N: NodeStore>(
    nodes: &N,
    pointers: &[u8],
    at: usize,
    logical: LogicalBlock,
) -> Result<Mapping> {
    let first = entry(pointers, at);
    let next = |step: u32| match first {
        0 => Some(0),
        first => first.checked_add(step),
    };
    let count = pointers.len() / 4;
    let same = (1u32..)
        .zip(at + 1..count)
        .take_while(|&(step, index)| next(step) == Some(entry(pointers, index)));
    let length = u32::try_from(1 + same.count()).expect("a block of pointers is small");
    if first == 0 {
        return Ok(hole(logical, u64::from(length)));
    }
    Ok(Mapping::Mapped(Extent {
        logical,
        start: judged(nodes, first, length)?,
        length,
        unwritten: false,
    }))
}

/// Maps a run into a hole whose pointers lie beside each other (see [`room`]).
///
/// # Errors
///
/// `Refused(NoSpace)` if a pointer block is needed and there is none, or the blocks are beyond what
/// a pointer of 32 bits can name; `Refused(FileTooLarge)` past what the map reaches; `Corrupt`.
/// Nothing is changed then.
pub(crate) fn insert<N: NodeStore>(root: &mut Root, nodes: &mut N, run: Extent) -> Result<()> {
    let fan_out = fan_out(nodes);
    let place = Place::of(run.logical, fan_out).ok_or(Refusal::FileTooLarge)?;
    let end = run.start.get() + u64::from(run.length);
    let Ok(start) = u32::try_from(run.start.get()).map_err(drop) else {
        return Err(Refusal::NoSpace.into());
    };
    if end > u64::from(u32::MAX) {
        return Err(Refusal::NoSpace.into());
    }
    debug_assert!(!run.unwritten, "a map has no unwritten blocks");
    let put = |pointers: &mut [u8], at: usize| {
        for (index, pointer) in (at..).zip(start..start + run.length) {
            set_entry(pointers, index, pointer);
        }
    };
    let is_free = |pointers: &[u8], at: usize| -> Result<()> {
        let mut pointers = (at..at + run.length as usize).map(|index| entry(pointers, index));
        match pointers.all(|pointer| pointer == 0) {
            true => Ok(()),
            false => Err(corrupt("maps a block twice")),
        }
    };
    if place.levels == 0 {
        is_free(root, place.slot())?;
        put(root, place.slot());
        return Ok(());
    }
    let mut way = existing_way(root, nodes, place)?;
    let last = place.step(fan_out, 1);
    if way.len() == place.levels {
        nodes.read(way[place.levels - 1], 0, |page| is_free(page, last))?;
    }
    nodes.reserve(u32::try_from(place.levels - way.len()).expect("three at most"))?;
    while way.len() < place.levels {
        let block = nodes.allocate()?;
        let pointer = u32::try_from(block.get()).map_err(|_| Refusal::NoSpace)?;
        match way.last() {
            None => set_entry(root, place.slot(), pointer),
            Some(&above) => {
                let step = place.step(fan_out, place.levels - way.len() + 1);
                nodes.edit(above, |page| set_entry(page, step, pointer))?;
            }
        }
        way.push(block);
    }
    nodes.edit(way[place.levels - 1], |page| put(page, last))
}

/// The pointer blocks on the way to a place, from the inode on, as far as there are any.
fn existing_way<N: NodeStore>(root: &Root, nodes: &N, place: Place) -> Result<Vec<BlockNumber>> {
    let fan_out = fan_out(nodes);
    let mut way = Vec::with_capacity(MAX_DEPTH);
    let mut pointer = entry(root, place.slot());
    for level in (1..=place.levels).rev() {
        if pointer == 0 {
            break;
        }
        let block = judged(nodes, pointer, 1)?;
        way.push(block);
        if level > 1 {
            let step = place.step(fan_out, level);
            pointer = nodes.read(block, depth(level), |page| Ok(entry(page, step)))?;
        }
    }
    Ok(way)
}

/// How much one call of [`remove`] does at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Runs of neighbours, and pointer blocks.
    pub entries: u32,
    /// Blocks of the file.
    pub blocks: u64,
}

/// Unmaps a range from its end backwards, as far as the limit allows; the runs go to `freed`, the
/// pointer blocks that are left empty to the store. Answers where the next call must end, or `None`
/// when all is done.
///
/// # Errors
///
/// `Corrupt` for pointers that leave the file system; the store's own.
pub(crate) fn remove<N: NodeStore>(
    root: &mut Root,
    nodes: &mut N,
    range: Range<u64>,
    limit: Limit,
    freed: &mut Vec<(BlockNumber, u32)>,
) -> Result<Option<u64>> {
    let fan_out = fan_out(nodes);
    let mut cut = Cut {
        range,
        limit,
        fan_out,
        freed,
        used: 0,
        stopped: None,
    };
    for slot in (0..DIRECT + MAX_DEPTH).rev() {
        let levels = (slot + 1).saturating_sub(DIRECT);
        let base = match levels {
            0 => slot as u64,
            _ => DIRECT as u64 + (1..levels).map(|below| span(fan_out, below)).sum::<u64>(),
        };
        let pointer = entry(root, slot);
        if cut.child(nodes, pointer, levels, base)? {
            set_entry(root, slot, 0);
        }
        if cut.stopped.is_some() {
            break;
        }
    }
    Ok(cut.stopped)
}

/// A removal on its way.
struct Cut<'a> {
    range: Range<u64>,
    limit: Limit,
    fan_out: u64,
    freed: &'a mut Vec<(BlockNumber, u32)>,
    /// Runs and pointer blocks so far.
    used: u32,
    /// Where the next call must end.
    stopped: Option<u64>,
}

impl Cut<'_> {
    /// Removes what a pointer leads to, as far as it lies in the range; true if the pointer has
    /// nothing to point to any more.
    fn child<N: NodeStore>(
        &mut self,
        nodes: &mut N,
        pointer: u32,
        levels: usize,
        base: u64,
    ) -> Result<bool> {
        let end = base + span(self.fan_out, levels);
        if pointer == 0 || end <= self.range.start || base >= self.range.end {
            return Ok(false);
        }
        let block = judged(nodes, pointer, 1)?;
        if levels == 0 {
            return Ok(self.data(block, base));
        }
        if self.used >= self.limit.entries {
            self.stopped = Some(end.min(self.range.end));
            return Ok(false);
        }
        let is_empty = self.below(nodes, block, levels, base)?;
        if is_empty {
            nodes.free(block)?;
            self.used += 1;
        }
        Ok(is_empty)
    }

    /// Removes what a pointer block leads to; true if it is empty then, and not worth changing.
    fn below<N: NodeStore>(
        &mut self,
        nodes: &mut N,
        block: BlockNumber,
        levels: usize,
        base: u64,
    ) -> Result<bool> {
        let each = span(self.fan_out, levels - 1);
        let pointers: Vec<(usize, u32)> = nodes.read(block, depth(levels), |page| {
            let all = (0..page.len() / 4).map(|index| (index, entry(page, index)));
            Ok(all.filter(|&(_, pointer)| pointer != 0).collect())
        })?;
        let mut gone = Vec::new();
        for &(index, pointer) in pointers.iter().rev() {
            if self.child(nodes, pointer, levels - 1, base + index as u64 * each)? {
                gone.push(index);
            }
            if self.stopped.is_some() {
                break;
            }
        }
        let is_empty = gone.len() == pointers.len();
        if !is_empty && !gone.is_empty() {
            nodes.edit(block, |page| {
                gone.iter().for_each(|&index| set_entry(page, index, 0))
            })?;
        }
        Ok(is_empty)
    }

    /// Takes a block of the file, if the limit allows.
    fn data(&mut self, block: BlockNumber, logical: u64) -> bool {
        let is_neighbour = self.freed.last().is_some_and(|&(start, length)| {
            block.checked_add(1u32) == Some(start) && length < extent::MAX_WRITTEN_LENGTH
        });
        if self.limit.blocks == 0 || (!is_neighbour && self.used >= self.limit.entries) {
            self.stopped = Some(logical + 1);
            return false;
        }
        self.limit.blocks -= 1;
        match self.freed.last_mut() {
            Some((start, length)) if is_neighbour => {
                *start = block;
                *length += 1;
            }
            _ => {
                self.freed.push((block, 1));
                self.used += 1;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
