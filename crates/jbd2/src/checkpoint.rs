//! The checkpoint: writes durable transactions home and so frees space in the log.
//!
//! [`HomeWrites`] holds what has to be written home: the last durable version of each block. A pass
//! writes some of these versions, sorted and coalesced, flushes, and only then removes them. Then
//! it durably moves the start of the log past the transactions that have no version left, and only
//! then frees their space. If a later transaction wrote a block again, only that later version is
//! written home, since the log holds all of it.
//!
//! The checkpointer's thread makes a pass when the log is more than half full, when the versions
//! take too much of the cache, when the committer needs space, and on request, as at shutdown. It
//! waits for no other thread, so other threads, the committer too, may wait for it (rule 2).
//!
//! Locking: [`HomeWrites`] is under one lock of class `Checkpoint`, which is not held during I/O;
//! versions being written are marked as in flight instead.

mod home_writes;

use std::sync::Arc;

use pext4_block::{Cache, Device, Page, write_pages};
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::{Class, Condvar, Mutex, PanicWatch};

use crate::error::JournalError;
use crate::log_writer::Logged;
use crate::merge::Version;
use crate::ring::Ring;
use crate::statistics::{Counts, count};
use crate::superblock::SuperblockFile;
use home_writes::{HomeWrites, Tail};

/// The maximum number of versions written between two holds of the lock.
const BATCH: usize = 1024;

/// The durable versions that are not home yet, and the log space they hold.
pub(crate) struct Checkpoint {
    device: Arc<dyn Device>,
    cache: Arc<Cache>,
    superblock: Arc<SuperblockFile>,
    /// If more versions than this are in memory, a pass writes some home; if twice as many, the
    /// next commit waits, so that a slow device does not make a large log stay in memory as a
    /// whole.
    max_pinned: usize,
    homes: Mutex<HomeWrites>,
    /// Signalled after changes of `homes` that a thread may wait for.
    changed: Condvar,
}

