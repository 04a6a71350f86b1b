//! Eviction of groups from memory.
//!
//! A loaded group takes about four bits per block: two bitmaps and the buddy. If more groups than
//! the bound are in memory, a clock hand moves round the table and evicts groups that were not used
//! since it last passed, provided that the last transaction that noted them is durable and that
//! nothing would be lost: they have no pending frees and no preallocations.
//!
//! A free reads the loaded mark without the lock. So eviction clears the mark first and then checks
//! for a note: either the free sees that the mark is cleared, or eviction sees the note of the free
//! (both sides are sequentially consistent).

use pext4_ondisk::GroupNumber;
use pext4_sync::CachePadded;
use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::slot::mark;
use super::{Groups, Held};
use crate::store::Store;

/// The memory for a group, in multiples of its block bitmap's size.
const BITMAPS_PER_GROUP: u64 = 4;
/// Groups may take `1 / SHARE` of the cache's size, in addition to it.
const SHARE: u64 = 8;
/// The number of groups that may stay in memory even with the smallest cache.
const LEAST: u64 = 64;

/// How many groups the hand passes when one more is to be read and there are too many.
const STEPS_PER_LOAD: u64 = 32;

/// The number of groups in memory, its bound, and the hand's position. The two that change are on
/// cache lines of their own: while too many groups are in memory, all cores move the hand.
pub struct Residency {
    count: CachePadded<AtomicUsize>,
    most: usize,
    hand: CachePadded<AtomicU64>,
}

impl Residency {
    pub fn new(store: &Store) -> Self {
        let each = BITMAPS_PER_GROUP * u64::from(store.block_size());
        let most = (store.options.cache_size / SHARE / each).max(LEAST);
        Self {
            count: CachePadded::new(AtomicUsize::new(0)),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            hand: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Groups in memory.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts one more group in memory.
    pub fn loaded(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less.
    pub fn unloaded(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_exceeded(&self) -> bool {
        self.count() > self.most
    }
}

impl Groups {
    /// Evicts groups until no more than the bound are in memory, or the hand has made two rounds.
    /// The caller holds no group.
    pub fn evict(&self) {
        self.evict_within(2 * u64::from(self.count()));
    }

    /// If too many groups are in memory, tries to evict a few before another one is read. The
    /// caller holds no group.
    pub(crate) fn make_room(&self) {
        self.evict_within(STEPS_PER_LOAD);
    }

    /// As [`Groups::make_room`], if this group is not in memory.
    pub(crate) fn make_room_for(&self, number: GroupNumber) {
        if !self.slot(number).is(mark::BLOCKS_LOADED) {
            self.make_room();
        }
    }

    /// As [`Groups::make_room`], if the inodes of this group were never read: once they were, they
    /// stay.
    pub(crate) fn make_room_for_inodes(&self, number: GroupNumber) {
        if self.slot(number).inodes.get().is_none() {
            self.make_room();
        }
    }

    fn evict_within(&self, steps: u64) {
        if !self.residency.is_exceeded() {
            return;
        }
        let groups = u64::from(self.count());
        // One write to the line that all cores share, for all steps.
        let first = self.residency.hand.fetch_add(steps, Ordering::Relaxed);
        for step in 0..steps {
            if !self.residency.is_exceeded() {
                return;
            }
            let place = first.wrapping_add(step) % groups;
            let number = GroupNumber(u32::try_from(place).expect("below the number of groups"));
            self.evict_one(number);
        }
    }

    fn evict_one(&self, number: GroupNumber) {
        const LOADED: u32 = mark::BLOCKS_LOADED | mark::INODES_LOADED;
        let slot = self.slot(number);
        // The mark is on a line that many threads read, so it is cleared only if it is set.
        let is_referenced = slot.is(mark::REFERENCED) && slot.unmark(mark::REFERENCED) != 0;
        if !slot.is(LOADED) || is_referenced || !self.has_durable_changes(number) {
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
        if self.has_durable_changes(number) && slot.written.freed.is_empty() {
            held.unload();
        } else {
            slot.mark(loaded);
        }
    }

    /// Whether the last transaction that noted the group is durable.
    fn has_durable_changes(&self, number: GroupNumber) -> bool {
        let last = self.slot(number).last_noted();
        last.is_none_or(|tid| self.store.journal().is_durable(tid))
    }

    /// Loads the blocks of a group if they are not in memory. The caller has noted the running
    /// transaction in the group, so they stay until it is durable. Returns whether they can be
    /// used.
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
