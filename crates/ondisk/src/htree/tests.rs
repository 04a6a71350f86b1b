//! Index blocks: limits, search, growth, and built directories.

use proptest::prelude::*;

use super::*;
use crate::casefold::Naming;
use crate::checksum::InodeSeed;
use crate::directory::{self, Entry, FileType, Format};
use crate::dirhash::{Hasher, Signedness};
use crate::number::InodeNumber;

const FORMAT: Format = Format {
    has_tail: true,
    has_file_types: true,
    naming: Naming::Exact,
};
const OWN: InodeNumber = InodeNumber(12);
const PARENT: InodeNumber = InodeNumber(2);
const HASHER: Hasher = Hasher {
    version: HashVersion::HalfMd4,
    signedness: Signedness::Unsigned,
    seed: [1, 2, 3, 4],
    naming: Naming::Exact,
};

fn root_of(size: usize) -> Vec<u8> {
    let mut root = vec![0xAA; size];
    init_root(
        &mut root,
        FORMAT,
        OWN,
        PARENT,
        HashVersion::HalfMd4,
        LogicalBlock(1),
    );
    root
}

#[test]
fn limits_are_those_of_the_standard_tools() {
    let limits = |size, has_tail| {
        [ROOT_ENTRIES_OFFSET, NODE_ENTRIES_OFFSET].map(|start| capacity(size, start, has_tail))
    };
    assert_eq!(limits(4096, true), [507, 510]);
    assert_eq!(limits(4096, false), [508, 511]);
    assert_eq!(limits(1024, true), [123, 126]);
    assert_eq!(limits(1024, false), [124, 127]);
}

