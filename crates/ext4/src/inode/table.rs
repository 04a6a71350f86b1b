//! The inodes in memory by number, and which of them may leave it.
//!
//! An inode is loaded while its shard of the table is locked, so that two loaders cannot end up
//! with two objects of one inode, one of them stale.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use pext4_jbd2::Capture;
use pext4_ondisk::{InodeNumber, Tid};
use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::hash::NeighbourHash;
use pext4_sync::order::Class;
use pext4_sync::{Estimate, Map, ShardCache, ShardRef, Sharded, topology};

use crate::error::Result;
use crate::inode::{Inode, SlotPlace};

/// Maximum number of inodes that each core remembers.
const MAX_REMEMBERED: usize = 32;
/// About one of this many inodes in memory, at most, is one that a core remembers.
const REMEMBERED_SHARE: usize = 16;
/// Logarithm of the number of neighbouring inodes that share a shard: a core that creates files
/// takes consecutive numbers, and those of one block of the inode table should be in one shard.
const NEIGHBOUR_BITS: u32 = 7;
/// Inodes by which a shard may grow before its size is checked again.
const LOOK_AGAIN: usize = 16;
/// Multiple of its share that a shard may hold before it counts as full.
const MAX_SHARES: usize = 2;
/// Approximate memory per inode in bytes: the object, its slot's tail, and its table entry.
const INODE_MEMORY: u64 = 1024;

/// The inodes in memory, as the committer sees them.
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

/// The inodes in memory, within a bound.
pub(super) struct ResidentInodes {
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

impl ResidentInodes {
    /// The inodes in `table`, which may take a quarter of `cache_size` bytes.
    pub(super) fn new(table: Arc<Table>, cache_size: u64) -> Self {
        let most = (cache_size / 4 / INODE_MEMORY).clamp(1024, 1 << 20);
        let inodes = usize::try_from(most).unwrap_or(usize::MAX);
        let shard_share = (inodes / table.shard_count()).max(1);
        // Per core, independent of the number of shards of the table. What cores remember is not
        // evicted.
        let per_shard = inodes / topology::shard_count() / REMEMBERED_SHARE;
        Self {
            shard_cache: ShardCache::new(per_shard.min(MAX_REMEMBERED)),
            max_resident: i64::try_from(most).unwrap_or(i64::MAX),
            shard_share,
            resident: Estimate::new(most / 8),
            evict_at: Sharded::with_count(table.shard_count(), |_| AtomicUsize::new(shard_share)),
            table,
        }
    }

    /// An inode in memory.
    pub(super) fn find(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.table.get(&number)
    }

    /// An inode in memory, and the number of inodes in its shard.
    pub(super) fn find_and_count(&self, number: InodeNumber) -> (Option<Arc<Inode>>, usize) {
        self.table.get_and_shard_len(&number)
    }

    /// An inode that the calling core remembers, or else in memory, or else from `load`.
    pub(super) fn get(
        &self,
        number: InodeNumber,
        load: impl FnOnce() -> Result<Arc<Inode>>,
    ) -> Result<ShardRef<Inode>> {
        self.shard_cache.get(
            u64::from(number.get()),
            |inode| !inode.is_dead(),
            || self.find(number).map_or_else(load, Ok),
        )
    }

    /// An inode in memory, or else from `read`, which is called while its shard is locked.
    pub(super) fn get_or_read(
        &self,
        number: InodeNumber,
        read: impl FnOnce() -> Result<Arc<Inode>>,
    ) -> Result<Arc<Inode>> {
        self.table.get_or_try_insert_with(number, || {
            let inode = read()?;
            self.resident.add(1);
            Ok(inode)
        })
    }

    /// Puts an inode into the table, in the place of an earlier one of its number, which must be
    /// dead; false if it is not.
    pub(super) fn insert(&self, inode: &Arc<Inode>) -> bool {
        self.table.at(inode.number(), |entry| match entry {
            Entry::Occupied(mut earlier) if earlier.get().is_dead() => {
                earlier.insert(Arc::clone(inode));
                true
            }
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Arc::clone(inode));
                self.resident.add(1);
                true
            }
        })
    }

    /// Evicts inodes that may leave from the shard into which inode `number` goes and which has
    /// `length` inodes, if both that shard and all shards together exceed their share of memory.
    /// Both are checked because on many cores there are many shards, and some have twice their
    /// share long before the total is reached. True if that left the shard full.
    pub(super) fn make_room(
        &self,
        number: InodeNumber,
        length: usize,
        may_leave: impl Fn(&Arc<Inode>) -> bool,
    ) -> bool {
        let shard = self.table.shard_of(&number);
        let evict_at = self.evict_at.get(shard);
        if length < evict_at.load(Ordering::Relaxed) {
            return false;
        }
        if self.resident.get() < self.max_resident {
            evict_at.store(length + LOOK_AGAIN, Ordering::Relaxed);
            return false;
        }
        let mut gone = 0;
        self.table.retain_shard(shard, |_, inode| {
            let leaves = may_leave(inode);
            gone += i64::from(leaves);
            !leaves
        });
        self.resident.add(-gone);
        let left = self.table.shard_len(shard);
        // So a scan costs a few steps per new inode, however many are in use.
        let next = self.shard_share.max(left + left / 4 + 1);
        evict_at.store(next, Ordering::Relaxed);
        left >= MAX_SHARES * self.shard_share
    }

    /// Visits every inode in memory.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in 0..self.table.shard_count() {
            let mut inodes = Vec::new();
            self.table
                .for_each_in_shard(shard, |_, inode| inodes.push(Arc::clone(inode)));
            inodes.iter().for_each(&mut visit);
        }
    }
}
