//! The cache of attribute blocks that several inodes can share: it finds blocks by their content.
//!
//! Many inodes have equal attributes (access control lists, security labels), and the format lets
//! up to 1,024 inodes share one block. An operation that is about to write a block searches here,
//! by the hash of its content, for an existing one, and takes a reference to it instead of
//! allocating a block of its own.
//!
//! What the cache returns is a hint; the truth is in the block, under its buffer's lock. But the
//! cache guarantees one thing, which keeps a search from reviving a freed block (the journal would
//! take that for a cancelled revoke):
//!
//! > If an entry is still in the cache while its block's buffer is locked for writing, the block is
//! > in use as an attribute block, or may be until the running transaction closes.
//!
//! This holds because an entry is inserted only by a thread whose inode has a reference and that
//! holds the buffer's lock; and because a thread that drops the last reference, or changes a block
//! with one owner in place, first withdraws the entry, under the buffer's lock held for writing
//! ([`SharedBlocks::judge_leaving`], [`SharedBlocks::judge_change`]). So a thread that found a
//! block locks the buffer and checks again ([`SharedBlocks::judge_taking`]): is the entry still in
//! the cache, is the content equal byte for byte, is there room for another reference?
//!
//! A setting selects how entries are stored ([`AttributeCache`]):
//!
//! - `global`: one cache for all volumes under one lock, with recency updated on each hit;
//! - `split`: a cache per volume, with locks per chain, per entry, and one for recency;
//! - `buckets`: a lock per bucket; a hit sets a bit, recency is a clock; blocks with the maximum
//!   number of references are skipped;
//! - `sharded`: words in a table of fixed size without locks; a hit writes nothing if the block was
//!   hit before. References are counted per core where cores meet ([`OwnCounts`]).
//!
//! In the first three settings a candidate is *held* from when it is found until it is checked, and
//! a held entry cannot be withdrawn: a thread that drops the last reference waits, and a thread
//! that would change the block in place takes a new block instead. `sharded` has no holders and
//! needs none.
//!
//! Locking: table locks (class `AttributeCache`) come after the buffer's.

mod buckets;
mod entry;
mod global;
mod own_counts;
mod recency;
mod sharded;
mod split;

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod testing;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use pext4_block::Buffer;
use pext4_ondisk::xattr::{self, Content, MAX_REFERENCES};
use pext4_ondisk::{BlockNumber, Corrupt};
use pext4_sync::Counter;

use crate::options::AttributeCache;
use entry::{FoundEntry, Withdrawal};
pub use own_counts::{MetBlock, OwnCounts, Sum};

/// Bytes of the volume's cache per entry.
const CACHE_PER_ENTRY: u64 = 4096;
/// Minimum number of entries.
const MIN_ENTRIES: u64 = 512;
/// Maximum number of blocks of equal content: the first, and up to three that are created because
/// the others are busy.
const MAX_EQUAL_BLOCKS: u32 = 4;

/// A table of entries.
trait Table: Send + Sync {
    /// Inserts an entry, unless it exists or finds no place. Returns whether it was inserted. The
    /// caller has locked the block's buffer.
    fn insert(&self, key: u32, block: u64, reusable: bool) -> bool;
    /// The first entry with this key, or the next one after `after`. Holds it, if this table has
    /// holders.
    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry>;
    /// Releases an entry that was found.
    fn put(&self, found: &FoundEntry);
    /// Whether an entry that was found is still in the table. The caller has locked the block's
    /// buffer.
    fn has(&self, found: &FoundEntry) -> bool;
    /// Removes the entry of a block, unless it is held.
    fn withdraw(&self, key: u32, block: u64) -> Withdrawal;
    /// Sets whether the block can have another reference.
    fn set_reusable(&self, key: u32, block: u64, reusable: bool);
    /// Whether a search skips busy blocks, and its caller makes a copy rather than wait.
    fn avoids_busy(&self) -> bool {
        false
    }
    /// Number of entries.
    #[cfg(test)]
    fn len(&self) -> usize;
}

/// Counters of the cache of attribute blocks since the volume was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttributeCacheStatistics {
    /// Blocks that were found and shared.
    pub hits: u64,
    /// Searches without a block to share.
    pub misses: u64,
    /// Searches for which every block was busy, so that another one was created.
    pub copied: u64,
    /// Blocks that got an entry because they were created, changed or read.
    pub inserted: u64,
    /// Entries removed because their block was freed or changed.
    pub dropped: u64,
    /// Blocks that reached the maximum number of references.
    pub capped: u64,
    /// Times a thread waited for a holder, or took a new block because of one.
    pub held: u64,
    /// Blocks at which cores met, and whose references were counted per core until the end of a
    /// transaction.
    pub apart: u64,
}

