//! A call of fallocate that finds no space takes back what it got: the file and the volume are as
//! they were, and e2fsck is content.

mod images;

use images::Image;
use pext4_fs::{AllocateMode, InodeNumber, Refusal, Volume};

const BLOCK: usize = 4096;

/// Fills a volume with files of one block and removes every second one, so that no two free blocks
/// are neighbours.
fn fragment(volume: &Volume) {
    volume.paths().create_dir("/small").expect("room");
    let name = |number: u32| format!("/small/{number}");
    let mut count = 0;
    while volume.paths().write(name(count), [1; BLOCK]).is_ok() {
        count += 1;
    }
    for number in (0..count).step_by(2) {
        volume
            .paths()
            .remove_file(name(number))
            .expect("it is there");
    }
    volume.sync().expect("a sound device");
}

/// The size, the sectors, and the free blocks.
fn state(volume: &Volume, inode: InodeNumber) -> (u64, u64, u64) {
    volume.sync().expect("a sound device");
    let attributes = volume.attributes(inode).expect("it is there");
    let free = volume.statfs().free_blocks;
    (attributes.size, attributes.sectors, free)
}

#[test]
fn a_call_without_space_leaves_no_blocks_behind_the_size() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "20000"]) else {
        return;
    };
    let volume = image.open();
    fragment(&volume);
    let content = vec![7; 7 * BLOCK];
    volume.paths().write("/file", &content).expect("room");
    let inode = volume.paths().metadata("/file").expect("it is there").inode;
    let before = state(&volume, inode);
    for mode in [
        AllocateMode::Extend,
        AllocateMode::ZeroRange { keep_size: false },
    ] {
        let error = volume
            .allocate(inode, mode, 5 * BLOCK as u64, 100 << 20)
            .expect_err("there is less");
        assert!(error.is(Refusal::NoSpace), "{error}");
        let (size, sectors, free) = state(&volume, inode);
        // Zeroing keeps what it can of the blocks inside the file.
        let within = mode == AllocateMode::Extend;
        assert_eq!(size, before.0, "{mode:?}");
        assert!(
            !within || sectors == before.1,
            "{mode:?}: {sectors}, {before:?}"
        );
        assert!(!within || free == before.2, "{mode:?}: {free}, {before:?}");
        assert!(sectors <= before.1 && free >= before.2, "{mode:?}");
        if within {
            assert_eq!(volume.paths().read("/file").expect("sound"), content);
        }
    }
    volume.close().expect("a clean close");
    image.assert_clean();
}

/// Each run of blocks is committed with the size that shows it.
#[test]
fn the_size_grows_with_the_blocks() {
    let Some(image) = Image::make(&["-b", "4096", "-N", "20000"]) else {
        return;
    };
    let volume = image.open();
    fragment(&volume);
    volume.paths().write("/file", b"").expect("room");
    let inode = volume.paths().metadata("/file").expect("it is there").inode;
    let free = volume.statfs().free_blocks;
    let wanted = free / 2 * BLOCK as u64 + 5;
    volume
        .allocate(inode, AllocateMode::Extend, 0, wanted)
        .expect("there is more");
    assert_eq!(volume.attributes(inode).expect("there").size, wanted);
    volume.close().expect("a clean close");
    image.assert_clean();
}
