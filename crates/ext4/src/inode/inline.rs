//! Content that is stored in the inode itself (`inline_data`).
//!
//! A file's content starts there and stays while it fits beside the other attributes. Content that
//! does not fit moves to a block as a whole, in one transaction: the bytes are on the device's
//! queue before the handle that maps the block stops (ordered data), and the slot changes from one
//! format to the other at once. The content never moves back. Since it is part of the slot, it is
//! journalled, `fdatasync` waits for the transaction that changed it, and there is no tail beyond
//! the end of the file: the area beyond the size is not assumed to be zero.
//!
//! A file may be longer than its content in the inode, even longer than the inode has room for: the
//! rest reads as zeroes. `mke2fs -d` makes such files from sources with little data and large
//! holes.
//!
//! Locking: as in `data`; the content changes under the inode's lock held exclusively. Up to 60
//! bytes are read from the published root, without a lock; longer content is read under the lock of
//! the state.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::extent;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::{BLOCK_AREA, Inode as Slot, InodeFlags};
use pext4_ondisk::{BlockNumber, Corrupt};

use crate::error::{Error, Refusal, Result};
use crate::inode::data::{MAP_CREDITS, SLOT_CREDITS};
use crate::inode::filling::Filling;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{FileType, Seek};

const STRUCTURE: &str = "inline data";

/// The slot before its content moved out, to restore it if that fails.
pub(crate) struct InlineBackup {
    slot: Slot,
}

impl Inode {
    /// Whether the content is stored in the inode itself.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// The content stored in the inode, including the reserved bytes beyond its end.
    pub(crate) fn inline_area(&self) -> Result<Vec<u8>> {
        self.state(|state| state.slot.inline_content())
            .map_err(|corrupt| corrupt.in_inode(self.number()).into())
    }

    /// The content stored in the inode, cut at the size. If the file is longer, the rest of it is
    /// zeroes.
    pub(crate) fn inline_content(&self) -> Result<Vec<u8>> {
        let size = usize::try_from(self.size()).unwrap_or(usize::MAX);
        let root = self.root();
        if let Some(content) = root.get(..size) {
            return Ok(content.to_vec());
        }
        let mut content = self.inline_area()?;
        content.truncate(size);
        Ok(content)
    }

    /// Maximum number of content bytes for which the inode has room.
    pub(crate) fn inline_room(&self) -> Result<u64> {
        let room = self.state(|state| state.slot.inline_room());
        let room = room.map_err(|corrupt| Error::from(corrupt.in_inode(self.number())))?;
        Ok(room as u64)
    }

    /// Replaces the content, which fits, and sets the inode's size to its length.
    pub(crate) fn put_inline(&self, handle: &mut Handle<'_>, content: &[u8]) -> Result<()> {
        let put = self.edit(handle, Reach::Data, |state| {
            let put = state.slot.set_inline_content(content);
            if put.is_ok() {
                state.slot.size = content.len() as u64;
            }
            put
        });
        put.map_err(|full| {
            Corrupt::new(STRUCTURE, full.to_string())
                .in_inode(self.number())
                .into()
        })
    }

    /// Removes the content from the slot, which then has an empty map. The size is `size` from then
    /// on: readers of attributes see it at once, so a file whose content moves elsewhere keeps its
    /// own.
    pub(crate) fn end_inline(
        &self,
        handle: &mut Handle<'_>,
        has_extents: bool,
        size: u64,
    ) -> Result<InlineBackup> {
        let before = self.state(|state| state.slot.clone());
        let ended = self.edit(handle, Reach::Data, |state| {
            let slot = &mut state.slot;
            if has_extents {
                slot.end_inline(extent::empty_root())?;
                slot.flags.insert(InodeFlags::EXTENTS);
            } else {
                slot.end_inline([0; BLOCK_AREA])?;
            }
            slot.size = size;
            Ok::<(), Corrupt>(())
        });
        ended.map_err(|corrupt| corrupt.in_inode(self.number()))?;
        Ok(InlineBackup { slot: before })
    }

    /// Restores what [`Inode::end_inline`] removed, under the same handle.
    pub(crate) fn restore_inline(&self, handle: &mut Handle<'_>, backup: InlineBackup) {
        self.edit(handle, Reach::Data, |state| {
            let (slot, before) = (&mut state.slot, backup.slot);
            slot.flags = before.flags;
            slot.size = before.size;
            slot.block = before.block;
            slot.tail = before.tail;
        });
    }
}

impl Inodes {
    /// Whether new files are mapped by extents.
    pub(crate) fn new_files_use_extents(&self) -> bool {
        let features = &self.store.features;
        features.has_incompat(Incompat::EXTENTS)
    }

