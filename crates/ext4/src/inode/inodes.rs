//! The inode layer of a volume: the inodes in memory, and what operations on inodes need besides.
//!
//! An inode leaves memory only when no thread uses it and the last transaction that changed it is
//! durable: before that, its slot on disk (and in the buffer of the inode table) is older than the
//! object.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::inode::Inode as Slot;
use pext4_ondisk::{Corrupt, InodeNumber};
use pext4_sync::{ShardRef, Stack};

use crate::error::{Error, Refusal, Result};
use crate::groups::Groups;
use crate::inode::account::Account;
use crate::inode::holds::Holds;
use crate::inode::name_orders::NameOrders;
use crate::inode::table::{ResidentInodes, Table};
use crate::inode::tails::Tails;
use crate::inode::values::Values;
use crate::inode::{Inode, Reach};
use crate::mbcache::SharedBlocks;
use crate::orphan::{OrphanPlace, Orphans};
use crate::store::Store;
use crate::types::FileType;

/// The inodes of a volume, and everything that operations on them need.
pub struct Inodes {
    /// Device, buffers, journal, geometry.
    pub store: Arc<Store>,
    /// Space and inode numbers.
    pub groups: Arc<Groups>,
    /// Inodes that recovery would have to free or truncate.
    pub orphans: Orphans,
    /// The number of holds of each inode, in memory or not.
    pub holds: Holds,
    /// Attribute blocks that can be shared.
    pub attribute_blocks: Arc<SharedBlocks>,
    /// Files with old bytes beyond their end.
    pub tails: Tails,
    /// Values of attributes in inodes of their own.
    pub values: Values,
    /// Inodes that lost their last name and hold where they could not be reaped.
    pub forgotten: Stack<Arc<Inode>>,
    /// How directories without a usable index are listed.
    pub name_orders: NameOrders,
    resident: ResidentInodes,
}

