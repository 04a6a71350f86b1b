//! The cache as Linux rewrote it: one table by the content's hash, a lock per bucket, and recency
//! kept separately.
//!
//! A hit takes its bucket's lock, counts a holder, and sets the *referenced* bit of the entry if it
//! is not set. The list of recency is changed only when an entry is added or removed; a thread that
//! makes room goes round it like the hand of a clock. A block with the maximum number of references
//! is not *reusable* and is skipped without reading its buffer.
//!
//! Order: a bucket and the list are never locked together.

use std::hash::BuildHasher;
use std::sync::Arc;

use pext4_sync::hash::NumberHash;
use pext4_sync::{CachePadded, Class, Mutex};

use super::Table;
use super::entry::{Entry, FoundEntry, Withdrawal};
use super::global::following;
use super::recency::Recency;

/// Intended number of entries per bucket.
const BUCKET: usize = 16;

/// The entries of one volume.
pub(super) struct Buckets {
    buckets: Box<[Mutex<Vec<Arc<Entry>>>]>,
    /// On a cache line of its own, beside what every search reads.
    list: CachePadded<Mutex<Recency>>,
    hash: NumberHash,
    most: usize,
}

impl Buckets {
    /// A cache with room for `most` entries.
    pub fn new(most: usize) -> Self {
        Self::with_buckets(most, (most / BUCKET).next_power_of_two())
    }

    pub fn with_buckets(most: usize, count: usize) -> Self {
        Self {
            buckets: (0..count)
                .map(|_| Mutex::new(Class::AttributeCache, Vec::new()))
                .collect(),
            list: CachePadded::new(Mutex::new(Class::AttributeCache, Recency::default())),
            hash: NumberHash::default(),
            most,
        }
    }

    fn bucket(&self, key: u32) -> &Mutex<Vec<Arc<Entry>>> {
        let hash = self.hash.hash_one(u64::from(key)) >> 32;
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// Removes an entry from its bucket, unless it is held. The caller removes it from the list.
    fn take_out(&self, key: u32, block: u64) -> Result<Option<Arc<Entry>>, Withdrawal> {
        let mut bucket = self.bucket(key).lock();
        let is_it = |entry: &Arc<Entry>| entry.key == key && entry.block == block;
        let Some(place) = bucket.iter().position(is_it) else {
            return Ok(None);
        };
        if bucket[place].is_held() {
            return Err(Withdrawal::Held);
        }
        let entry = bucket.swap_remove(place);
        entry.unlist();
        Ok(Some(entry))
    }

    fn make_room(&self) {
        let mut steps = {
            let list = self.list.lock();
            2 * list.len().saturating_sub(self.most)
        };
        while steps > 0 {
            steps -= 1;
            let oldest = {
                let mut list = self.list.lock();
                let Some(oldest) = list.pop() else {
                    return;
                };
                if oldest.take_referenced() || oldest.is_held() {
                    // To the end, or the same hot entries would be checked for ever.
                    list.push(&oldest);
                    continue;
                }
                oldest
            };
            if self.take_out(oldest.key, oldest.block).is_err() {
                self.relist(&oldest);
            }
        }
    }

    /// Adds an entry to the list, unless it was removed from its bucket meanwhile.
    fn relist(&self, entry: &Arc<Entry>) {
        let mut list = self.list.lock();
        // A thread that unlists it removes it from the list afterwards, under this lock.
        if entry.is_listed() {
            list.push(entry);
        }
    }
}

impl Table for Buckets {
    fn insert(&self, key: u32, block: u64, reusable: bool) -> bool {
        let entry = {
            let mut bucket = self.bucket(key).lock();
            if bucket
                .iter()
                .any(|old| old.key == key && old.block == block)
            {
                return false;
            }
            let entry = Arc::new(Entry::new(0, key, block, reusable));
            bucket.push(Arc::clone(&entry));
            entry
        };
        self.relist(&entry);
        self.make_room();
        true
    }

    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry> {
        let bucket = self.bucket(key).lock();
        let mut after = after.and_then(|found| found.entry.clone());
        loop {
            let entry = match &after {
                None => following(&bucket, key, None)?,
                Some(entry) => {
                    let place = bucket.iter().position(|other| Arc::ptr_eq(other, entry))?;
                    bucket[place + 1..].iter().find(|other| other.key == key)?
                }
            };
            if entry.is_reusable() {
                entry.mark_referenced();
                return Some(entry.acquire());
            }
            after = Some(Arc::clone(entry));
        }
    }

    fn put(&self, found: &FoundEntry) {
        if let Some(entry) = &found.entry {
            entry.release();
        }
    }

    fn has(&self, found: &FoundEntry) -> bool {
        found.entry.as_ref().is_some_and(|entry| entry.is_listed())
    }

    fn withdraw(&self, key: u32, block: u64) -> Withdrawal {
        match self.take_out(key, block) {
            Ok(Some(entry)) => {
                self.list.lock().remove(&entry);
                Withdrawal::Removed
            }
            Ok(None) => Withdrawal::Absent,
            Err(held) => held,
        }
    }

    fn set_reusable(&self, key: u32, block: u64, reusable: bool) {
        let bucket = self.bucket(key).lock();
        if let Some(entry) = bucket
            .iter()
            .find(|entry| entry.key == key && entry.block == block)
        {
            entry.set_reusable(reusable);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let buckets = self.buckets.iter();
        buckets.map(|bucket| bucket.lock().len()).sum()
    }
}
