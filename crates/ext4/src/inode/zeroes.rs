//! Writing zeroes, where a file must read as zeroes and its blocks must stay allocated.
//!
//! There are two cases, both for lack of space. A range to be zeroed frees its blocks and gets
//! unwritten ones, if any of them is written; but where little is free, other threads could take
//! the freed blocks first, or the space could wait for a commit. And writing a part of an unwritten
//! extent splits it, for which the tree may have to grow; converting all of it does not. The second
//! case writes with an open handle, so a commit waits for up to one extent of zeroes (128 MiB with
//! blocks of 4 KiB); it writes each block once, since a written extent is not split again.
//!
//! Callers of all functions hold the inode's `lock` exclusively.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;

use super::allocate::Allocated;
use super::data::{SLOT_CREDITS, logical};
use crate::error::Result;
use crate::inode::Inode;
use crate::inode::extents::{Extent, Mapping};
use crate::inode::inodes::Inodes;

/// Bytes of zeroes per write.
const PIECE: usize = 1 << 16;

impl Inodes {
    /// Makes a range of bytes read as zeroes and allocates blocks for all of it. The size grows to
    /// `bytes.end` unless `keep_size`.
    ///
    /// # Errors
    ///
    /// As [`Inodes::allocate_data`]. If space is short, the range keeps the blocks that it had
    /// before.
    pub fn zero_data(
        &self,
        inode: &Arc<Inode>,
        bytes: &Range<u64>,
        keep_size: bool,
        allocated: &mut Allocated,
    ) -> Result<()> {
        let length = bytes.end - bytes.start;
        let blocks = length / self.block_bytes() + 2;
        let has_space = self.groups.free_blocks() / 2 > blocks;
        if inode.is_inline() || (has_space && self.has_written(inode, bytes)?) {
            self.punch_data(inode, bytes.start, length)?;
            return self.allocate_data(inode, bytes, keep_size, allocated);
        }
        self.allocate_data(inode, bytes, keep_size, allocated)?;
        // As for a punched range.
        self.zero_written(inode, bytes.start, bytes.end.min(inode.size()))?;
        let mut handle = self.store.start(SLOT_CREDITS)?;
        self.note_written(&mut handle, inode, 0);
        Ok(())
    }

    /// Whether a range of bytes has a written block.
    fn has_written(&self, inode: &Inode, bytes: &Range<u64>) -> Result<bool> {
        let mut position = bytes.start;
        while position < bytes.end {
            let mapping = self.lookup(inode, logical(position / self.block_bytes())?)?;
            if matches!(mapping, Mapping::Mapped(extent) if !extent.unwritten) {
                return Ok(true);
            }
            position = self.mapping_end(&mapping);
        }
        Ok(false)
    }

    /// Writes zeroes over the written bytes of a range; returns whether there were any.
    pub(super) fn zero_written(&self, inode: &Inode, start: u64, end: u64) -> Result<bool> {
        let mut is_any = false;
        let mut position = start;
        while position < end {
            let mapping = self.lookup(inode, logical(position / self.block_bytes())?)?;
            let behind = self.mapping_end(&mapping).min(end);
            if let Mapping::Mapped(extent) = mapping
                && !extent.unwritten
            {
                self.write_zeroes(&extent, position..behind)?;
                is_any = true;
            }
            position = behind;
        }
        Ok(is_any)
    }

    /// Converts a whole unwritten extent, up to the end of the file, to a written one. The blocks
    /// of `written` have their data already; zeroes are written to all others. So preallocated
    /// blocks can be written even if no block is left for the tree to grow.
    pub(super) fn convert_around(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        extent: &Extent,
        written: &Extent,
    ) -> Result<()> {
        let block_bytes = self.block_bytes();
        // Checkers complain about written blocks beyond the end of the file.
        let reach = inode.size().div_ceil(block_bytes);
        let end = extent.end().min(reach.max(written.end()));
        let [first, start] = [extent, written].map(|extent| u64::from(extent.logical.get()));
        self.write_zeroes(extent, first * block_bytes..start * block_bytes)?;
        self.write_zeroes(extent, written.end() * block_bytes..end * block_bytes)?;
        let length = u32::try_from(end - first).unwrap_or(u32::MAX);
        let mut map = inode.map.write();
        self.convert(handle, inode, &mut map, extent.logical, length)
    }

    /// Writes zeroes over a byte range of the file, which is inside the extent.
    fn write_zeroes(&self, extent: &Extent, range: Range<u64>) -> Result<()> {
        let most = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let zeroes = vec![0; most.min(PIECE)];
        let mut position = range.start;
        while position < range.end {
            let left = usize::try_from(range.end - position).unwrap_or(usize::MAX);
            let piece = &zeroes[..left.min(PIECE)];
            self.store
                .write_data(self.device_offset(extent, position), &[IoSlice::new(piece)])?;
            position += piece.len() as u64;
        }
        Ok(())
    }
}
