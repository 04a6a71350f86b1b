//! Allocating the blocks of a file ahead of its content (`fallocate(2)`).
//!
//! Unless the caller keeps the size, it grows with every run of blocks, in the transaction of that
//! run. So neither a failure nor a power cut leaves blocks behind the size that nobody asked for.
//! They would be legal, but hard to find; and e2fsck 1.47.0, which judges the index of a tree of
//! several levels by the size, takes such a tree for damaged, and its repair clears the file.
//!
//! A call that fails takes back what it has allocated ([`Inodes::take_back`]): a caller that caches
//! the size could not learn of a new one from an error. The inode's `lock` is held from the first
//! run to that, so nobody has used the blocks.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::data::{MAP_CREDITS, SLOT_CREDITS, logical};
use crate::error::{Refusal, Result};
use crate::inode::extents::Mapping;
use crate::inode::filling::Filling;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach};

/// What a call has allocated so far.
pub struct Allocated {
    /// The size of the file before.
    size: u64,
    /// The file's blocks that it has filled, in their order.
    blocks: SmallVec<[Range<u64>; 2]>,
}

impl Allocated {
    /// Nothing yet, of a file whose lock is held.
    pub fn nothing(inode: &Inode) -> Self {
        Self {
            size: inode.size(),
            blocks: SmallVec::new(),
        }
    }

    fn add(&mut self, blocks: Range<u64>) {
        match self.blocks.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.blocks.push(blocks),
        }
    }
}

impl Inodes {
    /// Allocates every block of a range of bytes that has none, unwritten, and notes it in
    /// `allocated`. The size grows to `bytes.end` unless `keep_size`.
    ///
    /// # Errors
    ///
    /// As [`Inodes::write_data`]. The caller may try again, or must call [`Inodes::take_back`].
    pub fn allocate_data(
        &self,
        inode: &Arc<Inode>,
        bytes: &Range<u64>,
        keep_size: bool,
        allocated: &mut Allocated,
    ) -> Result<()> {
        let end = bytes.end;
        if end > self.largest_size(inode) {
            return Err(Refusal::FileTooLarge.into());
        }
        self.store.check_writable()?;
        if inode.is_inline() && end <= inode.inline_room()? {
            let size = if keep_size { inode.size() } else { end };
            if self.extend_inline(inode, size)? {
                return Ok(());
            }
        }
        if inode.is_inline() {
            self.move_out(inode)?;
        }
        if end > inode.size() {
            self.finish_truncate(inode)?;
            if !keep_size {
                self.zero_tail(inode)?;
            }
        }
        let is_noted = self.fill_range(inode, bytes, keep_size, allocated)?;
        if !is_noted || (!keep_size && inode.size() < end) {
            let mut handle = self.store.start(SLOT_CREDITS)?;
            match keep_size {
                true => self.note_modified(&mut handle, inode),
                false => self.note_written(&mut handle, inode, end),
            }
        }
        Ok(())
    }

    /// Fills the holes of a range; returns whether there were any.
    fn fill_range(
        &self,
        inode: &Arc<Inode>,
        bytes: &Range<u64>,
        keep_size: bool,
        allocated: &mut Allocated,
    ) -> Result<bool> {
        let block_bytes = self.block_bytes();
        let blocks = bytes.start / block_bytes..bytes.end.div_ceil(block_bytes);
        let mut block = blocks.start;
        let mut is_any = false;
        while block < blocks.end {
            match self.lookup(inode, logical(block)?)? {
                Mapping::Mapped(extent) => block = extent.end(),
                Mapping::Hole(hole) => {
                    let filling = Filling {
                        blocks: block..blocks.end.min(hole.end()),
                        unwritten: true,
                        hole: Some(hole),
                    };
                    self.settle_cluster(inode, block)?;
                    let mut handle = self.store.start(MAP_CREDITS)?;
                    let extent = self.fill_hole(&mut handle, inode, filling, |extent| {
                        let reached = (extent.end() * block_bytes).min(bytes.end);
                        // With 0 the times alone are noted.
                        Ok(Some(if keep_size { 0 } else { reached }))
                    })?;
                    allocated.add(block..extent.end().min(blocks.end));
                    block = extent.end();
                    is_any = true;
                }
            }
        }
        Ok(is_any)
    }

    /// Frees what a failed call has allocated, and gives the file its size back. The caller has
    /// held the inode's lock since it called [`Allocated::nothing`].
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`: the file keeps the size that goes with the blocks that are left.
    pub fn take_back(&self, inode: &Arc<Inode>, allocated: &Allocated) -> Result<()> {
        for blocks in allocated.blocks.iter().rev() {
            self.unmap_in_steps(inode, blocks.clone())?;
        }
        if inode.size() > allocated.size {
            let mut handle = self.store.start(SLOT_CREDITS)?;
            inode.edit(&mut handle, Reach::Data, |state| {
                state.slot.size = allocated.size;
            });
        }
        Ok(())
    }
}
