//! The journal's statistics, for tuning and tests.

use std::time::Duration;

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::{Counter, time};

/// Counts since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Handles started.
    pub handles: u64,
    /// Starts that waited for the next transaction because this one had no credits left.
    pub waits: u64,
    /// Times that a handle needed more credits than it had started with.
    pub shortfalls: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Blocks committed (to the log, or home where there is none).
    pub blocks: u64,
    /// Log blocks used: for committed blocks and for the records that describe them.
    pub log_blocks: u64,
    /// Revokes recorded.
    pub revokes: u64,
    /// Times that blocks were written home from the log.
    pub checkpoints: u64,
    /// Blocks written home from the log.
    pub blocks_home: u64,
    /// Times that a commit waited for space in the log.
    pub log_waits: u64,
    /// How long the commits took, step by step.
    pub times: CommitTimes,
}

/// For how long the committer was at each step of its commits, all of them together. Every
/// operation waits for the first step; for the whole of a commit only those that want it durable,
/// or its freed space, or credits that the next transaction has no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes {
    /// Closing the transaction: waiting for its handles, the client's closing changes, opening the
    /// next transaction.
    pub closing: Duration,
    /// Capturing what its objects owe.
    pub capturing: Duration,
    /// Making the blocks: reading those that are not in memory, merging the captures, checksums,
    /// and releasing the objects.
    pub sealing: Duration,
    /// Waiting for space in the log.
    pub reserving: Duration,
    /// Writing the log, with ordered data and flushes (home, where there is none).
    pub writing: Duration,
    /// Telling those who wait, and making freed space usable.
    pub completing: Duration,
}

/// The counters behind [`Statistics`]. Only `handles` is on a path that must not write a shared
/// cache line.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) handles: Counter,
    pub(crate) waits: AtomicU64,
    pub(crate) shortfalls: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) log_blocks: AtomicU64,
    pub(crate) revokes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) blocks_home: AtomicU64,
    pub(crate) log_waits: AtomicU64,
    pub(crate) times: TimeCounts,
}

/// The nanoseconds behind [`CommitTimes`]; only the committer writes them.
#[derive(Default)]
pub(crate) struct TimeCounts {
    pub(crate) closing: AtomicU64,
    pub(crate) capturing: AtomicU64,
    pub(crate) sealing: AtomicU64,
    pub(crate) reserving: AtomicU64,
    pub(crate) writing: AtomicU64,
    pub(crate) completing: AtomicU64,
}

impl TimeCounts {
    fn read(&self) -> CommitTimes {
        let read = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        CommitTimes {
            closing: read(&self.closing),
            capturing: read(&self.capturing),
            sealing: read(&self.sealing),
            reserving: read(&self.reserving),
            writing: read(&self.writing),
            completing: read(&self.completing),
        }
    }
}

/// Runs one step of a commit and adds its time to `total`.
pub(crate) fn timed<R>(total: &AtomicU64, step: impl FnOnce() -> R) -> R {
    let start = time::now();
    let result = step();
    let taken = time::now().saturating_sub(start).as_nanos();
    total.fetch_add(u64::try_from(taken).unwrap_or(u64::MAX), Ordering::Relaxed);
    result
}

impl Counts {
    pub(crate) fn read(&self) -> Statistics {
        Statistics {
            handles: u64::try_from(self.handles.sum()).unwrap_or(0),
            waits: self.waits.load(Ordering::Relaxed),
            shortfalls: self.shortfalls.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            blocks: self.blocks.load(Ordering::Relaxed),
            log_blocks: self.log_blocks.load(Ordering::Relaxed),
            revokes: self.revokes.load(Ordering::Relaxed),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            blocks_home: self.blocks_home.load(Ordering::Relaxed),
            log_waits: self.log_waits.load(Ordering::Relaxed),
            times: self.times.read(),
        }
    }
}

/// Adds `amount` to one of the counts.
pub(crate) fn count(what: &AtomicU64, amount: usize) {
    what.fetch_add(amount as u64, Ordering::Relaxed);
}
