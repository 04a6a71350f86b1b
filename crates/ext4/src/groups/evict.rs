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

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::CachePadded;
use pext4_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::info::{GroupInfo, mark};
use super::{Groups, LockedGroup};
use crate::store::Store;

/// The marks of what eviction takes from memory.
const LOADED: u32 = mark::BLOCKS_LOADED | mark::INODES_LOADED;
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

impl GroupInfo {
    /// Clears the marks that the group is in memory; its lock is held. False, and the marks are as
    /// they were, if the group has to stay: `is_durable` denies it of the last transaction that
    /// noted it, or frees wait to be folded.
    fn begin_eviction(&self, is_durable: impl FnOnce(Option<Tid>) -> bool) -> bool {
        let loaded = self.unmark(LOADED);
        fence(Ordering::SeqCst);
        if is_durable(self.last_noted()) && self.written.freed.is_empty() {
            return true;
        }
        self.mark(loaded);
        false
    }

    /// Whether the blocks are in memory, and stay there until the transaction is durable that the
    /// caller has noted before.
    fn keeps_blocks(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is(mark::BLOCKS_LOADED)
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
        if !self.info(number).is(mark::BLOCKS_LOADED) {
            self.make_room();
        }
    }

    /// As [`Groups::make_room`], if the inodes of this group were never read: once they were, they
    /// stay.
    pub(crate) fn make_room_for_inodes(&self, number: GroupNumber) {
        if self.info(number).inodes.get().is_none() {
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
        let info = self.info(number);
        // The mark is on a line that many threads read, so it is cleared only if it is set.
        let is_referenced = info.is(mark::REFERENCED) && info.unmark(mark::REFERENCED) != 0;
        if !info.is(LOADED) || is_referenced || !self.has_durable_changes(number) {
            return;
        }
        let Some(mut held) = self.try_lock(number) else {
            return;
        };
        if !held.loaded().is_some_and(|loaded| loaded.is_idle()) {
            return;
        }
        if info.begin_eviction(|last| self.is_durable(last)) {
            held.unload();
        }
    }

    /// Whether the last transaction that noted the group is durable.
    fn has_durable_changes(&self, number: GroupNumber) -> bool {
        self.is_durable(self.info(number).last_noted())
    }

    fn is_durable(&self, last_noted: Option<Tid>) -> bool {
        last_noted.is_none_or(|tid| self.store.journal().is_durable(tid))
    }

    /// Loads the blocks of a group if they are not in memory. The caller has noted the running
    /// transaction in the group, so they stay until it is durable. Returns whether they can be
    /// used.
    pub(crate) fn keep_blocks(&self, number: GroupNumber) -> bool {
        let info = self.info(number);
        let is_loaded = info.keeps_blocks();
        if info.is(mark::BLOCKS_CORRUPT) {
            return false;
        }
        if is_loaded {
            return true;
        }
        self.make_room();
        LockedGroup::load_blocks(&mut self.lock(number))
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A group that transaction 7 has noted, which is durable; threads free blocks in it in
    //! transaction 8 while it is evicted.

    use std::sync::Arc;

    use pext4_ondisk::group_descriptor::GroupDescriptor;
    use pext4_sync::thread;

    use super::super::buddy::Span;
    use super::super::freed::{FreedExtent, Reuse};
    use super::{GroupInfo, Tid, mark};

    const DURABLE: Tid = Tid(7);

    /// As `Groups::free` does; whether the free relies on the group being in memory.
    fn free(info: &GroupInfo, start: u32) -> bool {
        let tid = DURABLE.next();
        info.note(tid);
        let is_kept = info.keeps_blocks();
        if is_kept {
            info.written.freed.push(FreedExtent {
                tid,
                span: Span { start, length: 1 },
                reuse: Reuse::OnceDurable,
            });
        }
        is_kept
    }

    fn evicted_beside(frees: u32) {
        let info = GroupInfo::new(&GroupDescriptor::default(), 0);
        info.note(DURABLE);
        info.mark(mark::BLOCKS_LOADED);
        let info = Arc::new(info);
        let others = (0..frees).map(|start| {
            let info = Arc::clone(&info);
            thread::spawn("free", move || free(&info, start))
        });
        let others: Vec<_> = others.collect();
        let is_evicted = info.begin_eviction(|last| last.is_none_or(|tid| tid == DURABLE));
        let kept = others.into_iter().map(|other| other.join());
        let is_kept = kept.filter(|kept| matches!(kept, Ok(true))).count() > 0;
        assert!(
            !(is_evicted && is_kept),
            "a free found the group and it went"
        );
        assert_eq!(info.is(mark::BLOCKS_LOADED), !is_evicted);
    }

    #[test]
    fn a_group_that_a_free_has_found_stays() {
        pext4_sync::model(|| evicted_beside(1));
    }

    #[test]
    fn a_second_free_of_the_transaction_is_as_safe() {
        pext4_sync::model(|| evicted_beside(2));
    }
}
