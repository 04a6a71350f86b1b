//! Orphans: inodes that recovery must finish, because they lost their last name while in use or are
//! being truncated in several transactions.
//!
//! An image with an orphan file has a slot for each orphan. If every slot is taken, or without such
//! a file, orphans are chained: the superblock contains the number of the first, and each inode's
//! deletion time that of the next. How slots are taken is a setting ([`OrphanSlots`]):
//!
//! - *list*: not at all; every orphan is chained, under one lock.
//! - *locked*: under one lock for the whole file, from the front.
//! - *lockless*: a slot is reserved by decrementing its block's count of free slots, if it is not
//!   0, and then found by compare-and-swap; shards start at different blocks.
//! - *remembered*: as *lockless*, and an inode that was truncated keeps its slot, marked *idle*,
//!   while the transaction runs, so that the next truncate in that transaction has one already. An
//!   idle slot is written as empty when its block is captured, and free from then on, so no
//!   transaction leaves one behind (rule 10).
//!
//! In all settings but the last an inode is an orphan during every truncate and every removal of
//! its last name, as in Linux; in the last only if one transaction may not be enough.
//!
//! This module only records numbers. Mount cleans up with the operations of the inode layer; the
//! owner of the inodes lends a [`Chain`] to rewrite the links.
//!
//! Invariants: a slot's number is written in the transaction that makes the inode an orphan and
//! cleared in the one that finishes it. The chain in memory (`list`) equals the chain on disk.
//! `ORPHAN_PRESENT` is set before the first slot is used and cleared when the volume closes with
//! every slot empty (rule D16).
//!
//! Locks: `list` (`OrphanList`) is held while the neighbour's inode and the superblock are changed.
//! `whole_file` (`OrphanSlot`) is taken only by *locked*, before a block's `owed` (`OrphanSlot`),
//! which is held to open the block in a transaction (see [`Opened`]) and to capture it. Slots
//! themselves are atomic.

use std::collections::HashMap;
use std::sync::Arc;

use pext4_block::{Page, Stamp};
use pext4_jbd2::{Capture, Handle, Opened, Owed, Owing};
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::orphan_file::{self, OrphanBlock};
use pext4_ondisk::{BlockNumber, InodeNumber, Tid};
use pext4_sync::order::Class;
use pext4_sync::{Bits, Mutex, Slots, topology};

use crate::error::Result;
use crate::options::OrphanSlots;
use crate::statistics::Event;
use crate::store::Store;

/// Blocks of the orphan file whose slots are used: as many as mke2fs makes unless asked for more.
/// Of others only those that hold an orphan at mount are kept in memory.
const USED_BLOCKS: usize = 512;
/// Shards start this many blocks apart, so that neighbours do not meet.
const SHARD_STRIDE: usize = 13;
/// Shards that use the same block start this many slots apart: one cache line.
const SLOT_STRIDE: usize = 16;
/// Lock keys: the whole file before a block.
const WHOLE_FILE: u64 = 0;
const ONE_BLOCK: u64 = 1;

/// Where an orphan is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanPlace {
    /// A slot of the orphan file.
    Slot {
        /// Block of the file, counted among those that are kept in memory.
        block: u32,
        /// Slot in the block.
        slot: u32,
    },
    /// The chain that begins in the superblock.
    Chained,
}

/// Rewrites the chain's links, which are stored in inodes.
pub trait Chain {
    /// Makes `next` (0: none) follow `inode`.
    ///
    /// # Errors
    ///
    /// Those of loading the inode.
    fn set_next(&self, handle: &mut Handle<'_>, inode: InodeNumber, next: u32) -> Result<()>;
}

/// The identity of the orphan file, which its blocks' checksums include.
#[derive(Clone, Copy, Debug)]
pub struct OrphanFile {
    /// Its inode.
    pub inode: InodeNumber,
    /// The inode's generation.
    pub generation: u32,
}

/// All orphans of a volume.
pub struct Orphans {
    store: Arc<Store>,
    design: OrphanSlots,
    blocks: Vec<Arc<SlotBlock>>,
    whole_file: Mutex<()>,
    list: Mutex<ChainList>,
}

/// The inodes on the chain, each with its neighbours, so that one leaves it without a search.
#[derive(Default)]
pub(crate) struct ChainList {
    newest: Option<InodeNumber>,
    neighbours: HashMap<InodeNumber, Neighbours>,
}

/// The inodes before and behind an inode of the chain.
#[derive(Clone, Copy, Default)]
struct Neighbours {
    older: Option<InodeNumber>,
    newer: Option<InodeNumber>,
}

impl ChainList {
    fn push(&mut self, inode: InodeNumber) {
        let older = self.newest.replace(inode);
        if let Some(older) = older {
            self.neighbours.entry(older).or_default().newer = Some(inode);
        }
        let own = Neighbours { older, newer: None };
        self.neighbours.insert(inode, own);
    }

