//! One cache for all volumes under one lock: the original design of Linux.
//!
//! An entry is found by its block or by its content's hash. While a thread holds it, it is not on
//! the list of recency; when the last holder releases it, it goes to the end of that list, so each
//! hit moves it twice. Entries that no longer fit are removed from the front.

use std::sync::{Arc, LazyLock};

use pext4_sync::hash::NumberMap;
use pext4_sync::{Class, Mutex};

use super::Table;
use super::entry::{Entry, FoundEntry, Withdrawal};
use super::recency::Recency;

/// The cache of this process.
static GLOBAL: LazyLock<Arc<Global>> = LazyLock::new(|| Arc::new(Global::new()));

/// The entries of all volumes.
pub(super) struct Global {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_block: NumberMap<(u64, u64), Arc<Entry>>,
    by_key: NumberMap<(u64, u32), Vec<Arc<Entry>>>,
    unused: Recency,
    /// Maximum number of entries: the sum of what each volume adds.
    most: usize,
    volumes: u64,
}

/// One volume's part of the cache.
pub(super) struct Volume {
    global: Arc<Global>,
    number: u64,
    most: usize,
}

impl Global {
    fn new() -> Self {
        Self {
            state: Mutex::new(Class::AttributeCache, State::default()),
        }
    }
}

impl State {
    fn remove(&mut self, entry: &Arc<Entry>) {
        entry.unlist();
        self.by_block.remove(&(entry.volume, entry.block));
        let key = (entry.volume, entry.key);
        if let Some(chain) = self.by_key.get_mut(&key) {
            chain.retain(|other| !Arc::ptr_eq(other, entry));
            if chain.is_empty() {
                self.by_key.remove(&key);
            }
        }
        self.unused.remove(entry);
    }

    fn make_room(&mut self) {
        while self.by_block.len() > self.most {
            let Some(oldest) = self.unused.pop() else {
                return;
            };
            self.remove(&oldest);
        }
    }
}

impl Volume {
    /// A volume that adds room for `most` entries.
    pub fn join(most: usize) -> Self {
        Self::join_in(Arc::clone(&GLOBAL), most)
    }

    fn join_in(global: Arc<Global>, most: usize) -> Self {
        let number = {
            let mut state = global.state.lock();
            state.most += most;
            state.volumes += 1;
            state.volumes
        };
        Self {
            global,
            number,
            most,
        }
    }

    /// A volume in a cache of its own.
    #[cfg(test)]
    pub fn alone(most: usize) -> Self {
        Self::join_in(Arc::new(Global::new()), most)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let mut state = self.global.state.lock();
        state.most -= self.most;
        let number = self.number;
        let own: Vec<_> = state
            .by_block
            .values()
            .filter(|entry| entry.volume == number)
            .map(Arc::clone)
            .collect();
        own.iter().for_each(|entry| state.remove(entry));
    }
}

impl Table for Volume {
    fn insert(&self, key: u32, block: u64, reusable: bool) -> bool {
        let mut state = self.global.state.lock();
        let place = (self.number, block);
        if let Some(present) = state.by_block.get(&place) {
            if present.key == key {
                return false;
            }
            let present = Arc::clone(present);
            state.remove(&present);
        }
        let entry = Arc::new(Entry::new(self.number, key, block, reusable));
        state.by_block.insert(place, Arc::clone(&entry));
        let chain = state.by_key.entry((self.number, key)).or_default();
        chain.push(Arc::clone(&entry));
        state.unused.push(&entry);
        state.make_room();
        true
    }

    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry> {
        let mut state = self.global.state.lock();
        let chain = state.by_key.get(&(self.number, key))?;
        let found = Arc::clone(following(chain, key, after)?);
        state.unused.remove(&found);
        Some(found.acquire())
    }

    fn put(&self, found: &FoundEntry) {
        let mut state = self.global.state.lock();
        if let Some(entry) = &found.entry
            && entry.release()
            && entry.is_listed()
        {
            state.unused.push(entry);
        }
    }

    fn has(&self, found: &FoundEntry) -> bool {
        found.entry.as_ref().is_some_and(|entry| entry.is_listed())
    }

    fn withdraw(&self, _key: u32, block: u64) -> Withdrawal {
        let mut state = self.global.state.lock();
        let Some(entry) = state.by_block.get(&(self.number, block)).map(Arc::clone) else {
            return Withdrawal::Absent;
        };
        if entry.is_held() {
            return Withdrawal::Held;
        }
        state.remove(&entry);
        Withdrawal::Removed
    }

    /// No such mark: a search that finds a block with the maximum number of references continues.
    fn set_reusable(&self, _key: u32, _block: u64, _reusable: bool) {}

    #[cfg(test)]
    fn len(&self) -> usize {
        let state = self.global.state.lock();
        let own = state
            .by_block
            .values()
            .filter(|entry| entry.volume == self.number);
        own.count()
    }
}

/// The first entry with this key after `after`, or the first of all.
pub(super) fn following<'a>(
    chain: &'a [Arc<Entry>],
    key: u32,
    after: Option<&FoundEntry>,
) -> Option<&'a Arc<Entry>> {
    let start = match after.and_then(|found| found.entry.as_ref()) {
        None => 0,
        // A held entry stays in its chain.
        Some(entry) => 1 + chain.iter().position(|other| Arc::ptr_eq(other, entry))?,
    };
    chain[start..].iter().find(|entry| entry.key == key)
}
