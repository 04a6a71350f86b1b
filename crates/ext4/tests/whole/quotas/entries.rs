//! Entries of new owners, and the blocks that they need.

use pext4_fs::{Refusal, SetAttributes};
use pext4_ondisk::quota::{Header, LeafHeader, OwnerKind};

use super::{ROOT, chown, create, listed, owned_by, set_size};
use crate::images::{Image, inode};

/// Owners whose numbers share no byte need nodes of their own, and those that differ in the last
/// byte a leaf of fourteen.
#[test]
fn any_number_of_owners_gets_entries() {
    for arguments in [
        &["-O", "quota", "-b", "1024"][..],
        &["-O", "quota", "-b", "4096"],
    ] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let spread = |number: u32| number.wrapping_mul(0x9E37_79B9);
        let owners: Vec<u32> = (0..300).map(spread).chain(70_000..70_300).collect();
        let volume = image.open();
        for (number, &owner) in owners.iter().enumerate() {
            let name = format!("{number}");
            let new = owned_by(owner, owner.reverse_bits());
            create(&volume, ROOT, name.as_bytes(), &new);
        }
        volume.close().expect("it closes");
        image.assert_clean();
        let users = listed(&image, "user");
        let missing: Vec<_> = owners
            .iter()
            .filter(|&id| !users.contains_key(id))
            .collect();
        assert_eq!(missing, [&0; 0], "{arguments:?}");
        // Found by the tree, not by a look at all leaves.
        for owner in [owners[1], owners[299], 70_299, u32::MAX - 1] {
            let told = image.debugfs(&format!("get_quota user {owner}"));
            let is_there = users.contains_key(&owner);
            let found = told.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&owner.to_string()) && line.contains(" 1 ")
            });
            assert_eq!(found, is_there, "{arguments:?}: {told}");
        }
        let volume = image.open();
        volume.unlink(ROOT, b"5").expect("it is there");
        chown(&volume, inode(&volume, "/6"), Some(70_001), Some(123_456));
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

/// What lies in a quota file's last block behind its end is no part of a new block.
#[test]
fn new_blocks_are_empty_whatever_was_there() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "4096"]) else {
        return;
    };
    image.debugfs_write("zap_block -f <3> -o 2048 -l 2048 -p 0x55 1");
    let volume = image.open();
    for owner in 1..100 {
        let name = format!("{owner}");
        let new = owned_by(owner * 0x0101_0101, 0);
        create(&volume, ROOT, name.as_bytes(), &new);
    }
    volume.close().expect("it closes");
    image.assert_clean();
    assert_eq!(listed(&image, "user").len(), 100);
}

/// The list begins with a leaf that has an empty place, or is empty; a leaf that is full is not on
/// it.
#[test]
fn the_list_of_leaves_with_empty_places_is_kept() {
    for owners in 1..=30_u32 {
        let Some(image) = Image::make(&["-O", "quota", "-b", "4096"]) else {
            return;
        };
        let volume = image.open();
        for owner in 1..=owners {
            create(
                &volume,
                ROOT,
                format!("{owner}").as_bytes(),
                &owned_by(owner, 0),
            );
        }
        volume.close().expect("it closes");
        let dump = image.path.with_file_name("users");
        image.debugfs(&format!("dump <3> {}", dump.display()));
        let file = std::fs::read(dump).expect("debugfs wrote it");
        let size = file.len() as u64;
        let header = Header::decode(&file, OwnerKind::User, size).expect("it is sound");
        let block = |number: u32| &file[number as usize * 1024..][..1024];
        // Owner 0 has an entry from the beginning.
        let is_full = (owners + 1) % 14 == 0;
        assert_eq!(header.free_leaf == 0, is_full, "{owners}: {header:?}");
        if header.free_leaf != 0 {
            let first = LeafHeader::decode(block(header.free_leaf));
            let expected = LeafHeader {
                entries: u16::try_from((owners + 1) % 14).expect("a small number"),
                ..LeafHeader::default()
            };
            assert_eq!(first, expected, "{owners}");
        }
    }
}

/// A new owner whose entry finds no room: the operation fails, and nothing of it is left.
#[test]
fn on_a_full_volume_no_new_owner_gets_files() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let file = volume
        .create(ROOT, b"all", &owned_by(0, 0))
        .expect("room")
        .inode;
    let mut size = 0;
    for length in [1 << 20, 1 << 14, 1 << 10] {
        while let Ok(count) = volume.write(file, size, &vec![1; length]) {
            size += count as u64;
            if count < length {
                break;
            }
        }
    }
    let mut made = 0_u32;
    let refused = loop {
        let owner = made.wrapping_mul(0x0101_0101) + 1;
        let name = format!("f{made}");
        match volume.create(ROOT, name.as_bytes(), &owned_by(owner, owner)) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 10_000, "there must be an end");
    };
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    // Owners that have entries get files.
    create(&volume, ROOT, b"known", &owned_by(0, 0));
    let change = SetAttributes {
        uid: Some(0xFFFF_0000),
        ..SetAttributes::default()
    };
    let refused = volume
        .set_attributes(file, &change)
        .expect_err("no room for an entry");
    assert!(refused.is(Refusal::NoSpace), "{refused}");
    // Block by block there is more room: at first too little for the blocks of an entry.
    let mut tries = 0;
    loop {
        size -= 1024;
        set_size(&volume, file, size);
        let new = owned_by(0xFEDC_BA98, 0);
        match volume.create(ROOT, b"last", &new) {
            Ok(_) => break,
            Err(error) => assert!(error.is(Refusal::NoSpace), "{error}"),
        }
        tries += 1;
        assert!(tries < 50, "there is room");
    }
    assert!(tries > 1, "an entry takes several blocks");
    volume.close().expect("it closes");
    image.assert_clean();
}
