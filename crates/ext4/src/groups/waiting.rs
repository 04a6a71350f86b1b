//! Which groups have freed blocks that wait for their transaction, and so must be visited when it
//! is durable.
//!
//! - *Listed* and *merged*: one list per transaction for the whole volume, with an entry for each
//!   freed extent, under one lock ([`GlobalLists`]). `listed` adds an entry for every extent and
//!   removes the entries of neighbours that it merges with; `merged` extends a neighbour that is on
//!   the list already, and otherwise changes the list only where that is not possible.
//! - *Deferred*: a lock-free stack per shard, on which a group is pushed when its first extent
//!   begins to wait, and again after a visit that left some.

use std::sync::Arc;

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::{Sharded, Stack};

use super::global_lists::{GlobalLists, NOWHERE};
use crate::options::Frees;

/// The groups of a volume that must be visited.
pub struct Waiting {
    /// [immutable after mount]
    pub design: Frees,
    /// The lists under the global lock.
    lists: Arc<GlobalLists>,
    /// Groups with frees that wait, each at least once, in the setting without lists.
    groups: Sharded<Stack<GroupNumber>>,
}

impl Waiting {
    pub fn new(design: Frees, lists: Arc<GlobalLists>) -> Self {
        Self {
            design,
            lists,
            groups: Sharded::new(|_| Stack::new()),
        }
    }

    /// Registers that `tid` freed an extent in `group`, which is held, so that the group is visited
    /// once `tid` is durable. `is_first` is true if no extent waits there so far; `left` and
    /// `right` are the entries of neighbours that the extent merges with. Returns the entry of the
    /// merged extent.
    pub fn enter(
        &self,
        tid: Tid,
        group: GroupNumber,
        is_first: bool,
        left: Option<u32>,
        right: Option<u32>,
    ) -> u32 {
        match self.design {
            Frees::Listed => {
                let entry = self.lists.enter(tid, group);
                let neighbours = left.into_iter().chain(right);
                neighbours.for_each(|neighbour| self.lists.leave(tid, neighbour));
                entry
            }
            Frees::Merged => {
                if let (Some(_), Some(right)) = (left, right) {
                    self.lists.leave(tid, right);
                }
                left.or(right)
                    .unwrap_or_else(|| self.lists.enter(tid, group))
            }
            Frees::Deferred => {
                if is_first {
                    self.groups.local().push(group);
                }
                NOWHERE
            }
        }
    }

    /// Registers a group again that was visited and still has frees of a later transaction.
    pub fn keep(&self, group: GroupNumber) {
        if self.design == Frees::Deferred {
            self.groups.local().push(group);
        }
    }

    /// Removes and returns the groups to visit now that `tid` is durable.
    pub fn take(&self, tid: Tid) -> Vec<GroupNumber> {
        match self.design {
            Frees::Listed | Frees::Merged => self.lists.take(tid),
            Frees::Deferred => {
                let groups = self.groups.iter().flat_map(Stack::take_all);
                groups.collect()
            }
        }
    }
}
