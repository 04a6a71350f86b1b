//! An index of linked lists, one per order, each under a reader-writer lock: what ext4 had before
//! its ordered maps.
//!
//! A group that changes its order is appended to its new list, so a list is in the order of changes
//! and not of numbers, and a search waits while another thread changes the list. The links of all
//! lists of a kind are in one array, since a group is on at most one of them; a link is read and
//! written under the lock of the list that it belongs to.

use pext4_ondisk::GroupNumber;
use pext4_sync::RwLock;
use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::order::Class;

use super::{By, orders};

/// "No group."
const NONE: u32 = u32::MAX;

/// Both kinds of order.
pub struct Lists {
    largest: Kind,
    average: Kind,
}

/// The lists of one kind of order.
struct Kind {
    lists: Vec<RwLock<Ends>>,
    links: Box<[Links]>,
}

/// The first and the last group of a list.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// The neighbours of a group in its list. [under the list's lock]
struct Links {
    before: AtomicU32,
    behind: AtomicU32,
}

impl Lists {
    /// Empty lists for `count` groups.
    pub fn new(count: u32) -> Self {
        Self {
            largest: Kind::new(count),
            average: Kind::new(count),
        }
    }

    fn kind(&self, by: By) -> &Kind {
        match by {
            By::Largest => &self.largest,
            By::Average => &self.average,
        }
    }

    /// Moves a group from the list of one order to the end of another.
    pub fn move_between(&self, by: By, number: u32, from: Option<u32>, to: Option<u32>) {
        let kind = self.kind(by);
        if let Some(order) = from {
            kind.remove(order, number);
        }
        if let Some(order) = to {
            kind.append(order, number);
        }
    }

    /// The first group on the list of an order for which `is_wanted` returns true.
    pub fn choose(
        &self,
        by: By,
        order: u32,
        is_wanted: impl Fn(GroupNumber) -> bool,
    ) -> Option<GroupNumber> {
        let kind = self.kind(by);
        let ends = kind.lists[order as usize].read();
        let mut at = ends.first;
        while at != NONE {
            if is_wanted(GroupNumber(at)) {
                return Some(GroupNumber(at));
            }
            at = kind.links[at as usize].behind.load(Ordering::Relaxed);
        }
        None
    }

    /// Whether a group is on the list of an order.
    #[cfg(test)]
    pub fn has(&self, by: By, order: u32, number: u32) -> bool {
        let is_it = |other| other == GroupNumber(number);
        self.choose(by, order, is_it).is_some()
    }
}

impl Kind {
    fn new(count: u32) -> Self {
        let empty = Ends {
            first: NONE,
            last: NONE,
        };
        Self {
            lists: orders()
                .map(|_| RwLock::new(Class::GroupIndex, empty))
                .collect(),
            links: (0..count)
                .map(|_| Links {
                    before: AtomicU32::new(NONE),
                    behind: AtomicU32::new(NONE),
                })
                .collect(),
        }
    }

    fn append(&self, order: u32, number: u32) {
        let mut ends = self.lists[order as usize].write();
        let own = &self.links[number as usize];
        own.before.store(ends.last, Ordering::Relaxed);
        own.behind.store(NONE, Ordering::Relaxed);
        match self.links.get(ends.last as usize) {
            Some(last) => last.behind.store(number, Ordering::Relaxed),
            None => ends.first = number,
        }
        ends.last = number;
    }

    fn remove(&self, order: u32, number: u32) {
        let mut ends = self.lists[order as usize].write();
        let own = &self.links[number as usize];
        let before = own.before.load(Ordering::Relaxed);
        let behind = own.behind.load(Ordering::Relaxed);
        match self.links.get(before as usize) {
            Some(links) => links.behind.store(behind, Ordering::Relaxed),
            None => ends.first = behind,
        }
        match self.links.get(behind as usize) {
            Some(links) => links.before.store(before, Ordering::Relaxed),
            None => ends.last = before,
        }
    }
}
