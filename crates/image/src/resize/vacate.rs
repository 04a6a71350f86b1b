//! The blocks that a shrink must vacate: those behind the new end, and those that new copies of
//! superblock and descriptors will occupy.

use pext4_ondisk::geometry::Geometry;

use super::space::Run;

/// The blocks to vacate.
#[derive(Clone, Debug)]
pub(super) struct Vacated {
    /// The first block behind the new end.
    end: u64,
    /// The blocks of new copies before the end, in order.
    claimed: Vec<Run>,
}

impl Vacated {
    /// The blocks that `new` needs empty and `old` may use.
    pub fn between(old: &Geometry, new: &Geometry) -> Self {
        let claim = |group| {
            let first = new.first_block(group).get();
            let had = first + u64::from(old.superblock_overhead(group));
            let needs = first + u64::from(new.superblock_overhead(group));
            (had < needs).then_some(had..needs)
        };
        Self {
            end: new.blocks_count,
            claimed: new.groups().filter_map(claim).collect(),
        }
    }

    /// The blocks of new copies.
    pub fn claimed(&self) -> &[Run] {
        &self.claimed
    }

    /// Whether a block must be vacated.
    pub fn has(&self, block: u64) -> bool {
        block >= self.end || self.claimed.iter().any(|run| run.contains(&block))
    }

    /// Whether any block of a run must be vacated.
    pub fn touches(&self, run: &Run) -> bool {
        run.end > self.end
            || self
                .claimed
                .iter()
                .any(|claim| claim.start < run.end && run.start < claim.end)
    }

    /// Splits a run into pieces, each with whether it must be vacated.
    pub fn pieces(&self, run: Run) -> Vec<(Run, bool)> {
        let mut cuts = vec![run.start, run.end, self.end];
        cuts.extend(
            self.claimed
                .iter()
                .flat_map(|claim| [claim.start, claim.end]),
        );
        cuts.retain(|cut| (run.start..=run.end).contains(cut));
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2)
            .map(|pair| (pair[0]..pair[1], self.has(pair[0])))
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
            claimed: std::iter::once(20..30).collect(),
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
        assert!(vacated.touches(&(29..31)) && !vacated.touches(&(30..100)));
        assert!(vacated.touches(&(99..101)) && vacated.has(100) && !vacated.has(99));
    }
}
