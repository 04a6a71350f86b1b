//! The blocks that a shrink must vacate: those behind the new end, and those that new copies of
//! superblock and descriptors will occupy.

use pext4_ondisk::geometry::Geometry;

use crate::mkfs::Run;

/// The blocks to vacate.
#[derive(Clone, Debug)]
pub(super) struct Vacated {
    /// The first block behind the new end.
    end: u64,
    /// The blocks of new copies before the end, in order.
    new_copies: Vec<Run>,
}

impl Vacated {
    /// The blocks that `new` needs empty and `old` may use.
    pub fn between(old: &Geometry, new: &Geometry) -> Self {
        let new_copy = |group| {
            let first = new.first_block(group).get();
            let had = first + u64::from(old.superblock_overhead(group));
            let needs = first + u64::from(new.superblock_overhead(group));
            (had < needs).then_some(had..needs)
        };
        Self {
            end: new.blocks_count,
            new_copies: new.groups().filter_map(new_copy).collect(),
        }
    }

    /// The blocks of new copies.
    pub fn new_copies(&self) -> &[Run] {
        &self.new_copies
    }

    /// Whether a block must be vacated.
    pub fn contains(&self, block: u64) -> bool {
        block >= self.end || self.new_copies.iter().any(|run| run.contains(&block))
    }

    /// Whether any block of a run must be vacated.
    pub fn overlaps(&self, run: &Run) -> bool {
        run.end > self.end
            || self
                .new_copies
                .iter()
                .any(|copy| copy.start < run.end && run.start < copy.end)
    }

    /// Splits a run into pieces, each with whether it must be vacated.
    pub fn pieces(&self, run: Run) -> Vec<(Run, bool)> {
        let mut cuts = vec![run.start, run.end, self.end];
        cuts.extend(
            self.new_copies
                .iter()
                .flat_map(|copy| [copy.start, copy.end]),
        );
        cuts.retain(|cut| (run.start..=run.end).contains(cut));
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2)
            .map(|pair| (pair[0]..pair[1], self.contains(pair[0])))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Vacated;

    #[test]
    fn runs_are_split_at_vacated_blocks() {
        let vacated = Vacated {
            end: 100,
            new_copies: std::iter::once(20..30).collect(),
        };
        let pieces = vacated.pieces(15..105);
        let expected = [
            (15..20, false),
            (20..30, true),
            (30..100, false),
            (100..105, true),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(vacated.pieces(40..50), [(40..50, false)]);
        assert!(vacated.overlaps(&(29..31)) && !vacated.overlaps(&(30..100)));
        assert!(vacated.overlaps(&(99..101)) && vacated.contains(100) && !vacated.contains(99));
    }
}
