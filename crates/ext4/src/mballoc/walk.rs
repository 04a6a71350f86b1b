//! The order in which a criterion searches groups.
//!
//! *Without the index* (`mb_optimize_scan=0`): in the circular order of their numbers, from the
//! goal's group on.
//!
//! With an index the goal's own group is searched first, for locality, and then the others by their
//! order:
//!
//! *With bitmaps or ordered maps*: in two phases. First, for each suitable order in turn, the
//! groups from the goal's on; then, for each order again, the groups before it. Groups just before
//! the goal were used recently and blocks are likely to be freed there, so they are searched last,
//! and the first part of a device fills first.
//!
//! *With lists*: for each suitable order the first group of its list whose hints are good. The list
//! is locked only while the group is chosen, so the group may have changed before it is locked;
//! then the search of the list starts again.

use pext4_ondisk::GroupNumber;

use super::scan::{Find, Found, Scan};
use crate::groups::index::{By, Design};
use crate::groups::info::GroupInfo;

/// The maximum number of groups of one list that a criterion tries.
const MAX_OF_A_LIST: usize = 16;

impl Scan<'_, '_> {
    /// Searches the groups that are filed under these orders, the best order first; `find_of`
    /// returns the search for an order. Without the index, searches all groups with good hints.
    pub(super) fn by_order<F: Find>(
        &mut self,
        by: By,
        orders: impl Iterator<Item = u32> + Clone,
        good: impl Fn(&GroupInfo) -> bool,
        find_of: impl Fn(u32) -> F,
    ) -> Option<Found> {
        let (groups, end) = (self.groups, self.end);
        if !groups.index.is_in_use() {
            return self.one_by_one(good, find_of(0));
        }
        let home = self.search_group(self.first, &good, &find_of(orders.clone().next()?));
        if home.is_some() {
            return home;
        }
        match &groups.index.design {
            Design::Lists(lists) => {
                let mut tried = Vec::new();
                for order in orders {
                    tried.clear();
                    let untried = |tried: &[GroupNumber], number: GroupNumber| {
                        number.get() < end && !tried.contains(&number) && good(groups.info(number))
                    };
                    while tried.len() < MAX_OF_A_LIST
                        && let Some(number) =
                            lists.choose(by, order, |number| untried(&tried, number))
                    {
                        let found = self.search_group(number, &good, &find_of(order));
                        if found.is_some() {
                            return found;
                        }
                        tried.push(number);
                    }
                }
                None
            }
            Design::Bitmaps(bitmaps) => {
                let first = self.first.get();
                for phase in [first..end, 0..first] {
                    for order in orders.clone() {
                        let mut rest = phase.clone();
                        while let Some(number) = bitmaps.next(by, order, rest.clone()) {
                            rest.start = number + 1;
                            let number = GroupNumber(number);
                            let found = self.search_group(number, &good, &find_of(order));
                            if found.is_some() {
                                return found;
                            }
                        }
                    }
                }
                None
            }
        }
    }

    /// Searches all groups with good hints.
    pub(super) fn one_by_one(
        &mut self,
        good: impl Fn(&GroupInfo) -> bool,
        find: impl Find,
    ) -> Option<Found> {
        self.order()
            .find_map(|number| self.search_group(number, &good, &find))
    }
}
