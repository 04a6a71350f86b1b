//! The committer: one thread that turns the running transaction into a durable one.
//!
//! The steps: close and drain the epoch, let the client make its closing changes, open the next
//! transaction, capture, merge and seal, write, complete. No handle can start until the next
//! transaction is open; from then on the commit runs beside it. A large transaction is captured and
//! sealed by several threads ([`pext4_sync::parts`]). There is one committer, so a transaction is
//! not closed before the previous one is durable and completed.
//!
//! The committer waits for open handles and for space in the log. Neither waits for it: a handle
//! never waits for log space, and the checkpointer makes log space (rule 2).

use pext4_block::write_pages;
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::time;

use crate::core::{Command, Core, LogCore};
use crate::error::JournalError;
use crate::handle::Handle;
use crate::log_writer::{LogWriter, Logged};
use crate::merge::{Version, merge};
use crate::statistics::{CommitStep, count};

/// The committer's own state.
pub(crate) struct Committer<'a> {
    core: &'a Core,
    log: Option<(&'a LogCore, LogWriter)>,
}

impl<'a> Committer<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        let log = core.log.as_ref().map(|log| (log, log.writer()));
        Self { core, log }
    }

    /// The thread's loop: commits until [`Command::Exit`].
    pub(crate) fn run(&mut self) {
        let mut last_check = time::now();
        loop {
            match self.core.next_command(last_check) {
                Command::Commit => match self.commit() {
                    Ok(()) => {}
                    // The journal is being dropped, which is not a failure.
                    Err(JournalError::ShutDown) if !self.core.is_aborted() => return,
                    Err(error) => self.core.abort(error),
                },
                Command::NotifyAbort(error) => self.core.notify_abort(&error),
                Command::CheckClean => {
                    last_check = time::now();
                    if !self.core.transactions.is_clean(self.core.epoch.running()) {
                        self.core.request_commit(self.core.epoch.running());
                    }
                }
                Command::Exit => return,
            }
        }
    }

    /// Makes the running transaction durable and opens the next.
    fn commit(&mut self) -> Result<(), JournalError> {
        let core = self.core;
        let times = &core.statistics.times;
        let tid = times.count(CommitStep::Closing, || self.switch());
        let width = core.commit_threads;
        let gathered = times.count(CommitStep::Capturing, || {
            core.transactions.gather(&*core.client, tid, width)
        });
        let versions = times.count(CommitStep::Sealing, || {
            let versions = merge(&core.cache, &*core.client, gathered.captures, width)?;
            // The objects' bytes are in the cache, and the versions hold the buffers (rule 4).
            let versions = NotDurable(versions);
            gathered.objects.release();
            Ok::<_, JournalError>(versions)
        })?;
        let revoked = only_revoked(gathered.revoked, &versions.0);
        if versions.0.is_empty() && revoked.is_empty() && core.is_last(tid) {
            // It is empty, and no later transaction continues the log after it.
            return self.complete(tid);
        }
        let counts = &core.statistics;
        count(&counts.blocks, versions.0.len());
        count(&counts.revokes, revoked.len());
        self.write(tid, versions, &revoked)?;
        count(&counts.commits, 1);
        self.complete(tid)
    }

    /// Rule 1: close, drain, open the next.
    fn switch(&self) -> Tid {
        let core = self.core;
        let tid = core.epoch.running();
        core.epoch.close_and_drain();
        self.make_closing_changes(tid);
        core.credits.refill(tid.next());
        core.epoch.open(tid.next());
        tid
    }

    /// Lets the client make its closing changes, if a handle has set credits aside for them.
    fn make_closing_changes(&self, tid: Tid) {
        let aside = self.core.credits.take_aside(tid);
        if aside > 0 {
            self.core
                .client
                .closing(&mut Handle::for_closing(self.core, aside));
        }
    }

    fn write(
        &mut self,
        tid: Tid,
        versions: NotDurable,
        revoked: &[BlockNumber],
    ) -> Result<(), JournalError> {
        match &mut self.log {
            Some((log, writer)) => {
                let logged = write_to_log(self.core, log, writer, tid, &versions.0, revoked)?;
                log.checkpoint.add(tid, logged, versions.into_durable());
                // Rule 6: before the transaction is reported as durable.
                log.checkpoint.cancel(revoked);
            }
            None => {
                let times = &self.core.statistics.times;
                times.count(CommitStep::Writing, || {
                    write_home(self.core, &versions.0, revoked)
                })?;
                drop(versions.into_durable());
            }
        }
        Ok(())
    }

    /// Reports the transaction as durable, unless the journal was aborted meanwhile. Threads that
    /// wait only for durability continue before the client makes the freed blocks reusable, which
    /// takes long if it discards them; the others continue afterwards.
    fn complete(&self, tid: Tid) -> Result<(), JournalError> {
        let core = self.core;
        core.check_not_aborted()?;
        core.statistics.times.count(CommitStep::Completing, || {
            core.note_durable(tid);
            core.client.committed(tid);
            core.note_completed(tid);
        });
        Ok(())
    }
}

