//! Amounts that belong to a transaction as a whole, such as the space that each owner of files has
//! taken: handles note them under a key that the client chooses, and the client stores the sums
//! when the transaction closes ([`Client::closing`](crate::Client::closing)).
//!
//! Each shard of handles adds up its own amounts, so cores share nothing. At that moment no handle
//! is open and none can start, so the sums are exactly what the transaction's handles noted.
//!
//! Locking: the sums of a shard are under a lock of class `Leaf`, taken by handles of the shard and
//! by the committer.
//!
//! Memory: one entry for each key and shard. Each entry costs its handle a credit, and credits are
//! bounded.

use pext4_sync::hash::NumberMap;
use pext4_sync::{Class, Mutex, Sharded};

/// Two amounts that are noted together; their meaning is the client's.
pub type Amounts = [i64; 2];

/// What the handles of the running transaction have noted.
pub(crate) struct Ledger(Sharded<Mutex<NumberMap<u64, Amounts>>>);

impl Ledger {
    /// Nothing yet, for handles of `shards` shards.
    pub(crate) fn new(shards: usize) -> Self {
        let shard = |_| Mutex::new(Class::Leaf, NumberMap::default());
        Self(Sharded::with_count(shards, shard))
    }

    /// Adds amounts for a handle of this shard; true if they are the shard's first under this key.
    pub(crate) fn add(&self, shard: usize, key: u64, amounts: Amounts) -> bool {
        let mut sums = self.0.get(shard).lock();
        let known = sums.len();
        let sum = sums.entry(key).or_default();
        add_to(sum, amounts);
        sums.len() > known
    }

    /// Takes the sums of all shards, by key. All handles of the transaction have stopped.
    pub(crate) fn take(&self) -> Vec<(u64, Amounts)> {
        let mut all: NumberMap<u64, Amounts> = NumberMap::default();
        for shard in self.0.iter() {
            for (key, amounts) in shard.lock().drain() {
                add_to(all.entry(key).or_default(), amounts);
            }
        }
        let mut sums: Vec<_> = all.into_iter().collect();
        sums.sort_unstable();
        sums
    }
}

fn add_to(sum: &mut Amounts, amounts: Amounts) {
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(amount);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Ledger;

    #[test]
    fn amounts_of_all_shards_are_added_up_once() {
        let ledger = Ledger::new(3);
        assert!(ledger.add(0, 7, [10, 1]));
        assert!(!ledger.add(0, 7, [-4, 0]), "the shard has this key");
        assert!(ledger.add(2, 7, [1, -2]));
        assert!(ledger.add(2, 5, [0, 3]));
        assert_eq!(ledger.take(), [(5, [0, 3]), (7, [7, -1])]);
        assert!(ledger.take().is_empty());
        assert!(ledger.add(0, 7, [1, 1]), "another transaction");
    }
}
