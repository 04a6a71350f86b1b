//! A group under its lock, and loading it.
//!
//! Whoever wants to look at or change a group holds it. What it needs is read on demand; a side
//! that turns out corrupt is condemned, once, and from then on left alone. When the hold ends, the
//! hints outside the lock are brought up to date.

use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};
use pext4_sync::atomic::Ordering;
use pext4_sync::{MutexGuard, spin};

use super::Groups;
use super::loaded::{self, BlockSide, InodeSide, Loaded};
use super::slot::{Slot, mark};
use crate::error::Error;
use crate::options::BusyGroups;

/// A group whose lock is held. The hints of its slot are brought up to date when it is dropped.
pub struct Held<'a> {
    pub(super) groups: &'a Groups,
    pub(super) number: GroupNumber,
    pub(super) slot: &'a Slot,
    state: MutexGuard<'a, Option<Box<Loaded>>>,
    /// Whether its free runs changed, or became known.
    pub(super) has_moved: bool,
}

impl Groups {
    /// Waits for a group.
    pub(crate) fn hold(&self, number: GroupNumber) -> Held<'_> {
        let slot = self.slot(number);
        let state = slot.state.lock_keyed(u64::from(number.get()));
        Held {
            groups: self,
            number,
            slot,
            state,
            has_moved: false,
        }
    }

    /// Whether who finds a group held waits for it, instead of doing without.
    pub(crate) fn waits_for_busy(&self) -> bool {
        self.store.options.scaling.busy_groups == BusyGroups::Wait
    }

    /// A group, unless somebody else has it for longer than a hold takes who keeps its core.
    pub(crate) fn hold_soon(&self, number: GroupNumber) -> Option<Held<'_>> {
        self.try_hold(number).or_else(|| {
            let state = &self.slot(number).state;
            spin::until(|| !state.is_locked());
            self.try_hold(number)
        })
    }

    /// The block of the device that a bit of a group stands for.
    pub(crate) fn block_at(&self, group: GroupNumber, bit: u32) -> BlockNumber {
        BlockNumber(self.store.geometry.first_block(group).get() + u64::from(bit))
    }

    /// A group, unless somebody else has it.
    pub(crate) fn try_hold(&self, number: GroupNumber) -> Option<Held<'_>> {
        let slot = self.slot(number);
        let state = slot.state.try_lock_keyed(u64::from(number.get()))?;
        Some(Held {
            groups: self,
            number,
            slot,
            state,
            has_moved: false,
        })
    }
}

