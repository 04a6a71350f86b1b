//! Counts what the journal did in a window, and fills the log nearly to its end before the window.

use std::time::Duration;

use anyhow::Result;
use pext4_fs::{SetAttributes, Volume};
use pext4_lab::target::{Library, Node, Target};
use pext4_sync::time;

use crate::parts::PartRate;
use crate::setup::{Counted, Setup};

/// The last 1/8 of the log is filled while the tasks run; the rest is filled before they start.
const LEFT_TO_TASKS: u64 = 8;

/// The journal's counters at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) time: Duration,
    commits: u64,
    logged: u64,
    checkpoints: u64,
    credit_waits: u64,
    log_waits: u64,
}

impl Mark {
    /// The current counters.
    pub(crate) fn now(volume: &Volume) -> Self {
        let journal = volume.journal_statistics().unwrap_or_default();
        Self {
            time: time::now(),
            commits: journal.commits,
            logged: journal.log_blocks,
            checkpoints: journal.checkpoints,
            credit_waits: journal.waits,
            log_waits: journal.log_waits,
        }
    }

    fn lap(self, setup: &Setup) -> u64 {
        self.logged / lap_length(setup.journal_blocks)
    }

    /// Whether a window that began here and ends at `now` is long enough.
    pub(crate) fn is_enough(self, now: Self, setup: &Setup) -> bool {
        let elapsed = now.time - self.time;
        let whole = now.commits >= self.commits + 3
            && now.checkpoints > self.checkpoints
            && now.lap(setup) > self.lap(setup);
        elapsed >= setup.longest || (elapsed >= setup.window && whole)
    }

    /// The counters of a window from here to `end`; the CPU time of the tasks is not known yet.
    pub(crate) fn counted(
        self,
        end: Self,
        setup: &Setup,
        parts: Vec<PartRate>,
        operations: u64,
    ) -> Counted {
        Counted {
            parts,
            operations,
            elapsed: end.time - self.time,
            commits: end.commits - self.commits,
            logged: end.logged - self.logged,
            checkpoints: end.checkpoints - self.checkpoints,
            credit_waits: end.credit_waits - self.credit_waits,
            log_waits: end.log_waits - self.log_waits,
            wrapped: end.lap(setup) > self.lap(setup),
            all_operations: 0,
            cpu: Duration::ZERO,
        }
    }
}

/// Blocks of a journal that the log cycles through: all but the journal's superblock.
fn lap_length(journal_blocks: u32) -> u64 {
    u64::from(journal_blocks).saturating_sub(1).max(1)
}

/// Fills the log with half of it checkpointed on the way, so that half is in use soon after the log
/// wraps: both the next checkpoint and the end of the log are then just ahead of the window. Leaves
/// the last part of the log to the tasks.
pub(crate) fn make_due(library: &Library, journal_blocks: u32) -> Result<()> {
    let length = lap_length(journal_blocks);
    let half = length / 2;
    fill_log(library, journal_blocks, |left, last| {
        left < half && left + last >= half
    })?;
    library.volume().checkpoint()?;
    fill_log(library, journal_blocks, |left, _| {
        left <= length / LEFT_TO_TASKS
    })
}

/// Commits until `is_enough` accepts the blocks that are left before the log wraps, given also the
/// blocks that the last commit took.
pub(crate) fn fill_log(
    library: &Library,
    journal_blocks: u32,
    mut is_enough: impl FnMut(u64, u64) -> bool,
) -> Result<()> {
    let volume = library.volume();
    let Node::Held(home) = *library.root() else {
        return Ok(());
    };
    let logged = || Mark::now(volume).logged;
    let length = lap_length(journal_blocks);
    let mut before = logged();
    for permissions in [0o700, 0o750]
        .into_iter()
        .cycle()
        .take(journal_blocks as usize)
    {
        let change = SetAttributes {
            permissions: Some(permissions),
            ..SetAttributes::default()
        };
        volume.set_attributes(home, &change)?;
        volume.sync()?;
        let now = logged();
        if is_enough(length - now % length, now - before) {
            break;
        }
        before = now;
    }
    Ok(())
}
