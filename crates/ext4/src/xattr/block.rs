//! The block of attributes: reading it, sharing it, changing it in place or copying it, releasing
//! it.
//!
//! A block may be shared by many inodes, each of which is locked by its own operation. So decisions
//! that depend on a block's reference count are made under its buffer's lock, where the cache of
//! blocks is checked too (see `mbcache`). A block that is only read is not made dirty: another
//! operation may have freed it in the same transaction.

use std::sync::Arc;

use pext4_block::Buffer;
use pext4_jbd2::Handle;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::xattr::{self, Attribute, Content, Replaced};
use pext4_sync::topology;

use super::counting;
pub(super) use super::counting::Departure;
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::inode::inodes::Inodes;
use crate::mballoc::{Purpose, Request};
use crate::mbcache::{Candidate, MetBlock, Searched, Taking};
use crate::seal;

/// The block of an inode's attributes after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The same as before.
    Same,
    /// Another one.
    Moved {
        /// The new block; 0 means none.
        to: BlockNumber,
        /// What became of the old one, if there was one.
        departure: Departure,
    },
}

/// Which contents have entries that refer to value inodes. A block with such entries is not offered
/// to other inodes, and its references are always counted in the block: dropping the last one drops
/// the references to those value inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HasValueInodes {
    /// The content of the block that the inode has.
    pub old: bool,
    /// The content to be written.
    pub new: bool,
}

/// The result of a search for a block to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// The inode has a reference to this block now.
    Shared(BlockNumber),
    /// No block could be shared.
    None {
        /// The number of candidates that other threads had locked.
        busy: u32,
    },
}

/// The result of an attempt to share one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Shared,
    Busy,
    Unfit,
}

/// What a search does if another thread has locked a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenBusy {
    Wait,
    Skip,
}

/// An inode's block whose header was checked.
pub(super) enum CheckedBlock {
    /// This core has met it (see [`MetBlock`]) in the transaction of the caller's handle.
    Met(Arc<MetBlock>),
    /// It was read from its buffer.
    Read(Arc<Buffer>),
}

/// An inode's block, and the attributes in it. A caller that changes them calls this under its
/// handle.
pub(super) fn attributes(
    inodes: &Inodes,
    block: BlockNumber,
) -> Result<(CheckedBlock, Vec<Attribute>)> {
    let decode =
        |bytes: &[u8]| xattr::Block::decode(bytes).map_err(|corrupt| corrupt.in_block(block));
    if let Some(met) = inodes.attribute_blocks.own_counts().met(block) {
        let attributes = met.attributes();
        let attributes = attributes.map_err(|corrupt| corrupt.in_block(block))?;
        return Ok((CheckedBlock::Met(met), attributes));
    }
    let buffer = read(inodes, block)?;
    let state = buffer.read();
    let decoded = decode(state.page())?;
    let has_value_inodes = super::plan::value_inodes(&decoded.attributes).next();
    if has_value_inodes.is_none() && !inodes.store.is_read_only() {
        inodes.attribute_blocks.insert(block, state.page());
    }
    drop(state);
    Ok((CheckedBlock::Read(buffer), decoded.attributes))
}

/// An inode's block, and what is in it after a value was replaced; see [`xattr::replace_value`]. A
/// caller calls this under its handle.
pub(super) fn replace_value(
    inodes: &Inodes,
    block: BlockNumber,
    new: &Attribute,
) -> Result<Option<(CheckedBlock, Replaced)>> {
    if let Some(met) = inodes.attribute_blocks.own_counts().met(block) {
        let replaced = met.replace_value(new);
        return Ok(replaced.map(|replaced| (CheckedBlock::Met(met), replaced)));
    }
    let buffer = read(inodes, block)?;
    // Other inodes are not offered a block that this one is about to change or to leave.
    let replaced = xattr::replace_value(buffer.read().page(), new);
    Ok(replaced.map(|replaced| (CheckedBlock::Read(buffer), replaced)))
}

