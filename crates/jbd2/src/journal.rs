//! The journal as the layer above sees it, and the state its threads share.
//!
//! Life: opened over a device whose log has been recovered; used; shut down, which commits and
//! writes everything home and leaves an empty log. A journal that is dropped without a shutdown
//! stops where it stands, like after a power cut: what was acknowledged is in the log. After an
//! abort nothing is written any more and every call returns the error that caused it.
//!
//! Locking: one mutex of class `Journal` for what the committer is asked to do and for those who
//! wait for it. Handles do not take it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pext4_block::{Cache, Device};
use pext4_ondisk::Tid;
use pext4_ondisk::journal::{JournalSuperblock, RecordFormat};
use pext4_sync::atomic::{AtomicU8, AtomicU32, Ordering};
use pext4_sync::thread::JoinHandle;
use pext4_sync::{Class, Condvar, Mutex, order, thread, time};

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::commit::Committer;
use crate::credits::{Credits, limit_of_log, limit_of_memory};
use crate::epoch::{self, Epoch, Place};
use crate::error::JournalError;
use crate::handle::Handle;
use crate::log_area::LogArea;
use crate::log_writer::{LogWriter, Ring};
use crate::statistics::{Counts, Statistics, count};
use crate::superblock::SuperblockFile;
use crate::transaction::Transactions;

/// What a journal is opened with.
pub struct Config {
    /// The cache that the file system's metadata blocks are in.
    pub cache: Arc<Cache>,
    /// The device that holds the file system and its journal.
    pub device: Arc<dyn Device>,
    /// The journal on disk; `None` for a file system without one.
    pub log: Option<Log>,
    /// The layer above.
    pub client: Arc<dyn Client>,
    /// How long a change may stay without a commit.
    pub commit_interval: Duration,
}

/// A journal on disk, recovered.
pub struct Log {
    /// Where it lies.
    pub area: LogArea,
    /// Its superblock, as [`recovery`](crate::recovery) left it.
    pub superblock: JournalSuperblock,
}

/// The journal of one mounted file system.
pub struct Journal {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the journal's threads and its handles share.
pub(crate) struct Core {
    pub(crate) cache: Arc<Cache>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) log: Option<LogCore>,
    pub(crate) epoch: Epoch,
    pub(crate) credits: Credits,
    pub(crate) transactions: Transactions,
    pub(crate) statistics: Counts,
    commit_interval: Duration,
    /// [atomic] The last durable transaction.
    durable: AtomicU32,
    /// [atomic] The last one whose frees are reusable.
    settled: AtomicU32,
    /// [atomic] One of `RUNNING`, `CLOSING`, `ABORTED`.
    condition: AtomicU8,
    /// Set once, before `condition` says so.
    failure: OnceLock<JournalError>,
    orders: Mutex<Orders>,
    /// The committer's sleep.
    work: Condvar,
    /// Those who wait for a commit.
    done: Condvar,
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

/// Intervals below this would only keep the committer awake.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

const RUNNING: u8 = 0;
const CLOSING: u8 = 1;
const ABORTED: u8 = 2;

/// What the committer is asked to do.
#[derive(Default)]
struct Orders {
    /// Commit up to this transaction.
    commit: Option<Tid>,
    /// The client has been told of the abort.
    told: bool,
    end: bool,
}

/// What the committer does next.
pub(crate) enum Wish {
    Commit,
    /// The interval is over: see whether there is anything to commit.
    Look,
    TellAbort(JournalError),
    End,
}

impl Journal {
    /// Opens the journal and starts its threads. Nothing is written before the first commit.
    ///
    /// # Errors
    ///
    /// If the log has not been recovered, uses unknown features, or is too small to hold a
    /// transaction, and if the system gives no threads.
    pub fn open(config: Config) -> Result<Arc<Self>, JournalError> {
        let core = Arc::new(Core::new(config)?);
        let mut threads = vec![spawn("jbd2-commit", &core, |core| {
            Committer::new(core).run()
        })?];
        if core.log.is_some() {
            match spawn("jbd2-checkpoint", &core, run_checkpointer) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    core.end();
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(Self {
            core,
            threads: Mutex::new(Class::Journal, threads),
        }))
    }

