//! What the journal's threads and its handles share.
//!
//! Locking: one mutex of class `Journal` for what the committer is asked to do and for those who
//! wait for it. Handles take it only when they must wait. Whether the journal still runs is an
//! atomic that a start reads after it has entered the epoch, so a shutdown, which sets it and then
//! commits, waits for every handle that saw it running.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pext4_block::{Cache, Device, FailStopDevice};
use pext4_ondisk::journal::{JournalSuperblock, RecordFormat};
use pext4_ondisk::{BlockNumber, Corrupt, Tid};
use pext4_sync::atomic::{AtomicU8, AtomicU32, Ordering};
use pext4_sync::{Class, Condvar, Mutex, MutexGuard, time, topology};

use crate::checkpoint::Checkpoint;
use crate::client::Client;
use crate::credits::{Credits, Taken, limit_of_log, limit_of_memory};
use crate::epoch::{self, Epoch, Place};
use crate::error::JournalError;
use crate::hosts::Hosts;
use crate::journal::{Config, Log};
use crate::log_area::LogArea;
use crate::log_writer::{LogWriter, Ring};
use crate::recovery::check_writable;
use crate::statistics::{Counts, count};
use crate::superblock::SuperblockFile;
use crate::transaction::Transactions;

/// What the journal's threads and its handles share.
pub(crate) struct Core {
    pub(crate) cache: Arc<Cache>,
    /// The one through which everything in this crate flushes: a failure is everybody's.
    pub(crate) device: Arc<dyn Device>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) log: Option<LogCore>,
    pub(crate) epoch: Epoch,
    pub(crate) credits: Credits,
    pub(crate) hosts: Hosts,
    pub(crate) transactions: Transactions,
    pub(crate) statistics: Counts,
    /// [immutable] Threads that make the bytes of a large commit.
    pub(crate) commit_threads: usize,
    commit_interval: Duration,
    /// [atomic] The last durable transaction.
    durable: AtomicU32,
    /// [atomic] The last one whose frees are reusable.
    settled: AtomicU32,
    /// [atomic] One of `RUNNING`, `CLOSING`, `ABORTED`.
    condition: AtomicU8,
    /// Set once, before `condition` says so.
    failure: OnceLock<JournalError>,
    /// Set once, by a shutdown: no handle starts in a later one.
    last: OnceLock<Tid>,
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

/// More threads than this make no commit faster: they wait for the same device.
const MOST_THREADS: usize = 8;

const RUNNING: u8 = 0;
const CLOSING: u8 = 1;
const ABORTED: u8 = 2;

/// What the committer is asked to do.
#[derive(Default)]
struct Orders {
    /// Commit up to this transaction.
    commit: Option<Tid>,
    telling: Telling,
    end: bool,
}

/// How far telling the client of an abort has come.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Telling {
    #[default]
    NotYet,
    Begun,
    /// Nothing more comes.
    Over,
}

/// What the committer does next.
pub(crate) enum Wish {
    Commit,
    /// The interval is over: see whether there is anything to commit.
    Look,
    TellAbort(JournalError),
    End,
}

impl Core {
    /// Everything but the threads.
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
        let first = log.as_ref().map_or(Tid(1), |log| log.superblock.sequence);
        let log = log
            .map(|log| LogCore::new(log, &device, &cache))
            .transpose()?;
        let shape = log.as_ref().map(|log| (log.format, log.ring));
        let limit = most_credits(&cache, shape)?;
        Ok(Self {
            cache,
            device,
            client,
            log,
            epoch: Epoch::new(epoch::words(width.handle_shards), first),
            commit_threads: width
                .commit_threads
                .unwrap_or(MOST_THREADS.min(topology::shard_count())),
            credits: Credits::new(limit),
            hosts: Hosts::new(),
            transactions: Transactions::new(),
            statistics: Counts::default(),
            commit_interval: commit_interval.max(SHORTEST_INTERVAL),
            durable: AtomicU32::new(first.previous().0),
            settled: AtomicU32::new(first.previous().0),
            condition: AtomicU8::new(RUNNING),
            failure: OnceLock::new(),
            last: OnceLock::new(),
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
            match self.credits.take(place.tid, place.shard, credits) {
                Taken::All => return Ok(place),
                Taken::AllOfFew => {
                    self.request(place.tid);
                    return Ok(place);
                }
                Taken::Nothing => self.epoch.leave(place),
            }
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

    /// The reason of an abort, once the client knows of it too: whoever learns of a failure from a
    /// call finds what the client makes of it. Never inside a handle, and not on the committer.
    pub(crate) fn check_told(&self) -> Result<(), JournalError> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => {
                self.wait_until_told(self.orders.lock());
                Err(failure.clone())
            }
        }
    }

    fn wait_until_told(&self, mut orders: MutexGuard<'_, Orders>) {
        while orders.telling != Telling::Over && !orders.end {
            self.done.wait(&mut orders);
        }
    }

