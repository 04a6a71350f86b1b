//! Credits: how much the running transaction may still grow (rule 7).
//!
//! A credit pays for one block in the log or one revoke record. A transaction has a fixed number of
//! them, small enough that the transaction with all its descriptors fits half of the log. Shards
//! lease credits from the transaction's pool in chunks, so that a start usually takes from a line
//! of its own shard. While most of the pool is left, taking a chunk is one subtraction, because all
//! shards take their first chunk at once when a transaction opens. When the pool is empty, the
//! accounts become exact: under a mutex, the leases of all shards are gathered into the pool again,
//! and a start waits for the next transaction only if even these do not suffice. Each gathering
//! visits every shard and finds less than the one before, so a transaction is committed before its
//! credits are exhausted.
//!
//! Credits are taken from a lease by one subtraction, not by compare-and-swap: where all cores have
//! one lease, the attempts of each would fail because of the others. A thread that subtracts more
//! than there is adds it back. Until then the lease shows less than it is worth, even a negative
//! number, so other threads may find less than there is but never more: what is really there has
//! been granted to nobody. This holds only as long as no thread moves such a debt out of the lease
//! in which the addition will settle it. So a thread that moves credits out of a lease takes only
//! what is above zero.
//!
//! A start that is refused has its credits promised before it leaves the transaction, and finds
//! them in whichever later one it enters: a refill keeps back what is promised and not yet
//! redeemed. Without this, a start that needs many credits would find them taken in one transaction
//! after another by starts that need few. So that these are not kept out in turn, no more than half
//! of a transaction is promised, unless one start alone needs more.
//!
//! The accounts are in two slots, chosen by the parity of the transaction. Only handles of the
//! running transaction use them, and a slot is refilled before its transaction opens.

use pext4_ondisk::Tid;
use pext4_ondisk::journal::RecordFormat;
use pext4_sync::atomic::{AtomicI64, AtomicU32, Ordering};
use pext4_sync::{CachePadded, Class, Mutex, Sharded};

/// The maximum number of credits that a shard leases at a time.
const LARGEST_CHUNK: i64 = 256;
/// The minimum credits of a transaction as far as memory limits them.
const MIN_IN_MEMORY: u32 = 1024;

/// A shard takes its chunk from the pool without a lock while more than `1 / PLENTY_SHARE` of a
/// transaction's credits are there.
const PLENTY_SHARE: i64 = 2;
/// Below `1 / LOW_SHARE` of a transaction's credits it is better to begin the next transaction than
/// to gather the rest again and again.
const LOW_SHARE: i64 = 4;

/// The result of an attempt to take credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// All were taken.
    Granted,
    /// All were taken, but few are left: it is time to commit.
    GrantedLow,
    /// There were not enough, and none was taken.
    Refused,
}

impl Grant {
    /// Whether the credits were taken.
    pub(crate) fn is_granted(self) -> bool {
        self != Self::Refused
    }
}

/// The credits of one journal's transactions.
pub(crate) struct Credits {
    /// [immutable] Credits of one transaction.
    limit: u32,
    /// [immutable] Credits that a shard leases at a time.
    chunk: i64,
    slots: [Slot; 2],
    /// Held while credits are moved between shards.
    moving: CachePadded<Mutex<()>>,
    /// [atomic] Credits promised to starts that wait. Only handles change it, so it stands still
    /// while a slot is refilled.
    promised: CachePadded<AtomicU32>,
}

struct Slot {
    /// [atomic] Negative if handles took more than they had asked for. It moves between cores, so
    /// it shares no line with the pointers that every handle reads.
    pool: CachePadded<AtomicI64>,
    /// [atomic] Negative only while a thread that subtracted too much has not added it again.
    leases: Sharded<AtomicI64>,
    /// [atomic] For the client's changes when the transaction closes.
    aside: CachePadded<AtomicU32>,
}

impl Slot {
    fn new(limit: u32, leases: usize) -> Self {
        Self {
            pool: CachePadded::new(AtomicI64::new(i64::from(limit))),
            leases: Sharded::with_count(leases, |_| AtomicI64::new(0)),
            aside: CachePadded::new(AtomicU32::new(0)),
        }
    }
}