impl Held<'_> {
    /// The group in memory, if it is.
    pub(super) fn loaded(&mut self) -> Option<&mut Loaded> {
        self.state.as_deref_mut()
    }

    /// The group, which the caller knows to be in memory.
    pub(super) fn present(&mut self) -> &mut Loaded {
        self.state
            .as_deref_mut()
            .expect("the caller has loaded a side of the group")
    }

    /// Its blocks, which the caller has loaded.
    pub fn blocks(&mut self) -> &mut BlockSide {
        self.present()
            .blocks
            .as_mut()
            .expect("the caller has loaded the blocks")
    }

    /// Forgets the group; eviction has made sure that nothing is lost.
    pub(super) fn unload(&mut self) {
        *self.state = None;
    }

    /// Brings the block bitmap and the buddy into memory. Answers whether they can be used: not
    /// in a corrupt group, which is reported once.
    pub fn load_blocks(&mut self) -> bool {
        if self.slot.is(mark::BLOCKS_CORRUPT) {
            return false;
        }
        self.slot.mark(mark::REFERENCED);
        let Some(loaded) = self.load_descriptor() else {
            return false;
        };
        if loaded.blocks.is_some() {
            return true;
        }
        let (groups, number) = (self.groups, self.number);
        let loaded = self.present();
        match BlockSide::load(
            &groups.store,
            &groups.owned().collect::<Vec<_>>(),
            number,
            &loaded.descriptor,
        ) {
            Ok(side) => {
                loaded.blocks = Some(side);
                self.has_moved = true;
                self.slot.mark(mark::BLOCKS_LOADED);
                true
            }
            Err(error) => {
                self.condemn(mark::BLOCKS_CORRUPT, error);
                false
            }
        }
    }

    /// Brings the inode bitmap into memory; as [`Held::load_blocks`].
    pub fn load_inodes(&mut self) -> bool {
        if self.slot.is(mark::INODES_CORRUPT) {
            return false;
        }
        self.slot.mark(mark::REFERENCED);
        let Some(loaded) = self.load_descriptor() else {
            return false;
        };
        if loaded.inodes.is_some() {
            return true;
        }
        if self.slot.inodes.get().is_none() {
            let (groups, number) = (self.groups, self.number);
            let descriptor = &self.present().descriptor;
            match loaded::read_inode_bitmap(&groups.store, number, descriptor) {
                Ok(bits) => drop(self.slot.inodes.set(Box::new(bits))),
                Err(error) => {
                    self.condemn(mark::INODES_CORRUPT, error);
                    return false;
                }
            }
        }
        self.present().inodes = Some(InodeSide::default());
        self.slot.mark(mark::INODES_LOADED);
        true
    }

    fn load_descriptor(&mut self) -> Option<&mut Loaded> {
        if self.state.is_none() {
            match loaded::read_descriptor(&self.groups.store, self.number) {
                Ok(descriptor) => {
                    *self.state = Some(Box::new(Loaded::new(descriptor)));
                    self.groups.residency.loaded();
                }
                Err(error) => {
                    self.condemn(mark::BLOCKS_CORRUPT | mark::INODES_CORRUPT, error);
                    return None;
                }
            }
        }
        self.state.as_deref_mut()
    }

    /// Marks a side of the group as unusable and leaves word of it. What is free there is nobody's any more, so
    /// it leaves the sums; what is on the way there does so when it comes, and is lost until the image is checked. So
    /// what cannot be read is told to the volume's policy as what makes no sense is.
    pub fn condemn(&self, side: u32, error: Error) {
        let (slot, counts) = (self.slot, &self.groups.counts);
        let condemned = slot.mark(side);
        if condemned & mark::BLOCKS_CORRUPT != 0 {
            // What lies in the slot may be from before the last change.
            let loaded = self.state.as_deref();
            let blocks = loaded.and_then(|loaded| loaded.blocks.as_ref());
            let as_told = || slot.free_blocks.load(Ordering::Relaxed);
            let free = blocks.map_or_else(as_told, |blocks| blocks.buddy.free());
            counts.free_blocks.add(-i64::from(free));
        }
        if condemned & mark::INODES_CORRUPT != 0 {
            let as_read = || slot.free_inodes.load(Ordering::Relaxed);
            let free = slot
                .inodes
                .get()
                .map_or_else(as_read, |bits| bits.count_free());
            counts.free_inodes.add(-i64::from(free));
        }
        // Nobody is to be led here any more.
        self.groups
            .index
            .file(self.slot, self.number, self.slot.place());
        self.groups.complaints.push(match error {
            Error::Io(cause) => {
                Corrupt::new("bitmap or descriptor", format!("cannot be read: {cause}"))
                    .in_group(self.number)
                    .into()
            }
            error => error,
        });
    }

    /// The block of the device that a bit of this group stands for.
    pub fn block_at(&self, bit: u32) -> BlockNumber {
        self.groups.block_at(self.number, bit)
    }

    fn publish(&mut self) {
        let slot = self.slot;
        let Some(blocks) = self
            .state
            .as_deref()
            .and_then(|loaded| loaded.blocks.as_ref())
        else {
            return;
        };
        let buddy = &blocks.buddy;
        slot.free_blocks.store(buddy.free(), Ordering::Relaxed);
        slot.fragments.store(buddy.fragments(), Ordering::Relaxed);
        let largest = buddy.largest_order().map_or(0, |order| order + 1);
        slot.largest.store(largest, Ordering::Relaxed);
        self.groups.index.file(slot, self.number, slot.place());
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.has_moved {
            self.publish();
        }
    }
}
