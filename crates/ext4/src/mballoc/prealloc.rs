//! Using, releasing and discarding preallocations.
//!
//! A file's run is used from its front as the file grows; if the file skips blocks of it, these are
//! released. Discarding changes the preallocation and its group with both locks held, so that its
//! blocks are at all times either preallocated or allocatable.
//!
//! In the setting *deferred* of `frees`, a use puts the group on the transaction's list and moves
//! the run's front, without waiting; its bits are set when it is folded. In the other settings, and
//! if blocks are skipped, it holds the group and sets them itself.

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, LogicalBlock};
use pext4_sync::atomic::Ordering;

use super::request::Run;
use crate::groups::buddy::Span;
use crate::groups::info::mark;
use crate::groups::{Aside, Groups, LockedGroup, Preallocation};
use crate::options::Frees;
use crate::statistics::Event;

/// The result of a request to a shard's run for blocks.
pub(super) enum SmallUse {
    Taken(Run),
    /// The run has fewer blocks, or its group is corrupt.
    Short,
    /// Another thread has locked the run or its group.
    Busy,
}

impl Groups {
    /// Takes up to `length` blocks for `logical` from a file's preallocation; `None` if it has none
    /// for that position. Locks the group only if frees lock it in this setting, or if blocks are
    /// skipped.
    pub fn use_preallocation(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        logical: LogicalBlock,
        length: u32,
    ) -> Option<Run> {
        let mut state = preallocation.lock();
        let aside = state.as_ref().filter(|_| self.may_use(preallocation))?;
        let skipped = logical.get().checked_sub(aside.logical)?;
        if skipped >= aside.span.length {
            return None;
        }
        if let Some(run) = self.move_front(handle, preallocation, &mut state, skipped, length) {
            return Some(run);
        }
        let held = self.lock(preallocation.group());
        let place = (&mut *state, held);
        Some(self.use_front(handle, preallocation, place, skipped, length))
    }

    /// Takes `length` blocks from a shard's run for small files, all or none. Threads of one core
    /// contend for the run only if one of them was preempted while it held the lock; the others do
    /// not wait until that one runs again, but allocate elsewhere.
    pub(super) fn use_small(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        length: u32,
    ) -> SmallUse {
        let waits = self.waits_for_busy();
        let locked = if waits {
            Some(preallocation.lock())
        } else {
            preallocation.try_lock()
        };
        let Some(mut state) = locked else {
            return SmallUse::Busy;
        };
        let is_short = state.is_none_or(|aside| aside.span.length < length);
        if is_short || !self.may_use(preallocation) {
            return SmallUse::Short;
        }
        if let Some(run) = self.move_front(handle, preallocation, &mut state, 0, length) {
            return SmallUse::Taken(run);
        }
        let group = preallocation.group();
        let held = if waits {
            Some(self.lock(group))
        } else {
            self.try_lock(group)
        };
        let Some(held) = held else {
            return SmallUse::Busy;
        };
        SmallUse::Taken(self.use_front(handle, preallocation, (&mut *state, held), 0, length))
    }

    /// Whether blocks of the run's group may still be used. The mark may be set right after this
    /// test.
    fn may_use(&self, preallocation: &Preallocation) -> bool {
        let info = self.info(preallocation.group());
        !info.is(mark::BLOCKS_CORRUPT)
    }

    /// Takes up to `length` blocks from the front of a run without its group's lock; `None` if the
    /// lock is needed.
    fn move_front(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        state: &mut Option<Aside>,
        skipped: u32,
        length: u32,
    ) -> Option<Run> {
        let aside = state.as_mut()?;
        let is_deferred = self.waiting.design == Frees::Deferred;
        if !is_deferred || skipped > 0 {
            return None;
        }
        let length = length.min(aside.span.length);
        let group = preallocation.group();
        self.note_deferred(handle, group);
        self.counts.free_clusters.add(-i64::from(length));
        let start = aside.span.start;
        aside.logical += length;
        aside.span = Span {
            start: start + length,
            length: aside.span.length - length,
        };
        preallocation.front.advance(handle.tid(), aside.span.start);
        if aside.span.length == 0 {
            *state = None;
        }
        if preallocation.front.request_fold() {
            self.info(group).written.used.push(preallocation.end());
        }
        Some(Run {
            start: self.block_at(group, start),
            length,
        })
    }

    /// Releases `skipped` blocks at the front of a run, which has more than that, and takes up to
    /// `length` blocks after them.
    fn use_front(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        (state, mut held): (&mut Option<Aside>, LockedGroup<'_>),
        skipped: u32,
        length: u32,
    ) -> Run {
        let aside = state.as_mut().expect("the caller has looked");
        let left = aside.span.length - skipped;
        let used = Span {
            start: aside.span.start + skipped,
            length: length.min(left),
        };
        if skipped > 0 {
            held.release(Span {
                start: aside.span.start,
                length: skipped,
            });
        }
        held.mark_used(handle, used);
        aside.logical += skipped + used.length;
        aside.span = Span {
            start: used.end(),
            length: left - used.length,
        };
        preallocation.front.advance(handle.tid(), used.end());
        held.advance_folded(preallocation, used.end());
        if aside.span.length == 0 {
            held.unlist(preallocation);
            *state = None;
        }
        Run {
            start: held.block_at(used.start),
            length: used.length,
        }
    }

    /// Whether anything is left of a preallocation.
    pub(crate) fn is_left(&self, preallocation: &Preallocation) -> bool {
        preallocation.lock().is_some()
    }

    /// Empties a preallocation, of which its owner has no more use then; returns how many blocks
    /// became allocatable.
    pub fn discard(&self, preallocation: &Preallocation) -> u32 {
        let mut state = preallocation.lock();
        let Some(aside) = state.take() else {
            return 0;
        };
        let mut held = self.lock(preallocation.group());
        held.release(aside.span);
        held.unlist(preallocation);
        drop(held);
        if self.may_use(preallocation) {
            aside.span.length
        } else {
            0
        }
    }

    /// Discards preallocations of any owner until `wanted` blocks became allocatable or none are
    /// left; returns how many did.
    pub(super) fn discard_preallocations(&self, wanted: u32) -> u32 {
        let mut freed = 0;
        for number in (0..self.count()).map(GroupNumber) {
            while freed < wanted && self.info(number).written.aside.load(Ordering::Relaxed) > 0 {
                let Some(preallocation) = self.lock(number).any_preallocation() else {
                    break;
                };
                freed += self.discard(&preallocation);
                self.count_event(Event::Discarded);
            }
        }
        freed
    }
}