    fn remove(&mut self, inode: InodeNumber) {
        let Some(Neighbours { older, newer }) = self.neighbours.remove(&inode) else {
            return;
        };
        match newer {
            Some(newer) => self.neighbours.entry(newer).or_default().older = older,
            None => self.newest = older,
        }
        if let Some(older) = older {
            self.neighbours.entry(older).or_default().newer = newer;
        }
    }

    fn newest_first(&self) -> impl Iterator<Item = InodeNumber> {
        let older = |inode: &InodeNumber| self.neighbours.get(inode)?.older;
        std::iter::successors(self.newest, older)
    }
}

struct SlotBlock {
    home: BlockNumber,
    /// Seed of the checksums, where metadata carries them.
    seed: Option<InodeSeed>,
    block_size: usize,
    /// The numbers. [atomic; changed within a handle for which the block is opened]
    slots: Slots,
    /// Slots that an inode keeps although it is no longer an orphan. [as `slots`]
    idle: Bits,
    /// The transaction whose handles may change slots without the lock.
    opened: Opened,
    owed: Mutex<Owed>,
}

impl Orphans {
    /// The orphans of a volume: `file` with the device blocks of the orphan file, if there is one,
    /// and the chain found on disk, newest first.
    ///
    /// # Errors
    ///
    /// `Io` or `Corrupt` from the file's blocks.
    pub fn open(
        store: Arc<Store>,
        file: Option<(OrphanFile, Vec<BlockNumber>)>,
        chain: Vec<InodeNumber>,
    ) -> Result<Self> {
        let mut list = ChainList::default();
        chain.into_iter().rev().for_each(|inode| list.push(inode));
        let mut blocks = Vec::new();
        if let Some((file, homes)) = file {
            for home in homes {
                let block = SlotBlock::load(&store, file, home)?;
                if blocks.len() < USED_BLOCKS || block.slots.iter().any(|number| number != 0) {
                    blocks.push(Arc::new(block));
                }
            }
        }
        Ok(Self {
            design: store.options.scaling.orphan,
            store,
            blocks,
            whole_file: Mutex::new(Class::OrphanSlot, ()),
            list: Mutex::new(Class::OrphanList, list),
        })
    }

    /// All orphans: those in slots, then the chain from its head.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(InodeNumber, OrphanPlace)> {
        let mut found = Vec::new();
        for (block, slot_block) in (0u32..).zip(&self.blocks) {
            for (slot, number) in (0u32..).zip(slot_block.orphans()) {
                if number != 0 {
                    found.push((InodeNumber(number), OrphanPlace::Slot { block, slot }));
                }
            }
        }
        let list = self.list.lock();
        let newest_first = list.newest_first();
        found.extend(newest_first.map(|inode| (inode, OrphanPlace::Chained)));
        found
    }

    /// Whether an inode is to be an orphan during every truncation and every removal of its last
    /// name, or only where one transaction may not be enough.
    #[must_use]
    pub fn is_eager(&self) -> bool {
        self.design != OrphanSlots::Remembered
    }

