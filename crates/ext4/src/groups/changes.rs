//! The changes of a group that the allocators compose. Bitmap, counts and flags change under one
//! hold (rule D3).

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_sync::atomic::Ordering;

use super::buddy::Span;
use super::held::Held;
use super::loaded;
use super::preallocation::{Aside, Preallocation};

impl Held<'_> {
    /// Takes a run out of the buddy and marks its first `used` blocks used on disk. The rest is
    /// the caller's to set aside under the same hold.
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
        self.write_block_bitmap();
        let blocks = self.blocks();
        bitmap::set_range(blocks.bitmap.make_mut(), span.start..span.end());
        self.present().descriptor.free_clusters -= span.length;
        self.groups.counts.free_blocks.add(-i64::from(span.length));
    }

    /// Sees to it that the block bitmap goes to disk; it begins to exist there if it did not.
    pub fn write_block_bitmap(&mut self) {
        let loaded = self.present();
        loaded.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        if let Some(blocks) = &mut loaded.blocks {
            blocks.is_changed = true;
        }
    }

    /// Puts blocks that were taken from the buddy onto the group's list of preallocations.
    pub fn set_aside(&mut self, span: Span, logical: u32) -> Arc<Preallocation> {
        let preallocation = Arc::new(Preallocation::new(self.number, Aside { logical, span }));
        self.present()
            .preallocations
            .insert(span.end(), Arc::clone(&preallocation));
        self.slot.aside.fetch_add(span.length, Ordering::Relaxed);
        preallocation
    }

    /// Notes that blocks left their preallocation, which is used up if `is_empty`.
    pub fn leave_aside(&mut self, preallocation: &Preallocation, length: u32, is_empty: bool) {
        self.slot.aside.fetch_sub(length, Ordering::Relaxed);
        if is_empty {
            self.present().preallocations.remove(&preallocation.end());
        }
    }

    /// Makes blocks allocatable that are free on disk.
    pub fn release(&mut self, span: Span) {
        self.has_moved = true;
        self.blocks().buddy.release(span);
        self.groups.counts.activity.add(1);
    }

    /// A preallocation of this group, if there is one.
    pub fn any_preallocation(&mut self) -> Option<Arc<Preallocation>> {
        self.loaded()?.preallocations.values().next().cloned()
    }

    /// Whether the block bitmap does not exist on disk yet; it is to be loaded before an inode is
    /// claimed, since a group in use has both.
    pub fn has_no_block_bitmap(&mut self) -> bool {
        let groups = self.groups;
        loaded::has_no_block_bitmap(&groups.store, &self.present().descriptor)
    }
}
