//! Writing zeroes, where a file must read as zeroes and its blocks must stay allocated.
//!
//! A range to be zeroed keeps its blocks, which become unwritten, and gets blocks where it has
//! none. The holes come first, since only they can find no space: a call that is refused has
//! changed no content.
//!
//! Making a part of an extent unwritten, or of an unwritten one written, splits it, for which the
//! tree may have to grow. Where it finds no space, zeroes are written instead: over the range to be
//! zeroed, or, to write a part of an unwritten extent, over the rest of it, so that all of it can
//! be converted. That is done with an open handle, so a commit waits for up to one extent of zeroes
//! (128 MiB with blocks of 4 KiB); it writes each block once, since a written extent is not split
//! again.
//!
//! Callers of all functions hold the inode's `lock` exclusively.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::extent::MAX_UNWRITTEN_LENGTH;

use super::allocate::Allocated;
use super::data::{MAP_CREDITS, SLOT_CREDITS, logical};
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::inode::extents::{BlockState, Extent, Mapping};
use crate::inode::inodes::Inodes;

/// Bytes of zeroes per write.
const PIECE: usize = 1 << 16;

impl Inodes {
    /// Makes a range of bytes read as zeroes and allocates blocks for all of it. The size grows to
    /// `bytes.end` unless `keep_size`.
    ///
    /// # Errors
    ///
    /// As [`Inodes::allocate_data`]; the content is unchanged if that is refused.
    pub fn zero_data(
        &self,
        inode: &Arc<Inode>,
        bytes: &Range<u64>,
        keep_size: bool,
        allocated: &mut Allocated,
    ) -> Result<()> {
        self.allocate_data(inode, bytes, keep_size, allocated)?;
        if inode.is_inline() {
            return self.punch_data(inode, bytes.start, bytes.end - bytes.start);
        }
        let block_bytes = self.block_bytes();
        let whole = bytes.start.div_ceil(block_bytes)..bytes.end / block_bytes;
        if whole.contains(&(inode.size() / block_bytes)) {
            // What is written to an unwritten block overwrites all of it, also the bytes that a
            // truncate cut off.
            self.zero_tail(inode)?;
        }
        // As for a punched range.
        let end = bytes.end.min(inode.size());
        if whole.is_empty() {
            self.zero_written(inode, bytes.start, end)?;
        } else {
            self.zero_written(inode, bytes.start, (whole.start * block_bytes).min(end))?;
            self.make_unwritten(inode, &whole)?;
            self.zero_written(inode, (whole.end * block_bytes).max(bytes.start), end)?;
        }
        let mut handle = self.store.start(SLOT_CREDITS)?;
        self.note_modified(&mut handle, inode);
        Ok(())
    }

    /// Makes the written blocks of a range unwritten, or writes zeroes to them where the tree
    /// cannot grow.
    fn make_unwritten(&self, inode: &Arc<Inode>, blocks: &Range<u64>) -> Result<()> {
        let mut block = blocks.start;
        while block < blocks.end {
            let mapping = self.lookup(inode, logical(block)?)?;
            let behind = self.mapping_end(&mapping) / self.block_bytes();
            let mut end = behind.min(blocks.end);
            if matches!(mapping, Mapping::Mapped(extent) if !extent.unwritten) {
                end = end.min(block + u64::from(MAX_UNWRITTEN_LENGTH));
                self.make_piece_unwritten(inode, block..end)?;
            }
            block = end;
        }
        Ok(())
    }

    fn make_piece_unwritten(&self, inode: &Arc<Inode>, blocks: Range<u64>) -> Result<()> {
        let length = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
        let piece = (logical(blocks.start)?, length);
        let mut handle = self.store.start(MAP_CREDITS)?;
        let converted = self.convert(
            &mut handle,
            inode,
            &mut inode.map.lock(),
            piece,
            BlockState::Unwritten,
        );
        match converted {
            Err(error) if error.is(Refusal::NoSpace) => {}
            converted => return converted,
        }
        drop(handle);
        let [start, end] = [blocks.start, blocks.end].map(|block| block * self.block_bytes());
        self.zero_written(inode, start, end.min(inode.size()))?;
        Ok(())
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
        let mut map = inode.map.lock();
        let blocks = (extent.logical, length);
        self.convert(handle, inode, &mut map, blocks, BlockState::Written)
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
