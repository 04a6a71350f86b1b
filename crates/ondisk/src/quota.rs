//! Quota files: the space and the inodes that each user, group or project uses.
//!
//! A file has blocks of 1 KiB, whatever the block size of the file system is. Block 0 is the
//! header; block 1 is the root of a tree of four levels. Each level has 256 block numbers and is
//! indexed by one byte of the owner's id, from the highest byte down. The last level points to
//! leaves with up to fourteen entries of any owners, in any order. This layout (format `vfsv1`,
//! version 1) was observed in files that mke2fs and e2fsck 1.47 wrote.

mod encode;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::Corrupt;

pub use encode::encode_file;

/// Bytes of a block of a quota file.
pub const BLOCK_SIZE: usize = 1024;
/// The number of the root block.
pub const ROOT: u32 = 1;
/// Number of tree levels above the leaves.
pub const DEPTH: u32 = 4;
/// Number of block numbers in a block of the tree.
pub const REFERENCES: usize = BLOCK_SIZE / 4;
/// Most entries of a leaf.
pub const ENTRIES: usize = (BLOCK_SIZE - LEAF_HEADER) / ENTRY;

const STRUCTURE: &str = "quota file";
const VERSION: u32 = 1;
const LEAF_HEADER: usize = 16;
const ENTRY: usize = 72;

/// The kind of owner whose usage a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl OwnerKind {
    /// All kinds, in the order of the format.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// The magic number of a file for this kind.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }

    /// The name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    dqh_magic: U32,
    dqh_version: U32,
    dqi_bgrace: U32,
    dqi_igrace: U32,
    dqi_flags: U32,
    dqi_blocks: U32,
    dqi_free_blk: U32,
    dqi_free_entry: U32,
}

const _: () = assert!(std::mem::size_of::<RawHeader>() == 32);

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLeafHeader {
    dqdh_next_free: U32,
    dqdh_prev_free: U32,
    dqdh_entries: U16,
    dqdh_pad1: U16,
    dqdh_pad2: U32,
}

const _: () = assert!(std::mem::size_of::<RawLeafHeader>() == LEAF_HEADER);

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    dqb_id: U32,
    dqb_pad: U32,
    dqb_ihardlimit: U64,
    dqb_isoftlimit: U64,
    dqb_curinodes: U64,
    dqb_bhardlimit: U64,
    dqb_bsoftlimit: U64,
    dqb_curspace: U64,
    dqb_btime: U64,
    dqb_itime: U64,
}

const _: () = assert!(std::mem::size_of::<RawEntry>() == ENTRY);

/// The header of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Blocks of the file, including this one and the root of the tree.
    pub blocks: u32,
    /// The first of a list of leaves with empty places; 0 if there is none.
    pub free_leaf: u32,
}

impl Header {
    /// Decodes the first block of a file of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the magic number or the version is wrong, or the header counts blocks that
    /// the file does not have.
    pub fn decode(block: &[u8], kind: OwnerKind, size: u64) -> Result<Self, Corrupt> {
        let corrupt = |problem| Err(Corrupt::new(STRUCTURE, problem));
        let Ok((raw, _)) = RawHeader::read_from_prefix(block) else {
            return corrupt(format!("{} bytes", block.len()));
        };
        let (magic, version) = (raw.dqh_magic.get(), raw.dqh_version.get());
        if magic != kind.magic() {
            return corrupt(format!(
                "magic is {magic:#010X}, not {:#010X}",
                kind.magic()
            ));
        }
        if version != VERSION {
            return corrupt(format!("version {version}, not {VERSION}"));
        }
        let blocks = raw.dqi_blocks.get();
        if u64::from(blocks) > size.div_ceil(BLOCK_SIZE as u64) {
            return corrupt(format!("{blocks} blocks in {size} bytes"));
        }
        let free = [raw.dqi_free_blk.get(), raw.dqi_free_entry.get()];
        if let Some(first) = free.into_iter().find(|&first| first >= blocks) {
            return corrupt(format!(
                "block {first} of {blocks} is the first of a free list"
            ));
        }
        let free_leaf = raw.dqi_free_entry.get();
        Ok(Self { blocks, free_leaf })
    }

