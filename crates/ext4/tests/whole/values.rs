//! Attributes whose values have inodes of their own (`ea_inode`).

use fastrand::Rng;
use pext4_fs::{CreateAttributes, Error, InodeNumber, Refusal, SetXattrMode, Volume};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

fn image(features: &str) -> Option<Image> {
    Image::make(&["-I", "256", "-b", "1024", "-O", features])
}

fn file(volume: &Volume, name: &[u8]) -> InodeNumber {
    let made = volume.create(ROOT, name, &CreateAttributes::default());
    made.expect("a file").inode
}

fn set(volume: &Volume, inode: InodeNumber, name: &[u8], value: &[u8]) {
    volume
        .set_xattr(inode, name, value, SetXattrMode::Any)
        .unwrap_or_else(|error| panic!("{}: {error}", name.escape_ascii()));
}

fn get(volume: &Volume, inode: InodeNumber, name: &[u8]) -> Vec<u8> {
    volume.xattr(inode, name).expect("it was set")
}

fn free(volume: &Volume) -> (u64, u64) {
    volume.sync().expect("durable");
    let statistics = volume.statfs();
    (statistics.free_blocks, statistics.free_inodes)
}

fn checked(volume: Volume, image: &Image) {
    volume.close().expect("it closes");
    image.assert_clean();
}

fn value(seed: u8, length: usize) -> Vec<u8> {
    (seed..=250).cycle().take(length).collect()
}

#[test]
fn large_values_come_back_and_go_with_their_owner() {
    for features in [
        "ea_inode",
        "ea_inode,inline_data",
        "ea_inode,^orphan_file,^metadata_csum",
    ] {
        let Some(image) = image(features) else {
            return;
        };
        let volume = image.open();
        let before = free(&volume);
        let owner = file(&volume, b"owner");
        for (index, length) in (0_u8..).zip([0, 10, 1000, 1024, 5000, 65_536]) {
            let name = format!("user.{index}");
            set(&volume, owner, name.as_bytes(), &value(index, length));
        }
        let sectors = volume.attributes(owner).expect("there").sectors;
        assert!(
            sectors >= 2 * (1 + 5 + 64),
            "values are on its account: {sectors}"
        );
        checked(volume, &image);
        let volume = image.open();
        let owner = volume.lookup(ROOT, b"owner").expect("it is there").inode;
        for (index, length) in (0_u8..).zip([0, 10, 1000, 1024, 5000, 65_536]) {
            let name = format!("user.{index}");
            assert_eq!(get(&volume, owner, name.as_bytes()), value(index, length));
        }
        volume.remove_xattr(owner, b"user.4").expect("removed");
        set(&volume, owner, b"user.5", b"small");
        assert_eq!(get(&volume, owner, b"user.5"), b"small");
        volume.forget(owner, 1);
        volume.unlink(ROOT, b"owner").expect("removed");
        assert_eq!(free(&volume), before, "{features}: nothing is left");
        checked(volume, &image);
    }
}

#[test]
fn equal_values_share_an_inode() {
    let Some(image) = image("ea_inode") else {
        return;
    };
    let volume = image.open();
    let before = free(&volume).1;
    let large = value(3, 40_000);
    for number in 0..20 {
        let owner = file(&volume, format!("f{number}").as_bytes());
        // Some entries are in the inode, some in a block.
        if number % 2 == 0 {
            set(&volume, owner, b"user.fills", &value(9, 70));
        }
        set(&volume, owner, b"user.large", &large);
        set(&volume, owner, b"user.again", &large);
        volume.forget(owner, 1);
    }
    assert_eq!(before - free(&volume).1, 21, "one inode for all values");
    for number in 0..10 {
        volume
            .unlink(ROOT, format!("f{number}").as_bytes())
            .expect("removed");
    }
    let owner = volume.lookup(ROOT, b"f15").expect("it is there").inode;
    assert_eq!(get(&volume, owner, b"user.again"), large);
    checked(volume, &image);
    let volume = image.open();
    for number in 10..20 {
        volume
            .unlink(ROOT, format!("f{number}").as_bytes())
            .expect("removed");
    }
    assert_eq!(free(&volume).1, before);
    checked(volume, &image);
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let Some(image) = image("ea_inode") else {
        return;
    };
    let volume = image.open();
    let owner = file(&volume, b"owner");
    set(&volume, owner, b"user.kept", &value(1, 9000));
    let filler = file(&volume, b"filler");
    let mut end = 0;
    while volume
        .allocate(filler, pext4_fs::AllocateMode::Extend, end, 20 << 10)
        .is_ok()
    {
        end += 20 << 10;
    }
    let before = free(&volume);
    let full = volume
        .set_xattr(owner, b"user.large", &value(2, 60_000), SetXattrMode::Any)
        .expect_err("there is no room");
    assert!(full.is(Refusal::NoSpace), "{full}");
    assert_eq!(free(&volume), before);
    assert_eq!(get(&volume, owner, b"user.kept"), value(1, 9000));
    checked(volume, &image);
}

