//! The order in which linear directories are listed, kept for those that were listed last.
//!
//! A listing is in the order of cookies, which are computed from the names, but a linear directory
//! does not store its names in that order: without a kept order, each reply of a listing would read
//! all of them. An order is made from a whole directory at once and is valid until a block of the
//! directory changes. A thread that changes a block invalidates the order first, under the
//! directory's lock held exclusively; threads that make or use an order hold that lock shared.
//!
//! Memory: at most `MAX_KEPT` orders per volume, each of a directory of at most
//! [`MAX_DIRECTORY_BYTES`].

use std::sync::Arc;

use pext4_ondisk::InodeNumber;
use pext4_sync::Mutex;
use pext4_sync::atomic::Ordering;
use pext4_sync::order::Class;

use super::Inode;

/// Maximum bytes of a directory whose order is kept. Its order takes about half as much memory if
/// the names have the usual length, and 11 MiB if they are the shortest possible.
pub const MAX_DIRECTORY_BYTES: u64 = 8 << 20;
/// Maximum number of orders that are kept.
const MAX_KEPT: usize = 4;

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

/// The locations of all names of a directory, sorted by cookie.
pub type NameOrder = Arc<[NamePlace]>;

/// The kept orders of a volume.
pub struct NameOrders {
    /// The newest is the last.
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
    /// The order of a directory, if it is kept and still valid. The caller holds the directory's
    /// lock.
    pub fn get(&self, directory: &Inode) -> Option<NameOrder> {
        if !directory.has_name_order.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.lock();
        let is_it = |(number, _): &&(InodeNumber, NameOrder)| *number == directory.number();
        kept.iter().find(is_it).map(|(_, order)| Arc::clone(order))
    }

    /// Keeps the order of a directory until the directory changes or newer orders replace it. The
    /// caller has held the directory's lock since before it made the order.
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
        // They are large, so they are freed without the lock.
        drop(dropped);
    }
}

impl Inode {
    /// Invalidates the order of this directory. Called before each change of a block.
    pub fn forget_name_order(&self) {
        // Written only if set: directories that many threads change at once have an index and no
        // order, so they do not share a written cache line here.
        if self.has_name_order.load(Ordering::Relaxed) {
            self.has_name_order.store(false, Ordering::Relaxed);
        }
    }
}
