//! Images whose files share what no two files share: what is copied out of them has a limit.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use pext4_edit::{ExportOptions, Exported, GetOptions, Reader};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, SetXattrMode, Volume};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 1024;
/// All blocks that one node of pointers leads to.
const SHARED: u64 = 256 * BLOCK as u64;
/// So many files with that content that it would be larger than the image.
const FILES: u32 = 80;

/// An image that `fill` fills, and its path.
fn image(features: Features, fill: impl FnOnce(&Volume)) -> (tempfile::TempDir, PathBuf) {
    let folder = scratch();
    let image = folder.path().join("image");
    let format = Format::new(SIZE, BLOCK as u32, features);
    let device = format.device().expect("mke2fs makes it");
    device.save(&image).expect("there is room");
    let device = FileDevice::open(&image, Access::ReadWrite, Duration::ZERO);
    let device = Arc::new(device.expect("the image"));
    let volume = Volume::open(device, MountOptions::default()).expect("a mount");
    fill(&volume);
    volume.close().expect("the device works");
    (folder, image)
}

fn create(volume: &Volume, name: &str) -> InodeNumber {
    let new = CreateAttributes::default();
    let made = volume.create(InodeNumber::ROOT, name.as_bytes(), &new);
    made.expect("room").inode
}

/// A file whose blocks are those of one node of pointers, and `FILES` others with the same node.
fn of_shared_pointers() -> (tempfile::TempDir, PathBuf) {
    let (folder, image) = image(Features::Ext3, |volume| {
        let file = create(volume, "first");
        let written = volume.write(file, 12 * BLOCK as u64, &vec![7; 256 * BLOCK]);
        assert_eq!(written.expect("room"), 256 * BLOCK);
        for number in 0..FILES {
            create(volume, &format!("other{number}"));
        }
    });
    let nodes = debugfs::pointer_blocks_of(&image, "/first").expect("debugfs is there");
    let requests = (0..FILES).flat_map(|number| {
        [
            format!("set_inode_field /other{number} block[IND] {}", nodes[0]),
            format!("set_inode_field /other{number} size {}", 268 * BLOCK),
        ]
    });
    let requests: Vec<String> = requests.collect();
    debugfs::command(&image, &requests).expect("debugfs is beside mke2fs");
    (folder, image)
}

/// The error of an export, and that of a copy.
fn refused(image: &Path) -> [String; 2] {
    let reader = Reader::open(image).expect("a sound superblock");
    let exported = reader.export("/", &mut io::sink()).map(drop);
    let copy = image.with_file_name("copy");
    let copied = reader.get("/", &copy, &GetOptions::default()).map(drop);
    assert!(!copy.exists(), "nothing is left of it");
    [exported, copied].map(|done| done.expect_err("it is too much").to_string())
}

/// Exports all but what cannot be copied, and returns what is said of that.
fn export_readable(reader: &Reader, archive: &mut dyn Write) -> (Exported, Vec<String>) {
    let mut skipped = Vec::new();
    let options = ExportOptions {
        on_skipped: Some(&mut |error| skipped.push(error.to_string())),
        ..ExportOptions::default()
    };
    let exported = reader.export_with("/", archive, options);
    (exported.expect("the rest is left out"), skipped)
}

#[test]
fn files_of_the_same_blocks_are_not_copied_without_end() {
    let (_folder, image) = of_shared_pointers();
    for told in refused(&image) {
        assert!(told.contains("image:/other"), "{told}");
        assert!(told.contains("more data than the file system"), "{told}");
    }
}

#[test]
fn of_such_files_some_can_be_skipped() {
    let (folder, image) = of_shared_pointers();
    let reader = Reader::open(&image).expect("a sound superblock");
    let (exported, skipped) = export_readable(&reader, &mut io::sink());
    // As many as there is room for, although each is read before it is written.
    assert_eq!(exported.bytes, SIZE / SHARED * SHARED);
    assert_eq!(exported.unreadable_skipped, skipped.len() as u64);
    let copy = folder.path().join("copy");
    let copied = reader.get_readable("/", copy, &GetOptions::default(), &mut |_| ());
    let copied = copied.expect("the rest is left out");
    assert_eq!(copied.bytes, exported.bytes);
    assert_eq!(copied.unreadable_skipped, exported.unreadable_skipped);
}

#[test]
fn files_may_share_blocks_where_the_image_says_so() {
    let (_folder, image) = of_shared_pointers();
    debugfs::command(&image, &["feature shared_blocks".into()]).expect("debugfs knows it");
    let reader = Reader::open(&image).expect("it can be read");
    let exported = reader.export("/", &mut io::sink());
    let exported = exported.expect("sixteen times the image may be");
    assert_eq!(exported.bytes, (1 + u64::from(FILES)) * SHARED);
}

