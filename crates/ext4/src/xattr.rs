//! Extended attributes: small named values that belong to an inode.
//!
//! They are stored in the tail of the inode's slot and, if they do not fit there, in one block. A
//! name is in only one of the two places, and a new value goes into the inode if it fits. `plan`
//! computes, as a pure function, what the two places contain after a change. `block` reads and
//! writes the block, which inodes with equal attributes share (`mbcache` finds it): only a single
//! owner changes it in place; otherwise the inode switches to another block and the shared one
//! loses one reference. `counting` counts the references.
//!
//! Values have the format of the image: access control lists are those that ext4 stores (version
//! 1). A value may be in an inode of its own (`ea_inode`, `inode/values.rs`): each entry that
//! refers to that inode is one reference. A block with such an entry is not offered to other
//! inodes, though other implementations may have shared it.
//!
//! Locking: callers hold the inode's lock, exclusively for changes. Since other inodes may share
//! the block, or start to, its reference count is read and changed under the buffer's lock, until
//! two cores have met at the block in a transaction; from then on each core counts for itself, and
//! the sums are added at its close.

mod block;
mod counting;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::xattr::{
    Attribute, MAX_FULL_NAME, MAX_NAME, Value, callable_name, decode_inode_area,
    entry_hash_of_value_inode, is_bare_prefix, is_placed, is_visible, split_name,
};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};

use crate::error::{Refusal, Result};
use crate::inode::inodes::Inodes;
use crate::inode::values::{self, MAX_VALUE};
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::SetXattrMode;
use block::{CheckedBlock, Departure, HasValueInodes, Outcome};
pub use counting::store_counts;
use plan::{BlockPlan, Places, Plan, Room};

/// What was read of an inode.
struct Read {
    places: Places,
    /// Its block, if it has one.
    block: Option<CheckedBlock>,
    room: Room,
}

/// Metadata blocks that a change of one attribute may dirty: the inode, the superblock, the old
/// block, a new or shared block, and what freeing each of these two blocks may dirty.
pub const CREDITS: u32 = 4 + 2 * counting::CREDITS_AT_END;

/// A value that is stored in an inode of its own.
#[derive(Clone, Copy, Debug)]
pub struct ValuePlace {
    /// That inode.
    pub number: InodeNumber,
    /// Bytes of the value.
    pub size: u32,
    /// The value's hash.
    pub hash: u32,
}

/// The value of an attribute, by full name (`user.x`).
///
/// # Errors
///
/// `Refused(NoAttribute)` if there is none; `Refused(NotSupported | Range | Invalid)` for a name
/// that no attribute can have: of a prefix that ext4 does not know, too long, only a prefix;
/// `Refused(TooBig)` for a value that no system call can return; `Corrupt`, `Io`.
pub fn get(inodes: &Inodes, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let (index, rest) = parse_name(name)?;
    let places = read(inodes, inode)?.places;
    let found = places.find(index, rest).ok_or(Refusal::NoAttribute)?;
    value_of(inodes, inode, found)
}

fn value_of(inodes: &Inodes, inode: &Inode, attribute: &Attribute) -> Result<Vec<u8>> {
    let (number, size) = match &attribute.value {
        Value::Inline(value) => return Ok(value.to_vec()),
        Value::Inode { inode, size } => (*inode, *size),
    };
    let (value, hash) = inodes.read_value(number, size)?;
    if !attribute.has_valid_hash_of_value_inode(hash) {
        let corrupt = Corrupt::new("attribute", "its hash is not that of name and value");
        return Err(corrupt.in_inode(inode.number()).into());
    }
    Ok(value)
}

/// Full names of all attributes that [`get`] can find. In a damaged image there may be others,
/// which the checker reports and which stay where they are: of a name that no call takes, or in the
/// block with a name of the inode.
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub fn names(inodes: &Inodes, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let places = read(inodes, inode)?.places;
    Ok(callable(&places).map(|(name, _)| name).collect())
}

/// Full names and values of the same attributes.
///
/// # Errors
///
/// Those of [`names`] and [`get`].
pub fn all(inodes: &Inodes, inode: &Inode) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let places = read(inodes, inode)?.places;
    callable(&places)
        .map(|(name, attribute)| Ok((name, value_of(inodes, inode, attribute)?)))
        .collect()
}

