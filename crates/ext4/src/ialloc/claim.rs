//! Allocating an inode number in a group, and freeing one.
//!
//! - *Test, then lock* (ext4 until 2017): a free bit is found without the lock and taken under it.
//!   A thread that finds it taken starts over, as do all threads that had found the same bit. The
//!   group's counts are changed under another hold of the lock.
//! - *Find under lock* (ext4 since): after the first lost race the bit is found and taken under the
//!   lock, so the second attempt cannot lose. The counts are changed under the same hold.
//! - *Atomic*: the bit is claimed by one atomic operation, without the lock, once the transaction
//!   has opened the group's inodes. A thread that loses a race continues with the next bit, and its
//!   shard uses a lane of its own from then on ([`super::lanes`]).
//!
//! A free clears the bit, and changes the counts, likewise: under one hold of the lock in the first
//! two designs, without it in the third.
//!
//! The lock is that of the whole group, which block allocations take too.

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::atomic::Ordering;

use crate::groups::inodes::{Claimed, InodeBits, NoneFree};
use crate::groups::{Groups, LockedGroup};
use crate::options;
use crate::statistics::Event;

/// What a claim does if the group is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// It skips the group.
    Skip,
    /// It waits.
    Wait,
}

impl Groups {
    /// Claims an inode of one group for a file whose directory is in `home`; `None` if the group
    /// has none, or is locked.
    pub(super) fn claim_in(
        &self,
        handle: &mut Handle<'_>,
        (home, group): (GroupNumber, GroupNumber),
        busy: Busy,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        let info = self.info(group);
        let least = self.first_usable(group);
        let is_full = |bits: &InodeBits| bits.choose(least).is_none();
        if !info.opened.is_for(handle.tid()) {
            let bits = match busy {
                Busy::Skip => info.inodes.get().map(|bits| &**bits),
                Busy::Wait => Some(self.inode_bits(group)?),
            };
            if bits.is_some_and(is_full) {
                // Opening the group would make the commit write it without need.
                info.free_inodes.store(0, Ordering::Relaxed);
                return None;
            }
        }
        let design = self.store.options.scaling.inode_bits;
        let kind = (design, is_directory);
        let claimed = match design {
            options::InodeBits::Atomic => self.open_for_claim(handle, group, busy)?.claim(least),
            options::InodeBits::TestThenLock | options::InodeBits::FindUnderLock => {
                self.claim_tested(handle, group, least, kind)?
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(NoneFree { races }) => {
                self.note_races(races);
                info.free_inodes.store(0, Ordering::Relaxed);
                return None;
            }
        };
        if design != options::InodeBits::Atomic {
            return self.note_claim_by_lock(group, &claimed, kind);
        }
        if claimed.races > 0 && !is_directory {
            self.hints.lane().1.seek(home, handle.tid());
        }
        self.note_claim(group, &claimed, is_directory)
    }

    /// Updates the counts for the result of a claim in `group`; returns the inode's number.
    pub(super) fn note_claim(
        &self,
        group: GroupNumber,
        claimed: &Claimed,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        self.note_races(claimed.races);
        let index = claimed.index;
        self.count_claimed(group, index, is_directory);
        self.store.geometry.inode_at(group, index)
    }

    /// As [`Groups::note_claim`], for a claim under the group's lock: the counts are changed under
    /// the hold that took the bit (then this was done), or under another one.
    fn note_claim_by_lock(
        &self,
        group: GroupNumber,
        claimed: &Claimed,
        (design, is_directory): (options::InodeBits, bool),
    ) -> Option<InodeNumber> {
        self.note_races(claimed.races);
        let index = claimed.index;
        self.count_event(Event::InodesLocked);
        if design == options::InodeBits::TestThenLock {
            let _held = self.lock(group);
            self.count_claimed(group, index, is_directory);
        }
        self.store.geometry.inode_at(group, index)
    }

    fn note_races(&self, races: u32) {
        if races > 0 {
            self.store
                .tally
                .add([(Event::InodeRaces, u64::from(races))]);
        }
    }

    /// The index of the first inode of a group that the format does not reserve; behind the last
    /// one if it reserves them all.
    pub(super) fn first_usable(&self, group: GroupNumber) -> u32 {
        let geometry = &self.store.geometry;
        let reserved = geometry.first_inode.get() - 1;
        reserved.saturating_sub(group.get().saturating_mul(geometry.inodes_per_group))
    }

    /// The bits of a group, opened for claims without its lock under this handle.
    pub(super) fn open_for_claim(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        busy: Busy,
    ) -> Option<&InodeBits> {
        self.make_room_for_inodes(group);
        self.open_inodes(handle, group, || {
            let held = match busy {
                Busy::Wait => Some(self.lock(group)),
                Busy::Skip => self.try_lock(group),
            };
            self.count_event(match held {
                Some(_) => Event::InodesLocked,
                None => Event::InodeGroupsBusy,
            });
            held
        })
    }

    /// Finds a bit without the lock and takes it under the lock. After a lost race, finds the next
    /// one under the lock, or starts over. The design that finds under the lock also counts there.
    fn claim_tested(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        least: u32,
        (design, is_directory): (options::InodeBits, bool),
    ) -> Option<Result<Claimed, NoneFree>> {
        let counts_here = design == options::InodeBits::FindUnderLock;
        let bits = self.inode_bits(group)?;
        let mut races = 0;
        loop {
            let Some(index) = bits.choose(least) else {
                return Some(Err(NoneFree { races }));
            };
            let mut held = self.lock(group);
            if !held.open_inodes(handle) {
                return None;
            }
            let mut taken = Some(index).filter(|&index| bits.take(index));
            if taken.is_none() {
                races += 1;
                if design == options::InodeBits::TestThenLock {
                    continue;
                }
                // In this setting bits are taken only under this lock, so this attempt cannot lose.
                taken = bits.choose(least).filter(|&index| bits.take(index));
            }
            let Some(index) = taken else {
                return Some(Err(NoneFree { races }));
            };
            if counts_here {
                self.count_claimed(group, index, is_directory);
            }
            return Some(Ok(Claimed { index, races }));
        }
    }

    /// The bits of a group, loading them if necessary.
    pub(super) fn inode_bits(&self, group: GroupNumber) -> Option<&InodeBits> {
        let info = self.info(group);
        self.make_room_for_inodes(group);
        if info.inodes.get().is_none() && !LockedGroup::load_inodes(&mut self.lock(group)) {
            return None;
        }
        info.inodes.get().map(|bits| &**bits)
    }

    /// Marks an inode as free.
    pub(super) fn give_back(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        index: u32,
        was_directory: bool,
    ) {
        self.make_room_for_inodes(group);
        let freed = match self.store.options.scaling.inode_bits {
            options::InodeBits::Atomic => self
                .open_inodes(handle, group, || Some(self.lock(group)))
                .map(|bits| self.free_and_count(bits, group, index, was_directory)),
            options::InodeBits::TestThenLock | options::InodeBits::FindUnderLock => {
                let mut held = self.lock(group);
                let opened = held.open_inodes(handle);
                let bits = self.info(group).inodes.get().filter(|_| opened);
                // Counted before the hold ends, as Linux does.
                bits.map(|bits| self.free_and_count(bits, group, index, was_directory))
            }
        };
        if freed == Some(false) {
            self.mark_inodes_corrupt(group, index);
        }
    }

    /// Clears an inode's bit and updates the counts; returns whether the bit was set.
    fn free_and_count(
        &self,
        bits: &InodeBits,
        group: GroupNumber,
        index: u32,
        was_directory: bool,
    ) -> bool {
        let was_used = bits.free(index);
        if was_used {
            self.count_freed(group, was_directory);
        }
        was_used
    }
}
