//! A group under its lock, and loading it.
//!
//! A thread that reads or changes a group's state holds its lock. The bitmaps are read on demand. A
//! side (blocks or inodes) that turns out corrupt is marked once, and not used from then on. When
//! the hold ends, the hints outside the lock are updated.

use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};
use pext4_sync::atomic::{Ordering, fence};
use pext4_sync::{MutexGuard, spin};

use super::Groups;
use super::info::{GroupInfo, mark};
use super::loaded::{self, BlockSide, InodeSide, Loaded};
use crate::error::Error;
use crate::options::BusyGroups;
use crate::statistics::Event;

/// What others see of a hold's changes in the volume's sums and in what is set aside. They see it
/// only when the group's hints show the space: a search that finds none by the hints, and sums that
/// have not changed, is right then (rule D4).
#[derive(Default)]
pub(super) struct Unsettled {
    /// Whether space became allocatable.
    pub(super) has_released: bool,
    /// How much less is pending.
    pub(super) pending: i64,
    /// How much less is set aside.
    pub(super) aside: u32,
}

/// A group whose lock is held. Dropping it updates its hints.
pub struct LockedGroup<'a> {
    pub(super) groups: &'a Groups,
    pub(super) number: GroupNumber,
    pub(super) info: &'a GroupInfo,
    state: MutexGuard<'a, Option<Box<Loaded>>>,
    /// Whether its free runs changed or were loaded, so that the hints must be updated.
    pub(super) has_moved: bool,
    pub(super) unsettled: Unsettled,
}

impl Groups {
    /// Locks a group, waiting for it.
    pub(crate) fn lock(&self, number: GroupNumber) -> LockedGroup<'_> {
        let info = self.info(number);
        let state = info.written.state.lock_keyed(u64::from(number.get()));
        self.locked(number, info, state)
    }

    fn locked<'a>(
        &'a self,
        number: GroupNumber,
        info: &'a GroupInfo,
        state: MutexGuard<'a, Option<Box<Loaded>>>,
    ) -> LockedGroup<'a> {
        LockedGroup {
            groups: self,
            number,
            info,
            state,
            has_moved: false,
            unsettled: Unsettled::default(),
        }
    }

    /// Whether a thread that finds a group locked waits for it, instead of trying another one.
    pub(crate) fn waits_for_busy(&self) -> bool {
        self.store.options.scaling.busy_groups == BusyGroups::Wait
    }

    /// Locks a group, spinning briefly if it is locked: long enough for a holder that is running,
    /// not for one that was preempted. `None` if the group is still locked then.
    pub(crate) fn lock_spinning(&self, number: GroupNumber) -> Option<LockedGroup<'_>> {
        self.try_lock(number).or_else(|| {
            let state = &self.info(number).written.state;
            spin::until(|| !state.is_locked());
            self.try_lock(number)
        })
    }

    /// The first block of the cluster that corresponds to a bit of a group.
    pub(crate) fn block_at(&self, group: GroupNumber, bit: u32) -> BlockNumber {
        self.store.geometry.block_of_cluster(group, bit)
    }

    /// Locks a group unless it is locked.
    pub(crate) fn try_lock(&self, number: GroupNumber) -> Option<LockedGroup<'_>> {
        let info = self.info(number);
        let state = info.written.state.try_lock_keyed(u64::from(number.get()))?;
        Some(self.locked(number, info, state))
    }
}