#[test]
fn damage_is_told() {
    for (request, owner_is_named) in [
        ("sif <13> atime 0x1234", false),
        ("sif <13> size 8999", false),
        ("sif <13> flags 0x80000", false),
        ("sif <13> links_count 0", false),
    ] {
        let Some(image) = image("ea_inode,^orphan_file,^metadata_csum") else {
            return;
        };
        let volume = image.open();
        let owner = file(&volume, b"owner");
        assert_eq!(owner.get(), 12, "the value gets the next number");
        set(&volume, owner, b"user.large", &value(1, 9000));
        volume.close().expect("it closes");
        image.debugfs_write(request);
        let volume = image.open();
        let owner = volume.lookup(ROOT, b"owner").expect("it is there").inode;
        match volume.xattr(owner, b"user.large") {
            Err(Error::Corrupt(corrupt)) => {
                assert!(
                    owner_is_named || corrupt.to_string().contains("13"),
                    "{corrupt}"
                );
            }
            other => panic!("{request}: {other:?}"),
        }
        assert_eq!(volume.xattr_names(owner).expect("listed").len(), 1);
    }
    let Some(image) = image("ea_inode") else {
        return;
    };
    let volume = image.open();
    let owner = file(&volume, b"owner");
    set(&volume, owner, b"user.large", &value(1, 9000));
    volume.close().expect("it closes");
    image.debugfs_write("link <13> named");
    let volume = image.open();
    let named = volume
        .lookup(ROOT, b"named")
        .expect_err("no name may lead there");
    assert!(matches!(named, Error::Corrupt(_)), "{named}");
}

/// If one of two values cannot be released, the other one is not either, however often it is tried.
#[test]
fn an_end_that_fails_at_a_value_leaves_the_others() {
    let Some(image) = image("ea_inode,^orphan_file,^metadata_csum") else {
        return;
    };
    let volume = image.open();
    let owner = file(&volume, b"owner");
    set(&volume, owner, b"user.first", &value(1, 9000));
    set(&volume, owner, b"user.other", &value(2, 9000));
    volume.close().expect("it closes");
    image.debugfs_write("sif <14> flags 0x80000");
    let mut volume = image.open();
    volume.unlink(ROOT, b"owner").expect("the name goes");
    for _ in 0..2 {
        assert!(!volume.is_read_only(), "nothing was left half done");
        volume.close().expect("it closes");
        let stored = image.debugfs("stat <13>");
        assert!(stored.contains("Links: 1 "), "{stored}");
        volume = image.open();
        let error = volume.lookup(ROOT, b"owner").expect_err("it has no name");
        assert!(error.is(Refusal::NotFound), "{error}");
    }
}

#[test]
fn links_have_small_values_only() {
    let Some(image) = image("ea_inode") else {
        return;
    };
    let volume = image.open();
    let made = volume.make_symlink(ROOT, b"link", b"target", &CreateAttributes::default());
    let link = made.expect("a link").inode;
    set(&volume, link, b"trusted.small", &value(1, 500));
    let full = volume
        .set_xattr(link, b"trusted.large", &value(1, 5000), SetXattrMode::Any)
        .expect_err("e2fsck would not understand");
    assert!(full.is(Refusal::AttributesFull), "{full}");
    checked(volume, &image);
}

/// Random changes of a few names and values on many files, compared with a model.
#[test]
fn random_changes() {
    for (seed, features) in [
        (1, "ea_inode"),
        (2, "ea_inode,inline_data"),
        (3, "ea_inode,^has_journal"),
    ] {
        println!("seed {seed}");
        let Some(image) = image(features) else {
            return;
        };
        let mut random = Rng::with_seed(seed);
        let mut right = std::collections::BTreeMap::<(u64, u64), Vec<u8>>::new();
        let mut volume = image.open();
        for file_number in 0..6 {
            file(&volume, format!("f{file_number}").as_bytes());
        }
        for step in 0..400 {
            let (of, name) = (random.u64(..6), random.u64(..4));
            let inode = volume
                .lookup(ROOT, format!("f{of}").as_bytes())
                .expect("it is there")
                .inode;
            let full = format!("user.n{name}");
            match random.u64(..10) {
                0..=6 => {
                    let length = [5, 60, 300, 900, 2000, 30_000][random.u64(..6) as usize];
                    let bytes = value(random.u64(..3) as u8, length);
                    set(&volume, inode, full.as_bytes(), &bytes);
                    right.insert((of, name), bytes);
                }
                7 | 8 => {
                    let removed = volume.remove_xattr(inode, full.as_bytes());
                    assert_eq!(removed.is_ok(), right.remove(&(of, name)).is_some());
                }
                _ => {
                    volume
                        .unlink(ROOT, format!("f{of}").as_bytes())
                        .expect("removed");
                    right.retain(|&(other, _), _| other != of);
                    file(&volume, format!("f{of}").as_bytes());
                }
            }
            if step % 97 == 96 {
                checked(volume, &image);
                volume = image.open();
                for (&(of, name), bytes) in &right {
                    let inode = volume
                        .lookup(ROOT, format!("f{of}").as_bytes())
                        .expect("it is there")
                        .inode;
                    assert_eq!(
                        get(&volume, inode, format!("user.n{name}").as_bytes()),
                        *bytes
                    );
                }
            }
        }
        checked(volume, &image);
    }
}

/// As many values as Linux allows for a file: with a small journal they can be changed, and the
/// file deleted.
#[test]
fn a_file_of_many_large_values_ends_in_a_small_journal() {
    let Some(image) = Image::make(&["-I", "256", "-b", "4096", "-O", "ea_inode"]) else {
        return;
    };
    let volume = image.open();
    let owner = file(&volume, b"owner");
    for number in 0..130 {
        let name = format!("user.{number}");
        // Each in an inode of its own: the block has room only for the names.
        set(&volume, owner, name.as_bytes(), &value(number, 4090));
    }
    volume
        .remove_xattr(owner, b"user.7")
        .expect("one can be removed");
    volume.forget(owner, 1);
    volume.unlink(ROOT, b"owner").expect("the file can end");
    checked(volume, &image);
}
