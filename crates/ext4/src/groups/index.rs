//! Groups by free space: for each order, which groups have a largest free run of this order, and
//! which have an average one.
//!
//! The index gives hints. A search locks a group that it finds here and tests it again (rule D5).
//! The last criterion of a search passes through all groups if the index has none, so a group that
//! is missing from it at some moment is still found. Each group is filed under its lock by its free
//! runs at that moment ([`GroupIndex::file`]), so the index is correct when no group is changing. A
//! group without free blocks is not in it.
//!
//! There are three designs in two modules: [`lists`] under locks, and [`bitmaps`] with and without
//! a lock for changes. The index can be switched off while a volume is mounted
//! (`mb_optimize_scan=0`): a group that changes then leaves its old orders and gets no new one.
//! Switching it on again files every group.

mod bitmaps;
mod lists;

use std::ops::Range;

use pext4_ondisk::GroupNumber;
use pext4_sync::atomic::{AtomicBool, Ordering};

use super::buddy::ORDERS;
use super::info::GroupInfo;
use crate::options;
use bitmaps::Bitmaps;
use lists::Lists;

/// The kind of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The order of the largest aligned free run.
    Largest,
    /// The order of the average length of free runs.
    Average,
}

/// The orders that a group is filed under; `None` if it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The order of its largest aligned free run.
    pub largest: Option<u32>,
    /// The order of the average length of its free runs.
    pub average: Option<u32>,
}

/// An index of one design.
pub enum Design {
    /// One list per order; see [`lists`].
    Lists(Lists),
    /// Bitmaps; see [`bitmaps`].
    Bitmaps(Bitmaps),
}

/// The groups of a volume by free space.
pub struct GroupIndex {
    in_use: AtomicBool,
    /// The design. [immutable after mount]
    pub design: Design,
}

impl Orders {
    /// The orders of a group with `free` blocks in `fragments` runs and this largest order.
    pub fn of(free: u32, fragments: u32, largest: Option<u32>) -> Self {
        let average = free / fragments.max(1);
        Self {
            largest: largest.filter(|_| free > 0),
            average: average.checked_ilog2(),
        }
    }

    /// As the number that a group stores: each order plus one, or 0 for none, in a byte each.
    pub fn packed(self) -> u32 {
        let one = |order: Option<u32>| order.map_or(0, |order| order + 1);
        one(self.largest) | one(self.average) << 8
    }

    /// The inverse of [`Orders::packed`].
    pub fn unpacked(packed: u32) -> Self {
        Self {
            largest: (packed & 0xFF).checked_sub(1),
            average: (packed >> 8 & 0xFF).checked_sub(1),
        }
    }
}

impl GroupIndex {
    /// An empty index for `count` groups.
    pub fn new(design: options::GroupIndex, in_use: bool, count: u32) -> Self {
        let design = match design {
            options::GroupIndex::Lists => Design::Lists(Lists::new(count)),
            options::GroupIndex::Ordered => Design::Bitmaps(Bitmaps::new(count, true)),
            options::GroupIndex::Bitmaps => Design::Bitmaps(Bitmaps::new(count, false)),
        };
        Self {
            in_use: AtomicBool::new(in_use),
            design,
        }
    }

    /// Whether searches use it.
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Switches it on or off; returns whether that was a change.
    pub fn set_in_use(&self, in_use: bool) -> bool {
        self.in_use.swap(in_use, Ordering::AcqRel) != in_use
    }

    /// Moves a group to `orders`. The caller holds the group, or no other thread can see it yet.
    pub fn file(&self, info: &GroupInfo, number: GroupNumber, orders: Orders) {
        let orders = if self.is_in_use() {
            orders
        } else {
            self.unchanged_part(info, orders)
        };
        let packed = orders.packed();
        let before = info.written.filed.load(Ordering::Relaxed);
        if packed == before {
            return;
        }
        info.written.filed.store(packed, Ordering::Relaxed);
        let before = Orders::unpacked(before);
        self.move_between(By::Largest, number, before.largest, orders.largest);
        self.move_between(By::Average, number, before.average, orders.average);
    }

    /// The orders of `orders` that the group is filed under already: while the index is off, a
    /// group only leaves it.
    fn unchanged_part(&self, info: &GroupInfo, orders: Orders) -> Orders {
        let before = Orders::unpacked(info.written.filed.load(Ordering::Relaxed));
        Orders {
            largest: orders.largest.filter(|_| orders.largest == before.largest),
            average: orders.average.filter(|_| orders.average == before.average),
        }
    }

