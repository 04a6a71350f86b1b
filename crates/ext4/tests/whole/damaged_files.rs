//! Damage that belongs to one file: what an operation on it meets is found before anything is
//! changed, so the operation fails, or a deleted file stays an orphan, and the volume goes on.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::{
    AllocateMode, CreateAttributes, Error, InodeNumber, MountOptions, Refusal, RenameMode,
    SetAttributes, SetXattrMode, Volume,
};
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::superblock::Superblock;

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// Makes an image on which `make` was done.
fn image_with(arguments: &[&str], make: impl FnOnce(&Volume)) -> Option<Image> {
    let image = Image::make(arguments)?;
    let volume = image.open();
    make(&volume);
    volume.close().expect("it closes");
    Some(image)
}

fn assert_goes_on(volume: Volume, about: &str) {
    assert!(!volume.is_read_only(), "{about}: {:?}", volume.failure());
    volume.paths().write("/another", b"x").expect(about);
    volume.close().expect(about);
}

#[test]
fn a_file_whose_extents_overlap_can_be_removed() {
    let made = image_with(
        &["-b", "4096", "-O", "^metadata_csum", "-e", "continue"],
        |volume| {
            volume.paths().write("/file", [7; 8192]).expect("room");
        },
    );
    let Some(image) = made else {
        return;
    };
    // A second extent that begins in the middle of the first.
    for field in [
        "block[0] 0x2f30a",
        "block[6] 1",
        "block[7] 2",
        "block[8] 9000",
    ] {
        image.debugfs_write(&format!("sif file {field}"));
    }
    let volume = image.open();
    volume.unlink(ROOT, b"file").expect("the name goes");
    assert!(volume.lookup(ROOT, b"file").is_err());
    assert_goes_on(volume, "overlapping extents");
    let notes = image.open().notes().join("\n");
    assert!(notes.contains("marked as having errors"), "{notes}");
}

#[test]
fn a_file_whose_value_counts_too_few_references_can_be_removed() {
    let mut value = InodeNumber(0);
    let made = image_with(
        &[
            "-b",
            "1024",
            "-O",
            "ea_inode,^metadata_csum",
            "-e",
            "continue",
        ],
        |volume| {
            volume.paths().write("/file", b"").expect("room");
            let file = inode(volume, "/file");
            for name in [b"user.a", b"user.b"] {
                volume
                    .set_xattr(file, name, &[7; 5000], SetXattrMode::Any)
                    .expect("room");
            }
            value = InodeNumber(file.get() + 1);
        },
    );
    let Some(image) = made else {
        return;
    };
    let before = image.debugfs(&format!("stat <{value}>"));
    assert!(
        before.contains("00000000:00000002"),
        "it is the value of both: {before}"
    );
    image.debugfs_write(&format!("sif <{value}> version 1"));
    let volume = image.open();
    volume.unlink(ROOT, b"file").expect("the name goes");
    assert_goes_on(volume, "a count of references");
}

#[test]
fn a_directory_that_cannot_be_read_is_not_moved() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let made = image_with(
            &["-b", "4096", "-O", "metadata_csum", "-e", "continue"],
            |volume| {
                for path in ["/from", "/from/damaged", "/to", "/to/other"] {
                    volume.paths().create_dir(path).expect("room");
                }
            },
        );
        let Some(image) = made else {
            return;
        };
        let block: usize = image
            .debugfs("bmap from/damaged 0")
            .lines()
            .find_map(|line| line.trim().parse().ok())
            .expect("its block");
        image.change(|bytes| bytes[block * 4096 + 2000] ^= 1);
        let volume = image.open();
        let (from, to) = (inode(&volume, "/from"), inode(&volume, "/to"));
        let new_name: &[u8] = match mode {
            RenameMode::Exchange => b"other",
            _ => b"new",
        };
        let moved = volume.rename(from, b"damaged", to, new_name, mode);
        assert!(
            matches!(moved, Err(Error::Corrupt(_))),
            "{mode:?}: {moved:?}"
        );
        let found = volume.lookup(from, b"damaged").map(|found| found.inode);
        assert_eq!(
            found.ok(),
            Some(inode(&volume, "/from/damaged")),
            "{mode:?}"
        );
        assert_goes_on(volume, "a damaged directory");
    }
}

