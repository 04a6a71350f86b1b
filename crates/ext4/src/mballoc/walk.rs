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
use crate::groups::index::{By, Design, orders};
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

    /// Whether a group may have an aligned free run of this order. Without the index, any may.
    pub(super) fn may_have_runs(&self, order: u32) -> bool {
        let index = &self.groups.index;
        let orders = order..orders().end;
        !index.is_in_use() || index.next(By::Largest, orders, 0..self.end).is_some()
    }

    /// Calls `search` with groups that are filed under the longest run of all, or one of the wanted
    /// length, until it finds something: with bitmaps in the circular order of their numbers.
    pub(super) fn longest_filed(
        &mut self,
        mut search: impl FnMut(&mut Self, GroupNumber) -> Option<Found>,
    ) -> Option<Found> {
        let groups = self.groups;
        let index = &groups.index;
        if !index.is_in_use() {
            return None;
        }
        let (first, end) = (self.first.get(), self.end);
        let is_filed = |order: &u32| index.next(By::Largest, *order..order + 1, 0..end).is_some();
        let longest = orders().rev().find(is_filed)?;
        let orders = longest.min(self.plan.wanted.ilog2())..orders().end;
        for mut rest in [first..end, 0..first] {
            while let Some(number) = index.next(By::Largest, orders.clone(), rest.clone()) {
                rest.start = number + 1;
                let found = search(self, GroupNumber(number));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
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
