//! Nodes of a directory's index as others write them.

use pext4_fs::{CreateAttributes, InodeNumber};

use crate::images::{Image, inode};

/// Blocks of 1 KiB.
const BLOCK: usize = 1024;
const NAMES: u32 = 900;

fn name(number: u32) -> String {
    format!("{number:0>200}")
}

/// Makes `/d`, whose index has nodes.
fn make(image: &Image) -> InodeNumber {
    let volume = image.open();
    let made = volume.make_directory(InodeNumber::ROOT, b"d", &CreateAttributes::default());
    let directory = made.expect("room").inode;
    let file = volume.create(directory, b"one", &CreateAttributes::default());
    let file = file.expect("room").inode;
    for number in 0..NAMES {
        let _ = volume
            .link(file, directory, name(number).as_bytes())
            .expect("room");
    }
    volume.close().expect("a clean close");
    directory
}

/// The node that the root's first entry leads to.
fn first_node(image: &Image) -> usize {
    let tree = image.debugfs("htree /d");
    assert!(tree.contains("Indirect levels: 1"), "{tree}");
    let entry = tree.split("Entry #0:").nth(1).expect("a root has entries");
    let block = entry.split("block ").nth(1).expect("each leads somewhere");
    let block = block.split_whitespace().next().expect("a number");
    let mapped = image.debugfs(&format!("bmap /d {block}"));
    let number = mapped.lines().find_map(|line| line.trim().parse().ok());
    number.expect("debugfs says where it lies")
}

/// The record at the start of a node is free; of what kind the file is that it does not name is
/// nothing that e2fsck or Linux ask, where there are no checksums.
#[test]
fn the_free_record_of_a_node_may_name_a_kind_of_file() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "^metadata_csum"]) else {
        return;
    };
    let directory = make(&image);
    let node = first_node(&image);
    image.change(|bytes| {
        let node = &mut bytes[node * BLOCK..][..BLOCK];
        assert_eq!(node[..8], [0, 0, 0, 0, 0, 4, 0, 0], "no node");
        node[7] = 2;
    });
    image.assert_clean();
    let volume = image.open();
    for number in 0..NAMES {
        let found = volume.lookup(directory, name(number).as_bytes());
        volume.forget(found.expect("it is there").inode, 1);
    }
    let file = volume.lookup(directory, b"one").expect("it is there").inode;
    for number in NAMES..2 * NAMES {
        let _ = volume
            .link(file, directory, name(number).as_bytes())
            .expect("room");
    }
    volume.unlink(directory, b"one").expect("it is there");
    volume.forget(file, 1);
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// A search in hashes that are out of order would pass by names, which could then be created twice.
#[test]
fn an_index_that_is_out_of_order_hides_no_names() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "^metadata_csum"]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir("/d").expect("room");
    let name = |number: u32| format!("/d/{number:030}");
    for number in 0..300 {
        paths.write(name(number), b"").expect("room");
    }
    let directory = inode(&volume, "/d");
    let extents = volume.extents(directory, 0, 1).expect("sound");
    let root = usize::try_from(extents[0].physical).expect("a small image");
    volume.close().expect("a clean close");
    image.change(|bytes| {
        let count = u16::from_le_bytes([bytes[root + 0x22], bytes[root + 0x23]]);
        assert!(count > 4, "{count} entries");
        let middle = root + 0x20 + usize::from(count / 2) * 8;
        bytes[middle..middle + 4].copy_from_slice(&2_u32.to_le_bytes());
    });
    let volume = image.open();
    let mut listed = 0;
    let listing = volume.read_directory(directory, 0, &mut |_| {
        listed += 1;
        true
    });
    listing.expect("every leaf can be read");
    assert_eq!(listed, 302);
    for number in 0..300 {
        let path = name(number);
        volume.paths().attributes(&path).expect("it is there");
        volume.paths().create_dir(&path).expect_err("it is there");
    }
    volume
        .paths()
        .remove_dir_all("/d")
        .expect("it can be emptied");
}
