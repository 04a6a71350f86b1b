//! Directories of chosen shapes: large, deep, full, colliding, of unknown index.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::dirhash::{HashVersion, Hasher, Signedness};

use super::super::{
    BlockKind, DirectoryBlocks, DirectorySettings, MAX_BLOCKS_ADDED, MAX_BLOCKS_CHANGED, Sought,
    find, insert, is_empty, parent, remove, seek, set_parent,
};
use super::check::check;
use super::memory::{Cost, Memory, PARENT, SELF, settings};
use super::{assert_found, enter, entry, inode_of};
use crate::error::{Error, Refusal};
use crate::types::FileType;

/// Suffixes with which a name of 200 'n' has the same legacy hash.
pub(super) const COLLIDING: [&[u8; 7]; 24] = [
    b"0000000", b"1avk1jf", b"6tst6am", b"70li2o1", b"7ns4e7j", b"ao4xtiz", b"coqzv2x", b"e4dpw4u",
    b"e6eb4uz", b"ezdc27a", b"fr06dol", b"fthpz46", b"gipc0ka", b"hpj38f1", b"ig4blwf", b"nopzicy",
    b"p0rbgc0", b"q9dsfem", b"qjtov9y", b"qzlxxw2", b"sciu43d", b"sh8v4py", b"uxl41sd", b"ymc5hbc",
];

pub(super) fn colliding_name(index: usize) -> Vec<u8> {
    let mut name = vec![b'n'; 200];
    name.extend_from_slice(COLLIDING[index]);
    name
}

pub(super) fn legacy() -> DirectorySettings {
    let hasher = Hasher {
        version: HashVersion::Legacy,
        signedness: Signedness::Unsigned,
        seed: [0; 4],
        naming: Naming::Exact,
    };
    DirectorySettings {
        hasher,
        fingerprints: false,
        ..settings(1024)
    }
}

fn long_name(number: usize) -> Vec<u8> {
    format!("{number:0>255}").into_bytes()
}

/// Depth of the index: levels of nodes below the root.
fn levels(directory: &Memory) -> u8 {
    directory.blocks[0].0[0x1E]
}

#[test]
fn a_new_directory_is_empty_and_knows_its_parent() {
    let mut directory = Memory::new(settings(4096));
    assert!(check(&directory).is_empty());
    assert!(is_empty(&directory).expect("sound"));
    assert_eq!(parent(&directory).expect("sound"), PARENT);
    assert_eq!(
        find(&directory, b".")
            .expect("sound")
            .map(|found| found.inode),
        Some(SELF)
    );
    set_parent(&mut directory, InodeNumber(77)).expect("sound");
    assert_eq!(parent(&directory).expect("sound"), InodeNumber(77));
    assert_eq!(
        directory.cost(),
        Cost {
            changed: 1,
            added: 0
        }
    );
}

#[test]
fn a_hundred_thousand_names() {
    const COUNT: usize = 100_000;
    let mut directory = Memory::new(settings(4096));
    for number in 0..COUNT {
        enter(&mut directory, number, format!("file-{number}").as_bytes());
    }
    assert_eq!(levels(&directory), 1);
    assert_eq!(check(&directory).len(), COUNT);
    for number in 0..COUNT {
        assert_found(&directory, number, format!("file-{number}").as_bytes());
        assert_eq!(
            find(&directory, format!("gone-{number}").as_bytes()).expect("sound"),
            None
        );
    }
    let blocks = directory.count();
    for number in 0..COUNT {
        remove(&mut directory, format!("file-{number}").as_bytes()).expect("it is there");
    }
    assert!(check(&directory).is_empty());
    assert!(is_empty(&directory).expect("sound"));
    for number in 0..COUNT {
        enter(&mut directory, number, format!("file-{number}").as_bytes());
    }
    assert_eq!(
        directory.count(),
        blocks,
        "emptied leaves take the same names again"
    );
}

#[test]
fn an_indexed_directory_keeps_its_dots() {
    let mut directory = Memory::new(settings(1024));
    for number in 0..100 {
        enter(&mut directory, number, format!("{number}").as_bytes());
    }
    assert!(directory.is_indexed());
    assert_eq!(parent(&directory).expect("sound"), PARENT);
    assert_eq!(
        find(&directory, b".")
            .expect("sound")
            .map(|found| found.inode),
        Some(SELF)
    );
    directory.cost();
    set_parent(&mut directory, InodeNumber(77)).expect("sound");
    assert_eq!(
        directory.cost(),
        Cost {
            changed: 1,
            added: 0
        }
    );
    assert_eq!(parent(&directory).expect("sound"), InodeNumber(77));
    set_parent(&mut directory, PARENT).expect("sound");
    assert_eq!(check(&directory).len(), 100);
    for dot in [b".".as_slice(), b".."] {
        assert!(
            remove(&mut directory, dot)
                .expect_err("never")
                .is(Refusal::Invalid)
        );
    }
}

