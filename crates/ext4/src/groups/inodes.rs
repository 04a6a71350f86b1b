//! The inodes of a group in memory: which are used, as atomic bits, and their counts.
//!
//! A bit may be changed under a handle whose transaction has *opened* the group's inodes
//! ([`LockedGroup::open_inodes`]), with the group's lock or without it (see [`Opened`]). The number
//! of free inodes is counted from the bits when they are captured, so bitmap and count cannot
//! differ on disk (rule D3). The numbers of directories and of never used inodes are atomics beside
//! the bits; like these, they do not change while a version is captured.
//!
//! Without a journal, a recently freed number should not be reused: blocks of its last life may
//! reach the disk later than those of its new life. This is a preference, never a reason to fail.
//!
//! [`Opened`]: pext4_jbd2::Opened

use std::ops::Range;
use std::time::Duration;

use pext4_block::{Page, Stamp};
use pext4_jbd2::{Capture, Handle};
use pext4_ondisk::bitmap;
use pext4_ondisk::feature::Compat;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{Corrupt, GroupNumber, InodeNumber};
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use pext4_sync::{Bits, CachePadded, time};

use super::Groups;
use super::info::{GroupInfo, mark};
use super::locked::LockedGroup;
use crate::statistics::Event;
use crate::store::Store;

/// The minimum time for which a freed number is not reused without a journal; the maximum is twice
/// as long.
const RECENT: Duration = Duration::from_secs(5);

/// Which inodes of a group are used.
pub struct InodeBits {
    bits: Bits,
    /// Every inode before this one is probably used. Each claim writes it, while all cores read the
    /// other fields: so it is on a line of its own. [atomic; a hint]
    first_free: CachePadded<AtomicU32>,
    /// Whether slots may be used in any order, because those never used are zero on disk.
    /// [immutable after loading]
    is_zeroed: bool,
    recent: Option<Recent>,
}

/// Recently freed numbers.
struct Recent {
    /// Those of the current and of the previous period of length [`RECENT`], by parity.
    freed: [Bits; 2],
    /// The period of the last free.
    period: AtomicU64,
}

impl InodeBits {
    /// The bits of a bitmap on disk.
    pub fn new(store: &Store, descriptor: &GroupDescriptor, bytes: &[u8], count: u32) -> Self {
        let has_journal = store.features.has_compat(Compat::HAS_JOURNAL);
        let recent = || Recent {
            freed: [(); 2].map(|()| Bits::from_bytes(&vec![0; count.div_ceil(8) as usize], count)),
            period: AtomicU64::new(0),
        };
        Self {
            bits: Bits::from_bytes(bytes, count),
            first_free: CachePadded::new(AtomicU32::new(0)),
            is_zeroed: descriptor.flags.contains(GroupFlags::INODE_ZEROED),
            recent: (!has_journal).then(recent),
        }
    }

    /// The preferred free inode with an index of at least `least`: the first one, or if possible
    /// the first one that was not freed recently.
    pub fn choose(&self, least: u32) -> Option<u32> {
        let from = self.first_free.load(Ordering::Relaxed).max(least);
        let first = self.bits.next_clear(from);
        let first = first.or_else(|| self.bits.next_clear(least));
        match &self.recent {
            Some(recent) => self.rested(recent, first?).or(first),
            None => first,
        }
    }

    /// The first free inode from `first` on that was not freed recently.
    fn rested(&self, recent: &Recent, first: u32) -> Option<u32> {
        recent.rotate();
        let mut at = first;
        while recent.has(at) {
            at = self.bits.next_clear(at + 1)?;
        }
        Some(at)
    }

    /// Takes an inode that [`InodeBits::choose`] returned; false if another thread took it first.
    pub fn take(&self, index: u32) -> bool {
        let from = self.first_free.load(Ordering::Relaxed);
        let taken = self.bits.set(index);
        if taken && index >= from && self.recent.is_none() {
            self.raise_first_free(from, index + 1);
        }
        taken
    }

    /// Raises the hint from `from` to `next`, behind an inode that was taken; those in between were
    /// used.
    fn raise_first_free(&self, from: u32, next: u32) {
        let hint = &self.first_free;
        let raised = hint.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
        // This fails if another thread has freed one before `from` meanwhile. One that has freed a
        // later one before the hint was raised has left the hint to this thread.
        if raised.is_ok()
            && next > from + 1
            && let Some(freed) = self.bits.next_clear(from).filter(|&freed| freed < next)
        {
            hint.fetch_min(freed, Ordering::Relaxed);
        }
    }