#[derive(Default)]
struct Counts {
    hits: Counter,
    misses: Counter,
    copied: Counter,
    inserted: Counter,
    dropped: Counter,
    capped: Counter,
    held: Counter,
    apart: Counter,
}

/// The attribute blocks of one volume, by content.
pub struct SharedBlocks {
    /// `None` if blocks are not shared. [immutable]
    table: Option<Box<dyn Table>>,
    own: OwnCounts,
    counts: Counts,
}

/// A block that may have the wanted content. Released on drop.
pub struct Candidate<'a> {
    table: &'a dyn Table,
    found: FoundEntry,
}

/// Where references are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Always in the block: nothing depends on which core counts.
    InBlock,
    /// Per core after two cores have met at a block, if the setting supports it.
    WhereMet,
}

/// How a search for a block to share ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Searched {
    /// The inode has a reference to the block.
    Shared,
    /// There is one, but another core was using it.
    Busy,
    /// There is none.
    NotFound,
}

/// What a search may do with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Take a reference.
    Take,
    /// Skip it: it has another content or the maximum number of references.
    Pass,
}

/// What an owner that drops its reference must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Decrement the count.
    Left,
    /// Free the block: the reference was the last, and no search can find the block any more.
    Last,
    /// Unlock the buffer and try again: another thread has just found the block.
    Held,
}

impl Candidate<'_> {
    /// The block.
    pub fn block(&self) -> BlockNumber {
        BlockNumber(self.found.block)
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        self.table.put(&self.found);
    }
}

impl SharedBlocks {
    /// An empty cache for a volume with `cache_size` bytes of cache.
    #[must_use]
    pub fn new(setting: AttributeCache, cache_size: u64, counting: Counting) -> Self {
        let most = (cache_size / CACHE_PER_ENTRY).clamp(MIN_ENTRIES, 1 << 24);
        let most = usize::try_from(most).expect("at most 2^24");
        Self::with_room(setting, most, counting)
    }

    fn with_room(setting: AttributeCache, most: usize, counting: Counting) -> Self {
        let table: Option<Box<dyn Table>> = match setting {
            AttributeCache::Off => None,
            AttributeCache::Global => Some(Box::new(global::Volume::join(most))),
            AttributeCache::Split => Some(Box::new(split::Split::new(most))),
            AttributeCache::Buckets => Some(Box::new(buckets::Buckets::new(most))),
            AttributeCache::Sharded => Some(Box::new(sharded::Words::new(most))),
        };
        let counting = match setting {
            AttributeCache::Sharded => counting,
            _ => Counting::InBlock,
        };
        Self::over(table, counting)
    }

    fn over(table: Option<Box<dyn Table>>, counting: Counting) -> Self {
        Self {
            table,
            own: OwnCounts::new(counting),
            counts: Counts::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn statistics(&self) -> AttributeCacheStatistics {
        let sum = |counter: &Counter| u64::try_from(counter.sum()).unwrap_or(0);
        let counts = &self.counts;
        AttributeCacheStatistics {
            hits: sum(&counts.hits),
            misses: sum(&counts.misses),
            copied: sum(&counts.copied),
            inserted: sum(&counts.inserted),
            dropped: sum(&counts.dropped),
            capped: sum(&counts.capped),
            held: sum(&counts.held),
            apart: sum(&counts.apart),
        }
    }

    /// Whether a search that found only `busy` blocks of its content, all of them busy, should end
    /// with a copy rather than wait.
    #[must_use]
    pub fn rather_copies(&self, busy: u32) -> bool {
        self.avoids_busy() && (1..MAX_EQUAL_BLOCKS).contains(&busy)
    }

    /// Whether a search skips busy blocks.
    #[must_use]
    pub fn avoids_busy(&self) -> bool {
        self.table.as_ref().is_some_and(|table| table.avoids_busy())
    }

    /// The first block that may have this content. The caller must not hold a buffer's lock.
    #[must_use]
    pub fn first(&self, content: &Content) -> Option<Candidate<'_>> {
        let key = sharing_key(content.hash())?;
        self.candidate(key, None)
    }

    /// The next block after `after`.
    #[must_use]
    pub fn next<'a>(&'a self, content: &Content, after: Candidate<'a>) -> Option<Candidate<'a>> {
        let key = sharing_key(content.hash())?;
        // `after` is held until its successor is found.
        self.candidate(key, Some(&after.found))
    }

    fn candidate(&self, key: u32, after: Option<&FoundEntry>) -> Option<Candidate<'_>> {
        let table = self.table.as_deref()?;
        let found = table.find(key, after)?;
        Some(Candidate { table, found })
    }

    /// Counts the result of a search.
    pub fn note_search(&self, searched: Searched) {
        let counts = &self.counts;
        let counter = match searched {
            Searched::Shared => &counts.hits,
            Searched::Busy => &counts.copied,
            Searched::NotFound => &counts.misses,
        };
        if self.table.is_some() {
            counter.add(1);
        }
    }

