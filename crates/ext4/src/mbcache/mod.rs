//! Attribute blocks that several inodes can share: which block has which content.
//!
//! Many inodes carry equal attributes (access control lists, security labels), and the format lets
//! one block serve up to 1,024 of them. Whoever is about to write a block asks here, by the hash of
//! its content, for one that exists, and takes a reference instead of a block of its own.
//!
//! What the cache says is a hint; the truth lies in the block, under its buffer's lock. But one
//! thing the cache does promise, and it is what keeps a finder from bringing a freed block back to
//! life (the journal would take that for a revoke cancelled):
//!
//! > An entry that is still there while its block's buffer is locked for writing is that of a block
//! > that is in use as an attribute block, or may be until the running transaction closes.
//!
//! It holds because an entry is put in only by somebody who owns a reference and holds the buffer's
//! lock, and because who drops the last reference, or changes the only owner's block in place,
//! withdraws the entry first, under the lock for writing ([`SharedBlocks::judge_leaving`],
//! [`SharedBlocks::judge_change`]). So a finder locks the buffer and judges again
//! ([`SharedBlocks::judge_taking`]): is the entry still there, is the content equal byte for byte,
//! is there room for one reference more?
//!
//! How entries are kept is a setting ([`AttributeCache`]):
//!
//! - `global`: one cache of all volumes under one lock, recency moved on each hit;
//! - `split`: a cache a volume; locks by chain, by entry, and one for recency;
//! - `buckets`: a lock a bucket; a hit sets a bit, recency is a clock; blocks that serve all they may
//!   are passed over;
//! - `sharded`: words in a table of fixed size without any lock; a hit that has been hit before
//!   writes nothing. References are counted core by core where cores meet ([`OwnCounts`]).
//!
//! In the first three a candidate is *held* between its being found and its being judged, and an
//! entry that is held cannot be withdrawn: who drops the last reference waits, who would change in
//! place takes a new block instead. `sharded` has no holders and needs none.
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

/// Bytes of the volume's cache for which one entry is kept.
const CACHE_PER_ENTRY: u64 = 4096;
/// Entries kept at least.
const LEAST_ENTRIES: u64 = 512;
/// Blocks of equal content that are made while the others are busy.
const MOST_COPIES: u32 = 4;

/// How entries are kept.
trait Table: Send + Sync {
    /// Puts an entry in, unless it is there. The block's buffer is locked by the caller.
    fn insert(&self, key: u32, block: u64, reusable: bool);
    /// The first entry with this key, or the next one; it is held if entries are held here.
    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry>;
    /// Gives back what was found.
    fn put(&self, found: &FoundEntry);
    /// Whether what was found is still there. The block's buffer is locked by the caller.
    fn has(&self, found: &FoundEntry) -> bool;
    /// Takes the entry of a block out, unless it is held.
    fn withdraw(&self, key: u32, block: u64) -> Withdrawal;
    /// Says whether the block can serve one inode more.
    fn set_reusable(&self, key: u32, block: u64, reusable: bool);
    /// Whether who finds a block busy should look on, and rather make a copy than wait.
    fn avoids_busy(&self) -> bool {
        false
    }
    /// Entries now.
    #[cfg(test)]
    fn len(&self) -> usize;
}

/// What the cache of attribute blocks did since the volume was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeCacheStatistics {
    /// Blocks that were found and shared.
    pub hits: u64,
    /// Contents for which there was no block to share.
    pub misses: u64,
    /// Contents for which every block was busy, and that got one more.
    pub copied: u64,
    /// Blocks that got an entry: made, changed or read.
    pub inserted: u64,
    /// Blocks that were given up or changed, and their entry with them.
    pub dropped: u64,
    /// Blocks that came to serve as many inodes as they may.
    pub capped: u64,
    /// Times that somebody waited for a holder or gave way to one.
    pub held: u64,
    /// Blocks at which cores met, and that were counted core by core to the end of a transaction.
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
    /// None if nothing is shared. [immutable]
    table: Option<Box<dyn Table>>,
    own: OwnCounts,
    counts: Counts,
}

/// A block that may have the content asked for; dropped, it is given back.
pub struct Candidate<'a> {
    table: &'a dyn Table,
    found: FoundEntry,
}

/// Where references are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// In the block, always: what becomes of a block depends on no core.
    InBlock,
    /// Core by core, if the setting has that, once two cores have met at a block.
    WhereMet,
}

/// What a finder may do with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// Take a reference.
    Take,
    /// Nothing: it is not what was looked for, or serves all it may.
    Pass,
}

