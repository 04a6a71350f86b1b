//! Pending home writes: versions by block, transactions by age, and the log space that they hold.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pext4_block::{Buffer, Page};
use pext4_ondisk::{BlockNumber, Tid};

use crate::log_writer::Logged;
use crate::merge::Version;
use crate::ring::Ring;

/// The state of the checkpoint.
pub(super) struct HomeWrites {
    ring: Ring,
    /// The last durable version of each block that is not home.
    versions: BTreeMap<BlockNumber, Pending>,
    /// Durable transactions in the log, oldest first.
    transactions: VecDeque<Transaction>,
    /// Log blocks that no transaction in `transactions` holds.
    free: u32,
    /// Log blocks that the committer waits for; 0 if it does not wait.
    pub(super) wanted: u32,
    /// The last transaction that a caller asked to be written home.
    asked: Option<Tid>,
    /// The thread and all waits end.
    pub(super) stopped: bool,
    /// The thread ended while versions were in flight.
    pub(super) is_abandoned: bool,
}

/// A version that is not home yet.
struct Pending {
    page: Page,
    /// The transaction that wrote it.
    tid: Tid,
    /// Pinned, so that the cache does not read the old version from the device.
    buffer: Arc<Buffer>,
    /// The checkpointer is writing it.
    in_flight: bool,
}

/// A durable transaction that still holds its part of the log.
struct Transaction {
    tid: Tid,
    logged: Logged,
    /// The number of its versions that are not home.
    left: usize,
}

/// A position to which the start of the log may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) start: u32,
    pub(super) tid: Tid,
    /// The number of transactions before it.
    done: usize,
}

impl HomeWrites {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            versions: BTreeMap::new(),
            transactions: VecDeque::new(),
            free: ring.blocks(),
            wanted: 0,
            asked: None,
            stopped: false,
            is_abandoned: false,
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.ring.blocks()
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Asks for everything up to `tid` to be written home.
    pub(super) fn ask(&mut self, tid: Tid) {
        let is_later = self.asked.is_none_or(|asked| tid.is_after(asked));
        if is_later {
            self.asked = Some(tid);
        }
    }

    /// Whether the log still holds `tid` or a durable transaction before it.
    pub(super) fn holds(&self, tid: Tid) -> bool {
        let oldest = self.transactions.front();
        oldest.is_some_and(|oldest| tid.is_at_or_after(oldest.tid))
    }

    /// Whether anything is being written home.
    pub(super) fn has_in_flight(&self) -> bool {
        self.versions.values().any(|pending| pending.in_flight)
    }

    /// Whether this block is being written home.
    pub(super) fn is_in_flight(&self, block: BlockNumber) -> bool {
        self.versions
            .get(&block)
            .is_some_and(|pending| pending.in_flight)
    }

    /// Takes over the versions of a durable transaction, which is later than all others.
    pub(super) fn add(&mut self, tid: Tid, logged: Logged, versions: Vec<Version>) {
        self.free = self
            .free
            .checked_sub(logged.blocks)
            .expect("the committer reserved the room");
        self.transactions.push_back(Transaction {
            tid,
            logged,
            left: versions.len(),
        });
        for Version {
            block,
            page,
            buffer,
        } in versions
        {
            buffer.pin();
            let in_flight = self.is_in_flight(block);
            let pending = Pending {
                page,
                tid,
                buffer,
                in_flight,
            };
            if let Some(older) = self.versions.insert(block, pending) {
                self.release(&older);
            }
        }
    }

    /// Removes the version of a block that was freed. It must not be in flight.
    pub(super) fn cancel(&mut self, block: BlockNumber) {
        if let Some(pending) = self.versions.remove(&block) {
            debug_assert!(!pending.in_flight, "{block:?} is being written");
            self.release(&pending);
        }
    }

    /// Marks the next versions of transactions up to `target` as in flight and returns at most
    /// `max` of them, by block from `from` on.
    pub(super) fn begin_writes(
        &mut self,
        from: BlockNumber,
        target: Tid,
        max: usize,
    ) -> Vec<(BlockNumber, Tid, Page)> {
        let due = self.versions.range_mut(from..);
        due.filter(|(_, pending)| target.is_at_or_after(pending.tid))
            .take(max)
            .map(|(block, pending)| {
                pending.in_flight = true;
                (*block, pending.tid, pending.page.clone())
            })
            .collect()
    }

    /// Marks versions as no longer in flight.
    pub(super) fn end_writes(&mut self, blocks: impl Iterator<Item = BlockNumber>) {
        for block in blocks {
            if let Some(pending) = self.versions.get_mut(&block) {
                pending.in_flight = false;
            }
        }
    }

    /// Removes versions that are home and durable, unless a later version has replaced them.
    pub(super) fn remove_written(&mut self, written: &[(BlockNumber, Tid)]) {
        for (block, tid) in written {
            if self
                .versions
                .get(block)
                .is_some_and(|pending| pending.tid == *tid)
            {
                let pending = self.versions.remove(block).expect("it was there just now");
                self.release(&pending);
            }
        }
    }

    /// Unpins a version that no longer needs its transaction's part of the log.
    fn release(&mut self, pending: &Pending) {
        pending.buffer.unpin();
        let oldest = self
            .transactions
            .front()
            .expect("a version's transaction is kept")
            .tid;
        // Transactions in the log have consecutive numbers.
        let age = pending.tid.0.wrapping_sub(oldest.0) as usize;
        let transaction = &mut self.transactions[age];
        debug_assert_eq!(transaction.tid, pending.tid);
        transaction.left -= 1;
    }

