//! The bytes of a leaf and, where they are kept, the fingerprints of its records: one way to search
//! and change a leaf, whether it has them or not.
//!
//! Fingerprints belong to the bytes ([`Fingerprints`]). The block's buffer keeps both, under one
//! lock, and drops the fingerprints whenever the bytes are changed in any other way than here. They
//! are made when a leaf is first read for a change, so a directory that is only read has none: its
//! searches write nothing, and share the leaf's cache lines.
//!
//! Who reads a leaf in order to change it takes its cache lines from other cores at once, as many
//! together as can be known ([`LeafView::to_change`]): first those of the fingerprints, and then,
//! where these say where the change will be, those of the records. The latter are under way while
//! the caller does what it does between the search and the change.

use std::ops::Range;

use pext4_ondisk::Corrupt;
use pext4_ondisk::directory::{self, Entry, Fingerprints, Format, Inserted, Record};
use pext4_sync::memory::{self, Used};

type Decoded<T> = std::result::Result<T, Corrupt>;

/// A leaf as it is read.
#[derive(Clone, Copy)]
pub struct LeafView<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Those of its records, if they are kept.
    pub fingerprints: Option<&'a Fingerprints>,
    /// The caller will change what it looks for.
    is_for_change: bool,
}

/// A leaf that is changed.
pub struct LeafEdit<'a> {
    /// Its bytes.
    pub bytes: &'a mut [u8],
    /// Those of its records, if they are kept.
    pub fingerprints: Option<&'a mut Fingerprints>,
}

/// Where a leaf has room for another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Enough in the record at this offset.
    Gap(usize),
    /// Enough in total, but in pieces.
    Pieces,
}

/// The result of a search for a name that is to be inserted.
pub(super) enum Search<'a> {
    /// Its record: it exists.
    Record(Record<'a>),
    /// Room for it, if there is any.
    Room(Option<Room>),
}

impl<'a> LeafView<'a> {
    /// A leaf without fingerprints.
    pub(super) fn plain(bytes: &'a [u8]) -> Self {
        Self::new(bytes, None)
    }

    /// A leaf, and its fingerprints if they are kept.
    pub(super) fn new(bytes: &'a [u8], fingerprints: Option<&'a Fingerprints>) -> Self {
        Self {
            bytes,
            fingerprints,
            is_for_change: false,
        }
    }

    /// The same leaf, for a caller that has locked it and will change what it looks for.
    pub(super) fn to_change(self) -> Self {
        if let Some(fingerprints) = self.fingerprints {
            let (tags, rooms, starts) = fingerprints.memory();
            memory::fetch_for_writing(tags);
            memory::fetch_for_writing(starts);
            memory::fetch_for_writing(rooms);
        }
        Self {
            is_for_change: true,
            ..self
        }
    }

    /// Requests bytes that the caller will change, if it will.
    fn fetch(self, range: Range<usize>) {
        if self.is_for_change
            && let Some(bytes) = self.bytes.get(range.start..range.end.min(self.bytes.len()))
        {
            memory::fetch_for_writing(bytes);
        }
    }

    /// Finds the record of a name.
    pub(super) fn find(self, format: Format, name: &[u8]) -> Decoded<Option<Record<'a>>> {
        let found = match self.fingerprints {
            Some(fingerprints) => self.find_by(fingerprints, format, name)?,
            None => directory::find(self.bytes, format, name)?,
        };
        memory::used(|used| self.tell_search(used, found.as_ref()));
        Ok(found)
    }

    fn find_by(
        self,
        fingerprints: &Fingerprints,
        format: Format,
        name: &[u8],
    ) -> Decoded<Option<Record<'a>>> {
        let length = directory::record_length(name.len());
        fingerprints.find_with(self.bytes, format, name, |offset| {
            if self.is_for_change {
                self.fetch(offset..offset + length);
                // If the record is removed, the one before it becomes longer.
                if let Some(before) = fingerprints.before(offset) {
                    self.fetch(before..before + directory::HEADER_SIZE);
                }
            }
        })
    }

    /// The memory that a search has read.
    fn tell_search(self, used: &mut Used, found: Option<&Record<'_>>) {
        let Some(fingerprints) = self.fingerprints else {
            let end = found.map(|record| record.offset + record.used());
            return used.searched(&self.bytes[..end.unwrap_or(self.bytes.len())]);
        };
        let (tags, _, starts) = fingerprints.memory();
        used.read(tags);
        used.read(starts);
        if let Some(record) = found {
            used.then();
            used.read(&self.bytes[record.offset..record.offset + record.used()]);
        }
    }

    /// Finds the record of a name or, if there is none, room for one.
    pub(super) fn search(self, format: Format, name: &[u8]) -> Decoded<Search<'a>> {
        let mut space = Space::new(name);
        if let Some(fingerprints) = self.fingerprints {
            memory::used(|used| {
                let (tags, rooms, starts) = fingerprints.memory();
                used.read(tags);
                used.read(rooms);
                used.read(starts);
            });
            if let Some(record) = self.find(format, name)? {
                return Ok(Search::Record(record));
            }
            space.look_up(fingerprints);
            if let Some(gap) = space.gap {
                // A guess at the length of the record that is there: names are often alike.
                self.fetch(gap..gap + 2 * space.need);
            }
            return Ok(Search::Room(space.room()));
        }
        let wanted = format.naming.wanted(name);
        for record in directory::records(self.bytes, format) {
            let record = record?;
            if record.is_named(&wanted) {
                memory::used(|used| self.tell_search(used, Some(&record)));
                return Ok(Search::Record(record));
            }
            space.add(&record);
        }
        memory::used(|used| self.tell_search(used, None));
        Ok(Search::Room(space.room()))
    }

    /// Room for a name that the leaf does not have.
    pub(super) fn room(self, format: Format, name: &[u8]) -> Decoded<Option<Room>> {
        let mut space = Space::new(name);
        if let Some(fingerprints) = self.fingerprints {
            memory::used(|used| used.read(fingerprints.memory().1));
            space.look_up(fingerprints);
            return Ok(space.room());
        }
        for record in directory::records(self.bytes, format) {
            space.add(&record?);
            if space.gap.is_some() {
                break;
            }
        }
        Ok(space.room())
    }
}

