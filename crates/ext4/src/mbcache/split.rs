//! A cache per volume with split locks: one per chain of entries with equal hash of the content,
//! one per chain by block, some that guard the holders of entries, and one for the list of recency.
//!
//! A hit takes three of them: the chain's, the entry's, and the list's, to remove the entry from
//! the list while it is held and to add it at the end afterwards. All cores still share the list's
//! lock.
//!
//! Order: chain by content, chain by block, entry, list (the keys 1 to 4 of the class).

use std::hash::BuildHasher;
use std::sync::Arc;

use pext4_sync::hash::NumberHash;
use pext4_sync::{Class, Mutex, MutexGuard};

use super::Table;
use super::entry::{Entry, FoundEntry, Withdrawal};
use super::global::following;
use super::recency::Recency;

/// Intended number of entries per chain.
const CHAIN: usize = 16;
/// Number of locks over which entries are distributed.
const ENTRY_LOCKS: usize = 128;

const BY_CONTENT: u64 = 1;
const BY_BLOCK: u64 = 2;
const ENTRY: u64 = 3;
const LIST: u64 = 4;

type Chain = Mutex<Vec<Arc<Entry>>>;

/// The entries of one volume.
pub(super) struct Split {
    by_content: Box<[Chain]>,
    by_block: Box<[Chain]>,
    entry_locks: Box<[Mutex<()>]>,
    unused: Mutex<Recency>,
    hash: NumberHash,
    most: usize,
}

fn chains(count: usize) -> Box<[Chain]> {
    (0..count)
        .map(|_| Mutex::new(Class::AttributeCache, Vec::new()))
        .collect()
}

impl Split {
    /// A cache with room for `most` entries.
    pub fn new(most: usize) -> Self {
        Self::with_locks(most, (most / CHAIN).next_power_of_two(), ENTRY_LOCKS)
    }

    pub fn with_locks(most: usize, count: usize, entry_locks: usize) -> Self {
        Self {
            by_content: chains(count),
            by_block: chains(count),
            entry_locks: (0..entry_locks)
                .map(|_| Mutex::new(Class::AttributeCache, ()))
                .collect(),
            unused: Mutex::new(Class::AttributeCache, Recency::default()),
            hash: NumberHash::default(),
            most,
        }
    }

    fn pick<'a, T>(&self, locks: &'a [T], number: u64) -> &'a T {
        let hash = self.hash.hash_one(number) >> 32;
        &locks[hash as usize & (locks.len() - 1)]
    }

    fn content_chain(&self, key: u32) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.pick(&self.by_content, u64::from(key))
            .lock_keyed(BY_CONTENT)
    }

    fn block_chain(&self, block: u64) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.pick(&self.by_block, block).lock_keyed(BY_BLOCK)
    }

    fn entry_lock(&self, block: u64) -> MutexGuard<'_, ()> {
        self.pick(&self.entry_locks, block).lock_keyed(ENTRY)
    }

    fn list(&self) -> MutexGuard<'_, Recency> {
        self.unused.lock_keyed(LIST)
    }

    fn make_room(&self) {
        loop {
            let oldest = {
                let mut list = self.list();
                if list.len() <= self.most {
                    return;
                }
                list.pop()
            };
            let Some(oldest) = oldest else {
                return;
            };
            self.evict(&oldest);
        }
    }

    /// Removes an entry that was taken off the list. If it is found meanwhile, it is added to the
    /// list again when it is released; and if its block has another entry meanwhile, that stays.
    fn evict(&self, oldest: &Arc<Entry>) {
        let is_it = |entry: &Arc<Entry>| Arc::ptr_eq(entry, oldest);
        let _ = self.take_out(oldest.key, oldest.block, is_it);
    }

    /// Removes an entry with this key of this block, unless it is held.
    fn take_out(&self, key: u32, block: u64, is_it: impl FnMut(&Arc<Entry>) -> bool) -> Withdrawal {
        let mut content = self.content_chain(key);
        let mut blocks = self.block_chain(block);
        let Some(place) = blocks.iter().position(is_it) else {
            return Withdrawal::Absent;
        };
        let _lock = self.entry_lock(block);
        if blocks[place].is_held() {
            return Withdrawal::Held;
        }
        let entry = blocks.swap_remove(place);
        content.retain(|other| !Arc::ptr_eq(other, &entry));
        entry.unlist();
        self.list().remove(&entry);
        Withdrawal::Removed
    }
}

impl Table for Split {
    fn insert(&self, key: u32, block: u64, reusable: bool) -> bool {
        {
            let mut content = self.content_chain(key);
            let mut blocks = self.block_chain(block);
            if blocks.iter().any(|entry| entry.block == block) {
                return false;
            }
            let entry = Arc::new(Entry::new(0, key, block, reusable));
            content.push(Arc::clone(&entry));
            blocks.push(Arc::clone(&entry));
            self.list().push(&entry);
        }
        self.make_room();
        true
    }

    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry> {
        let chain = self.content_chain(key);
        let entry = following(&chain, key, after)?;
        let _lock = self.entry_lock(entry.block);
        if !entry.is_held() {
            self.list().remove(entry);
        }
        Some(entry.acquire())
    }

    fn put(&self, found: &FoundEntry) {
        let _lock = self.entry_lock(found.block);
        if let Some(entry) = &found.entry
            && entry.release()
            && entry.is_listed()
        {
            self.list().push(entry);
        }
    }

    fn has(&self, found: &FoundEntry) -> bool {
        found.entry.as_ref().is_some_and(|entry| entry.is_listed())
    }

    fn withdraw(&self, key: u32, block: u64) -> Withdrawal {
        self.take_out(key, block, |entry| entry.key == key && entry.block == block)
    }

    /// No such mark: a search that finds a block with the maximum number of references continues.
    fn set_reusable(&self, _key: u32, _block: u64, _reusable: bool) {}

    #[cfg(test)]
    fn len(&self) -> usize {
        let chains = self.by_block.iter();
        chains.map(|chain| chain.lock_keyed(BY_BLOCK).len()).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Split, Table, Withdrawal};

    /// A thread that makes room has taken an entry off the list, and before it goes on, the owner
    /// of the block changes that in place.
    #[test]
    fn an_entry_of_other_content_is_not_taken_for_the_oldest() {
        let (block, before, after) = (7, 1, 2);
        let cache = Split::with_locks(4, 2, 1);
        assert!(cache.insert(before, block, true));
        let oldest = cache.list().pop().expect("it was added");
        assert_eq!(cache.withdraw(before, block), Withdrawal::Removed);
        assert!(cache.insert(after, block, true));
        cache.evict(&oldest);
        assert_eq!(
            (cache.len(), cache.list().len()),
            (1, 1),
            "the new one stays"
        );
        assert_eq!(cache.withdraw(after, block), Withdrawal::Removed);
        assert!(cache.find(after, None).is_none(), "in no chain");
    }
}
