//! The block map of files without extents, as ext2 and ext3 make them: lookup, insertion, removal.
//!
//! The inode's slot points to the first 12 blocks and to three trees of pointer blocks, of one, two
//! and three levels; see `pext4_ondisk::indirect`. It has no unwritten blocks and no checksums. A
//! pointer block exists only while it points to something: mapping the first block below it
//! allocates it, unmapping the last one frees it.
//!
//! Everything here works on [`NodeStore`], as the extent tree does, and follows its rules: the
//! caller holds the inode's lock, for changes exclusively and the map lock too; what a change may
//! need is reserved before its first step; no pointer is used before it is checked.

use std::collections::BTreeSet;
use std::ops::Range;

use pext4_ondisk::indirect::{self, DIRECT, MAX_DEPTH, Path, entry, set_entry, span};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock, extent};

use super::Root;
use super::extents::{Extent, Hole, Mapping, NodeStore};
use super::mapping::Limit;
use crate::error::{Error, Refusal, Result};

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("below the pointers of a block")
}

fn fan_out<N: NodeStore>(nodes: &N) -> u64 {
    nodes.block_size() as u64 / 4
}

/// Largest size of a file in bytes: limited by what the map can map and, without `huge_file`, by
/// what the inode can count in units of 512 bytes.
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

/// Number of pointer blocks of a map of `blocks` blocks without holes.
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

/// Number of runs of contiguous blocks in a map without pointer blocks; `None` if it has some.
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

/// Number of blocks from `logical` on whose pointers are adjacent: the longest run that can be
/// mapped at once. `None` beyond what the map can map.
pub(crate) fn room(logical: LogicalBlock, block_size: u32) -> Option<u32> {
    let fan_out = u64::from(indirect::pointers_per_block(block_size));
    let place = Path::to(logical, fan_out)?;
    let room = match place.depth() {
        0 => DIRECT as u64 - place.offset(),
        _ => fan_out - place.offset() % fan_out,
    };
    u32::try_from(room).ok()
}

fn corrupt(problem: &'static str) -> Error {
    Corrupt::new("block map", problem).into()
}

/// The block to which a non-zero pointer refers, checked to be inside the file system with the
/// `length - 1` blocks after it.
fn checked<N: NodeStore>(nodes: &N, pointer: u32, length: u32) -> Result<BlockNumber> {
    let start = BlockNumber(u64::from(pointer));
    let bounds = nodes.bounds();
    let end = start.get() + u64::from(length);
    if start < bounds.first || end > bounds.end.get() {
        let error = Corrupt::new("block map", "points outside the file system");
        return Err(error.in_block(start).into());
    }
    Ok(start)
}

/// What one block of the file maps to, and how far that mapping extends.
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
    let Some(place) = Path::to(logical, fan_out) else {
        return Ok(hole(logical, extent::LOGICAL_END));
    };
    if place.depth() == 0 {
        return run(nodes, &root[..DIRECT * 4], place.slot(), logical);
    }
    let mut pointer = entry(root, place.slot());
    // The number of adjacent pointers that are 0, from the one that was followed on.
    let mut zeroes = u64::from(pointer == 0);
    for level in (1..=place.depth()).rev() {
        if zeroes > 0 {
            let below = span(fan_out, level);
            return Ok(hole(logical, zeroes * below - place.offset() % below));
        }
        let block = checked(nodes, pointer, 1)?;
        let step = place.step(level);
        if level == 1 {
            return nodes.read(block, 0, |page| run(nodes, page, step, logical));
        }
        (pointer, zeroes) = nodes.read(block, depth(level), |page| {
            let from = (step..index(fan_out)).map(|at| entry(page, at));
            let zeroes = from.take_while(|&pointer| pointer == 0).count();
            Ok((entry(page, step), zeroes as u64))
        })?;
    }
    unreachable!("level 1 returns")
}

/// Where `logical` cannot be looked up because a pointer on the way to it is bad, or the pointer
/// block there cannot be read: the end of the file's blocks for which the same is true.
pub(crate) fn end_of_damage<N: NodeStore>(root: &Root, nodes: &N, logical: LogicalBlock) -> u64 {
    let first = u64::from(logical.get());
    let fan_out = fan_out(nodes);
    let Some(place) = Path::to(logical, fan_out) else {
        return extent::LOGICAL_END.max(first + 1);
    };
    let mut pointer = entry(root, place.slot());
    for level in (1..=place.depth()).rev() {
        let below = checked(nodes, pointer, 1).and_then(|block| {
            nodes.read(block, depth(level), |page| {
                Ok(entry(page, place.step(level)))
            })
        });
        let Ok(below) = below else {
            let reach = span(fan_out, level);
            return first + reach - place.offset() % reach;
        };
        pointer = below;
    }
    first + 1
}

