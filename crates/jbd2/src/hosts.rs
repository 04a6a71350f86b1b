//! Blocks that several journalled objects share: their *hosts*.
//!
//! An inode is a small part of a block. If each of the sixteen inodes of a block were charged and
//! listed, a transaction of new files would run out of credits long before it fills half of the
//! log, and the committer would have to visit every created inode, even if it was removed again.
//! Instead the host is charged, one credit, and listed; at the commit the client captures the
//! host's objects. Each core's shard remembers the hosts that it has listed in a fixed number of
//! places. A host that has lost its place, or that another shard touches, is charged and listed
//! again, which is cheap and harmless. That is why the places are divided by core even in a setting
//! where handles are not: all cores together would push each other's hosts out of the places of
//! one, and pay for it in credits.
//!
//! Locking: none. The first handle of a transaction in a shard empties the shard's places, and then
//! stores its transaction's number beside them. If two threads of one shard do so at once, one may
//! erase what the other remembered, but a place that was filled in an earlier transaction is never
//! taken for one of the running transaction. A handle lists a host first and fills its place then,
//! so a handle that finds the place filled knows that the transaction is not empty: a thread that
//! asks for its changes to be committed must not find it so. Two handles may list a host at once.

use std::hash::BuildHasher;

use pext4_ondisk::Tid;
use pext4_sync::Sharded;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::hash::NumberHash;

use crate::atomic_tid::AtomicTid;

/// The number of hosts that a shard remembers.
const PLACES: usize = if cfg!(loom) { 2 } else { 512 };

/// The hosts that the running transaction has listed.
pub(crate) struct Hosts {
    hash: NumberHash,
    shards: Sharded<Remembered>,
    /// [immutable] Whether the shard of a handle is that of its core; finding out the core again
    /// would be wasted.
    handles_have_cores: bool,
}

struct Remembered {
    /// The transaction that the places belong to.
    tid: AtomicTid,
    /// [atomic] The host's number plus one; 0 if empty.
    places: Box<[AtomicU64]>,
}

impl Remembered {
    fn new() -> Self {
        Self {
            tid: AtomicTid::new(),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn begin(&self, tid: Tid) {
        if self.tid.load(Ordering::Acquire) == Some(tid) {
            return;
        }
        for place in &self.places {
            place.store(0, Ordering::Relaxed);
        }
        self.tid.store(tid, Ordering::Release);
    }
}

impl Hosts {
    /// None yet, for handles of `handle_shards` shards.
    pub(crate) fn new(handle_shards: usize) -> Self {
        let shards = Sharded::new(|_| Remembered::new());
        Self {
            hash: NumberHash::default(),
            handles_have_cores: shards.count() == handle_shards,
            shards,
        }
    }

    /// For a handle of this shard in the running transaction `tid`: `None` if the host is listed,
    /// or else the place to fill once the handle has charged and listed it.
    pub(crate) fn unlisted(&self, tid: Tid, shard: usize, host: u64) -> Option<Unlisted<'_>> {
        let remembered = if self.handles_have_cores {
            self.shards.get(shard)
        } else {
            self.shards.local()
        };
        remembered.begin(tid);
        let place = &remembered.places[self.place_of(host)];
        let mark = host + 1;
        (place.load(Ordering::Acquire) != mark).then_some(Unlisted { place, mark })
    }

    /// The place for a host. Hashed, because a client's numbers may be multiples of some step.
    fn place_of(&self, host: u64) -> usize {
        (self.hash.hash_one(host) >> 32) as usize % PLACES
    }
}

/// The place of a host that is not listed yet.
pub(crate) struct Unlisted<'a> {
    place: &'a AtomicU64,
    mark: u64,
}

impl Unlisted<'_> {
    /// Remembers that the host was listed.
    pub(crate) fn remember(self) {
        self.place.store(self.mark, Ordering::Release);
    }
}

#[cfg(test)]
impl Hosts {
    /// Whether a host had to be listed; it is taken as listed from now on.
    fn note(&self, tid: Tid, shard: usize, host: u64) -> bool {
        self.unlisted(tid, shard, host)
            .map(Unlisted::remember)
            .is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_sync::topology;

    use super::{Hosts, PLACES, Tid};

    #[test]
    fn a_host_is_new_once_in_each_shard_and_transaction() {
        let hosts = Hosts::new(topology::shard_count());
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
    fn cores_keep_places_of_their_own_where_handles_have_one_shard() {
        const FIRSTS: [u64; 2] = [0, 1 << 20];
        let hosts = Hosts::new(1);
        let note = |core, host| {
            let _pin = topology::pin(core);
            hosts.note(Tid(3), 0, host)
        };
        assert!(note(0, FIRSTS[0]));
        assert!(note(1, FIRSTS[1]));
        for number in 1..16 * PLACES as u64 {
            assert!(note(1, FIRSTS[1] + number), "new to this core");
        }
        assert!(!note(0, FIRSTS[0]), "another core pushed it out");
    }

    #[test]
    fn hosts_in_steps_do_not_meet() {
        let hosts = Hosts::new(topology::shard_count());
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

    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::{thread, topology};

    use super::{Hosts, Tid};

    /// A place was filled in an earlier transaction. A handle that touches that host must list it,
    /// even while another handle of the same shard empties the places.
    #[test]
    fn a_host_of_an_earlier_transaction_is_listed_again() {
        pext4_sync::model(|| {
            let hosts = Arc::new(Hosts::new(topology::shard_count()));
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

    /// Two handles touch one host. Each sees it on the list when it goes on, whoever has put it
    /// there, even if it has no other way to know.
    #[test]
    fn a_handle_that_lists_nothing_sees_that_the_host_is_listed() {
        pext4_sync::model(|| {
            let hosts = Arc::new(Hosts::new(topology::shard_count()));
            let list = Arc::new(AtomicU64::new(0));
            let touch = |hosts: &Hosts, list: &AtomicU64| {
                if let Some(unlisted) = hosts.unlisted(Tid(1), 0, 0) {
                    list.fetch_add(1, Ordering::Relaxed);
                    unlisted.remember();
                }
                assert!(
                    list.load(Ordering::Relaxed) > 0,
                    "the transaction looks empty"
                );
            };
            let other = {
                let (hosts, list) = (Arc::clone(&hosts), Arc::clone(&list));
                thread::spawn("other", move || touch(&hosts, &list))
            };
            touch(&hosts, &list);
            other.join().expect("a worker does not panic");
        });
    }
}