impl LockedGroup<'_> {
    /// The group, if it is in memory.
    pub(super) fn loaded(&mut self) -> Option<&mut Loaded> {
        self.state.as_deref_mut()
    }

    /// The group, which the caller knows to be in memory.
    pub(super) fn expect_loaded(&mut self) -> &mut Loaded {
        self.state
            .as_deref_mut()
            .expect("the caller has loaded a side of the group")
    }

    /// Its blocks, which the caller has loaded.
    pub fn blocks(&mut self) -> &mut BlockSide {
        self.expect_loaded()
            .blocks
            .as_mut()
            .expect("the caller has loaded the blocks")
    }

    /// Drops the group from memory. The caller has checked that nothing is lost.
    pub(super) fn unload(&mut self) {
        *self.state = None;
        self.groups.residency.unloaded();
    }

    /// Drops a group of which no side could be loaded: eviction passes only groups that have one.
    fn unload_if_useless(&mut self) {
        let is_useless = self.loaded().is_some_and(|loaded| {
            loaded.blocks.is_none() && loaded.inodes.is_none() && loaded.is_idle()
        });
        if is_useless {
            self.unload();
        }
    }

    /// Loads the block bitmap and the buddy. Returns whether they can be used: false in a corrupt
    /// group, which is reported once.
    pub fn load_blocks(&mut self) -> bool {
        if self.info.is(mark::BLOCKS_CORRUPT) {
            return false;
        }
        self.info.mark_referenced();
        let Some(loaded) = self.load_descriptor() else {
            return false;
        };
        if loaded.blocks.is_some() {
            return true;
        }
        let (groups, number) = (self.groups, self.number);
        let loaded = self.expect_loaded();
        match BlockSide::load(
            &groups.store,
            &groups.owned().collect::<Vec<_>>(),
            number,
            &loaded.descriptor,
        ) {
            Ok(side) => {
                loaded.blocks = Some(side);
                groups.count_event(Event::GroupsLoaded);
                self.has_moved = true;
                self.info.mark(mark::BLOCKS_LOADED);
                true
            }
            Err(error) => {
                self.mark_corrupt(mark::BLOCKS_CORRUPT, error);
                self.unload_if_useless();
                false
            }
        }
    }

    /// Loads the inode bitmap; returns as [`LockedGroup::load_blocks`].
    pub fn load_inodes(&mut self) -> bool {
        if self.info.is(mark::INODES_CORRUPT) {
            return false;
        }
        self.info.mark_referenced();
        let Some(loaded) = self.load_descriptor() else {
            return false;
        };
        if loaded.inodes.is_some() {
            return true;
        }
        if self.info.inodes.get().is_none() {
            let (groups, number) = (self.groups, self.number);
            let descriptor = &self.expect_loaded().descriptor;
            match loaded::read_inode_bitmap(&groups.store, number, descriptor) {
                Ok(bits) => drop(self.info.inodes.set(Box::new(bits))),
                Err(error) => {
                    self.mark_corrupt(mark::INODES_CORRUPT, error);
                    self.unload_if_useless();
                    return false;
                }
            }
        }
        self.expect_loaded().inodes = Some(InodeSide::default());
        self.info.mark(mark::INODES_LOADED);
        true
    }

    fn load_descriptor(&mut self) -> Option<&mut Loaded> {
        if self.state.is_none() {
            match super::open::read_descriptor(&self.groups.store, self.number) {
                Ok(descriptor) => {
                    *self.state = Some(Box::new(Loaded::new(descriptor)));
                    self.groups.residency.loaded();
                }
                Err(error) => {
                    self.mark_corrupt(mark::BLOCKS_CORRUPT | mark::INODES_CORRUPT, error);
                    return None;
                }
            }
        }
        self.state.as_deref_mut()
    }

    /// Marks sides of the group (bits of [`mark`]) as corrupt and defers `error` to
    /// [`Groups::report`]. Free blocks and inodes there cannot be allocated any more, so they are
    /// subtracted from the volume's sums; frees that are not folded yet are subtracted when they
    /// are. All of them are lost until the image is checked. For that reason a bitmap that cannot
    /// be read is reported to the volume's error policy as corruption too.
    pub fn mark_corrupt(&self, sides: u32, error: Error) {
        let (info, counts) = (self.info, &self.groups.counts);
        let newly_corrupt = info.mark(sides);
        if newly_corrupt & mark::BLOCKS_CORRUPT != 0 {
            // The group's hint may be older than the last change under this hold.
            let loaded = self.state.as_deref();
            let blocks = loaded.and_then(|loaded| loaded.blocks.as_ref());
            let hint = || info.written.free_clusters.load(Ordering::Relaxed);
            let free = blocks.map_or_else(hint, |blocks| blocks.buddy.free());
            counts.free_clusters.add(-i64::from(free));
            counts.sum_before_next_grant();
        }
        if newly_corrupt & mark::INODES_CORRUPT != 0 {
            let as_read = || info.free_inodes.load(Ordering::Relaxed);
            let free = info
                .inodes
                .get()
                .map_or_else(as_read, |bits| bits.count_free());
            counts.free_inodes.add(-i64::from(free));
        }
        // Removes the group from the index, so that no search finds it there.
        self.groups
            .index
            .file(self.info, self.number, self.info.orders());
        self.groups.deferred_errors.push(match error {
            Error::Io(cause) => {
                Corrupt::new("bitmap or descriptor", format!("cannot be read: {cause}"))
                    .in_group(self.number)
                    .into()
            }
            error => error,
        });
    }

    /// The first block of the cluster that corresponds to a bit of this group.
    pub fn block_at(&self, bit: u32) -> BlockNumber {
        self.groups.block_at(self.number, bit)
    }

    fn publish(&mut self) {
        let info = self.info;
        let Some(blocks) = self
            .state
            .as_deref()
            .and_then(|loaded| loaded.blocks.as_ref())
        else {
            return;
        };
        let buddy = &blocks.buddy;
        info.written
            .free_clusters
            .store(buddy.free(), Ordering::Relaxed);
        info.written
            .fragments
            .store(buddy.fragments(), Ordering::Relaxed);
        let largest = buddy.largest_order().map_or(0, |order| order + 1);
        info.written.largest.store(largest, Ordering::Relaxed);
        self.groups.index.file(info, self.number, info.orders());
    }
}

impl LockedGroup<'_> {
    /// Adds to the sums what the hold changed, after its hints were published. The fences belong to
    /// those of [`SpaceActivity`](super::SpaceActivity): who finds less pending or set aside sees
    /// the activity too, and who sees the activity sees the hints.
    fn settle(&mut self) {
        let Unsettled {
            has_released,
            pending,
            aside,
        } = std::mem::take(&mut self.unsettled);
        if has_released {
            fence(Ordering::Release);
            self.groups.counts.activity.add(1);
        }
        if pending == 0 && aside == 0 {
            return;
        }
        fence(Ordering::Release);
        if pending != 0 {
            self.groups.counts.pending_clusters.add(-pending);
        }
        if aside != 0 {
            self.info.written.aside.fetch_sub(aside, Ordering::Relaxed);
        }
    }
}

impl Drop for LockedGroup<'_> {
    fn drop(&mut self) {
        if self.has_moved {
            self.publish();
        }
        self.settle();
    }
}