/// The space that the records of a leaf leave for a name.
struct Space {
    need: usize,
    gap: Option<usize>,
    in_all: usize,
}

impl Space {
    fn new(name: &[u8]) -> Self {
        Self {
            need: directory::record_length(name.len()),
            gap: None,
            in_all: 0,
        }
    }

    fn add(&mut self, record: &Record<'_>) {
        if self.gap.is_none() && record.free() >= self.need {
            self.gap = Some(record.offset);
        }
        // Writing the leaf anew also gains what is behind `.`, where no entry may be added.
        self.in_all += record.length - record.used();
    }

    fn look_up(&mut self, fingerprints: &Fingerprints) {
        self.gap = fingerprints.gap(self.need);
        self.in_all = fingerprints.free();
    }

    fn room(&self) -> Option<Room> {
        let in_pieces = (self.in_all >= self.need).then_some(Room::Pieces);
        self.gap.map(Room::Gap).or(in_pieces)
    }
}

impl LeafEdit<'_> {
    fn view(&self) -> LeafView<'_> {
        LeafView::new(self.bytes, self.fingerprints.as_deref())
    }

    /// Inserts an entry into the room that was seen for it; false if there is none there.
    pub(super) fn insert(&mut self, format: Format, room: Room, new: &Entry<'_>) -> Decoded<bool> {
        match room {
            Room::Gap(offset) => {
                memory::used(|used| self.tell_insertion(used, format, offset, new.name));
                let inserted = match &mut self.fingerprints {
                    Some(kept) => kept.insert_at(self.bytes, format, offset, new),
                    None => directory::insert_at(self.bytes, format, offset, new),
                };
                Ok(matches!(inserted?, Inserted::At(_)))
            }
            Room::Pieces => self.rewrite_with(format, new),
        }
    }

    /// Writes the leaf anew, its entries without space between them, and one more.
    fn rewrite_with(&mut self, format: Format, new: &Entry<'_>) -> Decoded<bool> {
        let content = self.bytes.to_vec();
        let entries = directory::entries(&content, format).collect::<Decoded<Vec<_>>>()?;
        let entries = entries.into_iter().chain([*new]);
        let has_room = directory::write_leaf(self.bytes, format, entries);
        if let Some(kept) = &mut self.fingerprints {
            **kept = Fingerprints::of(self.bytes, format)?;
        }
        Ok(has_room)
    }

    /// The memory that a change writes: the page's count of references (virtual cores begin an
    /// object at a line, so the first byte is beside it), the bytes from `start` to `end`, and what
    /// is known of records from `start` on.
    fn tell_change(&self, used: &mut Used, start: usize, end: usize) {
        used.written(&self.bytes[..1]);
        used.written(&self.bytes[start..end.min(self.bytes.len())]);
        if let Some(fingerprints) = &self.fingerprints {
            let (tags, rooms, starts) = fingerprints.memory_of(start);
            used.written(tags);
            used.written(rooms);
            used.written(starts);
        }
    }

    fn tell_insertion(&self, used: &mut Used, format: Format, offset: usize, name: &[u8]) {
        if let Ok(record) = directory::record_at(self.bytes, format, offset) {
            let end = offset + record.used() + directory::record_length(name.len());
            self.tell_change(used, offset, end);
        }
    }

    fn tell_removal(&self, used: &mut Used, format: Format, name: &[u8]) {
        if let Ok(Some(record)) = self.view().find(format, name) {
            let end = record.offset + record.used();
            self.tell_change(used, record.offset, end);
            let fingerprints = self.fingerprints.as_ref();
            if let Some(before) = fingerprints.and_then(|kept| kept.before(record.offset)) {
                used.written(&self.bytes[before..before + directory::HEADER_SIZE]);
            }
        }
    }

    /// Removes a name; false if the leaf does not have it.
    pub(super) fn remove(&mut self, format: Format, name: &[u8]) -> Decoded<bool> {
        memory::used(|used| self.tell_removal(used, format, name));
        let removed = match &mut self.fingerprints {
            Some(kept) => kept.remove(self.bytes, format, name),
            None => directory::remove(self.bytes, format, name),
        };
        Ok(removed?.is_some())
    }

    /// Removes a name by its bytes, whatever other names are equal to it where names are folded.
    pub(super) fn remove_spelling(&mut self, format: Format, spelling: &[u8]) -> Decoded<()> {
        directory::remove(self.bytes, format.by_bytes(), spelling)?;
        if let Some(kept) = &mut self.fingerprints {
            **kept = Fingerprints::of(self.bytes, format)?;
        }
        Ok(())
    }

    /// Changes the inode of a name, which its fingerprint does not depend on; false if the leaf
    /// does not have it.
    pub(super) fn set_inode(&mut self, format: Format, entry: &Entry<'_>) -> Decoded<bool> {
        let found = self.view().find(format, entry.name)?;
        let Some(offset) = found.map(|record| record.offset) else {
            return Ok(false);
        };
        directory::set_inode_at(self.bytes, format, offset, entry.inode, entry.file_type);
        Ok(true)
    }
}
