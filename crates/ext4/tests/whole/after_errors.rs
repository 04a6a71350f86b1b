//! State after errors: an operation that was done returns success, even if its cleanup failed.

use pext4_fs::{InodeNumber, RenameMode, SetXattrMode, Volume};

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// An image with `errors=continue` and a file `/old`, whose map of twenty extents takes a block.
fn image_with_pieces() -> Option<Image> {
    let image = Image::make(&["-b", "1024", "-O", "^metadata_csum", "-e", "continue"])?;
    let volume = image.open();
    volume.paths().write("/old", b"").expect("a file");
    let old = inode(&volume, "/old");
    for piece in 0..20 {
        volume
            .write(old, piece * 4096, &[7; 1024])
            .expect("a piece");
    }
    volume.paths().write("/new", b"new").expect("a file");
    volume.close().expect("it closes");
    Some(image)
}

#[test]
fn a_rename_over_a_damaged_file_is_done() {
    let Some(image) = image_with_pieces() else {
        return;
    };
    let stat = image.debugfs("stat old");
    let leaf: usize = stat
        .split("(ETB0):")
        .nth(1)
        .and_then(|rest| rest.split([',', '\n']).next()?.trim().parse().ok())
        .expect("a block of the map");
    let mut bytes = std::fs::read(&image.path).expect("the image");
    bytes[leaf * 1024..][..2].fill(0);
    std::fs::write(&image.path, &bytes).expect("the image");
    let volume = image.open();
    let new = inode(&volume, "/new");
    volume
        .rename(ROOT, b"new", ROOT, b"old", RenameMode::Replace)
        .expect("the names are as they should be");
    assert_eq!(inode(&volume, "/old"), new);
    assert!(!volume.is_read_only(), "the image says so");
}

#[test]
fn an_attribute_is_set_though_its_old_value_cannot_end() {
    let features = "ea_inode,^orphan_file,^metadata_csum";
    let Some(image) = Image::make(&["-b", "1024", "-e", "continue", "-O", features]) else {
        return;
    };
    let volume = image.open();
    volume.paths().write("/owner", b"").expect("a file");
    let owner = inode(&volume, "/owner");
    let set = |volume: &Volume, byte: u8| {
        volume.set_xattr(owner, b"user.large", &[byte; 9000], SetXattrMode::Any)
    };
    set(&volume, 1).expect("an attribute");
    volume.close().expect("it closes");
    assert!(image.debugfs("stat <13>").contains("Size: 9000"));
    // Its blocks are outside the file system.
    image.debugfs_write("sif <13> block[5] 0x7fffff");
    let volume = image.open();
    assert_eq!(inode(&volume, "/owner"), owner);
    set(&volume, 2).expect("it has the new value");
    let value = volume.xattr(owner, b"user.large").expect("it is there");
    assert_eq!(value, [2; 9000]);
}
