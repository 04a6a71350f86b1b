//! In which order a criterion looks at groups.
//!
//! *Without the index* (`mb_optimize_scan=0`): one by one, in the order of their numbers, from the
//! goal's group on and around.
//!
//! With an index the goal's own group is looked at first, so that what belongs together stays
//! together, and the others by their order:
//!
//! *With bitmaps or ordered maps*: in two phases. First, for each suitable order in turn, the groups
//! from the goal's on; then, for each order again, those before it. Groups just behind the goal
//! were used a moment ago and are likely to be freed into now, so they come last, and the first
//! part of a device fills first.
//!
//! *With lists*: for each suitable order the first group of its list that looks good. The list is
//! locked while it is chosen and no longer, so by the time its lock is had the group may have been
//! taken; then the list is begun again.

use pext4_ondisk::GroupNumber;

use super::scan::{Find, Found, Scan};
use crate::groups::index::{By, Design};
use crate::groups::slot::Slot;

/// Groups of one list that a criterion tries.
const MOST_OF_A_LIST: usize = 16;

impl Scan<'_, '_> {
    /// Looks into groups that are filed under these orders, the best first; what is looked for may
    /// depend on the order. Without the index, into all that look good.
    pub(super) fn by_order<F: Find>(
        &mut self,
        by: By,
        orders: impl Iterator<Item = u32> + Clone,
        good: impl Fn(&Slot) -> bool,
        find_of: impl Fn(u32) -> F,
    ) -> Option<Found> {
        let (groups, end) = (self.groups, self.end);
        if !groups.index.is_in_use() {
            return self.one_by_one(good, find_of(0));
        }
        let home = self.look_into(self.first, &good, &find_of(orders.clone().next()?));
        if home.is_some() {
            return home;
        }
        match &groups.index.design {
            Design::Lists(lists) => {
                let mut tried = Vec::new();
                for order in orders {
                    tried.clear();
                    let untried = |tried: &[GroupNumber], number: GroupNumber| {
                        number.get() < end && !tried.contains(&number) && good(groups.slot(number))
                    };
                    while tried.len() < MOST_OF_A_LIST
                        && let Some(number) =
                            lists.choose(by, order, |number| untried(&tried, number))
                    {
                        let found = self.look_into(number, &good, &find_of(order));
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
                            let found = self.look_into(number, &good, &find_of(order));
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

    /// Looks into all groups that look good.
    pub(super) fn one_by_one(
        &mut self,
        good: impl Fn(&Slot) -> bool,
        find: impl Find,
    ) -> Option<Found> {
        self.order()
            .find_map(|number| self.look_into(number, &good, &find))
    }
}