    /// Refuses a slot that claims to contain its content but cannot.
    pub(super) fn check_inline(
        &self,
        slot: &Slot,
        file_type: FileType,
    ) -> std::result::Result<(), Corrupt> {
        let corrupt = |problem: &'static str| Err(Corrupt::new(STRUCTURE, problem));
        if !self.store.features.has_incompat(Incompat::INLINE_DATA) {
            return corrupt("the file system does not have that feature");
        }
        if slot.has_extents() {
            return corrupt("is mapped by extents as well");
        }
        // A removed file has no content any more.
        if slot.links == 0 {
            return Ok(());
        }
        let (size, most) = (slot.size, slot.inline_content()?.len() as u64);
        let is_sound = match file_type {
            FileType::Regular => true,
            FileType::Symlink => size <= most,
            FileType::Directory if slot.flags.contains(InodeFlags::INDEX) => {
                return corrupt("is a directory with an index");
            }
            FileType::Directory => size == most,
            _ => return corrupt("is in a file without content"),
        };
        if is_sound {
            return Ok(());
        }
        let problem = format!("size is {size}, there is room for {most}");
        Err(Corrupt::new(STRUCTURE, problem))
    }

    /// Reads from content in the inode; returns the number of bytes read.
    pub(super) fn read_inline(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        let content = inode.inline_content()?;
        let left = usize::try_from(inode.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(into.len());
        let (into, _) = into.split_at_mut(count);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(start..).unwrap_or(&[]);
        let (here, behind) = into.split_at_mut(rest.len().min(count));
        here.copy_from_slice(&rest[..here.len()]);
        behind.fill(0);
        Ok(count)
    }

    /// The next offset at or after `offset`, which is inside the file, that has data, or that is in
    /// a hole.
    pub(super) fn seek_inline(&self, inode: &Inode, offset: u64, sought: Seek) -> Result<u64> {
        let end = inode.inline_content()?.len() as u64;
        match sought {
            Seek::Data if offset < end => Ok(offset),
            Seek::Data => Err(Refusal::NoSuchOffset.into()),
            Seek::Hole => Ok(offset.max(end)),
        }
    }

    /// Writes to content in the inode, if the file still fits there. If not, moves the content out,
    /// writes nothing and returns false.
    pub(super) fn write_inline(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        from: &[u8],
    ) -> Result<bool> {
        let end = offset.saturating_add(from.len() as u64);
        let size = inode.size().max(end);
        self.change_inline(inode, size, |content| {
            content[within(offset, end)].copy_from_slice(from);
        })
    }

    /// Sets the size of content in the inode, if there is room. If not, moves the content out with
    /// its old size and returns false.
    pub(super) fn resize_inline(&self, inode: &Arc<Inode>, size: u64) -> Result<bool> {
        self.change_inline(inode, size, |_| {})
    }

    /// Extends content in the inode to at least `size` bytes, if there is room. If not, moves it
    /// out and returns false.
    pub(super) fn extend_inline(&self, inode: &Arc<Inode>, size: u64) -> Result<bool> {
        self.resize_inline(inode, inode.size().max(size))
    }

    /// Zeroes a range of content in the inode, if the file fits there. If not, moves the content
    /// out unchanged and returns false.
    pub(super) fn punch_inline(&self, inode: &Arc<Inode>, start: u64, end: u64) -> Result<bool> {
        self.change_inline(inode, inode.size(), |content| {
            let length = content.len() as u64;
            let (start, end) = (start.min(length), end.min(length));
            content[within(start, end)].fill(0);
        })
    }

    /// Resizes content in the inode and applies `change`, if there is room. If not, moves the
    /// content out unchanged and returns false.
    fn change_inline(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<bool> {
        if size > inode.inline_room()? {
            self.move_out(inode)?;
            return Ok(false);
        }
        let mut content = inode.inline_content()?;
        content.resize(within(0, size).end, 0);
        change(&mut content);
        let mut handle = self.store.start(SLOT_CREDITS)?;
        inode.put_inline(&mut handle, &content)?;
        let time = now();
        inode.edit(&mut handle, Reach::Attributes, |state| {
            state.slot.modified = time;
            state.slot.changed = time;
        });
        Ok(true)
    }

    /// Moves content from a file's inode to a block; the size does not change.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)`; then the content stays in the inode.
    pub(crate) fn move_out(&self, inode: &Arc<Inode>) -> Result<()> {
        let (content, size) = (inode.inline_content()?, inode.size());
        let mut handle = self.store.start(MAP_CREDITS)?;
        let backup = inode.end_inline(&mut handle, self.new_files_use_extents(), size)?;
        if content.is_empty() {
            return Ok(());
        }
        let filled = self.fill_hole(&mut handle, inode, Filling::written(0..1), |extent| {
            self.write_block(extent.start, &content)?;
            Ok(None)
        });
        if let Err(error) = filled {
            inode.restore_inline(&mut handle, backup);
            return Err(error);
        }
        inode.note(|state| state.tail_is_zero = true);
        Ok(())
    }

    /// Writes a whole block: `content`, followed by zeroes.
    fn write_block(&self, block: BlockNumber, content: &[u8]) -> Result<()> {
        let size = self.store.block_size();
        let zeroes = vec![0; size as usize - content.len()];
        let parts = [IoSlice::new(content), IoSlice::new(&zeroes)];
        self.store.write_data(block.get() * u64::from(size), &parts)
    }
}

/// A byte range of content in an inode, as indexes.
fn within(start: u64, end: u64) -> Range<usize> {
    let index = |byte| usize::try_from(byte).expect("the room of an inode bounds it");
    index(start)..index(end)
}