/// The attributes that calls can name, each name once.
fn callable(places: &Places) -> impl Iterator<Item = (Vec<u8>, &Attribute)> {
    let mut seen = HashSet::new();
    let found = places.all();
    found
        .filter(move |attribute| seen.insert((attribute.index, &*attribute.name)))
        .filter_map(|attribute| {
            let name = callable_name(attribute.index, &attribute.name)?;
            Some((name, attribute))
        })
}

/// Sets an attribute; the handle has [`change_credits`].
///
/// # Errors
///
/// `Refused(Exists | NoAttribute)` as `mode` says; `Refused(AttributesFull)` if the value fits
/// neither into the inode nor into a block; `Refused(NoSpace)` if there is no block;
/// `Refused(NotPermitted)` for `user.` on anything but files and directories;
/// `Refused(NotSupported | Range | TooBig | Invalid)` for names and values that no attribute can
/// have; `Corrupt`, `Io`. Nothing is changed then.
pub fn set(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: &[u8],
    mode: SetXattrMode,
) -> Result<()> {
    let (index, rest) = parse_name(name)?;
    if value.len() > MAX_VALUE {
        return Err(Refusal::TooBig.into());
    }
    if !is_placed(inode.file_type(), index) {
        return Err(Refusal::NotPermitted.into());
    }
    enter(
        inodes,
        handle,
        inode,
        Attribute::new(index, rest, value),
        mode,
    )
}

/// Sets an attribute whose value is in an inode of its own, of which the caller holds a reference.
/// The handle has [`change_credits`].
///
/// # Errors
///
/// As [`set`].
pub fn set_elsewhere(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    place: ValuePlace,
    mode: SetXattrMode,
) -> Result<()> {
    let (index, rest) = parse_name(name)?;
    let new = Attribute {
        index,
        name: rest.into(),
        value: Value::Inode {
            inode: place.number,
            size: place.size,
        },
        hash: entry_hash_of_value_inode(rest, place.hash),
    };
    enter(inodes, handle, inode, new, mode)
}

fn enter(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    new: Attribute,
    mode: SetXattrMode,
) -> Result<()> {
    let own = read_own(inodes, inode)?;
    let (plan, block) = match replacing(inodes, inode, &own, &new, mode)? {
        Some((plan, block)) => (plan, Some(block)),
        None => {
            let read = read_with_block(inodes, inode, own)?;
            let plan = plan::set(read.places, &read.room, new, mode)?;
            (plan, read.block)
        }
    };
    if plan.changes_nothing() {
        return Ok(());
    }
    carry_out(inodes, handle, inode, &plan, block)?;
    note_feature(inodes, handle);
    Ok(())
}

/// The plan of [`plan::set`], and the inode's block, if the new value only replaces one of the same
/// length there. Then the block's list is not decoded.
fn replacing(
    inodes: &Inodes,
    inode: &Inode,
    own: &Own,
    new: &Attribute,
    mode: SetXattrMode,
) -> Result<Option<(Plan, CheckedBlock)>> {
    let stays = own.block.get() != 0 && plan::stays_in_block(&own.attributes, &own.room, new);
    if mode == SetXattrMode::Create || !stays {
        return Ok(None);
    }
    let replaced = block::replace_value(inodes, own.block, new);
    let replaced = replaced.map_err(|error| error.in_inode(inode.number()))?;
    Ok(replaced.map(|(block, replaced)| (plan::replaced(replaced), block)))
}

/// Removes an attribute; the handle has [`change_credits`].
///
/// # Errors
///
/// `Refused(NoAttribute)` if there is none; `Refused(NotSupported | Range | Invalid)` for a name
/// that no attribute can have, as in [`get`]; `Refused(NoSpace)` if the other attributes are in a
/// block that is shared and there is no block for a copy of them; `Corrupt`, `Io`.
pub fn remove(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    let (index, rest) = parse_name(name)?;
    let read = read(inodes, inode)?;
    let plan = plan::remove(read.places, &read.room, index, rest)?;
    carry_out(inodes, handle, inode, &plan, read.block)
}

/// Metadata blocks that a change of one attribute of this inode may dirty.
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub fn change_credits(inodes: &Inodes, inode: &Inode) -> Result<u32> {
    // An entry that moves to another block is counted there before it is dropped here.
    let uses = value_count(inodes, inode)?.saturating_add(1);
    Ok(CREDITS.saturating_add(most_credits(
        inodes,
        uses.saturating_mul(2 * values::CREDITS),
    )))
}

