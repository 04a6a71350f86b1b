//! The inodes in memory by number, and what operations on inodes need besides.
//!
//! An inode is loaded while its shard of the table is locked, so that two loaders cannot end up
//! with two objects of one inode, one of them stale. It leaves the table only when no thread uses
//! it and the last transaction that changed it is durable: before that, its slot on disk (and in
//! the buffer of the inode table) is older than the object.

use std::sync::Arc;

use pext4_jbd2::{Capture, Handle};
use pext4_ondisk::directory::max_blocks;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::Inode as Slot;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, Tid};
use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::hash::NeighbourHash;
use pext4_sync::order::Class;
use pext4_sync::{Estimate, Map, ShardCache, ShardRef, Sharded, Stack, topology};

use crate::error::{Error, Refusal, Result};
use crate::groups::Groups;
use crate::inode::holds::Holds;
use crate::inode::name_orders::NameOrders;
use crate::inode::tails::Tails;
use crate::inode::values::Values;
use crate::inode::{Inode, Reach, SlotPlace};
use crate::mbcache::SharedBlocks;
use crate::orphan::{Chain, OrphanPlace, Orphans};
use crate::store::Store;
use crate::types::FileType;

/// Metadata blocks that listing an inode as an orphan, or no longer, may dirty: a slot, or the
/// inode, its neighbour on the list and the superblock.
const ORPHAN_CREDITS: u32 = 3;
/// Maximum number of inodes that each core remembers.
const MAX_REMEMBERED: usize = 32;
/// Logarithm of the number of neighbouring inodes that share a shard: a core that creates files
/// takes consecutive numbers, and those of one block of the inode table should be in one shard.
const NEIGHBOUR_BITS: u32 = 7;
/// Inodes by which a shard may grow before its size is checked again.
const LOOK_AGAIN: usize = 16;
/// Multiple of its share that a shard may hold before it requests a commit.
const MAX_SHARES: usize = 2;
/// Approximate memory per inode in bytes: the object, its slot's tail, and its table entry.
const INODE_MEMORY: u64 = 1024;

/// The inodes in memory.
pub type Table = Map<InodeNumber, Arc<Inode>, NeighbourHash>;

/// A table without inodes.
pub fn empty_table() -> Arc<Table> {
    Arc::new(Map::of_neighbours(Class::InodeTable, NEIGHBOUR_BITS))
}

/// The number under which the journal knows the block of an inode: the first inode in it.
pub(super) fn host_of(number: InodeNumber, place: SlotPlace, inode_size: u16) -> u64 {
    let before = place.offset / u32::from(inode_size);
    u64::from(number.get().saturating_sub(before))
}

