//! The bytes of a file: read, write, punch, seek.
//!
//! Data goes straight to the device; the page cache of the host, or of FUSE, is the cache. A
//! block's data is on the device's queue before the handle that maps the block stops, so the
//! commit's flush covers it (ordered data). Blocks that are allocated without data are mapped
//! unwritten.
//!
//! If a file ends inside a block, the bytes beyond its end must read as zeroes once the file grows.
//! They are zeroed when the file grows, not when it is truncated, and not before the truncate is
//! durable, since a crash may bring the longer file back (rule 9). For the same
//! reason a hole in a cluster that the file has is filled only once its unmapping is durable
//! (`clusters`).
//!
//! Callers of all functions hold the inode's `lock`: shared for functions that only read, exclusive
//! for those that change something. Only [`Inodes::truncate_of_tail`] is also asked without it, for
//! an answer that may be out of date at once.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::time::Time;
use pext4_ondisk::{Corrupt, LogicalBlock, Tid, extent};

use crate::error::{Refusal, Result};
use crate::inode::extents::{BlockState, Extent, Hole, Mapping};
use crate::inode::filling::Filling;
use crate::inode::indirect;
use crate::inode::inodes::Inodes;
use crate::inode::walk_limit::WalkLimit;
use crate::inode::{Inode, Reach, State};
use crate::store::now;
use crate::types::{MappedRange, Seek};

/// Metadata blocks that mapping one run may dirty: two paths of the tree while it splits, the
/// bitmaps and descriptors of the run's groups and of the nodes', the inode.
pub const MAP_CREDITS: u32 = 32;
/// Metadata blocks that an operation may dirty that changes only the slot.
pub const SLOT_CREDITS: u32 = 2;

/// A block number of a file, from a number that was checked against the largest size.
pub(super) fn logical(block: u64) -> Result<LogicalBlock> {
    Ok(LogicalBlock(
        u32::try_from(block).map_err(|_| Refusal::FileTooLarge)?,
    ))
}

/// Largest size in bytes for which the inode can count all blocks in 32 bits, even if every block
/// is an extent of its own and the inode has a block of attributes. Each of the tree's nodes takes
/// a cluster, as that block does.
fn largest_size_without_huge_file(block_size: u32, cluster: u64) -> u64 {
    let countable = u32::MAX / (block_size / 512);
    let nodes = extent::nodes_needed(countable as usize, block_size as usize) as u64;
    let countable = u64::from(countable);
    // A part of the blocks needs the same part of the nodes, rounded up on each level.
    let with_nodes = countable * countable / (countable + nodes * cluster);
    let rounded = (u64::from(extent::MAX_DEPTH) + 2) * cluster;
    with_nodes.saturating_sub(rounded) / cluster * cluster * u64::from(block_size)
}

/// Bytes `[start, end)` of a file, within one run of blocks.
struct Piece {
    start: u64,
    end: u64,
}

/// What an inode notes of data that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    time: Time,
    /// The new size in bytes, if the file grew.
    size: Option<u64>,
}

impl Written {
    /// Notes it in the state, within a handle.
    pub fn note(self, state: &mut State) {
        state.slot.modified = self.time;
        state.slot.changed = self.time;
        if let Some(size) = self.size {
            state.slot.size = size;
            state.tail_is_zero = true;
        }
    }
}

