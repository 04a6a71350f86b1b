//! Which blocks hold the file system's own structures: superblock and descriptor copies, bitmaps,
//! inode tables.
//!
//! With `flex_bg` the bitmaps and the table of a group may be in any other group, so the metadata
//! inside a group cannot be found from its descriptor alone. This map is one sorted list of runs,
//! made at mount: adjacent runs are merged, so a flexible group costs a few entries. Structures
//! that overlap are corruption, which a writable mount refuses. The rest of a cluster in which a
//! structure lies belongs to nobody else, so the runs are of whole clusters. [immutable after
//! mount]

use std::ops::Range;

use pext4_ondisk::{BlockNumber, Corrupt};

/// Blocks that no file may own.
#[derive(Debug, Default)]
pub struct MetadataMap {
    /// Sorted, disjoint, with gaps between them.
    runs: Box<[Range<u64>]>,
}

impl MetadataMap {
    /// A map of the clusters of so many blocks in which these runs of blocks lie, some of which may
    /// share blocks, and the error for the first shared block.
    pub fn new(runs: Vec<Range<u64>>, cluster: u32) -> (Self, Option<Corrupt>) {
        let (mut merged, shared) = merge(runs);
        let cluster = u64::from(cluster);
        if cluster > 1 {
            for run in &mut merged {
                let end = run.end.checked_next_multiple_of(cluster);
                *run = run.start - run.start % cluster..end.unwrap_or(run.end);
            }
            (merged, _) = merge(merged);
        }
        let map = Self {
            runs: merged.into_boxed_slice(),
        };
        let corrupt = |block| {
            let problem = "two bitmaps, inode tables or descriptor copies overlap here";
            Corrupt::new("group descriptors", problem).in_block(BlockNumber(block))
        };
        (map, shared.map(corrupt))
    }

    /// The parts of `blocks` that no file may own, in order.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.runs.partition_point(|run| run.end <= blocks.start);
        self.runs[first..]
            .iter()
            .take_while(move |run| run.start < blocks.end)
            .map(move |run| run.start.max(blocks.start)..run.end.min(blocks.end))
    }

    /// Whether any of `blocks` is in a cluster with metadata.
    #[must_use]
    pub fn touches(&self, blocks: Range<u64>) -> bool {
        self.within(blocks).next().is_some()
    }
}

/// Sorts and merges runs, and returns with them the first block that two share.
pub fn merge(mut runs: Vec<Range<u64>>) -> (Vec<Range<u64>>, Option<u64>) {
    runs.retain(|run| !run.is_empty());
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    let mut shared = None;
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.start <= last.end => {
                if run.start < last.end {
                    shared.get_or_insert(run.start);
                }
                last.end = last.end.max(run.end);
            }
            _ => merged.push(run),
        }
    }
    (merged, shared)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::MetadataMap;

    fn within(map: &MetadataMap, blocks: Range<u64>) -> Vec<Range<u64>> {
        map.within(blocks).collect()
    }

    #[test]
    fn neighbours_merge_and_parts_are_cut_out() {
        let (map, shared) = MetadataMap::new(vec![30..40, 10..12, 12..20, 50..50], 1);
        assert_eq!(shared, None);
        assert_eq!(map.runs.len(), 2);
        assert_eq!(within(&map, 0..100), [10..20, 30..40]);
        assert_eq!(within(&map, 15..31), [15..20, 30..31]);
        assert!(within(&map, 20..30).is_empty());
        assert!(map.touches(19..20) && !map.touches(20..30) && !map.touches(40..90));
    }

    #[test]
    fn structures_that_overlap_are_told_and_kept() {
        let (map, shared) = MetadataMap::new(vec![10..20, 19..22, 0..5, 12..14], 1);
        let shared = shared.and_then(|corrupt| corrupt.block());
        assert_eq!(shared, Some(pext4_ondisk::BlockNumber(12)));
        assert_eq!(within(&map, 0..100), [0..5, 10..22]);
    }

    #[test]
    fn structures_may_share_a_cluster_and_own_it() {
        let (map, shared) = MetadataMap::new(vec![17..18, 18..20, 22..23, 50..64], 16);
        assert_eq!(shared, None);
        assert_eq!(within(&map, 0..100), [16..32, 48..64]);
        let (_, shared) = MetadataMap::new(vec![17..19, 18..20], 16);
        assert!(shared.is_some());
    }
}
