//! Fingerprints of the records of a leaf: a byte for each, computed from its name (or from its
//! folded form, in a casefolded directory).
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

mod columns;
mod starts;

use memchr::memchr_iter;

use self::columns::Columns;
use self::starts::{Starts, UNIT};
use super::changes::{absorb, insert_in};
use super::{
    Entry, FileType, Format, Inserted, Record, STRUCTURE, record_at, record_length, records,
};
use crate::casefold::Naming;
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// The fingerprints of a leaf's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprints {
    /// In the records' order, the fingerprint of each one's name, and its room for another entry in
    /// units of 4 bytes; 255 also stands for more, which no entry needs.
    columns: Columns,
    /// The offset of each record.
    starts: Starts,
    /// Bytes that no entry uses, of all records.
    free: u32,
    /// How the directory compares names for which they were made.
    naming: Naming,
}

impl Fingerprints {
    /// Those of a leaf.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if a record is impossible.
    pub fn of(leaf: &[u8], format: Format) -> Result<Self, Corrupt> {
        // A leaf that is being filled gets twice as many records before it is split.
        let mut all = Self {
            columns: Columns::with_room(leaf.len() / 32),
            starts: Starts::none(leaf.len()),
            free: 0,
            naming: format.naming,
        };
        for (index, record) in records(leaf, format).enumerate() {
            let record = record?;
            let room = units_of_room(record.free());
            let tag = tag(&format.naming.key(record.name));
            all.columns.insert(index, tag, room);
            all.starts.insert(record.offset);
            all.gain(record.length - record.used());
        }
        Ok(all)
    }

    /// Whether they are those that directories of this format search by. In a damaged file system
    /// directories that compare names in different ways may have one leaf.
    #[must_use]
    pub fn fit(&self, format: Format) -> bool {
        self.naming == format.naming
    }

    /// Counts bytes that no entry uses any more.
    fn gain(&mut self, bytes: usize) {
        // A block has at most 64 KiB.
        self.free = self.free.saturating_add(bytes as u32);
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
        self.find_with(leaf, format, name, |_| ())
    }

    /// As [`Fingerprints::find`]; `ahead` is called with the offset of each record before that is
    /// read.
    ///
    /// # Errors
    ///
    /// As [`Fingerprints::find`].
    pub fn find_with<'a>(
        &self,
        leaf: &'a [u8],
        format: Format,
        name: &[u8],
        ahead: impl FnMut(usize),
    ) -> Result<Option<Record<'a>>, Corrupt> {
        let found = self.position(leaf, format, name, ahead)?;
        Ok(found.map(|(_, record)| record))
    }

    fn position<'a>(
        &self,
        leaf: &'a [u8],
        format: Format,
        name: &[u8],
        mut ahead: impl FnMut(usize),
    ) -> Result<Option<(usize, Record<'a>)>, Corrupt> {
        let wanted = format.naming.wanted(name);
        for index in memchr_iter(tag(wanted.key()), self.columns.tags()) {
            let Some(offset) = self.starts.nth(index) else {
                break;
            };
            ahead(offset);
            let record = record_at(leaf, format, offset)?;
            if record.is_named(&wanted) {
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
        let rooms = self.columns.rooms();
        let group = rooms.chunks(GROUP).position(has_room)?;
        let start = group * GROUP;
        let within = rooms[start..].iter().position(|room| *room >= need)?;
        self.starts.nth(start + within)
    }

    /// Bytes that no entry uses, of all records together; also those behind `.`, where no entry may
    /// be added.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free as usize
    }

    /// The offset of the record before the one at `offset`, if there is one.
    #[must_use]
    pub fn before(&self, offset: usize) -> Option<usize> {
        self.starts.before(offset)
    }

    /// The memory of the fingerprints, of the rooms and of the offsets.
    #[must_use]
    pub fn memory(&self) -> (&[u8], &[u8], &[u64]) {
        (
            self.columns.tags(),
            self.columns.rooms(),
            self.starts.words(),
        )
    }

    /// The part of [`Fingerprints::memory`] that changes when a record comes or goes at `offset`.
    #[must_use]
    pub fn memory_of(&self, offset: usize) -> (&[u8], &[u8], &[u64]) {
        let (tags, rooms, _) = self.memory();
        let first = self.starts.count_before(offset).min(tags.len());
        (&tags[first..], &rooms[first..], self.starts.word_of(offset))
    }

    /// As [`insert_at`](super::insert_at), in the leaf that these describe.
    ///
    /// # Errors
    ///
    /// As [`insert_at`](super::insert_at).
    ///
    /// # Panics
    ///
    /// As [`insert_at`](super::insert_at).
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
        let record = record_at(leaf, format, offset)?;
        let (place, room) = (record.place(), record.free());
        let inserted = insert_in(leaf, format, &place, room, entry);
        let Inserted::At(start) = inserted else {
            return Ok(inserted);
        };
        let need = record_length(entry.name.len());
        let tag = tag(&format.naming.key(entry.name));
        let left = units_of_room(room - need);
        self.free = self.free.saturating_sub(need as u32);
        if start == offset {
            self.columns.set(index, tag, left);
        } else {
            self.columns.set_room(index, 0);
            // In a leaf that these do not describe, another record may start there.
            if !self.starts.contains(start) {
                self.starts.insert(start);
                self.columns.insert(index + 1, tag, left);
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
        let Some((index, record)) = self.position(leaf, format, name, |_| ())? else {
            return Ok(None);
        };
        let Some(entry) = record.entry() else {
            return Ok(None);
        };
        let (answer, removed) = ((entry.inode, entry.file_type), record.place());
        let Some(before) = self.starts.before(removed.offset) else {
            absorb(leaf, None, &removed);
            self.gain(removed.used);
            let room = units_of_room(removed.length);
            self.columns.set(index, tag(b""), room);
            return Ok(Some(answer));
        };
        let before = record_at(leaf, format, before)?;
        let room = before.free_of(before.length + removed.length);
        let before = before.place();
        absorb(leaf, Some(before), &removed);
        self.gain(removed.used);
        self.columns.set_room(index - 1, units_of_room(room));
        self.columns.remove(index);
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
