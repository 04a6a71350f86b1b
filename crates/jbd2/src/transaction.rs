//! What a transaction collects while it runs.
//!
//! At most two transactions exist at a time, the running and the committing one, so there are two
//! slots, chosen by parity, and each slot has a set of lists per shard. Handles push without locks;
//! the committer takes everything after the transaction was closed and drained. After that, only
//! captures are added to the slot of the closed transaction: versions that handles of the next one
//! save before they change an object (rules 2 and 3). These are complete once the committer
//! has asked every listed object to capture its version, because an object saves its version and
//! answers the committer under the same lock.

use std::sync::Arc;

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::hash::spread;
use pext4_sync::parts::in_parts;
use pext4_sync::{Sharded, Stack};

use crate::client::{Capture, Client, Owing};

/// The number of objects, captures or blocks that justifies another thread. While the committer
/// makes bytes and checksums, only the threads that wait for this commit are delayed, so it makes a
/// small commit alone.
pub(crate) const MIN_PART: usize = 512;

/// The number of hosts that justifies another thread: most hosts have sixteen objects.
const MIN_HOSTS: usize = MIN_PART / 16;

/// The slots of the running and the committing transaction.
pub(crate) struct Transactions {
    slots: [Sharded<Lists>; 2],
}

/// One shard's part of a transaction.
#[derive(Default)]
struct Lists {
    /// Objects that owe the transaction their bytes, unless they were captured early.
    dirty: Stack<Arc<dyn Owing>>,
    /// Hosts of objects that do.
    hosts: Stack<u64>,
    /// Versions that handles of the next transaction captured.
    early: Stack<Vec<Capture>>,
    /// Freed metadata blocks.
    revoked: Stack<BlockNumber>,
}

impl Lists {
    fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.hosts.is_empty() && self.revoked.is_empty()
    }
}

/// The whole content of a closed transaction.
pub(crate) struct Gathered<'a> {
    pub(crate) objects: ListedObjects<'a>,
    pub(crate) captures: Vec<Capture>,
    pub(crate) revoked: Vec<BlockNumber>,
}

/// The listed objects of a closed transaction. They stay in memory until a reader finds their
/// versions in the cache (rule 4). If they are not released, because a commit failed or
/// panicked before, they are listed again when this is dropped, and stay until
/// [`Transactions::clear`]: their versions will never be committed.
pub(crate) struct ListedObjects<'a> {
    transactions: &'a Transactions,
    tid: Tid,
    objects: Vec<Arc<dyn Owing>>,
}

impl ListedObjects<'_> {
    /// Drops the objects, whose versions are in the cache now.
    pub(crate) fn release(mut self) {
        self.objects.clear();
    }
}

impl Drop for ListedObjects<'_> {
    fn drop(&mut self) {
        for object in self.objects.drain(..) {
            self.transactions.note_dirty(self.tid, 0, object);
        }
    }
}

impl Transactions {
    pub(crate) fn new() -> Self {
        Self {
            slots: [(); 2].map(|()| Sharded::new(|_| Lists::default())),
        }
    }

    /// Puts an object on the list of `tid`.
    pub(crate) fn note_dirty(&self, tid: Tid, shard: usize, object: Arc<dyn Owing>) {
        self.slot(tid).get(shard).dirty.push(object);
    }

    /// Puts a host on the list of `tid`.
    pub(crate) fn note_host(&self, tid: Tid, shard: usize, host: u64) {
        self.slot(tid).get(shard).hosts.push(host);
    }

    /// Saves versions that belong to the committing transaction `tid`.
    pub(crate) fn save(&self, tid: Tid, shard: usize, captures: Vec<Capture>) {
        if !captures.is_empty() {
            self.slot(tid).get(shard).early.push(captures);
        }
    }

    /// Records that a metadata block was freed.
    pub(crate) fn revoke(&self, tid: Tid, shard: usize, block: BlockNumber) {
        self.slot(tid).get(shard).revoked.push(block);
    }

    /// Whether the running transaction `tid` has nothing to commit so far.
    pub(crate) fn is_clean(&self, tid: Tid) -> bool {
        self.slot(tid).iter().all(Lists::is_empty)
    }

    /// Drops everything: nothing will be committed any more. The listed objects may keep the whole
    /// file system in memory, and with it the journal.
    pub(crate) fn clear(&self) {
        for lists in self.slots.iter().flat_map(|slot| slot.iter()) {
            drop(lists.dirty.take_all());
            drop(lists.hosts.take_all());
            drop(lists.early.take_all());
            drop(lists.revoked.take_all());
        }
    }

    /// Captures the closed transaction `tid` with up to `width` threads, and empties its slot.
    pub(crate) fn gather(&self, client: &dyn Client, tid: Tid, width: usize) -> Gathered<'_> {
        let slot = self.slot(tid);
        let objects = ListedObjects {
            transactions: self,
            tid,
            objects: round_robin(slot.iter().map(|lists| lists.dirty.take_all())),
        };
        let listed: Vec<_> = objects.objects.iter().collect();
        let parts = in_parts(listed, MIN_PART, width, |objects| {
            let mut captures = Vec::with_capacity(objects.len());
            for object in objects {
                object.capture(tid, &mut captures);
            }
            captures
        });
        let mut captures = flat(parts);
        captures.extend(gather_hosts(slot, client, tid, width));
        // Early captures are complete only now: see the top of this file.
        captures.extend(
            slot.iter()
                .flat_map(|lists| lists.early.take_all())
                .flatten(),
        );
        let revoked = slot
            .iter()
            .flat_map(|lists| lists.revoked.take_all())
            .collect();
        Gathered {
            objects,
            captures,
            revoked,
        }
    }

    fn slot(&self, tid: Tid) -> &Sharded<Lists> {
        &self.slots[(tid.0 & 1) as usize]
    }
}