impl Checkpoint {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        cache: Arc<Cache>,
        superblock: Arc<SuperblockFile>,
        ring: Ring,
    ) -> Self {
        let share = cache.capacity() / 4 / cache.block_size() as u64;
        Self {
            device,
            cache,
            superblock,
            max_pinned: usize::try_from(share).unwrap_or(usize::MAX).max(BATCH),
            homes: Mutex::new(Class::Checkpoint, HomeWrites::new(ring)),
            changed: Condvar::new(),
        }
    }

    /// Waits until the log has room for `blocks` and memory for their versions. Only the committer
    /// takes room, by [`Checkpoint::add`]. Returns whether it had to wait.
    pub(crate) fn reserve(&self, tid: Tid, blocks: usize) -> Result<bool, JournalError> {
        let mut homes = self.homes.lock();
        let log = homes.capacity();
        let wanted = u32::try_from(blocks).ok().filter(|wanted| *wanted <= log);
        let wanted = wanted.ok_or(JournalError::Overflow {
            tid,
            needed: blocks,
            log,
        })?;
        let mut waited = false;
        while homes.free() < wanted || homes.pinned() > 2 * self.max_pinned {
            if homes.stopped {
                return Err(JournalError::ShutDown);
            }
            waited = true;
            homes.wanted = wanted;
            self.changed.notify_all();
            self.changed.wait(&mut homes);
        }
        homes.wanted = 0;
        Ok(waited)
    }

    /// Takes over the versions of a transaction that has become durable.
    pub(crate) fn add(&self, tid: Tid, logged: Logged, versions: Vec<Version>) {
        let mut homes = self.homes.lock();
        homes.add(tid, logged, versions);
        self.changed.notify_all();
    }

    /// Cancels the home writes of blocks that a durable transaction has freed, waiting for those
    /// being written (rules 6 and D2), and takes them out of the cache, unless the next transaction
    /// has begun to use them again.
    pub(crate) fn cancel(&self, freed: &[BlockNumber]) {
        for &block in freed {
            let mut homes = self.homes.lock();
            while homes.is_in_flight(block) && !homes.stopped {
                self.changed.wait(&mut homes);
            }
            if homes.stopped {
                // No block is reused any more, and a write in flight may never finish.
                return;
            }
            homes.cancel(block);
            drop(homes);
            self.cache.discard(block);
        }
        self.changed.notify_all();
    }

    /// Writes transactions up to `tid` home, and waits until the log does not hold them any more.
    pub(crate) fn bring_home(&self, tid: Tid) -> Result<(), JournalError> {
        let mut homes = self.homes.lock();
        homes.ask(tid);
        self.changed.notify_all();
        while homes.holds(tid) {
            if homes.stopped {
                return Err(JournalError::ShutDown);
            }
            self.changed.wait(&mut homes);
        }
        Ok(())
    }

    /// Writes everything home and declares the log empty; `next` is the next transaction.
    pub(crate) fn finish(&self, next: Tid) -> Result<(), JournalError> {
        self.bring_home(next.previous())?;
        if self.homes.lock().stopped {
            return Err(JournalError::ShutDown);
        }
        self.superblock.finish(next)
    }

    /// Ends the thread after its current write, and every wait for it.
    pub(crate) fn stop(&self) {
        self.homes.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits until nothing is being written home any more, after [`Checkpoint::stop`].
    pub(crate) fn wait_for_writes(&self) {
        let mut homes = self.homes.lock();
        while homes.has_in_flight() && !homes.is_abandoned {
            self.changed.wait(&mut homes);
        }
    }

    /// The thread's loop: makes passes until it is stopped or one fails.
    pub(crate) fn run(&self, counts: &Counts) -> Result<(), JournalError> {
        while let Some(target) = self.wait_for_work() {
            self.pass(target, counts)?;
        }
        Ok(())
    }

    /// Waits until versions are to be written home; returns up to which transaction, or `None` to
    /// end.
    fn wait_for_work(&self) -> Option<Tid> {
        let mut homes = self.homes.lock();
        loop {
            if homes.stopped {
                return None;
            }
            if let Some(target) = homes.target(self.max_pinned) {
                return Some(target);
            }
            self.changed.wait(&mut homes);
        }
    }

    fn pass(&self, target: Tid, counts: &Counts) -> Result<(), JournalError> {
        let written = self.write_home(target)?;
        if !written.is_empty() {
            self.device
                .flush()
                .map_err(JournalError::io("flushing blocks written home"))?;
        }
        count(&counts.checkpoints, 1);
        count(&counts.blocks_home, written.len());
        let tail = {
            let mut homes = self.homes.lock();
            if homes.stopped {
                // After an abort the log stays as it is: the client may be changing the superblock
                // on the device at the same time.
                return Ok(());
            }
            homes.remove_written(&written);
            homes.tail()
        };
        match tail {
            Some(tail) => self.move_tail(tail),
            None => Ok(()),
        }
    }

    /// Writes all versions up to `target` without a flush; returns which ones.
    fn write_home(&self, target: Tid) -> Result<Vec<(BlockNumber, Tid)>, JournalError> {
        let mut written = Vec::new();
        let mut from = Some(BlockNumber(0));
        while let Some(start) = from {
            let batch = self.begin_writes(start, target);
            let Some((last, _, _)) = batch.last() else {
                break;
            };
            from = last.checked_add(1u32);
            let pages: Vec<_> = batch
                .iter()
                .map(|(block, _, page)| (*block, page.clone()))
                .collect();
            let in_flight = InFlight {
                checkpoint: self,
                pages: &pages,
                panic: PanicWatch::new(),
            };
            let result = write_pages(&*self.device, &pages);
            drop(in_flight);
            written.extend(batch.iter().map(|(block, tid, _)| (*block, *tid)));
            result.map_err(JournalError::io("writing blocks home"))?;
        }
        Ok(written)
    }

    /// Marks the next versions as in flight and returns them; none after an abort.
    fn begin_writes(&self, start: BlockNumber, target: Tid) -> Vec<(BlockNumber, Tid, Page)> {
        let mut homes = self.homes.lock();
        match homes.stopped {
            true => Vec::new(),
            false => homes.begin_writes(start, target, BATCH),
        }
    }

    /// Moves the start of the log durably, then frees the space before it.
    fn move_tail(&self, tail: Tail) -> Result<(), JournalError> {
        self.superblock.move_start(tail.start, tail.tid)?;
        self.homes.lock().free_before(tail);
        self.changed.notify_all();
        Ok(())
    }
}

