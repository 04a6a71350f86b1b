//! The journal as the layer above sees it.
//!
//! Life cycle: opened over a device whose log has been recovered; used; shut down, which commits,
//! writes everything home and leaves an empty log. If a journal is dropped without a shutdown, the
//! image is as after a power cut: acknowledged changes are in the log. After an abort nothing is
//! written any more, and every call returns the error that caused it.
//!
//! The journal owns two threads, the committer and, if there is a log, the checkpointer; what they
//! and the handles share is `Core`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Cache, Device};
use pext4_ondisk::Tid;
use pext4_ondisk::journal::JournalSuperblock;
use pext4_sync::thread::JoinHandle;
use pext4_sync::{Class, Mutex, order, thread};

use crate::client::Client;
use crate::commit::Committer;
use crate::core::Core;
use crate::error::JournalError;
use crate::handle::Handle;
use crate::log_area::LogArea;
use crate::statistics::Statistics;

/// The arguments of [`Journal::open`].
pub struct Config {
    /// The cache of the file system's metadata blocks.
    pub cache: Arc<Cache>,
    /// The device that holds the file system and its journal.
    pub device: Arc<dyn Device>,
    /// The journal on disk; `None` for a file system without one.
    pub log: Option<Log>,
    /// The layer above.
    pub client: Arc<dyn Client>,
    /// The interval between automatic commits.
    pub commit_interval: Duration,
    /// The width of its mechanisms.
    pub width: JournalWidth,
}

impl fmt::Debug for Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Config")
            .field("commit_interval", &self.commit_interval)
            .finish_non_exhaustive()
    }
}

/// The width of the journal's mechanisms; `None` chooses by the number of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalWidth {
    /// The number of words on which open handles are counted, each with its own credits and lists.
    pub handle_shards: Option<usize>,
    /// The number of threads that make the bytes of a large commit.
    pub commit_threads: Option<usize>,
}

/// A journal on disk, recovered.
pub struct Log {
    /// Its blocks on the device.
    pub area: LogArea,
    /// Its superblock, as [`recovery`](crate::recovery) left it.
    pub superblock: JournalSuperblock,
    /// Whether an empty log keeps its checksum features. On a file system without metadata
    /// checksums it drops them, as in Linux, so that programs that do not know them can read the
    /// image.
    pub keeps_checksums: bool,
}

impl Log {
    /// The number of the first transaction. An empty log may contain a whole transaction of the
    /// number that its superblock names, if whoever wrote it was interrupted before the log began
    /// with it. So that number is not used again.
    pub(crate) fn first_tid(&self) -> Tid {
        self.superblock.sequence.next()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Log")
            .field("keeps_checksums", &self.keeps_checksums)
            .finish_non_exhaustive()
    }
}

/// The journal of one mounted file system.
pub struct Journal {
    pub(crate) core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal and starts its threads. Nothing is written before the first commit.
    ///
    /// # Errors
    ///
    /// If the log has not been recovered, uses unknown features, or is too small to hold a
    /// transaction, and if a thread cannot be started.
    pub fn open(config: Config) -> Result<Arc<Self>, JournalError> {
        let core = Arc::new(Core::new(config)?);
        let mut threads = vec![spawn("jbd2-commit", &core, run_committer)?];
        if core.log.is_some() {
            match spawn("jbd2-checkpoint", &core, run_checkpointer) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    core.stop_threads();
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(Self {
            core,
            threads: Mutex::new(Class::Journal, threads),
        }))
    }

