//! The journal's statistics, for tuning and tests.

use std::time::Duration;

use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::{Counter, time};

/// Counts since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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

/// A step of a commit. Every operation waits for the first one. Only those that want the
/// transaction durable, or its freed space, or credits that the next transaction no longer has,
/// wait for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// Closing the transaction: waiting for its handles, the client's closing changes, opening the
    /// next transaction.
    Closing,
    /// Capturing what its objects owe.
    Capturing,
    /// Making the blocks: reading those that are not in memory, merging the captures, checksums,
    /// and releasing the objects.
    Sealing,
    /// Waiting for space in the log.
    Reserving,
    /// Writing the log, with ordered data and flushes (home, where there is none).
    Writing,
    /// Telling those who wait, and making freed space usable.
    Completing,
}

impl CommitStep {
    /// All steps, in the order in which a commit takes them.
    pub const ALL: [Self; 6] = [
        Self::Closing,
        Self::Capturing,
        Self::Sealing,
        Self::Reserving,
        Self::Writing,
        Self::Completing,
    ];

    /// What the committer does in it, in a few words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Closing => "closing",
            Self::Capturing => "capturing",
            Self::Sealing => "sealing",
            Self::Reserving => "reserving log space",
            Self::Writing => "writing",
            Self::Completing => "completing",
        }
    }
}

/// For how long the committer was at each step, all commits together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes([Duration; CommitStep::ALL.len()]);

impl CommitTimes {
    /// The time of a step.
    #[must_use]
    pub fn of(&self, step: CommitStep) -> Duration {
        self.0[step as usize]
    }
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
pub(crate) struct TimeCounts([AtomicU64; CommitStep::ALL.len()]);

impl TimeCounts {
    fn read(&self) -> CommitTimes {
        let read = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        CommitTimes(self.0.each_ref().map(read))
    }

    /// Runs a step of a commit and counts its time.
    pub(crate) fn count<R>(&self, step: CommitStep, run: impl FnOnce() -> R) -> R {
        let start = time::now();
        let result = run();
        let taken = time::now().saturating_sub(start).as_nanos();
        let taken = u64::try_from(taken).unwrap_or(u64::MAX);
        self.0[step as usize].fetch_add(taken, Ordering::Relaxed);
        result
    }
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
