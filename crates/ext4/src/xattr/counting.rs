//! Counting the references of inodes to a block of attributes.
//!
//! References are counted in the block, under its buffer's lock, until two cores have met at it.
//! From then until the end of the transaction each core counts for itself
//! ([`OwnCounts`](crate::mbcache::OwnCounts)), and [`store_counts`] adds the counts up when the
//! transaction closes.

use std::sync::Arc;

use pext4_block::{Buffer, BufferState, CountedApart};
use pext4_jbd2::Handle;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::xattr::{self, Content};
use pext4_sync::parts::in_parts;
use pext4_sync::{thread, topology};

use crate::error::{Error, Result};
use crate::groups::{CREDITS_PER_GROUP, Groups};
use crate::inode::inodes::Inodes;
use crate::mbcache::{Candidate, Leaving, MetBlock, SharedBlocks, Sum};
use crate::seal;

/// Metadata blocks that freeing a block that is counted apart may dirty: those of its group, and a
/// revoke.
pub(super) const CREDITS_AT_END: u32 = CREDITS_PER_GROUP + 1;
/// Minimum number of sums for which a thread of its own is worthwhile.
const MIN_PART: usize = 64;

/// The state of a block after an inode dropped its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Other inodes use it, or that is determined when the transaction closes.
    StillUsed,
    /// No inode uses it, and no search can find it any more.
    Unused,
}

/// Adds a reference if this core has met the block in this transaction and its content is
/// `content`.
pub(super) fn take_noted(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    block: BlockNumber,
    content: &Content,
) -> bool {
    let counts = inodes.attribute_blocks.own_counts();
    let taken = counts.take(block, content);
    if taken {
        handle.note_change();
    }
    taken
}

/// Adds a reference to a candidate that was checked and has this content; its state is locked.
/// False if it can have no more references for now.
pub(super) fn take(
    blocks: &SharedBlocks,
    handle: &mut Handle<'_>,
    candidate: &Candidate<'_>,
    buffer: &Arc<Buffer>,
    state: &mut BufferState,
    content: &Content,
) -> bool {
    let has_room = has_room(blocks, state);
    if has_room && another_counted(state) {
        count_apart(blocks, handle, buffer, state);
    }
    if !is_apart(handle, state) {
        let bytes = handle.edit_locked(buffer, state, seal::xattr_block());
        blocks.take(candidate, bytes);
        state.counted_by = Some(topology::current());
        return true;
    }
    if !has_room {
        blocks.set_reusable(candidate.block(), state.page(), false);
        return false;
    }
    let noted_before = blocks.own_counts().meet_taking(buffer, state, content);
    if noted_before > 0 {
        let bytes = handle.edit_locked(buffer, state, seal::xattr_block());
        add_references(bytes, i64::from(noted_before));
    }
    handle.note_change();
    true
}

/// Drops a reference to a block that this core has met, under a handle of that transaction.
pub(super) fn leave_noted(handle: &mut Handle<'_>, met: &MetBlock) {
    met.leave();
    handle.note_change();
}

/// Drops a reference, unless it is the last one: then no search finds the block any more, and the
/// caller frees it. A caller that must know at once whether it is the last passes `may_count_apart
/// = false`.
pub(super) fn leave(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    may_count_apart: bool,
) -> Result<Departure> {
    let (blocks, block) = (&inodes.attribute_blocks, buffer.block());
    loop {
        let mut state = buffer.write();
        if is_apart(handle, &state) {
            blocks.own_counts().meet_leaving(buffer, &state);
            handle.note_change();
            return Ok(Departure::StillUsed);
        }
        let leaving = blocks.judge_leaving(block, state.page());
        match leaving.map_err(|corrupt| Error::Corrupt(corrupt.in_block(block)))? {
            Leaving::Left => {
                leave_to_others(blocks, handle, buffer, &mut state, may_count_apart);
                return Ok(Departure::StillUsed);
            }
            Leaving::Last => return Ok(Departure::Unused),
            // The thread that found it waits only for this lock.
            Leaving::Held => {
                drop(state);
                thread::yield_now();
            }
        }
    }
}

fn leave_to_others(
    blocks: &SharedBlocks,
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    state: &mut BufferState,
    may_count_apart: bool,
) {
    if may_count_apart && has_room(blocks, state) && another_counted(state) {
        count_apart(blocks, handle, buffer, state);
        blocks.own_counts().meet_leaving(buffer, state);
        return;
    }
    let bytes = handle.edit_locked(buffer, state, seal::xattr_block());
    blocks.leave(buffer.block(), bytes);
    state.counted_by = Some(topology::current());
}

/// Whether cores count the references to the block for themselves in this transaction. Then it may
/// have no users at all, and must not be changed in place.
pub(super) fn is_apart(handle: &Handle<'_>, state: &BufferState) -> bool {
    state
        .counted_apart
        .is_some_and(|apart| apart.tid == handle.tid())
}

/// Whether the block may be counted apart, and get references while it is.
fn has_room(blocks: &SharedBlocks, state: &BufferState) -> bool {
    let counts = blocks.own_counts();
    xattr::references(state.page()).is_ok_and(|count| counts.has_room(count))
}

/// Whether the last core that counted in the block is another one.
fn another_counted(state: &BufferState) -> bool {
    state
        .counted_by
        .is_some_and(|core| core != topology::current())
}

fn count_apart(
    blocks: &SharedBlocks,
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    state: &mut BufferState,
) {
    if is_apart(handle, state) {
        return;
    }
    handle.edit_locked(buffer, state, seal::xattr_block());
    handle.set_aside(CREDITS_AT_END);
    state.counted_apart = Some(CountedApart {
        tid: handle.tid(),
        number: blocks.note_apart(buffer),
    });
}

/// Stores the references that the cores counted, and frees the blocks without users. `handle` is
/// the last one of its transaction.
pub fn store_counts(blocks: &SharedBlocks, groups: &Groups, handle: &mut Handle<'_>) {
    let width = handle.commit_threads();
    let sums = blocks.own_counts().take_all(width);
    let parts = in_parts(sums, MIN_PART, width, |sums: Vec<Sum>| {
        let unused = sums.iter().filter_map(|sum| store(blocks, sum));
        unused.collect::<Vec<_>>()
    });
    let mut unused = parts.concat();
    unused.sort_unstable();
    for block in unused {
        if let Err(error) = groups.free_metadata(handle, block) {
            groups.store.apply_error_policy(error);
        }
    }
}

/// Stores one sum; returns the block if it has no users.
fn store(blocks: &SharedBlocks, sum: &Sum) -> Option<BlockNumber> {
    let mut state = sum.buffer.write();
    state.counted_apart = None;
    let block = sum.buffer.block();
    if add_references(state.page_mut().make_mut(), sum.change) {
        let may_be_found =
            xattr::references(state.page()).is_ok_and(|count| count < xattr::MAX_REFERENCES);
        blocks.set_reusable(block, state.page(), may_be_found);
        return None;
    }
    blocks.forget(block, state.page());
    Some(block)
}

/// Adds `change` to a block's count. If no reference would be left, changes nothing and returns
/// false.
fn add_references(bytes: &mut [u8], change: i64) -> bool {
    // The header was checked when the counting began, and only the count has changed since.
    let count = xattr::references(bytes).map_or(0, i64::from);
    let sum = u32::try_from(count.saturating_add(change)).unwrap_or(0);
    if sum > 0 {
        xattr::set_references(bytes, sum);
    }
    sum > 0
}
