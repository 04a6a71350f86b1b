//! Images with a bad group descriptor: a mount that only reads goes on without the group.

use std::sync::Arc;

use pext4_block::fault::Operation;
use pext4_block::{Device, FaultDevice, RamDevice};
use pext4_fs::{InodeNumber, MountOptions, Result, Volume};

use crate::images::Image;

const SUPERBLOCK: usize = 1024;
/// Where the descriptors begin: the block behind the superblock's.
const DESCRIPTORS: usize = 2048;
/// Bytes of a descriptor without `64bit`.
const DESCRIPTOR: usize = 32;

/// An image of groups on their own, with directories `/0` to `/9` and a file in each.
fn image(blocks_in_group: &str, features: &str) -> Option<Image> {
    let features = format!("^64bit,^flex_bg,{features}");
    let image = Image::make(&["-b", "1024", "-g", blocks_in_group, "-O", &features])?;
    let volume = image.open();
    for number in 0..10 {
        let path = format!("/{number}");
        volume.paths().create_dir(&path).expect("room");
        volume
            .paths()
            .write(format!("{path}/file"), path.as_bytes())
            .expect("room");
    }
    volume.close().expect("a clean close");
    Some(image)
}

fn open(device: Arc<dyn Device>, read_only: bool) -> Result<Volume> {
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    Volume::open(device, options)
}

fn loaded(image: &Image, read_only: bool) -> Result<Volume> {
    open(
        Arc::new(RamDevice::load(&image.path).expect("the image")),
        read_only,
    )
}

/// The group of `/0` to `/9` each.
fn groups(image: &Image) -> Vec<usize> {
    let at = SUPERBLOCK + 0x28;
    let bytes = image.first_block();
    let in_group = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let volume = loaded(image, true).expect("it is whole");
    let group = |number: usize| {
        let found = volume
            .paths()
            .attributes(format!("/{number}"))
            .expect("it is there");
        ((found.inode.get() - 1) / in_group) as usize
    };
    (0..10).map(group).collect()
}

/// Reads what is there; tells why something is not.
fn check_rest(volume: &Volume, groups: &[usize], is_bad: impl Fn(usize) -> bool) -> String {
    let mut names = 0;
    let mut count = |_: pext4_fs::DirectoryEntry<'_>| {
        names += 1;
        true
    };
    volume
        .read_directory(InodeNumber::ROOT, 0, &mut count)
        .expect("the root is whole");
    assert_eq!(names, 13, "dots, lost+found, and ten");
    let mut told = String::new();
    for (number, group) in groups.iter().enumerate() {
        let read = volume.paths().read(format!("/{number}/file"));
        match read {
            Ok(bytes) => assert_eq!(bytes, format!("/{number}").as_bytes()),
            Err(error) => {
                assert!(is_bad(*group), "{number}: {error}");
                told = error.to_string();
                assert!(told.contains(&format!("group {group}, inode")), "{told}");
                let block = DESCRIPTORS / 1024 + group * DESCRIPTOR / 1024;
                assert!(told.contains(&format!("block {block}")), "{told}");
            }
        }
    }
    told
}

