//! What ext4 once had under one lock for a whole volume: the lists of freed extents, and the stream
//! goal.
//!
//! At most two transactions exist at a time, so the list has two halves, chosen by parity. An entry
//! keeps its number in its half for as long as its extent waits.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::order::Class;
use pext4_sync::{CachePadded, Mutex};

/// The number of no entry.
pub const NOWHERE: u32 = u32::MAX;

/// The lists that ext4 has under one lock for a whole volume.
pub struct GlobalLists {
    /// On a cache line of its own, beside what every operation reads.
    inner: CachePadded<Mutex<Inner>>,
}

struct Inner {
    stream_goal: Option<GroupNumber>,
    halves: [Half; 2],
}

/// The entries of one transaction: a linked list in an array.
struct Half {
    entries: Vec<Entry>,
    first: u32,
    /// Removed entries, linked by `behind`.
    spare: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    group: GroupNumber,
    before: u32,
    behind: u32,
}

impl GlobalLists {
    pub fn new() -> Self {
        let inner = Inner {
            stream_goal: None,
            halves: [(); 2].map(|()| Half::new()),
        };
        Self {
            inner: CachePadded::new(Mutex::new(Class::Leaf, inner)),
        }
    }

    /// The stream goal of the volume.
    pub fn stream_goal(&self) -> Option<GroupNumber> {
        self.inner.lock().stream_goal
    }

    /// Sets the stream goal.
    pub fn set_stream_goal(&self, group: GroupNumber) {
        self.inner.lock().stream_goal = Some(group);
    }

    /// Adds an entry for an extent that `tid` freed in a group; returns its number.
    pub fn enter(&self, tid: Tid, group: GroupNumber) -> u32 {
        self.inner.lock().half(tid).enter(group)
    }

    /// Removes an entry of `tid`.
    pub fn leave(&self, tid: Tid, entry: u32) {
        self.inner.lock().half(tid).leave(entry);
    }

    /// Takes the list of a durable transaction, to which no entry is added any more.
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
    fn entries_are_added_and_removed_in_any_order() {
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
