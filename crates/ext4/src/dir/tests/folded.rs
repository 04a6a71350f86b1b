//! Casefolded directories, compared with a map. Names are spelt from pieces of which each has
//! several spellings, so the model knows which names are equal without folding any.

use fastrand::Rng;
use std::collections::BTreeMap;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::casefold::Naming;

use super::super::listing::Listed;
use super::super::{
    DirectoryBlocks, DirectorySettings, find, insert, list, remove, replace, respell, seek,
};
use super::super::{MAX_BLOCKS_ADDED, MAX_BLOCKS_CHANGED, Sought};
use super::check::check;
use super::memory::{Memory, settings};
use crate::error::Refusal;
use crate::types::FileType;

/// Pieces of names, and how each may be spelt.
const PIECES: [&[&str]; 12] = [
    &["1"],
    &["k", "K", "\u{212A}"],
    &["x", "X"],
    &["ss", "SS", "\u{DF}", "sS", "\u{1E9E}"],
    &["\u{E9}", "e\u{301}", "\u{C9}", "E\u{301}"],
    &["\u{3C3}", "\u{3C2}", "\u{3A3}"],
    &["\u{43B}\u{436}", "\u{41B}\u{416}"],
    &["\u{AC00}", "\u{1100}\u{1161}"],
    &["\u{5B57}"],
    &["\u{1F600}"],
    &["\u{FB01}x", "FIX", "f\u{AD}ix"],
    &["\u{10400}", "\u{10428}"],
];

/// A name as the model knows it: the numbers of its pieces.
type Key = Vec<usize>;
/// How the name is stored, and its inode.
type Model = BTreeMap<Key, (Vec<u8>, InodeNumber)>;

fn folded(block_size: u32) -> DirectorySettings {
    let mut settings = settings(block_size);
    settings.format.naming = Naming::Folded;
    settings.hasher.naming = Naming::Folded;
    settings
}

fn some_key(random: &mut Rng) -> Key {
    let length = match random.usize(..20) {
        0 => 20 + random.usize(..8),
        _ => 2 + random.usize(..3),
    };
    (0..length).map(|_| random.usize(..PIECES.len())).collect()
}

fn spell(key: &Key, random: &mut Rng) -> Vec<u8> {
    let pieces = key.iter().map(|&piece| {
        let spellings = PIECES[piece];
        spellings[random.usize(..spellings.len())]
    });
    pieces.collect::<String>().into_bytes()
}

fn compare(directory: &Memory, model: &Model) {
    let stored = check(directory);
    assert_eq!(stored.len(), model.len());
    for (name, inode) in model.values() {
        assert_eq!(stored[name].0, inode.get());
    }
    let mut listed = BTreeMap::new();
    list(directory, 2, &mut |entry: Listed<'_>| {
        assert!(listed.insert(entry.name.to_vec(), entry.inode).is_none());
        true
    })
    .expect("sound");
    let expected: BTreeMap<_, _> = model.values().cloned().collect();
    assert_eq!(listed, expected);
}

fn step(directory: &mut Memory, model: &mut Model, random: &mut Rng, grows: bool) {
    let key = some_key(random);
    let name = spell(&key, random);
    let inode = InodeNumber(12 + u32::try_from(random.usize(..1 << 30)).expect("small"));
    let known = model.get(&key).cloned();
    let found = find(directory, &name).expect("sound");
    let found = found.map(|found| found.inode);
    assert_eq!(found, known.as_ref().map(|(_, inode)| *inode));
    let sought = seek(directory, &name).expect("sound");
    assert_eq!(matches!(sought, Sought::Entry(_)), known.is_some());
    match (known, random.usize(..4)) {
        (None, _) if grows || random.usize(..5) == 0 => {
            insert(directory, &name, inode, FileType::Regular).expect("there is room");
            model.insert(key, (name, inode));
        }
        (None, _) => {
            let error = remove(directory, &name).expect_err("it is not there");
            assert!(error.is(Refusal::NotFound));
        }
        (Some((stored, _)), 0) => {
            replace(directory, &name, inode, FileType::Regular).expect("it is there");
            model.insert(key, (stored, inode));
        }
        (Some((_, inode)), 1) => {
            let new = spell(&key, random);
            respell(directory, &name, &new, FileType::Regular).expect("it is there");
            model.insert(key, (new, inode));
        }
        (Some((_, inode)), _) if !grows || random.usize(..3) == 0 => {
            let gone = remove(directory, &name).expect("it is there");
            assert_eq!(gone.inode, inode);
            model.remove(&key);
        }
        _ => {}
    }
    let cost = directory.cost();
    assert!(cost.added <= MAX_BLOCKS_ADDED && cost.changed <= MAX_BLOCKS_CHANGED + 1);
}

