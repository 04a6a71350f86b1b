//! Freeing blocks.
//!
//! A free checks that no metadata is in the way and makes sure that the group is in memory.
//!
//! *Deferred* (the setting of `frees`) it then notes the group with the transaction, so that its
//! committer will come by, and leaves the extent on the group's stack: it waits for nobody. Which
//! bits it clears, and whether they were set, turns out when it is folded. Otherwise it waits for
//! the group and clears the bits itself.

use pext4_jbd2::{Forgotten, Handle};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};

use crate::error::Result;
use crate::groups::buddy::Span;
use crate::groups::{FreedExtent, Groups, Reuse};
use crate::options::Frees;
use crate::statistics::Event;

impl Groups {
    /// Frees `length` blocks from `start` on within `handle`. They can be allocated again once the
    /// transaction is durable. In a group whose bitmap is corrupt they are lost instead, until the
    /// image is repaired.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they lie outside the file system or hold its own structures; nothing is freed
    /// then.
    pub fn free(&self, handle: &mut Handle<'_>, start: BlockNumber, length: u32) -> Result<()> {
        self.check_freeable(start, length)?;
        self.free_run(handle, (start, length), Reuse::OnceDurable);
        Ok(())
    }

    /// Ends the life of a metadata block and frees it. One that this transaction made and nobody else
    /// has seen can be allocated again at once.
    ///
    /// # Errors
    ///
    /// As [`Groups::free`].
    pub fn free_metadata(&self, handle: &mut Handle<'_>, block: BlockNumber) -> Result<()> {
        self.check_freeable(block, 1)?;
        let reuse = match handle.forget(block) {
            Forgotten::Revoked => Reuse::OnceDurable,
            Forgotten::WithoutTrace => Reuse::AtOnce,
        };
        self.free_run(handle, (block, 1), reuse);
        Ok(())
    }

    fn check_freeable(&self, start: BlockNumber, length: u32) -> Result<()> {
        let geometry = &self.store.geometry;
        if !geometry.contains(start, u64::from(length)) {
            let problem = format!("{length} blocks to be freed lie outside the file system");
            return Err(Corrupt::new("block pointer", problem)
                .in_block(start)
                .into());
        }
        let end = start.get() + u64::from(length);
        if self.is_metadata(start.get()..end) {
            let problem = format!("{length} blocks to be freed hold metadata of the file system");
            return Err(Corrupt::new("block pointer", problem)
                .in_block(start)
                .into());
        }
        Ok(())
    }

    /// Frees a run that was checked.
    fn free_run(&self, handle: &mut Handle<'_>, run: (BlockNumber, u32), reuse: Reuse) {
        let geometry = &self.store.geometry;
        let (start, length) = run;
        let end = start.get() + u64::from(length);
        let mut at = start;
        while at.get() < end {
            let (group, offset) = geometry
                .group_of(at)
                .zip(geometry.offset_in_group(at))
                .expect("the range lies inside the file system");
            let left = u32::try_from(end - at.get()).unwrap_or(u32::MAX);
            let here = left.min(geometry.blocks_in(group) - offset);
            let span = Span {
                start: offset,
                length: here,
            };
            let tid = handle.tid();
            self.free_in_group(handle, group, FreedExtent { tid, span, reuse });
            at = BlockNumber(at.get() + u64::from(here));
        }
        self.report();
    }

    fn free_in_group(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.count_event(Event::Freed);
        match self.waiting.design {
            Frees::Deferred => self.leave_freed(handle, group, freed),
            Frees::Listed | Frees::Merged => self.clear_freed(handle, group, freed),
        }
    }

    fn leave_freed(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.note_unowed(handle, group);
        if self.keep_blocks(group) {
            self.count_free(freed.span);
            self.slot(group).freed.push(freed);
        }
    }

    fn clear_freed(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.make_room_for(group);
        let mut held = self.hold(group);
        if held.load_blocks() {
            held.touch(handle);
            self.count_free(freed.span);
            held.fold_one(freed);
        }
    }

    /// Before the blocks can be seen anywhere: whoever sees them nowhere must see that they are
    /// coming.
    fn count_free(&self, span: Span) {
        self.counts.pending.add(i64::from(span.length));
        self.counts.free_blocks.add(i64::from(span.length));
    }
}
