//! The journal as the layer above sees it.
//!
//! Life: opened over a device whose log has been recovered; used; shut down, which commits and
//! writes everything home and leaves an empty log. A journal that is dropped without a shutdown
//! stops where it stands, like after a power cut: what was acknowledged is in the log. After an
//! abort nothing is written any more and every call returns the error that caused it.
//!
//! It owns two threads, the committer and the checkpointer; what they and the handles share is
//! `Core`.

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
    /// How wide its mechanisms are.
    pub width: Width,
}

/// How wide the journal's mechanisms are; `None` is as wide as the machine suggests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Width {
    /// Words on which open handles are counted, with credits and lists of their own.
    pub handle_shards: Option<usize>,
    /// Threads that make the bytes of a large commit.
    pub commit_threads: Option<usize>,
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

impl Journal {
    /// Opens the journal and starts its threads. Nothing is written before the first commit.
    ///
    /// # Errors
    ///
    /// If the log has not been recovered, uses unknown features, or is too small to hold a
    /// transaction, and if the system gives no threads.
    pub fn open(config: Config) -> Result<Arc<Self>, JournalError> {
        let core = Arc::new(Core::new(config)?);
        let mut threads = vec![spawn("jbd2-commit", &core, run_committer)?];
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

    /// Forgets the error that an earlier abort left on disk, durably: for when the file system has noted it.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn clear_error(&self) -> Result<(), JournalError> {
        let log = self.core.log.as_ref();
        log.map_or(Ok(()), |log| log.superblock.clear_error())
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
        self.core.is_durable(tid)
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
        self.core.check_told()?;
        let tid = self.core.epoch.running();
        let clean = self.core.transactions.is_clean(tid);
        // Its lists are emptied only after it has been closed, so if it still runs they were empty.
        if clean && self.core.epoch.running() == tid {
            return self.core.commit(tid.previous());
        }
        self.core.commit(tid)
    }

    /// Makes everything durable that handles stopped before this call have done, writes it home, and
    /// waits until the log does not hold it any more. Where there is no log it is a commit. Never
    /// inside a handle.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        self.commit_running()?;
        let last = self.core.epoch.running().previous();
        self.core.bring_home(last)
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
        order::check(Class::HandleStart);
        self.core.check_told()?;
        if let Err(cause) = self.core.device.flush() {
            self.core.abort(JournalError::io("flushing data")(cause));
        }
        self.core.check_told()
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

    /// As [`Self::abort`], where it is the device that failed.
    pub fn abort_by_device(&self, reason: &str) {
        self.core
            .abort(JournalError::AbortedByDevice(reason.into()));
    }

    /// The error that stopped the journal, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<JournalError> {
        self.core.failure()
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
            if thread::is_current(&thread) {
                continue;
            }
            // A thread that panicked has aborted the journal, which is told elsewhere.
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
        let _watch = Watch(&core);
        body(&core);
    })
    .map_err(JournalError::io("starting a thread of the journal"))
}

/// Where a commit panics the thread goes on, to tell the client of the abort as of any other: all it does from then on
/// is that.
fn run_committer(core: &Core) {
    let _teller = Teller(core);
    let worked = catch_unwind(AssertUnwindSafe(|| Committer::new(core).run()));
    if worked.is_err() {
        core.abort(panicked());
        core.give_up_telling();
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

/// Turns a panic of one of the threads into an abort, so that nobody waits for ever.
struct Watch<'a>(&'a Core);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(panicked());
        }
    }
}

/// Where the client panics as it is told of an abort nobody is left to tell it, and nobody may wait for that.
struct Teller<'a>(&'a Core);

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note_told();
        }
    }
}
