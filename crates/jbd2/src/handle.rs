//! A handle: one operation's part in the running transaction.
//!
//! Life: started with the credits that the operation may need at most; used to touch what it
//! changes; stopped when dropped. All changes made under one handle become durable together, and
//! with them every other change of the same transaction. Starting may wait for a commit, so it
//! comes before the locks of all journalled state (class `HandleStart`), and a thread has at most
//! one handle.
//!
//! There is no undo (design rule 8): an operation that finds out that it cannot go on must have
//! reserved what it needs before its first change.

use std::marker::PhantomData;
use std::sync::Arc;

use pext4_block::{Buffer, BufferState, Page, Stamp};
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::order;

use crate::client::{Capture, Owed, Owing};
use crate::core::Core;
use crate::epoch::Place;
use crate::error::JournalError;
use crate::opened::Opened;
use crate::statistics;

/// A part in the running transaction; stops when dropped.
pub struct Handle<'a> {
    core: &'a Core,
    /// `None` after a restart that failed: the handle is stopped already.
    place: Option<Place>,
    tid: Tid,
    shard: usize,
    /// Asked for and not used yet.
    credits: u32,
    /// How often something was touched under it.
    changes: u64,
    /// A handle is stopped by the thread that started it.
    stays: PhantomData<*const ()>,
}

impl<'a> Handle<'a> {
    pub(crate) fn start(core: &'a Core, credits: u32) -> Result<Self, JournalError> {
        order::handle_started();
        match core.enter(credits) {
            Ok(place) => {
                core.statistics.handles.add(1);
                let Place { tid, shard } = place;
                Ok(Self {
                    core,
                    place: Some(place),
                    tid,
                    shard,
                    credits,
                    changes: 0,
                    stays: PhantomData,
                })
            }
            Err(error) => {
                order::handle_stopped();
                Err(error)
            }
        }
    }