/// What `tune2fs -j` makes of a mounted file system.
#[test]
fn a_journal_may_have_a_name_and_is_left_alone() {
    let Some(other) = Image::make(&["-b", "4096"]) else {
        return;
    };
    let journal = other.path.with_file_name("journal");
    other.debugfs(&format!("dump <8> {}", journal.display()));
    let journal = std::fs::read(journal).expect("it was copied");
    let arguments = ["-b", "4096", "-O", "^has_journal", "-e", "remount-ro"];
    let made = image_with(&arguments, |volume| {
        volume.paths().write("/.journal", &journal).expect("room");
    });
    let image = made.expect("mke2fs is there");
    let told = image.debugfs("stat .journal");
    let number: u32 = told
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("its number");
    image.debugfs_write("feature has_journal");
    image.debugfs_write(&format!("ssv journal_inum {number}"));
    let volume = image.open();
    let found = volume.lookup(ROOT, b".journal").expect("it has a name");
    assert_eq!(found.inode, InodeNumber(number));
    let cut = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    let private = SetAttributes {
        permissions: Some(0o700),
        ..SetAttributes::default()
    };
    let journal = found.inode;
    let refused = [
        volume.read(journal, 0, &mut [0; 10]).map(drop),
        volume.write(journal, 0, b"x").map(drop),
        volume.set_attributes(journal, &cut).map(drop),
        volume.set_attributes(journal, &private).map(drop),
        volume.allocate(journal, AllocateMode::PunchHole, 0, 4096),
        volume.unlink(ROOT, b".journal"),
        volume.link(journal, ROOT, b"journal").map(drop),
        volume.rename(ROOT, b".journal", ROOT, b"journal", RenameMode::Replace),
    ];
    for (place, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err("it is the journal");
        assert!(error.is(Refusal::NotPermitted), "{place}: {error}");
    }
    let again = volume.lookup_number(journal).expect("it has a name");
    assert_eq!(again.inode, journal);
    volume.forget(journal, 2);
    assert_goes_on(volume, "a named journal");
}

/// Where an inode's slot is in an image with blocks of 1 KiB.
fn slot(image: &Image, path: &str) -> usize {
    let told = image.debugfs(&format!("imap {path}"));
    let place = told.split("located at block ").nth(1).expect("its place");
    let (block, rest) = place.split_once(", offset 0x").expect("its place");
    let offset = rest.split_whitespace().next().expect("its offset");
    let offset = usize::from_str_radix(offset, 16).expect("a number");
    block.parse::<usize>().expect("a number") * 1024 + offset
}

#[test]
fn upper_halves_without_their_features_are_not_looked_at() {
    let features = "^huge_file,^64bit,^metadata_csum,^extent,^flex_bg,^orphan_file";
    let made = image_with(&["-b", "1024", "-I", "128", "-O", features], |volume| {
        volume.paths().write("/file", [7; 3000]).expect("room");
        volume.paths().create_dir("/directory").expect("room");
    });
    let Some(image) = made else {
        return;
    };
    let slots = ["file", "directory"].map(|path| slot(&image, path));
    image.change(|bytes| {
        let [file, directory] = slots;
        // The upper halves of the block count, the attribute block and the size.
        for at in [file + 0x74, file + 0x76, directory + 0x6C] {
            bytes[at] = 1;
        }
    });
    let volume = image.open();
    let file = inode(&volume, "/file");
    assert_eq!(volume.attributes(file).expect("held").sectors, 6);
    assert!(
        volume
            .xattr(file, b"user.a")
            .expect_err("none")
            .is(Refusal::NoAttribute)
    );
    let cut = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    volume.set_attributes(file, &cut).expect("it is counted");
    let directory = inode(&volume, "/directory");
    let _ = volume
        .create(directory, b"file", &CreateAttributes::default())
        .expect("it can be read");
    volume.unlink(ROOT, b"file").expect("it can be freed");
    assert_goes_on(volume, "upper halves");
    image.assert_clean();
}

/// Lists `numbers` in the first block of the orphan file of an image with blocks of 4 KiB.
fn list_orphans(image: &Image, numbers: &[u32]) {
    list_orphans_in(image, 0, numbers);
}

/// The number of a block of the orphan file.
fn orphan_block(image: &Image, logical: u32) -> usize {
    let told = image.debugfs(&format!("bmap <12> {logical}"));
    let mut numbers = told.lines().filter_map(|line| line.trim().parse().ok());
    numbers.next().expect("the orphan file's block")
}