/// The captures of the listed hosts' objects.
fn gather_hosts(
    slot: &Sharded<Lists>,
    client: &dyn Client,
    tid: Tid,
    width: usize,
) -> impl Iterator<Item = Capture> + use<> {
    let listed = slot.iter().flat_map(|lists| lists.hosts.take_all());
    // The order by hash keeps the hosts of one shard apart, as `round_robin` does.
    let mut hosts: Vec<_> = listed.map(|host| (spread(host), host)).collect();
    // Several shards may have listed the same host.
    hosts.sort_unstable();
    hosts.dedup();
    let parts = in_parts(hosts, MIN_HOSTS, width, |hosts| {
        let mut captures = Vec::with_capacity(hosts.len());
        for (_, host) in hosts {
            client.capture_parts(host, tid, &mut captures);
        }
        captures
    });
    parts.into_iter().flatten()
}

/// The items of all lists, one of each list in turn.
///
/// A list holds what one core touched. When that core touches a captured object again, it waits for
/// the object's cache lines. If lists were captured one after another, each core in turn would have
/// all of this delay at once, and others would wait for it; this way the delay is spread over all
/// cores.
fn round_robin<T>(lists: impl Iterator<Item = impl Iterator<Item = T>>) -> Vec<T> {
    let mut lists: Vec<_> = lists.collect();
    let mut items = Vec::new();
    while !lists.is_empty() {
        lists.retain_mut(|list| match list.next() {
            Some(item) => {
                items.push(item);
                true
            }
            None => false,
        });
    }
    items
}

/// Concatenates lists; a single list is not copied.
fn flat<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let mut lists = lists.into_iter();
    let mut first = lists.next().unwrap_or_default();
    first.extend(lists.flatten());
    first
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use pext4_block::Stamp;

    use super::{Arc, BlockNumber, Capture, Client, Owing, Tid, Transactions, round_robin};
    use crate::error::JournalError;

    /// An object that a handle of the next transaction touches just before the committer asks it.
    struct Touched {
        transactions: Arc<Transactions>,
        owes: AtomicBool,
    }

    impl Owing for Touched {
        fn capture(&self, tid: Tid, _: &mut Vec<Capture>) {
            if self.owes.swap(false, Ordering::Relaxed) {
                let piece = Capture::Piece {
                    block: BlockNumber(7),
                    offset: 0,
                    bytes: Vec::new(),
                };
                self.transactions.save(tid, 1, vec![piece]);
            }
        }
    }

    /// A client whose odd hosts owe a piece.
    struct Odd;

    impl Client for Odd {
        fn capture_parts(&self, host: u64, _: Tid, captures: &mut Vec<Capture>) {
            captures.extend((host % 2 == 1).then(|| Capture::Piece {
                block: BlockNumber(host),
                offset: 0,
                bytes: Vec::new(),
            }));
        }

        fn seal(&self, _: BlockNumber, _: Stamp, _: &mut [u8]) {}
        fn committed(&self, _: Tid) {}
        fn aborted(&self, _: &JournalError) {}
    }

    #[test]
    fn each_host_is_captured_once_though_several_shards_list_it() {
        let transactions = Transactions::new();
        for (shard, host) in [(0, 5), (0, 4), (1, 5), (0, 7)] {
            let shard = shard % transactions.slot(Tid(3)).count();
            transactions.note_host(Tid(3), shard, host);
        }
        assert!(!transactions.is_clean(Tid(3)));
        let gathered = transactions.gather(&Odd, Tid(3), 1);
        assert_eq!(gathered.captures.len(), 2);
        assert!(transactions.is_clean(Tid(3)));
    }

    #[test]
    fn what_one_core_touched_is_not_captured_at_once() {
        let lists = [vec!["a1", "a2", "a3"], vec![], vec!["c1"], vec!["d1", "d2"]];
        let items = round_robin(lists.into_iter().map(Vec::into_iter));
        assert_eq!(items, ["a1", "c1", "d1", "a2", "d2", "a3"]);
    }

    #[test]
    fn versions_saved_while_objects_are_captured_are_gathered() {
        let transactions = Arc::new(Transactions::new());
        let object = Arc::new(Touched {
            transactions: Arc::clone(&transactions),
            owes: AtomicBool::new(true),
        });
        assert!(transactions.is_clean(Tid(3)));
        transactions.note_dirty(Tid(3), 0, object);
        assert!(!transactions.is_clean(Tid(3)) && transactions.is_clean(Tid(4)));
        let gathered = transactions.gather(&Odd, Tid(3), 1);
        assert_eq!(gathered.captures.len(), 1);
        drop(gathered);
        assert!(!transactions.is_clean(Tid(3)), "it was not released");
        let again = transactions.gather(&Odd, Tid(3), 1);
        assert_eq!((again.captures.len(), again.objects.objects.len()), (0, 1));
        again.objects.release();
        assert!(transactions.is_clean(Tid(3)));
    }
}
