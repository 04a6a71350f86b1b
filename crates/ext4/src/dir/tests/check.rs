//! The invariants of a directory, checked on its raw bytes by independent code.
//!
//! They are those that e2fsck's second pass requires: chains of entries that end exactly at the
//! tail, `.` and `..` in their places, exact limits, ordered hashes, every block referenced once,
//! and leaves whose hashes are in the range that their index entry gives.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{BlockKind, DirectoryBlocks};
use super::memory::{Memory, PARENT, SELF};

/// Name, inode and type byte of every entry except `.` and `..`.
pub(super) type Names = BTreeMap<Vec<u8>, (u32, u8)>;

struct Check<'a> {
    directory: &'a Memory,
    seen: BTreeSet<u32>,
    names: Names,
}

/// Asserts that a directory is sound and returns its names.
pub(super) fn check(directory: &Memory) -> Names {
    let mut check = Check {
        directory,
        seen: BTreeSet::new(),
        names: Names::new(),
    };
    if directory.indexed {
        check.root();
        let all: BTreeSet<u32> = (0..directory.blocks.len())
            .map(|block| block as u32)
            .collect();
        assert_eq!(check.seen, all, "every block is referenced");
    } else {
        for block in 0..directory.blocks.len() {
            let entries = check.leaf(block as u32);
            check.enter(block == 0 && !directory.is_inline(), entries);
        }
    }
    check.names
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn length(bytes: &[u8], at: usize) -> usize {
    match half(bytes, at) {
        0 | 0xFFFF => 1 << 16,
        length => length,
    }
}

type Entries = Vec<(Vec<u8>, u32, u8)>;

impl Check<'_> {
    fn bytes(&self, block: u32, kind: BlockKind) -> &[u8] {
        let (bytes, stored) = &self.directory.blocks[block as usize];
        assert_eq!(*stored, kind, "block {block} is sealed as what it is");
        bytes
    }

    /// Used entries of a leaf, its chain checked.
    fn leaf(&mut self, block: u32) -> Entries {
        assert!(self.seen.insert(block), "block {block} is referenced once");
        let bytes = self.bytes(block, BlockKind::Leaf);
        let mut end = bytes.len();
        if self.directory.format().has_tail {
            end -= 12;
            assert_eq!(
                &bytes[end..end + 8],
                &[0, 0, 0, 0, 12, 0, 0, 0xDE],
                "tail of block {block}"
            );
        }
        let mut entries = Entries::new();
        let mut at = 0;
        while at < end {
            let (inode, step, name) = (word(bytes, at), length(bytes, at + 4), bytes[at + 6]);
            assert_eq!(step % 4, 0, "block {block} offset {at}");
            if inode != 0 {
                assert!(name > 0 && step >= (8 + usize::from(name)).next_multiple_of(4));
                let start = at + 8;
                let name = bytes[start..start + usize::from(name)].to_vec();
                entries.push((name, inode, bytes[at + 7]));
            }
            assert!(step >= 12, "block {block} offset {at}");
            at += step;
        }
        assert_eq!(at, end, "the chain of block {block} ends at its tail");
        entries
    }

    fn enter(&mut self, first: bool, mut entries: Entries) {
        if first {
            let mut dots = entries.drain(..2);
            let kind = if self.directory.settings.format.has_file_types {
                2
            } else {
                0
            };
            assert_eq!(dots.next(), Some((b".".to_vec(), SELF.get(), kind)));
            let (name, _, type_byte) = dots.next().expect("two were drained");
            assert_eq!((name.as_slice(), type_byte), (b"..".as_slice(), kind));
        }
        for (name, inode, kind) in entries {
            assert!(name != b"." && name != b"..");
            assert!(
                self.names.insert(name, (inode, kind)).is_none(),
                "names are unique"
            );
        }
    }

    fn root(&mut self) {
        self.seen.insert(0);
        let bytes = self.bytes(0, BlockKind::Index).to_vec();
        let kind = if self.directory.settings.format.has_file_types {
            2
        } else {
            0
        };
        assert_eq!(word(&bytes, 0), SELF.get());
        assert_eq!(&bytes[4..12], &[12, 0, 1, kind, b'.', 0, 0, 0]);
        assert_eq!(word(&bytes, 12), PARENT.get());
        assert_eq!(length(&bytes, 16), bytes.len() - 12);
        assert_eq!(&bytes[18..24], &[2, kind, b'.', b'.', 0, 0]);
        assert_eq!(word(&bytes, 0x18), 0);
        assert_eq!(bytes[0x1C], self.directory.settings.hasher.version.to_raw());
        assert_eq!(bytes[0x1D], 8);
        let levels = bytes[0x1E];
        assert!(levels <= if self.directory.settings.large { 2 } else { 1 });
        assert_eq!(bytes[0x1F], 0);
        self.index(&bytes, 0x20, levels, 0, u32::MAX);
    }

    fn node(&mut self, block: u32, levels: u8, low: u32, high: u32) {
        assert!(self.seen.insert(block), "block {block} is referenced once");
        let bytes = self.bytes(block, BlockKind::Index).to_vec();
        assert_eq!(word(&bytes, 0), 0);
        assert_eq!(length(&bytes, 4), bytes.len());
        assert_eq!(&bytes[6..8], &[0, 0]);
        self.index(&bytes, 8, levels, low, high);
    }

    /// Entries of an index block from `start` on, for names whose hashes are from `low` to `high`.
    fn index(&mut self, bytes: &[u8], start: usize, levels: u8, low: u32, high: u32) {
        let tail = if self.directory.settings.format.has_tail {
            8
        } else {
            0
        };
        let (limit, count) = (half(bytes, start), half(bytes, start + 2));
        assert_eq!(
            limit,
            (bytes.len() - start - tail) / 8,
            "the limit is exact"
        );
        assert!((1..=limit).contains(&count));
        let hash_at = |index: usize| match index {
            0 => low,
            index if index == count => high,
            index => word(bytes, start + 8 * index),
        };
        for index in 0..count {
            let (low, high) = (hash_at(index), hash_at(index + 1));
            assert!(low <= high, "hashes are ordered");
            let child = word(bytes, start + 8 * index + 4);
            if levels > 0 {
                self.node(child, levels - 1, low, high);
                continue;
            }
            let entries = self.leaf(child);
            for (name, ..) in &entries {
                let hash = self
                    .directory
                    .settings
                    .hasher
                    .hash(name)
                    .expect("known")
                    .major;
                assert!(hash >= low & !1, "a name below its leaf");
                let highest = if high & 1 == 1 { high } else { high - 1 };
                assert!(hash <= highest, "a name above its leaf");
            }
            self.enter(false, entries);
        }
    }
}
