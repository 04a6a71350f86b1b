//! A directory of many thousand entries: fill, split, look up, list while it shrinks.

use std::collections::BTreeSet;

use pext4_fs::{CreateAttributes, InodeNumber, Volume};
use pext4_testkit::campaign::{Stage, check_device};
use pext4_testkit::oracle::format::{Features, Format};

/// Number of entries.
const COUNT: u32 = 100_000;

fn name(number: u32) -> String {
    format!("entry-{number:06}-{}", "x".repeat(number as usize % 20))
}

fn listed(volume: &Volume, directory: InodeNumber, mut between: impl FnMut(&[u8])) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let before = names.len();
        volume
            .read_directory(directory, cookie, &mut |entry| {
                cookie = entry.next_cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push(entry.name.to_vec());
                }
                names.len() < before + 500
            })
            .expect("listable");
        if names.len() == before {
            return names;
        }
        between(names.last().expect("some came"));
    }
}

#[test]
fn a_hundred_thousand_entries() {
    for (block_size, features) in [(4096, Features::Upstream), (1024, Features::Debian12)] {
        let format = Format::new(256 << 20, block_size, features).inodes(COUNT + 2000);
        let stage = Stage::new(format).expect("mke2fs makes it");
        let device = stage.device();
        let volume = Volume::open(device.clone(), stage.options.clone()).expect("mountable");
        let new = CreateAttributes {
            permissions: 0o644,
            uid: 0,
            gid: 0,
        };
        let entry = volume
            .make_directory(InodeNumber::ROOT, b"big", &new)
            .expect("there is room");
        let big = entry.inode;
        for number in 0..COUNT {
            let made = volume.create(big, name(number).as_bytes(), &new);
            let made = made.unwrap_or_else(|error| panic!("entry {number}: {error}"));
            volume.forget(made.inode, 1);
        }
        let all: BTreeSet<Vec<u8>> = (0..COUNT).map(|number| name(number).into_bytes()).collect();
        let found = listed(&volume, big, |_| {});
        assert_eq!(found.len(), all.len(), "each name once");
        assert!(BTreeSet::from_iter(found) == all, "every name");
        for number in (0..COUNT).step_by(37) {
            let entry = volume
                .lookup(big, name(number).as_bytes())
                .expect("it is there");
            volume.forget(entry.inode, 1);
            assert!(
                volume
                    .lookup(big, format!("no-{number}").as_bytes())
                    .is_err()
            );
        }
        shrink_while_listing(&volume, big, &all);
        volume.forget(big, 1);
        volume.close().expect("it closes");
        check_device(&device).expect("clean");
    }
}

/// Entries that exist all the time are listed exactly once, whatever else happens.
fn shrink_while_listing(volume: &Volume, big: InodeNumber, all: &BTreeSet<Vec<u8>>) {
    let mut doomed: Vec<&Vec<u8>> = all.iter().step_by(2).collect();
    let found = listed(volume, big, |_| {
        for _ in 0..260 {
            if let Some(name) = doomed.pop() {
                volume.unlink(big, name).expect("it is there");
            }
        }
    });
    for name in doomed {
        volume.unlink(big, name).expect("it is there");
    }
    let kept: BTreeSet<&Vec<u8>> = all.iter().skip(1).step_by(2).collect();
    let mut seen = BTreeSet::new();
    for name in found.iter().filter(|name| kept.contains(name)) {
        assert!(seen.insert(name), "listed twice");
    }
    assert_eq!(seen.len(), kept.len(), "listed all that stayed");
}