    /// Stores it in the first block of a file, whose other fields stay.
    pub fn store(self, block: &mut [u8]) {
        if let Ok((raw, _)) = RawHeader::mut_from_prefix(block) {
            raw.dqi_blocks = self.blocks.into();
            raw.dqi_free_entry = self.free_leaf.into();
        }
    }
}

/// The header of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafHeader {
    /// The next leaf of the list of leaves with empty places; 0 if there is none, or if this leaf
    /// has none.
    pub next_free: u32,
    /// The one before it in that list, or 0.
    pub previous_free: u32,
    /// Number of entries.
    pub entries: u16,
}

impl LeafHeader {
    /// The header of this block; that of an empty leaf if the block is too short to have one.
    #[must_use]
    pub fn decode(block: &[u8]) -> Self {
        let raw = RawLeafHeader::read_from_prefix(block);
        raw.map_or_else(
            |_| Self::default(),
            |(raw, _)| Self {
                next_free: raw.dqdh_next_free.get(),
                previous_free: raw.dqdh_prev_free.get(),
                entries: raw.dqdh_entries.get(),
            },
        )
    }

    /// Stores it in its block.
    pub fn store(self, block: &mut [u8]) {
        if let Ok((raw, _)) = RawLeafHeader::mut_from_prefix(block) {
            raw.dqdh_next_free = self.next_free.into();
            raw.dqdh_prev_free = self.previous_free.into();
            raw.dqdh_entries = self.entries.into();
        }
    }
}

/// The block numbers in a block of the tree; 0 is empty.
pub fn references(block: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = block.as_chunks::<4>();
    words
        .iter()
        .take(REFERENCES)
        .map(|word| u32::from_le_bytes(*word))
}

/// Which of the block numbers in a block of the tree, `depth` levels below the root, leads to this
/// owner.
#[must_use]
pub fn index_of(id: u32, depth: u32) -> usize {
    let below = (DEPTH - 1).saturating_sub(depth);
    (id >> (8 * below) & 0xFF) as usize
}

/// Stores a block number in a block of the tree.
pub fn set_reference(block: &mut [u8], index: usize, number: u32) {
    let (words, _) = block.as_chunks_mut::<4>();
    if let Some(word) = words.get_mut(index) {
        *word = number.to_le_bytes();
    }
}

/// The usage of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The owner's id.
    pub id: u32,
    /// Bytes of blocks.
    pub space: u64,
    /// Number of inodes.
    pub inodes: u64,
}

/// What an owner may use at most; 0 if there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of blocks that may be exceeded for some time.
    pub soft_space: u64,
    /// Bytes of blocks that may not be exceeded.
    pub hard_space: u64,
    /// Inodes, as `soft_space`.
    pub soft_inodes: u64,
    /// Inodes, as `hard_space`.
    pub hard_inodes: u64,
}

/// The entry at this offset of a leaf and its limits; `None` if there is no place for one.
#[must_use]
pub fn entry_at(block: &[u8], offset: usize) -> Option<(Entry, Limits)> {
    let (raw, _) = RawEntry::read_from_prefix(block.get(offset..)?).ok()?;
    // The format counts limits of space in KiB.
    let bytes = |kibibytes: U64| kibibytes.get().saturating_mul(1024);
    let limits = Limits {
        soft_space: bytes(raw.dqb_bsoftlimit),
        hard_space: bytes(raw.dqb_bhardlimit),
        soft_inodes: raw.dqb_isoftlimit.get(),
        hard_inodes: raw.dqb_ihardlimit.get(),
    };
    Some((decoded(&raw), limits))
}

fn decoded(raw: &RawEntry) -> Entry {
    Entry {
        id: raw.dqb_id.get(),
        space: raw.dqb_curspace.get(),
        inodes: raw.dqb_curinodes.get(),
    }
}

/// The entries of a leaf.
pub fn entries(block: &[u8]) -> impl Iterator<Item = Entry> {
    placed_entries(block).map(|(_, entry)| entry)
}