    /// Records `inode` as an orphan (at most two credits, three on the chain).
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn add(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        chain: &dyn Chain,
    ) -> Result<OrphanPlace> {
        if let Some(place) = self.take_slot(handle, inode) {
            self.store.tally.count(Event::OrphanSlots);
            return Ok(place);
        }
        self.store.tally.count(Event::OrphansChained);
        let mut list = self.list.lock();
        let next = list.newest.map_or(0, InodeNumber::get);
        chain.set_next(handle, inode, next)?;
        self.store
            .edit_superblock(handle, |superblock| superblock.last_orphan = inode);
        list.push(inode);
        Ok(OrphanPlace::Chained)
    }

    /// Locks the list of inodes on the chain.
    #[cfg(test)]
    pub(crate) fn lock_list(&self) -> pext4_sync::MutexGuard<'_, ChainList> {
        self.list.lock()
    }

    /// Removes `inode`, which is recorded at `place`. If it was chained, the caller overwrites its
    /// link with a deletion time or zero.
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn remove(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        place: OrphanPlace,
        chain: &dyn Chain,
    ) -> Result<()> {
        match place {
            OrphanPlace::Slot { block, slot } => {
                self.clear_slot(handle, block, slot);
                Ok(())
            }
            OrphanPlace::Chained => self.unchain(handle, inode, chain),
        }
    }

    fn unchain(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        chain: &dyn Chain,
    ) -> Result<()> {
        let mut list = self.list.lock();
        let Some(&Neighbours { older, newer }) = list.neighbours.get(&inode) else {
            return Ok(());
        };
        let next = older.map_or(0, InodeNumber::get);
        match newer {
            Some(newer) => chain.set_next(handle, newer, next)?,
            None => self.store.edit_superblock(handle, |superblock| {
                superblock.last_orphan = InodeNumber(next)
            }),
        }
        list.remove(inode);
        Ok(())
    }

    fn take_slot(&self, handle: &mut Handle<'_>, inode: InodeNumber) -> Option<OrphanPlace> {
        let count = self.blocks.len();
        match self.design {
            OrphanSlots::List => None,
            OrphanSlots::Locked => {
                let _whole = self.whole_file.lock_keyed(WHOLE_FILE);
                self.take_in(handle, inode, 0..count, 0)
            }
            OrphanSlots::Lockless => self.take_in(handle, inode, self.blocks_from_own(count), 0),
            OrphanSlots::Remembered => {
                let from = topology::current() * SLOT_STRIDE;
                self.take_in(handle, inode, self.blocks_from_own(count), from)
            }
        }
    }

    /// The indexes of all blocks, starting with this shard's own.
    fn blocks_from_own(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let start = topology::current() * SHARD_STRIDE;
        (0..count).map(move |step| (start + step) % count)
    }

    fn take_in(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        mut blocks: impl Iterator<Item = usize>,
        from: usize,
    ) -> Option<OrphanPlace> {
        blocks.find_map(|index| {
            let (slot, races) = self.blocks[index].take(handle, inode, from)?;
            self.store
                .tally
                .add([(Event::OrphanRaces, u64::from(races))]);
            Some(OrphanPlace::Slot {
                block: u32::try_from(index).ok()?,
                slot,
            })
        })
    }

    fn clear_slot(&self, handle: &mut Handle<'_>, block: u32, slot: u32) {
        let Some(slot_block) = self.blocks.get(block as usize) else {
            return;
        };
        let _whole =
            (self.design == OrphanSlots::Locked).then(|| self.whole_file.lock_keyed(WHOLE_FILE));
        slot_block.open(handle);
        slot_block.slots.clear(slot);
    }

    /// Removes the inode at `place` from the orphans but lets it keep its slot while the
    /// transaction of `handle` runs. Returns false, and changes nothing, if the setting or the
    /// place does not allow it.
    pub fn set_idle(&self, handle: &mut Handle<'_>, place: OrphanPlace) -> bool {
        let OrphanPlace::Slot { block, slot } = place else {
            return false;
        };
        let slot_block = self.blocks.get(block as usize);
        let Some(slot_block) = slot_block.filter(|_| self.design == OrphanSlots::Remembered) else {
            return false;
        };
        slot_block.open(handle);
        slot_block.idle.set(slot);
        true
    }

    /// Records an inode again in the slot that it kept by [`Orphans::set_idle`] in the same
    /// transaction.
    pub fn set_busy(&self, handle: &mut Handle<'_>, place: OrphanPlace) {
        if let OrphanPlace::Slot { block, slot } = place
            && let Some(slot_block) = self.blocks.get(block as usize)
        {
            slot_block.open(handle);
            slot_block.idle.clear(slot);
            self.store.tally.count(Event::OrphansRemembered);
        }
    }
}