    /// Where the log may start, if that is beyond its current start.
    pub(super) fn tail(&self) -> Option<Tail> {
        let done = self
            .transactions
            .iter()
            .take_while(|transaction| transaction.left == 0)
            .count();
        let last = &self.transactions[done.checked_sub(1)?];
        let start = self.ring.after(last.logged.start, last.logged.blocks);
        Some(Tail {
            start,
            tid: last.tid.next(),
            done,
        })
    }

    /// Frees the space before a tail that is durable.
    pub(super) fn free_before(&mut self, tail: Tail) {
        let done = self.transactions.drain(..tail.done);
        self.free += done
            .map(|transaction| transaction.logged.blocks)
            .sum::<u32>();
    }

    /// The number of versions in memory.
    pub(super) fn pinned(&self) -> usize {
        self.versions.len()
    }

    /// The transaction up to which versions should be written home now, if any should.
    pub(super) fn target(&self, max_pinned: usize) -> Option<Tid> {
        self.transactions.back()?;
        if let Some(asked) = self.asked.filter(|&asked| self.holds(asked)) {
            return Some(asked);
        }
        let used = self.capacity() - self.free;
        if self.wanted > self.free {
            return Some(self.oldest(self.wanted - self.free));
        }
        if used > self.capacity() / 2 || self.versions.len() > max_pinned {
            return Some(self.oldest(used / 2));
        }
        None
    }

    /// The transaction up to which the oldest ones together hold at least `blocks` of the log.
    fn oldest(&self, blocks: u32) -> Tid {
        let mut held = 0;
        for transaction in &self.transactions {
            held += transaction.logged.blocks;
            if held >= blocks {
                return transaction.tid;
            }
        }
        self.transactions
            .back()
            .expect("asked only when there is one")
            .tid
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_block::{Cache, RamDevice};

    use super::{Arc, BlockNumber, HomeWrites, Logged, Ring, Tid, Version};

    fn cache() -> Cache {
        Cache::new(Arc::new(RamDevice::new(1 << 20)), 1024, 1 << 20)
    }

    fn versions(cache: &Cache, blocks: &[u64]) -> Vec<Version> {
        let version = |&block: &u64| {
            let buffer = cache.get_zeroed(BlockNumber(block));
            Version {
                block: BlockNumber(block),
                page: buffer.page(),
                buffer,
            }
        };
        blocks.iter().map(version).collect()
    }

    #[test]
    fn the_tail_waits_for_the_oldest_and_later_versions_take_over() {
        let cache = cache();
        let mut homes = HomeWrites::new(Ring { first: 1, end: 21 });
        let last = Tid(u32::MAX);
        homes.add(
            last,
            Logged {
                start: 1,
                blocks: 8,
            },
            versions(&cache, &[5, 6]),
        );
        homes.add(
            last.next(),
            Logged {
                start: 9,
                blocks: 8,
            },
            versions(&cache, &[6, 7]),
        );
        assert_eq!((homes.free(), homes.tail()), (4, None));
        assert_eq!(homes.target(100), Some(last), "more than half is used");

        let batch = homes.begin_writes(BlockNumber(0), last, 10);
        let blocks: Vec<_> = batch
            .iter()
            .map(|(block, tid, _)| (block.get(), *tid))
            .collect();
        assert_eq!(blocks, [(5, last)], "6 was written again");
        assert!(homes.is_in_flight(BlockNumber(5)));
        homes.end_writes([BlockNumber(5)].into_iter());
        homes.remove_written(&[(BlockNumber(5), last)]);
        let tail = homes.tail().expect("the first transaction is done");
        assert_eq!((tail.start, tail.tid), (9, Tid(0)));
        homes.free_before(tail);
        assert_eq!((homes.free(), homes.target(100)), (12, None));
        assert_eq!(homes.target(1), Some(Tid(0)), "too many are pinned");

        homes.cancel(BlockNumber(7));
        homes.ask(last.next());
        homes.remove_written(&[(BlockNumber(6), last)]);
        assert_eq!(
            homes.tail(),
            None,
            "an older version says nothing about the new one"
        );
        homes.remove_written(&[(BlockNumber(6), Tid(0))]);
        let tail = homes.tail().expect("all is home");
        assert_eq!((tail.start, tail.tid), (17, Tid(1)));
        homes.free_before(tail);
        assert!(!homes.holds(Tid(1)));
        assert_eq!((homes.free(), cache.pinned()), (20, 0));
    }

    #[test]
    fn a_version_that_is_replaced_in_flight_stays() {
        let cache = cache();
        let mut homes = HomeWrites::new(Ring { first: 1, end: 21 });
        homes.add(
            Tid(1),
            Logged {
                start: 1,
                blocks: 3,
            },
            versions(&cache, &[5]),
        );
        homes.begin_writes(BlockNumber(0), Tid(1), 10);
        homes.add(
            Tid(2),
            Logged {
                start: 4,
                blocks: 3,
            },
            versions(&cache, &[5]),
        );
        assert!(
            homes.is_in_flight(BlockNumber(5)),
            "the write is still under way"
        );
        homes.end_writes([BlockNumber(5)].into_iter());
        homes.remove_written(&[(BlockNumber(5), Tid(1))]);
        assert_eq!(homes.versions.len(), 1);
    }
}
