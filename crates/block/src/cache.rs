//! The buffer cache: a map from block number to [`Buffer`].
//!
//! One block has at most one buffer at a time, which is loaded by one read: the first getter
//! inserts a placeholder into the shard and holds its state for writing while it reads the device,
//! with no shard locked; others find the placeholder and wait for its state. If the read fails, the
//! placeholder is removed, its reader gets the error, and each waiter tries the read itself.
//!
//! Capacity is divided among the shards. An insert into a full shard moves the shard's clock hand a
//! bounded number of steps to find buffers without other references, that are clean and unpinned,
//! and that were not used since the hand last passed. If it finds none, the cache grows beyond its
//! capacity rather than fail, and shrinks again with later inserts.
//!
//! Locking: a shard (class `BufferShard`) comes before a buffer (class `Buffer`), and no call here
//! may be made with a buffer locked. Eviction is safe because references are given out only under
//! the shard's lock: a buffer that only the shard references cannot be got, locked or made dirty by
//! another thread. Buffers that a core remembers ([`Cache::get_frequent`]) are referenced and so
//! stay. A buffer that is removed although it has references is marked as removed.

use std::fmt;
use std::io;
use std::sync::Arc;

use pext4_ondisk::BlockNumber;
use pext4_sync::hash::NumberMap;
use pext4_sync::{BiasedLock, Class, Counter, ShardCache, ShardRef, Sharded, topology};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::page::Page;

/// Minimal capacity of a shard in blocks, so that small caches have few shards.
const MIN_SHARD: usize = 64;

/// Maximal number of buffers that one insert evicts: more than one, so that a grown cache shrinks
/// again.
const MAX_EVICTIONS: usize = 4;

/// Maximal number of buffers that each core remembers; fewer if the cache is small.
const MAX_REMEMBERED: usize = 32;

/// Maximal number of steps of the clock hand in one insert.
const MAX_STEPS: usize = 64;

/// Blocks of one device in memory.
pub struct Cache {
    /// [immutable]
    device: Arc<dyn Device>,
    /// [immutable] Bytes in a block.
    block_size: usize,
    /// [immutable] Buffers in a shard before it evicts.
    shard_capacity: usize,
    shards: Sharded<BiasedLock<Shard>>,
    /// The buffers that each core uses often: roots and upper nodes of trees.
    shard_cache: ShardCache<Buffer>,
    /// Blocks read from the device.
    reads: Counter,
}

impl fmt::Debug for Cache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cache")
            .field("block_size", &self.block_size)
            .finish_non_exhaustive()
    }
}

/// Some of the blocks, in a ring for the clock hand.
#[derive(Default)]
struct Shard {
    /// From block to its place in the ring.
    places: NumberMap<BlockNumber, usize>,
    ring: Vec<Arc<Buffer>>,
    hand: usize,
}

/// The result of an attempt to find or make a buffer.
enum Found {
    Present(Arc<Buffer>),
    /// It was absent and has been loaded by this caller.
    Loaded(Arc<Buffer>),
}