    /// Whether an inode is used.
    pub fn is_used(&self, index: u32) -> bool {
        self.bits.is_set(index)
    }

    /// Whether an inode of a range is free at the moment.
    pub fn has_free_in(&self, range: Range<u32>) -> bool {
        let free = self.bits.next_clear(range.start);
        free.is_some_and(|free| free < range.end)
    }

    /// Whether slots that were never used are zero on disk.
    pub fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    /// Claims a free inode with an index of at least `least`: the preferred one, or the next one if
    /// another thread took it first.
    pub fn claim(&self, least: u32) -> Result<Claimed, NoneFree> {
        let mut races = 0;
        while let Some(index) = self.choose(least) {
            if self.take(index) {
                return Ok(Claimed { index, races });
            }
            races += 1;
        }
        Err(NoneFree { races })
    }

    /// Claims a free inode of one line of [`Bits::LINE`].
    pub fn claim_in_line(&self, line: u32) -> Option<Claimed> {
        let claim = self.bits.claim_in_line(line)?;
        Some(Claimed {
            index: claim.bit,
            races: claim.races,
        })
    }

    /// Claims the first inode of a whole line, and none of its others.
    pub fn claim_start(&self, line: u32) -> Option<Claimed> {
        let index = line * Bits::LINE;
        let taken = self.allows_any_order() && self.bits.set(index);
        taken.then_some(Claimed { index, races: 0 })
    }

    /// Whether inodes may be taken in any order.
    fn allows_any_order(&self) -> bool {
        self.is_zeroed && self.recent.is_none()
    }

    /// The line with the most free inodes, and how many it has; of several, the first in the
    /// circular order from `first` on. `None` if inodes must be taken in order.
    pub fn roomiest_line(&self, first: u32) -> Option<(u32, u32)> {
        self.allows_any_order()
            .then(|| self.bits.roomiest_line(first))?
    }

    /// How many inodes of a line are free at the moment; 0 for a line that does not exist.
    pub fn room_in_line(&self, line: u32) -> u32 {
        self.bits.room_in_line(line)
    }

    /// Frees an inode; returns whether it was used.
    pub fn free(&self, index: u32) -> bool {
        if let Some(recent) = &self.recent {
            recent.rotate();
            recent.note(index);
        }
        let given = self.bits.clear(index);
        if self.first_free.load(Ordering::Relaxed) > index {
            self.first_free.fetch_min(index, Ordering::Relaxed);
        }
        given
    }

    /// Free inodes.
    pub fn count_free(&self) -> u32 {
        self.bits.count_clear()
    }

    /// Captures the bitmap, and sets its counts and checksum in the descriptor.
    pub fn capture(
        &self,
        store: &Store,
        info: &GroupInfo,
        descriptor: &mut GroupDescriptor,
    ) -> Capture {
        let mut bytes = vec![0; store.block_size() as usize];
        self.bits.write_to(&mut bytes);
        bitmap::set_padding(&mut bytes, self.bits.count());
        let page = Page::from(bytes);
        descriptor.free_inodes = self.count_free();
        descriptor.used_directories = info.written.directories.load(Ordering::Relaxed);
        if store.geometry.checksums.protects_descriptors() {
            descriptor.unused_inodes = info.unused_inodes.load(Ordering::Relaxed);
        }
        if let Some(seed) = store.geometry.checksum_seed() {
            descriptor.inode_bitmap_checksum =
                bitmap::inode_bitmap_checksum(seed, &page, store.geometry.inodes_per_group);
        }
        Capture::Block {
            block: descriptor.inode_bitmap,
            page,
            stamp: Stamp::NONE,
        }
    }
}

/// An inode that was claimed.
pub struct Claimed {
    /// Its index.
    pub index: u32,
    /// How many inodes other threads took first.
    pub races: u32,
}

/// Why a claim got nothing: no inode is free, or none any more.
pub struct NoneFree {
    /// How many inodes other threads took first.
    pub races: u32,
}

impl Recent {
    /// Drops numbers that were freed before the previous period.
    fn rotate(&self) {
        let now = time::now().as_secs() / RECENT.as_secs() + 2;
        let before = self.period.load(Ordering::Relaxed);
        if before == now || self.period.swap(now, Ordering::Relaxed) == now {
            return;
        }
        for period in (now - 1..=now).filter(|&period| period > before) {
            let freed = self.of(period);
            (0..freed.count())
                .filter(|&bit| freed.is_set(bit))
                .for_each(|bit| {
                    freed.clear(bit);
                });
        }
    }

    fn of(&self, period: u64) -> &Bits {
        &self.freed[usize::from(period % 2 == 1)]
    }

