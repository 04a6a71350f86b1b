//! A table of words of fixed size, without locks.
//!
//! A key selects a set of eight words, which is one cache line. A word contains a block, fourteen
//! bits of the key's hash, and two marks: *full* (the block has the maximum number of references)
//! and *used* (it was found since room was last made here). A search reads the line. It writes the
//! mark *used* only if it is not set, so a block that is shared again and again is found without a
//! write. A search starts at the word selected by the caller's shard, so that each core finds
//! another one first if several blocks have equal content; such blocks are created when the others
//! are busy.
//!
//! There are no holders. A thread that found a block locks its buffer and checks the word again; a
//! thread that frees the block clears the word under that lock. A new entry replaces an empty word,
//! or one that was not used lately: then a block that could have been shared is no longer found,
//! which is the only consequence.
//!
//! The table never grows. Contents whose keys select the same set, by chance or by design of an
//! attacker, replace each other, and no search reads more than eight words.

use std::hash::BuildHasher;

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::hash::NumberHash;
use pext4_sync::topology;

use super::Table;
use super::entry::{FoundEntry, Withdrawal};

/// Words in a set.
const WAYS: usize = 8;
/// The bits of a word that contain the block: block numbers have 48 bits.
const BLOCK: u64 = (1 << 48) - 1;
const FULL: u64 = 1 << 48;
const USED: u64 = 1 << 49;
const TAG_SHIFT: u32 = 50;
const MARKS: u64 = FULL | USED;
/// Maximum number of attempts to insert an entry while other threads change the same set.
const TRIES: usize = 4;

#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// The entries of one volume.
pub(super) struct Words {
    sets: Box<[Set]>,
    hash: NumberHash,
}

impl Words {
    /// A table of at least `most` words.
    pub fn new(most: usize) -> Self {
        let count = most.div_ceil(WAYS).next_power_of_two();
        Self {
            sets: (0..count)
                .map(|_| Set(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            hash: NumberHash::default(),
        }
    }

    /// The set of a key, and its tag: the part of the key's hash that a word contains.
    fn place(&self, key: u32) -> (&Set, u64) {
        let hash = self.hash.hash_one(u64::from(key));
        let set = &self.sets[(hash >> 16) as usize & (self.sets.len() - 1)];
        (set, (hash >> (64 - 14)) << TAG_SHIFT)
    }

    /// The word of a block with this tag; `None` for blocks that no word can contain.
    fn word(tag: u64, block: u64) -> Option<u64> {
        (block != 0 && block <= BLOCK).then_some(tag | block)
    }
}

impl Set {
    /// Stores a word in an empty slot, or in one whose word was not used lately. Returns whether it
    /// did: other threads may have changed the set each time.
    fn put(&self, word: u64) -> bool {
        for _ in 0..TRIES {
            let Some((slot, old)) = self.victim() else {
                // All were used: clear the marks, so that the next round finds those not used
                // again.
                for slot in &self.0 {
                    slot.fetch_and(!USED, Ordering::Relaxed);
                }
                continue;
            };
            let exchange = slot.compare_exchange(old, word, Ordering::Release, Ordering::Relaxed);
            if exchange.is_ok() {
                return true;
            }
        }
        false
    }

    fn victim(&self) -> Option<(&AtomicU64, u64)> {
        let words = || {
            self.0
                .iter()
                .map(|slot| (slot, slot.load(Ordering::Relaxed)))
        };
        let empty = words().find(|(_, word)| *word == 0);
        empty.or_else(|| words().find(|(_, word)| word & USED == 0))
    }

    /// Changes every word of an entry; there is more than one if two readers inserted it at once.
    /// Returns whether one was changed.
    fn update(&self, wanted: u64, change: impl Fn(u64) -> u64) -> bool {
        let mut is_changed = false;
        for slot in &self.0 {
            let mut word = slot.load(Ordering::Acquire);
            while word & !MARKS == wanted {
                let new = change(word);
                if new == word {
                    break;
                }
                match slot.compare_exchange(word, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        is_changed = true;
                        break;
                    }
                    Err(seen) => word = seen,
                }
            }
        }
        is_changed
    }

    fn contains(&self, wanted: u64) -> bool {
        let mut words = self.0.iter().map(|slot| slot.load(Ordering::Acquire));
        words.any(|word| word & !MARKS == wanted)
    }
}

impl Table for Words {
    fn insert(&self, key: u32, block: u64, reusable: bool) -> bool {
        let (set, tag) = self.place(key);
        let Some(word) = Self::word(tag, block) else {
            return false;
        };
        !set.contains(word) && set.put(word | if reusable { 0 } else { FULL })
    }

    fn find(&self, key: u32, after: Option<&FoundEntry>) -> Option<FoundEntry> {
        let (set, tag) = self.place(key);
        let (origin, first) = match after {
            Some(found) => (found.origin, found.step + 1),
            None => (topology::current_of(WAYS), 0),
        };
        for step in first..WAYS {
            let slot = &set.0[(origin + step) % WAYS];
            let word = slot.load(Ordering::Acquire);
            if word == 0 || word & FULL != 0 || (word & !MARKS) & !BLOCK != tag {
                continue;
            }
            if word & USED == 0 {
                // If the word has changed meanwhile, the new word does not get the mark.
                let marked = word | USED;
                let _ = slot.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed);
            }
            return Some(FoundEntry {
                block: word & BLOCK,
                key,
                origin,
                step,
                entry: None,
            });
        }
        None
    }

    fn put(&self, _found: &FoundEntry) {}

    fn has(&self, found: &FoundEntry) -> bool {
        let (set, tag) = self.place(found.key);
        set.contains(tag | found.block)
    }

    fn withdraw(&self, key: u32, block: u64) -> Withdrawal {
        let (set, tag) = self.place(key);
        match Self::word(tag, block) {
            Some(word) if set.update(word, |_| 0) => Withdrawal::Removed,
            _ => Withdrawal::Absent,
        }
    }

    fn set_reusable(&self, key: u32, block: u64, reusable: bool) {
        let (set, tag) = self.place(key);
        if let Some(word) = Self::word(tag, block) {
            set.update(
                word,
                |word| if reusable { word & !FULL } else { word | FULL },
            );
        }
    }

    fn avoids_busy(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let words = self.sets.iter().flat_map(|set| &set.0);
        words
            .filter(|slot| slot.load(Ordering::Relaxed) != 0)
            .count()
    }
}
