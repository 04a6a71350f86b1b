//! A handle: one operation's part in the running transaction.
//!
//! Life cycle: started with the maximum credits that the operation may need; used to touch the
//! objects that it changes; stopped when dropped. All changes under one handle become durable
//! together, along with every other change of the same transaction. Starting may wait for a commit,
//! so it precedes the locks of all journalled state (class `HandleStart`), and a thread has at most
//! one handle.
//!
//! There is no undo (rule 8): an operation must reserve everything that it needs before its
//! first change. A panic that unwinds through a handle with changes has left half of an operation,
//! so it aborts the journal before the handle stops.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use pext4_block::{Buffer, BufferState, Page, Stamp};
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::{PanicWatch, order};

use crate::client::{Capture, Owed, Owing};
use crate::core::Core;
use crate::epoch::Entered;
use crate::error::JournalError;
use crate::ledger::Amounts;
use crate::opened::Opened;
use crate::statistics;

/// A part in the running transaction; stops when dropped.
pub struct Handle<'a> {
    core: &'a Core,
    /// `None` after a restart that failed: the handle is stopped already.
    place: Option<Entered>,
    tid: Tid,
    shard: usize,
    /// Credits that were granted and not used yet.
    credits: u32,
    /// The number of touches under it.
    changes: u64,
    /// Whether the operation panics. One of a destructor, after another panic, is not the one that
    /// failed.
    panic: PanicWatch,
    /// The thread that started a handle must stop it.
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Handle<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Handle")
            .field("tid", &self.tid)
            .field("credits", &self.credits)
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}

impl<'a> Handle<'a> {
    pub(crate) fn start(core: &'a Core, credits: u32) -> Result<Self, JournalError> {
        order::handle_started();
        match core.enter(credits) {
            Ok(place) => {
                core.statistics.handles.add(1);
                Ok(Self::entered(core, place, credits))
            }
            Err(error) => {
                order::handle_stopped();
                Err(error)
            }
        }
    }

    /// The last handle of a transaction that is closed and drained, with the credits set aside for
    /// it.
    pub(crate) fn for_closing(core: &'a Core, credits: u32) -> Self {
        order::handle_started();
        Self::entered(core, core.epoch.enter_closed(), credits)
    }

    fn entered(core: &'a Core, place: Entered, credits: u32) -> Self {
        let Entered { tid, shard } = place;
        Self {
            core,
            place: Some(place),
            tid,
            shard,
            credits,
            changes: 0,
            panic: PanicWatch::new(),
            not_send: PhantomData,
        }
    }

    /// The transaction that this handle is part of.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Credits left.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// The number of touches under this handle. If it has increased since an operation began and
    /// the operation fails, the operation has to restore consistency itself.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Sets `count` of its credits aside for the handle under which the client makes its changes at
    /// the end of the transaction ([`Client::closing`](crate::Client::closing)).
    pub fn set_aside(&mut self, count: u32) {
        self.charge(count);
        self.core.credits.set_aside(self.tid, count);
    }

    /// Notes amounts under a key, for the client to store when the transaction closes
    /// ([`Handle::take_sums`]). Sets a credit aside for that, unless its shard has noted something
    /// under this key in this transaction.
    pub fn note_amounts(&mut self, key: u64, amounts: Amounts) {
        if self.core.ledger.add(self.shard, key, amounts) {
            self.set_aside(1);
        }
    }

    /// The sums of what was noted under each key, by key. Only for the handle of
    /// [`Client::closing`](crate::Client::closing), which must store them: they are taken.
    #[must_use]
    pub fn take_sums(&mut self) -> Vec<(u64, Amounts)> {
        self.core.ledger.take()
    }

    /// Counts a change that reaches the transaction only when it closes, to an object that owes it
    /// its bytes already.
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// The number of threads for large work while the transaction closes.
    #[must_use]
    pub fn commit_threads(&self) -> usize {
        self.core.commit_threads
    }

    /// Tries to get `count` more credits without waiting; returns whether it got them. If not, the
    /// operation must [`Handle::restart`] at a point where the changes it has made are consistent
    /// on their own.
    #[must_use]
    pub fn extend(&mut self, count: u32) -> bool {
        let granted = self.core.take_credits(self.tid, self.shard, count);
        if granted {
            self.credits += count;
        }
        granted
    }

    /// Stops and starts again with `credits`, in the same transaction or a later one. A crash may
    /// fall between what was done before and what comes after.
    ///
    /// # Errors
    ///
    /// As [`Journal::start`](crate::Journal::start). The handle has stopped then: nothing may be
    /// touched under it any more.
    pub fn restart(&mut self, credits: u32) -> Result<(), JournalError> {
        self.leave();
        // Checks the order of locks again: like any start, this one may wait for a commit.
        order::handle_stopped();
        order::handle_started();
        let place = self.core.enter(credits)?;
        self.place = Some(place);
        self.tid = place.tid;
        self.shard = place.shard;
        self.credits = credits;
        Ok(())
    }