/// Every name is twelve bytes of the image.
#[test]
fn a_file_of_one_link_and_many_names_is_not_copied_for_each() {
    let (folder, image) = image(Features::Ext3, |volume| {
        let file = create(volume, "first");
        let written = volume.write(file, 0, &vec![7; 1 << 20]);
        assert_eq!(written.expect("room"), 1 << 20);
    });
    // These links are not counted in the inode.
    let links = (0..40).map(|number| format!("ln /first /link{number:02}"));
    let links: Vec<String> = links.collect();
    debugfs::command(&image, &links).expect("debugfs is beside mke2fs");

    let reader = Reader::open(&image).expect("a sound superblock");
    let mut archive = Vec::new();
    let exported = reader.export("/", &mut archive).expect("it is no more");
    assert_eq!((exported.files, exported.bytes), (43, 2 << 20));
    let copy = folder.path().join("copy");
    let copied = reader.get("/", &copy, &GetOptions::default());
    assert_eq!(copied.expect("it is no more").bytes, 2 << 20);
    for name in ["first", "link00", "link39"] {
        let content = std::fs::read(copy.join(name)).expect("every name is there");
        assert_eq!(content, vec![7; 1 << 20], "{name}");
    }
}

/// Data is read until the damage, for one name of a file: all names together would have more than
/// the file system, and what comes after them would be left out, too.
#[test]
fn a_damaged_file_of_many_names_leaves_the_rest_to_be_copied() {
    let (folder, image) = image(Features::Ext3, |volume| {
        let file = create(volume, "damaged0");
        let written = volume.write(file, 0, &vec![7; 4 << 20]);
        assert_eq!(written.expect("room"), 4 << 20);
        for number in 1..6 {
            let name = format!("damaged{number}");
            let made = volume.link(file, InodeNumber::ROOT, name.as_bytes());
            volume.forget(made.expect("room").inode, 1);
        }
        let file = create(volume, "sound");
        let written = volume.write(file, 0, &vec![8; 8 << 20]);
        assert_eq!(written.expect("room"), 8 << 20);
    });
    // The superblock's block holds no pointers.
    let spoilt = ["block[TIND] 1", "size 0x8000000"];
    let spoilt = spoilt.map(|field| format!("set_inode_field /damaged0 {field}"));
    debugfs::command(&image, &spoilt).expect("debugfs is beside mke2fs");

    let reader = Reader::open(&image).expect("a sound superblock");
    let (exported, skipped) = export_readable(&reader, &mut io::sink());
    assert_eq!((exported.bytes, skipped.len()), (8 << 20, 6), "{skipped:?}");
    let second = &skipped[1];
    assert!(second.contains("under another of its names"), "{second}");
    let copy = folder.path().join("copy");
    let copied = reader.get_readable("/", &copy, &GetOptions::default(), &mut |_| ());
    let copied = copied.expect("the rest is sound");
    assert_eq!((copied.bytes, copied.unreadable_skipped), (8 << 20, 6));
    let content = std::fs::read(copy.join("sound")).expect("it is there");
    assert_eq!(content, vec![8; 8 << 20]);
}

/// An image with `FILES` files that have the same large values, each with a second name.
fn of_shared_values() -> (tempfile::TempDir, PathBuf) {
    let (folder, image) = image(Features::Values, |volume| {
        let file = create(volume, "first");
        for number in 0..10 {
            let name = format!("user.{number}");
            let value = vec![number; 60_000];
            let set = volume.set_xattr(file, name.as_bytes(), &value, SetXattrMode::Any);
            set.expect("room");
        }
        for number in 0..FILES {
            let file = create(volume, &format!("other{number}"));
            let name = format!("second{number}");
            let made = volume.link(file, InodeNumber::ROOT, name.as_bytes());
            volume.forget(made.expect("room").inode, 1);
        }
    });
    let told = debugfs::ask(&image, "stat /first").expect("debugfs is there");
    let (_, rest) = told.split_once("File ACL: ").expect("it has a block");
    let block = rest.split_whitespace().next().expect("a number");
    let requests = (0..FILES)
        .map(|number| format!("set_inode_field /other{number} file_acl {block}"))
        .collect::<Vec<_>>();
    debugfs::command(&image, &requests).expect("debugfs is beside mke2fs");
    (folder, image)
}

#[test]
fn attributes_with_the_same_values_are_not_copied_without_end() {
    let (_folder, image) = of_shared_values();
    for told in refused(&image) {
        assert!(told.contains("image:/other"), "{told}");
        assert!(told.contains("extended attributes"), "{told}");
        assert!(told.contains("larger than the file system"), "{told}");
    }
}

#[test]
fn nor_are_they_under_the_second_names_of_what_was_skipped() {
    let (_folder, image) = of_shared_values();
    let reader = Reader::open(&image).expect("a sound superblock");
    let mut archive = Vec::new();
    let (_, skipped) = export_readable(&reader, &mut archive);
    let of = |names: &str| skipped.iter().filter(|told| told.contains(names)).count();
    assert!(of("image:/other") > 0, "they are too large: {skipped:?}");
    assert_eq!(of("image:/other"), of("image:/second"), "{skipped:?}");
    assert!((archive.len() as u64) < SIZE + (1 << 20));
}
