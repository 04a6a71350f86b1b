//! Orphans: inodes that recovery must finish, because they lost their last name while in use or
//! are being cut in several transactions.
//!
//! An image with an orphan file has a slot for each; when every slot is taken, or without such a
//! file, orphans are chained: the superblock names the first, each inode's deletion time the next.
//! This module remembers numbers only; mount cleans up through the operations of the inode layer,
//! and whoever owns the inodes lends a [`Chain`] to rewrite the links.
//!
//! Invariants: a slot's number is written in the transaction that makes the inode an orphan and
//! cleared in the one that finishes it. The chain in memory (`list`, newest first) is the chain on
//! disk. `ORPHAN_PRESENT` is set before the first slot is used and cleared when the volume closes
//! with every slot empty (rule D16).
//!
//! Locks: `list` [OrphanList] is held while the neighbour's inode and the superblock are changed;
//! each block's slots have their own [OrphanSlot].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pext4_block::{Page, Stamp};
use pext4_jbd2::{Capture, Handle, Owed, Owing};
use pext4_ondisk::orphan_file::{self, OrphanBlock};
use pext4_ondisk::{BlockNumber, InodeNumber, Tid};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, topology};

use crate::error::Result;
use crate::store::Store;

/// Shards start this many blocks apart, so that neighbours do not meet.
const SHARD_STRIDE: usize = 13;

/// Where an orphan is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanPlace {
    /// A slot of the orphan file.
    Slot {
        /// Block of the file.
        block: u32,
        /// Slot in the block.
        slot: u32,
    },
    /// The chain that begins in the superblock.
    Chained,
}

/// Rewrites the chain's links, which lie in inodes.
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
    blocks: Vec<Arc<SlotBlock>>,
    list: Mutex<Vec<InodeNumber>>,
}

struct SlotBlock {
    home: BlockNumber,
    file: OrphanFile,
    /// Seed of the checksums, where metadata carries them.
    seed: Option<u32>,
    block_size: usize,
    /// Hint: free slots. [exact under `slots`]
    free: AtomicU32,
    slots: Mutex<Slots>,
}

struct Slots {
    numbers: Vec<u32>,
    /// Every slot before this one is taken.
    first_free: usize,
    owed: Owed,
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
        let mut blocks = Vec::new();
        if let Some((file, homes)) = file {
            for home in homes {
                blocks.push(Arc::new(SlotBlock::load(&store, file, home)?));
            }
        }
        Ok(Self {
            store,
            blocks,
            list: Mutex::new(Class::OrphanList, chain),
        })
    }

    /// Every inode remembered now: those in slots, then the chain from its head.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(InodeNumber, OrphanPlace)> {
        let mut found = Vec::new();
        for (block, slot_block) in (0u32..).zip(&self.blocks) {
            let slots = slot_block.slots.lock();
            for (slot, &number) in (0u32..).zip(&slots.numbers) {
                if number != 0 {
                    found.push((InodeNumber(number), OrphanPlace::Slot { block, slot }));
                }
            }
        }
        let list = self.list.lock();
        found.extend(list.iter().map(|&inode| (inode, OrphanPlace::Chained)));
        found
    }

    /// Whether any inode is remembered.
    #[must_use]
    pub fn any(&self) -> bool {
        let is_used =
            |block: &Arc<SlotBlock>| block.slots.lock().numbers.iter().any(|&number| number != 0);
        !self.list.lock().is_empty() || self.blocks.iter().any(is_used)
    }

    /// Remembers `inode` (at most two credits, three on the chain).
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
            return Ok(place);
        }
        let mut list = self.list.lock();
        let next = list.first().map_or(0, |first| first.get());
        chain.set_next(handle, inode, next)?;
        self.store
            .edit_superblock(handle, |superblock| superblock.last_orphan = inode);
        list.insert(0, inode);
        Ok(OrphanPlace::Chained)
    }

    /// Forgets `inode`, which was remembered at `place`. Its own link, if chained, is the
    /// caller's to overwrite: it becomes a deletion time or zero.
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
        let Some(position) = list.iter().position(|&other| other == inode) else {
            return Ok(());
        };
        let next = list.get(position + 1).map_or(0, |next| next.get());
        match position.checked_sub(1) {
            Some(before) => chain.set_next(handle, list[before], next)?,
            None => self.store.edit_superblock(handle, |superblock| {
                superblock.last_orphan = InodeNumber(next)
            }),
        }
        list.remove(position);
        Ok(())
    }

    fn take_slot(&self, handle: &mut Handle<'_>, inode: InodeNumber) -> Option<OrphanPlace> {
        let count = self.blocks.len();
        let start = topology::current() * SHARD_STRIDE;
        (0..count)
            .map(|step| (start + step) % count)
            .find_map(|index| {
                let slot = self.blocks[index].take(handle, inode)?;
                Some(OrphanPlace::Slot {
                    block: u32::try_from(index).ok()?,
                    slot,
                })
            })
    }

    fn clear_slot(&self, handle: &mut Handle<'_>, block: u32, slot: u32) {
        if let Some(slot_block) = self.blocks.get(block as usize) {
            slot_block.clear(handle, slot);
        }
    }
}