/// Lists `numbers` in a block of the orphan file of an image with blocks of 4 KiB.
fn list_orphans_in(image: &Image, logical: u32, numbers: &[u32]) {
    let block = orphan_block(image, logical);
    image.change(|bytes| {
        for (slot, number) in numbers.iter().enumerate() {
            let at = block * 4096 + 4 * slot;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let place: &mut [u8; 1024] = bytes[1024..].first_chunk_mut().expect("it is there");
        let mut superblock = Superblock::decode(place).expect("a superblock");
        superblock.features.read_only_compat |= ReadOnlyCompat::ORPHAN_PRESENT;
        *place = superblock.encode();
    });
}

#[test]
fn notes_about_orphans_are_few() {
    let Some(image) = Image::make(&["-b", "4096", "-O", "orphan_file,^metadata_csum"]) else {
        return;
    };
    list_orphans(&image, &[1; 1000]);
    let volume = image.open();
    let notes = volume.notes();
    assert!(notes.len() <= 12, "{} notes", notes.len());
    assert!(notes.join("\n").contains("990 more"), "{notes:?}");
    volume.close().expect("it closes");
}

/// An image with blocks of 4 KiB, an orphan file and these options, and the number of a file in it
/// that has lost its name.
fn image_with_unnamed(options: &[&str]) -> Option<(Image, u32)> {
    let mut number = 0;
    let common = ["-b", "4096", "-O", "orphan_file,^metadata_csum"];
    let image = image_with(&[&common[..], options].concat(), |volume| {
        volume.paths().write("/file", [7; 5000]).expect("room");
        number = inode(volume, "/file").get();
    })?;
    image.debugfs_write("unlink file");
    image.debugfs_write(&format!("sif <{number}> links_count 0"));
    Some((image, number))
}

/// Mounts an image with one orphan, which the mount deletes.
fn assert_finishes_one(image: &Image) {
    let volume = image.open();
    let notes = volume.notes().join("\n");
    assert!(notes.starts_with("finished 1 "), "{notes}");
    volume.close().expect("it closes");
    image.assert_clean();
    let volume = image.open();
    assert_eq!(volume.notes(), [""; 0], "nothing is listed any more");
}

#[test]
fn an_orphan_that_is_listed_twice_leaves_no_place_behind() {
    let Some((image, number)) = image_with_unnamed(&[]) else {
        return;
    };
    list_orphans(&image, &[number, number]);
    assert_finishes_one(&image);
}

/// Only in the chain is a deletion time a link. e2fsck deletes such an orphan as well.
#[test]
fn an_orphan_in_the_file_has_any_deletion_time() {
    let Some((image, number)) = image_with_unnamed(&[]) else {
        return;
    };
    image.debugfs_write(&format!("sif <{number}> dtime 1700000000"));
    list_orphans(&image, &[number]);
    assert_finishes_one(&image);
}

/// Its blocks may be free as well, or another file's.
#[test]
fn an_orphan_whose_number_is_free_is_not_cut() {
    for links in [0, 1] {
        let Some((image, number)) = image_with_unnamed(&[]) else {
            return;
        };
        image.debugfs_write(&format!("sif <{number}> links_count {links}"));
        image.debugfs_write(&format!("sif <{number}> size 100"));
        image.debugfs_write(&format!("freei <{number}>"));
        // debugfs does not count it in the descriptor.
        image.change(|bytes| {
            let count: &mut [u8; 2] = bytes[4096 + 0x0E..].first_chunk_mut().expect("there");
            *count = (u16::from_le_bytes(*count) + 1).to_le_bytes();
        });
        list_orphans(&image, &[number]);
        let blocks = image.debugfs(&format!("blocks <{number}>"));
        let volume = image.open();
        let notes = volume.notes().join("\n");
        assert!(notes.contains("marked free"), "{links}: {notes}");
        volume.close().expect("it closes");
        assert_eq!(image.debugfs(&format!("blocks <{number}>")), blocks);
    }
}

/// What was deleted already leaves nothing to do.
#[test]
fn an_orphan_that_was_deleted_is_listed_no_more() {
    let Some((image, number)) = image_with_unnamed(&[]) else {
        return;
    };
    list_orphans(&image, &[number]);
    assert_finishes_one(&image);
    list_orphans(&image, &[number]);
    let volume = image.open();
    assert_eq!(volume.notes(), [""; 0], "nothing was left to do");
    volume.close().expect("it closes");
    image.assert_clean();
}

/// e2fsck takes them, and mke2fs makes them if asked to.
#[test]
fn long_orphan_files_are_read_to_their_end() {
    let Some((image, number)) = image_with_unnamed(&["-E", "orphan_file_size=40M"]) else {
        return;
    };
    list_orphans_in(&image, (40 << 8) - 1, &[number]);
    assert_finishes_one(&image);
}

#[test]
fn an_orphan_file_that_has_a_block_twice_is_damage() {
    let features = [
        "orphan_file,^metadata_csum,^extent,^64bit",
        "orphan_file,^metadata_csum",
    ];
    for features in features {
        let Some(image) = Image::make(&["-b", "4096", "-O", features]) else {
            return;
        };
        let (first, second) = (orphan_block(&image, 0), orphan_block(&image, 1));
        // A pointer, or a second extent, to blocks that the file has already.
        let requests = if features.contains("^extent") {
            vec![format!("block[0] {second}")]
        } else {
            vec![
                "block[0] 0x0002F30A".to_owned(),
                "block[6] 32".to_owned(),
                "block[7] 32".to_owned(),
                format!("block[8] {first}"),
                format!("size {}", 64 * 4096),
            ]
        };
        for request in requests {
            image.debugfs_write(&format!("sif <12> {request}"));
        }
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let opened = Volume::open(device, MountOptions::default());
        let error = opened.expect_err("the file is damaged");
        assert!(matches!(error, Error::Corrupt(_)), "{features}: {error}");
    }
}