/// A block that was freed and written again in the same transaction is not revoked: the last
/// operation decides (rule D10).
fn only_revoked(mut revoked: Vec<BlockNumber>, versions: &[Version]) -> Vec<BlockNumber> {
    revoked.sort_unstable();
    revoked.dedup();
    let is_written = |block: &BlockNumber| {
        versions
            .binary_search_by_key(block, |version| version.block)
            .is_ok()
    };
    revoked.retain(|block| !is_written(block));
    revoked
}

/// The versions of a transaction that is not durable. If the commit fails or panics and this is
/// dropped, it pins the blocks, so that reads return their state in memory and not the older one on
/// the device: the blocks owe nothing any more, so the cache could otherwise evict them.
struct NotDurable(Vec<Version>);

impl NotDurable {
    fn into_durable(mut self) -> Vec<Version> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for NotDurable {
    fn drop(&mut self) {
        for version in &self.0 {
            version.buffer.pin();
        }
    }
}

/// Commits to the log; the checkpointer writes the blocks home later. Returns the transaction's
/// location.
fn write_to_log(
    core: &Core,
    log: &LogCore,
    writer: &mut LogWriter,
    tid: Tid,
    versions: &[Version],
    revoked: &[BlockNumber],
) -> Result<Logged, JournalError> {
    debug_assert!(
        versions.iter().all(|version| !log.owns(version.block)),
        "only the journal writes its own blocks"
    );
    let counts = &core.statistics;
    let waited = counts.times.count(CommitStep::Reserving, || {
        let blocks = writer.needs(versions, revoked);
        log.checkpoint.reserve(tid, blocks)
    })?;
    count(&counts.log_waits, usize::from(waited));
    let logged = counts.times.count(CommitStep::Writing, || {
        core.check_not_aborted()?;
        // Rule 11.
        log.superblock.begin(writer.head(), tid)?;
        writer.write_body(tid, versions, revoked)?;
        // The device may have failed to write data that this transaction maps.
        core.check_not_aborted()?;
        writer.write_commit(tid, versions, revoked)
    })?;
    count(&counts.log_blocks, logged.blocks as usize);
    Ok(logged)
}

/// Commits without a log (rule 12): flushes the data, then writes the blocks home.
fn write_home(
    core: &Core,
    versions: &[Version],
    revoked: &[BlockNumber],
) -> Result<(), JournalError> {
    let pages: Vec<_> = versions
        .iter()
        .map(|version| (version.block, version.page.clone()))
        .collect();
    core.check_not_aborted()?;
    let device = &*core.device;
    let failed = "writing a transaction home";
    device.flush().map_err(JournalError::io(failed))?;
    core.check_not_aborted()?;
    write_pages(device, &pages)
        .and_then(|()| device.flush())
        .map_err(JournalError::io(failed))?;
    revoked.iter().for_each(|&block| core.cache.discard(block));
    Ok(())
}