#[test]
fn one_that_is_bad_hides_its_own_inodes_alone() {
    for (features, problem) in [
        ("metadata_csum", "checksum"),
        ("^metadata_csum,^uninit_bg", "inode table"),
    ] {
        let Some(image) = image("8192", features) else {
            return;
        };
        let groups = groups(&image);
        let bad = *groups.iter().max().expect("there are ten");
        assert!(
            bad > 0 && groups.iter().any(|&group| group != bad),
            "{groups:?}"
        );
        let at = DESCRIPTORS + bad * DESCRIPTOR;
        // The place of the inode table.
        image.change(|bytes| bytes[at + 8..at + 12].fill(0x7F));

        let volume = loaded(&image, true).expect("the others are whole");
        let notes = volume.notes().join("\n");
        assert!(
            notes.contains(&format!("group {bad}")) && notes.contains(problem),
            "{notes}"
        );
        let told = check_rest(&volume, &groups, |group| group == bad);
        assert!(told.contains(problem), "{told}");

        let refused = loaded(&image, false).expect_err("nothing is written there");
        let refused = refused.to_string();
        for part in [problem, "e2fsck -f", "-o ro"] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}

/// Which of two that overlap is wrong nobody knows, so both are read.
#[test]
fn ones_that_overlap_hide_nothing() {
    let Some(image) = image("8192", "^metadata_csum,^uninit_bg") else {
        return;
    };
    let groups = groups(&image);
    // The block bitmap of group 3 is to lie on that group's copy of the superblock.
    let at = DESCRIPTORS + 3 * DESCRIPTOR;
    let copy = 1 + 3 * 8192u32;
    image.change(|bytes| bytes[at..at + 4].copy_from_slice(&copy.to_le_bytes()));
    let volume = loaded(&image, true).expect("it can be read");
    assert_eq!(volume.notes().len(), 1, "{:?}", volume.notes());
    assert_eq!(check_rest(&volume, &groups, |_| false), "");
    assert!(loaded(&image, false).is_err());
}

#[test]
fn ones_that_the_device_cannot_read_hide_the_inodes_of_their_block() {
    let Some(image) = image("1024", "metadata_csum") else {
        return;
    };
    let groups = groups(&image);
    assert!(groups.iter().any(|&group| group >= 32), "{groups:?}");
    let block = DESCRIPTORS as u64 + 1024;
    let damaged = || {
        let ram = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let faulty = FaultDevice::new(ram);
        faulty.fail_touching(Operation::Read, block..block + 1024);
        Arc::new(faulty)
    };
    let volume = open(damaged(), true).expect("the other block is read");
    let told = check_rest(&volume, &groups, |group| group >= 32);
    assert!(told.contains("cannot be read"), "{told}");
    assert!(volume.notes().join("\n").contains("more group descriptors"));
    assert!(open(damaged(), false).is_err());
}

/// Linux does the same.
#[test]
fn a_mount_that_only_reads_uses_descriptors_of_which_only_the_checksum_is_wrong() {
    let Some(image) = image("8192", "metadata_csum") else {
        return;
    };
    // The sums of all descriptors, in the last two bytes of each.
    image.change(|bytes| {
        for group in 0..8 {
            bytes[DESCRIPTORS + group * DESCRIPTOR + 30] ^= 1;
        }
    });
    let error = loaded(&image, false).expect_err("it cannot be written");
    assert!(error.to_string().contains("-o ro"), "{error}");
    let volume = loaded(&image, true).expect("it can be read");
    let notes = volume.notes().join("\n");
    assert!(notes.contains("checksum"), "{notes}");
    assert_eq!(check_rest(&volume, &[0; 10], |_| false), "");
}

/// Linux does the same.
#[test]
fn a_mount_that_only_reads_needs_no_counts() {
    // Offsets in a descriptor: free blocks, free inodes, directories, never used inodes.
    let counts = [12, 14, 16, 28];
    for features in ["metadata_csum", "^metadata_csum,^uninit_bg"] {
        let Some(image) = image("8192", features) else {
            return;
        };
        let has_sums = features == "metadata_csum";
        for at in &counts[..if has_sums { 4 } else { 3 }] {
            let at = DESCRIPTORS + at;
            image.change(|bytes| bytes[at..at + 2].fill(0x7F));
            let volume = loaded(&image, true).expect("it can be read");
            assert_eq!(volume.notes().len(), 1, "{:?}", volume.notes());
            assert_eq!(check_rest(&volume, &groups(&image), |_| false), "");
            assert!(loaded(&image, false).is_err());
        }
    }
}

/// As e2fsck finds inodes in use there, a count with a right checksum may be wrong too.
#[test]
fn a_mount_that_only_reads_finds_inodes_that_were_never_used() {
    let Some(image) = image("8192", "metadata_csum") else {
        return;
    };
    let at = SUPERBLOCK + 0x28;
    let bytes = image.first_block();
    let in_group = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    for group in 0..8 {
        image.debugfs_write(&format!("set_bg {group} itable_unused {in_group}"));
        image.debugfs_write(&format!("set_bg {group} checksum calc"));
    }
    let volume = loaded(&image, true).expect("it can be read");
    assert_eq!(check_rest(&volume, &groups(&image), |_| false), "");
    assert!(loaded(&image, false).is_err());
}
