//! The changes of a group that the allocators compose. Bitmap, counts and flags change under one
//! hold (rule D3).

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::{Corrupt, InodeNumber};
use pext4_sync::atomic::Ordering;

use super::buddy::Span;
use super::held::Held;
use super::loaded;
use super::preallocation::{Aside, Preallocation};
use super::slot::mark;

impl Held<'_> {
    /// Takes a run out of the buddy and marks its first `used` blocks used on disk. The rest is
    /// the caller's to set aside under the same hold.
    pub fn take(&mut self, handle: &mut Handle<'_>, span: Span, used: u32) {
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

    /// Claims an inode of this group within `handle`; the inodes are loaded, and the bit is clear.
    pub fn claim_inode(&mut self, handle: &mut Handle<'_>, index: u32, is_directory: bool) {
        self.touch(handle);
        if self.has_no_block_bitmap() {
            self.write_block_bitmap();
        }
        self.count_inode(index, is_directory);
        let inodes = self.inodes();
        bitmap::set(inodes.bitmap.make_mut(), index);
        inodes.is_changed = true;
        inodes.first_free = index + 1;
        self.groups.counts.free_inodes.add(-1);
        self.groups.counts.directories.add(i64::from(is_directory));
    }

    /// Takes a claimed inode into the descriptor's counts.
    fn count_inode(&mut self, index: u32, is_directory: bool) {
        let geometry = &self.groups.store.geometry;
        let unused = self.slot.unused_inodes.load(Ordering::Relaxed);
        let unused = unused.min(geometry.inodes_per_group - index - 1);
        self.slot.unused_inodes.store(unused, Ordering::Release);
        let descriptor = &mut self.present().descriptor;
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        descriptor.free_inodes -= 1;
        descriptor.used_directories += u32::from(is_directory);
        if geometry.checksums.protects_descriptors() {
            descriptor.unused_inodes = unused;
        }
    }

    /// Frees an inode of this group within `handle`; the inodes are loaded.
    pub fn free_inode(&mut self, handle: &mut Handle<'_>, index: u32, was_directory: bool) {
        if !bitmap::test(&self.inodes().bitmap, index) {
            self.report_inode_freed_twice(index);
            return;
        }
        self.touch(handle);
        let descriptor = &mut self.present().descriptor;
        descriptor.free_inodes += 1;
        descriptor.used_directories -= u32::from(was_directory && descriptor.used_directories > 0);
        let inodes = self.inodes();
        bitmap::clear(inodes.bitmap.make_mut(), index);
        inodes.is_changed = true;
        inodes.first_free = inodes.first_free.min(index);
        self.groups.counts.free_inodes.add(1);
        self.groups
            .counts
            .directories
            .add(-i64::from(was_directory));
    }

    fn report_inode_freed_twice(&self, index: u32) {
        let inode = self.groups.store.geometry.inode_at(self.number, index);
        let corrupt = Corrupt::new("inode bitmap", "an inode in use is marked free");
        let corrupt = corrupt
            .in_group(self.number)
            .in_inode(inode.unwrap_or(InodeNumber(0)));
        self.condemn(mark::INODES_CORRUPT, corrupt.into());
    }
}