/// The entries of a leaf, each behind its offset in the block in bytes. An entry of zeroes is
/// empty; the entry of owner 0 without any usage has a time set, so that it does not look empty.
pub fn placed_entries(block: &[u8]) -> impl Iterator<Item = (usize, Entry)> {
    places(block)
        .filter(|(_, place)| !is_empty(place))
        .filter_map(|(offset, place)| Some((offset, RawEntry::read_from_bytes(place).ok()?)))
        .map(|(offset, raw)| (offset, decoded(&raw)))
}

/// The offset of the first empty place of a leaf, in bytes.
#[must_use]
pub fn empty_place(block: &[u8]) -> Option<usize> {
    let mut places = places(block);
    places.find_map(|(offset, place)| is_empty(place).then_some(offset))
}

fn places(block: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let places = block.get(LEAF_HEADER..).unwrap_or_default();
    let offsets = (LEAF_HEADER..).step_by(ENTRY);
    offsets.zip(places.chunks_exact(ENTRY)).take(ENTRIES)
}

fn is_empty(place: &[u8]) -> bool {
    place.iter().all(|&byte| byte == 0)
}

/// Puts an entry without usage and limits at this offset of a leaf.
pub fn put_entry(block: &mut [u8], offset: usize, id: u32) {
    with_entry(block, offset, |entry| {
        *entry = RawEntry::new_zeroed();
        entry.dqb_id = id.into();
    });
}

/// Adds bytes of blocks and inodes, both of which may be negative, to the usage in the entry at
/// this offset of a leaf. No usage becomes less than zero.
pub fn add_usage(block: &mut [u8], offset: usize, space: i64, inodes: i64) {
    let sum = |used: U64, more: i64| U64::from(used.get().saturating_add_signed(more));
    with_entry(block, offset, |entry| {
        entry.dqb_curspace = sum(entry.dqb_curspace, space);
        entry.dqb_curinodes = sum(entry.dqb_curinodes, inodes);
    });
}

