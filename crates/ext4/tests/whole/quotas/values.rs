//! Attribute values in inodes of their own, which have owners too.

use std::time::Duration;

use pext4_fs::{MountOptions, SetAttributes};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::quota::{Entry, OwnerKind, encode_file};

use super::{ROOT, chown, listed, owned_by, set_long_attribute};
use crate::images::{Image, inode};

/// Puts another content of the same length into a quota file of an image with blocks of 1 KiB.
fn rewrite(image: &Image, inode: u32, file: &[u8]) {
    let told = image.debugfs(&format!("blocks <{inode}>"));
    let blocks = told
        .split_whitespace()
        .filter_map(|word| word.parse::<usize>().ok());
    image.change(|bytes| {
        for (block, part) in blocks.zip(file.chunks(1024)) {
            bytes[block * 1024..][..1024].copy_from_slice(part);
        }
    });
    image.assert_clean();
}

/// A value outlives the owners that it was made for, whose entries Linux then removes.
#[test]
fn a_value_ends_without_the_owners_that_it_was_made_for() {
    let Some(image) = Image::make(&["-O", "quota,ea_inode", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    for number in 0..100 {
        let name = format!("{number}");
        let file = volume.create(ROOT, name.as_bytes(), &owned_by(7, 7));
        let file = file.expect("room").inode;
        set_long_attribute(&volume, file, 9000 + number);
        chown(&volume, file, Some(0), Some(0));
    }
    volume.close().expect("it closes");
    for (inode, owner) in [(3, OwnerKind::User), (4, OwnerKind::Group)] {
        let (space, inodes) = listed(&image, owner.name())[&0];
        let entry = Entry {
            id: 0,
            space,
            inodes,
        };
        rewrite(&image, inode, &encode_file(owner, &[entry]));
    }
    let volume = image.open_with(MountOptions {
        commit_interval: Duration::from_millis(1),
        ..MountOptions::default()
    });
    for number in 0..100 {
        let path = format!("/{number}");
        let file = inode(&volume, &path);
        volume.remove_xattr(file, b"user.long").expect("it was set");
    }
    volume.close().expect("it closes");
    image.assert_clean();
}

/// The inode of a value has the user and the group of the file, and mostly project 0, which has no
/// entry if nothing is of that project: Linux removes entries without usage.
#[test]
fn the_inode_of_a_value_may_have_a_project_without_an_entry() {
    let Some(image) = Image::make(&["-O", "quota,project,ea_inode", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let change = SetAttributes {
        flags: Some(InodeFlags::PROJINHERIT.bits()),
        project: Some(5),
        ..SetAttributes::default()
    };
    for inode in [inode(&volume, "/lost+found"), ROOT] {
        volume.set_attributes(inode, &change).expect("it may");
    }
    volume.close().expect("it closes");
    image.assert_clean();
    let (space, inodes) = listed(&image, "project")[&5];
    let entry = Entry {
        id: 5,
        space,
        inodes,
    };
    let file = encode_file(OwnerKind::Project, &[entry]);
    rewrite(&image, 12, &file);
    assert!(!listed(&image, "project").contains_key(&0));
    // Commits everywhere: also between the making of the inode and its becoming a value.
    let volume = image.open_with(MountOptions {
        commit_interval: Duration::from_millis(1),
        ..MountOptions::default()
    });
    let file = volume.create(ROOT, b"file", &owned_by(0, 0));
    let file = file.expect("room").inode;
    for length in 9000..9200 {
        set_long_attribute(&volume, file, length);
    }
    volume.close().expect("it closes");
    image.assert_clean();
}
