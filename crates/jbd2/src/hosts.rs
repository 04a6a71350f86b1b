//! Blocks that many journalled objects share: their *hosts*.
//!
//! An inode is a small part of a block. If each of the sixteen inodes of a block were charged and
//! listed, a transaction of new files would be full long before its half of the log is, and the
//! committer would have to visit every inode that was born, though it was removed again. So it is
//! the host that is charged, one credit, and listed, once by each shard that remembers it; at the
//! commit the client captures what its objects owe. Each shard has a number of places for that. What
//! has lost its place, or was touched by another shard, is charged and listed again, which costs
//! little and does no harm.
//!
//! Locking: none. A shard's places are emptied by its first handle of a transaction, before it says
//! whose they are. Two threads of one shard that both do so may lose what the other remembered; a
//! place that was filled in an earlier transaction is never taken for one of this. The handle that
//! fills a place also lists the host, and the transaction waits for it; so whoever finds the place
//! filled need not.

use std::hash::BuildHasher;

use pext4_ondisk::Tid;
use pext4_sync::Sharded;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::hash::NumberHash;

/// Hosts that a shard remembers.
const PLACES: usize = if cfg!(loom) { 2 } else { 512 };
/// Marks a transaction number as present.
const PRESENT: u64 = 1 << 32;

/// The hosts that the running transaction has listed.
pub(crate) struct Hosts {
    hash: NumberHash,
    shards: Sharded<Remembered>,
}

struct Remembered {
    /// [atomic] The transaction that the places are of, with [`PRESENT`].
    tid: AtomicU64,
    /// [atomic] One more than the host's number; 0 is empty.
    places: Box<[AtomicU64]>,
}

impl Remembered {
    fn new() -> Self {
        Self {
            tid: AtomicU64::new(0),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn begin(&self, tid: Tid) {
        let tid = PRESENT | u64::from(tid.0);
        if self.tid.load(Ordering::Acquire) == tid {
            return;
        }
        for place in &self.places {
            place.store(0, Ordering::Relaxed);
        }
        self.tid.store(tid, Ordering::Release);
    }
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self {
            hash: NumberHash::default(),
            shards: Sharded::new(|_| Remembered::new()),
        }
    }

    /// Remembers a host for a handle of this shard in the running transaction `tid`; answers whether
    /// the handle has to charge and list it.
    pub(crate) fn note(&self, tid: Tid, shard: usize, host: u64) -> bool {
        let remembered = self.shards.get(shard);
        remembered.begin(tid);
        let place = &remembered.places[self.place_of(host)];
        let mark = host + 1;
        let is_new = place.load(Ordering::Relaxed) != mark;
        if is_new {
            place.store(mark, Ordering::Relaxed);
        }
        is_new
    }

    /// The place for a host. Clients number theirs as they like, in steps too.
    fn place_of(&self, host: u64) -> usize {
        (self.hash.hash_one(host) >> 32) as usize % PLACES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Hosts, PLACES, Tid};

    #[test]
    fn a_host_is_new_once_to_a_shard_and_transaction() {
        let hosts = Hosts::new();
        let one = 0;
        let has_its_place = |other: &u64| hosts.place_of(*other) == hosts.place_of(one);
        let other = (1..).find(has_its_place).expect("there are few places");
        assert!(hosts.note(Tid(7), 0, one));
        assert!(!hosts.note(Tid(7), 0, one));
        assert!(hosts.note(Tid(7), 0, other), "they have one place");
        assert!(hosts.note(Tid(7), 0, one), "what has lost its place");
        assert!(hosts.note(Tid(8), 0, one), "the next transaction");
        assert!(!hosts.note(Tid(8), 0, one));
        let last = hosts.shards.count() - 1;
        if last > 0 {
            assert!(hosts.note(Tid(8), last, one), "another shard");
        }
    }

    #[test]
    fn hosts_in_steps_do_not_meet() {
        let hosts = Hosts::new();
        let some = (0..PLACES as u64 / 8).map(|step| step * PLACES as u64);
        let listed = some.clone().filter(|&host| hosts.note(Tid(1), 0, host));
        assert_eq!(listed.count(), PLACES / 8);
        let again = some.filter(|&host| hosts.note(Tid(1), 0, host)).count();
        assert!(again < PLACES / 16, "{again} had lost their places");
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use pext4_sync::thread;

    use super::{Hosts, Tid};

    /// A place was filled in an earlier transaction. The handle that touches that host now lists it,
    /// while another of the same shard empties the places.
    #[test]
    fn a_host_of_an_earlier_transaction_is_listed_again() {
        pext4_sync::model(|| {
            let hosts = Arc::new(Hosts::new());
            assert!(hosts.note(Tid(1), 0, 0));
            let other = {
                let hosts = Arc::clone(&hosts);
                thread::spawn("other", move || hosts.note(Tid(2), 0, 0))
            };
            let another = (1..).find(|&host| hosts.place_of(host) != hosts.place_of(0));
            assert!(hosts.note(Tid(2), 0, another.expect("there are two places")));
            let is_listed = other.join().expect("a worker does not panic");
            assert!(is_listed, "it was taken for one of this transaction");
        });
    }
}
