//! Inodes that are looked up by number, as file handles name them.

use std::sync::Barrier;
use std::thread;

use pext4_fs::{AllocateMode, CreateAttributes, InodeNumber, Refusal, SetAttributes, SetXattrMode};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

#[test]
fn a_file_with_a_name_is_found_and_held() {
    let Some(image) = Image::make(&["-O", "metadata_csum,64bit,orphan_file"]) else {
        return;
    };
    let volume = image.open();
    let made = volume.create(ROOT, b"file", &CreateAttributes::default());
    let made = made.expect("room");
    volume.forget(made.inode, 1);
    let found = volume.lookup_number(made.inode).expect("it has a name");
    assert_eq!(found.attributes.generation, made.attributes.generation);
    assert!(volume.is_held(made.inode));
    volume.unlink(ROOT, b"file").expect("it is there");
    assert!(volume.attributes(made.inode).is_ok(), "it is held");
    let nameless = volume.lookup_number(made.inode).expect_err("no name");
    assert!(nameless.is(Refusal::Stale), "{nameless}");
    volume.forget(made.inode, 1);
    assert!(!volume.is_held(made.inode));
    let root = volume.lookup_number(ROOT).expect("there always is one");
    assert_eq!(root.inode, ROOT);
    volume.forget(ROOT, 1);
    volume.close().expect("the device works");
    image.assert_clean();
}

#[test]
fn numbers_of_no_file_are_stale() {
    let Some(image) = Image::make(&["-O", "metadata_csum,64bit,orphan_file"]) else {
        return;
    };
    let volume = image.open();
    let last = volume.statfs().inodes;
    let beyond = u32::try_from(last).expect("few inodes") + 1;
    // Of the bad blocks, the resize inode, the journal and the orphan file; unused; beyond all.
    for number in [0, 1, 7, 8, 12, 20, beyond, u32::MAX] {
        let stale = volume.lookup_number(InodeNumber(number));
        let stale = stale.expect_err("no file");
        assert!(stale.is(Refusal::Stale), "{number}: {stale}");
        assert!(!volume.held().contains(&InodeNumber(number)), "{number}");
    }
}

/// A number may come from whom the volume is served to.
#[test]
fn no_operation_reaches_what_is_the_file_systems_own() {
    let Some(image) = Image::make(&["-O", "metadata_csum,64bit,orphan_file"]) else {
        return;
    };
    let volume = image.open();
    let beyond = u32::try_from(volume.statfs().inodes).expect("few inodes") + 1;
    let longer = SetAttributes {
        size: Some(1 << 30),
        ..SetAttributes::default()
    };
    let private = SetAttributes {
        permissions: Some(0),
        ..SetAttributes::default()
    };
    let new = CreateAttributes::default();
    for number in [0, 1, 7, 8, 12, beyond, u32::MAX] {
        let inode = InodeNumber(number);
        let refused = [
            volume.attributes(inode).map(drop),
            volume.set_attributes(inode, &longer).map(drop),
            volume.set_attributes(inode, &private).map(drop),
            volume.read(inode, 0, &mut [0; 10]).map(drop),
            volume.write(inode, 0, b"x").map(drop),
            volume.allocate(inode, AllocateMode::PunchHole, 0, 4096),
            volume.extents(inode, 0, 1).map(drop),
            volume.link(inode, ROOT, b"name").map(drop),
            volume.create(inode, b"name", &new).map(drop),
            volume.read_link(inode).map(drop),
            volume.xattrs(inode).map(drop),
            volume.set_xattr(inode, b"user.a", b"1", SetXattrMode::Any),
            volume.fsync(inode),
        ];
        for (place, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("no file");
            assert!(error.is(Refusal::Stale), "{number}, {place}: {error}");
        }
    }
    volume.close().expect("the device works");
    image.assert_clean();
}

/// As a file that was deleted while the clock was low, and one that e2fsck has not deleted yet.
#[test]
fn a_file_without_links_is_stale_and_stays_as_it_is() {
    for deletion_time in ["0", "@5"] {
        let Some(image) = Image::make(&["-O", "metadata_csum,64bit,orphan_file"]) else {
            return;
        };
        let volume = image.open();
        let made = volume.create(ROOT, b"file", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        volume.write(inode, 0, &[7; 50_000]).expect("room");
        volume.forget(inode, 1);
        volume.close().expect("the device works");
        image.debugfs_write(&format!("set_inode_field <{inode}> links_count 0"));
        image.debugfs_write(&format!("set_inode_field <{inode}> dtime {deletion_time}"));
        let before = image.debugfs(&format!("stat <{inode}>"));
        assert!(
            before.contains("Links: 0") && before.contains("EXTENTS"),
            "{before}"
        );

        let volume = image.open();
        let stale = volume.lookup_number(inode).expect_err("no name");
        assert!(stale.is(Refusal::Stale), "{stale}");
        assert!(!volume.is_held(inode));
        volume.close().expect("the device works");
        assert_eq!(image.debugfs(&format!("stat <{inode}>")), before);
    }
}

#[test]
fn a_file_that_loses_its_name_meanwhile_is_found_or_gone() {
    const ROUNDS: usize = 2000;
    let Some(image) = Image::make(&["-O", "metadata_csum,64bit,orphan_file"]) else {
        return;
    };
    let volume = image.open();
    let barrier = Barrier::new(2);
    for _ in 0..ROUNDS {
        let made = volume.create(ROOT, b"file", &CreateAttributes::default());
        let inode = made.expect("room").inode;
        volume.forget(inode, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                volume.unlink(ROOT, b"file").expect("it is there");
            });
            barrier.wait();
            match volume.lookup_number(inode) {
                Ok(_) => volume.forget(inode, 1),
                Err(error) => assert!(error.is(Refusal::Stale), "{error}"),
            }
        });
        let freed = volume
            .attributes(inode)
            .expect_err("it has neither name nor hold");
        assert!(freed.is(Refusal::Stale), "{freed}");
    }
    volume.close().expect("the device works");
    image.assert_clean();
}

#[test]
fn a_directory_that_was_removed_has_no_entries() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let made = volume.make_directory(ROOT, b"directory", &CreateAttributes::default());
    let directory = made.expect("room").inode;
    let itself = volume.lookup(directory, b".").expect("it is there");
    assert_eq!(itself.inode, directory);
    volume.forget(directory, 1);
    volume
        .remove_directory(ROOT, b"directory")
        .expect("it is empty");
    for name in [&b"."[..], b".."] {
        let gone = volume.lookup(directory, name).expect_err("no entries");
        assert!(gone.is(Refusal::NotFound), "{gone}");
    }
    volume.forget(directory, 1);
    volume.close().expect("the device works");
    image.assert_clean();
}
