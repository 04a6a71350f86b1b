//! Freeing blocks.
//!
//! A free checks that the blocks hold no metadata, and loads the group if it is not in memory.
//!
//! In the setting *deferred* of `frees` it puts the group on the transaction's list, so that the
//! commit captures the group, and pushes the extent onto the group's stack, without waiting. The
//! bits are tested and cleared when the free is folded. In the other settings it waits for the
//! group's lock and clears the bits itself.

use pext4_jbd2::{Forgotten, Handle};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};

use crate::error::Result;
use crate::groups::buddy::Span;
use crate::groups::{FreedExtent, Groups, Reuse};
use crate::options::Frees;
use crate::statistics::Event;

impl Groups {
    /// Frees `length` clusters, of which `start` is the first block, under `handle`. They can be
    /// allocated again once the transaction is durable. In a group whose bitmap is corrupt they are
    /// lost instead, until the image is repaired.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are outside the file system or hold its own structures; nothing is freed
    /// then.
    pub fn free(&self, handle: &mut Handle<'_>, start: BlockNumber, length: u32) -> Result<()> {
        self.check_freeable(start, length)?;
        self.free_run(handle, (start, length), Reuse::OnceDurable);
        Ok(())
    }

    /// Ends the life of a metadata block that has a cluster to itself, and frees that. If its life
    /// began in this transaction, the cluster can be allocated again at once.
    ///
    /// # Errors
    ///
    /// As [`Groups::free`].
    pub fn free_metadata(&self, handle: &mut Handle<'_>, block: BlockNumber) -> Result<()> {
        let start = BlockNumber(self.store.geometry.cluster_start(block.get()));
        self.check_freeable(start, 1)?;
        let reuse = match handle.forget(block) {
            Forgotten::Revoked => Reuse::OnceDurable,
            Forgotten::WithoutTrace => Reuse::AtOnce,
        };
        self.free_run(handle, (start, 1), reuse);
        Ok(())
    }

    fn check_freeable(&self, start: BlockNumber, length: u32) -> Result<()> {
        let geometry = &self.store.geometry;
        let length = u64::from(length) << geometry.cluster_bits;
        if !geometry.contains(start, length) {
            let problem = format!("{length} blocks to be freed lie outside the file system");
            return Err(Corrupt::new("block pointer", problem)
                .in_block(start)
                .into());
        }
        if self.is_metadata(start.get()..start.get() + length) {
            let problem = format!("{length} blocks to be freed hold metadata of the file system");
            return Err(Corrupt::new("block pointer", problem)
                .in_block(start)
                .into());
        }
        Ok(())
    }

    /// Frees a run that [`Groups::check_freeable`] has accepted.
    fn free_run(&self, handle: &mut Handle<'_>, run: (BlockNumber, u32), reuse: Reuse) {
        let geometry = &self.store.geometry;
        let (mut at, mut left) = run;
        while left > 0 {
            let (group, offset) = geometry
                .group_of(at)
                .zip(geometry.cluster_in_group(at))
                .expect("the range lies inside the file system");
            let here = left.min(geometry.clusters_in(group) - offset);
            let span = Span {
                start: offset,
                length: here,
            };
            let tid = handle.tid();
            self.free_in_group(handle, group, FreedExtent { tid, span, reuse });
            at = BlockNumber(at.get() + (u64::from(here) << geometry.cluster_bits));
            left -= here;
        }
        self.report();
    }

    fn free_in_group(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.count_event(Event::Freed);
        match self.waiting.design {
            Frees::Deferred => self.defer_free(handle, group, freed),
            Frees::Listed | Frees::Merged => self.free_now(handle, group, freed),
        }
    }

    fn defer_free(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.note_deferred(handle, group);
        if self.keep_blocks(group) {
            self.count_free(freed.span);
            self.info(group).written.freed.push(freed);
        }
    }

    fn free_now(&self, handle: &mut Handle<'_>, group: GroupNumber, freed: FreedExtent) {
        self.make_room_for(group);
        let mut held = self.lock(group);
        if held.load_blocks() {
            held.touch(handle);
            self.count_free(freed.span);
            held.fold_one(freed);
        }
    }

    /// Counts freed blocks as pending. Must precede the push: an allocation that does not find the
    /// blocks must see that they are pending.
    fn count_free(&self, span: Span) {
        self.counts.pending_clusters.add(i64::from(span.length));
        self.counts.free_clusters.add(i64::from(span.length));
    }
}