    /// Announces that `object` is about to change. Must be called under the object's lock, before
    /// the change.
    ///
    /// If the object still owes its bytes to the committing transaction, `capture_older` must
    /// append that version, which is saved for the committer (rules 2 and 3). The first
    /// touch in this transaction charges `home_blocks` credits and puts the object on the
    /// transaction's list; from then on it owes this transaction its bytes.
    pub fn touch(
        &mut self,
        owed: &mut Owed,
        home_blocks: u32,
        object: impl FnOnce() -> Arc<dyn Owing>,
        capture_older: impl FnOnce(&mut Vec<Capture>),
    ) {
        if self.owes_from_now(owed, capture_older) {
            self.charge(home_blocks);
            let transactions = &self.core.transactions;
            transactions.note_dirty(self.tid, self.shard, object());
        }
    }

    /// As [`Handle::touch`], for an object that shares the block `host` with others: charges one
    /// credit for the host and lists it, if the shard does not remember that this was done.
    pub fn touch_part(
        &mut self,
        owed: &mut Owed,
        host: u64,
        capture_older: impl FnOnce(&mut Vec<Capture>),
    ) {
        let core = self.core;
        if self.owes_from_now(owed, capture_older)
            && let Some(unlisted) = core.hosts.unlisted(self.tid, self.shard, host)
        {
            self.charge(1);
            core.transactions.note_host(self.tid, self.shard, host);
            unlisted.remember();
        }
    }

    /// Makes the object owe its bytes to this transaction; true if it did not do so before.
    fn owes_from_now(
        &mut self,
        owed: &mut Owed,
        capture_older: impl FnOnce(&mut Vec<Capture>),
    ) -> bool {
        self.changes += 1;
        if owed.0 == Some(self.tid) {
            return false;
        }
        if let Some(older) = owed.0.replace(self.tid) {
            self.save_older(older, capture_older);
        }
        true
    }

    /// Detaches an object that another one replaces: its version for an older transaction is
    /// captured, that for this transaction is dropped.
    pub fn retire(&mut self, owed: &mut Owed, capture_older: impl FnOnce(&mut Vec<Capture>)) {
        if let Some(older) = owed.0.take().filter(|tid| *tid != self.tid) {
            self.save_older(older, capture_older);
        }
    }

    /// Whether an object may be changed without its lock, because this transaction has opened it
    /// ([`Opened`]). If so, the call counts as a change, so the caller must make one.
    pub fn may_change(&mut self, opened: &Opened) -> bool {
        let may = opened.is_for(self.tid);
        self.changes += u64::from(may);
        may
    }

