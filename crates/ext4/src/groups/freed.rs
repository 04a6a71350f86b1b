//! Blocks between "freed by a transaction" and "allocatable".
//!
//! A free is first an entry on its group's lock-free stack. The next thread that changes the group,
//! or the committer, *folds* it: clears its bits in the bitmap that is written to disk. The blocks
//! stay used in the buddy until the transaction is durable; if they were allocated earlier, a
//! replay could write old metadata over new data (rule D1). A metadata block that the same
//! transaction has allocated is in no log, and is allocatable as soon as its free is folded.

use std::collections::BTreeMap;

use pext4_ondisk::{GroupNumber, Tid};

use super::buddy::Span;
use super::waiting::Waiting;

/// Blocks of one group that a transaction freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedExtent {
    /// The transaction.
    pub tid: Tid,
    /// The blocks, relative to their group.
    pub span: Span,
    /// When they may be used again.
    pub reuse: Reuse,
}

/// When freed blocks may be allocated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Once the transaction is durable: until then a crash restores their previous owner.
    OnceDurable,
    /// As soon as they are folded: this transaction allocated them, wrote nothing there, and freed
    /// them.
    AtOnce,
}

/// Freed extents of one group whose transactions are not durable yet, by their first block.
/// Adjacent blocks that one transaction freed are one extent. [group]
#[derive(Debug, Default)]
pub struct Pending {
    extents: BTreeMap<u32, Extent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    tid: Tid,
    length: u32,
    /// Its entry on the volume's list, if it has one.
    entry: u32,
}

impl Pending {
    /// Whether there are no extents.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Adds an extent, merging it with adjacent ones of the same transaction, and registers the
    /// group to be visited when the transaction is durable.
    pub fn add(&mut self, freed: FreedExtent, group: GroupNumber, waiting: &Waiting) {
        let FreedExtent { tid, span, .. } = freed;
        let left = self.extents.range(..span.start).next_back();
        let left = left
            .map(|(&start, &extent)| (start, extent))
            .filter(|(start, extent)| extent.tid == tid && start + extent.length == span.start);
        let right = self.extents.get(&span.end()).copied();
        let right = right.filter(|extent| extent.tid == tid);
        let entry = waiting.enter(
            tid,
            group,
            self.is_empty(),
            left.map(|(_, extent)| extent.entry),
            right.map(|extent| extent.entry),
        );
        if right.is_some() {
            self.extents.remove(&span.end());
        }
        let start = left.map_or(span.start, |(start, _)| start);
        let end = span.end() + right.map_or(0, |extent| extent.length);
        let extent = Extent {
            tid,
            length: end - start,
            entry,
        };
        self.extents.insert(start, extent);
    }

    /// The extents freed by transactions up to `tid`, without removing them.
    pub fn through(&self, tid: Tid) -> Vec<Span> {
        let old = self
            .extents
            .iter()
            .filter(|(_, extent)| tid.is_at_or_after(extent.tid));
        old.map(|(&start, extent)| Span {
            start,
            length: extent.length,
        })
        .collect()
    }

    /// Removes and returns the extents freed by transactions up to `tid`.
    pub fn take_through(&mut self, tid: Tid) -> Vec<Span> {
        let taken = self.through(tid);
        self.extents
            .retain(|_, extent| !tid.is_at_or_after(extent.tid));
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_ondisk::{GroupNumber, Tid};

    use super::{FreedExtent, Pending, Reuse, Span, Waiting};
    use crate::groups::global_lists::GlobalLists;
    use crate::options::Frees;

    const DESIGNS: [Frees; 3] = [Frees::Listed, Frees::Merged, Frees::Deferred];

    fn freed(tid: u32, start: u32, length: u32) -> FreedExtent {
        FreedExtent {
            tid: Tid(tid),
            span: Span { start, length },
            reuse: Reuse::OnceDurable,
        }
    }

    fn spans(pairs: &[(u32, u32)]) -> Vec<Span> {
        let span = |&(start, length)| Span { start, length };
        pairs.iter().map(span).collect()
    }

    #[test]
    fn neighbours_of_one_transaction_merge() {
        for design in DESIGNS {
            let waiting = Waiting::new(design, Arc::new(GlobalLists::new()));
            let mut pending = Pending::default();
            let group = GroupNumber(3);
            for (tid, start, length) in [(7, 10, 5), (7, 20, 5), (7, 8, 2), (8, 25, 1), (7, 15, 5)]
            {
                pending.add(freed(tid, start, length), group, &waiting);
            }
            assert_eq!(pending.through(Tid(7)), spans(&[(8, 17)]), "{design:?}");
            assert_eq!(pending.through(Tid(8)), spans(&[(8, 17), (25, 1)]));
            assert_eq!(waiting.take(Tid(7)), [group], "one entry is left");
            let later = if design == Frees::Deferred { 0 } else { 1 };
            assert_eq!(waiting.take(Tid(8)).len(), later, "{design:?}");
        }
    }

    #[test]
    fn later_transactions_keep_theirs_even_across_the_wrap() {
        let waiting = Waiting::new(Frees::Deferred, Arc::new(GlobalLists::new()));
        let mut pending = Pending::default();
        for (tid, start) in [(u32::MAX, 1), (0, 3), (1, 5)] {
            pending.add(freed(tid, start, 1), GroupNumber(0), &waiting);
        }
        assert_eq!(pending.through(Tid(0)), spans(&[(1, 1), (3, 1)]));
        assert_eq!(pending.take_through(Tid(0)), spans(&[(1, 1), (3, 1)]));
        assert_eq!(pending.take_through(Tid(0)), []);
        assert!(!pending.is_empty());
        assert_eq!(pending.take_through(Tid(1)), spans(&[(5, 1)]));
        assert!(pending.is_empty());
    }
}
