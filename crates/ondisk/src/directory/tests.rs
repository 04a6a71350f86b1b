//! Leaf operations compared with a plain list of names, and the bytes they produce.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::changes::gap;
use super::records::encode_length;
use super::*;
use crate::bytes::write_u16;
use crate::casefold::Naming;
use crate::checksum::InodeSeed;

const PLAIN: Format = Format {
    has_tail: false,
    has_file_types: true,
    naming: Naming::Exact,
};
const TAILED: Format = Format {
    has_tail: true,
    has_file_types: true,
    naming: Naming::Exact,
};

fn entry(inode: u32, name: &[u8]) -> Entry<'_> {
    Entry {
        inode: InodeNumber(inode),
        file_type: Some(FileType::Regular),
        name,
    }
}

#[test]
fn names_that_no_file_can_have_are_told() {
    assert!(name_problem(b"fine").is_none());
    for bad in [&b""[..], b"..", b".", b"a\0b", &[b'x'; 256]] {
        assert!(name_problem(bad).is_some(), "{bad:?}");
    }
}

fn names(block: &[u8], format: Format) -> Vec<Vec<u8>> {
    entries(block, format)
        .map(|entry| entry.expect("sound").name.to_vec())
        .collect()
}

#[test]
fn a_first_block_has_the_bytes_that_the_format_names() {
    let mut block = [0xAA; 1024];
    init_first_block(&mut block, TAILED, InodeNumber(12), InodeNumber(2));
    assert_eq!(block[..12], [12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
    assert_eq!(block[12..24], [2, 0, 0, 0, 0xE8, 3, 2, 2, b'.', b'.', 0, 0]);
    assert_eq!(block[1012..], [0, 0, 0, 0, 12, 0, 0, 0xDE, 0, 0, 0, 0]);
    assert_eq!(dots(&block), Ok((InodeNumber(12), InodeNumber(2))));
    assert_eq!(is_empty(&block, TAILED), Ok(true));
    set_parent(&mut block, InodeNumber(5)).expect("it starts so");
    assert_eq!(dots(&block).map(|(_, parent)| parent), Ok(InodeNumber(5)));
}

#[test]
fn a_dot_with_room_to_spare_is_followed_by_its_parent_and_stays_so() {
    let mut block = [0; 1024];
    init_first_block(&mut block, TAILED, InodeNumber(12), InodeNumber(2));
    block.copy_within(12..24, 24);
    block[4..6].copy_from_slice(&24u16.to_le_bytes());
    block[28..30].copy_from_slice(&(0x03E8u16 - 12).to_le_bytes());
    assert_eq!(dots(&block), Ok((InodeNumber(12), InodeNumber(2))));
    let entry = Entry {
        inode: InodeNumber(13),
        file_type: None,
        name: b"ab",
    };
    assert!(insert(&mut block, TAILED, &entry).is_ok());
    set_parent(&mut block, InodeNumber(5)).expect("it starts so");
    assert_eq!(dots(&block), Ok((InodeNumber(12), InodeNumber(5))));
    assert_eq!(names(&block, TAILED), [&b"."[..], b"..", b"ab"]);
    for length in [8u16, 1016, 1024, u16::MAX] {
        block[4..6].copy_from_slice(&length.to_le_bytes());
        assert!(dots(&block).is_err(), "{length}");
    }
}

#[test]
fn the_tail_survives_filling_and_emptying() {
    let mut block = [0; 1024];
    init_empty(&mut block, TAILED);
    let name = |i: u32| format!("name{i:04}").into_bytes();
    let mut count = 0;
    while insert(&mut block, TAILED, &entry(1, &name(count))) != Ok(Inserted::Full) {
        count += 1;
    }
    assert_eq!(count, 1012 / 16);
    assert!(has_tail(&block));
    assert_eq!(
        gap(&block, TAILED, record_length(1)),
        Ok(None),
        "4 bytes are left"
    );
    for i in (0..count).rev() {
        assert!(
            remove(&mut block, TAILED, &name(i))
                .expect("sound")
                .is_some()
        );
        assert!(has_tail(&block), "after removing {i}");
    }
    let mut fresh = [0; 1024];
    init_empty(&mut fresh, TAILED);
    assert_eq!(block, fresh, "names are wiped and space is merged");
}

#[test]
fn an_entry_is_inserted_only_where_a_record_has_room() {
    let mut block = [0; 1024];
    init_first_block(&mut block, TAILED, InodeNumber(12), InodeNumber(2));
    let before = block;
    let new = entry(13, b"name");
    let behind_dot = insert_at(&mut block, TAILED, 0, &new);
    assert_eq!(behind_dot, Ok(Inserted::Full));
    for nowhere in [4, 1012, 1024, usize::MAX] {
        assert!(
            insert_at(&mut block, TAILED, nowhere, &new).is_err(),
            "{nowhere}"
        );
    }
    assert_eq!(block, before, "nothing has changed");
    let behind_dot_dot = insert_at(&mut block, TAILED, DOT_DOT_OFFSET, &new);
    assert_eq!(behind_dot_dot, Ok(Inserted::At(24)));
    assert_eq!(names(&block, TAILED), [&b"."[..], b"..", b"name"]);
}

#[test]
fn a_leaf_has_as_many_records_as_it_is_read_as() {
    let mut block = [0; 1024];
    init_first_block(&mut block, TAILED, InodeNumber(12), InodeNumber(2));
    for number in 0..20 {
        let count = records(&block, TAILED).count();
        assert!(has_more_records(&block, TAILED, count - 1));
        assert!(!has_more_records(&block, TAILED, count));
        let name = format!("name {number}");
        insert(&mut block, TAILED, &entry(13, name.as_bytes())).expect("sound");
    }
    // Records without a length: the answer does not matter, but there is one.
    assert!(!has_more_records(&[0; 1024], TAILED, usize::MAX));
}

#[test]
fn records_that_lie_are_refused() {
    let mut good = [0; 1024];
    init_first_block(&mut good, TAILED, InodeNumber(12), InodeNumber(2));
    let cases: [(usize, [u8; 2]); 6] = [
        (4, [0, 0]),
        (4, [11, 0]),
        (4, [13, 0]),
        (4, [8, 0]),
        (16, [0xF4, 3]),
        (16, [0xE4, 3]),
    ];
    for (at, length) in cases {
        let mut bad = good;
        bad[at..at + 2].copy_from_slice(&length);
        assert!(find(&bad, TAILED, b"absent").is_err(), "{at}: {length:?}");
    }
    let mut nameless = good;
    nameless[6] = 0;
    assert!(find(&nameless, TAILED, b"absent").is_err());
}

#[test]
fn an_impossible_record_says_why() {
    let mut good = [0; 64];
    init_first_block(&mut good, PLAIN, InodeNumber(12), InodeNumber(2));
    let cases: [(usize, &[u8], &str); 5] = [
        (4, &[13, 0], "at byte 0: record of 13 bytes, 64 are left"),
        (4, &[8, 0], "at byte 0: record of 8 bytes, 64 are left"),
        (16, &[56, 0], "at byte 12: record of 56 bytes, 52 are left"),
        (18, &[0], "at byte 12: inode 2 has an empty name"),
        (16, &[48, 0], "at byte 60: 4 bytes are left for a record"),
    ];
    for (at, bytes, problem) in cases {
        let mut bad = good;
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let corrupt = find(&bad, PLAIN, b"absent").expect_err(problem);
        assert_eq!(corrupt.problem(), problem);
        let after = records(&bad, PLAIN).skip_while(Result::is_ok).count();
        assert_eq!(after, 1, "the iterator ends with the error");
    }
}

#[test]
fn a_block_of_64_kib_is_one_free_record() {
    let mut block = vec![0; 1 << 16];
    init_empty(&mut block, PLAIN);
    assert_eq!(block[4..6], [0xFF, 0xFF]);
    let lengths: Vec<_> = records(&block, PLAIN)
        .map(|r| r.expect("sound").length)
        .collect();
    assert_eq!(lengths, [1 << 16]);
    block[4..6].fill(0);
    assert_eq!(records(&block, PLAIN).count(), 1);
    assert_eq!(
        insert(&mut block, PLAIN, &entry(9, b"name")),
        Ok(Inserted::At(0))
    );
    assert_eq!(names(&block, PLAIN), [b"name"]);
}

#[test]
fn a_name_can_change_its_inode() {
    let mut block = [0; 1024];
    init_empty(&mut block, PLAIN);
    insert(&mut block, PLAIN, &entry(9, b"a")).expect("sound");
    let fifo = Some(FileType::Fifo);
    let record = find(&block, PLAIN, b"a").expect("sound");
    let at = record.expect("there").offset;
    set_inode_at(&mut block, PLAIN, at, InodeNumber(10), fifo);
    let found = find(&block, PLAIN, b"a")
        .expect("sound")
        .and_then(|record| record.entry());
    assert_eq!(
        found,
        Some(Entry {
            inode: InodeNumber(10),
            file_type: fifo,
            name: b"a"
        })
    );
}

#[test]
fn without_the_feature_no_kind_is_written_or_read() {
    let format = Format {
        has_file_types: false,
        ..TAILED
    };
    let mut block = [0; 1024];
    init_first_block(&mut block, format, InodeNumber(12), InodeNumber(2));
    assert_eq!(block[7], 0);
    insert(&mut block, format, &entry(9, b"a")).expect("sound");
    assert_eq!(
        find(&block, TAILED, b"a")
            .expect("sound")
            .expect("there")
            .entry(),
        Some(Entry {
            inode: InodeNumber(9),
            file_type: None,
            name: b"a",
        })
    );
}

#[test]
fn checksums_know_their_directory() {
    let mut block = [0; 1024];
    init_first_block(&mut block, TAILED, InodeNumber(12), InodeNumber(2));
    stamp_leaf(InodeSeed::new(7, InodeNumber(12), 99), &mut block);
    assert!(verify_leaf(InodeSeed::new(7, InodeNumber(12), 99), &block).is_ok());
    assert!(verify_leaf(InodeSeed::new(7, InodeNumber(12), 98), &block).is_err());
    assert!(verify_leaf(InodeSeed::new(7, InodeNumber(13), 99), &block).is_err());
    block[1019] = 0;
    assert!(
        verify_leaf(InodeSeed::new(7, InodeNumber(12), 99), &block).is_err(),
        "no tail"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<u8>, u32),
    Remove(usize),
    Redirect(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let name = proptest::collection::vec(1u8.., 1..40);
    prop_oneof![
        3 => (name, 1u32..).prop_map(|(name, inode)| Step::Insert(name, inode)),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => (any::<usize>(), 1u32..).prop_map(|(which, inode)| Step::Redirect(which, inode)),
    ]
}

fn pick(model: &BTreeMap<Vec<u8>, u32>, which: usize) -> Option<Vec<u8>> {
    let index = which.checked_rem(model.len())?;
    model.keys().nth(index).cloned()
}

fn apply(block: &mut [u8], format: Format, model: &mut BTreeMap<Vec<u8>, u32>, step: Step) {
    match step {
        Step::Insert(name, inode) if !model.contains_key(&name) => {
            let room = gap(block, format, record_length(name.len()))
                .expect("sound")
                .is_some();
            let inserted = insert(block, format, &entry(inode, &name)).expect("sound");
            assert_eq!(inserted == Inserted::Full, !room);
            if room {
                model.insert(name, inode);
            }
        }
        Step::Insert(..) => {}
        Step::Remove(which) => {
            let name = pick(model, which).unwrap_or_else(|| b"absent".to_vec());
            let gone = remove(block, format, &name)
                .expect("sound")
                .map(|(inode, _)| inode.get());
            assert_eq!(gone, model.remove(&name));
        }
        Step::Redirect(which, inode) => {
            let Some(name) = pick(model, which) else {
                return;
            };
            let kind = Some(FileType::Regular);
            let record = find(block, format, &name).expect("sound");
            let at = record.expect("there").offset;
            set_inode_at(block, format, at, InodeNumber(inode), kind);
            model.insert(name, inode);
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_a_map(
        steps in proptest::collection::vec(step(), 0..120),
        has_tail in any::<bool>(),
    ) {
        let format = Format { has_tail, has_file_types: true, naming: Naming::Exact };
        let mut block = vec![0; 1024];
        init_empty(&mut block, format);
        let mut model = BTreeMap::new();
        for step in steps {
            apply(&mut block, format, &mut model, step);
        }
        prop_assert_eq!(super::has_tail(&block), has_tail);
        let seen: BTreeMap<Vec<u8>, u32> = entries(&block, format)
            .map(|entry| entry.map(|entry| (entry.name.to_vec(), entry.inode.get())))
            .collect::<Result<_, _>>()
            .expect("sound");
        prop_assert_eq!(seen, model);
    }

    #[test]
    fn no_bytes_make_it_panic(
        mut block in proptest::collection::vec(any::<u8>(), 0..600),
        start in proptest::collection::vec((0u8..4, 0u8..80), 0..8),
        has_tail in any::<bool>(),
    ) {
        let format = Format { has_tail, has_file_types: true, naming: Naming::Exact };
        let mut at = 0;
        for (inode, length) in start {
            let length = usize::from(length) * 4;
            if at + 8 > block.len() {
                break;
            }
            block[at..at + 4].copy_from_slice(&[inode, 0, 0, 0]);
            write_u16(&mut block, at + 4, encode_length(length));
            block[at + 6] %= 20;
            at += length;
        }
        let _ = find(&block, format, b"name");
        let _ = insert(&mut block, format, &entry(9, b"name"));
        let _ = remove(&mut block, format, b"name");
        let _ = dots(&block);
        let _ = verify_leaf(InodeSeed::new(1, InodeNumber(1), 1), &block);
    }
}