    /// Changes the bytes of a buffer. `stamp` selects the checksum that the block gets when it is
    /// committed; the live bytes need none. Charges one credit the first time in a transaction.
    pub fn edit<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        stamp: Stamp,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut state = buffer.write();
        change(self.edit_locked(buffer, &mut state, stamp))
    }

    /// As [`Handle::edit`], for a buffer whose state the caller has locked for writing and
    /// examined: returns the bytes to change. Must not be called for a buffer that is only read: if
    /// another operation has forgotten the block in this transaction, the block would be written
    /// again, and its revoke would be void.
    pub fn edit_locked<'state>(
        &mut self,
        buffer: &Arc<Buffer>,
        state: &'state mut BufferState,
        stamp: Stamp,
    ) -> &'state mut [u8] {
        self.touch_locked(buffer, state, stamp);
        state.page_mut().make_mut()
    }

    /// As [`Handle::edit_locked`], for a caller that then changes the bytes itself.
    pub fn touch_locked(&mut self, buffer: &Arc<Buffer>, state: &mut BufferState, stamp: Stamp) {
        self.touch_buffer(buffer, state);
        state.stamp = stamp;
    }

    /// Begins a new life of a metadata block, which was free when this transaction began: the
    /// returned buffer's page is zeroed, and this transaction will write the block. Charges one
    /// credit.
    pub fn create(&mut self, block: BlockNumber, stamp: Stamp) -> Arc<Buffer> {
        self.begin_life(block, stamp, Some(self.tid))
    }

    /// As [`Handle::create`], for a block that was data when this transaction began. Until this
    /// transaction is durable a crash brings the data back, so the block leaves a trace if it is
    /// forgotten.
    pub fn create_from_data(&mut self, block: BlockNumber, stamp: Stamp) -> Arc<Buffer> {
        self.begin_life(block, stamp, None)
    }

    fn begin_life(
        &mut self,
        block: BlockNumber,
        stamp: Stamp,
        born_in: Option<Tid>,
    ) -> Arc<Buffer> {
        let cache = &self.core.cache;
        loop {
            let (buffer, used) = match cache.peek(block) {
                Some(buffer) => (buffer, true),
                None => (cache.get_zeroed(block), false),
            };
            let mut state = buffer.write();
            // A block in a cluster that its file has kept may begin a life while the commit of the
            // transaction that ended the last one discards it.
            if buffer.is_discarded() {
                continue;
            }
            // Before zeroing: the block may still owe its previous content to the committing
            // transaction.
            self.touch_buffer(&buffer, &mut state);
            state.born_in = born_in;
            state.stamp = stamp;
            if used {
                *state.page_mut() = Page::zeroed(state.page().len());
            }
            drop(state);
            buffer.set_verified();
            return buffer;
        }
    }

    /// Ends the life of a metadata block: this transaction does not write it any more, earlier
    /// versions are not replayed, and none is written home once this transaction is durable (rule
    /// 6). Charges one credit, or none if it returns [`Forgotten::WithoutTrace`].
    pub fn forget(&mut self, block: BlockNumber) -> Forgotten {
        self.changes += 1;
        if let Some(buffer) = self.core.cache.peek(block) {
            let mut state = buffer.write();
            if let Some(older) = state.dirty_in.filter(|tid| *tid != self.tid) {
                self.save_older(older, |captures| captures.push(capture_of(&buffer, &state)));
            }
            state.dirty_in = None;
            if state.born_in.take() == Some(self.tid) {
                return Forgotten::WithoutTrace;
            }
        }
        self.charge(1);
        self.core.transactions.revoke(self.tid, self.shard, block);
        Forgotten::Revoked
    }

    fn touch_buffer(&mut self, buffer: &Arc<Buffer>, state: &mut BufferState) {
        let mut owed = Owed(state.dirty_in);
        let is_new = self.owes_from_now(&mut owed, |captures| {
            captures.push(capture_of(buffer, state));
        });
        state.dirty_in = owed.0;
        // A buffer that was forgotten and created again in this transaction is still on the list.
        if is_new && state.listed_in.replace(self.tid) != Some(self.tid) {
            self.charge(1);
            let object = Arc::new(DirtyBuffer(Arc::clone(buffer)));
            let transactions = &self.core.transactions;
            transactions.note_dirty(self.tid, self.shard, object);
        }
    }

    fn save_older(&self, older: Tid, capture_older: impl FnOnce(&mut Vec<Capture>)) {
        let mut captures = Vec::new();
        capture_older(&mut captures);
        if older.next() == self.tid {
            self.core.transactions.save(older, self.shard, captures);
        } else if !self.core.is_aborted() {
            // Its version is in no transaction: what was promised durable would be lost.
            let reason = format!("a change of transaction {older} was not committed with it");
            self.core.abort(JournalError::Aborted(reason.into()));
        }
    }

    fn charge(&mut self, count: u32) {
        debug_assert!(self.place.is_some(), "a stopped handle touches nothing");
        if let Some(left) = self.credits.checked_sub(count) {
            self.credits = left;
            return;
        }
        // More than the operation asked for: from the pool or other shards, else by overdrawing.
        let lacking = count - std::mem::take(&mut self.credits);
        statistics::count(&self.core.statistics.shortfalls, 1);
        if !self.core.take_credits(self.tid, self.shard, lacking) {
            self.core.credits.overdraw(self.tid, lacking);
        }
    }

    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            self.core
                .credits
                .put(self.tid, self.shard, std::mem::take(&mut self.credits));
            self.core.epoch.leave(place);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // Before it leaves: the transaction cannot be committed until then.
        if self.changes > 0 && self.panic.has_panicked() {
            let reason = "an operation panicked between two changes";
            self.core.abort(JournalError::Aborted(reason.into()));
        }
        self.leave();
        order::handle_stopped();
    }
}

/// Whether versions of a forgotten block may exist outside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// It may be in the log: the block must not be reused as data before the transaction is
    /// durable.
    Revoked,
    /// Its life began in this transaction: no version is in the log or being written home, and its
    /// previous life was revoked when that ended. The block may be reused at once.
    WithoutTrace,
}

/// A buffer on a transaction's list.
struct DirtyBuffer(Arc<Buffer>);

impl Owing for DirtyBuffer {
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut state = self.0.write();
        if state.dirty_in == Some(tid) {
            captures.push(capture_of(&self.0, &state));
            state.dirty_in = None;
        }
    }
}

fn capture_of(buffer: &Buffer, state: &BufferState) -> Capture {
    Capture::Block {
        block: buffer.block(),
        page: state.page().clone(),
        stamp: state.stamp,
    }
}