/// Levels of pointer blocks below this one, as [`NodeStore`] counts them.
fn depth(level: usize) -> u16 {
    u16::try_from(level - 1).expect("three at most")
}

fn hole(logical: LogicalBlock, length: u64) -> Mapping {
    // Never zero: a file's size may extend one block beyond what a map can map.
    let most = (1 << 32) - u64::from(logical.get());
    let length = u32::try_from(length.min(most)).unwrap_or(u32::MAX);
    Mapping::Hole(Hole {
        logical,
        length,
        before: None,
        after: None,
    })
}

/// The mapping given by the pointers from index `at` on that refer to contiguous blocks, or are all
/// 0.
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
        start: checked(nodes, first, length)?,
        length,
        unwritten: false,
    }))
}

/// Maps a run into a hole; its pointers must be adjacent (see [`room`]).
///
/// # Errors
///
/// `Refused(NoSpace)` if a pointer block is needed and there is none, or the blocks are beyond what
/// a pointer of 32 bits can name; `Refused(FileTooLarge)` beyond what the map can map; `Corrupt`.
/// Nothing is changed then.
pub(crate) fn insert<N: NodeStore>(root: &mut Root, nodes: &mut N, run: Extent) -> Result<()> {
    let fan_out = fan_out(nodes);
    let place = Path::to(run.logical, fan_out).ok_or(Refusal::FileTooLarge)?;
    let end = run.start.get() + u64::from(run.length);
    let Ok(start) = u32::try_from(run.start.get()) else {
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
    if place.depth() == 0 {
        is_free(root, place.slot())?;
        put(root, place.slot());
        return Ok(());
    }
    let mut path = existing_path(root, nodes, &place)?;
    let last = place.step(1);
    if path.len() == place.depth() {
        nodes.read(path[place.depth() - 1], 0, |page| is_free(page, last))?;
    }
    nodes.reserve(u32::try_from(place.depth() - path.len()).expect("three at most"))?;
    while path.len() < place.depth() {
        let block = nodes.allocate()?;
        let pointer = u32::try_from(block.get()).map_err(|_| Refusal::NoSpace)?;
        match path.last() {
            None => set_entry(root, place.slot(), pointer),
            Some(&above) => {
                let step = place.step(place.depth() - path.len() + 1);
                nodes.edit(above, |page| set_entry(page, step, pointer))?;
            }
        }
        path.push(block);
    }
    nodes.edit(path[place.depth() - 1], |page| put(page, last))
}

/// The existing pointer blocks on the path from the inode to a place.
fn existing_path<N: NodeStore>(root: &Root, nodes: &N, wanted: &Path) -> Result<Vec<BlockNumber>> {
    let mut path = Vec::with_capacity(MAX_DEPTH);
    let mut pointer = entry(root, wanted.slot());
    for level in (1..=wanted.depth()).rev() {
        if pointer == 0 {
            break;
        }
        let block = checked(nodes, pointer, 1)?;
        path.push(block);
        if level > 1 {
            let step = wanted.step(level);
            pointer = nodes.read(block, depth(level), |page| Ok(entry(page, step)))?;
        }
    }
    Ok(path)
}

/// What a map consists of.
#[derive(Default)]
pub(crate) struct Contents {
    /// Its blocks as extents, in their order.
    pub(crate) extents: Vec<Extent>,
    /// The pointer blocks.
    pub(crate) pointer_blocks: BTreeSet<BlockNumber>,
}

/// The most that [`contents`] gathers.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) extents: usize,
    pub(crate) pointer_blocks: usize,
}

/// All of a map; `None` if it is more than `most`.
///
/// # Errors
///
/// `Corrupt` for pointers that leave the file system, or lead to its own structures or to one
/// pointer block twice; the store's own.
pub(crate) fn contents<N: NodeStore>(
    root: &Root,
    nodes: &N,
    most: Most,
) -> Result<Option<Contents>> {
    let fan_out = fan_out(nodes);
    let mut found = Contents::default();
    let mut base = 0;
    for slot in 0..DIRECT + MAX_DEPTH {
        let levels = (slot + 1).saturating_sub(DIRECT);
        if !found.add(nodes, entry(root, slot), (levels, base), most)? {
            return Ok(None);
        }
        base += span(fan_out, levels);
    }
    Ok(Some(found))
}