impl Inodes {
    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.store.block_size())
    }

    /// Largest size of a file in bytes: 2^32 - 1 blocks; or what a block map can map; or, without
    /// `huge_file`, as many blocks as the inode can count together with the nodes of the worst
    /// tree (Linux does not count nodes, so a file that it made may be larger, and stays so).
    #[must_use]
    pub fn largest_size(&self, inode: &Inode) -> u64 {
        if self.uses_block_map(inode) {
            return self.largest_size_by_pointers();
        }
        let features = &self.store.features.read_only_compat;
        let largest = self.block_bytes() * u64::from(u32::MAX);
        if features.contains(ReadOnlyCompat::HUGE_FILE) {
            return largest;
        }
        largest_size_without_huge_file(self.store.block_size(), self.cluster())
            .max(inode.size().min(largest))
    }

    /// Largest size of a file with a block map.
    pub(crate) fn largest_size_by_pointers(&self) -> u64 {
        let features = &self.store.features.read_only_compat;
        let huge = features.contains(ReadOnlyCompat::HUGE_FILE);
        indirect::largest_size(self.store.block_size(), huge)
    }

    pub(super) fn device_offset(&self, extent: &Extent, byte: u64) -> u64 {
        let block_bytes = self.block_bytes();
        let into = byte - u64::from(extent.logical.get()) * block_bytes;
        extent.start.get() * block_bytes + into
    }

    pub(super) fn extent_end(&self, extent: &Extent) -> u64 {
        (u64::from(extent.logical.get()) + u64::from(extent.length)) * self.block_bytes()
    }

    /// Reads up to `into.len()` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub fn read_data(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        if inode.is_inline() {
            return self.read_inline(inode, offset, into);
        }
        let size = inode.size();
        let wanted = u64::try_from(into.len()).unwrap_or(u64::MAX);
        let end = size.min(offset.saturating_add(wanted));
        let mut position = offset;
        while position < end {
            let mapping = self.lookup(inode, logical(position / self.block_bytes())?)?;
            let piece_end = self.mapping_end(&mapping).min(end);
            let target = &mut into[bytes(position - offset)..bytes(piece_end - offset)];
            match mapping {
                Mapping::Mapped(extent) if !extent.unwritten => {
                    self.store
                        .device
                        .read_at(self.device_offset(&extent, position), target)?;
                }
                _ => target.fill(0),
            }
            position = piece_end;
        }
        Ok(bytes(end.saturating_sub(offset)))
    }

    pub(super) fn mapping_end(&self, mapping: &Mapping) -> u64 {
        match mapping {
            Mapping::Mapped(extent) => self.extent_end(extent),
            Mapping::Hole(hole) => hole.end() * self.block_bytes(),
        }
    }

    /// Writes `from` at `offset`, extending the file if needed. Returns the number of bytes
    /// written: fewer than given only if there is no space for the rest, in the volume or on the
    /// host, or the file cannot be so large.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace | FileTooLarge)` if no byte could be written, `Refused(ReadOnly)`,
    /// `Corrupt`, `Io`.
    pub fn write_data(&self, inode: &Arc<Inode>, offset: u64, from: &[u8]) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let possible = self.largest_size(inode).saturating_sub(offset);
        let possible = usize::try_from(possible).unwrap_or(usize::MAX);
        let from = &from[..from.len().min(possible)];
        if from.is_empty() {
            return Err(Refusal::FileTooLarge.into());
        }
        let end = offset + from.len() as u64;
        self.store.check_writable()?;
        if inode.is_inline() && self.write_inline(inode, offset, from)? {
            return Ok(from.len());
        }
        if end > inode.size() {
            self.finish_truncate(inode)?;
            self.zero_tail(inode)?;
        }
        let mut position = offset;
        let mut owes_times = false;
        let mut failure = None;
        while position < end && failure.is_none() {
            match self.write_piece(inode, position, &from[bytes(position - offset)..]) {
                Ok((written, noted)) => {
                    position = written;
                    owes_times = !noted;
                }
                Err(error) => failure = Some(error),
            }
        }
        if owes_times {
            let mut handle = self.store.start(SLOT_CREDITS)?;
            self.note_written(&mut handle, inode, position);
        }
        match failure {
            Some(error) if position == offset || !error.is_lack_of_space() => Err(error),
            _ => Ok(bytes(position - offset)),
        }
    }

    /// Writes the part of `data` that falls into the first mapping. Returns its end and whether
    /// times and size are updated already.
    fn write_piece(&self, inode: &Arc<Inode>, position: u64, data: &[u8]) -> Result<(u64, bool)> {
        let mapping = self.lookup(inode, logical(position / self.block_bytes())?)?;
        let wanted_end = position + data.len() as u64;
        let end = self.mapping_end(&mapping).min(wanted_end);
        let piece = Piece {
            start: position,
            end,
        };
        match mapping {
            Mapping::Mapped(extent) if !extent.unwritten => {
                let data = &data[..bytes(end - position)];
                let to = self.device_offset(&extent, position);
                let written = self.store.write_data(to, &[IoSlice::new(data)]);
                if written.is_err() && end > inode.size() {
                    self.note_half_written(inode);
                }
                written.map(|()| (end, false))
            }
            Mapping::Mapped(extent) => {
                self.write_unwritten(inode, &extent, &piece, data)?;
                Ok((end, true))
            }
            Mapping::Hole(hole) => Ok((self.write_hole(inode, hole, &piece, data)?, true)),
        }
    }

    /// Notes that a write beyond the end of the file has failed, perhaps after it had reached the
    /// rest of the block in which the file ends.
    fn note_half_written(&self, inode: &Inode) {
        inode.note(|state| {
            if !state.slot.size.is_multiple_of(self.block_bytes()) {
                self.tails.note(inode.number(), state);
            }
        });
    }

    fn write_hole(
        &self,
        inode: &Arc<Inode>,
        hole: Hole,
        piece: &Piece,
        data: &[u8],
    ) -> Result<u64> {
        let blocks = self.blocks_of(piece);
        self.settle_cluster(inode, blocks.start)?;
        let mut handle = self.store.start(MAP_CREDITS)?;
        let filling = Filling {
            hole: Some(hole),
            ..Filling::written(blocks)
        };
        let filled = self.fill_hole(&mut handle, inode, filling, |extent| {
            let end = piece.end.min(self.extent_end(&extent));
            let piece = Piece {
                start: piece.start,
                end,
            };
            self.write_padded(&extent, &piece, data)?;
            Ok(Some(end))
        })?;
        Ok(piece.end.min(self.extent_end(&filled)))
    }

    fn write_unwritten(
        &self,
        inode: &Arc<Inode>,
        extent: &Extent,
        piece: &Piece,
        data: &[u8],
    ) -> Result<()> {
        let mut handle = self.store.start(MAP_CREDITS)?;
        let blocks = self.blocks_of(piece);
        let length = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
        let first = logical(blocks.start)?;
        let into = first.get() - extent.logical.get();
        let start = extent
            .start
            .checked_add(into)
            .ok_or_else(|| Corrupt::new("extent", "ends behind the largest block number"))?;
        let touched = Extent {
            logical: first,
            start,
            length,
            unwritten: false,
        };
        self.write_padded(&touched, piece, data)?;
        let converted = self.convert(
            &mut handle,
            inode,
            &mut inode.map.lock(),
            (first, length),
            BlockState::Written,
        );
        match converted {
            Err(error) if error.is(Refusal::NoSpace) => {
                self.convert_around(&mut handle, inode, extent, &touched)?;
            }
            other => other?,
        }
        self.note_written(&mut handle, inode, piece.end);
        Ok(())
    }

    /// The blocks that contain bytes of a piece.
    fn blocks_of(&self, piece: &Piece) -> Range<u64> {
        piece.start / self.block_bytes()..piece.end.div_ceil(self.block_bytes())
    }

    /// Writes a piece into newly allocated blocks and zeroes around it up to the edges of the
    /// blocks.
    fn write_padded(&self, extent: &Extent, piece: &Piece, data: &[u8]) -> Result<()> {
        let block_bytes = self.block_bytes();
        let zeroes = vec![0; bytes(block_bytes)];
        let head = piece.start % block_bytes;
        let tail = (block_bytes - piece.end % block_bytes) % block_bytes;
        let data = &data[..bytes(piece.end - piece.start)];
        let offset = self.device_offset(extent, piece.start - head);
        let parts = [
            IoSlice::new(&zeroes[..bytes(head)]),
            IoSlice::new(data),
            IoSlice::new(&zeroes[..bytes(tail)]),
        ];
        self.store.write_data(offset, &parts)
    }

    /// Updates the times after data up to `end` was written, and the size if the file grew.
    pub(super) fn note_written(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>, end: u64) {
        let written = self.written(handle, inode, end);
        let reach = match written.size {
            Some(_) => Reach::Data,
            None => Reach::Attributes,
        };
        inode.edit(handle, reach, |state| written.note(state));
    }

    /// Updates the times after a change of the content that leaves the size.
    pub(super) fn note_modified(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) {
        let written = Written {
            time: now(),
            size: None,
        };
        inode.edit(handle, Reach::Attributes, |state| written.note(state));
    }

    /// What is to be noted when data up to `end` is written now.
    pub(super) fn written(&self, handle: &mut Handle<'_>, inode: &Inode, end: u64) -> Written {
        let size = (end > inode.size()).then_some(end);
        if size.is_some() {
            self.allow_large_file(handle, end);
        }
        Written { time: now(), size }
    }

    /// Sets the feature that files of 2 GiB and more need.
    pub(crate) fn allow_large_file(&self, handle: &mut Handle<'_>, size: u64) {
        if size > u64::from(u32::MAX >> 1) {
            self.store
                .need_features(handle, Compat::empty(), ReadOnlyCompat::LARGE_FILE);
        }
    }

    /// Zeroes the bytes between the end of the file and the end of its last block, before the file
    /// grows. Returns whether it wrote. Must be called without a handle: it may wait for a truncate
    /// to become durable.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub fn zero_tail(&self, inode: &Arc<Inode>) -> Result<bool> {
        let size = inode.size();
        let into = size % self.block_bytes();
        if into == 0 || inode.tail_is_zero() || inode.is_inline() {
            return Ok(false);
        }
        if let Some(tid) = self.truncate_of_tail(inode) {
            self.store.journal().commit(tid)?;
        }
        let block_end = size - into + self.block_bytes();
        let wrote = self.zero_written(inode, size, block_end)?;
        inode.note(|state: &mut State| {
            state.tail_is_zero = true;
            state.truncated_in = None;
        });
        Ok(wrote)
    }

    /// The transaction that truncated the file inside its last block, if the rest of that block may
    /// still have the bytes from before.
    pub fn truncate_of_tail(&self, inode: &Inode) -> Option<Tid> {
        inode.state(|state| {
            let is_inside = !state.slot.size.is_multiple_of(self.block_bytes());
            state
                .truncated_in
                .filter(|_| is_inside && !state.tail_is_zero && !inode.is_inline())
        })
    }

    /// Makes a range of bytes a hole: whole blocks are freed, edges are zeroed.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`, `Refused(ReadOnly)`.
    pub fn punch_data(&self, inode: &Arc<Inode>, offset: u64, length: u64) -> Result<()> {
        self.store.check_writable()?;
        let block_bytes = self.block_bytes();
        let end = offset
            .checked_add(length)
            .ok_or(Refusal::FileTooLarge)?
            .min(self.largest_size(inode));
        if inode.is_inline() && self.punch_inline(inode, offset, end)? {
            return Ok(());
        }
        // A range that ends behind the file takes the whole block in which the file ends, and none
        // behind it: somebody asked for these. (Linux also takes those in the same page.)
        let end = match inode.size() {
            size if end > size => size.next_multiple_of(block_bytes),
            _ => end,
        };
        let offset = offset.min(end);
        let first = offset.div_ceil(block_bytes);
        let last = end / block_bytes;
        // Behind the end of the file there may be bytes that a crash must bring back, as long as
        // their truncation is not durable: only `zero_tail` may write zeroes over them.
        let zeroed = end.min(inode.size());
        if first > last {
            self.zero_written(inode, offset, zeroed)?;
        } else {
            self.zero_written(inode, offset, (first * block_bytes).min(zeroed))?;
            self.zero_written(inode, (last * block_bytes).max(offset), zeroed)?;
        }
        if first < last {
            self.unmap_in_steps(inode, first..last)?;
        }
        let mut handle = self.store.start(SLOT_CREDITS)?;
        self.note_modified(&mut handle, inode);
        Ok(())
    }

    /// The next offset at or after `offset` that has data, or that is in a hole.
    ///
    /// # Errors
    ///
    /// `Refused(NoSuchOffset)` at or beyond the end of the file, or if there is no more data.
    pub fn seek(&self, inode: &Inode, offset: u64, sought: Seek) -> Result<u64> {
        let size = inode.size();
        if offset >= size {
            return Err(Refusal::NoSuchOffset.into());
        }
        if inode.is_inline() {
            return self.seek_inline(inode, offset, sought);
        }
        let mut limit = WalkLimit::new(&self.store, inode);
        let mut position = offset;
        while position < size {
            let mapping = self.lookup(inode, logical(position / self.block_bytes())?)?;
            let found = match mapping {
                Mapping::Mapped(extent) if !extent.unwritten => Seek::Data,
                _ => Seek::Hole,
            };
            if found == sought {
                return Ok(position);
            }
            limit.pass(&mapping)?;
            position = self.mapping_end(&mapping);
        }
        match sought {
            Seek::Data => Err(Refusal::NoSuchOffset.into()),
            Seek::Hole => Ok(size),
        }
    }

    /// At most `most` mapped ranges of the file, from byte `offset` on.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub fn mapped_ranges(
        &self,
        inode: &Inode,
        offset: u64,
        most: usize,
    ) -> Result<Vec<MappedRange>> {
        let block_bytes = self.block_bytes();
        let mut ranges: Vec<MappedRange> = Vec::new();
        let mut limit = WalkLimit::new(&self.store, inode);
        let mut block = offset / block_bytes;
        while ranges.len() < most && block < extent::LOGICAL_END {
            let mapping = self.lookup(inode, logical(block)?)?;
            limit.pass(&mapping)?;
            if let Mapping::Mapped(extent) = mapping {
                ranges.push(MappedRange {
                    logical: u64::from(extent.logical.get()) * block_bytes,
                    physical: extent.start.get() * block_bytes,
                    length: u64::from(extent.length) * block_bytes,
                    unwritten: extent.unwritten,
                });
            }
            block = self.mapping_end(&mapping) / block_bytes;
        }
        Ok(ranges)
    }
}

/// A length in memory, bounded by the caller's slice.
fn bytes(count: u64) -> usize {
    usize::try_from(count).expect("bounded by a slice in memory")
}
