//! Capturing a group for transactions.
//!
//! Every change of what is written to disk begins with [`LockedGroup::touch`], which guarantees two
//! things. A version that the group still owes to an older transaction is captured before the
//! change (rule 3), after the frees of that transaction were folded into it. And the commit of this
//! transaction will capture the group. Frees and uses of preallocations by later transactions than
//! the captured one stay out of its version (rule 5). Uses are folded before frees, since a
//! transaction may free what it used.

use pext4_block::Stamp;
use pext4_jbd2::{Capture, Handle, Owed};
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{Corrupt, GroupNumber, Tid};
use pext4_sync::atomic::Ordering;

use super::buddy::Span;
use super::freed::{FreedExtent, Reuse};
use super::info::mark;
use super::loaded::{BlockSide, InodeSide, Loaded};
use super::locked::LockedGroup;
use super::{CREDITS_PER_GROUP, Groups};

impl Groups {
    /// Puts a group on the transaction's list, if it is not there yet, because of a free or use
    /// that will be folded later. This does not change what the group owes to an older transaction,
    /// so it needs no lock.
    pub(crate) fn note_deferred(&self, handle: &mut Handle<'_>, group: GroupNumber) {
        if self.info(group).note(handle.tid()) {
            // Not the group's own state: that changes only when the free or use is folded.
            let mut owed = Owed::default();
            handle.touch(&mut owed, CREDITS_PER_GROUP, || self.owing(group), |_| ());
        } else {
            handle.note_change();
        }
    }
}

impl LockedGroup<'_> {
    /// Prepares a change under `handle` of what is written to disk. The caller has loaded the
    /// blocks or the inodes.
    pub fn touch(&mut self, handle: &mut Handle<'_>) {
        let tid = handle.tid();
        self.drain();
        self.fold_older(tid);
        let credits = if self.info.note(tid) {
            CREDITS_PER_GROUP
        } else {
            0
        };
        let (groups, number) = (self.groups, self.number);
        let Loaded {
            owed,
            descriptor,
            blocks,
            inodes,
            ..
        } = self.expect_loaded();
        let mut version = Version {
            groups,
            number,
            descriptor,
            blocks,
            inodes,
        };
        handle.touch(
            owed,
            credits,
            || groups.owing(number),
            |captures| version.capture(captures),
        );
        self.fold(tid);
    }

    /// Folds frees and uses of the previous transaction, which belong to its version. If nothing
    /// else happened here, the group does not owe that transaction its bytes yet, so the version is
    /// made now and kept until the committer asks for it.
    fn fold_older(&mut self, tid: Tid) {
        let loaded = self.expect_loaded();
        let freed = loaded.unfolded.iter().map(|freed| freed.tid);
        let older_free = freed.into_iter().find(|&freed| tid.is_after(freed));
        let older_use = || loaded.has_older_uses(tid).then(|| tid.previous());
        let Some(older) = older_free.or_else(older_use) else {
            return;
        };
        self.fold(older);
        if self.expect_loaded().owed.to() != Some(older) {
            let mut captures = Vec::new();
            self.version().capture(&mut captures);
            self.expect_loaded().early = Some((older, captures));
        }
    }

    /// Moves the entries of the stacks of frees and uses to lists under the lock: frees first, so
    /// that for each free seen, earlier uses of the same blocks are seen too.
    pub(super) fn drain(&mut self) {
        if !self.info.written.freed.is_empty() {
            let freed = self.info.written.freed.take_all();
            self.expect_loaded().unfolded.extend(freed);
        }
        if !self.info.written.used.is_empty() {
            let used = self.info.written.used.take_all();
            self.expect_loaded().in_use.extend(used);
        }
    }

    /// Applies uses and frees that transactions up to `tid` made without the group's lock; returns
    /// whether there were any.
    pub(super) fn fold(&mut self, tid: Tid) -> bool {
        let used = self.fold_uses(tid);
        self.fold_frees(tid) || used
    }

    /// Sets the bits of used blocks of preallocations.
    fn fold_uses(&mut self, tid: Tid) -> bool {
        let [used, left] = self.expect_loaded().take_uses(tid);
        let aside: u32 = used.iter().map(|span| span.length).sum();
        if aside > 0 {
            self.info.written.aside.fetch_sub(aside, Ordering::Relaxed);
        }
        let mut is_any = false;
        for span in used.into_iter().chain(left).filter(|span| span.length > 0) {
            self.set_used(span);
            is_any = true;
        }
        is_any
    }

    /// Clears the bits of freed blocks.
    fn fold_frees(&mut self, tid: Tid) -> bool {
        let unfolded = &mut self.expect_loaded().unfolded;
        if unfolded.is_empty() {
            return false;
        }
        let ready: Vec<_> = unfolded
            .extract_if(.., |freed| tid.is_at_or_after(freed.tid))
            .collect();
        for freed in &ready {
            self.fold_one(*freed);
        }
        !ready.is_empty()
    }

    /// Clears the bits of one extent. The caller has touched the group for the extent's
    /// transaction, or folds for its capture.
    pub(crate) fn fold_one(&mut self, freed: FreedExtent) {
        let span = freed.span;
        if self.info.is(mark::BLOCKS_CORRUPT) {
            self.uncount_free(span);
            return;
        }
        let waiting = &self.groups.waiting;
        let number = self.number;
        let blocks = self.blocks();
        if let Some(free) = bitmap::next_zero(&blocks.bitmap, span.start, span.end()) {
            self.report_double_free(free);
            self.uncount_free(span);
            return;
        }
        bitmap::clear_range(blocks.bitmap.make_mut(), span.start..span.end());
        blocks.is_changed = true;
        if freed.reuse == Reuse::OnceDurable {
            blocks.pending.add(freed, number, waiting);
        } else {
            self.release(span);
            self.unsettled.pending += i64::from(span.length);
        }
        self.expect_loaded().descriptor.free_clusters += span.length;
    }

    /// Subtracts a free that cannot be applied from the volume's sums: the blocks are lost until
    /// the image is repaired.
    fn uncount_free(&self, span: Span) {
        self.groups
            .counts
            .pending_clusters
            .add(-i64::from(span.length));
        self.groups
            .counts
            .free_clusters
            .add(-i64::from(span.length));
    }

    fn report_double_free(&self, bit: u32) {
        let block = self.block_at(bit);
        let corrupt = Corrupt::new("block bitmap", format!("block {block} was freed twice"));
        self.mark_corrupt(
            mark::BLOCKS_CORRUPT,
            corrupt.in_group(self.number).in_block(block).into(),
        );
    }

    /// Captures the version of transaction `tid`, if the group still owes it. Called by the
    /// committer.
    pub(super) fn capture(&mut self, tid: Tid, captures: &mut Vec<Capture>) {
        if self.loaded().is_none() {
            return;
        }
        if let Some((_, early)) = self
            .expect_loaded()
            .early
            .take_if(|(owner, _)| *owner == tid)
        {
            captures.extend(early);
        }
        self.drain();
        let folded = self.fold(tid);
        if self.expect_loaded().owed.clear(tid) || folded {
            self.version().capture(captures);
        }
    }

    fn version(&mut self) -> Version<'_> {
        let (groups, number) = (self.groups, self.number);
        let Loaded {
            descriptor,
            blocks,
            inodes,
            ..
        } = self.expect_loaded();
        Version {
            groups,
            number,
            descriptor,
            blocks,
            inodes,
        }
    }
}