/// Captures what the inodes of one block of the inode table owe to transaction `tid`. `host` is the
/// first of them and `count` their maximum number. Every inode that owes is in the table: it leaves
/// only when the transaction is durable, and a new inode retires it before it replaces it there.
pub fn capture_block(table: &Table, host: u64, count: u32, tid: Tid, captures: &mut Vec<Capture>) {
    let first = u32::try_from(host).expect("the number of an inode");
    let numbers = first..first.saturating_add(count);
    for inode in table.get_all(numbers.map(InodeNumber)) {
        inode.capture(tid, captures);
    }
}

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
    /// How linear directories are listed.
    pub name_orders: NameOrders,
    table: Arc<Table>,
    /// The inodes that each core uses again and again: mostly directories.
    shard_cache: ShardCache<Inode>,
    /// Inodes in memory from which on shards above their share evict, and that share.
    max_resident: i64,
    shard_share: usize,
    /// Inodes in memory, approximately.
    resident: Estimate,
    /// By shard of the table, the number of inodes at which it evicts next: so a shard whose inodes
    /// are all in use is not scanned again for every new inode.
    evict_at: Sharded<AtomicUsize>,
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
        let most = (store.options.cache_size / 4 / INODE_MEMORY).clamp(1024, 1 << 20);
        let inodes = usize::try_from(most).unwrap_or(usize::MAX);
        let shard_share = (inodes / table.shard_count()).max(1);
        // Per core, independent of the number of shards of the table.
        let per_shard = inodes / topology::shard_count() / 64;
        Self {
            store,
            groups,
            orphans,
            holds,
            attribute_blocks,
            tails: Tails::new(),
            values: Values::new(),
            forgotten: Stack::new(),
            name_orders: NameOrders::default(),
            shard_cache: ShardCache::new(per_shard.min(MAX_REMEMBERED)),
            max_resident: i64::try_from(most).unwrap_or(i64::MAX),
            shard_share,
            resident: Estimate::new(most / 8),
            evict_at: Sharded::with_count(table.shard_count(), |_| AtomicUsize::new(shard_share)),
            table,
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
        let inode = self.shard_cache.get(
            u64::from(number.get()),
            |inode| !inode.is_dead(),
            || match self.table.get(&number) {
                Some(inode) => Ok(inode),
                None => self.load(number, |slot| slot.links > 0),
            },
        )?;
        if inode.is_dead() {
            return Err(Refusal::Stale.into());
        }
        inode.mark_used();
        Ok(inode)
    }

    /// The inode of a number that is listed as an orphan: it may have no links.
    ///
    /// # Errors
    ///
    /// As [`Inodes::get`].
    pub fn get_orphan(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        // The deletion time of a chained orphan is the number of the next one.
        let most = self.store.geometry.inodes_count;
        match self.table.get(&number) {
            Some(inode) => Ok(inode),
            None => self.load(number, |slot| slot.links > 0 || slot.deletion_time <= most),
        }
    }

    /// Loads an inode whose slot is `expected`: others are not in use.
    fn load(
        &self,
        number: InodeNumber,
        expected: impl FnOnce(&Slot) -> bool,
    ) -> Result<Arc<Inode>> {
        self.make_room(number);
        self.table.get_or_try_insert_with(number, || {
            let inode = self.read(number, expected)?;
            self.holds.prepare(number);
            self.resident.add(1);
            Ok(inode)
        })
    }

    fn read(
        &self,
        number: InodeNumber,
        expected: impl FnOnce(&Slot) -> bool,
    ) -> Result<Arc<Inode>> {
        // A slot that was never used belongs to no inode and may contain anything.
        if self.groups.is_inode_slot_unused(number) {
            return Err(Refusal::Stale.into());
        }
        let (slot, place) = self.read_slot(number)?;
        if slot.mode == 0 || !expected(&slot) {
            return Err(Refusal::Stale.into());
        }
        let file_type = slot.file_type().ok_or_else(|| {
            Corrupt::new("inode", format!("mode {:#o} names no file type", slot.mode))
                .in_inode(number)
                .in_block(place.block)
        })?;
        self.check_slot(&slot, file_type)
            .map_err(|corrupt| corrupt.in_inode(number).in_block(place.block))?;
        Ok(Arc::new(Inode::new(
            &self.store,
            number,
            slot,
            file_type,
            place,
        )))
    }

    /// The slot of an inode as its block contains it, bypassing the table.
    ///
    /// # Errors
    ///
    /// As [`Inodes::get`].
    pub fn read_slot(&self, number: InodeNumber) -> Result<(Slot, SlotPlace)> {
        let place = self.place(number)?;
        let buffer = self.store.read_block(place.block)?;
        let state = buffer.read();
        let start = place.offset as usize;
        let bytes = &state.page[start..start + usize::from(self.store.geometry.inode_size)];
        let slot = self
            .store
            .decode_slot(bytes, number)
            .map_err(|corrupt| corrupt.in_inode(number).in_block(place.block))?;
        Ok((slot, place))
    }

    fn check_slot(&self, slot: &Slot, file_type: FileType) -> std::result::Result<(), Corrupt> {
        let block_size = u64::from(self.store.block_size());
        let most = match file_type {
            FileType::Regular => block_size << 32,
            // A smaller bound than the format's, since a lookup may have to read all of it.
            FileType::Directory => {
                let blocks = self.store.geometry.blocks_count;
                let large = self
                    .store
                    .geometry
                    .features
                    .has_incompat(Incompat::LARGEDIR);
                block_size * blocks.min(max_blocks(large, self.store.block_size()).into())
            }
            FileType::Symlink => block_size,
            _ => u64::MAX,
        };
        if slot.size > most {
            return Err(Corrupt::new(
                "inode",
                format!("size {} is beyond what the format can map", slot.size),
            ));
        }
        if slot.has_inline_data() {
            return self.check_inline(slot, file_type);
        }
        if file_type == FileType::Directory && !slot.size.is_multiple_of(block_size) {
            return Err(Corrupt::new(
                "inode",
                format!(
                    "directory size {} is not a multiple of the block size",
                    slot.size
                ),
            ));
        }
        Ok(())
    }

    /// Where the slot of an inode is located.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such inode, or its group's descriptor is bad.
    pub fn place(&self, number: InodeNumber) -> Result<SlotPlace> {
        if let Some(damage) = self.groups.damage_of(number) {
            return Err(damage.clone().in_inode(number).into());
        }
        let (block, offset): (BlockNumber, u32) =
            self.groups.slot_place(number).ok_or_else(|| {
                Corrupt::new(
                    "inode number",
                    format!(
                        "{number} is not between 1 and {}",
                        self.store.geometry.inodes_count
                    ),
                )
            })?;
        Ok(SlotPlace { block, offset })
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
        let earlier = self.table.get(&number);
        let is_in_use = earlier.as_ref().is_some_and(|earlier| !earlier.is_dead());
        if is_in_use
            || number < self.store.geometry.first_inode
            || self.store.is_system_inode(number)
        {
            return Err(self.wrongly_free(number));
        }
        self.make_room(number);
        let place = self.place(number)?;
        let inode = Arc::new(Inode::new(&self.store, number, slot, file_type, place));
        self.hold(&inode);
        inode.edit(handle, Reach::Data, |_| ());
        // Before it leaves the table, where the committer looks for what it owes.
        if let Some(earlier) = earlier {
            earlier.retire(handle);
        }
        if self.table.insert(number, Arc::clone(&inode)).is_none() {
            self.resident.add(1);
        }
        Ok(inode)
    }

    fn wrongly_free(&self, number: InodeNumber) -> Error {
        if let Some((group, index)) = self.store.geometry.inode_group(number) {
            self.groups.mark_inodes_corrupt(group, index);
        }
        let corrupt = Corrupt::new("inode bitmap", "an inode in use is marked free");
        corrupt.in_inode(number).into()
    }

    /// Evicts unused inodes from the shard into which inode `number` goes, if both that shard and
    /// all shards together exceed their share of memory. Both are checked because on many cores
    /// there are many shards, and some have twice their share long before the total is reached.
    fn make_room(&self, number: InodeNumber) {
        let shard = self.table.shard_of(&number);
        let evict_at = self.evict_at.get(shard);
        let length = self.table.shard_len(shard);
        if length < evict_at.load(Ordering::Relaxed) {
            return;
        }
        if self.resident.get() < self.max_resident {
            evict_at.store(length + LOOK_AGAIN, Ordering::Relaxed);
            return;
        }
        let mut gone = 0;
        self.table.retain_shard(shard, |_, inode| {
            let may_leave = self.may_leave(inode);
            gone += i64::from(may_leave);
            !may_leave
        });
        self.resident.add(-gone);
        let left = self.table.shard_len(shard);
        if left >= MAX_SHARES * self.shard_share {
            // Most of them wait until their transaction is durable, so ask for a commit. A
            // read-only mount has no journal.
            if let Some(journal) = self.store.try_journal() {
                journal.request_commit();
            }
        }
        // So a scan costs a few steps per new inode, however many are in use.
        let next = self.shard_share.max(left + left / 4 + 1);
        evict_at.store(next, Ordering::Relaxed);
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
        let Some(mut map) = inode.map.try_write() else {
            return false;
        };
        if let Some(preallocation) = map.preallocation.take() {
            self.groups.release(&preallocation);
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
        self.table.get(&number)
    }

    /// Visits every inode in memory.
    pub fn for_each(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in 0..self.table.shard_count() {
            let mut inodes = Vec::new();
            self.table
                .for_each_in_shard(shard, |_, inode| inodes.push(Arc::clone(inode)));
            inodes.iter().for_each(&mut visit);
        }
    }

    /// Removes one more place among the orphans of an inode that was finished at another.
    ///
    /// # Errors
    ///
    /// Those of the chain and of the journal.
    pub(crate) fn remove_orphan_place(
        &self,
        number: InodeNumber,
        place: OrphanPlace,
    ) -> Result<()> {
        let mut handle = self.store.start(ORPHAN_CREDITS)?;
        self.orphans.remove(&mut handle, number, place, self)
    }

    /// Makes an inode an orphan, if it is not one yet (at most [`ORPHAN_CREDITS`]).
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let (is_orphan, idle) = inode.state(|state| (state.orphan.is_some(), state.idle_slot));
        if is_orphan {
            return Ok(());
        }
        let idle = idle.filter(|(tid, _)| *tid == handle.tid());
        let place = match idle {
            Some((_, place)) => {
                self.orphans.set_busy(handle, place);
                place
            }
            None => self.orphans.add(handle, inode.number(), self)?,
        };
        inode.note(|state| {
            state.orphan = Some(place);
            state.idle_slot = None;
        });
        Ok(())
    }

    /// Removes an inode from the orphans, if it is one (at most [`ORPHAN_CREDITS`]). An inode that
    /// still has links may keep its slot while the transaction runs.
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let (place, lives) = inode.note(|state| (state.orphan.take(), state.slot.links > 0));
        let Some(place) = place else {
            return Ok(());
        };
        if lives && self.orphans.set_idle(handle, place) {
            let tid = handle.tid();
            inode.note(|state| state.idle_slot = Some((tid, place)));
            return Ok(());
        }
        if let Err(error) = self.orphans.remove(handle, inode.number(), place, self) {
            inode.note(|state| state.orphan = Some(place));
            return Err(error);
        }
        if place == OrphanPlace::Chained {
            inode.edit(handle, Reach::Attributes, |state| {
                state.slot.deletion_time = 0
            });
        }
        Ok(())
    }
}

impl Chain for Inodes {
    fn set_next(&self, handle: &mut Handle<'_>, inode: InodeNumber, next: u32) -> Result<()> {
        let inode = self.get_orphan(inode)?;
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.deletion_time = next
        });
        Ok(())
    }
}