fn run(mut directory: Memory, seed: u64, steps: usize) -> Memory {
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut model = Model::new();
    for index in 0..steps {
        let grows = (index / 1500).is_multiple_of(2);
        step(&mut directory, &mut model, &mut random, grows);
        if index.is_multiple_of(401) {
            compare(&directory, &model);
        }
    }
    compare(&directory, &model);
    directory
}

#[test]
fn equal_names_are_one_in_an_index() {
    for (seed, size) in [(0xCA5E_0001, 1024), (0xCA5E_0002, 4096)] {
        let directory = run(Memory::new(folded(size)), seed, 8000);
        assert!(directory.indexed && directory.count() > 3);
    }
}

#[test]
fn equal_names_are_one_without_an_index_and_without_fingerprints() {
    let linear = DirectorySettings {
        indexing: false,
        fingerprints: false,
        ..folded(1024)
    };
    run(Memory::new(linear), 0xCA5E_0003, 3000);
    let plain = DirectorySettings {
        fingerprints: false,
        ..folded(1024)
    };
    run(Memory::new(plain), 0xCA5E_0004, 3000);
    for seed in 1..=20 {
        run(Memory::inline(folded(1024), 56 + 100), seed, 60);
    }
}

/// The longer spelling does not fit, and no block is free: the name stays as it was.
#[test]
fn a_respelling_without_room_changes_nothing() {
    let mut directory = Memory::new(folded(1024));
    let (short, long) = ("k".repeat(60), "\u{212A}".repeat(60));
    let enter = |directory: &mut Memory, name: &str| {
        directory.cost();
        insert(
            directory,
            name.as_bytes(),
            InodeNumber(20),
            FileType::Regular,
        )
        .expect("room");
    };
    let respell = |directory: &mut Memory| {
        directory.cost();
        respell(
            directory,
            b"K".repeat(60).as_slice(),
            long.as_bytes(),
            FileType::Regular,
        )
    };
    enter(&mut directory, &short);
    for number in 0..13 {
        enter(&mut directory, &format!("{number:056}"));
    }
    let before = check(&directory);
    for is_full in [true, false] {
        directory.space = if is_full { 0 } else { 100 };
        let respelt = respell(&mut directory);
        if is_full {
            assert!(respelt.expect_err("no room").is(Refusal::NoSpace));
            assert_eq!(check(&directory), before);
        } else {
            respelt.expect("room");
        }
    }
    assert!(directory.indexed);
    let after = check(&directory);
    assert!(after.contains_key(long.as_bytes()) && after.len() == before.len());
    // And back, while the leaf is full of names: it has room for a shorter one.
    directory.space = 0;
    directory.cost();
    super::super::respell(
        &mut directory,
        long.as_bytes(),
        short.as_bytes(),
        FileType::Regular,
    )
    .expect("it is shorter");
    assert_eq!(check(&directory), before);
}

/// In a leaf that splits, and in one that has the same block after it.
#[test]
fn a_respelling_may_split_a_leaf_of_an_index() {
    let mut grown = 0;
    for seed in 1..=40 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let settings = DirectorySettings {
            indexing: seed % 4 != 0,
            ..folded(1024)
        };
        let mut directory = Memory::new(settings);
        let mut model = Model::new();
        for number in 0..200 {
            // Six pieces tell the names apart; the rest is one byte or three.
            let mut key: Key = (0..6).map(|bit| 4 + (number >> bit & 1)).collect();
            key.extend(vec![1; 20 + number / 64]);
            let name = key
                .iter()
                .map(|&piece| PIECES[piece][0])
                .collect::<String>();
            directory.cost();
            let (name, inode) = (name.into_bytes(), InodeNumber(20));
            insert(&mut directory, &name, inode, FileType::Regular).expect("room");
            model.insert(key, (name, inode));
        }
        for _ in 0..100 {
            let at = random.usize(..model.len());
            let (key, (name, _)) = model.iter_mut().nth(at).expect("there are so many");
            let new = key.iter().map(|&piece| *PIECES[piece].last().expect("one"));
            let new = new.collect::<String>().into_bytes();
            let before = directory.count();
            directory.cost();
            respell(&mut directory, name, &new, FileType::Regular).expect("there is room");
            grown += usize::from(directory.count() > before);
            *name = new;
        }
        compare(&directory, &model);
    }
    assert!(grown > 20, "{grown}");
}