/// The state that a capture encodes.
struct Version<'a> {
    groups: &'a Groups,
    number: GroupNumber,
    descriptor: &'a mut GroupDescriptor,
    blocks: &'a mut Option<BlockSide>,
    inodes: &'a mut Option<InodeSide>,
}

impl Version<'_> {
    /// Captures the changed bitmaps, then the descriptor with their checksums.
    fn capture(&mut self, captures: &mut Vec<Capture>) {
        let geometry = &self.groups.store.geometry;
        if let Some(blocks) = self.blocks.as_mut().filter(|blocks| blocks.is_changed) {
            blocks.is_changed = false;
            let page = blocks.bitmap.clone();
            if let Some(seed) = geometry.checksum_seed() {
                self.descriptor.block_bitmap_checksum =
                    bitmap::block_bitmap_checksum(seed, &page, geometry.clusters_per_group);
            }
            captures.push(Capture::Block {
                block: self.descriptor.block_bitmap,
                page,
                stamp: Stamp::NONE,
            });
        }
        if let Some(inodes) = self.inodes.as_mut().filter(|inodes| inodes.is_changed) {
            inodes.is_changed = false;
            let info = self.groups.info(self.number);
            if let Some(bits) = info.inodes.get() {
                captures.push(bits.capture(&self.groups.store, info, self.descriptor));
            }
        }
        let (block, offset) = geometry.descriptor_location(self.number);
        let mut bytes = vec![0; usize::from(geometry.descriptor_size)];
        self.descriptor.encode(&mut bytes, geometry, self.number);
        captures.push(Capture::Piece {
            block,
            offset,
            bytes,
        });
    }
}
