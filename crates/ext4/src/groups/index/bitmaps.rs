//! An index of bitmaps: for each order the set of its groups, as a [`Set`].
//!
//! Finding the next group of an order from a given number on reads a few words and writes none.
//! Changes take no lock, or, in the setting that models Linux, one lock per order: Linux's ordered
//! maps are radix trees of 64 slots per node, read without locks; a slot corresponds to a bit here.

use std::ops::Range;

use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard, Set};

use super::{By, orders};

/// Both kinds of order.
pub struct Bitmaps {
    largest: Vec<Order>,
    average: Vec<Order>,
}

/// The groups of one order.
struct Order {
    set: Set,
    changes: Option<Mutex<()>>,
}

impl Bitmaps {
    /// Empty bitmaps for `count` groups; `locked` if a lock serialises changes.
    pub fn new(count: u32, locked: bool) -> Self {
        let make = || {
            let order = |_| Order {
                set: Set::new(count),
                changes: locked.then(|| Mutex::new(Class::GroupIndex, ())),
            };
            orders().map(order).collect()
        };
        Self {
            largest: make(),
            average: make(),
        }
    }

    fn order(&self, by: By, order: u32) -> &Order {
        match by {
            By::Largest => &self.largest[order as usize],
            By::Average => &self.average[order as usize],
        }
    }

    /// Moves a group from one order to another.
    pub fn move_between(&self, by: By, number: u32, from: Option<u32>, to: Option<u32>) {
        if let Some(order) = from {
            let order = self.order(by, order);
            let _changes = order.lock();
            order.set.remove(number);
        }
        if let Some(order) = to {
            let order = self.order(by, order);
            let _changes = order.lock();
            order.set.insert(number);
        }
    }

    /// The first group of this order in a range.
    pub fn next(&self, by: By, order: u32, range: Range<u32>) -> Option<u32> {
        self.order(by, order)
            .set
            .next(range.start)
            .filter(|&number| number < range.end)
    }
}

impl Order {
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.changes.as_ref().map(Mutex::lock)
    }
}
