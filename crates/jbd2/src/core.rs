//! What the journal's threads and its handles share.
//!
//! Locking: one mutex of class `Journal` protects the requests to the committer, and threads that
//! wait for the committer sleep under it. Handles take it only when they must wait. Whether the
//! journal still runs is an atomic. The start of a handle reads it after it has entered the epoch,
//! so a shutdown, which sets it and then commits, waits for every handle that saw the journal
//! running.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pext4_block::{Cache, Device, FailStopDevice};
use pext4_ondisk::journal::{JournalSuperblock, RecordFormat};
use pext4_ondisk::{BlockNumber, Corrupt, Tid};
use pext4_sync::atomic::{AtomicU8, AtomicU32, Ordering};
use pext4_sync::{CachePadded, Class, Condvar, Mutex, MutexGuard, time, topology};

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::credits::{Credits, Grant, limit_of_log, limit_of_memory};
use crate::epoch::{self, Entered, Epoch};
use crate::error::JournalError;
use crate::hosts::Hosts;
use crate::journal::{Config, Log};
use crate::ledger::Ledger;
use crate::log_area::LogArea;
use crate::log_writer::LogWriter;
use crate::ring::Ring;
use crate::statistics::{Counts, count};
use crate::superblock::{SuperblockFile, check_writable};
use crate::transaction::Transactions;

/// What the journal's threads and its handles share.
pub(crate) struct Core {
    pub(crate) cache: Arc<Cache>,
    /// Everything in this crate flushes through this one, so that a failed flush fails all later
    /// ones.
    pub(crate) device: Arc<dyn Device>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) log: Option<LogCore>,
    pub(crate) epoch: Epoch,
    pub(crate) credits: Credits,
    pub(crate) hosts: Hosts,
    pub(crate) ledger: Ledger,
    pub(crate) transactions: Transactions,
    pub(crate) statistics: Counts,
    /// [immutable] The number of threads that make the bytes of a large commit.
    pub(crate) commit_threads: usize,
    commit_interval: Duration,
    /// [atomic] The last durable transaction.
    durable: AtomicU32,
    /// [atomic] The last transaction whose freed blocks are reusable.
    completed: AtomicU32,
    /// [atomic] One of `RUNNING`, `CLOSING`, `ABORTED`.
    condition: AtomicU8,
    /// The error of the abort. Set once, before `condition` becomes `ABORTED`.
    pub(crate) failure: OnceLock<JournalError>,
    /// The last transaction: no handle starts in a later one. Set once, by a shutdown.
    last: OnceLock<Tid>,
    /// The requests to the committer. On cache lines of their own, like the two condition variables
    /// below: every start of a handle reads the fields above.
    requests: CachePadded<Mutex<CommitRequests>>,
    /// The committer sleeps here.
    work: CachePadded<Condvar>,
    /// Threads that wait for a commit sleep here.
    done: CachePadded<Condvar>,
}

/// The journal on disk.
pub(crate) struct LogCore {
    area: Arc<LogArea>,
    device: Arc<dyn Device>,
    format: RecordFormat,
    uuid: [u8; 16],
    ring: Ring,
    pub(crate) superblock: Arc<SuperblockFile>,
    pub(crate) checkpoint: Checkpoint,
}

/// The minimum commit interval: a shorter one would only keep the committer awake.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The default maximum of commit threads. More make no commit faster: they wait for the same
/// device.
const MAX_THREADS: usize = 8;

const RUNNING: u8 = 0;
const CLOSING: u8 = 1;
const ABORTED: u8 = 2;

/// What the committer is asked to do.
#[derive(Default)]
struct CommitRequests {
    /// Commit up to this transaction.
    commit: Option<Tid>,
    notification: Notification,
    exit: bool,
}

/// The state of [`Client::aborted`]'s call.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Notification {
    #[default]
    NotStarted,
    Started,
    /// It has returned, or will never be called.
    Finished,
}

/// What the committer does next.
pub(crate) enum Command {
    Commit,
    /// The interval is over: check whether there is anything to commit.
    CheckClean,
    NotifyAbort(JournalError),
    Exit,
}