/// Versions that are being written home, until this is dropped. After a panic of the device nobody
/// knows what was written: they stay in flight, and nobody waits for them.
struct InFlight<'a> {
    checkpoint: &'a Checkpoint,
    pages: &'a [(BlockNumber, Page)],
    panic: PanicWatch,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let blocks = self.pages.iter().map(|(block, _)| *block);
        let mut homes = self.checkpoint.homes.lock();
        match self.panic.has_panicked() {
            true => homes.is_abandoned = true,
            false => homes.end_writes(blocks),
        }
        drop(homes);
        self.checkpoint.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::time::Duration;

    use pext4_block::RamDevice;
    use pext4_ondisk::journal::JournalSuperblock;
    use pext4_sync::thread;

    use super::*;
    use crate::log_area::LogArea;
    use crate::recovery;

    const BLOCK: u32 = 1024;
    const RING: Ring = Ring { first: 1, end: 21 };

    /// A device that delays writes of its first block, the journal's superblock.
    struct SlowStart(RamDevice);

    impl Device for SlowStart {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, into)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            if offset == 0 {
                thread::sleep(Duration::from_millis(20));
            }
            self.0.write_at(offset, from)
        }

        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
    }

    #[test]
    fn a_commit_waits_while_too_many_versions_are_in_memory() {
        const LOG: u32 = 4000;
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(16 << 20));
        let cache = Arc::new(Cache::new(Arc::clone(&device), BLOCK, 1 << 20));
        let area = Arc::new(LogArea::new(BLOCK, &[(BlockNumber(0), LOG)]).expect("one run"));
        let superblock = JournalSuperblock::new(BLOCK, LOG, [0; 16]);
        let file = SuperblockFile::new(Arc::clone(&device), area, superblock, true);
        file.begin(1, Tid(7)).expect("a ram device works");
        let ring = Ring { first: 1, end: LOG };
        let checkpoint = Checkpoint::new(device, Arc::clone(&cache), Arc::new(file), ring);
        let versions = (0..2 * BATCH as u64 + 1).map(|number| {
            let buffer = cache.get_zeroed(BlockNumber(5000 + number));
            let (block, page) = (buffer.block(), buffer.page());
            Version {
                block,
                page,
                buffer,
            }
        });
        let logged = Logged {
            start: 1,
            blocks: 2100,
        };
        checkpoint.add(Tid(7), logged, versions.collect());
        let counts = Counts::default();
        thread::scope(|scope| {
            let committer = scope.spawn(|| checkpoint.reserve(Tid(8), 10));
            while checkpoint.homes.lock().wanted == 0 {
                assert!(
                    !committer.is_finished(),
                    "there was log for it, but no memory"
                );
                thread::sleep(Duration::from_millis(1));
            }
            scope.spawn(|| checkpoint.run(&counts).expect("a ram device works"));
            let waited = committer.join().expect("no panic").expect("it gets room");
            assert!(waited && checkpoint.homes.lock().pinned() <= 2 * BATCH);
            checkpoint.stop();
        });
    }

    #[test]
    fn room_is_given_only_when_the_start_has_moved_durably() {
        let device: Arc<dyn Device> = Arc::new(SlowStart(RamDevice::new(1 << 20)));
        let cache = Arc::new(Cache::new(Arc::clone(&device), BLOCK, 1 << 20));
        let area = Arc::new(LogArea::new(BLOCK, &[(BlockNumber(0), 21)]).expect("one run"));
        let superblock = JournalSuperblock::new(BLOCK, 21, [0; 16]);
        let file = SuperblockFile::new(Arc::clone(&device), Arc::clone(&area), superblock, true);
        file.begin(1, Tid(7)).expect("a ram device works");
        let checkpoint = Checkpoint::new(
            Arc::clone(&device),
            Arc::clone(&cache),
            Arc::new(file),
            RING,
        );
        for (tid, start) in [(7, 1), (8, 11)] {
            let buffer = cache.get_zeroed(BlockNumber(u64::from(100 + start)));
            let version = Version {
                block: buffer.block(),
                page: buffer.page(),
                buffer,
            };
            checkpoint.add(Tid(tid), Logged { start, blocks: 10 }, vec![version]);
        }
        let counts = Counts::default();
        thread::scope(|scope| {
            scope.spawn(|| checkpoint.run(&counts).expect("a ram device works"));
            for (room, start, sequence) in [(3, 11, 8), (12, 1, 9)] {
                checkpoint.reserve(Tid(9), room).expect("room is made");
                let read = recovery::read_superblock(&device, &area).expect("it is there");
                assert_eq!((read.start, read.sequence), (start, Tid(sequence)));
            }
            let refused = checkpoint
                .reserve(Tid(9), 21)
                .expect_err("more than the log");
            assert!(matches!(refused, JournalError::Overflow { .. }));
            checkpoint.stop();
        });
    }
}
