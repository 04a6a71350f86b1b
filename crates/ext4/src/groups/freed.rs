//! Blocks on their way from "freed by a transaction" to "allocatable".
//!
//! A free is first a note on its group's lock-free stack. Whoever next holds the group, or the
//! committer, *folds* it: the bits of the bitmap that goes to disk are cleared. It then waits,
//! still used in the buddy, until its transaction is durable; only then may the blocks be
//! allocated again, or a replay could write old metadata over new data (rule D1).

use pext4_ondisk::Tid;

use super::buddy::Span;

/// Blocks of one group that a transaction freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedExtent {
    /// The transaction.
    pub tid: Tid,
    /// The blocks, relative to their group.
    pub span: Span,
}

/// Freed extents of one group whose transactions are not durable yet. [group]
#[derive(Debug, Default)]
pub struct Pending {
    extents: Vec<FreedExtent>,
}

impl Pending {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Adds an extent; one that continues the last one, in the same transaction, lengthens it.
    pub fn add(&mut self, freed: FreedExtent) {
        if let Some(last) = self.extents.last_mut().filter(|last| last.tid == freed.tid) {
            if last.span.end() == freed.span.start {
                last.span.length += freed.span.length;
                return;
            }
            if freed.span.end() == last.span.start {
                last.span = Span {
                    start: freed.span.start,
                    length: last.span.length + freed.span.length,
                };
                return;
            }
        }
        self.extents.push(freed);
    }

    /// The extents freed by transactions up to `tid`; they stay.
    pub fn through(&self, tid: Tid) -> Vec<Span> {
        let old = self
            .extents
            .iter()
            .filter(|freed| tid.is_at_or_after(freed.tid));
        old.map(|freed| freed.span).collect()
    }

    /// Takes the extents freed by transactions up to `tid`.
    pub fn take_through(&mut self, tid: Tid) -> Vec<Span> {
        let taken = self.through(tid);
        self.extents.retain(|freed| !tid.is_at_or_after(freed.tid));
        taken
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::Tid;

    use super::{FreedExtent, Pending, Span};

    fn freed(tid: u32, start: u32, length: u32) -> FreedExtent {
        FreedExtent {
            tid: Tid(tid),
            span: Span { start, length },
        }
    }

    #[test]
    fn neighbours_of_one_transaction_merge() {
        let mut pending = Pending::default();
        pending.add(freed(7, 10, 5));
        pending.add(freed(7, 15, 1));
        pending.add(freed(7, 8, 2));
        pending.add(freed(8, 16, 1));
        assert_eq!(pending.extents, [freed(7, 8, 8), freed(8, 16, 1)]);
    }

    #[test]
    fn later_transactions_keep_theirs_even_across_the_wrap() {
        let mut pending = Pending::default();
        pending.add(freed(u32::MAX, 1, 1));
        pending.add(freed(0, 3, 1));
        pending.add(freed(1, 5, 1));
        let spans = [
            Span {
                start: 1,
                length: 1,
            },
            Span {
                start: 3,
                length: 1,
            },
        ];
        assert_eq!(pending.through(Tid(0)), spans);
        assert_eq!(pending.take_through(Tid(0)), spans);
        assert_eq!(pending.take_through(Tid(0)), []);
        assert!(!pending.is_empty());
        assert_eq!(
            pending.take_through(Tid(1)),
            [Span {
                start: 5,
                length: 1
            }]
        );
        assert!(pending.is_empty());
    }
}