/// Inserts long names until the index is full; returns how many fitted.
fn fill(directory: &mut Memory) -> usize {
    for number in 0.. {
        let name = long_name(number);
        let before = (directory.count(), directory.space);
        match insert(directory, &name, inode_of(number), FileType::Regular) {
            Ok(()) => {
                let cost = directory.cost();
                assert!(cost.added <= MAX_BLOCKS_ADDED, "{cost:?}");
                assert!(cost.changed <= MAX_BLOCKS_CHANGED, "{cost:?}");
            }
            Err(error) => {
                assert!(error.is(Refusal::DirectoryFull), "{error}");
                assert_eq!(directory.cost(), Cost::default());
                assert_eq!(before, (directory.count(), directory.space));
                assert_eq!(find(directory, &name).expect("sound"), None);
                return number;
            }
        }
    }
    unreachable!("no index is endless")
}

#[test]
fn a_full_index_refuses_and_stays_sound() {
    let mut directory = Memory::new(settings(1024));
    let count = fill(&mut directory);
    assert_eq!(levels(&directory), 1);
    assert!(count > 123 * 126, "more names than leaves: {count}");
    assert_eq!(check(&directory).len(), count);
    remove(&mut directory, &long_name(5)).expect("it is there");
    assert_eq!(find(&directory, &long_name(5)).expect("sound"), None);
    enter(&mut directory, 5, &long_name(5));
}

#[test]
fn a_third_level_with_the_feature() {
    const COUNT: usize = 60_000;
    let mut directory = Memory::new(DirectorySettings {
        large: true,
        ..settings(1024)
    });
    let mut dearest = Cost::default();
    for number in 0..COUNT {
        enter(&mut directory, number, &long_name(number));
        let cost = directory.cost();
        dearest.added = dearest.added.max(cost.added);
        dearest.changed = dearest.changed.max(cost.changed);
    }
    assert_eq!(levels(&directory), 2);
    assert_eq!(
        dearest,
        Cost {
            changed: MAX_BLOCKS_CHANGED,
            added: MAX_BLOCKS_ADDED
        }
    );
    assert_eq!(check(&directory).len(), COUNT);
    for number in (0..COUNT).step_by(7) {
        assert_found(&directory, number, &long_name(number));
    }
}

#[test]
fn equal_hashes_run_over_several_leaves() {
    let hasher = legacy().hasher;
    let hash = hasher.hash(&colliding_name(0));
    assert!((0..COLLIDING.len()).all(|index| hasher.hash(&colliding_name(index)) == hash));
    for backwards in [false, true] {
        let mut directory = Memory::new(legacy());
        for number in 0..300 {
            enter(
                &mut directory,
                1000 + number,
                format!("other-{number}").as_bytes(),
            );
            if number < COLLIDING.len() {
                let index = if backwards {
                    COLLIDING.len() - 1 - number
                } else {
                    number
                };
                enter(&mut directory, index, &colliding_name(index));
            }
        }
        assert_eq!(check(&directory).len(), 300 + COLLIDING.len());
        for index in 0..COLLIDING.len() {
            assert_found(&directory, index, &colliding_name(index));
        }
        for index in (0..COLLIDING.len()).step_by(2) {
            remove(&mut directory, &colliding_name(index)).expect("it is there");
            assert_eq!(
                find(&directory, &colliding_name(index)).expect("sound"),
                None
            );
        }
        for index in (1..COLLIDING.len()).step_by(2) {
            assert_found(&directory, index, &colliding_name(index));
        }
        check(&directory);
    }
}

#[test]
fn no_space_leaves_the_directory_as_it_was() {
    let mut directory = Memory::new(settings(1024));
    for number in 0..2000 {
        let name = format!("name-{number}");
        directory.space = 0;
        let before = directory.blocks.clone();
        match insert(
            &mut directory,
            name.as_bytes(),
            inode_of(number),
            FileType::Regular,
        ) {
            Ok(()) => {}
            Err(error) => {
                assert!(error.is(Refusal::NoSpace), "{error}");
                assert_eq!(directory.cost(), Cost::default());
                assert!(before == directory.blocks);
                directory.space = u32::MAX;
                enter(&mut directory, number, name.as_bytes());
            }
        }
        directory.cost();
    }
    assert_eq!(check(&directory).len(), 2000);
}

#[test]
fn a_leaf_in_pieces_is_packed_before_it_is_split() {
    let mut directory = Memory::new(settings(1024));
    let short = |number: usize| format!("{number:04}");
    for number in 0..61 {
        enter(&mut directory, number, short(number).as_bytes());
    }
    for number in (0..61).step_by(2) {
        remove(&mut directory, short(number).as_bytes()).expect("it is there");
    }
    enter(&mut directory, 100, &[b'w'; 240]);
    assert_eq!((directory.count(), directory.is_indexed()), (1, false));
    assert_eq!(check(&directory).len(), 31);
}

#[test]
fn names_that_no_entry_can_hold() {
    let mut directory = Memory::new(settings(1024));
    let mut refusal = |name: &[u8]| {
        insert(&mut directory, name, InodeNumber(20), FileType::Regular).expect_err("impossible")
    };
    assert!(refusal(&[b'x'; 256]).is(Refusal::NameTooLong));
    for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0b"] {
        assert!(refusal(name).is(Refusal::Invalid), "{name:?}");
    }
    assert_eq!(find(&directory, &[b'x'; 256]).expect("sound"), None);
    assert_eq!(find(&directory, b"").expect("sound"), None);
}