/// Changes an entry. One that would look empty has a time as a mark, which is no part of it.
fn with_entry(block: &mut [u8], offset: usize, change: impl FnOnce(&mut RawEntry)) {
    let place = block.get_mut(offset..).unwrap_or_default();
    let Ok((entry, _)) = RawEntry::mut_from_prefix(place) else {
        return;
    };
    let mut empty = RawEntry::new_zeroed();
    empty.dqb_itime = 1.into();
    if entry.as_bytes() == empty.as_bytes() {
        *entry = RawEntry::new_zeroed();
    }
    change(entry);
    if is_empty(entry.as_bytes()) {
        *entry = empty;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BLOCK_SIZE, ENTRIES, Entry, Header, LeafHeader, Limits, OwnerKind, add_usage, empty_place,
        entries, entry_at, index_of, put_entry, references, set_reference,
    };

    /// The header that mke2fs 1.47 writes into a user's file.
    const HEADER: [u32; 8] = [0xD9C0_1F11, 1, 604_800, 604_800, 0, 6, 0, 5];

    fn header(words: [u32; 8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn headers_are_of_their_owner_and_speak_of_their_file() {
        let decode = |words, size| Header::decode(&header(words), OwnerKind::User, size);
        assert_eq!(decode(HEADER, 6144).expect("sound").blocks, 6);
        assert_eq!(decode(HEADER, 5121).expect("begun").blocks, 6);
        let problem = |words, size| {
            let corrupt = decode(words, size).expect_err("not sound");
            corrupt.problem().to_owned()
        };
        assert_eq!(problem(HEADER, 5120), "6 blocks in 5120 bytes");
        for (word, value, says) in [
            (0, 0xD9C0_1927, "magic is 0xD9C01927, not 0xD9C01F11"),
            (1, 0, "version 0, not 1"),
            (6, 6, "block 6 of 6 is the first of a free list"),
            (7, 77, "block 77 of 6 is the first of a free list"),
            (5, 0, "block 0 of 0 is the first of a free list"),
        ] {
            let mut words = HEADER;
            words[word] = value;
            assert_eq!(problem(words, 6144), says);
        }
        assert!(Header::decode(&[0; 31], OwnerKind::User, 6144).is_err());
    }

    #[test]
    fn entries_are_put_into_empty_places_and_count_usage() {
        let mut leaf = vec![0; BLOCK_SIZE];
        for id in 0..14 {
            let place = empty_place(&leaf).expect("an empty place");
            put_entry(&mut leaf, place, id);
            if id > 0 {
                add_usage(&mut leaf, place, 4096, 2);
                add_usage(&mut leaf, place, i64::MIN, -1);
            }
        }
        assert_eq!(empty_place(&leaf), None, "also owner 0 looks used");
        let found: Vec<Entry> = entries(&leaf).collect();
        let entry = |id: u32| Entry {
            id,
            space: 0,
            inodes: u64::from(id.min(1)),
        };
        assert_eq!(found, (0..14).map(entry).collect::<Vec<_>>());
        let header = LeafHeader {
            next_free: 8,
            previous_free: 9,
            entries: 14,
        };
        header.store(&mut leaf);
        assert_eq!(LeafHeader::decode(&leaf), header);
        assert_eq!(entries(&leaf).count(), 14);
        // The mark of an empty entry goes when it is used.
        add_usage(&mut leaf, 16, 0, 1);
        assert_eq!(leaf[16..88].iter().filter(|&&byte| byte != 0).count(), 1);
        add_usage(&mut leaf, 16, 0, -1);
        // Behind the end: nothing happens.
        add_usage(&mut leaf, BLOCK_SIZE, 1, 1);
        put_entry(&mut leaf, BLOCK_SIZE - 71, 1);
    }

    #[test]
    fn the_tree_is_indexed_by_the_bytes_of_an_id() {
        let indexes = [0, 1, 2, 3].map(|depth| index_of(0x0102_03FF, depth));
        assert_eq!(indexes, [1, 2, 3, 255]);
        let mut node = vec![0; BLOCK_SIZE];
        set_reference(&mut node, 255, 7);
        set_reference(&mut node, 256, 7);
        assert_eq!(references(&node).position(|number| number == 7), Some(255));
    }

    #[test]
    fn a_header_keeps_its_other_fields() {
        let mut block = header(HEADER);
        let mut found = Header::decode(&block, OwnerKind::User, 8192).expect("it is sound");
        (found.blocks, found.free_leaf) = (8, 7);
        found.store(&mut block);
        let mut expected = HEADER;
        (expected[5], expected[7]) = (8, 7);
        assert_eq!(block, header(expected));
    }

    #[test]
    fn leaves_have_fourteen_places_and_zeroes_are_empty_ones() {
        let mut leaf = vec![0; BLOCK_SIZE];
        assert_eq!(entries(&leaf).count(), 0);
        assert_eq!(ENTRIES, 14);
        let mut put = |place: usize, at: usize, value: u64| {
            let at = 16 + place * 72 + at;
            leaf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(13, 0, 300);
        put(13, 24, 2);
        put(13, 48, 12_288);
        // An owner 0 without anything.
        put(1, 64, 1);
        let found: Vec<Entry> = entries(&leaf).collect();
        let entry = |id, space, inodes| Entry { id, space, inodes };
        assert_eq!(found, [entry(0, 0, 0), entry(300, 12_288, 2)]);
        assert_eq!(entries(&leaf[..100]).count(), 0);
        assert_eq!(references(&leaf).count(), 256);
        assert_eq!(
            references(&leaf).position(|number| number == 300),
            Some(238)
        );
    }

    #[test]
    fn an_entry_has_limits() {
        let mut leaf = vec![0; BLOCK_SIZE];
        put_entry(&mut leaf, 88, 7);
        add_usage(&mut leaf, 88, 4096, 3);
        let words = [(8, 30_u64), (16, 20), (32, 1000), (40, 500)];
        for (at, value) in words {
            leaf[88 + at..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let (entry, limits) = entry_at(&leaf, 88).expect("it is inside");
        assert_eq!((entry.id, entry.space, entry.inodes), (7, 4096, 3));
        let expected = Limits {
            soft_space: 500 * 1024,
            hard_space: 1000 * 1024,
            soft_inodes: 20,
            hard_inodes: 30,
        };
        assert_eq!(limits, expected);
        leaf[88 + 40..][..8].fill(0xFF);
        let (_, limits) = entry_at(&leaf, 88).expect("it is inside");
        assert_eq!(limits.soft_space, u64::MAX);
        assert_eq!(entry_at(&leaf, BLOCK_SIZE - 71), None);
    }
}
