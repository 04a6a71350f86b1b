//! The order in which linear directories are listed, kept for those that were listed last.
//!
//! A listing goes by cookies, which are made of the names, and a linear directory has its names in no order: without
//! this each reply of a listing would go through all of them. An order is made of a whole directory at once and is
//! right until a name changes. Whoever changes a block of a directory takes that back, under the directory's lock held
//! for writing; who makes an order and who uses it holds that lock shared.
//!
//! Memory: a few orders a volume, each of a directory of at most [`LONGEST`] bytes.

use std::sync::Arc;

use pext4_ondisk::InodeNumber;
use pext4_sync::Mutex;
use pext4_sync::atomic::Ordering;
use pext4_sync::order::Class;

use super::Inode;

/// Bytes of a directory whose order is kept. Names of usual length make an order of half of that, and the shortest of
/// 11 MiB.
pub const LONGEST: u64 = 8 << 20;
/// Orders that are kept.
const MAX_KEPT: usize = 4;

/// Where a directory has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePlace {
    /// The name's cookie.
    pub cookie: u64,
    /// The block of the directory.
    pub block: u32,
    /// Where in the block its record starts.
    pub offset: u32,
}

/// Where all names of a directory are, sorted by cookie.
pub type NameOrder = Arc<[NamePlace]>;

/// The orders that are kept.
pub struct NameOrders {
    /// The one that came last at the end.
    kept: Mutex<Vec<(InodeNumber, NameOrder)>>,
}

impl Default for NameOrders {
    fn default() -> Self {
        Self {
            kept: Mutex::new(Class::Leaf, Vec::new()),
        }
    }
}

impl NameOrders {
    /// The order of a directory, if it is kept and still right.
    pub fn get(&self, directory: &Inode) -> Option<NameOrder> {
        if !directory.has_name_order.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.lock();
        let is_it = |(number, _): &&(InodeNumber, NameOrder)| *number == directory.number();
        kept.iter().find(is_it).map(|(_, order)| Arc::clone(order))
    }

    /// Keeps the order of a directory until a name changes, or others are wanted more.
    pub fn keep(&self, directory: &Inode, order: NameOrder) {
        let mut kept = self.kept.lock();
        let is_other = |(number, _): &(InodeNumber, NameOrder)| *number != directory.number();
        let (mut stay, mut dropped): (Vec<_>, Vec<_>) = kept.drain(..).partition(is_other);
        if stay.len() == MAX_KEPT {
            dropped.push(stay.remove(0));
        }
        stay.push((directory.number(), order));
        *kept = stay;
        directory.has_name_order.store(true, Ordering::Release);
        drop(kept);
        // They are large.
        drop(dropped);
    }
}

impl Inode {
    /// A name of this directory changes: its order is not right any more.
    pub fn forget_name_order(&self) {
        // Directories that are changed at once by many have none, and are not written for it.
        if self.has_name_order.load(Ordering::Relaxed) {
            self.has_name_order.store(false, Ordering::Relaxed);
        }
    }
}