    fn move_between(&self, by: By, number: GroupNumber, from: Option<u32>, to: Option<u32>) {
        if from == to {
            return;
        }
        match &self.design {
            Design::Lists(lists) => lists.move_between(by, number.get(), from, to),
            Design::Bitmaps(bitmaps) => bitmaps.move_between(by, number.get(), from, to),
        }
    }

    /// A group in a range that is filed under one of these orders: the first, or with lists the
    /// lowest of the first on each.
    pub fn next(&self, by: By, orders: Range<u32>, range: Range<u32>) -> Option<u32> {
        let of_order = |order| match &self.design {
            Design::Lists(lists) => {
                let chosen = lists.choose(by, order, |number| range.contains(&number.get()));
                chosen.map(GroupNumber::get)
            }
            Design::Bitmaps(bitmaps) => bitmaps.next(by, order, range.clone()),
        };
        orders.filter_map(of_order).min()
    }

    /// Whether a group is filed under an order.
    #[cfg(test)]
    pub fn has(&self, by: By, order: u32, number: GroupNumber) -> bool {
        match &self.design {
            Design::Lists(lists) => lists.has(by, order, number.get()),
            Design::Bitmaps(bitmaps) => {
                let number = number.get();
                bitmaps.next(by, order, number..number + 1).is_some()
            }
        }
    }
}

/// Every order that a group can be filed under.
pub fn orders() -> Range<u32> {
    0..u32::try_from(ORDERS).expect("a group has few orders")
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use pext4_ondisk::group_descriptor::GroupDescriptor;

    use super::*;

    fn check(index: &GroupIndex, infos: &[GroupInfo], orders_of_all: &[Orders]) {
        for ((number, info), filed) in (0u32..).zip(infos).zip(orders_of_all) {
            let filed = *filed;
            assert_eq!(
                Orders::unpacked(info.written.filed.load(Ordering::Relaxed)),
                filed
            );
            for order in orders() {
                let number = GroupNumber(number);
                let expected = (filed.largest == Some(order), filed.average == Some(order));
                let found = (
                    index.has(By::Largest, order, number),
                    index.has(By::Average, order, number),
                );
                assert_eq!(found, expected, "{number:?} {order}");
            }
        }
    }

    #[test]
    fn every_design_has_groups_where_they_were_filed_last() {
        for design in [
            options::GroupIndex::Lists,
            options::GroupIndex::Ordered,
            options::GroupIndex::Bitmaps,
        ] {
            let count = 300;
            let index = GroupIndex::new(design, true, count);
            let infos: Vec<GroupInfo> = (0..count)
                .map(|_| GroupInfo::new(&GroupDescriptor::default(), 0))
                .collect();
            let mut orders_of_all = vec![Orders::default(); count as usize];
            let mut random = Rng::with_seed(31);
            for step in 0..6000 {
                if step % 1000 == 999 {
                    let in_use = !index.is_in_use();
                    index.set_in_use(in_use);
                    if in_use {
                        for (number, info) in (0u32..).zip(&infos) {
                            let orders = Orders::of(number % 7 * 50, 1 + number % 3, Some(2));
                            index.file(info, GroupNumber(number), orders);
                            orders_of_all[number as usize] = orders;
                        }
                    }
                }
                let number = random.u32(..count);
                let free = random.u32(..3) * random.u32(..20_000);
                let largest = free.checked_ilog2();
                let orders = Orders::of(free, 1 + random.u32(..9), largest);
                index.file(&infos[number as usize], GroupNumber(number), orders);
                let orders = if index.is_in_use() {
                    orders
                } else {
                    let before = orders_of_all[number as usize];
                    Orders {
                        largest: orders.largest.filter(|_| orders.largest == before.largest),
                        average: orders.average.filter(|_| orders.average == before.average),
                    }
                };
                orders_of_all[number as usize] = orders;
            }
            check(&index, &infos, &orders_of_all);
        }
    }

    #[test]
    fn a_full_group_is_not_filed() {
        assert_eq!(Orders::of(0, 0, None), Orders::default());
        assert_eq!(Orders::default().packed(), 0);
        let orders = Orders::of(100, 10, Some(5));
        assert_eq!((orders.largest, orders.average), (Some(5), Some(3)));
        assert_eq!(Orders::unpacked(orders.packed()), orders);
    }
}