impl SlotBlock {
    fn load(store: &Store, file: OrphanFile, home: BlockNumber) -> Result<Self> {
        let buffer = store.read_block(home)?;
        let seed = store.metadata_csum.then_some(store.checksum_seed);
        let decoded =
            OrphanBlock::decode(&buffer.read().page, file.inode, file.generation, home, seed)
                .map_err(|corrupt| corrupt.in_block(home).in_inode(file.inode))?;
        let free = decoded.slots.iter().filter(|&&number| number == 0).count();
        Ok(Self {
            home,
            file,
            seed,
            block_size: store.block_size() as usize,
            free: AtomicU32::new(u32::try_from(free).unwrap_or(u32::MAX)),
            slots: Mutex::new(
                Class::OrphanSlot,
                Slots {
                    numbers: decoded.slots,
                    first_free: 0,
                    owed: Owed::default(),
                },
            ),
        })
    }

    fn take(self: &Arc<Self>, handle: &mut Handle<'_>, inode: InodeNumber) -> Option<u32> {
        if self.free.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut guard = self.slots.lock();
        let slots = &mut *guard;
        let first = slots.first_free;
        let found = slots.numbers[first..]
            .iter()
            .position(|&number| number == 0)?
            + first;
        self.touch(handle, slots);
        slots.numbers[found] = inode.get();
        slots.first_free = found + 1;
        self.free.fetch_sub(1, Ordering::Relaxed);
        u32::try_from(found).ok()
    }

    fn clear(self: &Arc<Self>, handle: &mut Handle<'_>, slot: u32) {
        let mut guard = self.slots.lock();
        let slots = &mut *guard;
        self.touch(handle, slots);
        let slot = slot as usize;
        if std::mem::take(&mut slots.numbers[slot]) != 0 {
            self.free.fetch_add(1, Ordering::Relaxed);
        }
        slots.first_free = slots.first_free.min(slot);
    }

    fn touch(self: &Arc<Self>, handle: &mut Handle<'_>, slots: &mut Slots) {
        let numbers = &slots.numbers;
        handle.touch(
            &mut slots.owed,
            1,
            || Arc::clone(self) as Arc<dyn Owing>,
            |captures| captures.push(self.capture_of(numbers)),
        );
    }

    fn capture_of(&self, numbers: &[u32]) -> Capture {
        let mut bytes = vec![0; self.block_size];
        orphan_file::encode(
            &mut bytes,
            numbers,
            self.file.inode,
            self.file.generation,
            self.home,
            self.seed,
        );
        Capture::Block {
            block: self.home,
            page: Page::from(bytes),
            stamp: Stamp::NONE,
        }
    }
}

impl Owing for SlotBlock {
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut slots = self.slots.lock();
        if slots.owed.settle(tid) {
            captures.push(self.capture_of(&slots.numbers));
        }
    }
}