    /// The last handle of a transaction that is closed and drained, with what was set aside for it.
    pub(crate) fn last(core: &'a Core, credits: u32) -> Self {
        order::handle_started();
        let place = core.epoch.enter_closed();
        Self {
            core,
            place: Some(place),
            tid: place.tid,
            shard: place.shard,
            credits,
            changes: 0,
            stays: PhantomData,
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

    /// How often something was touched under this handle. An operation that fails after this has
    /// gone up leaves something half done, unless it puts it in order itself.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Sets `count` of its credits aside for the handle under which the client puts in order what it left for the
    /// end of the transaction ([`Client::closing`](crate::Client::closing)).
    pub fn set_aside(&mut self, count: u32) {
        self.charge(count);
        self.core.credits.set_aside(self.tid, count);
    }

    /// Notes a change that the transaction learns of when it closes, of something that owes it its bytes
    /// already.
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// By how many threads large work is done while the transaction closes.
    #[must_use]
    pub fn commit_threads(&self) -> usize {
        self.core.commit_threads
    }

    /// Tries to get `count` more credits without waiting; answers whether it did. If not, the
    /// operation must [`Handle::restart`] at a point where what it has done may stand alone.
    #[must_use]
    pub fn extend(&mut self, count: u32) -> bool {
        let taken = self.core.credits.take(self.tid, self.shard, count);
        let granted = taken.is_granted();
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
        // It may wait for those who wait for the caller's locks, as any start may.
        order::handle_stopped();
        order::handle_started();
        let place = self.core.enter(credits)?;
        self.place = Some(place);
        self.tid = place.tid;
        self.shard = place.shard;
        self.credits = credits;
        Ok(())
    }

    /// Says that `object` is about to change. Call it under the object's lock, before the change.
    ///
    /// If the object still owes its bytes to the committing transaction, `capture_older` must
    /// append that version, which is saved for the committer (design rules 2 and 3). The first
    /// time in this transaction, `home_blocks` credits are charged, the object is put on the
    /// transaction's list and owes it its bytes.
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

    /// As [`Handle::touch`], for an object that shares the block `host` with others: the host is
    /// charged, one credit, and listed, if that was not done yet.
    pub fn touch_part(
        &mut self,
        owed: &mut Owed,
        host: u64,
        capture_older: impl FnOnce(&mut Vec<Capture>),
    ) {
        if self.owes_from_now(owed, capture_older)
            && self.core.hosts.note(self.tid, self.shard, host)
        {
            self.charge(1);
            let transactions = &self.core.transactions;
            transactions.note_host(self.tid, self.shard, host);
        }
    }

    /// The debt of an object that changes now; true if this transaction is owed it anew.
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

    /// Ends the debt of an object that another takes the place of: an older version is captured,
    /// that of this transaction is dropped.
    pub fn retire(&mut self, owed: &mut Owed, capture_older: impl FnOnce(&mut Vec<Capture>)) {
        if let Some(older) = owed.0.take().filter(|tid| *tid != self.tid) {
            self.save_older(older, capture_older);
        }
    }

    /// Whether an object may be changed without its lock now, because this transaction opened it
    /// under the lock before. Say so only for a change that follows.
    pub fn may_change(&mut self, opened: &Opened) -> bool {
        let may = opened.is_for(self.tid);
        self.changes += u64::from(may);
        may
    }

    /// Changes the bytes of a buffer. `stamp` says which checksum the block gets when it is
    /// committed; the live bytes need none. One credit the first time in a transaction.
    pub fn edit<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        stamp: Stamp,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut state = buffer.write();
        change(self.edit_locked(buffer, &mut state, stamp))
    }

    /// The bytes of a buffer to be changed, whose state the caller has locked for writing and looked
    /// at before. A buffer that is only looked at must not come here: one that another operation has
    /// forgotten in this transaction would be written again, and its revoke would be void.
    pub fn edit_locked<'state>(
        &mut self,
        buffer: &Arc<Buffer>,
        state: &'state mut BufferState,
        stamp: Stamp,
    ) -> &'state mut [u8] {
        self.touch_buffer(buffer, state);
        state.stamp = stamp;
        state.page.make_mut()
    }

    /// Begins a new life of a metadata block: the answer's page is zeroes, and the block will be
    /// written by this transaction. One credit.
    pub fn create(&mut self, block: BlockNumber, stamp: Stamp) -> Arc<Buffer> {
        let cache = &self.core.cache;
        let (buffer, used) = match cache.peek(block) {
            Some(buffer) => (buffer, true),
            None => (cache.get_zeroed(block), false),
        };
        {
            let mut state = buffer.write();
            // Before the zeroes: the block may still owe its last life to the committing one.
            self.touch_buffer(&buffer, &mut state);
            state.born_in = Some(self.tid);
            state.stamp = stamp;
            if used {
                state.page = Page::zeroed(state.page.len());
            }
        }
        buffer.set_verified();
        buffer
    }

    /// Ends the life of a metadata block: this transaction writes it no more, earlier versions
    /// are not replayed, and none is written home once this transaction is durable (design rule
    /// 6). One credit, but none if the answer is that it left no trace.
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
        // One that was forgotten in this transaction and lives again is on the list still.
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
        } else {
            debug_assert!(
                self.core.has_stopped(),
                "a debt to {older:?} outlived its commit"
            );
        }
    }

    fn charge(&mut self, count: u32) {
        debug_assert!(self.place.is_some(), "a stopped handle touches nothing");
        if let Some(left) = self.credits.checked_sub(count) {
            self.credits = left;
            return;
        }
        // More than the operation said it would need: from whoever has some, else from nobody.
        let lacking = count - std::mem::take(&mut self.credits);
        statistics::count(&self.core.statistics.shortfalls, 1);
        let taken = self.core.credits.take(self.tid, self.shard, lacking);
        if !taken.is_granted() {
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
        self.leave();
        order::handle_stopped();
    }
}

/// What a forgotten block left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// It may be in the log: it must not be used again before the transaction is durable.
    Revoked,
    /// Its life began in this transaction, so nobody else can have seen it: no version is in the log, none
    /// is on its way home, and its last life was revoked when that ended. It may be used again at once.
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
        page: state.page.clone(),
        stamp: state.stamp,
    }
}
