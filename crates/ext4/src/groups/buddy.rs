//! The free blocks of one group, by power of two; with `bigalloc` its clusters, which are then what
//! is called blocks here.
//!
//! Level `k` has one bit for each aligned run of 2^k blocks, which is set if all of them are free.
//! So a bit is the AND of two bits of the level below. Both kinds of search (for an aligned power
//! of two, and for a run of some length) begin at the highest level on which no suitable run can be
//! missed. All levels together take 2 bits per block.
//!
//! Invariants, which [`Buddy::check`] tests: every bit above level 0 is the AND of its two
//! children; `counts[k]` is the number of bits set in level `k`; `free` is `counts[0]`; `fragments`
//! is the number of maximal free runs. This module takes no locks and does no I/O; its owner holds
//! the group.

use super::bits;

/// The maximum number of levels: groups have up to 2^19 blocks (with blocks of 64 KiB).
pub const ORDERS: usize = 20;

/// A run of blocks of a group, relative to the group's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first block.
    pub start: u32,
    /// The number of blocks.
    pub length: u32,
}

impl Span {
    /// The block after the end of the run.
    #[must_use]
    pub fn end(self) -> u32 {
        self.start + self.length
    }
}

/// Free runs of a group. A block that is not free here is used, preallocated, or freed by a
/// transaction that is not durable yet.
#[derive(Clone)]
pub struct Buddy {
    blocks: u32,
    fragments: u32,
    counts: [u32; ORDERS],
    levels: Box<[Box<[u64]>]>,
}