#[test]
fn a_root_has_the_bytes_that_the_format_names() {
    let root = root_of(1024);
    assert_eq!(root[..12], [12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
    assert_eq!(root[12..24], [2, 0, 0, 0, 0xF4, 3, 2, 2, b'.', b'.', 0, 0]);
    assert_eq!(
        root[24..40],
        [0, 0, 0, 0, 1, 8, 0, 0, 123, 0, 1, 0, 1, 0, 0, 0]
    );
    let info = RootInfo::decode(&root).expect("sound");
    assert_eq!(
        (info.check(0), info.indirect_levels),
        (Ok(HashVersion::HalfMd4), 0)
    );
}

#[test]
fn roots_that_lie_are_refused() {
    let cases = [
        (0x18, 1),
        (0x1C, 4),
        (0x1D, 9),
        (0x1E, 2),
        (0x1F, 1),
        (8, b'x'),
    ];
    for (at, value) in cases {
        let mut bad = root_of(1024);
        bad[at] = value;
        let verdict = RootInfo::decode(&bad).and_then(|info| info.check(1));
        assert!(verdict.is_err(), "byte {at:#x}");
    }
    for (at, value) in [(0x20, 124), (0x20, 122), (0x22, 0), (0x22, 124)] {
        let mut bad = root_of(1024);
        bad[at] = value;
        assert!(Index::root(&bad, true).is_err(), "byte {at:#x}");
    }
    assert!(Index::node(&root_of(1024), true).is_err());
}

#[test]
fn search_finds_the_last_entry_not_above() {
    let mut root = root_of(1024);
    let mut index = IndexMut::root(&mut root, true).expect("sound");
    assert!(index.insert(1, 100, LogicalBlock(2)));
    assert!(index.insert(2, 201, LogicalBlock(3)));
    assert!(index.insert(2, 150, LogicalBlock(4)));
    let index = index.as_index();
    for (hash, position) in [
        (0, 0),
        (99, 0),
        (100, 1),
        (149, 1),
        (150, 2),
        (200, 2),
        (202, 3),
    ] {
        assert_eq!(index.search(hash), position, "{hash}");
    }
    assert_eq!(index.entry(3).hash, 200 | CONTINUED);
    assert_eq!(index.entries().count(), 4, "nothing continues it further");
    assert_eq!(index.check(5), Ok(()));
    assert!(index.check(4).is_err(), "a block behind the end");
}

#[test]
fn a_full_root_gets_a_level_and_a_node_splits() {
    let mut root = root_of(1024);
    let mut index = IndexMut::root(&mut root, true).expect("sound");
    let mut block = 2;
    while index.insert(index.as_index().count(), block * 10, LogicalBlock(block)) {
        block += 1;
    }
    assert_eq!(index.as_index().count(), 123);
    let entries: Vec<IndexEntry> = index.as_index().entries().collect();
    let mut node = vec![0xAA; 1024];
    write_node(&mut node, true, &entries);
    deepen(&mut root, true, LogicalBlock(200)).expect("sound");
    assert_eq!(RootInfo::decode(&root).expect("sound").indirect_levels, 1);
    assert_eq!(
        Index::root(&root, true).expect("sound").entry(0).block,
        LogicalBlock(200)
    );
    let mut right = vec![0xAA; 1024];
    let mut left = IndexMut::node(&mut node, true).expect("sound");
    assert_eq!(left.as_index().entry(0).block, LogicalBlock(1));
    write_node(&mut right, true, &entries[60..]);
    left.truncate(60);
    assert_eq!(left.as_index().count(), 60);
    let mut of_a_kind = right.clone();
    of_a_kind[7] = 2;
    assert!(Index::node(&of_a_kind, true).is_ok(), "the kind of no file");
    of_a_kind[6] = 1;
    assert!(Index::node(&of_a_kind, true).is_err(), "a name");
    let right = Index::node(&right, true).expect("sound");
    assert_eq!(
        (right.count(), right.entry(0).block),
        (63, LogicalBlock(61))
    );
    assert_eq!(
        right.entry(1),
        IndexEntry {
            hash: 620,
            block: LogicalBlock(62)
        }
    );
}

#[test]
fn checksums_cover_the_entries_in_use_and_the_tail() {
    let mut root = root_of(1024);
    let mut index = IndexMut::root(&mut root, true).expect("sound");
    assert!(index.insert(1, 100, LogicalBlock(2)));
    let mut node = vec![0; 1024];
    write_node(&mut node, true, &[index.as_index().entry(1)]);
    for mut block in [root, node] {
        stamp(InodeSeed::new(7, OWN, 99), &mut block);
        assert_eq!(verify(InodeSeed::new(7, OWN, 99), &block), Ok(()));
        assert!(verify(InodeSeed::new(7, OWN, 98), &block).is_err());
        block[900] ^= 1;
        assert_eq!(
            verify(InodeSeed::new(7, OWN, 99), &block),
            Ok(()),
            "room for entries is not covered"
        );
        block[1016] ^= 1;
        assert!(
            verify(InodeSeed::new(7, OWN, 99), &block).is_err(),
            "the tail's reserved word is"
        );
    }
}

/// Walks a built directory as a reader would; returns its names in the order of the leaves.
fn walk(built: &[BuiltBlock]) -> Vec<Vec<u8>> {
    let info = RootInfo::decode(&built[0].bytes).expect("sound");
    let root = Index::root(&built[0].bytes, true).expect("sound");
    let mut level: Vec<IndexEntry> = root.entries().collect();
    for _ in 0..info.indirect_levels {
        level = level
            .iter()
            .flat_map(|entry| children(built, entry))
            .collect();
    }
    let mut names = Vec::new();
    for (position, entry) in level.iter().enumerate() {
        let low = entry.hash & !1;
        let high = level.get(position + 1).map_or(u32::MAX, |next| next.hash);
        let leaf = &built[usize::try_from(entry.block.get()).expect("small")].bytes;
        for entry in directory::entries(leaf, FORMAT) {
            let name = entry.expect("sound").name.to_vec();
            let hash = HASHER.hash(&name).expect("no key").major;
            assert!(
                hash >= low && hash < high,
                "{hash:#x} in {low:#x}..{high:#x}"
            );
            names.push(name);
        }
    }
    names
}

fn children(built: &[BuiltBlock], parent: &IndexEntry) -> Vec<IndexEntry> {
    let block = &built[usize::try_from(parent.block.get()).expect("small")];
    let node = Index::node(&block.bytes, true).expect("sound");
    let own = node.entries().enumerate();
    own.map(|(i, entry)| {
        if i == 0 {
            IndexEntry {
                hash: parent.hash,
                ..entry
            }
        } else {
            entry
        }
    })
    .collect()
}

fn build_names(names: &[Vec<u8>], max_levels: u8) -> Result<Vec<BuiltBlock>, TooMany> {
    let entry = |position: usize| Entry {
        inode: InodeNumber(9),
        file_type: Some(FileType::Regular),
        name: &names[position],
    };
    let order = names.iter().map(Vec::as_slice);
    let plan = Plan::of(1024, FORMAT, order, &HASHER, max_levels)?;
    let mut blocks = Vec::new();
    plan.write(OWN, PARENT, entry, |block| blocks.push(block));
    assert_eq!(blocks.len(), plan.blocks());
    Ok(blocks)
}

#[test]
fn builds_every_depth() {
    for (count, levels) in [(1, 0), (49, 0), (50, 0), (20_000, 1)] {
        let names: Vec<Vec<u8>> = (0..count).map(|i| format!("name{i:06}").into()).collect();
        let built = build_names(&names, 1).expect("room");
        let info = RootInfo::decode(&built[0].bytes).expect("sound");
        assert_eq!(info.indirect_levels, levels, "{count}");
        let mut seen = walk(&built);
        seen.sort();
        assert_eq!(seen, names);
    }
}

#[test]
fn a_third_level_needs_leave() {
    let names: Vec<Vec<u8>> = (0..40_000).map(|i| format!("{i:0>250}").into()).collect();
    let many: Vec<Vec<u8>> = names[..].to_vec();
    assert!(
        build_names(&many, 1).is_ok(),
        "13334 leaves fit under 123 nodes of 126"
    );
    let more: Vec<Vec<u8>> = (0..50_000).map(|i| format!("{i:0>250}").into()).collect();
    assert_eq!(build_names(&more, 1), Err(TooMany));
    let built = build_names(&more, 2).expect("three levels");
    assert_eq!(
        RootInfo::decode(&built[0].bytes)
            .expect("sound")
            .indirect_levels,
        2
    );
    assert_eq!(walk(&built).len(), 50_000);
}

proptest! {
    #[test]
    fn the_order_of_names_does_not_matter(
        mut names in proptest::collection::hash_set("[a-z]{1,40}", 1..150)
            .prop_map(|set| set.into_iter().map(String::into_bytes).collect::<Vec<_>>()),
    ) {
        let built = build_names(&names, 1).expect("room");
        names.reverse();
        prop_assert_eq!(&build_names(&names, 1).expect("room"), &built);
        for block in &built {
            let mut block = block.clone();
            block.stamp(InodeSeed::new(7, OWN, 1));
            let verdict = match block.kind {
                Kind::Leaf => directory::verify_leaf(InodeSeed::new(7, OWN, 1), &block.bytes),
                Kind::Index => verify(InodeSeed::new(7, OWN, 1), &block.bytes),
            };
            prop_assert_eq!(verdict, Ok(()));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        mut block in proptest::collection::vec(any::<u8>(), 0..200),
        as_node in any::<bool>(),
        hash in any::<u32>(),
    ) {
        if as_node && block.len() >= 12 {
            let length = u16::try_from(block.len()).expect("short").to_le_bytes();
            let limit = capacity(block.len(), NODE_ENTRIES_OFFSET, true);
            block[..4].fill(0);
            block[4..6].copy_from_slice(&length);
            block[6..8].fill(0);
            block[8] = u8::try_from(limit).expect("short");
            block[9..12].copy_from_slice(&[0, u8::try_from(hash % 30).expect("small"), 0]);
        }
        let _ = RootInfo::decode(&block);
        let _ = verify(InodeSeed::new(1, OWN, 1), &block);
        for index in [Index::root(&block, true), Index::node(&block, true)].into_iter().flatten() {
            let _ = index.check(5);
            let _ = index.entry(index.search(hash));
        }
    }
}
