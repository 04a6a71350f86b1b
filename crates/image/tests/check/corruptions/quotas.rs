//! Corruptions of quota files, in an image in which the users, groups and projects 0, 300, 1000 and
//! 66000 own something.

use pext4_image::check::Kind;
use pext4_ondisk::feature::ReadOnlyCompat;

use super::Beside::{Complains, Silent};
use super::{Beside, Corruption};
use crate::bases::Base;
use crate::image::Image;

/// Bytes of a block of a quota file, and of the image.
const BLOCK: usize = 1024;
/// Where a leaf's entries begin, and how long one is.
const ENTRIES: usize = 16;
const ENTRY: usize = 72;
/// Fields of an entry.
const INODES: usize = 24;
const SPACE: usize = 48;

/// Why e2fsck does not report trees whose entries it finds nevertheless.
const READS_ON: Beside = Silent("it takes every entry that it comes upon");

/// Changes four bytes of the users' file.
fn set(image: &mut Image, block: usize, at: usize, value: u32) {
    let number = image.blocks(3)[block];
    image.block(number)[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The leaf of the users' file with a user's entry, and the entry's offset.
fn entry(image: &mut Image, id: u32) -> (usize, usize) {
    let blocks = image.blocks(3);
    // A tree block may look like a leaf: the last one is one.
    for (index, &number) in blocks.iter().enumerate().skip(5) {
        let bytes = image.block(number);
        for at in (ENTRIES..BLOCK - ENTRY).step_by(ENTRY) {
            let has = |at: usize, value: u32| bytes[at..at + 4] == value.to_le_bytes();
            if has(at, id) && !has(at + INODES, 0) {
                return (index, at);
            }
        }
    }
    panic!("user {id} has an entry");
}

fn set_entry(image: &mut Image, id: u32, at: usize, value: u32) {
    let (block, start) = entry(image, id);
    set(image, block, start + at, value);
}

/// Copies an entry to the last place of its leaf, for another user.
fn copy_entry(image: &mut Image, id: u32, new: u32) {
    let (block, start) = entry(image, id);
    let number = image.blocks(3)[block];
    let bytes = image.block(number);
    let last = ENTRIES + 13 * ENTRY;
    bytes.copy_within(start..start + ENTRY, last);
    bytes[last..last + 4].copy_from_slice(&new.to_le_bytes());
}

pub fn headers() -> Vec<Corruption> {
    let kind = Kind::QuotaInode;
    let ignored = Silent("it reads on; Linux does not");
    vec![
        (kind, Base::Quota, ignored, |image| set(image, 0, 0, 5)),
        (kind, Base::Quota, Complains, |image| set(image, 0, 4, 2)),
        (kind, Base::Quota, Complains, |image| set(image, 0, 20, 77)),
        (kind, Base::Quota, Complains, |image| set(image, 0, 20, 0)),
        (kind, Base::Quota, Complains, |image| set(image, 0, 24, 77)),
        (kind, Base::Quota, Complains, |image| set(image, 0, 28, !0)),
        (kind, Base::Quota, Complains, |image| {
            image.edit_inode(3, |inode| inode.size -= 1024);
        }),
        (kind, Base::Quota, Complains, |image| {
            image.edit_inode(4, |inode| inode.mode = 0o040_600);
        }),
        // Quota files without the feature.
        (kind, Base::Quota, Complains, |image| {
            image.edit_superblock(|superblock| {
                let features = &mut superblock.features.read_only_compat;
                features.remove(ReadOnlyCompat::QUOTA);
            });
        }),
    ]
}

pub fn trees() -> Vec<Corruption> {
    let kind = Kind::QuotaTree;
    vec![
        (kind, Base::Quota, Complains, |image| {
            set(image, 1, 0, 1000);
        }),
        (kind, Base::Quota, Complains, |image| set(image, 1, 4, !0)),
        // To itself, in every slot.
        (kind, Base::Quota, Complains, |image| {
            for slot in 0..256 {
                set(image, 1, slot * 4, 1);
            }
        }),
        // A second reference to a block.
        (kind, Base::Quota, READS_ON, |image| set(image, 1, 28, 2)),
        // A leaf as a tree block.
        (kind, Base::Quota, Complains, |image| {
            let leaf = entry(image, 300).0;
            set(image, 1, 0, u32::try_from(leaf).expect("small"));
        }),
        // A number that leads to a leaf without it, and an entry that nothing leads to.
        (kind, Base::Quota, READS_ON, |image| {
            let leaf = entry(image, 300).0;
            set(image, 4, 36, u32::try_from(leaf).expect("small"));
        }),
        (kind, Base::Quota, READS_ON, |image| set(image, 4, 0, 0)),
        (kind, Base::Quota, READS_ON, |image| {
            copy_entry(image, 300, 300);
        }),
    ]
}

pub fn usage() -> Vec<Corruption> {
    let kind = Kind::QuotaUsage;
    vec![
        (kind, Base::Quota, Complains, |image| {
            set_entry(image, 300, SPACE, 1);
        }),
        (kind, Base::Quota, Complains, |image| {
            set_entry(image, 300, SPACE + 4, 1);
        }),
        (kind, Base::Quota, Complains, |image| {
            set_entry(image, 66_000, INODES, 2);
        }),
        // Another's, and nobody's.
        (kind, Base::Quota, Complains, |image| {
            set_entry(image, 300, 0, 301);
        }),
        (kind, Base::Quota, Complains, |image| {
            let (block, start) = entry(image, 300);
            for at in (0..ENTRY).step_by(4) {
                set(image, block, start + at, 0);
            }
        }),
        (kind, Base::Quota, Complains, |image| {
            copy_entry(image, 300, 777);
        }),
        (kind, Base::Quota, Complains, |image| {
            set(image, 1, 0, 0);
            set(image, 1, 4, 0);
        }),
        // A file changes hands, and its values with it.
        (kind, Base::Quota, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.gid = 1000);
        }),
        (kind, Base::Quota, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.project = 5);
        }),
    ]
}
