//! Listings that continue while the directory changes.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

use pext4_ondisk::dirhash::HashVersion;

use super::super::listing::{COOKIE_END, Limits, Listed, list_within};
use super::super::{BlockKind, DirectoryBlocks as _, DirectorySettings, find, list, remove};
use super::enter;
use super::memory::{Memory, PARENT, SELF, settings};
use super::shapes::{COLLIDING, colliding_name, legacy};

/// All names except `.` and `..`, listed in one call.
pub(super) fn names(directory: &Memory) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    list(directory, 2, &mut |entry| names.insert(entry.name.to_vec())).expect("sound, seen once");
    names
}

/// One reply of a listing: at most `most` entries. Returns the cookie of the next reply, or `None`
/// at the end.
fn reply(
    directory: &Memory,
    cookie: u64,
    most: usize,
    limits: Limits,
    seen: &mut BTreeMap<Vec<u8>, usize>,
) -> Option<u64> {
    let mut next = cookie;
    let mut left = most;
    list_within(directory, cookie, limits, &mut |entry: Listed<'_>| {
        if left == 0 {
            return false;
        }
        left -= 1;
        assert!(entry.cookie >= cookie && entry.next_cookie <= COOKIE_END);
        assert_eq!(entry.next_cookie, entry.cookie + 1, "cookies are apart");
        *seen.entry(entry.name.to_vec()).or_default() += 1;
        next = entry.next_cookie;
        true
    })
    .expect("sound");
    (left < most).then_some(next)
}

fn limits(gathered: usize) -> Limits {
    Limits {
        gathered,
        ordered: usize::MAX,
    }
}

/// Changes names that start with 'v'.
fn disturb(directory: &mut Memory, random: &mut Rng) {
    for _ in 0..random.usize(..60) {
        let number = random.usize(..5000);
        let name = format!("v{number}");
        if find(directory, name.as_bytes()).expect("sound").is_some() {
            if random.usize(..3) == 0 {
                remove(directory, name.as_bytes()).expect("it is there");
            }
        } else {
            enter(directory, number, name.as_bytes());
        }
    }
}

fn stable_names(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| format!("stable-{number}").into_bytes())
        .collect()
}

fn sees_stable_names_once(settings: DirectorySettings, count: usize, seed: u64, budget: usize) {
    println!("seed {seed}, {count} stable names, {budget} bytes");
    for ordered in [usize::MAX, 0] {
        let limits = Limits {
            gathered: budget,
            ordered,
        };
        sees_them_once(settings, count, seed, limits);
    }
}

fn sees_them_once(settings: DirectorySettings, count: usize, seed: u64, limits: Limits) {
    let mut random = Rng::with_seed(seed);
    let mut directory = Memory::new(settings);
    for (number, name) in stable_names(count).iter().enumerate() {
        enter(&mut directory, number, name);
    }
    let mut seen = BTreeMap::new();
    let mut cookie = 0;
    while let Some(next) = reply(
        &directory,
        cookie,
        1 + random.usize(..40),
        limits,
        &mut seen,
    ) {
        assert!(next > cookie, "a listing leads on");
        cookie = next;
        disturb(&mut directory, &mut random);
    }
    assert_eq!((seen[b".".as_slice()], seen[b"..".as_slice()]), (1, 1));
    for name in stable_names(count) {
        assert_eq!(
            seen.get(&name),
            Some(&1),
            "{}",
            String::from_utf8_lossy(&name)
        );
    }
    assert!(
        seen.values().all(|&times| times == 1),
        "a cookie has one place"
    );
}

#[test]
fn of_an_index_that_grows() {
    sees_stable_names_once(settings(1024), 2000, 0xA1, 256 << 10);
}

#[test]
fn of_a_linear_directory_that_becomes_indexed() {
    for seed in 1..40 {
        sees_stable_names_once(settings(1024), 20, seed, 256 << 10);
    }
}

#[test]
fn of_a_linear_directory_in_many_batches() {
    let linear = DirectorySettings {
        indexing: false,
        ..settings(1024)
    };
    sees_stable_names_once(linear, 1000, 0xA2, 2000);
}

/// A directory of 2,000 names, with an index or without.
fn of_2000_names(indexing: bool) -> Memory {
    let mut directory = Memory::new(DirectorySettings {
        indexing,
        ..settings(1024)
    });
    for (number, name) in stable_names(2000).iter().enumerate() {
        enter(&mut directory, number, name);
    }
    directory
}

/// Lists such a directory in replies of ten names, and checks that each name comes once. Returns
/// the number of replies; `reads` counts the blocks that they read.
fn lists_all_once(directory: &Memory, limits: Limits) -> u64 {
    let (mut seen, mut cookie, mut replies) = (BTreeMap::new(), 0, 0);
    directory.reads.set(0);
    while let Some(next) = reply(directory, cookie, 10, limits, &mut seen) {
        (cookie, replies) = (next, replies + 1);
    }
    assert_eq!((seen.len(), replies), (2002, 201));
    assert!(seen.values().all(|&times| times == 1));
    replies
}

