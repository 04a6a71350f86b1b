//! Fingerprints compared with the records that they describe, and with changes made without them.

use proptest::prelude::*;

use super::super::{init_empty, init_first_block, insert_at, remove, write_leaf};
use super::*;
use crate::casefold::Naming;

fn format(has_tail: bool) -> Format {
    Format {
        has_tail,
        has_file_types: true,
        naming: Naming::Exact,
    }
}

fn entry(inode: u32, name: &[u8]) -> Entry<'_> {
    Entry {
        inode: InodeNumber(inode),
        file_type: Some(FileType::Regular),
        name,
    }
}

/// The first gap that a look at every record finds.
fn gap_by_records(leaf: &[u8], format: Format, need: usize) -> Option<usize> {
    let mut all = records(leaf, format).map(|record| record.expect("sound"));
    all.find(|record| record.free() >= need)
        .map(|record| record.offset)
}

#[derive(Clone, Debug)]
enum Change {
    Insert(u16, u8),
    Remove(u16),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (0u16..200, 1u8..=255).prop_map(|(number, length)| Change::Insert(number, length)),
        2 => (0u16..200).prop_map(Change::Remove),
    ];
    prop::collection::vec(change, 1..200)
}

/// Names of any length, most of them short.
fn name(number: u16, length: u8) -> Vec<u8> {
    let mut name = format!("n{number}").into_bytes();
    let length = if length < 230 { length / 8 } else { length };
    name.resize(name.len().max(usize::from(length)), b'x');
    name
}

proptest! {
    #[test]
    fn changes_are_those_without_fingerprints_and_keep_them_exact(
        all in changes(),
        has_tail: bool,
        starts_with_dots: bool,
        folds: bool,
        size in prop::sample::select(vec![1024usize, 4096]),
    ) {
        let naming = if folds { Naming::Folded } else { Naming::Exact };
        let format = Format { naming, ..format(has_tail) };
        // Where case does not matter, names are asked for in another one.
        let asked = |name: Vec<u8>| if folds { name.to_ascii_uppercase() } else { name };
        let mut leaf = vec![0; size];
        if starts_with_dots {
            init_first_block(&mut leaf, format, InodeNumber(12), InodeNumber(2));
        } else {
            init_empty(&mut leaf, format);
        }
        let mut plain = leaf.clone();
        let mut fingerprints = Fingerprints::of(&leaf, format).expect("sound");
        let mut lengths = vec![0; 200];
        for change in all {
            match change {
                Change::Insert(number, length) => {
                    if lengths[usize::from(number)] != 0 {
                        continue;
                    }
                    let name = name(number, length);
                    let need = record_length(name.len());
                    let gap = fingerprints.gap(need);
                    prop_assert_eq!(gap, gap_by_records(&plain, format, need));
                    let Some(gap) = gap else { continue };
                    let new = entry(u32::from(number) + 1, &name);
                    let inserted = fingerprints.insert_at(&mut leaf, format, gap, &new);
                    prop_assert_eq!(inserted, insert_at(&mut plain, format, gap, &new));
                    lengths[usize::from(number)] = length;
                }
                Change::Remove(number) => {
                    let name = asked(name(number, lengths[usize::from(number)].max(1)));
                    let removed = fingerprints.remove(&mut leaf, format, &name);
                    prop_assert_eq!(removed, remove(&mut plain, format, &name));
                    lengths[usize::from(number)] = 0;
                }
            }
            prop_assert_eq!(&leaf, &plain);
            prop_assert_eq!(&fingerprints, &Fingerprints::of(&leaf, format).expect("sound"));
        }
        for (number, length) in lengths.into_iter().enumerate() {
            let name = asked(name(u16::try_from(number).expect("small"), length.max(1)));
            let found = fingerprints.find(&leaf, format, &name).expect("sound");
            prop_assert_eq!(found.is_some(), length != 0);
            prop_assert_eq!(found, super::super::find(&leaf, format, &name).expect("sound"));
        }
    }

    #[test]
    fn those_of_another_leaf_do_no_harm(
        lengths in prop::collection::vec(1u8..40, 1..30),
        others in prop::collection::vec(1u8..40, 1..30),
        damage in prop::collection::vec((0usize..1024, any::<u8>()), 0..8),
        number in 0u16..40,
    ) {
        let format = format(false);
        let [mut own, mut other] = [lengths, others].map(|lengths| leaf_of(&lengths));
        for (at, byte) in damage {
            other[at] = byte;
        }
        let mut fingerprints = Fingerprints::of(&own, format).expect("sound");
        let name = name(number, 8);
        let _ = fingerprints.find(&other, format, &name);
        for offset in (0..1024).step_by(4) {
            let _ = fingerprints.insert_at(&mut other, format, offset, &entry(7, &name));
            let _ = fingerprints.remove(&mut other, format, &name);
        }
        let _ = fingerprints.remove(&mut own, format, &name);
    }
}

/// A leaf of 1024 bytes with names of up to these lengths in bytes, as many as fit.
fn leaf_of(lengths: &[u8]) -> Vec<u8> {
    let mut leaf = vec![0; 1024];
    init_empty(&mut leaf, format(false));
    for (number, length) in (0..).zip(lengths) {
        let name = name(number, length.saturating_mul(8));
        let new = entry(u32::from(number) + 1, &name);
        super::super::insert(&mut leaf, format(false), &new).expect("sound");
    }
    leaf
}

#[test]
fn names_that_differ_little_have_different_fingerprints() {
    let mut seen = [0; 256];
    for number in 0..2560 {
        seen[usize::from(tag(format!("file.mdtest.17.{number}").as_bytes()))] += 1;
    }
    let most = seen.into_iter().max();
    assert!(
        most < Some(40),
        "of 2560 names, {most:?} have one fingerprint"
    );
}

#[test]
fn a_block_of_64_kib_has_fingerprints_to_its_end() {
    let format = format(true);
    let mut leaf = vec![0; 1 << 16];
    let names: Vec<_> = (0..2700).map(|number| format!("name{number:08}")).collect();
    let entries = (1..)
        .zip(&names)
        .map(|(inode, name)| entry(inode, name.as_bytes()));
    assert!(write_leaf(&mut leaf, format, entries));
    let mut fingerprints = Fingerprints::of(&leaf, format).expect("sound");
    for name in names.iter().rev() {
        let found = fingerprints.remove(&mut leaf, format, name.as_bytes());
        assert!(found.expect("sound").is_some(), "{name}");
    }
    assert_eq!(
        fingerprints,
        Fingerprints::of(&leaf, format).expect("sound")
    );
    assert_eq!(fingerprints.gap(record_length(255)), Some(0));
}