impl Core {
    /// Makes everything except the threads.
    pub(crate) fn new(config: Config) -> Result<Self, JournalError> {
        let Config {
            cache,
            device,
            log,
            client,
            commit_interval,
            width,
        } = config;
        let device: Arc<dyn Device> = Arc::new(FailStopDevice::new(device));
        let first = log.as_ref().map_or(Tid(1), Log::first_tid);
        let log = log
            .map(|log| LogCore::new(log, &device, &cache))
            .transpose()?;
        let shape = log.as_ref().map(|log| (log.format, log.ring));
        let limit = max_credits(&cache, shape)?;
        let words = epoch::words(width.handle_shards);
        let shards = words.count();
        Ok(Self {
            cache,
            device,
            client,
            log,
            epoch: Epoch::new(words, first),
            commit_threads: width
                .commit_threads
                .unwrap_or(MAX_THREADS.min(topology::shard_count())),
            credits: Credits::new(limit, shards),
            hosts: Hosts::new(shards),
            ledger: Ledger::new(shards),
            transactions: Transactions::new(),
            statistics: Counts::default(),
            commit_interval: commit_interval.max(SHORTEST_INTERVAL),
            durable: AtomicU32::new(first.previous().0),
            completed: AtomicU32::new(first.previous().0),
            condition: AtomicU8::new(RUNNING),
            failure: OnceLock::new(),
            last: OnceLock::new(),
            requests: CachePadded::new(Mutex::new(Class::Journal, CommitRequests::default())),
            work: CachePadded::new(Condvar::new()),
            done: CachePadded::new(Condvar::new()),
        })
    }

    /// Enters the running transaction with `credits`. If it has fewer left, these are promised, and
    /// the start enters the next one that it finds open.
    pub(crate) fn enter(&self, credits: u32) -> Result<Entered, JournalError> {
        let limit = self.credits.limit();
        if credits > limit {
            return Err(JournalError::TooLarge {
                asked: credits,
                limit,
            });
        }
        let mut is_promised = false;
        loop {
            let place = self.epoch.enter().ok_or_else(|| self.why_stopped())?;
            // After entering: a shutdown waits for every handle that saw the journal running.
            if let Err(error) = self.check_running() {
                self.epoch.leave(place);
                return Err(error);
            }
            if is_promised {
                self.credits.redeem(credits);
                return Ok(place);
            }
            if self.take_credits(place.tid, place.shard, credits) {
                return Ok(place);
            }
            // Before leaving: the next transaction is refilled after this handle has stopped.
            is_promised = self.credits.promise(credits);
            self.epoch.leave(place);
            count(&self.statistics.waits, 1);
            self.request_commit(place.tid);
            if !self.epoch.wait_for_next(place.tid) {
                return Err(self.why_stopped());
            }
        }
    }

    /// Takes credits for a handle of this shard; false if there are too few. If few are left, the
    /// transaction is committed.
    pub(crate) fn take_credits(&self, tid: Tid, shard: usize, count: u32) -> bool {
        let grant = self.credits.take(tid, shard, count);
        if grant == Grant::GrantedLow {
            self.request_commit(tid);
        }
        grant.is_granted()
    }

