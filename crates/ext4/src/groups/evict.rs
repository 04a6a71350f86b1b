//! How many groups stay in memory.
//!
//! A loaded group takes about four bits a block: two bitmaps and the buddy. Beyond the bound a hand goes
//! round the table and drops groups that were not used since it last passed (or the next time),
//! provided that the last transaction that noted them is durable and that nothing in memory would
//! be lost: no pending frees, no preallocations.
//!
//! A free looks at the loaded mark without the lock, so eviction takes the mark away first and then
//! looks for a note: either the free sees the mark gone, or eviction sees its note (both sides
//! are sequentially consistent).

use pext4_ondisk::GroupNumber;
use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::slot::mark;
use super::{Groups, Held};
use crate::store::Store;

/// A group in memory needs about this many times its block bitmap.
const BITMAPS_PER_GROUP: u64 = 4;
/// The part of the cache's size that groups may take besides it.
const SHARE: u64 = 8;
/// Groups that may stay in memory however small the cache.
const LEAST: u64 = 64;

/// Groups that the hand passes when one more is to be read and there are too many.
const STEPS_PER_LOAD: u64 = 32;

/// Groups in memory, and where the hand stands.
pub struct Residency {
    count: AtomicUsize,
    most: usize,
    hand: AtomicU64,
}

impl Residency {
    pub fn new(store: &Store) -> Self {
        let each = BITMAPS_PER_GROUP * u64::from(store.block_size());
        let most = (store.options.cache_size / SHARE / each).max(LEAST);
        Self {
            count: AtomicUsize::new(0),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            hand: AtomicU64::new(0),
        }
    }

    /// Groups in memory.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes that one more group is in memory.
    pub fn loaded(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn is_exceeded(&self) -> bool {
        self.count() > self.most
    }
}

impl Groups {
    /// Drops groups from memory until no more than the bound are there, or two rounds found no
    /// more that may go. No group is held.
    pub fn evict(&self) {
        self.evict_within(2 * u64::from(self.count()));
    }

    /// Looks for a few groups to drop, if there are too many, before another one is read. No
    /// group is held.
    pub(crate) fn make_room(&self) {
        self.evict_within(STEPS_PER_LOAD);
    }

    /// As [`Groups::make_room`], if this group is not in memory.
    pub(crate) fn make_room_for(&self, number: GroupNumber) {
        if !self.slot(number).is(mark::BLOCKS_LOADED) {
            self.make_room();
        }
    }

    fn evict_within(&self, steps: u64) {
        let groups = u64::from(self.count());
        for _ in 0..steps {
            if !self.residency.is_exceeded() {
                return;
            }
            let step = self.residency.hand.fetch_add(1, Ordering::Relaxed) % groups;
            let number = GroupNumber(u32::try_from(step).expect("below the number of groups"));
            self.evict_one(number);
        }
    }

    fn evict_one(&self, number: GroupNumber) {
        const LOADED: u32 = mark::BLOCKS_LOADED | mark::INODES_LOADED;
        let slot = self.slot(number);
        if !slot.is(LOADED) || slot.unmark(mark::REFERENCED) != 0 || !self.is_settled(number) {
            return;
        }
        let Some(mut held) = self.try_hold(number) else {
            return;
        };
        if !held.loaded().is_some_and(|loaded| loaded.is_idle()) {
            return;
        }
        let loaded = slot.unmark(LOADED);
        fence(Ordering::SeqCst);
        if self.is_settled(number) && slot.freed.is_empty() {
            held.unload();
            self.residency.count.fetch_sub(1, Ordering::Relaxed);
        } else {
            slot.mark(loaded);
        }
    }

    /// Whether the last transaction that noted the group is durable.
    fn is_settled(&self, number: GroupNumber) -> bool {
        let last = self.slot(number).last_noted();
        last.is_none_or(|tid| self.store.journal().is_durable(tid))
    }

    /// Sees to it that the blocks of a group that `tid` is noted for are in memory; they then stay
    /// until it is durable. Answers whether they can be used.
    pub(crate) fn keep_blocks(&self, number: GroupNumber) -> bool {
        fence(Ordering::SeqCst);
        let slot = self.slot(number);
        if slot.is(mark::BLOCKS_CORRUPT) {
            return false;
        }
        if slot.is(mark::BLOCKS_LOADED) {
            return true;
        }
        self.make_room();
        Held::load_blocks(&mut self.hold(number))
    }
}
