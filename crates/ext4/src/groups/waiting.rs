//! Which groups have freed blocks that wait for their transaction, and so must be visited when it
//! is durable.
//!
//! - *Listed* and *merged*: one list a transaction for the whole volume, an entry for each freed
//!   extent, under one lock (which guards the single stream goal as well, where there is but one).
//!   `listed` enters every extent and takes its neighbours out again when it merges with them;
//!   `merged` lets it grow a neighbour that is on the list already, and touches the list only for
//!   what is left.
//! - *Deferred*: a lock-free stack a shard, with a group on it once for each transaction.
//!
//! Two transactions are alive at a time, so the list has two halves, by parity. An entry is known
//! by its number in its half for as long as its extent waits.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, Sharded, Stack};

use crate::options::Frees;

/// "On no list."
pub const NOWHERE: u32 = u32::MAX;

/// What ext4 keeps under one lock for a whole volume.
pub struct GlobalLists {
    inner: Mutex<Inner>,
}

struct Inner {
    stream_goal: Option<GroupNumber>,
    halves: [Half; 2],
}

/// The entries of one transaction: a linked list in an array.
struct Half {
    entries: Vec<Entry>,
    first: u32,
    /// Entries taken out, linked by `behind`.
    spare: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    group: GroupNumber,
    before: u32,
    behind: u32,
}

/// The groups of a volume that are to be visited.
pub struct Waiting {
    /// [immutable after mount]
    pub design: Frees,
    /// The lists under the global lock.
    pub lists: GlobalLists,
    /// Groups with frees that wait, at least once each, where there is no list.
    groups: Sharded<Stack<GroupNumber>>,
}

impl Waiting {
    pub fn new(design: Frees) -> Self {
        Self {
            design,
            lists: GlobalLists::new(),
            groups: Sharded::new(|_| Stack::new()),
        }
    }

    /// Sees to it that `group`, which is held, is visited after `tid`, which freed an extent there.
    /// `is_first` if nothing waits there so far; `left` and `right` are the entries of neighbours
    /// that the extent merges with. Answers the entry of what becomes of it.
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

    /// A visited group still has frees of a later transaction.
    pub fn keep(&self, group: GroupNumber) {
        if self.design == Frees::Deferred {
            self.groups.local().push(group);
        }
    }

    /// The groups to visit now that `tid` is durable.
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

impl GlobalLists {
    pub fn new() -> Self {
        let inner = Inner {
            stream_goal: None,
            halves: [(); 2].map(|()| Half::new()),
        };
        Self {
            inner: Mutex::new(Class::Leaf, inner),
        }
    }

    /// The goal of large files.
    pub fn stream_goal(&self) -> Option<GroupNumber> {
        self.inner.lock().stream_goal
    }

    /// Sets it.
    pub fn set_stream_goal(&self, group: GroupNumber) {
        self.inner.lock().stream_goal = Some(group);
    }

    /// Enters an extent that `tid` freed in a group; answers the entry.
    pub fn enter(&self, tid: Tid, group: GroupNumber) -> u32 {
        self.inner.lock().half(tid).enter(group)
    }

    /// Takes an entry of `tid` out.
    pub fn leave(&self, tid: Tid, entry: u32) {
        self.inner.lock().half(tid).leave(entry);
    }

    /// Takes the list of a transaction, which is durable: nobody enters anything there any more.
    pub fn take(&self, tid: Tid) -> Vec<GroupNumber> {
        let half = std::mem::replace(self.inner.lock().half(tid), Half::new());
        let mut groups = Vec::new();
        let mut at = half.first;
        while let Some(entry) = half.entries.get(at as usize) {
            groups.push(entry.group);
            at = entry.behind;
        }
        groups.dedup();
        groups
    }
}

impl Inner {
    fn half(&mut self, tid: Tid) -> &mut Half {
        &mut self.halves[(tid.0 & 1) as usize]
    }
}

impl Half {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            first: NOWHERE,
            spare: NOWHERE,
        }
    }

    fn enter(&mut self, group: GroupNumber) -> u32 {
        let entry = Entry {
            group,
            before: NOWHERE,
            behind: self.first,
        };
        let number = match self.entries.get_mut(self.spare as usize) {
            Some(spare) => {
                let number = self.spare;
                self.spare = spare.behind;
                *spare = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("freed extents are fewer than blocks")
            }
        };
        if let Some(first) = self.entries.get_mut(self.first as usize) {
            first.before = number;
        }
        self.first = number;
        number
    }

    fn leave(&mut self, number: u32) {
        let Entry { before, behind, .. } = self.entries[number as usize];
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.behind = behind,
            None => self.first = behind,
        }
        if let Some(entry) = self.entries.get_mut(behind as usize) {
            entry.before = before;
        }
        self.entries[number as usize].behind = self.spare;
        self.spare = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go_in_any_order() {
        let lists = GlobalLists::new();
        let tid = Tid(4);
        let entries: Vec<u32> = (0..4).map(|n| lists.enter(tid, GroupNumber(n))).collect();
        lists.enter(tid.next(), GroupNumber(9));
        lists.leave(tid, entries[1]);
        lists.leave(tid, entries[3]);
        assert_eq!(lists.enter(tid, GroupNumber(7)), entries[3]);
        lists.leave(tid, entries[0]);
        assert_eq!(lists.take(tid), [GroupNumber(7), GroupNumber(2)]);
        assert_eq!(lists.take(tid), []);
        assert_eq!(lists.take(tid.next()), [GroupNumber(9)]);
    }
}