    /// Fails unless the journal accepts changes.
    pub(crate) fn check_running(&self) -> Result<(), JournalError> {
        match self.condition.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            _ => Err(self.why_stopped()),
        }
    }

    /// If the journal was aborted, waits until the client has been notified and returns the error:
    /// a caller that learns of a failure also sees how the client reacted to it. Must not be called
    /// inside a handle or on the committer's thread.
    pub(crate) fn check_notified(&self) -> Result<(), JournalError> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => {
                self.wait_until_notified(self.requests.lock());
                Err(failure.clone())
            }
        }
    }

    fn wait_until_notified(&self, mut requests: MutexGuard<'_, CommitRequests>) {
        while requests.notification != Notification::Finished && !requests.exit {
            self.done.wait(&mut requests);
        }
    }

    /// Ends the wait of all threads that wait for the client's notification.
    pub(crate) fn finish_notification(&self) {
        self.requests.lock().notification = Notification::Finished;
        self.done.notify_all();
    }

    /// Ends a notification of the client that began and did not succeed, so that no thread waits
    /// for it.
    pub(crate) fn give_up_notification(&self) {
        if self.requests.lock().notification == Notification::Started {
            self.finish_notification();
        }
    }

    /// Fails with the error of an abort, if there was one. A shutdown alone is no failure here: its
    /// last commit is still written.
    pub(crate) fn check_not_aborted(&self) -> Result<(), JournalError> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Whether a shutdown has chosen `tid`, or one before it, as the last transaction. A later one
    /// is empty, and is committed only if somebody asks for it during the shutdown.
    pub(crate) fn is_last(&self, tid: Tid) -> bool {
        self.last
            .get()
            .is_some_and(|&last| tid.is_at_or_after(last))
    }

    /// Whether the journal has been aborted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.failure.get().is_some()
    }

    /// The error of the abort, if there was one.
    pub(crate) fn failure(&self) -> Option<JournalError> {
        self.failure.get().cloned()
    }

    fn why_stopped(&self) -> JournalError {
        self.failure
            .get()
            .cloned()
            .unwrap_or(JournalError::ShutDown)
    }

    /// Asks the committer to commit `tid`, without waiting.
    pub(crate) fn request_commit(&self, tid: Tid) {
        let mut requests = self.requests.lock();
        if requests.commit.is_none_or(|asked| tid.is_after(asked)) {
            requests.commit = Some(tid);
        }
        drop(requests);
        self.work.notify_one();
    }

    /// Whether `tid` is durable.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        Tid(self.durable.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    fn is_completed(&self, tid: Tid) -> bool {
        Tid(self.completed.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    /// Asks for a commit of `tid` and waits until it is durable.
    pub(crate) fn make_durable(&self, tid: Tid) -> Result<(), JournalError> {
        self.commit_until(tid, Self::is_durable)
    }

    /// Asks for a commit of `tid` and waits until its freed blocks are reusable.
    pub(crate) fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        self.commit_until(tid, Self::is_completed)
    }

    fn commit_until(
        &self,
        tid: Tid,
        is_reached: fn(&Self, Tid) -> bool,
    ) -> Result<(), JournalError> {
        if is_reached(self, tid) {
            return Ok(());
        }
        let running = self.epoch.running();
        debug_assert!(!tid.is_after(running), "{tid:?} has not begun");
        // Waiting for a transaction that has not begun could last forever.
        let tid = if tid.is_after(running) { running } else { tid };
        self.request_commit(tid);
        let mut requests = self.requests.lock();
        while !is_reached(self, tid) {
            if let Some(failure) = self.failure.get() {
                self.wait_until_notified(requests);
                return Err(failure.clone());
            }
            if requests.exit {
                return Err(JournalError::ShutDown);
            }
            self.done.wait(&mut requests);
        }
        Ok(())
    }

    /// Waits until there is something to do for the committer. `last_check` is the time of its last
    /// [`Command::CheckClean`].
    pub(crate) fn next_command(&self, last_check: Duration) -> Command {
        let mut requests = self.requests.lock();
        loop {
            let is_notified = requests.notification != Notification::NotStarted;
            if let Some(error) = self.failure.get().filter(|_| !is_notified) {
                requests.notification = Notification::Started;
                return Command::NotifyAbort(error.clone());
            }
            if requests.exit {
                return Command::Exit;
            }
            if self.is_aborted() {
                self.work.wait(&mut requests);
                continue;
            }
            let running = self.epoch.running();
            if requests
                .commit
                .is_some_and(|asked| asked.is_at_or_after(running))
            {
                return Command::Commit;
            }
            let passed = time::now().saturating_sub(last_check);
            let Some(left) = self
                .commit_interval
                .checked_sub(passed)
                .filter(|t| !t.is_zero())
            else {
                return Command::CheckClean;
            };
            self.work.wait_for(&mut requests, left);
        }
    }

    pub(crate) fn note_durable(&self, tid: Tid) {
        self.durable.store(tid.0, Ordering::Release);
        self.wake_waiting();
    }

    pub(crate) fn note_completed(&self, tid: Tid) {
        self.completed.store(tid.0, Ordering::Release);
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        // A thread that has checked and does not wait yet holds this lock.
        drop(self.requests.lock());
        self.done.notify_all();
    }

    /// Stops everything; only the first error is kept. The committer notifies the client.
    pub(crate) fn abort(&self, error: JournalError) {
        if self.failure.set(error).is_err() {
            return;
        }
        self.refuse_work();
        drop(self.requests.lock());
        self.work.notify_all();
        self.done.notify_all();
    }

    fn refuse_work(&self) {
        self.condition.store(ABORTED, Ordering::Release);
        self.epoch.stop();
        if let Some(log) = &self.log {
            log.checkpoint.stop();
        }
    }

    /// Records the error on disk, if the device still accepts writes, and notifies the client.
    pub(crate) fn notify_abort(&self, error: &JournalError) {
        // The thread that aborts may have come no further than to the error.
        self.refuse_work();
        if let Some(log) = &self.log {
            // This fails if the device caused the abort.
            let _ = log.superblock.record_error(error.errno());
            // The client may change a block at home that is just being written there.
            log.checkpoint.wait_for_writes();
        }
        self.client.aborted(error);
        self.finish_notification();
    }

    /// Commits the running transaction and writes everything home. Does nothing and returns false
    /// during or after another call.
    pub(crate) fn commit_last(&self) -> Result<bool, JournalError> {
        let begun =
            self.condition
                .compare_exchange(RUNNING, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        match begun {
            Ok(_) => {}
            Err(CLOSING) => return Ok(false),
            Err(_) => return Err(self.why_stopped()),
        }
        // Even if it is clean: the commit waits for the handles that are still open. A start in a
        // later transaction sees that the journal closes.
        let last = self.epoch.last_running();
        let chosen = self.last.set(last);
        debug_assert!(chosen.is_ok(), "a journal closes once");
        self.commit(last)?;
        self.check_not_aborted()?;
        if let Some(log) = &self.log {
            let finished = log.checkpoint.finish(last.next());
            finished.map_err(|error| {
                self.abort(error.clone());
                self.blame(error)
            })?;
        }
        Ok(true)
    }

    /// Writes home the durable transactions up to `tid`.
    pub(crate) fn bring_home(&self, tid: Tid) -> Result<(), JournalError> {
        match &self.log {
            Some(log) => log
                .checkpoint
                .bring_home(tid)
                .map_err(|error| self.blame(error)),
            None => Ok(()),
        }
    }

    /// The error of the abort that caused `error`, or `error` itself if there was no abort.
    fn blame(&self, error: JournalError) -> JournalError {
        self.failure.get().cloned().unwrap_or(error)
    }

    /// Ends the threads and every wait.
    pub(crate) fn stop_threads(&self) {
        self.requests.lock().exit = true;
        self.epoch.stop();
        if let Some(log) = &self.log {
            log.checkpoint.stop();
        }
        self.work.notify_all();
        self.done.notify_all();
    }
}

