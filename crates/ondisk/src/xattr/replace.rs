//! Replacing one value in a block by another one of the same length, without decoding the list: the
//! most frequent change of attributes.
//!
//! It works only on a list as this implementation encodes it, which has one encoding for each list
//! of attributes: entries in their order, values one after another from the back, zeroes in all
//! padding. So the result is what encoding the changed list would have given, byte by byte, and
//! blocks with equal attributes are found equal. Anything else is left to the caller, who decodes
//! the list.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::list::{ENTRY_SIZE, Encoded, Entries, RawEntry, Region, TERMINATOR_SIZE};
use super::{
    Attribute, BLOCK_HEADER_SIZE, BLOCK_STRUCTURE, Content, Value, block_hash, padded, references,
};

/// What is in a block after the value of one attribute was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The same: the attribute had this value before.
    Same,
    /// This, with a reference count of 1.
    By(Content),
}

/// What is in `block` with the value of `new` instead of the one that the attribute of its name
/// has. `None` if the list must be decoded to know it: there is no such attribute, its value takes
/// another number of words, the list is unsound or not as it is encoded here, or a value is in an
/// inode of its own.
#[must_use]
pub fn replace_value(block: &[u8], new: &Attribute) -> Option<Replaced> {
    references(block).ok()?;
    replace_in_list(Region::whole(block), new)
}

/// As [`replace_value`], behind a header that is sound.
pub(super) fn replace_in_list(region: Region<'_>, new: &Attribute) -> Option<Replaced> {
    let Value::Inline(value) = &new.value else {
        return None;
    };
    let list = Layout::of(region, new)?;
    if *region.value(list.old.start, list.old.end)? == **value {
        return Some(Replaced::Same);
    }
    if value.is_empty() || padded(value.len()) != padded(list.old.len()) {
        return None;
    }
    let mut bytes = Vec::with_capacity(list.front + region.len() - list.values_from);
    bytes.extend_from_slice(region.from(0).get(..list.front)?);
    bytes.extend_from_slice(region.value(list.values_from, region.len())?);
    let (entry, _) = RawEntry::mut_from_prefix(&mut bytes[list.entry..]).ok()?;
    entry.e_value_size = U32::new(u32::try_from(value.len()).ok()?);
    entry.e_hash = U32::new(new.hash);
    let place = list.front + (list.old.start - list.values_from);
    let place = &mut bytes[place..place + padded(value.len())];
    let (place, padding) = place.split_at_mut(value.len());
    place.copy_from_slice(value);
    padding.fill(0);
    let encoded = Encoded::from_parts(bytes, list.front, region.len());
    Some(Replaced::By(Content::new(encoded, 1, list.hash)))
}

/// Where things are in a list.
struct Layout {
    /// Bytes before the gap.
    front: usize,
    /// Offset of the values.
    values_from: usize,
    /// Offset of the entry to change.
    entry: usize,
    /// Its value.
    old: Range<usize>,
    /// Hash of the block after the change.
    hash: u32,
}

impl Layout {
    /// Looks for the attribute whose value `new` replaces. `None` if there is none, or if the list
    /// is not as it is encoded here.
    fn of(region: Region<'_>, new: &Attribute) -> Option<Self> {
        let mut entries = Entries::new(region, BLOCK_HEADER_SIZE, BLOCK_STRUCTURE);
        let (mut values_from, mut found) = (region.len(), None);
        let mut hashes = SmallVec::<[u32; 8]>::new();
        let mut before = None;
        loop {
            let at = entries.at();
            let Some((raw, name)) = entries.read_next().ok()? else {
                break;
            };
            let order = (raw.e_name_index, name.len(), name);
            let value = value_as_encoded(region, &raw, values_from)?;
            let is_in_order = before.is_none_or(|before| before < order);
            if !is_in_order || !is_padded(region.from(at + ENTRY_SIZE), name.len()) {
                return None;
            }
            (values_from, before) = (value.start, Some(order));
            let mut hash = raw.e_hash.get();
            if new.is_named(raw.e_name_index, name) {
                (found, hash) = (Some((at, value)), new.hash);
            }
            hashes.push(hash);
        }
        let front = entries.at() + TERMINATOR_SIZE;
        let (entry, old) = found?;
        (front <= values_from).then(|| Self {
            front,
            values_from,
            entry,
            old,
            hash: block_hash(hashes.into_iter()),
        })
    }
}

/// The value of an entry, if it ends where values from `end` on begin, and zeroes fill its last
/// word.
fn value_as_encoded(region: Region<'_>, raw: &RawEntry, end: usize) -> Option<Range<usize>> {
    let size = usize::try_from(raw.e_value_size.get()).ok()?;
    if raw.e_value_inum.get() != 0 || size == 0 {
        return None;
    }
    let start = end.checked_sub(padded(size))?;
    let is_there = usize::from(raw.e_value_offs.get()) == start;
    (is_there && is_padded(region.value(start, end)?, size)).then(|| start..start + size)
}

/// Whether the word in which something of `size` bytes ends has zeroes behind it.
fn is_padded(bytes: &[u8], size: usize) -> bool {
    let padding = bytes.get(size..padded(size));
    padding.is_some_and(|padding| padding.iter().all(|&byte| byte == 0))
}