/// Metadata blocks that freeing this inode's attributes may dirty.
pub fn end_credits(inodes: &Inodes, inode: &Inode) -> u32 {
    let has_block = inode.attribute_block().get() != 0;
    // If they cannot be read, the error is reported when they are freed.
    let uses = value_count(inodes, inode).unwrap_or(0);
    let for_block = if has_block { CREDITS } else { 0 };
    for_block.saturating_add(most_credits(inodes, uses.saturating_mul(values::CREDITS)))
}

/// The credits to request if up to `wanted` blocks may become dirty. Value inodes are mostly close
/// to each other, and a small journal must not refuse an inode with many of them. If the handle
/// uses more, it overdraws, and later handles have fewer credits.
fn most_credits(inodes: &Inodes, wanted: u32) -> u32 {
    wanted.min(inodes.store.journal().max_credits() / 4)
}

/// Fails unless an inode's attributes can be read, and so be freed.
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub fn check_end(inodes: &Inodes, inode: &Inode) -> Result<()> {
    if inodes.has_values() {
        let places = read(inodes, inode)?.places;
        return inodes.check_references(plan::value_inodes_of(&places));
    }
    let block = inode.attribute_block();
    if block.get() != 0 {
        block::known(inodes, block)?;
    }
    Ok(())
}

