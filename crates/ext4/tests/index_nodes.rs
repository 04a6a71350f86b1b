//! Nodes of a directory's index as others write them.

mod images;

use images::Image;
use pext4_fs::{CreateAttributes, InodeNumber};

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
