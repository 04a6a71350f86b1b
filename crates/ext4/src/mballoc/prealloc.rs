//! Using, releasing and discarding preallocations.
//!
//! A file's run is used from its front, where the file's growth needs it; if the file jumps ahead
//! inside it, the blocks jumped over are given back. Discarding changes the preallocation and its group in one go, both
//! locks held, so blocks are never between the two.
//!
//! *Deferred* (the setting of `frees`) a use notes the group with the transaction and moves the run's front, and waits
//! for nobody; its bits are set when it is folded. Otherwise, and when nothing is left or blocks are left
//! out, it holds the group and sets them itself.

use pext4_jbd2::Handle;
use pext4_ondisk::{GroupNumber, LogicalBlock};
use pext4_sync::atomic::Ordering;

use super::request::Run;
use crate::groups::buddy::Span;
use crate::groups::slot::mark;
use crate::groups::{Aside, Groups, Held, Preallocation};
use crate::options::Frees;
use crate::statistics::Event;

/// How it ended to ask a shard's run for blocks.
pub(super) enum Asked {
    Taken(Run),
    /// It has fewer.
    Short,
    /// Another thread is at it, or at its group.
    Busy,
}

impl Groups {
    /// Takes up to `length` blocks for `logical` from a file's preallocation; `None` if it has
    /// none for that place. Its group is locked only where frees wait for it, or blocks are left out.
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
        let held = self.hold(preallocation.group());
        let place = (&mut *state, held);
        Some(self.use_front(handle, preallocation, place, skipped, length))
    }

    /// Takes `length` blocks from a shard's run for small files, all or none. Threads of one core are not at
    /// it at the same time, unless one of them lost its core meanwhile: then the others would wait for that
    /// one's next turn, and do without instead.
    pub(super) fn use_small(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        length: u32,
    ) -> Asked {
        let waits = self.waits_for_busy();
        let locked = if waits {
            Some(preallocation.lock())
        } else {
            preallocation.try_lock()
        };
        let Some(mut state) = locked else {
            return Asked::Busy;
        };
        let is_short = state.is_none_or(|aside| aside.span.length < length);
        if is_short || !self.may_use(preallocation) {
            return Asked::Short;
        }
        if let Some(run) = self.move_front(handle, preallocation, &mut state, 0, length) {
            return Asked::Taken(run);
        }
        let group = preallocation.group();
        let held = if waits {
            Some(self.hold(group))
        } else {
            self.try_hold(group)
        };
        let Some(held) = held else {
            return Asked::Busy;
        };
        Asked::Taken(self.use_front(handle, preallocation, (&mut *state, held), 0, length))
    }

    /// Whether the run's group still gives out blocks. Whoever has been in time is.
    fn may_use(&self, preallocation: &Preallocation) -> bool {
        let slot = self.slot(preallocation.group());
        !slot.is(mark::BLOCKS_CORRUPT)
    }

    /// Takes up to `length` blocks from the front of a run without its group's lock, where that may be.
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
        self.note_unowed(handle, group);
        self.counts.free_blocks.add(-i64::from(length));
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
        if preallocation.front.asks() {
            self.slot(group).used.push(preallocation.end());
        }
        Some(Run {
            start: self.block_at(group, start),
            length,
        })
    }

    /// Gives `skipped` blocks at the front of a run back, of which more are left, and takes up to
    /// `length` behind them.
    fn use_front(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Preallocation,
        (state, mut held): (&mut Option<Aside>, Held<'_>),
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
        held.leave_front(preallocation, used.end());
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

    /// Makes the blocks of a preallocation allocatable; its owner lets go of it.
    pub fn release(&self, preallocation: &Preallocation) {
        self.discard(preallocation);
    }

    /// Empties a preallocation; answers how many blocks came free.
    fn discard(&self, preallocation: &Preallocation) -> u32 {
        let mut state = preallocation.lock();
        let Some(aside) = state.take() else {
            return 0;
        };
        let mut held = self.hold(preallocation.group());
        held.release(aside.span);
        held.unlist(preallocation);
        drop(held);
        if self.may_use(preallocation) {
            aside.span.length
        } else {
            0
        }
    }

    /// Discards preallocations, whoever owns them, until `wanted` blocks came free or none are
    /// left; answers how many did.
    pub(super) fn discard_preallocations(&self, wanted: u32) -> u32 {
        let mut freed = 0;
        for number in (0..self.count()).map(GroupNumber) {
            while freed < wanted && self.slot(number).aside.load(Ordering::Relaxed) > 0 {
                let Some(preallocation) = self.hold(number).any_preallocation() else {
                    break;
                };
                freed += self.discard(&preallocation);
                self.count_event(Event::Discarded);
            }
        }
        freed
    }
}
