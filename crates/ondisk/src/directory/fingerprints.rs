//! Fingerprints of the records of a leaf: a byte for each, computed from its name.
//!
//! A search through the records reads the header of each one, so on average half of the block's
//! cache lines, each of which another core may have changed, and one after another, since a record
//! tells where the next one is. With fingerprints it reads one byte of each record, which lie side
//! by side, and then only those records whose byte is that of the name: the one that it looks for,
//! and one in 256 of the others. How much room each record has is kept the same way.
//!
//! Fingerprints exist in memory only and describe the bytes of one leaf. Every change of these
//! bytes must be made by the functions here, or the fingerprints be dropped. With a leaf that they
//! do not describe, the functions find nothing or are [`Corrupt`], but do not panic.
//!
//! Invariant: after each change they are what [`Fingerprints::of`] would compute, and the bytes are
//! what [`insert_at`](super::insert_at) and [`remove`](super::remove) would have made.

mod starts;

use memchr::memchr_iter;

use self::starts::{Starts, UNIT};

use super::changes::absorb;
use super::{
    Entry, FileType, Format, Inserted, Record, STRUCTURE, insert_at, record_at, record_length,
    records,
};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// The fingerprints of a leaf's records, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprints {
    /// The fingerprint of each record's name.
    tags: Vec<u8>,
    /// The room of each record for another entry, in units of 4 bytes; 255 also stands for more,
    /// which no entry needs.
    rooms: Vec<u8>,
    /// The offset of each record.
    starts: Starts,
    /// Bytes that no entry uses, of all records.
    free: usize,
}

impl Fingerprints {
    /// Those of a leaf.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if a record is impossible.
    pub fn of(leaf: &[u8], format: Format) -> Result<Self, Corrupt> {
        // A leaf that is being filled gets twice as many records before it is split.
        let expected = leaf.len() / 32;
        let mut all = Self {
            tags: Vec::with_capacity(expected),
            rooms: Vec::with_capacity(expected),
            starts: Starts::none(leaf.len()),
            free: 0,
        };
        for record in records(leaf, format) {
            let record = record?;
            all.tags.push(tag(record.name));
            all.rooms.push(units_of_room(record.free()));
            all.starts.insert(record.offset);
            all.free += record.length - record.used();
        }
        Ok(all)
    }

