//! The blocks that inodes and metadata use: one set of clusters per group.
//!
//! A group's set is a sorted list of runs while that is smaller than a bitmap, so memory depends on
//! the number of blocks in use and their fragmentation, not on the size of the file system. Each
//! group has its own lock; threads claim blocks of any group. Clusters that are claimed again are
//! also kept in a second set. An extent of a few bytes can claim many blocks, and any number of
//! files can claim the same ones, so the total number of repeated claims is bounded.

use std::collections::BTreeMap;
use std::ops::Range;

use pext4_ondisk::bitmap;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::{BlockNumber, GroupNumber};
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{Class, Mutex};

use super::budget::Budget;

/// With fewer clusters per run than this, a bitmap is smaller than the list.
const CLUSTERS_PER_RUN: u32 = 128;

/// The maximum number of repeated claims, on average per block that holds something. More are not
/// counted. [`MIN_BUDGET`] is added, for small file systems with a few damaged maps.
const MAX_CLAIMS_PER_BLOCK: u64 = 256;
const MIN_BUDGET: u64 = 1 << 22;

/// The maximum number of repeated claims, and also of lookups among them, in blocks. `blocks` are
/// those that hold something.
pub(super) fn budget(blocks: u64) -> Budget {
    let all = blocks.saturating_mul(MAX_CLAIMS_PER_BLOCK);
    Budget::new(all.saturating_add(MIN_BUDGET))
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// None of the blocks was claimed before.
    First,
    /// Some of the blocks were claimed before.
    Again,
    /// The budget of repeated claims is exhausted: the blocks were not claimed.
    Uncounted,
}

/// The clusters of one group that are in use.
#[derive(Clone, Debug)]
pub(super) enum GroupClaims {
    /// Sorted, apart from each other.
    Runs(Vec<Range<u32>>),
    /// One bit a cluster.
    Bits(Box<[u8]>),
}

impl Default for GroupClaims {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl GroupClaims {
    /// Adds clusters. Calls `again` with those that were in the set already.
    fn insert(&mut self, range: Range<u32>, clusters: u32, again: &mut impl FnMut(Range<u32>)) {
        match self {
            Self::Runs(runs) => {
                insert_run(runs, range, again);
                if runs.len() > 8 && runs.len() as u64 > u64::from(clusters / CLUSTERS_PER_RUN) {
                    let mut bits = vec![0; clusters.div_ceil(8) as usize].into_boxed_slice();
                    for run in runs {
                        bitmap::set_range(&mut bits, run.clone());
                    }
                    *self = Self::Bits(bits);
                }
            }
            Self::Bits(bits) => {
                ones(bits, range.clone(), again);
                bitmap::set_range(bits, range);
            }
        }
    }

    /// Calls `each` with every run of clusters in the set that lies in `range`.
    pub(super) fn pieces(&self, range: Range<u32>, mut each: impl FnMut(Range<u32>)) {
        match self {
            Self::Runs(runs) => {
                let first = runs.partition_point(|run| run.end <= range.start);
                for run in runs[first..].iter().take_while(|run| run.start < range.end) {
                    each(run.start.max(range.start)..run.end.min(range.end));
                }
            }
            Self::Bits(bits) => ones(bits, range, &mut each),
        }
    }

    /// The number of clusters in use.
    pub(super) fn count(&self) -> u32 {
        match self {
            Self::Runs(runs) => runs.iter().map(|run| run.end - run.start).sum(),
            Self::Bits(bits) => bits.iter().map(|byte| byte.count_ones()).sum(),
        }
    }
}

fn insert_run(runs: &mut Vec<Range<u32>>, range: Range<u32>, again: &mut impl FnMut(Range<u32>)) {
    if let Some(last) = runs.last_mut()
        && last.end == range.start
    {
        last.end = range.end;
        return;
    }
    let first = runs.partition_point(|run| run.end < range.start);
    let behind = runs.partition_point(|run| run.start <= range.end);
    if first == behind {
        runs.insert(first, range);
        return;
    }
    for run in &runs[first..behind] {
        let common = run.start.max(range.start)..run.end.min(range.end);
        if !common.is_empty() {
            again(common);
        }
    }
    let end = runs[behind - 1].end.max(range.end);
    runs[first] = runs[first].start.min(range.start)..end;
    runs.drain(first + 1..behind);
}

/// The runs of ones of a bitmap in a range.
fn ones(bits: &[u8], range: Range<u32>, each: &mut impl FnMut(Range<u32>)) {
    let mut at = range.start;
    while let Some(start) = bitmap::next_one(bits, at, range.end) {
        let end = bitmap::next_zero(bits, start, range.end).unwrap_or(range.end);
        each(start..end);
        at = end;
    }
}

/// A run of blocks in one group, as clusters of it.
pub(super) struct Piece {
    pub(super) group: GroupNumber,
    pub(super) clusters: Range<u32>,
}

/// Splits a run of blocks at group boundaries. Blocks outside the file system are left out.
pub(super) fn by_group(
    geometry: &Geometry,
    start: BlockNumber,
    length: u64,
) -> impl Iterator<Item = Piece> + use<> {
    let geometry = *geometry;
    let end = start
        .get()
        .saturating_add(length)
        .min(geometry.blocks_count);
    let mut at = start.get().max(u64::from(geometry.first_data_block));
    std::iter::from_fn(move || {
        let group = geometry.group_of(BlockNumber(at)).filter(|_| at < end)?;
        let offset = geometry.offset_in_group(BlockNumber(at))?;
        let left = u64::from(geometry.blocks_in(group) - offset);
        let taken = left.min(end - at);
        at += taken;
        let last = offset + u32::try_from(taken).ok()? - 1;
        let bits = geometry.cluster_bits;
        Some(Piece {
            group,
            clusters: offset >> bits..(last >> bits) + 1,
        })
    })
}

/// Blocks in use, of all groups.
pub(super) struct Claims {
    geometry: Geometry,
    groups: Vec<Mutex<GroupClaims>>,
    again: Mutex<BTreeMap<u32, GroupClaims>>,
    left: Budget,
    /// The budget is exhausted.
    is_over: AtomicBool,
    /// Some runs were not counted.
    is_cut_short: AtomicBool,
    /// Something that says which blocks are in use was not found or not read.
    are_some_unknown: AtomicBool,
}

impl Claims {
    /// Nothing is claimed yet. For `blocks` see [`budget`].
    pub(super) fn new(geometry: &Geometry, blocks: u64) -> Self {
        let empty = |_| Mutex::new(Class::BufferShard, GroupClaims::default());
        Self {
            geometry: *geometry,
            groups: (0..geometry.group_count).map(empty).collect(),
            again: Mutex::new(Class::Leaf, BTreeMap::new()),
            left: budget(blocks),
            is_over: AtomicBool::new(false),
            is_cut_short: AtomicBool::new(false),
            are_some_unknown: AtomicBool::new(false),
        }
    }

