//! Zeroes that are written: where a file must read as zeroes and its blocks stay as they are.
//!
//! Two callers would rather not write them, and do where space is short. A range that is to be zero can give its blocks
//! back and take unwritten ones, but what it gives back others may take first, or wait for a commit. And an
//! unwritten extent of which a part is written is split, for which the tree may have to grow. The second has a handle
//! open meanwhile, so a commit waits for up to an extent of zeroes (128 MiB with blocks of 4 KiB); each
//! block is so written once, since what is written is not split again.
//!
//! All functions expect the inode's `lock` for writing.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;

use super::data::{SLOT_CREDITS, logical};
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::inode::extents::{Extent, Mapping};
use crate::inode::table::Inodes;

/// Zeroes that are written at once, in bytes.
const PIECE: usize = 1 << 16;

impl Inodes {
    /// Makes a range of bytes read as zeroes, with blocks for all of it; the size grows to `offset + length`
    /// unless `keep_size`.
    ///
    /// # Errors
    ///
    /// As [`Inodes::allocate_data`]. Where space is short, what the range has it keeps.
    pub fn zero_data(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<()> {
        let blocks = length / self.block_bytes() + 2;
        if inode.is_inline() || self.groups.free_blocks() / 2 > blocks {
            self.punch_data(inode, offset, length)?;
            return self.allocate_data(inode, offset, length, keep_size);
        }
        self.allocate_data(inode, offset, length, keep_size)?;
        let end = offset.checked_add(length).ok_or(Refusal::FileTooLarge)?;
        self.zero_written(inode, offset, end)?;
        let mut handle = self.store.start(SLOT_CREDITS)?;
        self.note_written(&mut handle, inode, 0)
    }

    /// Writes zeroes over the written bytes of a range; answers whether there were any.
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

    /// Makes an unwritten extent written of which the `written` blocks have their data, as far as the file
    /// reaches, with zeroes in all others: what was set aside can be written where there is no block left for a
    /// tree that grows.
    pub(super) fn convert_around(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        extent: &Extent,
        written: &Extent,
    ) -> Result<()> {
        let block_bytes = self.block_bytes();
        // Of written blocks behind the end of the file checkers complain.
        let reach = inode.size().div_ceil(block_bytes);
        let end = extent.end().min(reach.max(written.end()));
        let [first, start] = [extent, written].map(|extent| u64::from(extent.logical.get()));
        self.write_zeroes(extent, first * block_bytes..start * block_bytes)?;
        self.write_zeroes(extent, written.end() * block_bytes..end * block_bytes)?;
        let length = u32::try_from(end - first).unwrap_or(u32::MAX);
        let mut map = inode.map.write();
        self.convert(handle, inode, &mut map, extent.logical, length)
    }

    /// Writes zeroes over these bytes of the file, which lie in the extent.
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
