//! How a group gives an inode number, and takes one back.
//!
//! - *Test, then lock* (ext4 until 2017): a free bit is looked for without the lock and taken under
//!   it. Who finds it taken begins anew, and so does everybody who looked at the same time.
//! - *Find under lock* (ext4 since): after the first lost race the bit is looked for and taken under
//!   the lock, which cannot be lost.
//! - *Atomic*: the bit is claimed by one operation, without the lock, once the transaction has
//!   opened the group's inodes. Who loses a race goes on with the next bit, and in a lane of its own
//!   from then on ([`super::lanes`]).
//!
//! The lock is that of the whole group, which the allocation of blocks takes too.

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::atomic::Ordering;

use crate::groups::inodes::{Claimed, InodeBits};
use crate::groups::{Groups, Held};
use crate::options;
use crate::statistics::Event;

/// Whether a claim waits for a group that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It goes on to the next.
    Tries,
    /// It waits.
    Waits,
}

impl Groups {
    /// Claims an inode of one group for a file whose directory lies in `home`; `None` if it has none,
    /// or is busy.
    pub(super) fn claim_in(
        &self,
        handle: &mut Handle<'_>,
        (home, group): (GroupNumber, GroupNumber),
        patience: Patience,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        let slot = self.slot(group);
        let least = self.first_usable(group);
        let is_full = |bits: &InodeBits| bits.choose(least).is_none();
        if !slot.opened.is_for(handle.tid()) && slot.inodes.get().is_some_and(|bits| is_full(bits))
        {
            // Nothing is to be opened, and written, for nothing.
            slot.free_inodes.store(0, Ordering::Relaxed);
            return None;
        }
        let design = self.store.options.scaling.inode_bits;
        let claimed = match design {
            options::InodeBits::Atomic => {
                self.open_for_claim(handle, group, patience)?.claim(least)
            }
            options::InodeBits::TestThenLock => self.claim_tested(handle, group, least, false)?,
            options::InodeBits::FindUnderLock => self.claim_tested(handle, group, least, true)?,
        };
        if claimed.index.is_none() {
            slot.free_inodes.store(0, Ordering::Relaxed);
        }
        if claimed.races > 0 && design == options::InodeBits::Atomic && !is_directory {
            self.hints.lane().1.seek(home, handle.tid());
        }
        self.note_claim(group, &claimed, is_directory)
    }

    /// Counts what a claim in `group` found; the inode's number.
    pub(super) fn note_claim(
        &self,
        group: GroupNumber,
        claimed: &Claimed,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        if claimed.races > 0 {
            let races = u64::from(claimed.races);
            self.store.tally.add([(Event::InodeRaces, races)]);
        }
        let index = claimed.index?;
        self.count_claimed(group, index, is_directory);
        self.store.geometry.inode_at(group, index)
    }

    fn first_usable(&self, group: GroupNumber) -> u32 {
        if group.get() == 0 {
            self.store.geometry.first_inode.get() - 1
        } else {
            0
        }
    }

    /// The bits of a group, which may be claimed without its lock within this handle.
    pub(super) fn open_for_claim(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        patience: Patience,
    ) -> Option<&InodeBits> {
        self.open_inodes(handle, group, || match patience {
            Patience::Waits => Some(self.hold(group)),
            Patience::Tries => self.try_hold(group).or_else(|| {
                self.count_event(Event::InodeGroupsBusy);
                None
            }),
        })
    }

    /// Looks without the lock and takes under it; after a lost race `again_under_lock`, or anew.
    fn claim_tested(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        least: u32,
        again_under_lock: bool,
    ) -> Option<Claimed> {
        let bits = self.inode_bits(group)?;
        let mut races = 0;
        loop {
            let Some(index) = bits.choose(least) else {
                return Some(Claimed { index: None, races });
            };
            self.count_event(Event::InodesLocked);
            let mut held = self.hold(group);
            if !held.open_inodes(handle) {
                return None;
            }
            if bits.take(index) {
                let index = Some(index);
                return Some(Claimed { index, races });
            }
            races += 1;
            if again_under_lock {
                // Bits are taken under this lock alone, so what is found now is there.
                let index = bits.choose(least).filter(|&index| bits.take(index));
                return Some(Claimed { index, races });
            }
        }
    }

    /// The bits of a group, read if that is still to be done.
    fn inode_bits(&self, group: GroupNumber) -> Option<&InodeBits> {
        let slot = self.slot(group);
        if slot.inodes.get().is_none() && !Held::load_inodes(&mut self.hold(group)) {
            return None;
        }
        slot.inodes.get().map(|bits| &**bits)
    }

    /// Takes an inode back.
    pub(super) fn give_back(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNumber,
        index: u32,
        was_directory: bool,
    ) {
        let given = match self.store.options.scaling.inode_bits {
            options::InodeBits::Atomic => self
                .open_inodes(handle, group, || Some(self.hold(group)))
                .map(|bits| bits.give(index)),
            options::InodeBits::TestThenLock | options::InodeBits::FindUnderLock => {
                let mut held = self.hold(group);
                let opened = held.open_inodes(handle);
                let bits = self.slot(group).inodes.get().filter(|_| opened);
                bits.map(|bits| bits.give(index))
            }
        };
        match given {
            Some(true) => self.count_freed(group, was_directory),
            Some(false) => self.condemn_inodes(group, index),
            None => {}
        }
    }
}