/// Changes the index to a kind that this version does not support, in three ways.
fn estrange(directory: &mut Memory, how: usize) {
    match how {
        0 => directory.blocks[0].0[0x1C] = 6,
        1 => directory.blocks[0].0[0x1F] = 3,
        _ => directory.settings.indexing = false,
    }
}

#[test]
fn an_unknown_index_is_searched_leaf_by_leaf() {
    for how in 0..3 {
        let mut directory = Memory::new(settings(1024));
        for number in 0..8000 {
            enter(&mut directory, number, format!("n{number}").as_bytes());
        }
        assert_eq!(levels(&directory), 1);
        estrange(&mut directory, how);
        for number in (0..8000).step_by(97) {
            assert_found(&directory, number, format!("n{number}").as_bytes());
        }
        assert_eq!(find(&directory, b"absent").expect("sound"), None);
        assert_eq!(parent(&directory).expect("sound"), PARENT);
        assert!(!is_empty(&directory).expect("sound"));
        let error = insert(&mut directory, b"new", InodeNumber(20), FileType::Regular)
            .expect_err("the index cannot be kept");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        for number in 0..8000 {
            if number % 50 == 0 {
                remove(&mut directory, format!("n{number}").as_bytes()).expect("it is there");
            }
        }
        assert_eq!(super::listings::names(&directory).len(), 8000 - 160);
    }
}

/// Linux and e2fsck ignore them, and so does the checker.
#[test]
fn flags_of_an_index_without_a_meaning_change_nothing() {
    let mut directory = Memory::new(settings(1024));
    for number in 0..100 {
        enter(&mut directory, number, format!("n{number}").as_bytes());
    }
    directory.blocks[0].0[0x1F] = 0xFE;
    for number in 100..8000 {
        enter(&mut directory, number, format!("n{number}").as_bytes());
    }
    assert_eq!(levels(&directory), 1);
    let flags = std::mem::take(&mut directory.blocks[0].0[0x1F]);
    assert_eq!(flags, 0xFE, "they are kept");
    assert_eq!(check(&directory).len(), 8000);
}

#[test]
fn index_nodes_look_like_nodes_and_leaves_like_leaves() {
    let mut directory = Memory::new(settings(1024));
    for number in 0..8000 {
        enter(&mut directory, number, format!("n{number}").as_bytes());
    }
    for (bytes, kind) in &directory.blocks[1..] {
        assert_eq!(super::super::kind_of(bytes), *kind);
    }
    assert!(
        directory.blocks[1..]
            .iter()
            .any(|(_, kind)| *kind == BlockKind::Index)
    );
}

#[test]
fn a_directory_ends_at_two_gibibytes_without_the_feature() {
    assert_eq!(settings(4096).max_blocks(), 1 << 19);
    assert_eq!(settings(1024).max_blocks(), 1 << 21);
    let large = DirectorySettings {
        large: true,
        ..settings(4096)
    };
    assert_eq!(large.max_blocks(), 1 << 28);
}

#[test]
fn a_name_is_sought_in_all_leaves_and_its_room_is_the_first() {
    let mut directory = Memory::new(DirectorySettings {
        indexing: false,
        ..settings(1024)
    });
    for number in 0..6 {
        enter(&mut directory, number, &long_name(number));
    }
    assert_eq!(directory.count(), 2);
    remove(&mut directory, &long_name(1)).expect("it is there");
    let sought = seek(&directory, &long_name(5)).expect("sound");
    let behind_room = find(&directory, &long_name(5)).expect("sound");
    assert_eq!(Some(sought), behind_room.map(Sought::Entry));
    let Sought::Vacancy(vacancy) = seek(&directory, &long_name(9)).expect("sound") else {
        panic!("a name was removed");
    };
    vacancy
        .fill(
            &mut directory,
            &entry(&long_name(9), inode_of(9), FileType::Regular),
        )
        .expect("there is room");
    let filled = find(&directory, &long_name(9)).expect("sound");
    assert_eq!(filled.map(|entry| entry.block.get()), Some(0));
    assert_eq!(
        seek(&directory, &long_name(10)).expect("sound"),
        Sought::Full
    );
    check(&directory);
}

#[test]
fn a_name_is_sought_where_its_hash_continues() {
    let mut directory = Memory::new(legacy());
    for index in 0..COLLIDING.len() - 1 {
        enter(&mut directory, index, &colliding_name(index));
    }
    for index in 0..COLLIDING.len() - 1 {
        let sought = seek(&directory, &colliding_name(index)).expect("sound");
        let found = find(&directory, &colliding_name(index)).expect("sound");
        assert_eq!(Some(sought), found.map(Sought::Entry), "{index}");
    }
    let absent = seek(&directory, &colliding_name(COLLIDING.len() - 1)).expect("sound");
    assert!(!matches!(absent, Sought::Entry(_)));
}