    /// Nobody waits any more for the client to be told.
    pub(crate) fn note_told(&self) {
        self.orders.lock().telling = Telling::Over;
        self.done.notify_all();
    }

    /// Where telling the client has begun it came to nothing; nobody waits for it any more.
    pub(crate) fn give_up_telling(&self) {
        if self.orders.lock().telling == Telling::Begun {
            self.note_told();
        }
    }

    /// The reason of an abort; the last commit of a journal that is shut down may still be written.
    pub(crate) fn check_not_aborted(&self) -> Result<(), JournalError> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Whether a shutdown has chosen `tid` as the last transaction.
    pub(crate) fn is_last(&self, tid: Tid) -> bool {
        self.last.get() == Some(&tid)
    }

    /// Whether the journal has been aborted.
    pub(crate) fn has_stopped(&self) -> bool {
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

    /// Asks the committer for `tid`.
    pub(crate) fn request(&self, tid: Tid) {
        let mut orders = self.orders.lock();
        if orders.commit.is_none_or(|asked| tid.is_after(asked)) {
            orders.commit = Some(tid);
        }
        drop(orders);
        self.work.notify_one();
    }

    /// Whether `tid` is durable.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        Tid(self.durable.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    fn is_settled(&self, tid: Tid) -> bool {
        Tid(self.settled.load(Ordering::Acquire)).is_at_or_after(tid)
    }

    /// Has `tid` committed and waits for it.
    pub(crate) fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        if self.is_settled(tid) {
            return Ok(());
        }
        let running = self.epoch.running();
        debug_assert!(!tid.is_after(running), "{tid:?} has not begun");
        // Waiting for one that has not begun could last for ever.
        let tid = if tid.is_after(running) { running } else { tid };
        self.request(tid);
        let mut orders = self.orders.lock();
        while !self.is_settled(tid) {
            if let Some(failure) = self.failure.get() {
                self.wait_until_told(orders);
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
            let is_told = orders.telling != Telling::NotYet;
            if let Some(error) = self.failure.get().filter(|_| !is_told) {
                orders.telling = Telling::Begun;
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
        self.note_told();
    }

    /// Commits what there is and brings everything home.
    pub(crate) fn close(&self) -> Result<(), JournalError> {
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
        let chosen = self.last.set(last);
        debug_assert!(chosen.is_ok(), "a journal closes once");
        self.commit(last)?;
        self.check_not_aborted()?;
        match &self.log {
            Some(log) => log
                .checkpoint
                .finish(last.next())
                .map_err(|error| self.blame(error)),
            None => Ok(()),
        }
    }

    /// Brings transactions up to `tid` home, as far as they are durable.
    pub(crate) fn bring_home(&self, tid: Tid) -> Result<(), JournalError> {
        match &self.log {
            Some(log) => log
                .checkpoint
                .bring_home(tid)
                .map_err(|error| self.blame(error)),
            None => Ok(()),
        }
    }

    /// The reason behind an error of someone who was sent away.
    fn blame(&self, error: JournalError) -> JournalError {
        self.failure.get().cloned().unwrap_or(error)
    }

    /// Ends the threads and lets everyone who waits go.
    pub(crate) fn end(&self) {
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
        // On disk with the first commit; the log is empty until then.
        let (format, ring) = prepare(&mut superblock, &**device)?;
        let area = Arc::new(area);
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

    /// Whether a block of the device is part of the journal.
    pub(crate) fn owns(&self, block: BlockNumber) -> bool {
        self.area.contains(block)
    }

    /// The head of the log, for the committer.
    pub(crate) fn writer(&self) -> LogWriter {
        let (device, area) = (Arc::clone(&self.device), Arc::clone(&self.area));
        LogWriter::new(device, area, self.format, self.uuid, self.ring)
    }
}

/// Gives an empty log our own features; answers how it will be written, and where.
pub(crate) fn prepare(
    superblock: &mut JournalSuperblock,
    device: &dyn Device,
) -> Result<(RecordFormat, Ring), JournalError> {
    check_log(superblock)?;
    let blocks = device.size() / u64::from(superblock.block_size);
    superblock.upgrade(blocks > u64::from(u32::MAX));
    let ring = Ring {
        first: superblock.first,
        end: superblock.log_end(),
    };
    Ok((RecordFormat::of(superblock), ring))
}

/// The most credits that a transaction can have with this cache and log; an error if there are none.
fn most_credits(cache: &Cache, log: Option<(RecordFormat, Ring)>) -> Result<u32, JournalError> {
    let memory = limit_of_memory(cache.capacity() / cache.block_size() as u64);
    let limit = log.map_or(memory, |(format, ring)| {
        memory.min(limit_of_log(&format, ring.blocks()))
    });
    match limit {
        0 => Err(JournalError::TooLarge { asked: 1, limit }),
        limit => Ok(limit),
    }
}

fn check_log(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if superblock.start != 0 {
        let problem = "the log has not been replayed";
        return Err(Corrupt::new("journal", problem).into());
    }
    check_writable(superblock)
}