    /// Starts a handle with `credits` for an operation: the number of blocks that it dirties or
    /// forgets at most. Waits while the transaction is being closed or has no credits left.
    ///
    /// # Errors
    ///
    /// `TooLarge` if no transaction could ever grant it; the error of an abort; `ShutDown`.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>, JournalError> {
        Handle::start(&self.core, credits)
    }

    /// The most credits that one handle can start with.
    #[must_use]
    pub fn most_credits(&self) -> u32 {
        self.core.credits.limit()
    }

    /// The running transaction.
    #[must_use]
    pub fn running(&self) -> Tid {
        self.core.epoch.running()
    }

    /// Whether `tid` is durable.
    #[must_use]
    pub fn is_durable(&self, tid: Tid) -> bool {
        Tid(self.core.durable.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    /// Makes `tid` durable and waits for it; what it freed may be used again. Never inside a
    /// handle.
    ///
    /// # Errors
    ///
    /// Of the abort, if the journal stopped first.
    pub fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        self.core.commit(tid)
    }

    /// Makes everything durable that handles stopped before this call have done, and waits for
    /// it. Does nothing if there is nothing; see [`Journal::flush_data`] then. Never inside a
    /// handle.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn commit_running(&self) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        self.core.check_not_aborted()?;
        let tid = self.core.epoch.running();
        let clean = self.core.transactions.is_clean(tid);
        // Its lists are emptied only after it has been closed, so if it still runs they were empty.
        if clean && self.core.epoch.running() == tid {
            return self.core.commit(tid.previous());
        }
        self.core.commit(tid)
    }

    /// Asks for a commit of what is running, without waiting.
    pub fn request_commit(&self) {
        self.core.request(self.core.epoch.running());
    }

    /// Flushes the device: for an fsync of data whose metadata is durable already. A failure stops
    /// the journal, since nobody knows what was lost.
    ///
    /// # Errors
    ///
    /// `Io`, or the error of an abort.
    pub fn flush_data(&self) -> Result<(), JournalError> {
        self.core.check_not_aborted()?;
        self.core.device.flush().map_err(|cause| {
            let error = JournalError::io("flushing data")(cause);
            self.core.abort(error.clone());
            error
        })
    }

    /// Commits, writes everything home, leaves an empty log, and ends the threads. Handles cannot
    /// be started any more. Calling it again does nothing.
    ///
    /// # Errors
    ///
    /// If not all of that could be done; the log is left for recovery then.
    pub fn shutdown(&self) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        let result = self.core.close();
        self.stop_threads();
        result
    }

    /// Stops the journal for good: nothing more is written, those who wait get the error. Allowed
    /// anywhere, inside a handle too.
    pub fn abort(&self, reason: &str) {
        self.core.abort(JournalError::Aborted(reason.into()));
    }

    /// The error that stopped the journal, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.core.failure.get().cloned()
    }

    /// What the journal did so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics.read()
    }

    fn stop_threads(&self) {
        self.core.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The last reference may go away in a callback, on a thread of the journal itself.
            if is_current(&thread) {
                continue;
            }
            // A thread that panicked has aborted the journal, which is told elsewhere.
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

fn is_current(thread: &JoinHandle<()>) -> bool {
    #[cfg(not(loom))]
    return thread.thread().id() == std::thread::current().id();
    #[cfg(loom)]
    return thread.thread().id() == loom::thread::current().id();
}

fn spawn(name: &str, core: &Arc<Core>, body: fn(&Core)) -> Result<JoinHandle<()>, JournalError> {
    let core = Arc::clone(core);
    thread::try_spawn(name, move || {
        let _watch = Watch(&core);
        body(&core);
    })
    .map_err(JournalError::io("starting a thread of the journal"))
}

fn run_checkpointer(core: &Core) {
    let log = core.log.as_ref().expect("started only with a log");
    if let Err(error) = log.checkpoint.run(&core.statistics) {
        core.abort(error);
    }
}

/// Turns a panic of one of the threads into an abort, so that nobody waits for ever.
struct Watch<'a>(&'a Core);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(JournalError::Aborted(
                "a thread of the journal panicked".into(),
            ));
        }
    }
}