/// Number of values of this inode that are in inodes of their own.
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub fn value_count(inodes: &Inodes, inode: &Inode) -> Result<u32> {
    if !inodes.has_values() {
        return Ok(0);
    }
    let places = read(inodes, inode)?.places;
    let count = plan::value_inodes_of(&places).count();
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Drops the references of an inode that is reaped to its attribute block and its value inodes. The
/// handle has [`end_credits`].
///
/// # Errors
///
/// `Corrupt`, `Io`.
pub fn end(inodes: &Inodes, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
    if inodes.has_values() {
        let read = read(inodes, inode)?;
        let plan = plan::end(&read.places, &read.room);
        return carry_out(inodes, handle, inode, &plan, read.block);
    }
    if inode.attribute_block().get() == 0 {
        return Ok(());
    }
    let plan = plan::end_without_values();
    carry_out(inodes, handle, inode, &plan, None)
}

/// The prefix's number and the rest of a full name that callers may use.
fn parse_name(full: &[u8]) -> Result<(u8, &[u8])> {
    if full.len() > MAX_FULL_NAME {
        return Err(Refusal::Range.into());
    }
    if is_bare_prefix(full) {
        return Err(Refusal::Invalid.into());
    }
    let (index, rest) = split_name(full).ok_or(Refusal::NotSupported)?;
    if !is_visible(index) {
        return Err(Refusal::NotSupported.into());
    }
    debug_assert!(rest.len() <= MAX_NAME);
    Ok((index, rest))
}

/// The attributes in both places. A caller that changes them reads them under its handle.
fn read(inodes: &Inodes, inode: &Inode) -> Result<Read> {
    let own = read_own(inodes, inode)?;
    read_with_block(inodes, inode, own)
}

/// The attributes in both places, of which those in the inode were read before.
fn read_with_block(inodes: &Inodes, inode: &Inode, own: Own) -> Result<Read> {
    let (block, shared) = match own.block.get() {
        0 => (None, Vec::new()),
        _ => {
            let read = block::attributes(inodes, own.block);
            let (known, list) = read.map_err(|error| error.in_inode(inode.number()))?;
            (Some(known), list)
        }
    };
    let places = Places {
        inode: own.attributes,
        block: shared,
    };
    Ok(Read {
        places,
        block,
        room: own.room,
    })
}

/// What an inode itself says of its attributes.
struct Own {
    /// Those in its tail.
    attributes: Vec<Attribute>,
    room: Room,
    /// Its block; 0 if it has none.
    block: BlockNumber,
}

fn read_own(inodes: &Inodes, inode: &Inode) -> Result<Own> {
    let (attributes, own_room, block) = inode.state(|state| {
        let slot = &state.slot;
        // Without an extra part the tail has no attributes.
        let area = if slot.extra_isize == 0 {
            &[][..]
        } else {
            &slot.tail
        };
        (decode_inode_area(area), area.len(), slot.attribute_block)
    });
    let room = Room {
        inode: own_room,
        block: inodes.store.block_size() as usize,
        cluster: inodes.store.geometry.blocks_per_cluster,
    };
    Ok(Own {
        attributes: attributes.map_err(|corrupt| corrupt.in_inode(inode.number()))?,
        room,
        block,
    })
}

/// Carries out a plan: first it adds references to value inodes, which might be freed otherwise;
/// then it changes the block, for which there may be no space; then the inode. `known` is the
/// inode's block, if it was read.
fn carry_out(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    plan: &Plan,
    known: Option<CheckedBlock>,
) -> Result<()> {
    let values = &plan.values;
    let given = values.left_in_inode.iter().chain(&values.left_in_block);
    // Reads all value inodes first, so that an error is reported before anything has changed, and
    // keeps them in memory.
    let _held = inodes.hold_values(values.taken.iter().chain(given).copied())?;
    for &number in &values.taken {
        if !inodes.add_value_reference(handle, number)? {
            let corrupt = Corrupt::new("attribute", "its value has ended before it");
            return Err(corrupt.in_inode(inode.number()).into());
        }
    }
    let outcome = match change_block(inodes, handle, inode, known, plan) {
        Ok(outcome) => outcome,
        Err(error) => {
            drop_value_references(inodes, handle, inode, &plan.values.taken)?;
            return Err(error);
        }
    };
    drop_value_references(inodes, handle, inode, &plan.values.left_in_inode)?;
    let is_left = match outcome {
        Outcome::Same => plan.block != BlockPlan::Keep,
        Outcome::Moved { departure, .. } => departure == Departure::Unused,
    };
    if is_left {
        drop_value_references(inodes, handle, inode, &plan.values.left_in_block)?;
    }
    change_slot(inodes, handle, inode, plan, outcome)
}

fn drop_value_references(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    owner: &Inode,
    values: &[InodeNumber],
) -> Result<()> {
    values
        .iter()
        .try_for_each(|&number| inodes.drop_value_reference(handle, owner, number))
}

fn change_block(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Inode,
    known: Option<CheckedBlock>,
    plan: &Plan,
) -> Result<Outcome> {
    let has_value_inodes = HasValueInodes {
        old: !plan.values.left_in_block.is_empty(),
        new: !plan.values.taken.is_empty(),
    };
    if plan.block == BlockPlan::Keep {
        return Ok(Outcome::Same);
    }
    let known = match (known, inode.attribute_block()) {
        (None, BlockNumber(0)) => None,
        (None, block) => Some(block::known(inodes, block)?),
        (known, _) => known,
    };
    match (&plan.block, known) {
        (BlockPlan::Write(content), known) => block::write(
            inodes,
            handle,
            inode,
            known.as_ref(),
            content,
            has_value_inodes,
        ),
        (_, Some(known)) => Ok(Outcome::Moved {
            departure: block::leave(inodes, handle, &known, has_value_inodes)?,
            to: BlockNumber(0),
        }),
        (_, None) => Ok(Outcome::Same),
    }
}

fn change_slot(
    inodes: &Inodes,
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    plan: &Plan,
    outcome: Outcome,
) -> Result<()> {
    let fits = inode.edit(handle, Reach::Attributes, |state| {
        state.slot.changed = now();
        if let Some(area) = &plan.area {
            state.slot.tail.copy_from_slice(area);
        }
        let mut blocks = plan.values.charge.blocks;
        state.add_values(plan.values.charge.inodes);
        if let Outcome::Moved { to, .. } = outcome {
            let old = std::mem::replace(&mut state.slot.attribute_block, to);
            let cluster = i64::from(inodes.store.geometry.blocks_per_cluster);
            blocks += cluster * (i64::from(to.get() != 0) - i64::from(old.get() != 0));
        }
        blocks == 0 || inodes.store.count_blocks(&mut state.slot, blocks)
    });
    if !fits {
        return Err(Corrupt::new("inode", "counts impossibly many blocks")
            .in_inode(inode.number())
            .into());
    }
    Ok(())
}

/// Sets the feature `ext_attr` in the superblock.
fn note_feature(inodes: &Inodes, handle: &mut Handle<'_>) {
    let none = ReadOnlyCompat::empty();
    inodes.store.need_features(handle, Compat::EXT_ATTR, none);
}