impl Cache {
    /// An empty cache of blocks of `block_size` bytes, with a capacity of about `capacity` bytes.
    ///
    /// # Panics
    ///
    /// If the block size is zero.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, block_size: u32, capacity: u64) -> Self {
        assert_ne!(block_size, 0, "a block has bytes");
        let blocks = usize::try_from(capacity / u64::from(block_size)).unwrap_or(usize::MAX);
        let widest = (4 * topology::spare_count()).min(blocks / MIN_SHARD).max(1);
        // The largest power of two that leaves every shard its least size.
        let count = 1 << widest.ilog2();
        Self {
            device,
            block_size: block_size as usize,
            shard_capacity: (blocks / count).max(1),
            shards: Sharded::with_count(count, |_| {
                BiasedLock::new(Class::BufferShard, Shard::default())
            }),
            shard_cache: ShardCache::new(
                (blocks / topology::shard_count() / 8).min(MAX_REMEMBERED),
            ),
            reads: Counter::new(),
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The buffer of `block`, read from the device if it is not in memory.
    ///
    /// # Errors
    ///
    /// The block lies beyond the device, or reading it failed.
    pub fn get(&self, block: BlockNumber) -> io::Result<Arc<Buffer>> {
        loop {
            let buffer = match self.peek_any(block) {
                Some(buffer) => buffer,
                None => match self.load(block)? {
                    Found::Loaded(buffer) => return Ok(buffer),
                    Found::Present(buffer) => buffer,
                },
            };
            if self.wait_until_loaded(&buffer) {
                return Ok(buffer);
            }
        }
    }

    /// As [`Cache::get`]. If this core gets the block often, the call writes to no cache line that
    /// other cores read.
    ///
    /// # Errors
    ///
    /// As [`Cache::get`].
    pub fn get_frequent(&self, block: BlockNumber) -> io::Result<ShardRef<Buffer>> {
        self.shard_cache
            .get(block.get(), Buffer::is_current, || self.get(block))
    }

    /// The buffer of `block` with a page of zeroes, without a read: for a newly allocated block. If
    /// it is in memory, its page is replaced; a transaction that still needs the old bytes has
    /// captured them before.
    pub fn get_zeroed(&self, block: BlockNumber) -> Arc<Buffer> {
        let zeroes = Page::zeroed(self.block_size);
        loop {
            let buffer = {
                let mut shard = self.shard(block).write();
                match shard.find(block) {
                    Some(buffer) => buffer,
                    None => {
                        let buffer = Arc::new(Buffer::loaded(block, zeroes));
                        buffer.set_verified();
                        shard.insert(Arc::clone(&buffer), self.shard_capacity);
                        return buffer;
                    }
                }
            };
            if self.wait_until_loaded(&buffer) {
                buffer.replace_page(zeroes);
                buffer.set_verified();
                return buffer;
            }
        }
    }

    /// The buffer of `block` if it is in memory; waits if it is just being read.
    pub fn peek(&self, block: BlockNumber) -> Option<Arc<Buffer>> {
        let buffer = self.peek_any(block)?;
        self.wait_until_loaded(&buffer).then_some(buffer)
    }

    /// Removes the buffer of `block`, unless it is dirty: only for blocks whose use has ended.
    /// Existing references stay valid, but the next get makes another buffer. A dirty one belongs
    /// to a use that has begun since. Who begins one makes the buffer dirty under its lock, if it
    /// finds there that it is not [discarded](Buffer::is_discarded).
    pub fn discard(&self, block: BlockNumber) {
        self.shard(block).write().discard(block);
    }

    /// Evicts every buffer that may be evicted; returns their number.
    pub fn evict_idle(&self) -> usize {
        self.shard_cache.clear();
        self.shards
            .iter()
            .map(|shard| shard.write().evict_idle())
            .sum()
    }

    /// Capacity in bytes, beyond which an insert evicts.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (self.shard_capacity * self.shards.count() * self.block_size) as u64
    }

    /// Bytes of blocks in the cache now.
    #[must_use]
    pub fn used(&self) -> u64 {
        let blocks: usize = self
            .shards
            .iter()
            .map(|shard| shard.read().ring.len())
            .sum();
        (blocks * self.block_size) as u64
    }

    /// Bytes of blocks that are pinned now. The call visits all buffers.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        let pinned = |shard: &BiasedLock<Shard>| {
            shard
                .read()
                .ring
                .iter()
                .filter(|buffer| buffer.is_pinned())
                .count()
        };
        let blocks: usize = self.shards.iter().map(pinned).sum();
        (blocks * self.block_size) as u64
    }

    /// Number of blocks read from the device so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.sum().cast_unsigned()
    }

    /// The shard of a block. Neighbouring blocks are in different shards.
    fn shard(&self, block: BlockNumber) -> &BiasedLock<Shard> {
        let number = block.get() ^ (block.get() >> 15);
        self.shards.get(number as usize & (self.shards.count() - 1))
    }

    /// The buffer or placeholder of `block`, if there is one.
    fn peek_any(&self, block: BlockNumber) -> Option<Arc<Buffer>> {
        self.shard(block).read().find(block)
    }

    fn offset(&self, block: BlockNumber) -> Option<u64> {
        block.get().checked_mul(self.block_size as u64)
    }

    /// Waits for the reader of a placeholder. If its read failed, makes sure that the placeholder
    /// is removed, and returns false: the caller must look the block up again.
    fn wait_until_loaded(&self, buffer: &Arc<Buffer>) -> bool {
        if buffer.is_loaded() {
            return true;
        }
        drop(buffer.read());
        if buffer.is_loaded() {
            return true;
        }
        self.remove_if_present(buffer);
        false
    }

    /// Removes this buffer, but no other one of its block, from its shard.
    fn remove_if_present(&self, buffer: &Arc<Buffer>) {
        let mut shard = self.shard(buffer.block()).write();
        if shard
            .find(buffer.block())
            .is_some_and(|present| Arc::ptr_eq(&present, buffer))
        {
            shard.remove(buffer.block());
        }
    }

    /// Reads `block` into a new buffer, unless another thread has inserted one meanwhile.
    fn load(&self, block: BlockNumber) -> io::Result<Found> {
        let offset = self.offset(block).ok_or_else(|| beyond(block))?;
        let buffer = Arc::new(Buffer::placeholder(block, Page::default()));
        let mut state = {
            let mut shard = self.shard(block).write();
            if let Some(present) = shard.find(block) {
                return Ok(Found::Present(present));
            }
            shard.insert(Arc::clone(&buffer), self.shard_capacity);
            // No other thread knows the buffer before the shard is unlocked, so this does not wait.
            buffer.write()
        };
        self.reads.add(1);
        let mut page = Page::zeroed(self.block_size);
        let read = self.device.read_at(offset, page.make_mut());
        *state.page_mut() = page;
        if read.is_ok() {
            buffer.set_loaded();
        }
        drop(state);
        if let Err(error) = read {
            self.remove_if_present(&buffer);
            return Err(error);
        }
        Ok(Found::Loaded(buffer))
    }
}