impl Core {
    fn new(config: Config) -> Result<Self, JournalError> {
        let Config {
            cache,
            device,
            log,
            client,
            commit_interval,
        } = config;
        let block_size = cache.block_size();
        let memory = limit_of_memory(cache.capacity() / block_size as u64);
        let first = log.as_ref().map_or(Tid(1), |log| log.superblock.sequence);
        let log = log
            .map(|log| LogCore::new(log, &device, &cache))
            .transpose()?;
        let limit = log.as_ref().map_or(memory, |log| {
            memory.min(limit_of_log(&log.format, log.ring.blocks()))
        });
        if limit == 0 {
            return Err(JournalError::TooLarge { asked: 1, limit });
        }
        Ok(Self {
            cache,
            device,
            client,
            log,
            epoch: Epoch::new(epoch::words(), first),
            credits: Credits::new(limit),
            transactions: Transactions::new(),
            statistics: Counts::default(),
            commit_interval: commit_interval.max(SHORTEST_INTERVAL),
            durable: AtomicU32::new(first.previous().0),
            settled: AtomicU32::new(first.previous().0),
            condition: AtomicU8::new(RUNNING),
            failure: OnceLock::new(),
            orders: Mutex::new(Class::Journal, Orders::default()),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// Enters the running transaction with credits, waiting for another one if this has none.
    pub(crate) fn enter(&self, credits: u32) -> Result<Place, JournalError> {
        let limit = self.credits.limit();
        if credits > limit {
            return Err(JournalError::TooLarge {
                asked: credits,
                limit,
            });
        }
        loop {
            let place = self.epoch.enter().ok_or_else(|| self.why_stopped())?;
            // After entering: a shutdown waits for whoever saw the journal running.
            if let Err(error) = self.check_running() {
                self.epoch.leave(place);
                return Err(error);
            }
            if self.credits.take(place.tid, place.shard, credits) {
                return Ok(place);
            }
            self.epoch.leave(place);
            count(&self.statistics.waits, 1);
            self.request(place.tid);
            if !self.epoch.wait_for_next(place.tid) {
                return Err(self.why_stopped());
            }
        }
    }

    /// Fails unless the journal takes changes.
    pub(crate) fn check_running(&self) -> Result<(), JournalError> {
        match self.condition.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            _ => Err(self.why_stopped()),
        }
    }

    /// The reason of an abort; the last commit of a journal that is shut down may still be written.
    pub(crate) fn check_not_aborted(&self) -> Result<(), JournalError> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Whether no transaction follows the running one.
    pub(crate) fn is_closing(&self) -> bool {
        self.condition.load(Ordering::Acquire) == CLOSING
    }

    /// Whether the journal has been aborted.
    pub(crate) fn has_stopped(&self) -> bool {
        self.failure.get().is_some()
    }

    fn why_stopped(&self) -> JournalError {
        self.failure
            .get()
            .cloned()
            .unwrap_or(JournalError::ShutDown)
    }

    /// Asks the committer for `tid`.
    pub(crate) fn request(&self, tid: Tid) {
        let mut orders = self.orders.lock();
        if orders.commit.is_none_or(|asked| tid.is_after(asked)) {
            orders.commit = Some(tid);
        }
        drop(orders);
        self.work.notify_one();
    }

    fn is_settled(&self, tid: Tid) -> bool {
        Tid(self.settled.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        if self.is_settled(tid) {
            return Ok(());
        }
        debug_assert!(!tid.is_after(self.epoch.running()), "{tid:?} has not begun");
        self.request(tid);
        let mut orders = self.orders.lock();
        while !self.is_settled(tid) {
            if let Some(failure) = self.failure.get() {
                return Err(failure.clone());
            }
            if orders.end {
                return Err(JournalError::ShutDown);
            }
            self.done.wait(&mut orders);
        }
        Ok(())
    }

    /// The committer's sleep. `last_look` is when it last looked for something to commit unasked.
    pub(crate) fn wait_for_wish(&self, last_look: Duration) -> Wish {
        let mut orders = self.orders.lock();
        loop {
            if let Some(error) = self.failure.get().filter(|_| !orders.told) {
                orders.told = true;
                return Wish::TellAbort(error.clone());
            }
            if orders.end {
                return Wish::End;
            }
            if self.has_stopped() {
                self.work.wait(&mut orders);
                continue;
            }
            let running = self.epoch.running();
            if orders
                .commit
                .is_some_and(|asked| asked.is_at_or_after(running))
            {
                return Wish::Commit;
            }
            let passed = time::now().saturating_sub(last_look);
            let Some(left) = self
                .commit_interval
                .checked_sub(passed)
                .filter(|t| !t.is_zero())
            else {
                return Wish::Look;
            };
            self.work.wait_for(&mut orders, left);
        }
    }

    pub(crate) fn note_durable(&self, tid: Tid) {
        self.durable.store(tid.0, Ordering::Release);
    }

    pub(crate) fn note_settled(&self, tid: Tid) {
        self.settled.store(tid.0, Ordering::Release);
        drop(self.orders.lock());
        self.done.notify_all();
    }

    /// Stops everything; the first error counts. The committer tells the client.
    pub(crate) fn abort(&self, error: JournalError) {
        if self.failure.set(error).is_err() {
            return;
        }
        self.condition.store(ABORTED, Ordering::Release);
        self.epoch.stop();
        if let Some(log) = &self.log {
            log.checkpoint.stop();
        }
        drop(self.orders.lock());
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Leaves the error on disk, if the device still takes it, and with the client.
    pub(crate) fn tell_abort(&self, error: &JournalError) {
        if let Some(log) = &self.log {
            // The device may be what failed.
            let _ = log.superblock.record_error(error.recorded());
        }
        self.client.aborted(error);
    }

    /// Commits what there is and brings everything home.
    fn close(&self) -> Result<(), JournalError> {
        let begun =
            self.condition
                .compare_exchange(RUNNING, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        match begun {
            Ok(_) => {}
            Err(CLOSING) => return Ok(()),
            Err(_) => return Err(self.why_stopped()),
        }
        // Even a clean one: it waits for the handles that are still open.
        let last = self.epoch.running();
        self.commit(last)?;
        match &self.log {
            Some(log) => log
                .checkpoint
                .finish(last.next())
                .map_err(|error| self.blame(error)),
            None => Ok(()),
        }
    }

    /// The reason behind an error of someone who was sent away.
    fn blame(&self, error: JournalError) -> JournalError {
        self.failure.get().cloned().unwrap_or(error)
    }

    /// Ends the threads and lets everyone who waits go.
    fn end(&self) {
        self.orders.lock().end = true;
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
        } = log;
        check_log(&superblock)?;
        // On disk with the first commit; the log is empty until then.
        superblock.upgrade(device.size() / cache.block_size() as u64 > u64::from(u32::MAX));
        let area = Arc::new(area);
        let format = RecordFormat::of(&superblock);
        let ring = Ring {
            first: superblock.first,
            end: superblock.log_end(),
        };
        let uuid = superblock.uuid;
        let file = SuperblockFile::new(Arc::clone(device), Arc::clone(&area), superblock);
        let file = Arc::new(file);
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

    /// The head of the log, for the committer.
    pub(crate) fn writer(&self) -> LogWriter {
        let (device, area) = (Arc::clone(&self.device), Arc::clone(&self.area));
        LogWriter::new(device, area, self.format, self.uuid, self.ring)
    }
}

fn check_log(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if superblock.start != 0 {
        let problem = "the log has not been replayed";
        return Err(pext4_ondisk::Corrupt::new("journal", problem).into());
    }
    if let Some(features) = superblock.incompat.unknown() {
        return Err(JournalError::Unsupported(features));
    }
    if !superblock.read_only_compat.is_empty() {
        let features = superblock.read_only_compat.bits();
        return Err(JournalError::Unsupported(format!(
            "features {features:#x} (ro_compat)"
        )));
    }
    Ok(())
}
