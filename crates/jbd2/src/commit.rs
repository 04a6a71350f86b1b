//! The committer: one thread that turns the running transaction into a durable one.
//!
//! In steps: close and drain the epoch, let the client end what it left for then, open the next,
//! capture, merge and seal, write, settle. Until the next transaction is open nobody can start; from
//! then on the commit runs beside it.
//! Capturing and sealing a large one is spread over threads ([`crate::spread`]). A
//! transaction is not closed before the one before it is durable and settled, since there is one
//! committer and it does one after the other.
//!
//! It waits for open handles and for space in the log. Neither waits for it: a handle never waits
//! for log space, and log space is made by the checkpointer (design rule 2).

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::time;

use crate::core::{Core, LogCore, Wish};
use crate::error::JournalError;
use crate::handle::Handle;
use crate::home;
use crate::log_writer::{LogWriter, Logged};
use crate::merge::{Version, merge};
use crate::statistics::count;

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

    /// The thread: commits until told to end.
    pub(crate) fn run(&mut self) {
        let mut last_look = time::now();
        loop {
            match self.core.wait_for_wish(last_look) {
                Wish::Commit => match self.commit() {
                    Ok(()) => {}
                    // Sent away by the end of the journal, which is no failure of it.
                    Err(JournalError::ShutDown) if !self.core.has_stopped() => return,
                    Err(error) => self.core.abort(error),
                },
                Wish::TellAbort(error) => self.core.tell_abort(&error),
                Wish::Look => {
                    last_look = time::now();
                    if !self.core.transactions.is_clean(self.core.epoch.running()) {
                        self.core.request(self.core.epoch.running());
                    }
                }
                Wish::End => return,
            }
        }
    }

    /// Makes the running transaction durable and opens the next.
    fn commit(&mut self) -> Result<(), JournalError> {
        let tid = self.switch();
        let width = self.core.commit_threads;
        let gathered = self
            .core
            .transactions
            .gather(&*self.core.client, tid, width);
        let versions = merge(
            &self.core.cache,
            &*self.core.client,
            gathered.captures,
            width,
        );
        let versions = match versions {
            Ok(versions) => versions,
            Err(error) => {
                self.core.transactions.put_back(tid, gathered.objects);
                return Err(error);
            }
        };
        // Their bytes are in the cache, and the versions hold the buffers (design rule 4).
        drop(gathered.objects);
        let revoked = only_revoked(gathered.revoked, &versions);
        if versions.is_empty() && revoked.is_empty() && self.core.is_last(tid) {
            // It holds nothing, and no later one continues the log behind it.
            return self.settle(tid);
        }
        let counts = &self.core.statistics;
        count(&counts.blocks, versions.len());
        count(&counts.revokes, revoked.len());
        self.write(tid, versions, &revoked)?;
        count(&counts.commits, 1);
        self.settle(tid)
    }

    /// Design rule 1: close, drain, open the next.
    fn switch(&self) -> Tid {
        let core = self.core;
        let tid = core.epoch.running();
        core.epoch.close_and_drain();
        self.close(tid);
        core.credits.refill(tid.next());
        core.epoch.open(tid.next());
        tid
    }

    /// Lets the client put in order what it left for now.
    fn close(&self, tid: Tid) {
        let aside = self.core.credits.take_aside(tid);
        if aside > 0 {
            self.core
                .client
                .closing(&mut Handle::last(self.core, aside));
        }
    }

    fn write(
        &mut self,
        tid: Tid,
        versions: Vec<Version>,
        revoked: &[BlockNumber],
    ) -> Result<(), JournalError> {
        match &mut self.log {
            Some((log, writer)) => {
                let logged = write_to_log(self.core, log, writer, tid, &versions, revoked);
                let logged = logged.inspect_err(|_| keep_in_memory(&versions))?;
                log.checkpoint.add(tid, logged, versions);
                // Design rule 6: before anyone hears that the transaction is durable.
                log.checkpoint.cancel(revoked);
                Ok(())
            }
            None => {
                write_home(self.core, &versions, revoked).inspect_err(|_| keep_in_memory(&versions))
            }
        }
    }

    /// Tells everyone, unless something has stopped the journal meanwhile. What the transaction freed is
    /// free before whoever waited goes on.
    fn settle(&self, tid: Tid) -> Result<(), JournalError> {
        self.core.check_not_aborted()?;
        self.core.note_durable(tid);
        self.core.client.committed(tid);
        self.core.note_settled(tid);
        Ok(())
    }
}

/// A block that was freed and written again in the same transaction is not revoked: the last
/// operation decides (D10).
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

/// After a failed commit reads show what memory knows, not what the device still has: the blocks owe nothing
/// any more, so without this they could leave the cache and be read anew.
fn keep_in_memory(versions: &[Version]) {
    for version in versions {
        version.buffer.pin();
    }
}

/// With a log: into it, and home later. Answers where it lies.
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
        "nobody writes the journal but the journal"
    );
    let waited = log
        .checkpoint
        .reserve(tid, writer.needs(versions, revoked))?;
    count(&core.statistics.log_waits, usize::from(waited));
    core.check_not_aborted()?;
    // Design rule 11.
    log.superblock.begin(writer.head(), tid)?;
    writer.write_body(tid, versions, revoked)?;
    // Data that this transaction maps may have been refused meanwhile.
    core.check_not_aborted()?;
    let logged = writer.write_commit(tid, versions, revoked)?;
    count(&core.statistics.log_blocks, logged.blocks as usize);
    Ok(logged)
}

/// Design rule 12, the null log: data first, then the blocks themselves.
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
    home::write(device, &pages)
        .and_then(|()| device.flush())
        .map_err(JournalError::io(failed))?;
    revoked.iter().for_each(|&block| core.cache.discard(block));
    Ok(())
}
