//! Random operations, compared with a map of names.

use fastrand::Rng;
use std::collections::BTreeMap;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::directory::Format;
use pext4_ondisk::dirhash::{HashVersion, Hasher, Signedness};

use super::super::listing::Listed;
use super::super::{
    DirectoryBlocks, DirectorySettings, MAX_BLOCKS_ADDED, MAX_BLOCKS_CHANGED, Sought, find, insert,
    is_empty, list, parent, remove, replace, seek, set_parent,
};
use super::check::check;
use super::entry;
use super::memory::{Memory, PARENT, settings};
use crate::error::Refusal;
use crate::types::FileType;

type Model = BTreeMap<Vec<u8>, (InodeNumber, FileType)>;

const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::CharacterDevice,
    FileType::BlockDevice,
    FileType::Fifo,
    FileType::Socket,
    FileType::Symlink,
];

/// A random name that is often in use already: short, long, or with non-ASCII bytes.
fn some_name(random: &mut Rng) -> Vec<u8> {
    let (alphabet, length): (&[u8], usize) = match random.usize(..4) {
        0 => (b"ab", 1 + random.usize(..9)),
        1 => (b"\x80\xFF\x7Fz", 1 + random.usize(..5)),
        2 => (b"xyz", 250 + random.usize(..6)),
        _ => (b"0123456789", 3),
    };
    if length >= 250 {
        let mut name = vec![b'l'; length];
        name[200..205].fill_with(|| alphabet[random.usize(..alphabet.len())]);
        return name;
    }
    (0..length)
        .map(|_| alphabet[random.usize(..alphabet.len())])
        .collect()
}

fn compare(directory: &Memory, model: &Model) {
    let names = check(directory);
    assert_eq!(names.len(), model.len());
    for (name, (inode, _)) in model {
        assert_eq!(names[name].0, inode.get());
    }
    assert_eq!(is_empty(directory).expect("sound"), model.is_empty());
    let mut listed = BTreeMap::new();
    list(directory, 2, &mut |entry: Listed<'_>| {
        let value = (entry.inode, entry.file_type.unwrap_or(FileType::Regular));
        assert!(
            listed.insert(entry.name.to_vec(), value).is_none(),
            "listed once"
        );
        true
    })
    .expect("sound");
    let without_types = !directory.settings.format.has_file_types;
    for (name, (inode, file_type)) in model {
        let (listed_inode, listed_type) = listed[name];
        assert_eq!(listed_inode, *inode);
        assert!(without_types || listed_type == *file_type);
    }
    assert_eq!(listed.len(), model.len());
}

fn step(directory: &mut Memory, model: &mut Model, random: &mut Rng, grows: bool) {
    let name = some_name(random);
    let inode = InodeNumber(1 + u32::try_from(random.usize(..1 << 30)).expect("small"));
    let file_type = TYPES[random.usize(..TYPES.len())];
    let found = find(directory, &name).expect("sound");
    assert_eq!(
        found.map(|found| found.inode),
        model.get(&name).map(|&(inode, _)| inode)
    );
    let sought = seek(directory, &name).expect("sound");
    match sought {
        Sought::Entry(entry) => assert_eq!(Some(entry), found),
        Sought::Vacancy(_) | Sought::Full => assert_eq!(found, None),
    }
    match (random.usize(..10), model.contains_key(&name)) {
        (0..7, false) if grows || random.usize(..4) == 0 => {
            let inserted = match sought {
                Sought::Vacancy(vacancy) if random.usize(..2) == 0 => {
                    vacancy.fill(directory, &entry(&name, inode, file_type))
                }
                _ => insert(directory, &name, inode, file_type),
            };
            inserted.expect("there is room");
            model.insert(name, (inode, file_type));
        }
        (7..9, true) => {
            let old = replace(directory, &name, inode, file_type).expect("it is there");
            assert_eq!(
                Some(old.inode),
                model.insert(name, (inode, file_type)).map(|old| old.0)
            );
        }
        (0..4, true) | (_, true) if !grows || random.usize(..3) == 0 => {
            let old = remove(directory, &name).expect("it is there");
            assert_eq!(Some(old.inode), model.remove(&name).map(|old| old.0));
        }
        (_, false) => {
            let error = remove(directory, &name).expect_err("it is not there");
            assert!(error.is(Refusal::NotFound));
        }
        _ => {}
    }
    let cost = directory.cost();
    assert!(
        cost.added <= MAX_BLOCKS_ADDED && cost.changed <= MAX_BLOCKS_CHANGED,
        "{cost:?}"
    );
}