/// What an owner that gives up its reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Count one owner less.
    Left,
    /// Free the block: it was the last, and nobody can find the block any more.
    Last,
    /// Let go of the buffer and try again: a finder has just found the block.
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
    /// An empty cache for a volume that keeps `cache_size` bytes in memory.
    #[must_use]
    pub fn new(setting: AttributeCache, cache_size: u64, counting: Counting) -> Self {
        let most = (cache_size / CACHE_PER_ENTRY).clamp(LEAST_ENTRIES, 1 << 24);
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
            own: OwnCounts::new(counting == Counting::WhereMet),
            counts: Counts::default(),
        }
    }

    /// What happened so far.
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

    /// Whether a finder that meets `busy` blocks of its content, and no other, should make one more
    /// rather than wait.
    #[must_use]
    pub fn rather_copies(&self, busy: u32) -> bool {
        self.avoids_busy() && (1..MOST_COPIES).contains(&busy)
    }

    /// Whether a finder looks on when a block is busy.
    #[must_use]
    pub fn avoids_busy(&self) -> bool {
        self.table.as_ref().is_some_and(|table| table.avoids_busy())
    }

    /// The first block that may have this content. No buffer may be locked.
    #[must_use]
    pub fn first(&self, content: &Content) -> Option<Candidate<'_>> {
        let key = sharing_key(content.hash())?;
        self.candidate(key, None)
    }

    /// The next one.
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

    /// Notes how a search ended.
    pub fn note_search(&self, was_found: bool, was_busy: bool) {
        let counts = &self.counts;
        let counter = match (was_found, was_busy) {
            (true, _) => &counts.hits,
            (false, true) => &counts.copied,
            (false, false) => &counts.misses,
        };
        if self.table.is_some() {
            counter.add(1);
        }
    }

    /// Makes a block known, whose bytes are these. Its buffer is locked, and the caller's inode owns
    /// a reference.
    pub fn insert(&self, block: BlockNumber, bytes: &[u8]) {
        if let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes))) {
            let reusable = xattr::references(bytes).is_ok_and(|count| count < MAX_REFERENCES);
            table.insert(key, block.get(), reusable);
            self.counts.inserted.add(1);
        }
    }

    /// What may be done with a candidate whose buffer is locked for writing and has these bytes.
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

    /// Counts one owner more in a candidate that was judged so, under the same lock.
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

    /// What an owner that leaves a block does, whose buffer is locked for writing and has these
    /// bytes. If it is the last, the entry is gone with the answer.
    ///
    /// # Errors
    ///
    /// If the block's header is not sound.
    pub fn judge_leaving(&self, block: BlockNumber, bytes: &[u8]) -> Result<Leaving, Corrupt> {
        if xattr::references(bytes)? > 1 {
            return Ok(Leaving::Left);
        }
        Ok(match self.withdraw(block, bytes) {
            Withdrawal::Gone => Leaving::Last,
            Withdrawal::Held => Leaving::Held,
        })
    }

    /// Counts one owner less in a block that was judged so, under the same lock.
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
    /// these bytes: it is the only one and nobody is about to become another. The entry is gone then.
    ///
    /// # Errors
    ///
    /// If the block's header is not sound.
    pub fn judge_change(&self, block: BlockNumber, bytes: &[u8]) -> Result<bool, Corrupt> {
        Ok(xattr::references(bytes)? == 1 && self.withdraw(block, bytes) == Withdrawal::Gone)
    }

    fn withdraw(&self, block: BlockNumber, bytes: &[u8]) -> Withdrawal {
        let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes)))
        else {
            return Withdrawal::Gone;
        };
        let withdrawal = table.withdraw(key, block.get());
        match withdrawal {
            Withdrawal::Gone => self.counts.dropped.add(1),
            Withdrawal::Held => self.counts.held.add(1),
        }
        withdrawal
    }

    /// Takes the entry of a block out that nobody uses, and whose buffer is locked for writing. Only where no
    /// entry is held.
    pub fn forget(&self, block: BlockNumber, bytes: &[u8]) {
        let withdrawal = self.withdraw(block, bytes);
        debug_assert_eq!(withdrawal, Withdrawal::Gone, "nobody holds an entry here");
    }

    /// What each core has counted for itself.
    #[must_use]
    pub fn own_counts(&self) -> &OwnCounts {
        &self.own
    }

    /// Notes that cores met at a block, which the caller has locked, and that it is counted apart from now on.
    /// Answers its number.
    pub fn note_apart(&self, buffer: &Arc<Buffer>) -> u32 {
        self.counts.apart.add(1);
        self.own.begin(buffer)
    }

    /// Says whether a block can serve one inode more, whose buffer is locked for writing.
    pub fn set_reusable(&self, block: BlockNumber, bytes: &[u8], reusable: bool) {
        if let (Some(table), Some(key)) = (&self.table, sharing_key(xattr::content_hash(bytes))) {
            table.set_reusable(key, block.get(), reusable);
        }
    }
}

/// What a block is found by that carries this hash; none if it says that it is not to be shared.
fn sharing_key(hash: u32) -> Option<u32> {
    (hash != 0).then_some(hash)
}
