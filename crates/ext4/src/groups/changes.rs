//! The elementary changes of a group, from which the allocators compose theirs. Bitmap, counts and
//! flags change under one hold (rule D3).

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_sync::atomic::Ordering;

use super::buddy::Span;
use super::info::mark;
use super::loaded;
use super::locked::LockedGroup;
use super::preallocation::{Aside, Listed, Preallocation};

impl LockedGroup<'_> {
    /// Takes a run out of the buddy and marks its first `used` blocks used on disk. The caller must
    /// set the rest aside under the same hold.
    pub fn take(&mut self, handle: &mut Handle<'_>, span: Span, used: u32) {
        self.has_moved = true;
        self.blocks().buddy.take(span);
        self.mark_used(
            handle,
            Span {
                start: span.start,
                length: used,
            },
        );
    }

    /// Marks blocks used on disk that are used in the buddy already.
    pub fn mark_used(&mut self, handle: &mut Handle<'_>, span: Span) {
        self.touch(handle);
        self.groups
            .counts
            .free_clusters
            .add(-i64::from(span.length));
        self.set_used(span);
    }

    /// Sets the bits of blocks that are counted as used already.
    pub(super) fn set_used(&mut self, span: Span) {
        self.write_block_bitmap();
        let blocks = self.blocks();
        bitmap::set_range(blocks.bitmap.make_mut(), span.start..span.end());
        self.expect_loaded().descriptor.free_clusters -= span.length;
    }

    /// Makes the next capture write the block bitmap, and clears `BLOCK_UNINIT`.
    pub fn write_block_bitmap(&mut self) {
        let loaded = self.expect_loaded();
        loaded.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        if let Some(blocks) = &mut loaded.blocks {
            blocks.is_changed = true;
        }
    }

    /// Puts blocks that were taken from the buddy onto the group's list of preallocations.
    pub fn set_aside(&mut self, span: Span, logical: u32) -> Arc<Preallocation> {
        let preallocation = Arc::new(Preallocation::new(self.number, Aside { logical, span }));
        let listed = Listed::new(&preallocation);
        self.expect_loaded()
            .preallocations
            .insert(span.end(), listed);
        self.info
            .written
            .aside
            .fetch_add(span.length, Ordering::Relaxed);
        preallocation
    }

    /// Notes that the blocks of a preallocation up to `end` have been used and folded, or skipped.
    pub fn advance_folded(&mut self, preallocation: &Preallocation, end: u32) {
        let listed = self
            .expect_loaded()
            .preallocations
            .get_mut(&preallocation.end());
        let listed = listed.expect("one that has blocks is on its group's list");
        let before = listed.unfolded();
        listed.fold_up_to(end);
        let left = before - listed.unfolded();
        self.info.written.aside.fetch_sub(left, Ordering::Relaxed);
    }

    /// Takes a preallocation off the group's list.
    pub fn unlist(&mut self, preallocation: &Preallocation) {
        let loaded = self.expect_loaded();
        let listed = loaded.preallocations.remove(&preallocation.end());
        let listed = listed.expect("one that has blocks is on its group's list");
        loaded.leftovers.extend(listed.leftover());
        self.unsettled.aside += listed.unfolded();
    }

    /// Makes blocks allocatable that are free on disk; in a corrupt group they are lost.
    pub fn release(&mut self, span: Span) {
        self.has_moved = true;
        self.blocks().buddy.release(span);
        self.unsettled.has_released = true;
        if self.info.is(mark::BLOCKS_CORRUPT) {
            let lost = i64::from(span.length);
            self.groups.counts.free_clusters.add(-lost);
        }
    }

    /// A preallocation of this group that is not used up, if there is one.
    pub fn any_preallocation(&mut self) -> Option<Arc<Preallocation>> {
        let mut listed = self.loaded()?.preallocations.values();
        let listed = listed.find(|listed| !listed.is_used_up())?;
        Some(Arc::clone(&listed.preallocation))
    }

    /// Whether the block bitmap does not exist on disk yet. If so, it must be loaded before an
    /// inode is claimed, since a group in use has both bitmaps.
    pub fn has_no_block_bitmap(&mut self) -> bool {
        let groups = self.groups;
        loaded::has_no_block_bitmap(&groups.store, &self.expect_loaded().descriptor)
    }
}