impl Contents {
    /// Adds what is below a pointer at this level, from this block of the file on. False if that is
    /// more than `most`.
    fn add<N: NodeStore>(
        &mut self,
        nodes: &N,
        pointer: u32,
        (levels, base): (usize, u64),
        most: Most,
    ) -> Result<bool> {
        if pointer == 0 {
            return Ok(true);
        }
        let block = target(nodes, pointer, levels)?;
        if levels == 0 {
            self.add_data(block, base)?;
            return Ok(self.extents.len() <= most.extents);
        }
        if !self.pointer_blocks.insert(block) {
            return Err(corrupt("leads to a pointer block twice"));
        }
        if self.pointer_blocks.len() > most.pointer_blocks {
            return Ok(false);
        }
        let each = span(fan_out(nodes), levels - 1);
        let pointers: Vec<u32> = nodes.read(block, depth(levels), |page| {
            Ok((0..page.len() / 4).map(|at| entry(page, at)).collect())
        })?;
        for (at, pointer) in (0..).zip(pointers) {
            if !self.add(nodes, pointer, (levels - 1, base + at * each), most)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add_data(&mut self, block: BlockNumber, base: u64) -> Result<()> {
        if base >= extent::LOGICAL_END {
            return Err(Refusal::NotSupported.into());
        }
        let next = Extent {
            logical: LogicalBlock(u32::try_from(base).expect("below the end")),
            start: block,
            length: 1,
            unwritten: false,
        };
        let joined = self.extents.last().and_then(|last| last.joined(&next));
        match (self.extents.last_mut(), joined) {
            (Some(last), Some(joined)) => *last = joined,
            _ => self.extents.push(next),
        }
        Ok(())
    }
}

/// Unmaps a range from its end backwards, as far as the limit allows. Appends the unmapped runs to
/// `freed`; frees pointer blocks that become empty. Returns the end of the range for the next call,
/// or `None` when everything is unmapped.
///
/// A step that meets damage after it has unmapped something ends before it: what is unmapped so far
/// is consistent, and the next step fails before it changes anything.
///
/// # Errors
///
/// `Corrupt` for pointers that leave the file system; the store's own. Nothing is changed then.
pub(crate) fn remove<N: NodeStore>(
    root: &mut Root,
    nodes: &mut N,
    range: Range<u64>,
    limit: Limit,
    freed: &mut Vec<(BlockNumber, u32)>,
) -> Result<Option<u64>> {
    let fan_out = fan_out(nodes);
    let mut removal = Removal {
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
        if removal.child(nodes, pointer, levels, base)? {
            set_entry(root, slot, 0);
        }
        if removal.stopped.is_some() {
            break;
        }
    }
    Ok(removal.stopped)
}

/// The block to which a pointer leads, which can be a file's or, with levels below it, be read.
fn target<N: NodeStore>(nodes: &N, pointer: u32, levels: usize) -> Result<BlockNumber> {
    let block = checked(nodes, pointer, 1)?;
    match levels {
        0 => nodes.check_mapped(block, 1)?,
        _ => nodes.read(block, depth(levels), |_| Ok(()))?,
    }
    Ok(block)
}

/// The state of a removal.
struct Removal<'a> {
    range: Range<u64>,
    limit: Limit,
    fan_out: u64,
    freed: &'a mut Vec<(BlockNumber, u32)>,
    /// Runs and pointer blocks removed so far.
    used: u32,
    /// The end of the range for the next call, if the limit was reached.
    stopped: Option<u64>,
}

impl Removal<'_> {
    /// Removes the blocks below a pointer that are in the range; true if the pointer must be
    /// cleared.
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
        let block = match target(nodes, pointer, levels) {
            Err(_) if self.used > 0 => {
                self.stopped = Some(end.min(self.range.end));
                return Ok(false);
            }
            block => block?,
        };
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

    /// Removes the blocks below a pointer block that are in the range. True if it is empty then; an
    /// empty one is not changed, since the caller frees it.
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

    /// Adds a block of the file to `freed`, if the limit allows; returns whether it did.
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
