//! The order in which directories without a usable index are listed, kept for those that were
//! listed last.
//!
//! A listing is in the order of cookies, which are computed from the names, but such a directory
//! does not store its names in that order: without a kept order, each reply of a listing would read
//! all of them. An order is made from all blocks of the directory at once, and of a very large
//! directory only a part is kept, of the names whose cookies are in one range.
//!
//! An order is right until a block of the directory changes. Each directory has a mark: whoever
//! makes an order sets it before reading the first block ([`NameOrders::begin`]), and an order
//! counts only as long as the directory has the mark with which it was made. A thread that changes
//! a block clears the mark ([`Inode::forget_name_order`]): before the change, if it holds the
//! directory's lock exclusively; otherwise, in a directory of which a part of the index is usable,
//! when it has the lock of the leaf. A listing that has read the leaf before that has set the mark
//! before, so the mark is seen and cleared. Such a change may come while an order is used, so its
//! user compares each name with its cookie then.
//!
//! Memory: all orders together take at most an eighth of `cache_size`, and at least 1 MiB; one
//! takes at most half of that. The oldest are dropped first.

use std::sync::Arc;

use pext4_ondisk::{Corrupt, InodeNumber};
use pext4_sync::Mutex;
use pext4_sync::atomic::Ordering;
use pext4_sync::order::Class;

use super::Inode;

/// The part of `cache_size` that all orders may take.
const SHARE: u64 = 8;
/// Bytes that they may take in any case.
const LEAST: u64 = 1 << 20;
/// Maximum number of orders that are kept.
const MAX_KEPT: usize = 16;
/// The mark of a directory whose orders, if there are any, are not right.
const NO_MARK: u32 = 0;

/// The location of a name in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePlace {
    /// The name's cookie.
    pub cookie: u64,
    /// The block of the directory.
    pub block: u32,
    /// The offset of its record in the block, in bytes.
    pub offset: u32,
}

/// The locations of names of a directory.
#[derive(Debug)]
pub struct OrderedNames {
    /// The lowest cookie that the names may have.
    pub start: u64,
    /// All names have lower cookies.
    pub end: u64,
    /// All names of the directory with cookies in this range, sorted by cookie.
    pub places: Box<[NamePlace]>,
    /// Why names may be missing.
    pub damage: Option<Corrupt>,
}

/// Locations that several threads use.
pub type NameOrder = Arc<OrderedNames>;

/// The kept orders of a volume.
pub struct NameOrders {
    /// Maximum number of names of one order.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The newest is the last.
    orders: Vec<KeptOrder>,
    /// The mark that was given last.
    last_mark: u32,
}

struct KeptOrder {
    directory: InodeNumber,
    /// The directory's mark when the order was begun.
    mark: u32,
    order: NameOrder,
}

impl OrderedNames {
    /// Whether a listing from this cookie on can use it.
    pub fn covers(&self, cookie: u64) -> bool {
        (self.start..self.end).contains(&cookie)
    }
}

impl NameOrders {
    /// No orders yet, for a volume with `cache_size` bytes of cache.
    pub fn new(cache_size: u64) -> Self {
        let memory = (cache_size / SHARE).max(LEAST);
        let most = memory / 2 / size_of::<NamePlace>() as u64;
        Self {
            most: usize::try_from(most).unwrap_or(usize::MAX / 2),
            kept: Mutex::new(Class::Leaf, Kept::default()),
        }
    }

    /// Maximum number of names of one order.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The order of a directory from a cookie on, if it is kept and still right. The caller holds
    /// the directory's lock.
    pub fn get(&self, directory: &Inode, cookie: u64) -> Option<NameOrder> {
        let mark = directory.name_order.load(Ordering::Acquire);
        if mark == NO_MARK {
            return None;
        }
        let kept = self.kept.lock();
        let is_it = |kept: &&KeptOrder| {
            let is_right = kept.directory == directory.number() && kept.mark == mark;
            is_right && kept.order.covers(cookie)
        };
        let found = kept.orders.iter().find(is_it);
        found.map(|kept| Arc::clone(&kept.order))
    }

    /// Marks a directory of which an order is about to be made. The caller holds the directory's
    /// lock, and has not read a block for the order yet.
    pub fn begin(&self, directory: &Inode) -> u32 {
        let mut kept = self.kept.lock();
        let mark = directory.name_order.load(Ordering::Acquire);
        if mark != NO_MARK {
            return mark;
        }
        let mark = kept.last_mark.checked_add(1).unwrap_or(NO_MARK + 1);
        kept.last_mark = mark;
        directory.name_order.store(mark, Ordering::Release);
        mark
    }

    /// Keeps an order that was begun with this mark, until the directory changes or newer orders
    /// replace it.
    pub fn keep(&self, directory: &Inode, mark: u32, order: NameOrder) {
        let mut kept = self.kept.lock();
        let is_right = |kept: &KeptOrder| kept.directory != directory.number() || kept.mark == mark;
        let (mut stay, mut dropped): (Vec<_>, Vec<_>) = kept.orders.drain(..).partition(is_right);
        stay.push(KeptOrder {
            directory: directory.number(),
            mark,
            order,
        });
        let names = |orders: &[KeptOrder]| -> usize {
            orders.iter().map(|kept| kept.order.places.len()).sum()
        };
        while stay.len() > MAX_KEPT || names(&stay) > 2 * self.most {
            dropped.push(stay.remove(0));
        }
        kept.orders = stay;
        drop(kept);
        // They are large, so they are freed without the lock.
        drop(dropped);
    }
}

impl Inode {
    /// Invalidates the orders of this directory; see the head of the file for when.
    pub fn forget_name_order(&self) {
        // Written only if set: directories that many threads change at once have an index and no
        // order, so they do not share a written cache line here.
        if self.name_order.load(Ordering::Relaxed) != NO_MARK {
            self.name_order.store(NO_MARK, Ordering::Relaxed);
        }
    }
}
