//! Corrupt bytes must give errors with their location, never a panic or an endless loop.

use fastrand::Rng;
use std::collections::BTreeSet;

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::directory::Format;
use pext4_ondisk::dirhash::Signedness;
use pext4_ondisk::{InodeNumber, LogicalBlock};

use super::super::{
    DirectoryBlocks, DirectorySettings, find, insert, is_empty, list, parent, remove, replace,
    set_parent,
};
use super::memory::{Memory, SELF, settings};
use super::{assert_found, enter};
use crate::error::Error;
use crate::types::FileType;

fn filled(settings: DirectorySettings, count: usize) -> Memory {
    let mut directory = Memory::new(settings);
    for number in 0..count {
        enter(&mut directory, number, format!("name-{number}").as_bytes());
    }
    directory.strict = false;
    directory
}

fn set_half(directory: &mut Memory, block: usize, at: usize, value: u16) {
    directory.blocks[block].0[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn set_word(directory: &mut Memory, block: usize, at: usize, value: u32) {
    directory.blocks[block].0[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Runs every operation. The results do not matter, only that each returns.
fn exercise(directory: &mut Memory, random: &mut Rng) {
    let bound = 20 * u64::from(directory.count()) * u64::from(directory.count()) + 1000;
    let ask = |directory: &Memory, what: &str| {
        assert!(
            directory.reads.replace(0) <= bound,
            "{what} reads without end"
        );
    };
    for number in 0..20 {
        let name = format!("name-{}", random.usize(..4000));
        let _ = find(directory, name.as_bytes());
        ask(directory, "find");
        let _ = replace(directory, name.as_bytes(), InodeNumber(5), FileType::Fifo);
        ask(directory, "replace");
        let _ = remove(directory, name.as_bytes());
        ask(directory, "remove");
        let _ = insert(
            directory,
            &[b'a' + number; 200],
            InodeNumber(9),
            FileType::Regular,
        );
        ask(directory, "insert");
    }
    let _ = is_empty(directory);
    let _ = parent(directory);
    let _ = set_parent(directory, InodeNumber(3));
    ask(directory, "the rest");
    let mut cookie = 0;
    for _ in 0..10 {
        let mut left = 100;
        let _ = list(directory, cookie, &mut |entry| {
            assert!(entry.cookie >= cookie && entry.next_cookie >= entry.cookie);
            left -= 1;
            cookie = entry.next_cookie;
            left > 0
        });
        ask(directory, "list");
    }
}

fn damage(directory: &mut Memory, random: &mut Rng) {
    let size = directory.settings.block_size as usize;
    let block = match random.usize(..3) {
        0 => 0,
        _ => random.usize(..directory.blocks.len()),
    };
    match random.usize(..4) {
        0 => directory.blocks[block].0[random.usize(..size)] = random.u8(..),
        1 => directory.blocks[block].0[random.usize(..64)] = random.u8(..),
        2 => {
            let pointer = u32::try_from(random.usize(..directory.blocks.len() + 2)).expect("small");
            set_word(directory, block, 4 * random.usize(..size / 4), pointer);
        }
        _ => {
            let other = random.usize(..directory.blocks.len());
            directory.blocks[block].0 = directory.blocks[other].0.clone();
        }
    }
}

fn without_tails() -> DirectorySettings {
    let format = Format {
        has_tail: false,
        has_file_types: true,
        naming: Naming::Exact,
    };
    DirectorySettings {
        format,
        ..settings(1024)
    }
}

fn fuzz(settings: DirectorySettings, count: usize, rounds: u64) {
    let sound = filled(settings, count);
    for seed in 1..=rounds {
        println!("seed {seed}, {count} names, {settings:?}");
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut directory = sound.clone();
        for _ in 0..=random.usize(..8) {
            damage(&mut directory, &mut random);
        }
        exercise(&mut directory, &mut random);
    }
}

#[test]
fn damaged_linear_directories() {
    fuzz(settings(1024), 20, 1500);
    fuzz(
        DirectorySettings {
            indexing: false,
            ..without_tails()
        },
        200,
        300,
    );
}

#[test]
fn damaged_indexes() {
    fuzz(settings(1024), 500, 800);
    fuzz(
        DirectorySettings {
            large: true,
            ..without_tails()
        },
        500,
        400,
    );
}

#[test]
fn damaged_deep_indexes() {
    fuzz(settings(1024), 7000, 60);
}

fn assert_corrupt<T: std::fmt::Debug>(answer: Result<T, Error>, block: u32) {
    let error = answer.expect_err("it is corrupt");
    let Error::Corrupt(corrupt) = &error else {
        panic!("{error} is no corruption")
    };
    assert_eq!(corrupt.inode(), Some(SELF), "{corrupt}");
    let place = format!("block {} of the directory", LogicalBlock(block).get());
    assert!(
        corrupt.problem().contains(&place),
        "{corrupt} does not say {place}"
    );
}

#[test]
fn bad_lengths_in_a_leaf_are_named() {
    for length in [0, 1, 8, 11, 13, 4096, 1024] {
        let mut directory = filled(settings(1024), 10);
        set_half(&mut directory, 0, 24 + 4, length);
        assert_corrupt(find(&directory, b"absent"), 0);
        assert_corrupt(list(&directory, 2, &mut |_| true), 0);
        assert_corrupt(is_empty(&directory), 0);
    }
}

/// The entries of a listing, and its result.
fn shown(directory: &Memory) -> (Vec<Vec<u8>>, Result<(), Error>) {
    let mut names = Vec::new();
    let end = list(directory, 2, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    names.sort();
    (names, end)
}

#[test]
fn names_beside_a_damaged_leaf_are_shown_before_its_error() {
    let linear = DirectorySettings {
        indexing: false,
        ..settings(1024)
    };
    for settings in [linear, settings(1024)] {
        let sound = filled(settings, 200);
        let (all, end) = shown(&sound);
        end.expect("it is sound");
        assert_eq!(all.len(), 200);
        let mut directory = sound.clone();
        // The second entry of the second leaf says it has no length.
        let second = first_length(&sound, 2);
        set_half(&mut directory, 2, usize::from(second) + 4, 0);
        let (left, end) = shown(&directory);
        assert_corrupt(end, 2);
        let lost = all.iter().filter(|name| !left.contains(name)).count();
        assert!(
            (1..100).contains(&lost),
            "{lost} names of one leaf are hidden"
        );
        assert_eq!(left.len() + lost, all.len(), "each is shown once");
    }
}

/// The length of the first entry of a leaf.
fn first_length(directory: &Memory, block: usize) -> u16 {
    let bytes = &directory.blocks[block].0;
    u16::from_le_bytes([bytes[4], bytes[5]])
}

#[test]
fn a_listing_gives_up_where_nothing_can_be_read() {
    let linear = DirectorySettings {
        indexing: false,
        ..settings(1024)
    };
    let mut directory = filled(linear, 20);
    let sound = directory.blocks[0].clone();
    directory.blocks.resize(3000, sound);
    for block in 0..2999 {
        set_half(&mut directory, block, 4, 1);
    }
    let (left, end) = shown(&directory);
    assert_corrupt(end, 0);
    assert_eq!(left.len(), 0, "the last leaf is too far");
}

/// An insertion refuses the damaged index; all of the 500 names are found, listed once, and one can
/// be removed.
fn assert_hides_no_name(directory: &mut Memory) {
    let insertion = insert(directory, b"new", InodeNumber(20), FileType::Regular);
    assert_corrupt(insertion, 0);
    let mut listed = BTreeSet::new();
    let end = list(directory, 2, &mut |entry| {
        listed.insert(entry.name.to_vec())
    });
    end.expect("no leaf is damaged");
    for number in 0..500 {
        let name = format!("name-{number}").into_bytes();
        assert_found(directory, number, &name);
        assert!(listed.remove(&name), "{number} is listed");
    }
    assert!(listed.is_empty());
    remove(directory, b"name-7").expect("it is there");
    assert_eq!(find(directory, b"name-7").expect("no damage"), None);
}

#[test]
fn bad_counts_in_an_index_are_named() {
    for (at, value) in [
        (0x20, 0),
        (0x20, 122),
        (0x20, 124),
        (0x22, 0),
        (0x22, 124),
        (0x22, 0xFFFF),
    ] {
        let mut directory = filled(settings(1024), 500);
        set_half(&mut directory, 0, at, value);
        assert_hides_no_name(&mut directory);
    }
}

#[test]
fn bad_pointers_in_an_index_are_named() {
    let directory = filled(settings(1024), 500);
    let count = u16::from_le_bytes([directory.blocks[0].0[0x22], directory.blocks[0].0[0x23]]);
    for pointer in [0, directory.count(), 0x0FFF_FFFF] {
        let mut directory = directory.clone();
        for entry in 0..usize::from(count) {
            set_word(&mut directory, 0, 0x24 + 8 * entry, pointer);
        }
        assert_hides_no_name(&mut directory);
    }
}

/// e2fsck accepts a `.` whose record is longer than needed, and `..` must follow it.
#[test]
fn no_name_is_put_between_the_dots() {
    let mut directory = filled(settings(1024), 0);
    let block = &mut directory.blocks[0].0;
    block.copy_within(12..24, 52);
    let length = u16::from_le_bytes([block[56], block[57]]);
    set_half(&mut directory, 0, 4, 52);
    set_half(&mut directory, 0, 56, length - 40);
    let names: Vec<String> = (0..60)
        .map(|number| format!("a-name-of-some-length-{number}"))
        .collect();
    for (number, name) in names.iter().enumerate() {
        enter(&mut directory, number, name.as_bytes());
    }
    assert!(directory.blocks.len() > 1, "the first block was filled");
    for (number, name) in names.iter().enumerate() {
        assert_found(&directory, number, name.as_bytes());
    }
}

#[test]
fn too_many_levels_are_corrupt() {
    let mut directory = filled(settings(1024), 500);
    directory.blocks[0].0[0x1E] = 2;
    assert_hides_no_name(&mut directory);
}

#[test]
fn an_index_whose_feature_is_gone_is_dropped_where_nothing_has_checksums() {
    for (settings, drops) in [(without_tails(), true), (settings(1024), false)] {
        let mut directory = filled(settings, 500);
        directory.settings.indexing = false;
        assert_found(&directory, 7, b"name-7");
        let new = insert(&mut directory, b"new", InodeNumber(20), FileType::Regular);
        assert_eq!((new.is_ok(), directory.is_indexed()), (drops, !drops));
        for number in 0..500 {
            assert_found(&directory, number, format!("name-{number}").as_bytes());
        }
        let found = find(&directory, b"new").expect("no damage");
        assert_eq!(found.is_some(), drops);
    }
}

#[test]
fn a_run_of_equal_hashes_in_circles_ends() {
    let mut directory = filled(settings(1024), 500);
    let entries = usize::from(directory.blocks[0].0[0x22]);
    for entry in 1..entries {
        set_word(&mut directory, 0, 0x20 + 8 * entry, 1);
        set_word(&mut directory, 0, 0x24 + 8 * entry, 1);
    }
    directory.reads.set(0);
    let _ = find(&directory, b"absent");
    let _ = list(&directory, 2, &mut |_| true);
    assert!(directory.reads.get() < 4 * u64::from(directory.count()) + 20);
}

#[test]
fn missing_dots_are_corrupt() {
    let mut directory = filled(settings(1024), 0);
    directory.blocks[0].0[12 + 8] = b'x';
    assert_corrupt(parent(&directory), 0);
    assert_corrupt(set_parent(&mut directory, InodeNumber(3)), 0);
    assert_corrupt(is_empty(&directory), 0);
    directory.blocks.clear();
    assert!(matches!(find(&directory, b"."), Err(Error::Corrupt(_))));
    assert!(matches!(is_empty(&directory), Err(Error::Corrupt(_))));
    let insertion = insert(&mut directory, b"new", InodeNumber(20), FileType::Regular);
    assert!(matches!(insertion, Err(Error::Corrupt(_))));
}

/// An index whose hashes were computed with the other signedness of `char`.
fn misplaced() -> (Memory, Vec<Vec<u8>>) {
    let mut directory = Memory::new(settings(1024));
    let names: Vec<Vec<u8>> = (0..600)
        .map(|number| format!("\u{e9}\u{fc}{number}").into_bytes())
        .collect();
    for (number, name) in names.iter().enumerate() {
        enter(&mut directory, number, name);
    }
    directory.settings.hasher.signedness = Signedness::Unsigned;
    (directory, names)
}

#[test]
fn misplaced_names_are_listed_once() {
    let (directory, names) = misplaced();
    let mut listed = BTreeSet::new();
    let mut cookie = 2;
    loop {
        let mut left = 7;
        list(&directory, cookie, &mut |entry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            assert!(listed.insert(entry.name.to_vec()), "listed once");
            cookie = entry.next_cookie;
            true
        })
        .expect("sound but for the hashes");
        if left > 0 {
            break;
        }
    }
    assert_eq!(listed, names.into_iter().collect());
}

#[test]
fn a_leaf_of_misplaced_names_is_not_split() {
    let (mut directory, _) = misplaced();
    let mut refusals = 0;
    for number in 0..300 {
        let before = directory.blocks.clone();
        directory.cost();
        let name = format!("new-{number}");
        if let Err(error) = insert(
            &mut directory,
            name.as_bytes(),
            InodeNumber(20),
            FileType::Regular,
        ) {
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            assert!(before == directory.blocks);
            refusals += 1;
        }
    }
    assert!(refusals > 0);
}