    /// Claims blocks for metadata of the file system, which may share clusters.
    pub(super) fn claim_metadata(&self, start: BlockNumber, length: u64) {
        for piece in by_group(&self.geometry, start, length) {
            let clusters = self.geometry.clusters_per_group;
            let mut group = self.groups[piece.group.get() as usize].lock();
            group.insert(piece.clusters, clusters, &mut |_| {});
        }
    }

    /// Claims blocks; false where some were claimed before.
    pub(super) fn claim(&self, start: BlockNumber, length: u64) -> bool {
        let mut is_new = true;
        for piece in by_group(&self.geometry, start, length) {
            let clusters = self.geometry.clusters_per_group;
            let number = piece.group.get();
            let mut group = self.groups[number as usize].lock();
            group.insert(piece.clusters, clusters, &mut |common| {
                is_new = false;
                let mut again = self.again.lock();
                let again = again.entry(number).or_default();
                again.insert(common, clusters, &mut |_| {});
            });
        }
        is_new
    }

    /// Claims a run of a file's data.
    pub(super) fn claim_run(&self, start: BlockNumber, length: u64) -> Claimed {
        if self.is_over.load(Ordering::Relaxed) {
            return Claimed::Uncounted;
        }
        if self.claim(start, length) {
            return Claimed::First;
        }
        // Charge the whole run, although only a part of it may overlap: finding the overlap takes
        // time in proportion to the run.
        if !self.left.take(length) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        Claimed::Again
    }

    /// Whether some blocks in use were not counted.
    pub(super) fn is_cut_short(&self) -> bool {
        self.is_cut_short.load(Ordering::Relaxed) || self.are_some_unknown.load(Ordering::Relaxed)
    }

    /// Records that something that says which blocks are in use was not found or not read.
    pub(super) fn leave_unknown(&self) {
        self.are_some_unknown.store(true, Ordering::Relaxed);
    }

    /// Records that a run was not counted. True if it is the first one.
    pub(super) fn cut_short(&self) -> bool {
        !self.is_cut_short.swap(true, Ordering::Relaxed)
    }

    /// Calls `with` with the clusters of a group that are in use.
    pub(super) fn with<R>(&self, group: GroupNumber, with: impl FnOnce(&GroupClaims) -> R) -> R {
        with(&self.groups[group.get() as usize].lock())
    }

    /// The clusters that were claimed more than once, by group.
    pub(super) fn again(&self) -> BTreeMap<u32, GroupClaims> {
        self.again.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::GroupClaims;

    /// The same claims, bit by bit.
    fn model(ranges: &[(u32, u32)]) -> (Vec<bool>, Vec<bool>) {
        let (mut used, mut again) = (vec![false; 1024], vec![false; 1024]);
        for &(start, end) in ranges {
            for bit in start as usize..end as usize {
                again[bit] |= used[bit];
                used[bit] = true;
            }
        }
        (used, again)
    }

    #[test]
    fn runs_and_bits_agree_with_the_model() {
        let mut state = 7u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for count in [1, 3, 7, 20, 60] {
            let ranges: Vec<(u32, u32)> = (0..count)
                .map(|_| {
                    let start = random(1000);
                    (start, (start + 1 + random(24)).min(1024))
                })
                .collect();
            let mut claims = GroupClaims::default();
            let mut seen = vec![false; 1024];
            for &(start, end) in &ranges {
                claims.insert(start..end, 1024, &mut |common| {
                    common.for_each(|bit| seen[bit as usize] = true);
                });
            }
            let (used, again) = model(&ranges);
            assert_eq!(seen, again, "{ranges:?}");
            let mut found = vec![false; 1024];
            claims.pieces(0..1024, |run| {
                run.for_each(|bit| found[bit as usize] = true);
            });
            assert_eq!(found, used, "{ranges:?}");
            assert_eq!(
                claims.count() as usize,
                used.iter().filter(|bit| **bit).count()
            );
            let mut part = 0;
            claims.pieces(100..200, |run| part += run.end - run.start);
            assert_eq!(
                part as usize,
                used[100..200].iter().filter(|bit| **bit).count()
            );
            assert_eq!(matches!(claims, GroupClaims::Bits(_)), count >= 20);
        }
    }
}