impl Credits {
    /// For handles of `shards` shards, each of which has one lease.
    pub(crate) fn new(limit: u32, shards: usize) -> Self {
        let slots = [Slot::new(limit, shards), Slot::new(limit, shards)];
        let leases = i64::try_from(slots[0].leases.count()).expect("at most 256 shards");
        Self {
            limit,
            chunk: (i64::from(limit) / (8 * leases)).clamp(1, LARGEST_CHUNK),
            slots,
            moving: CachePadded::new(Mutex::new(Class::Journal, ())),
            promised: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Credits of a whole transaction.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Refills the slot of `tid` with what is not promised, before that transaction opens and while
    /// no handle is open.
    pub(crate) fn refill(&self, tid: Tid) {
        let slot = self.slot(tid);
        slot.leases
            .iter()
            .for_each(|lease| lease.store(0, Ordering::Relaxed));
        let promised = self.promised.load(Ordering::Relaxed);
        let free = i64::from(self.limit) - i64::from(promised);
        slot.pool.store(free, Ordering::Relaxed);
    }

    /// Promises credits of later transactions to a start that was refused and has not yet left its
    /// transaction; false if too many are promised already. The start must [`Credits::redeem`]
    /// them.
    pub(crate) fn promise(&self, count: u32) -> bool {
        let half = self.limit / 2;
        self.promised
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |promised| {
                let sum = promised.saturating_add(count);
                (promised == 0 || sum <= half).then_some(sum)
            })
            .is_ok()
    }

    /// Takes what was promised, in a later transaction.
    pub(crate) fn redeem(&self, count: u32) {
        self.promised.fetch_sub(count, Ordering::Relaxed);
    }

    /// Takes `count` credits for a handle of this shard, all of them or none.
    pub(crate) fn take(&self, tid: Tid, shard: usize, count: u32) -> Grant {
        let count = i64::from(count);
        let slot = self.slot(tid);
        let lease = slot.leases.get(shard);
        if take_exactly(lease, count) || self.take_of_plenty(slot, lease, count) {
            return Grant::Granted;
        }
        self.take_from_pool(tid, shard, count)
    }

    /// Returns credits that a handle did not use.
    pub(crate) fn put(&self, tid: Tid, shard: usize, count: u32) {
        if count > 0 {
            let lease = self.slot(tid).leases.get(shard);
            lease.fetch_add(i64::from(count), Ordering::Relaxed);
        }
    }

    /// Sets aside credits that a handle took, for when the transaction closes.
    pub(crate) fn set_aside(&self, tid: Tid, count: u32) {
        self.slot(tid).aside.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes all credits that were set aside. All handles of the transaction have stopped.
    pub(crate) fn take_aside(&self, tid: Tid) -> u32 {
        self.slot(tid).aside.swap(0, Ordering::Relaxed)
    }

    /// Takes `count` credits that do not exist: the handle needs more than it asked for. The
    /// transaction may outgrow its half of the log; the committer aborts if it outgrows the whole
    /// log.
    pub(crate) fn overdraw(&self, tid: Tid, count: u32) {
        self.slot(tid)
            .pool
            .fetch_sub(i64::from(count), Ordering::Relaxed);
    }

    /// If most of the pool is left, takes `count` and a chunk for the lease from it. When so many
    /// threads do this at once that the pool does not suffice, they put back what they took; until
    /// then other threads may see less in the pool than there is.
    fn take_of_plenty(&self, slot: &Slot, lease: &AtomicI64, count: i64) -> bool {
        if slot.pool.load(Ordering::Relaxed) <= i64::from(self.limit) / PLENTY_SHARE {
            return false;
        }
        let wanted = count + self.chunk;
        if slot.pool.fetch_sub(wanted, Ordering::Relaxed) < wanted {
            slot.pool.fetch_add(wanted, Ordering::Relaxed);
            return false;
        }
        lease.fetch_add(self.chunk, Ordering::Relaxed);
        true
    }

    fn take_from_pool(&self, tid: Tid, shard: usize, count: i64) -> Grant {
        let _moving = self.moving.lock();
        let slot = self.slot(tid);
        let own = slot.leases.get(shard);
        let mut found = take_at_most(own, i64::MAX);
        if found < count {
            found += take_at_most(&slot.pool, count - found + self.chunk);
        }
        if found >= count {
            own.fetch_add(found - count, Ordering::Relaxed);
            return Grant::Granted;
        }
        let leased = slot.leases.iter();
        found += leased
            .map(|lease| take_at_most(lease, i64::MAX))
            .sum::<i64>();
        if found < count {
            slot.pool.fetch_add(found, Ordering::Relaxed);
            return Grant::Refused;
        }
        let left = found - count;
        let lease = left.min(self.chunk);
        own.fetch_add(lease, Ordering::Relaxed);
        slot.pool.fetch_add(left - lease, Ordering::Relaxed);
        if left < i64::from(self.limit) / LOW_SHARE {
            Grant::GrantedLow
        } else {
            Grant::Granted
        }
    }

    fn slot(&self, tid: Tid) -> &Slot {
        &self.slots[(tid.0 & 1) as usize]
    }
}

/// Takes `count` if `lease` has that much; returns whether it has. It subtracts once, however many
/// threads do so, and may find too little while another one has not added again what it took.
fn take_exactly(lease: &AtomicI64, count: i64) -> bool {
    if lease.load(Ordering::Relaxed) < count {
        return false;
    }
    let has_enough = lease.fetch_sub(count, Ordering::Relaxed) >= count;
    if !has_enough {
        lease.fetch_add(count, Ordering::Relaxed);
    }
    has_enough
}

/// Takes up to `max` of what is above zero; returns how much.
fn take_at_most(account: &AtomicI64, max: i64) -> i64 {
    let part = |there: i64| there.clamp(0, max);
    account
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
            Some(there - part(there))
        })
        .map_or(0, part)
}