impl SlotBlock {
    fn load(store: &Store, file: OrphanFile, home: BlockNumber) -> Result<Self> {
        let buffer = store.read_block(home)?;
        let seed = store.geometry.inode_seed(file.inode, file.generation);
        let decoded = OrphanBlock::decode(buffer.read().page(), file.inode, home, seed)
            .map_err(|corrupt| corrupt.in_block(home).in_inode(file.inode))?;
        let count = u32::try_from(decoded.slots.len()).unwrap_or(u32::MAX);
        let none = vec![0; decoded.slots.len().div_ceil(8)];
        Ok(Self {
            home,
            seed,
            block_size: store.block_size() as usize,
            slots: Slots::new(&decoded.slots),
            idle: Bits::from_bytes(&none, count),
            opened: Opened::new(),
            owed: Mutex::new(Class::OrphanSlot, Owed::default()),
        })
    }

    /// Takes a slot for `inode`, searching from `from` on. Returns the slot and the number of races
    /// lost.
    fn take(
        self: &Arc<Self>,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        from: usize,
    ) -> Option<(u32, u32)> {
        if !self.slots.reserve() {
            return None;
        }
        self.open(handle);
        let from = u32::try_from(from % self.slots.count()).unwrap_or(0);
        let put = self.slots.put(inode.get(), from);
        if put.is_none() {
            self.slots.unreserve();
        }
        put
    }

    /// Prepares the block for changes of slots under `handle`.
    fn open(self: &Arc<Self>, handle: &mut Handle<'_>) {
        if handle.may_change(&self.opened) {
            return;
        }
        let mut owed = self.owed.lock_keyed(ONE_BLOCK);
        handle.touch(
            &mut owed,
            1,
            || Arc::clone(self) as Arc<dyn Owing>,
            |captures| captures.push(self.version()),
        );
        self.opened.open(handle.tid());
    }

    /// The number of each slot as it is written to disk.
    fn orphans(&self) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(self.slots.iter())
            .map(|(slot, number)| if self.idle.is_set(slot) { 0 } else { number })
    }

    /// The version for the transaction to which the block is owed, whose handles have all stopped.
    /// Frees idle slots.
    fn version(&self) -> Capture {
        let numbers: Vec<u32> = self.orphans().collect();
        let slots = self.slots.iter().enumerate();
        for (slot, _) in slots.filter(|&(slot, number)| number != 0 && numbers[slot] == 0) {
            let slot = u32::try_from(slot).expect("a block has few slots");
            self.idle.clear(slot);
            self.slots.clear(slot);
        }
        let mut bytes = vec![0; self.block_size];
        orphan_file::encode(&mut bytes, &numbers, self.home, self.seed);
        Capture::Block {
            block: self.home,
            page: Page::from(bytes),
            stamp: Stamp::NONE,
        }
    }
}

impl Owing for SlotBlock {
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut owed = self.owed.lock_keyed(ONE_BLOCK);
        if owed.clear(tid) {
            captures.push(self.version());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ChainList, InodeNumber};

    #[test]
    fn a_chain_stays_in_order_whoever_leaves_it() {
        let mut random = fastrand::Rng::with_seed(17);
        let mut list = ChainList::default();
        let mut model: Vec<InodeNumber> = Vec::new();
        for number in 11..2000 {
            list.push(InodeNumber(number));
            model.push(InodeNumber(number));
            if random.bool() {
                let gone = model.remove(random.usize(..model.len()));
                list.remove(gone);
                list.remove(gone);
            }
            let in_order: Vec<_> = list.newest_first().collect();
            assert!(in_order.iter().eq(model.iter().rev()));
            assert_eq!(list.neighbours.len(), model.len());
        }
        for gone in model {
            list.remove(gone);
        }
        assert_eq!((list.newest, list.neighbours.len()), (None, 0));
    }
}