/// Many directories stored in an inode: names are added and removed there until it is full.
#[test]
fn directories_in_inodes() {
    let mut moved_out = 0;
    for seed in 1..=60 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut directory = Memory::inline(settings(1024), 56 + random.usize(..200) / 4 * 4);
        let mut model = Model::new();
        for index in 0..4 + random.usize(..70) {
            let grows = (index / 10_usize).is_multiple_of(2);
            step(&mut directory, &mut model, &mut random, grows);
            compare(&directory, &model);
        }
        let parent = parent(&directory).expect("sound");
        assert_eq!(parent, PARENT);
        moved_out += usize::from(!directory.is_inline());
    }
    assert!((10..60).contains(&moved_out), "{moved_out} of 60 moved out");
}

#[test]
fn a_directory_without_space_stays_in_its_inode() {
    let mut directory = Memory::inline(settings(1024), 56 + 24);
    directory.space = 0;
    let mut names = 0..;
    let mut enter = |directory: &mut Memory| {
        let name = format!("name-{:07}", names.next().expect("endless"));
        insert(
            directory,
            name.as_bytes(),
            InodeNumber(99),
            FileType::Regular,
        )
    };
    // Two in the first region, one in the second.
    (0..3).for_each(|_| enter(&mut directory).expect("there is room"));
    assert!(
        enter(&mut directory)
            .expect_err("it is full")
            .is(Refusal::NoSpace)
    );
    assert!(directory.is_inline());
    assert_eq!(check(&directory).len(), 3);
    set_parent(&mut directory, InodeNumber(77)).expect("sound");
    directory.cost();
    directory.space = 1;
    enter(&mut directory).expect("there is a block");
    assert!(!directory.is_inline());
    assert_eq!(parent(&directory).expect("sound"), InodeNumber(77));
    set_parent(&mut directory, PARENT).expect("sound");
    assert_eq!(check(&directory).len(), 4);
}

fn run(settings: DirectorySettings, seed: u64, steps: usize) {
    println!("seed {seed}, {settings:?}");
    let mut random = Rng::with_seed(seed);
    let mut directory = Memory::new(settings);
    let mut model = Model::new();
    for index in 0..steps {
        step(
            &mut directory,
            &mut model,
            &mut random,
            (index / 1500).is_multiple_of(2),
        );
        if index.is_multiple_of(501) {
            compare(&directory, &model);
        }
    }
    compare(&directory, &model);
}

#[test]
fn half_md4_in_small_blocks() {
    run(settings(1024), 0x5EED_0001, 9000);
}

#[test]
fn tea_with_unsigned_bytes() {
    let hasher = Hasher {
        version: HashVersion::Tea,
        signedness: Signedness::Unsigned,
        seed: [0; 4],
        naming: Naming::Exact,
    };
    run(
        DirectorySettings {
            hasher,
            fingerprints: false,
            ..settings(1024)
        },
        0x5EED_0002,
        9000,
    );
}

#[test]
fn legacy_hash_in_middle_blocks() {
    let hasher = Hasher {
        version: HashVersion::Legacy,
        signedness: Signedness::Signed,
        seed: [0; 4],
        naming: Naming::Exact,
    };
    run(
        DirectorySettings {
            hasher,
            ..settings(2048)
        },
        0x5EED_0003,
        9000,
    );
}

#[test]
fn without_checksums_and_types() {
    let plain = DirectorySettings {
        format: Format {
            has_tail: false,
            has_file_types: false,
            naming: Naming::Exact,
        },
        ..settings(4096)
    };
    run(plain, 0x5EED_0004, 9000);
}

#[test]
fn linear_without_the_feature() {
    run(
        DirectorySettings {
            indexing: false,
            fingerprints: false,
            ..settings(1024)
        },
        0x5EED_0005,
        6000,
    );
}

#[test]
fn the_largest_blocks() {
    run(settings(1 << 16), 0x5EED_0006, 6000);
}