/// Credits of one transaction in a log of `log_blocks`: for any mixture of blocks and revokes that
/// they are spent on, the transaction fits half of the log. 0 if the log is too small for any.
pub(crate) fn limit_of_log(format: &RecordFormat, log_blocks: u32) -> u32 {
    let half = log_blocks / 2;
    let fits = |credits: u32| format.footprint(credits as usize, credits as usize) <= half as usize;
    let mut limit = half;
    while limit > 0 && !fits(limit) {
        limit -= 1;
    }
    limit
}

/// The credits with which a transaction pins at most half of the cache, but at least
/// [`MIN_IN_MEMORY`].
pub(crate) fn limit_of_memory(cache_blocks: u64) -> u32 {
    u32::try_from(cache_blocks / 2)
        .unwrap_or(u32::MAX)
        .max(MIN_IN_MEMORY)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::journal::RecordChecksum;
    use pext4_sync::atomic::Ordering;
    use pext4_sync::{thread, topology};

    use super::{Credits, Grant, RecordFormat, Tid, limit_of_log};

    fn took(credits: &Credits, tid: u32, shard: usize, count: u32) -> bool {
        credits.take(Tid(tid), shard, count).is_granted()
    }

    #[test]
    fn the_answer_says_when_little_is_left() {
        let credits = Credits::new(100, topology::shard_count());
        let last = credits.slots[0].leases.count() - 1;
        assert_eq!(credits.take(Tid(0), last, 60), Grant::Granted);
        credits.put(Tid(0), last, 30);
        assert_eq!(
            credits.take(Tid(0), 0, 34),
            Grant::Granted,
            "the pool has them"
        );
        if last > 0 {
            assert_eq!(
                credits.take(Tid(0), 0, 20),
                Grant::GrantedLow,
                "a lease has"
            );
        }
        assert_eq!(credits.take(Tid(0), 0, 30), Grant::Refused);
    }

    #[test]
    fn while_most_is_left_no_shard_waits_for_another() {
        let credits = Credits::new(100, topology::shard_count());
        let moving = credits.moving.lock();
        let shards = credits.slots[0].leases.count().min(4);
        for shard in 0..shards {
            assert!(took(&credits, 0, shard, 2));
        }
        drop(moving);
        let left = 100 - 2 * u32::try_from(shards).expect("at most 4");
        assert!(took(&credits, 0, 0, left), "what is leased is found");
        assert!(!took(&credits, 0, 0, 1));
    }

    #[test]
    fn the_last_credit_is_found_wherever_it_was_leased() {
        let credits = Credits::new(100, topology::shard_count());
        let shards = credits.slots[0].leases.count();
        for shard in 0..shards {
            assert!(took(&credits, 4, shard, 1));
            credits.put(Tid(4), shard, 1);
        }
        assert!(took(&credits, 4, 0, 100), "leases are taken back");
        assert!(!took(&credits, 4, 1, 1));
        credits.put(Tid(4), 1, 3);
        assert!(!took(&credits, 4, 0, 4));
        assert!(took(&credits, 4, 0, 3), "a failed attempt loses nothing");
        assert!(took(&credits, 5, 0, 100), "the other slot is its own");
        credits.refill(Tid(6));
        assert!(took(&credits, 6, 2, 100));
    }

    #[test]
    fn one_lease_for_all_is_refilled_with_whole_chunks() {
        let credits = Credits::new(4096, 1);
        assert_eq!(credits.chunk, 256);
        assert_eq!(credits.slots[0].leases.count(), 1);
        assert!(took(&credits, 0, 0, 2048), "most of them");
        assert!(
            took(&credits, 0, 0, 257),
            "the rest of the lease, and a chunk for it"
        );
        let moving = credits.moving.lock();
        for _ in 0..256 {
            assert!(took(&credits, 0, 0, 1));
        }
        drop(moving);
        assert!(took(&credits, 0, 0, 4096 - 2048 - 257 - 256));
        assert!(!took(&credits, 0, 0, 1));
    }

    #[test]
    fn what_is_subtracted_in_vain_is_not_taken_out_of_its_lease() {
        let credits = Credits::new(100, 2);
        let leases = &credits.slots[0].leases;
        assert!(took(&credits, 0, 1, 100));
        credits.put(Tid(0), 1, 5);
        // A thread has subtracted 8 from the lease of 5, and has not added them again.
        leases.get(1).fetch_sub(8, Ordering::Relaxed);
        assert!(!took(&credits, 0, 0, 1), "less than there is");
        assert!(!took(&credits, 0, 1, 1));
        leases.get(1).fetch_add(8, Ordering::Relaxed);
        assert!(!took(&credits, 0, 1, 6), "never more than there is");
        assert!(took(&credits, 0, 1, 5), "and none is lost");
        assert!(!took(&credits, 0, 1, 1));
    }

    #[test]
    fn an_overdraft_is_subtracted_from_later_requests() {
        let credits = Credits::new(50, topology::shard_count());
        credits.overdraw(Tid(1), 60);
        assert!(!took(&credits, 1, 0, 1));
        credits.put(Tid(1), 0, 2);
        assert!(took(&credits, 1, 3, 2), "what was returned is there");
    }

    #[test]
    fn threads_together_never_hold_more_than_there_is() {
        const LIMIT: u32 = 64;
        let credits = Credits::new(LIMIT, topology::shard_count());
        let held = std::sync::atomic::AtomicU32::new(0);
        thread::scope(|scope| {
            for number in 0..6u32 {
                let (credits, held) = (&credits, &held);
                scope.spawn(move || {
                    let shard = number as usize % credits.slots[0].leases.count();
                    let _pin = topology::pin(shard);
                    for round in 0..5000 {
                        let count = 1 + (round * 7 + number) % 20;
                        if took(credits, 0, shard, count) {
                            let before = held.fetch_add(count, std::sync::atomic::Ordering::SeqCst);
                            assert!(before + count <= LIMIT);
                            held.fetch_sub(count, std::sync::atomic::Ordering::SeqCst);
                            credits.put(Tid(0), shard, count);
                        }
                    }
                });
            }
        });
        assert!(took(&credits, 0, 0, LIMIT), "nothing is lost");
    }

    #[test]
    fn what_is_promised_is_kept_back_until_it_is_redeemed() {
        let credits = Credits::new(100, 2);
        assert!(took(&credits, 1, 0, 100));
        assert!(!took(&credits, 1, 1, 40));
        assert!(credits.promise(40));
        assert!(!credits.promise(11), "half is for those that did not wait");
        assert!(credits.promise(10));
        for tid in [2, 3] {
            credits.refill(Tid(tid));
            assert!(!took(&credits, tid, 0, 51));
            assert!(took(&credits, tid, 0, 50));
        }
        credits.redeem(40);
        assert!(!took(&credits, 3, 0, 1), "transaction 3 has given all");
        credits.refill(Tid(4));
        assert!(took(&credits, 4, 0, 90));
        credits.redeem(10);
        assert!(credits.promise(100), "the only one may need all");
        assert!(!credits.promise(1));
    }

    #[test]
    fn the_limit_fits_half_the_log() {
        for block_size in [1024, 4096] {
            for checksum in [RecordChecksum::None, RecordChecksum::V3] {
                let format = RecordFormat {
                    block_size,
                    wide: true,
                    checksum,
                    seed: 0,
                };
                for log in [8, 64, 1023, 32768] {
                    let limit = limit_of_log(&format, log) as usize;
                    assert!(limit == 0 || format.footprint(limit, limit) <= log as usize / 2);
                    assert!(format.footprint(limit + 1, limit + 1) > log as usize / 2);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use pext4_sync::atomic::AtomicU64;
    use pext4_sync::{Sharded, thread};

    use super::{Credits, Tid};
    use crate::epoch::Epoch;

    /// Each of three handles takes and keeps its credits, while `limit` of them are at `lent`: what
    /// is granted never exceeds what there is, and what is left is found afterwards.
    fn takes(limit: u32, leases: usize, handles: [(usize, u32); 3], lent: usize) {
        let credits = Arc::new(Credits::new(limit, leases));
        assert!(credits.take(Tid(0), lent, limit).is_granted());
        credits.put(Tid(0), lent, limit);
        let [(own, wanted), others @ ..] = handles;
        let others = others.map(|(shard, count)| {
            let credits = Arc::clone(&credits);
            let take = move || credits.take(Tid(0), shard, count).is_granted();
            (count, thread::spawn("other", take))
        });
        let mut granted = 0;
        if credits.take(Tid(0), own, wanted).is_granted() {
            granted += wanted;
        }
        for (count, other) in others {
            if other.join().expect("a worker does not panic") {
                granted += count;
            }
        }
        assert!(granted <= limit, "{granted} of {limit}");
        let left = limit - granted;
        assert!(
            left == 0 || credits.take(Tid(0), own, left).is_granted(),
            "{left} are lost"
        );
        assert!(!credits.take(Tid(0), own, 1).is_granted());
    }

    /// Two subtract from the lease more than it has, while the third looks for credits everywhere.
    #[test]
    fn one_lease_grants_what_it_has_and_loses_nothing() {
        pext4_sync::model_within(3, || takes(3, 1, [(0, 1), (0, 2), (0, 2)], 0));
    }

    /// A start is refused and promised its credits, or finds them in the next transaction at once;
    /// another takes what that transaction has left.
    #[test]
    fn a_promise_is_redeemed_out_of_what_nobody_else_gets() {
        pext4_sync::model_within(2, || {
            let words = Sharded::with_count(1, |_| AtomicU64::new(0));
            let (epoch, credits) = (Epoch::new(words, Tid(0)), Credits::new(3, 1));
            assert!(credits.take(Tid(0), 0, 3).is_granted());
            let journal = Arc::new((epoch, credits));
            let start = Arc::clone(&journal);
            let start = thread::spawn("start", move || {
                let (epoch, credits) = &*start;
                let place = epoch.enter().expect("nobody stops the epochs");
                let granted = credits.take(place.tid, 0, 2).is_granted();
                if place.tid == Tid(1) {
                    epoch.leave(place);
                    return granted;
                }
                assert!(!granted && credits.promise(2), "there are none");
                epoch.leave(place);
                assert!(epoch.wait_for_next(place.tid));
                let place = epoch.enter().expect("nobody stops the epochs");
                credits.redeem(2);
                epoch.leave(place);
                true
            });
            let (epoch, credits) = &*journal;
            epoch.close_and_drain();
            credits.refill(Tid(1));
            epoch.open(Tid(1));
            let place = epoch.enter().expect("nobody stops the epochs");
            let granted = credits.take(Tid(1), 0, 2).is_granted();
            epoch.leave(place);
            let other = start.join().expect("no panic");
            assert!(granted != other, "one of them has 2 of 3");
        });
    }

    /// As with one lease, while another shard gathers.
    #[test]
    fn a_gathering_leaves_a_debt_where_it_will_be_settled() {
        pext4_sync::model_within(2, || takes(3, 2, [(0, 1), (1, 2), (1, 2)], 1));
    }
}