    fn note(&self, index: u32) {
        self.of(self.period.load(Ordering::Relaxed)).set(index);
    }

    fn has(&self, index: u32) -> bool {
        self.freed.iter().any(|freed| freed.is_set(index))
    }
}

impl LockedGroup<'_> {
    /// Opens the group's inodes for claims and frees under `handle`: loads the bitmap, captures the
    /// version of an older transaction, and makes this transaction's commit capture the group.
    /// Returns whether the group's inodes can be used.
    pub fn open_inodes(&mut self, handle: &mut Handle<'_>) -> bool {
        if !self.load_inodes() || self.has_no_block_bitmap() && !self.load_blocks() {
            return false;
        }
        self.touch(handle);
        if self.has_no_block_bitmap() {
            self.write_block_bitmap();
        }
        let loaded = self.expect_loaded();
        loaded.descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        if let Some(inodes) = &mut loaded.inodes {
            inodes.is_changed = true;
        }
        let free = self.info.inodes.get().map_or(0, |bits| bits.count_free());
        self.info.free_inodes.store(free, Ordering::Relaxed);
        self.info.opened.open(handle.tid());
        true
    }
}

impl Groups {
    /// Opens a group's inodes for changes under `handle`: without the group's lock if this
    /// transaction has done so before; otherwise `lock` takes the lock, or gives up.
    pub(crate) fn open_inodes<'a>(
        &'a self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        lock: impl FnOnce() -> Option<LockedGroup<'a>>,
    ) -> Option<&'a InodeBits> {
        let info = self.info(group);
        if !handle.may_change(&info.opened) && !lock()?.open_inodes(handle) {
            return None;
        }
        let usable = !info.is(mark::INODES_CORRUPT);
        info.inodes.get().filter(|_| usable).map(|bits| &**bits)
    }

    /// Updates the counts for a claimed inode.
    pub(crate) fn count_claimed(&self, group: GroupNumber, index: u32, is_directory: bool) {
        let info = self.info(group);
        let unused = self.store.geometry.inodes_per_group - index - 1;
        if info.unused_inodes.load(Ordering::Relaxed) > unused {
            info.unused_inodes.fetch_min(unused, Ordering::AcqRel);
        }
        self.counts.free_inodes.add(-1);
        if is_directory {
            info.written.directories.fetch_add(1, Ordering::Relaxed);
            self.counts.directories.add(1);
        }
        self.count_event(Event::InodesClaimed);
    }

    /// Updates the counts for a freed inode.
    pub(crate) fn count_freed(&self, group: GroupNumber, was_directory: bool) {
        let info = self.info(group);
        if info.free_inodes.load(Ordering::Relaxed) == 0 {
            info.free_inodes.store(1, Ordering::Relaxed);
        }
        if !info.is(mark::INODES_CORRUPT) {
            self.counts.free_inodes.add(1);
        }
        if was_directory {
            let less = |directories: u32| directories.checked_sub(1);
            let _ =
                info.written
                    .directories
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            self.counts.directories.add(-1);
        }
        self.count_event(Event::InodesFreed);
    }

    /// Marks the group's inodes as corrupt, because an inode in use is free in the bitmap.
    pub(crate) fn mark_inodes_corrupt(&self, group: GroupNumber, index: u32) {
        let inode = self.store.geometry.inode_at(group, index);
        let corrupt = Corrupt::new("inode bitmap", "an inode in use is marked free");
        let corrupt = corrupt
            .in_group(group)
            .in_inode(inode.unwrap_or(InodeNumber(0)));
        self.lock(group)
            .mark_corrupt(mark::INODES_CORRUPT, corrupt.into());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AtomicU32, Bits, CachePadded, InodeBits};

    #[test]
    fn an_inode_freed_while_a_later_one_is_taken_is_chosen_next() {
        // Numbers 0 to 10 are used.
        let bits = InodeBits {
            bits: Bits::from_bytes(&[0xFF, 0x07], 16),
            first_free: CachePadded::new(AtomicU32::new(5)),
            is_zeroed: true,
            recent: None,
        };
        // Number 10 was taken just now, and before the hint shows that, number 7 is freed.
        assert!(bits.free(7));
        bits.raise_first_free(5, 11);
        assert_eq!(bits.choose(0), Some(7));
        assert!(bits.take(7));
        assert!(bits.free(9));
        bits.raise_first_free(8, 11);
        assert_eq!(bits.choose(0), Some(9));
        assert!(bits.take(9));
        assert_eq!(bits.choose(0), Some(11));
    }
}