impl Inodes {
    /// The inodes in `table`, on `store`.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        groups: Arc<Groups>,
        orphans: Orphans,
        table: Arc<Table>,
        attribute_blocks: Arc<SharedBlocks>,
    ) -> Self {
        let geometry = &store.geometry;
        let holds = Holds::new(geometry.group_count, geometry.inodes_per_group);
        let cache_size = store.options.cache_size;
        let resident = ResidentInodes::new(table, cache_size);
        Self {
            store,
            groups,
            orphans,
            holds,
            attribute_blocks,
            tails: Tails::new(),
            values: Values::new(),
            forgotten: Stack::new(),
            name_orders: NameOrders::new(cache_size),
            resident,
        }
    }

    /// Whether a commit could make blocks free.
    #[must_use]
    pub fn may_free_by_commit(&self) -> bool {
        self.groups.has_pending_frees() || self.attribute_blocks.own_counts().any()
    }

    /// The inode of a number that comes from a directory entry or a caller.
    ///
    /// # Errors
    ///
    /// `Corrupt` for numbers outside the table and slots that cannot be true, `Refused(Stale)` for
    /// an inode that is not in use, `Io`.
    pub fn get(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        let load = || self.load(number, |slot| slot.links > 0);
        let inode = self.resident.get(number, load)?;
        if inode.is_dead() {
            return Err(Refusal::Stale.into());
        }
        inode.mark_used();
        Ok(inode)
    }

    /// As [`Inodes::get`], for a caller that will change an inode that its core has probably not
    /// used before, and removes its name: it does not look among those that the core uses often.
    ///
    /// # Errors
    ///
    /// As [`Inodes::get`].
    pub fn get_to_remove(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        let inode = self.load(number, |slot| slot.links > 0)?;
        if inode.is_dead() {
            return Err(Refusal::Stale.into());
        }
        inode.mark_used();
        Ok(ShardRef::Own(inode))
    }

    /// The inode of a number that is listed as an orphan at `place`, or perhaps is one: it may have
    /// no links.
    ///
    /// # Errors
    ///
    /// As [`Inodes::get`].
    pub fn get_orphan(
        &self,
        number: InodeNumber,
        place: Option<OrphanPlace>,
    ) -> Result<Arc<Inode>> {
        // The deletion time of a chained orphan is the number of the next one. In the orphan file
        // it has no meaning: the slot alone says that the inode waits for its deletion.
        let is_in_file = matches!(place, Some(OrphanPlace::Slot { .. }));
        let most = self.store.geometry.inodes_count;
        self.load(number, |slot| {
            slot.links > 0 || is_in_file || slot.deletion_time <= most
        })
    }

    /// An inode in memory, or else one whose slot is `expected`: others are not in use.
    fn load(
        &self,
        number: InodeNumber,
        expected: impl FnOnce(&Slot) -> bool,
    ) -> Result<Arc<Inode>> {
        let (found, length) = self.resident.find_and_count(number);
        if let Some(inode) = found {
            return Ok(inode);
        }
        self.make_room(number, length);
        self.resident.get_or_read(number, || {
            let inode = self.read(number, expected)?;
            self.holds.prepare(number);
            Ok(inode)
        })
    }

    /// Puts a new inode, whose number was just allocated, into the table. If an earlier inode of
    /// that number still owes its bytes, it is retired first.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the number has no slot, is reserved, or belongs to an inode in use: then the
    /// inode bitmap is damaged. The number stays allocated, and its group allocates no more inodes.
    pub fn insert_new(
        &self,
        handle: &mut Handle<'_>,
        number: InodeNumber,
        slot: Slot,
        file_type: FileType,
    ) -> Result<Arc<Inode>> {
        let (earlier, length) = self.resident.find_and_count(number);
        let is_in_use = earlier.as_ref().is_some_and(|earlier| !earlier.is_dead());
        if is_in_use
            || number < self.store.geometry.first_inode
            || self.store.is_system_inode(number)
        {
            return Err(self.wrongly_free(number));
        }
        self.make_room(number, length);
        let place = self.place(number)?;
        let account = Account::of_new(&self.store, number);
        let store = &self.store;
        let inode = Inode::new(store, number, slot, file_type, place, account);
        let inode = Arc::new(inode);
        self.hold(&inode);
        // Before it leaves the table, where the committer looks for what it owes.
        if let Some(earlier) = earlier {
            earlier.retire(handle);
        }
        // A name of a damaged image may have brought the inode in use meanwhile.
        if !self.resident.insert(&inode) {
            self.release(number, 1);
            return Err(self.wrongly_free(number));
        }
        inode.edit(handle, Reach::Data, |_| ());
        Ok(inode)
    }

    /// The error for an inode in use that its bitmap says is free: its group allocates no more.
    pub(crate) fn wrongly_free(&self, number: InodeNumber) -> Error {
        if let Some((group, index)) = self.store.geometry.inode_group(number) {
            self.groups.mark_inodes_corrupt(group, index);
        }
        let corrupt = Corrupt::new("inode bitmap", "an inode in use is marked free");
        corrupt.in_inode(number).into()
    }

    /// Makes room in memory for inode `number`, in whose shard of the table are `length` inodes.
    fn make_room(&self, number: InodeNumber, length: usize) {
        let is_full = self
            .resident
            .make_room(number, length, |inode| self.may_leave(inode));
        // Most of them wait until their transaction is durable, so ask for a commit. A read-only
        // mount has no journal.
        if is_full && let Some(journal) = self.store.try_journal() {
            journal.request_commit();
        }
    }

    /// Whether an inode may leave memory. A held inode may: its count of holds is kept elsewhere. A
    /// held inode without a name may not, and an orphan may not, because only the object knows its
    /// place among the orphans: also a dead one, which could not be freed.
    fn may_leave(&self, inode: &Arc<Inode>) -> bool {
        if Arc::strong_count(inode) != 1 || (!inode.is_dead() && inode.take_used()) {
            return false;
        }
        let is_needed = inode.state(|state| {
            let is_done = state.orphan.is_none() && (state.dead || state.slot.links > 0);
            let is_durable = state
                .last_tid
                .is_none_or(|tid| self.store.journal().is_durable(tid));
            !is_done || !is_durable
        });
        if is_needed {
            return false;
        }
        let Some(mut map) = inode.map.try_lock() else {
            return false;
        };
        if let Some(preallocation) = map.preallocation.take() {
            self.groups.discard(&preallocation);
        }
        true
    }

    /// Adds one hold of an inode that the caller uses.
    pub fn hold(&self, inode: &Inode) {
        self.holds.take(inode.number());
        inode.mark_used();
    }

    /// Adds one hold of a number that some name refers to; ignores numbers that the image does not
    /// have.
    pub(crate) fn hold_number(&self, number: InodeNumber) {
        if number.get() <= self.store.geometry.inodes_count {
            self.holds.take(number);
        }
    }

    /// Gives back `count` holds of an inode; true if none is left.
    pub(crate) fn release(&self, number: InodeNumber, count: u64) -> bool {
        number.get() <= self.store.geometry.inodes_count && self.holds.give(number, count)
    }

    /// The inode of a number, if it is in memory.
    #[must_use]
    pub fn loaded_inode(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.resident.find(number)
    }

    /// Visits every inode in memory.
    pub fn for_each(&self, visit: impl FnMut(&Arc<Inode>)) {
        self.resident.for_each(visit);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use crate::groups::testing::image;
    use crate::{InodeNumber, MountOptions, Volume};

    /// A damaged bitmap may give a number to a new inode while a name brings the one in use.
    #[test]
    fn a_new_inode_takes_the_place_of_a_dead_one_only() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let [ours, theirs] = [(); 2].map(|()| {
            let device = Arc::new(device.fork());
            Volume::open(device, MountOptions::default()).expect("a mount")
        });
        let root = InodeNumber::ROOT;
        let [in_use, other] = [&ours, &theirs].map(|volume| {
            volume.inodes.get(root).expect("sound");
            volume.inodes.loaded_inode(root).expect("it was just read")
        });
        assert!(!ours.inodes.resident.insert(&other));
        let there = ours.inodes.loaded_inode(root).expect("it is in use");
        assert!(Arc::ptr_eq(&there, &in_use));
        in_use.note(|state| state.dead = true);
        assert!(ours.inodes.resident.insert(&other));
        in_use.note(|state| state.dead = false);
    }
}