fn beyond(block: BlockNumber) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{block:?} lies beyond any device"),
    )
}

impl Shard {
    fn find(&self, block: BlockNumber) -> Option<Arc<Buffer>> {
        let buffer = &self.ring[*self.places.get(&block)?];
        buffer.note_use();
        Some(Arc::clone(buffer))
    }

    /// Inserts a new buffer; if the shard is full, in the place of an evicted one if possible.
    fn insert(&mut self, buffer: Arc<Buffer>, capacity: usize) {
        let mut steps = MAX_STEPS;
        let full = self.ring.len() >= capacity;
        let victim = if full {
            self.find_victim(&mut steps)
        } else {
            None
        };
        let block = buffer.block();
        let place = match victim {
            Some(place) => {
                let removed = std::mem::replace(&mut self.ring[place], buffer);
                self.places.remove(&removed.block());
                place
            }
            None => {
                self.ring.push(buffer);
                self.ring.len() - 1
            }
        };
        let before = self.places.insert(block, place);
        debug_assert!(before.is_none(), "{block:?} has one buffer at a time");
        self.shrink(capacity, &mut steps);
    }

    /// Evicts a few more if the shard has grown beyond its capacity. The buffer that was just
    /// inserted is not evicted, since its getter references it.
    fn shrink(&mut self, capacity: usize, steps: &mut usize) {
        for _ in 1..MAX_EVICTIONS {
            if self.ring.len() <= capacity {
                return;
            }
            match self.find_victim(steps) {
                Some(place) => self.remove_at(place),
                None => return,
            }
        }
    }

    /// Moves the hand, in at most `steps` steps, to the place after a buffer that may be evicted,
    /// and returns the buffer's place.
    fn find_victim(&mut self, steps: &mut usize) -> Option<usize> {
        while *steps > 0 {
            *steps -= 1;
            let place = self.hand % self.ring.len();
            self.hand = place + 1;
            if self.may_evict(place) {
                return Some(place);
            }
        }
        None
    }

    fn may_evict(&mut self, place: usize) -> bool {
        let buffer = &mut self.ring[place];
        !buffer.take_use() && Arc::get_mut(buffer).is_some_and(Buffer::is_idle)
    }

    fn discard(&mut self, block: BlockNumber) {
        let Some(place) = self.places.get(&block).copied() else {
            return;
        };
        let buffer = Arc::clone(&self.ring[place]);
        let state = buffer.write();
        if state.dirty_in.is_none() {
            // Under the lock: who makes it dirty later has seen it.
            buffer.set_discarded();
            drop(state);
            self.remove_at(place);
        }
    }

    fn remove(&mut self, block: BlockNumber) {
        if let Some(place) = self.places.get(&block).copied() {
            self.remove_at(place);
        }
    }

    /// Removes the buffer at `place` from the ring; the last one moves there.
    fn remove_at(&mut self, place: usize) {
        let removed = self.ring.swap_remove(place);
        removed.set_removed();
        self.places.remove(&removed.block());
        if let Some(moved) = self.ring.get(place) {
            self.places.insert(moved.block(), place);
        }
    }

    fn evict_idle(&mut self) -> usize {
        let before = self.ring.len();
        let mut place = 0;
        while place < self.ring.len() {
            if Arc::get_mut(&mut self.ring[place]).is_some_and(Buffer::is_idle) {
                self.remove_at(place);
            } else {
                place += 1;
            }
        }
        before - self.ring.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