    /// Durably clears the error that an earlier abort recorded on disk. The caller has recorded it
    /// in the file system before.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn clear_error(&self) -> Result<(), JournalError> {
        let log = self.core.log.as_ref();
        log.map_or(Ok(()), |log| log.superblock.clear_error())
    }

    /// Starts a handle with `credits`: the maximum number of blocks that the operation dirties or
    /// forgets. Waits while the transaction is being closed or has too few credits left.
    ///
    /// # Errors
    ///
    /// `TooLarge` if `credits` exceeds those of a whole transaction; the error of an abort;
    /// `ShutDown`.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>, JournalError> {
        Handle::start(&self.core, credits)
    }

    /// The maximum number of credits that one handle can start with.
    #[must_use]
    pub fn max_credits(&self) -> u32 {
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
        self.core.is_durable(tid)
    }

    /// Makes `tid` durable and waits for that. The blocks that it freed may not be reusable yet.
    /// Must not be called inside a handle.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn make_durable(&self, tid: Tid) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        self.core.make_durable(tid)
    }

    /// Makes `tid` durable and waits until that is done and the blocks that it freed may be reused.
    /// Must not be called inside a handle.
    ///
    /// # Errors
    ///
    /// The error of an abort; `ShutDown`.
    pub fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        self.core.commit(tid)
    }

    /// Makes the changes of all handles that stopped before this call durable, and waits until that
    /// is done and the blocks that they freed may be reused. If there are none, it does nothing and
    /// does not flush; see [`Journal::flush_data`]. Must not be called inside a handle.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn commit_running(&self) -> Result<(), JournalError> {
        let last = self.last_changed()?;
        self.core.commit(last)
    }

    /// As [`Journal::commit_running`], but the freed blocks may not be reusable yet.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn make_running_durable(&self) -> Result<(), JournalError> {
        let last = self.last_changed()?;
        self.core.make_durable(last)
    }

    /// The running transaction, or the one before it if the running one has no changes.
    fn last_changed(&self) -> Result<Tid, JournalError> {
        order::check(Class::HandleStart);
        self.core.check_notified()?;
        let tid = self.core.epoch.running();
        let clean = self.core.transactions.is_clean(tid);
        // Its lists are emptied only after it was closed. If it still runs, they were empty all
        // along.
        if clean && self.core.epoch.running() == tid {
            return Ok(tid.previous());
        }
        Ok(tid)
    }

    /// Makes the changes of all handles that stopped before this call durable, writes them home,
    /// and waits until the log does not hold them any more. Without a log this is a commit. Must
    /// not be called inside a handle.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        self.commit_running()?;
        let last = self.core.epoch.running().previous();
        self.core.bring_home(last)
    }

    /// Asks for a commit of the running transaction, without waiting.
    pub fn request_commit(&self) {
        self.core.request_commit(self.core.epoch.running());
    }

    /// Flushes the device: for an fsync of data whose metadata is durable already. A failure aborts
    /// the journal, since it is unknown which writes were lost.
    ///
    /// # Errors
    ///
    /// `Io`, or the error of an abort.
    pub fn flush_data(&self) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        self.core.check_notified()?;
        if let Err(cause) = self.core.device.flush() {
            self.core.abort(JournalError::io("flushing data")(cause));
        }
        self.core.check_notified()
    }

    /// Commits, writes everything home, leaves an empty log, and ends the threads. No handle can be
    /// started afterwards. A call during or after another one does nothing, and does not wait for
    /// it.
    ///
    /// # Errors
    ///
    /// If any of that failed; the log is then left for recovery.
    pub fn shutdown(&self) -> Result<(), JournalError> {
        order::check(Class::HandleStart);
        let closed = self.core.commit_last();
        if !matches!(closed, Ok(false)) {
            self.stop_threads();
        }
        closed.map(drop)
    }

    /// Stops the journal permanently: nothing more is written, and waiting threads get the error.
    /// May be called anywhere, even inside a handle.
    pub fn abort(&self, reason: &str) {
        self.core.abort(JournalError::Aborted(reason.into()));
    }

    /// As [`Self::abort`], for a failure of the device.
    pub fn abort_by_device(&self, reason: &str) {
        self.core
            .abort(JournalError::AbortedByDevice(reason.into()));
    }

    /// The error that stopped the journal, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.core.failure()
    }

    /// Counts since the journal was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics.read()
    }

    /// Whether no shutdown and no abort has begun.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_running(&self) -> bool {
        self.core.check_running().is_ok()
    }

    fn stop_threads(&self) {
        self.core.stop_threads();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The last reference may be dropped in a callback, on a thread of the journal itself.
            if thread::is_current(&thread) {
                continue;
            }
            // A thread that panicked has aborted the journal, which is reported elsewhere.
            let _ = thread.join();
        }
        self.core.transactions.clear();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

fn spawn(name: &str, core: &Arc<Core>, body: fn(&Core)) -> Result<JoinHandle<()>, JournalError> {
    let core = Arc::clone(core);
    thread::try_spawn(name, move || {
        let _guard = AbortOnPanic(&core);
        body(&core);
    })
    .map_err(JournalError::io("starting a thread of the journal"))
}

/// Runs the committer. If a commit panics, the thread continues only to notify the client of the
/// abort.
fn run_committer(core: &Core) {
    let _guard = NotificationGuard(core);
    let worked = catch_unwind(AssertUnwindSafe(|| Committer::new(core).run()));
    if worked.is_err() {
        core.abort(panicked());
        core.give_up_notification();
        Committer::new(core).run();
    }
}

fn run_checkpointer(core: &Core) {
    let log = core.log.as_ref().expect("started only with a log");
    if let Err(error) = log.checkpoint.run(&core.statistics) {
        core.abort(error);
    }
}

fn panicked() -> JournalError {
    JournalError::Aborted("a thread of the journal panicked".into())
}

/// Turns a panic of one of the threads into an abort, so that no thread waits forever.
struct AbortOnPanic<'a>(&'a Core);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(panicked());
        }
    }
}

/// Ends the wait for the client's notification if the committer's thread ends by a panic: no thread
/// is left to notify the client.
struct NotificationGuard<'a>(&'a Core);

impl Drop for NotificationGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.finish_notification();
        }
    }
}
