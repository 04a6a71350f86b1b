//! A set of blocks, kept as runs of neighbours: few entries also for gigabytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockRuns {
    /// The end of each run, by its start. Runs neither touch nor overlap.
    ends: BTreeMap<u64, u64>,
}

impl BlockRuns {
    /// Adds blocks. Some of them may be in the set already.
    pub(crate) fn add(&mut self, blocks: Range<u64>) {
        let Range { mut start, mut end } = blocks;
        // Runs that touch or overlap the new one become part of it.
        while let Some((&from, &until)) = self.ends.range(..=end).next_back()
            && until >= start
        {
            self.ends.remove(&from);
            (start, end) = (start.min(from), end.max(until));
        }
        self.ends.insert(start, end);
    }

    /// Whether a block is in the set.
    pub(crate) fn contains(&self, block: u64) -> bool {
        let before = self.ends.range(..=block).next_back();
        before.is_some_and(|(_, &end)| block < end)
    }

    /// The runs, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::BlockRuns;

    #[test]
    fn runs_that_touch_are_one() {
        let mut runs = BlockRuns::default();
        for blocks in [10..20, 30..40, 5..6, 20..25, 12..13, 41..42, 24..35] {
            runs.add(blocks);
        }
        assert_eq!(runs.iter().collect::<Vec<_>>(), [5..6, 10..40, 41..42]);
        let found: Vec<u64> = (0..50).filter(|&block| runs.contains(block)).collect();
        let expected: Vec<u64> = runs.iter().flatten().collect();
        assert_eq!(found, expected);
        runs.add(0..100);
        assert!(runs.iter().eq(std::iter::once(0..100)), "{runs:?}");
    }
}