    /// Finds the record of a name.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if a record with the name's fingerprint is impossible.
    pub fn find<'a>(
        &self,
        leaf: &'a [u8],
        format: Format,
        name: &[u8],
    ) -> Result<Option<Record<'a>>, Corrupt> {
        let found = self.position(leaf, format, name)?;
        Ok(found.map(|(_, record)| record))
    }

    fn position<'a>(
        &self,
        leaf: &'a [u8],
        format: Format,
        name: &[u8],
    ) -> Result<Option<(usize, Record<'a>)>, Corrupt> {
        for index in memchr_iter(tag(name), &self.tags) {
            let Some(offset) = self.starts.nth(index) else {
                break;
            };
            let record = record_at(leaf, format, offset)?;
            if record.is_named(name) {
                return Ok(Some((index, record)));
            }
        }
        Ok(None)
    }

    /// The offset of the first record with at least `need` bytes that another entry could use;
    /// `need` is the length of a record.
    #[must_use]
    pub fn gap(&self, need: usize) -> Option<usize> {
        // Whole groups first: whether one of them has room takes a few instructions for all.
        const GROUP: usize = 32;
        let need = units_of_room(need);
        let has_room = |rooms: &[u8]| rooms.iter().fold(0, |most, room| most.max(*room)) >= need;
        let group = self.rooms.chunks(GROUP).position(has_room)?;
        let start = group * GROUP;
        let within = self.rooms[start..].iter().position(|room| *room >= need)?;
        self.starts.nth(start + within)
    }

    /// Bytes that no entry uses, of all records together; also those behind `.`, where no entry may
    /// be added.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free
    }

    /// The memory of the fingerprints, of the rooms and of the offsets.
    #[must_use]
    pub fn memory(&self) -> (&[u8], &[u8], &[u64]) {
        (&self.tags, &self.rooms, self.starts.words())
    }

    /// The part of [`Fingerprints::memory`] that changes when a record comes or goes at `offset`.
    #[must_use]
    pub fn memory_of(&self, offset: usize) -> (&[u8], &[u8], &[u64]) {
        let first = self.starts.count_before(offset);
        let (tags, rooms) = (&self.tags[first..], &self.rooms[first..]);
        (tags, rooms, self.starts.word_of(offset))
    }

    /// As [`insert_at`], in the leaf that these describe.
    ///
    /// # Errors
    ///
    /// As [`insert_at`].
    ///
    /// # Panics
    ///
    /// As [`insert_at`].
    pub fn insert_at(
        &mut self,
        leaf: &mut [u8],
        format: Format,
        offset: usize,
        entry: &Entry<'_>,
    ) -> Result<Inserted, Corrupt> {
        if !self.starts.contains(offset) {
            let problem = format!("no record starts at byte {offset}");
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        let index = self.starts.count_before(offset);
        let room = record_at(leaf, format, offset)?.free();
        let inserted = insert_at(leaf, format, offset, entry)?;
        let Inserted::At(start) = inserted else {
            return Ok(inserted);
        };
        let need = record_length(entry.name.len());
        let (tag, left) = (tag(entry.name), units_of_room(room - need));
        self.free = self.free.saturating_sub(need);
        if start == offset {
            (self.tags[index], self.rooms[index]) = (tag, left);
        } else {
            self.rooms[index] = 0;
            // In a leaf that these do not describe, another record may start there.
            if !self.starts.contains(start) {
                self.starts.insert(start);
                self.tags.insert(index + 1, tag);
                self.rooms.insert(index + 1, left);
            }
        }
        Ok(inserted)
    }

    /// As [`remove`](super::remove), in the leaf that these describe.
    ///
    /// # Errors
    ///
    /// As [`remove`](super::remove).
    pub fn remove(
        &mut self,
        leaf: &mut [u8],
        format: Format,
        name: &[u8],
    ) -> Result<Option<(InodeNumber, Option<FileType>)>, Corrupt> {
        let Some((index, record)) = self.position(leaf, format, name)? else {
            return Ok(None);
        };
        let Some(entry) = record.entry() else {
            return Ok(None);
        };
        let (answer, removed) = ((entry.inode, entry.file_type), record.place());
        let before = index
            .checked_sub(1)
            .and_then(|before| self.starts.nth(before));
        let Some(before) = before else {
            absorb(leaf, None, &removed);
            self.free += removed.used;
            (self.tags[0], self.rooms[0]) = (tag(b""), units_of_room(removed.length));
            return Ok(Some(answer));
        };
        let before = record_at(leaf, format, before)?;
        let room = before.free_of(before.length + removed.length);
        let before = before.place();
        absorb(leaf, Some(before), &removed);
        self.free += removed.used;
        self.rooms[index - 1] = units_of_room(room);
        self.tags.remove(index);
        self.rooms.remove(index);
        self.starts.remove(removed.offset);
        Ok(Some(answer))
    }
}

fn units_of_room(bytes: usize) -> u8 {
    u8::try_from(bytes / UNIT).unwrap_or(u8::MAX)
}

/// The fingerprint of a name: the upper byte of a multiplicative hash. Whoever chooses names so
/// that their fingerprints are equal makes searches as long as they are without.
fn tag(name: &[u8]) -> u8 {
    /// An odd number without a pattern: the golden ratio's fraction.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let (words, rest) = name.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]);
    let hash = words.fold(name.len() as u64, |hash, word| {
        (hash.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR)
    });
    (hash >> 56) as u8
}

#[cfg(test)]
mod tests;