    /// Inserts an entry for a block with these bytes. The caller has locked its buffer, and the
    /// caller's inode has a reference.
    pub fn insert(&self, block: BlockNumber, bytes: &[u8]) {
        if let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes))) {
            let reusable = xattr::references(bytes).is_ok_and(|count| count < MAX_REFERENCES);
            if table.insert(key, block.get(), reusable) {
                self.counts.inserted.add(1);
            }
        }
    }

    /// Checks a candidate whose buffer is locked for writing and has these bytes.
    #[must_use]
    pub fn judge_taking(
        &self,
        candidate: &Candidate<'_>,
        bytes: &[u8],
        content: &Content,
    ) -> Taking {
        if !candidate.table.has(&candidate.found) || !content.is_in(bytes) {
            return Taking::Pass;
        }
        match xattr::references(bytes) {
            Ok(count) if count < MAX_REFERENCES => Taking::Take,
            _ => {
                self.set_reusable(candidate.block(), bytes, false);
                Taking::Pass
            }
        }
    }

    /// Adds a reference to a candidate for which [`Self::judge_taking`] returned `Take`, under the
    /// same lock.
    pub fn take(&self, candidate: &Candidate<'_>, bytes: &mut [u8]) {
        let Ok(count) = xattr::references(bytes) else {
            return;
        };
        xattr::set_references(bytes, count + 1);
        if count + 1 == MAX_REFERENCES {
            self.counts.capped.add(1);
            self.set_reusable(candidate.block(), bytes, false);
        }
    }

    /// Checks how an owner must drop its reference to a block whose buffer is locked for writing
    /// and has these bytes. If the answer is `Last`, the entry has been removed.
    ///
    /// # Errors
    ///
    /// If the block's header is not sound.
    pub fn judge_leaving(&self, block: BlockNumber, bytes: &[u8]) -> Result<Leaving, Corrupt> {
        if xattr::references(bytes)? > 1 {
            return Ok(Leaving::Left);
        }
        Ok(match self.withdraw(block, bytes) {
            Withdrawal::Removed | Withdrawal::Absent => Leaving::Last,
            Withdrawal::Held => Leaving::Held,
        })
    }

    /// Drops a reference to a block for which [`Self::judge_leaving`] returned `Left`, under the
    /// same lock.
    pub fn leave(&self, block: BlockNumber, bytes: &mut [u8]) {
        let Ok(count) = xattr::references(bytes) else {
            return;
        };
        xattr::set_references(bytes, count.saturating_sub(1));
        if count == MAX_REFERENCES {
            self.set_reusable(block, bytes, true);
        }
    }

    /// Whether an owner may change a block in place, whose buffer is locked for writing and has
    /// these bytes: it is the only owner, and no search has just found the block. If so, the entry
    /// has been removed.
    ///
    /// # Errors
    ///
    /// If the block's header is not sound.
    pub fn judge_change(&self, block: BlockNumber, bytes: &[u8]) -> Result<bool, Corrupt> {
        Ok(xattr::references(bytes)? == 1 && self.withdraw(block, bytes) != Withdrawal::Held)
    }

    fn withdraw(&self, block: BlockNumber, bytes: &[u8]) -> Withdrawal {
        let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes)))
        else {
            return Withdrawal::Absent;
        };
        let withdrawal = table.withdraw(key, block.get());
        match withdrawal {
            Withdrawal::Removed => self.counts.dropped.add(1),
            Withdrawal::Absent => {}
            Withdrawal::Held => self.counts.held.add(1),
        }
        withdrawal
    }

    /// Removes the entry of a block without users, whose buffer is locked for writing. Only for
    /// tables without holders.
    pub fn forget(&self, block: BlockNumber, bytes: &[u8]) {
        let withdrawal = self.withdraw(block, bytes);
        debug_assert_ne!(withdrawal, Withdrawal::Held, "nobody holds an entry here");
    }

    /// The references that each core counts for itself.
    #[must_use]
    pub fn own_counts(&self) -> &OwnCounts {
        &self.own
    }

    /// Starts to count a block apart, at which cores met and which the caller has locked. Returns
    /// the number by which cores count it.
    pub fn note_apart(&self, buffer: &Arc<Buffer>) -> u32 {
        self.counts.apart.add(1);
        self.own.begin(buffer)
    }

    /// Sets whether a block, whose buffer is locked for writing, can have another reference.
    pub fn set_reusable(&self, block: BlockNumber, bytes: &[u8], reusable: bool) {
        if let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes))) {
            table.set_reusable(key, block.get(), reusable);
        }
    }
}

/// The key of a block with this hash. `None` for 0, which marks blocks that must not be shared.
fn sharing_key(hash: u32) -> Option<u32> {
    (hash != 0).then_some(hash)
}
