//! The journal's statistics, for tuning and tests.

use pext4_sync::Counter;
use pext4_sync::atomic::{AtomicU64, Ordering};

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
        }
    }
}

/// Adds `amount` to one of the counts.
pub(crate) fn count(what: &AtomicU64, amount: usize) {
    what.fetch_add(amount as u64, Ordering::Relaxed);
}