/// Each reply reads the blocks of its own names alone.
#[test]
fn of_a_long_linear_directory_goes_on_where_it_was() {
    let directory = of_2000_names(false);
    let replies = lists_all_once(&directory, limits(256 << 10));
    let once = directory.blocks.len() as u64 + 2000;
    let reads = directory.reads.get();
    assert!(reads < once + 2 * replies + 10, "{reads} reads of blocks");
}

/// The order of a directory with too many names is kept in parts: all blocks are read once for each
/// part, and not for each reply.
#[test]
fn of_a_longer_directory_than_can_be_ordered_goes_on_in_parts() {
    let directory = of_2000_names(false);
    let most = Limits {
        gathered: 256 << 10,
        ordered: 500,
    };
    let replies = lists_all_once(&directory, most);
    let parts = directory.orders.borrow();
    assert!((4..=8).contains(&parts.len()), "{} parts", parts.len());
    assert!(parts.iter().all(|part| part.places.len() < 500));
    let once = directory.blocks.len() as u64 * parts.len() as u64 + 2000;
    let reads = directory.reads.get();
    assert!(reads < once + 2 * replies + 10, "{reads} reads of blocks");
}

/// An index that no search can use makes no reply longer than its own names.
#[test]
fn of_a_damaged_index_goes_on_where_it_was() {
    let mut directory = of_2000_names(true);
    // The number of entries of the root.
    directory.blocks[0].0[0x22..0x24].fill(0);
    let replies = lists_all_once(&directory, limits(256 << 10));
    let once = directory.blocks.len() as u64 + 2000;
    let reads = directory.reads.get();
    assert!(reads < once + 3 * replies + 10, "{reads} reads of blocks");
}

/// Sets the low bit of all hashes of an index: each leaf continues the one before it.
fn continue_all_hashes(directory: &mut Memory) {
    for (number, (block, kind)) in directory.blocks.iter_mut().enumerate() {
        if *kind == BlockKind::Index {
            let head = if number == 0 { 0x20 } else { 8 };
            let count = usize::from(u16::from_le_bytes([block[head + 2], block[head + 3]]));
            for entry in 1..count {
                block[head + 8 * entry] |= 1;
            }
        }
    }
}

/// No reply reads all leaves of an index in which all of them continue one hash.
#[test]
fn of_leaves_that_all_continue_a_hash_goes_on_where_it_was() {
    let mut directory = of_2000_names(true);
    continue_all_hashes(&mut directory);
    let blocks = directory.blocks.len() as u64;
    assert!(blocks > 60, "{blocks} blocks");
    let replies = lists_all_once(&directory, limits(256 << 10));
    // The index tells that, not the leaves.
    let most = blocks + 2000 + 40 * replies;
    let reads = directory.reads.get();
    assert!(reads < most, "{reads} reads of blocks");
}

/// Part of a listing comes from the index, and part from the order of the names: cookies are the
/// same, also where the index has another hash than new ones get.
#[test]
fn of_leaves_that_continue_a_hash_shows_each_name_once() {
    for version in [HashVersion::HalfMd4, HashVersion::Tea] {
        let mut directory = of_2000_names(true);
        continue_all_hashes(&mut directory);
        directory.settings.hasher.version = version;
        // The first leaves alone are listed by the index.
        let head = &mut directory.blocks[0].0[0x20..];
        for entry in 1..5 {
            head[8 * entry] &= !1;
        }
        lists_all_once(&directory, limits(256 << 10));
    }
}

/// Leaves that cannot be read are passed when the order is made, not for each reply.
#[test]
fn of_a_damaged_leaf_goes_on_where_it_was() {
    let mut directory = of_2000_names(false);
    directory.blocks[7].0[4..6].fill(0);
    let (mut seen, mut cookie, mut replies, mut errors) = (BTreeSet::new(), 2, 0, 0);
    directory.reads.set(0);
    loop {
        let mut left = 10;
        let end = list(&directory, cookie, &mut |entry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            cookie = entry.next_cookie;
            seen.insert(entry.name.to_vec())
        });
        errors += u32::from(end.is_err());
        replies += 1;
        if left == 10 {
            break;
        }
    }
    assert!((1900..2000).contains(&seen.len()), "{}", seen.len());
    assert!(errors > 0, "the damage is told");
    let once = directory.blocks.len() as u64 + 2000;
    let reads = directory.reads.get();
    assert!(reads < once + 2 * replies + 10, "{reads} reads of blocks");
}