impl LogCore {
    fn new(log: Log, device: &Arc<dyn Device>, cache: &Arc<Cache>) -> Result<Self, JournalError> {
        let Log {
            area,
            mut superblock,
            keeps_checksums,
        } = log;
        // The new features reach the disk with the first commit; the log is empty until then.
        let (format, ring) = prepare(&mut superblock, &**device)?;
        let area = Arc::new(area);
        let uuid = superblock.uuid;
        let (home, place) = (Arc::clone(device), Arc::clone(&area));
        let file = Arc::new(SuperblockFile::new(
            home,
            place,
            superblock,
            keeps_checksums,
        ));
        let checkpoint = Checkpoint::new(
            Arc::clone(device),
            Arc::clone(cache),
            Arc::clone(&file),
            ring,
        );
        let device = Arc::clone(device);
        Ok(Self {
            area,
            device,
            format,
            uuid,
            ring,
            superblock: file,
            checkpoint,
        })
    }

    /// Whether a block of the device is part of the journal.
    pub(crate) fn owns(&self, block: BlockNumber) -> bool {
        self.area.contains(block)
    }

    /// A writer at the head of the log, for the committer.
    pub(crate) fn writer(&self) -> LogWriter {
        let (device, area) = (Arc::clone(&self.device), Arc::clone(&self.area));
        LogWriter::new(device, area, self.format, self.uuid, self.ring)
    }
}

/// Sets our own features in the superblock of an empty log; returns the format and the blocks of
/// its records.
pub(crate) fn prepare(
    superblock: &mut JournalSuperblock,
    device: &dyn Device,
) -> Result<(RecordFormat, Ring), JournalError> {
    check_log(superblock)?;
    let blocks = device.size() / u64::from(superblock.block_size);
    superblock.upgrade(blocks > u64::from(u32::MAX));
    Ok((RecordFormat::of(superblock), Ring::of(superblock)))
}

/// The maximum credits of a transaction with this cache and log; an error if that is 0.
fn max_credits(cache: &Cache, log: Option<(RecordFormat, Ring)>) -> Result<u32, JournalError> {
    let memory = limit_of_memory(cache.capacity() / cache.block_size() as u64);
    let Some((format, ring)) = log else {
        return Ok(memory);
    };
    match limit_of_log(&format, ring.blocks()) {
        0 => {
            let problem = format!("a log of {} blocks is too short", ring.blocks());
            Err(Corrupt::new("journal superblock", problem).into())
        }
        limit => Ok(memory.min(limit)),
    }
}

fn check_log(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if superblock.start != 0 {
        let problem = "the log has not been replayed";
        return Err(Corrupt::new("journal", problem).into());
    }
    check_writable(superblock)
}