/// The buffer of an attribute block, its checksum verified.
fn read(inodes: &Inodes, block: BlockNumber) -> Result<Arc<Buffer>> {
    let store = &inodes.store;
    inodes.check_not_metadata(block, 1)?;
    let buffer = store.read_block(block)?;
    if let Some(seed) = store.geometry.checksum_seed() {
        buffer.verify(|page| xattr::verify_block(seed, block, page))?;
    }
    Ok(buffer)
}

/// Gives an inode a block with this content: a block that has it already; else `old`, if no other
/// inode uses it; else a new one.
pub(super) fn write(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Inode,
    old: Option<&CheckedBlock>,
    content: &Content,
    has_value_inodes: HasValueInodes,
) -> Result<Outcome> {
    let searched = if has_value_inodes.new {
        Searched::NotFound
    } else {
        match search(inodes, handle, content) {
            Search::Shared(block) => return move_to(inodes, handle, old, block, has_value_inodes),
            Search::None { busy: 0 } => Searched::NotFound,
            Search::None { .. } => Searched::Busy,
        }
    };
    inodes.attribute_blocks.note_search(searched);
    if let Some(CheckedBlock::Read(buffer)) = old
        && change(inodes, handle, buffer, content, has_value_inodes)?
    {
        return Ok(Outcome::Same);
    }
    match allocate(inodes, handle, inode) {
        Ok(block) => make(inodes, handle, old, block, content, has_value_inodes),
        // If the disk has no room for copies, wait for the busy blocks.
        Err(error) if searched == Searched::Busy && error.is(Refusal::NoSpace) => {
            match share(inodes, handle, content, WhenBusy::Wait) {
                Search::Shared(block) => move_to(inodes, handle, old, block, has_value_inodes),
                Search::None { .. } => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// An inode's block. A caller that changes it calls this under its handle.
pub(super) fn known(inodes: &Inodes, block: BlockNumber) -> Result<CheckedBlock> {
    if let Some(met) = inodes.attribute_blocks.own_counts().met(block) {
        return Ok(CheckedBlock::Met(met));
    }
    let buffer = read(inodes, block)?;
    xattr::references(buffer.read().page()).map_err(|corrupt| corrupt.in_block(block))?;
    Ok(CheckedBlock::Read(buffer))
}

/// Looks for a block to share. Waits for busy blocks only if there are enough copies already.
fn search(inodes: &Inodes, handle: &mut Handle<'_>, content: &Content) -> Search {
    let blocks = &inodes.attribute_blocks;
    if !blocks.avoids_busy() {
        return share(inodes, handle, content, WhenBusy::Wait);
    }
    match share(inodes, handle, content, WhenBusy::Skip) {
        Search::None { busy } if busy > 0 && !blocks.rather_copies(busy) => {
            share(inodes, handle, content, WhenBusy::Wait)
        }
        search => search,
    }
}

/// Takes a reference to a block with this content, if there is one.
fn share(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    content: &Content,
    when_busy: WhenBusy,
) -> Search {
    let blocks = &inodes.attribute_blocks;
    let mut busy = 0;
    let mut next = blocks.first(content);
    while let Some(candidate) = next {
        if counting::take_noted(inodes, handle, candidate.block(), content) {
            return Search::Shared(candidate.block());
        }
        // An error of a candidate is reported to its owners, not here.
        if let Ok(buffer) = read(inodes, candidate.block()) {
            match take(inodes, handle, &candidate, &buffer, content, when_busy) {
                Attempt::Shared => return Search::Shared(candidate.block()),
                Attempt::Busy => busy += 1,
                Attempt::Unfit => {}
            }
        }
        next = blocks.next(content, candidate);
    }
    Search::None { busy }
}

fn take(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    candidate: &Candidate<'_>,
    buffer: &Arc<Buffer>,
    content: &Content,
    when_busy: WhenBusy,
) -> Attempt {
    let blocks = &inodes.attribute_blocks;
    let locked = match when_busy {
        WhenBusy::Wait => Some(buffer.write()),
        WhenBusy::Skip => buffer.try_write(),
    };
    let Some(mut state) = locked else {
        return Attempt::Busy;
    };
    if blocks.judge_taking(candidate, state.page(), content) == Taking::Pass {
        return Attempt::Unfit;
    }
    // The block may have been freed and reused since, with another buffer, and the entry may belong
    // to that. Checked after the entry: the thread that inserted it had seen this buffer discarded.
    if buffer.is_discarded() {
        return Attempt::Unfit;
    }
    if counting::take(blocks, handle, candidate, buffer, &mut state, content) {
        Attempt::Shared
    } else {
        Attempt::Unfit
    }
}

/// Releases the old block of an inode that has a reference to another one now.
fn move_to(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    old: Option<&CheckedBlock>,
    block: BlockNumber,
    has_value_inodes: HasValueInodes,
) -> Result<Outcome> {
    inodes.attribute_blocks.note_search(Searched::Shared);
    let departure = match old {
        Some(known) => leave(inodes, handle, known, has_value_inodes)?,
        None => Departure::StillUsed,
    };
    Ok(Outcome::Moved {
        to: block,
        departure,
    })
}

/// Writes a new block for an inode.
fn make(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    old: Option<&CheckedBlock>,
    block: BlockNumber,
    content: &Content,
    has_value_inodes: HasValueInodes,
) -> Result<Outcome> {
    let left = old.map(|known| leave(inodes, handle, known, has_value_inodes));
    let departure = match left.unwrap_or(Ok(Departure::StillUsed)) {
        Ok(departure) => departure,
        Err(error) => {
            inodes.groups.free(handle, block, 1)?;
            return Err(error);
        }
    };
    let buffer = handle.create(block, seal::xattr_block());
    let mut state = buffer.write();
    let bytes = handle.edit_locked(&buffer, &mut state, seal::xattr_block());
    // The page is zeroed, and so has an empty list: most of it need not be cleared again.
    content.replace_in(bytes);
    if !has_value_inodes.new {
        inodes.attribute_blocks.insert(block, bytes);
    }
    state.counted_by = Some(topology::current());
    Ok(Outcome::Moved {
        to: block,
        departure,
    })
}

/// Changes a block in place, unless another inode uses it or is about to; returns whether it did.
fn change(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    content: &Content,
    has_value_inodes: HasValueInodes,
) -> Result<bool> {
    let blocks = &inodes.attribute_blocks;
    let mut state = buffer.write();
    if counting::is_apart(handle, &state) {
        return Ok(false);
    }
    let is_own = blocks
        .judge_change(buffer.block(), state.page())
        .map_err(|corrupt| corrupt.in_block(buffer.block()))?;
    if is_own {
        let bytes = handle.edit_locked(buffer, &mut state, seal::xattr_block());
        content.replace_in(bytes);
        if !has_value_inodes.new {
            blocks.insert(buffer.block(), bytes);
        }
    }
    Ok(is_own)
}

/// Drops one inode's reference to a block and frees the block if that was the last.
pub(super) fn leave(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    known: &CheckedBlock,
    has_value_inodes: HasValueInodes,
) -> Result<Departure> {
    let buffer = match known {
        CheckedBlock::Met(met) => {
            counting::leave_noted(handle, met);
            return Ok(Departure::StillUsed);
        }
        CheckedBlock::Read(buffer) => buffer,
    };
    let departure = counting::leave(inodes, handle, buffer, !has_value_inodes.old)?;
    if departure == Departure::Unused {
        inodes.groups.free_metadata(handle, buffer.block())?;
    }
    Ok(departure)
}

fn allocate(inodes: &Inodes, handle: &mut Handle<'_>, inode: &Inode) -> Result<BlockNumber> {
    let number = inode.number();
    let request = Request {
        purpose: Purpose::Attributes,
        may_use_reserve: inodes.may_use_reserve(inode),
        ..Request::one(number, inodes.groups.goal_of(number))
    };
    Ok(inodes.groups.allocate(handle, &request)?.start)
}