/// An order that was kept is not used when a name has come or gone since.
#[test]
fn of_a_long_linear_directory_shows_what_is_there_now() {
    let linear = DirectorySettings {
        indexing: false,
        ..settings(1024)
    };
    let mut directory = Memory::new(linear);
    let mut expected: BTreeSet<_> = stable_names(500).into_iter().collect();
    for (number, name) in expected.iter().enumerate() {
        enter(&mut directory, number, name);
    }
    assert_eq!(names(&directory), expected);
    for number in 0..500 {
        let name = format!("stable-{number}").into_bytes();
        remove(&mut directory, &name).expect("it is there");
        expected.remove(&name);
        if number % 7 == 0 {
            enter(&mut directory, number, format!("new-{number}").as_bytes());
            expected.insert(format!("new-{number}").into_bytes());
        }
        assert_eq!(names(&directory), expected);
    }
}

#[test]
fn of_legacy_hashes() {
    sees_stable_names_once(legacy(), 1500, 0xA3, 256 << 10);
}

#[test]
fn of_equal_hashes_with_little_memory() {
    let mut directory = Memory::new(legacy());
    for index in 0..COLLIDING.len() {
        enter(&mut directory, index, &colliding_name(index));
    }
    for number in 0..100 {
        enter(&mut directory, number, format!("other-{number}").as_bytes());
    }
    for most in [1, 3, 100] {
        let mut seen = BTreeMap::new();
        let mut cookie = 0;
        while let Some(next) = reply(&directory, cookie, most, limits(1000), &mut seen) {
            cookie = next;
        }
        assert_eq!(seen.len(), 2 + COLLIDING.len() + 100);
        assert!(seen.values().all(|&times| times == 1));
    }
}

/// Names of which some are there more often than a reply has room: the listing ends, shows each
/// once, and says what is wrong.
#[test]
fn of_a_name_that_is_there_again_and_again_end() {
    let linear = DirectorySettings {
        indexing: false,
        ..settings(1024)
    };
    for (names, settings) in [(150, linear), (600, linear), (600, settings(1024))] {
        for ordered in [usize::MAX, 0] {
            let mut directory = Memory::new(settings);
            for number in 0..names {
                let name = format!("{}-{number:05}", if number < 200 { "rept" } else { "only" });
                enter(&mut directory, number, name.as_bytes());
            }
            directory.strict = false;
            for (block, _) in &mut directory.blocks {
                for at in 0..block.len() - 9 {
                    if block[at..].starts_with(b"rept-") {
                        block[at + 5..at + 9].fill(b'0');
                    }
                }
            }
            let limits = Limits {
                gathered: 4000,
                ordered,
            };
            assert_ends_with_error(&directory, limits, 10 + names.saturating_sub(200));
        }
    }
}

/// An index holds copies of a name in leaves of other hashes: those are different cookies.
fn assert_ends_with_error(directory: &Memory, limits: Limits, names: usize) {
    let mut seen = BTreeSet::new();
    let (mut cookie, mut shown, mut errors) = (2, 0, 0);
    for _ in 0..=names + 200 {
        let mut left = 10;
        let end = list_within(directory, cookie, limits, &mut |entry: Listed<'_>| {
            if left == 0 {
                return false;
            }
            left -= 1;
            shown += 1;
            seen.insert(entry.name.to_vec());
            cookie = entry.next_cookie;
            true
        });
        if let Err(error) = end {
            assert!(error.to_string().contains("more than once"), "{error}");
            errors += 1;
        }
        if left == 10 {
            assert_eq!(seen.len(), names);
            assert!(errors > 0, "it says what is wrong");
            assert!(directory.is_indexed() || shown == names, "each once");
            return;
        }
    }
    panic!("the listing does not end");
}

#[test]
fn begin_with_the_dots_and_have_an_end() {
    let mut directory = Memory::new(settings(1024));
    enter(&mut directory, 1, b"one");
    let mut listed = Vec::new();
    list(&directory, 0, &mut |entry| {
        listed.push((entry.name.to_vec(), entry.inode, entry.next_cookie));
        true
    })
    .expect("sound");
    assert_eq!(listed[0], (b".".to_vec(), SELF, 1));
    assert_eq!(listed[1], (b"..".to_vec(), PARENT, 2));
    assert_eq!(listed[2].0, b"one");
    for end in [listed[2].2, COOKIE_END, u64::MAX] {
        list(&directory, end, &mut |_| panic!("nothing is left")).expect("sound");
    }
}

#[test]
fn a_refused_entry_is_shown_again() {
    let mut directory = Memory::new(settings(1024));
    for number in 0..500 {
        enter(&mut directory, number, format!("{number}").as_bytes());
    }
    let mut cookie = 0;
    let mut seen = 0;
    loop {
        let mut refused = None;
        let mut taken = false;
        list(&directory, cookie, &mut |entry| {
            if taken {
                refused = Some(entry.name.to_vec());
                return false;
            }
            taken = true;
            seen += 1;
            cookie = entry.next_cookie;
            true
        })
        .expect("sound");
        let Some(refused) = refused else { break };
        let mut first = None;
        list(&directory, cookie, &mut |entry| {
            first.get_or_insert(entry.name.to_vec());
            false
        })
        .expect("sound");
        assert_eq!(first, Some(refused));
    }
    assert_eq!(seen, 502);
}