impl Buddy {
    /// A group of `blocks` blocks, none of them free.
    ///
    /// # Panics
    ///
    /// If there are more than 2^20 - 1 blocks; geometry allows no such group.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        assert!(blocks >> ORDERS == 0, "the geometry bounds groups");
        let levels = (0..ORDERS)
            .take_while(|order| *order == 0 || blocks >> order > 0)
            .map(|order| vec![0; bits::words_for(blocks >> order)].into_boxed_slice())
            .collect();
        Self {
            blocks,
            fragments: 0,
            counts: [0; ORDERS],
            levels,
        }
    }

    /// A group whose free blocks are the zeroes of an on-disk bitmap.
    #[must_use]
    pub fn from_bitmap(bitmap: &[u8], blocks: u32) -> Self {
        let mut buddy = Self::new(blocks);
        for (word, bytes) in buddy.levels[0].iter_mut().zip(bitmap.chunks(8)) {
            let mut padded = [0xFF; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = !u64::from_le_bytes(padded);
        }
        let capacity = u32::try_from(buddy.levels[0].len() * 64).expect("a group has few words");
        bits::clear_range(&mut buddy.levels[0], blocks, capacity);
        buddy.counts[0] = bits::count(&buddy.levels[0], 0, blocks);
        buddy.fragments = buddy.count_fragments();
        for order in 1..buddy.levels.len() {
            buddy.build_level(order);
        }
        buddy
    }

    /// Derives a level from the one below.
    fn build_level(&mut self, order: usize) {
        let parents = self.blocks >> order;
        let (below, above) = self.levels.split_at_mut(order);
        let (children, level) = (&below[order - 1], &mut above[0]);
        let half = |word: Option<&u64>| word.map_or(0, |&word| u64::from(pairs(word)));
        for (index, word) in level.iter_mut().enumerate() {
            *word = half(children.get(2 * index)) | half(children.get(2 * index + 1)) << 32;
        }
        let capacity = u32::try_from(level.len() * 64).expect("a level has few words");
        bits::clear_range(level, parents, capacity);
        self.counts[order] = bits::count(level, 0, parents);
    }

    fn count_fragments(&self) -> u32 {
        let mut carry = 0;
        let mut starts = 0;
        for &word in &self.levels[0] {
            starts += (word & !(word << 1 | carry)).count_ones();
            carry = word >> 63;
        }
        starts
    }

    /// Blocks of the group.
    #[cfg(test)]
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Free blocks.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.counts[0]
    }

    /// Maximal free runs.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    /// The largest order of which an aligned free run exists; `None` when nothing is free.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        let order = self.counts.iter().rposition(|&count| count > 0)?;
        u32::try_from(order).ok()
    }

    /// The first free block.
    #[must_use]
    pub fn first_free(&self) -> Option<u32> {
        bits::next_set(&self.levels[0], 0, self.blocks)
    }

    /// How many runs of each order there are if the free blocks are divided into as few aligned
    /// runs as possible: of each order those that are not half of a larger one.
    #[must_use]
    pub fn runs_by_order(&self) -> [u32; ORDERS] {
        let above = |order: usize| self.counts.get(order + 1).copied().unwrap_or(0);
        std::array::from_fn(|order| self.counts[order] - 2 * above(order))
    }

    /// Whether a block is free.
    #[must_use]
    pub fn is_free(&self, block: u32) -> bool {
        block < self.blocks && bits::test(&self.levels[0], block)
    }

    /// How many consecutive blocks from `start` on are free, at most `most`.
    #[must_use]
    pub fn run_at(&self, start: u32, most: u32) -> u32 {
        let end = start.saturating_add(most).min(self.blocks);
        if start >= end {
            return 0;
        }
        bits::next_clear(&self.levels[0], start, end).unwrap_or(end) - start
    }

    /// The first free run in `from..end`, clipped to this range.
    #[must_use]
    pub fn next_run(&self, from: u32, end: u32) -> Option<Span> {
        let end = end.min(self.blocks);
        let start = bits::next_set(&self.levels[0], from, end)?;
        let length = self.run_at(start, end - start);
        Some(Span { start, length })
    }

    /// The first aligned free run of 2^order blocks that starts at `from` or later.
    #[must_use]
    pub fn find_aligned(&self, from: u32, order: u32) -> Option<Span> {
        let level = self.levels.get(order as usize)?;
        let index = bits::next_set(level, from.div_ceil(1 << order), self.blocks >> order)?;
        Some(Span {
            start: index << order,
            length: 1 << order,
        })
    }

    /// The first free run of `length` blocks (at least 1) that starts at `from` or later.
    #[must_use]
    pub fn find_run(&self, from: u32, length: u32) -> Option<Span> {
        // Every run of 2^(k+1) - 1 blocks contains an aligned run of 2^k.
        let order = length.checked_add(1)?.ilog2().checked_sub(1)?;
        let level = self.levels.get(order as usize)?;
        let mut index = from >> order;
        while let Some(found) = bits::next_set(level, index, self.blocks >> order) {
            let inside = (found << order).max(from);
            let start = self.start_of_run(inside, from);
            let run = self.run_at(start, length);
            if run == length {
                return Some(Span { start, length });
            }
            index = ((start + run) >> order).max(found + 1);
        }
        None
    }

    /// A large free run: the one around the first of the largest aligned runs, clipped to `most`
    /// blocks. `None` if nothing is free.
    #[must_use]
    pub fn find_large(&self, most: u32) -> Option<Span> {
        let order = self.largest_order()?;
        let inside = self.find_aligned(0, order)?;
        let start = self.start_of_run(inside.start, 0);
        Some(Span {
            start,
            length: self.run_at(start, most),
        })
    }

    /// The start of the free run around `inside`, at least `from`.
    fn start_of_run(&self, inside: u32, from: u32) -> u32 {
        bits::last_clear(&self.levels[0], from, inside).map_or(from, |clear| clear + 1)
    }

    /// Marks a free run as used.
    ///
    /// # Panics
    ///
    /// If a block of it is not free: the caller found it under the same hold of the group.
    pub fn take(&mut self, span: Span) {
        assert_eq!(
            self.run_at(span.start, span.length),
            span.length,
            "only free blocks are taken"
        );
        self.count_edges(span, 1);
        let (mut first, mut last) = (span.start, span.end() - 1);
        for (order, level) in self.levels.iter_mut().enumerate() {
            let bits_here = self.blocks >> order;
            let cleared = bits::clear_range(level, first.min(bits_here), (last + 1).min(bits_here));
            if cleared == 0 {
                break;
            }
            self.counts[order] -= cleared;
            (first, last) = (first >> 1, last >> 1);
        }
    }

    /// Marks a used run as free.
    ///
    /// # Panics
    ///
    /// If a block of it is free already. The caller has tested the group's bitmap, whose used
    /// blocks are a subset of those used here.
    pub fn release(&mut self, span: Span) {
        assert!(span.end() <= self.blocks, "runs end inside their group");
        let taken = bits::next_set(&self.levels[0], span.start, span.end()).is_none();
        assert!(taken, "only used blocks are released");
        bits::set_range(&mut self.levels[0], span.start, span.end());
        self.counts[0] += span.length;
        self.count_edges(span, -1);
        for order in 1..self.levels.len() {
            if !self.merge(order, span) {
                break;
            }
        }
    }

    /// Sets the bits of a level whose children are both free after the release of `span`; returns
    /// whether there were any.
    fn merge(&mut self, order: usize, span: Span) -> bool {
        let (below, above) = self.levels.split_at_mut(order);
        let (children, level) = (&below[order - 1], &mut above[0]);
        let end = ((span.end() - 1) >> order) + 1;
        let end = end.min(self.blocks >> order);
        let first = span.start >> order;
        // All except the outermost parents are entirely inside the released run.
        let inner = (first + 1).min(end)..end.saturating_sub(1).max(first + 1).min(end);
        bits::set_range(level, inner.start, inner.end);
        let mut merged = inner.end - inner.start;
        let outer = [Some(first), end.checked_sub(1).filter(|&last| last > first)];
        for parent in outer.into_iter().flatten().filter(|&parent| parent < end) {
            if bits::test(children, 2 * parent) && bits::test(children, 2 * parent + 1) {
                bits::set(level, parent);
                merged += 1;
            }
        }
        self.counts[order] += merged;
        merged > 0
    }

    /// Adjusts the number of fragments for a span between free neighbours (`sign` 1: the span is
    /// taken out of a run, -1: it joins what is beside it).
    fn count_edges(&mut self, span: Span, sign: i32) {
        let before = span.start > 0 && self.is_free(span.start - 1);
        let after = self.is_free(span.end());
        let change = sign * (i32::from(before) + i32::from(after) - 1);
        self.fragments = self
            .fragments
            .checked_add_signed(change)
            .expect("fragments are counted exactly");
    }

    /// Tests every invariant.
    ///
    /// # Errors
    ///
    /// A description of the first invariant that is violated.
    pub fn check(&self) -> Result<(), String> {
        for (order, level) in self.levels.iter().enumerate() {
            let length = self.blocks >> order;
            let set = bits::count(level, 0, length);
            if set != self.counts[order] {
                return Err(format!(
                    "order {order}: {set} runs, counted {}",
                    self.counts[order]
                ));
            }
            for index in (0..length).filter(|_| order > 0) {
                let children = &self.levels[order - 1];
                let both = bits::test(children, 2 * index) && bits::test(children, 2 * index + 1);
                if bits::test(level, index) != both {
                    return Err(format!(
                        "order {order}: bit {index} contradicts its children"
                    ));
                }
            }
        }
        if self.fragments != self.count_fragments() {
            return Err(format!(
                "{} fragments, counted {}",
                self.count_fragments(),
                self.fragments
            ));
        }
        Ok(())
    }
}

/// The ANDs of adjacent bits: bit `n` of the result is the AND of bits `2n` and `2n + 1` of `word`.
fn pairs(word: u64) -> u32 {
    let mut even = word & word >> 1 & 0x5555_5555_5555_5555;
    even = (even | even >> 1) & 0x3333_3333_3333_3333;
    even = (even | even >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
    even = (even | even >> 4) & 0x00FF_00FF_00FF_00FF;
    even = (even | even >> 8) & 0x0000_FFFF_0000_FFFF;
    u32::try_from((even | even >> 16) & 0xFFFF_FFFF).expect("masked to 32 bits")
}

#[cfg(test)]
mod tests;
