//! Files whose map leads to the same blocks again and again: what is read of them has an end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};
use pext4_edit::{GetOptions, Reader};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};

const BLOCK: usize = 1024;

/// Three levels of pointers, of which every other one leads to the next level's only block, and the
/// last to a block of content: millions of runs of one block.
#[test]
fn a_map_of_runs_without_end_is_damage() {
    let folder = scratch();
    let image = folder.path().join("image");
    let device = Format::new(16 << 20, BLOCK as u32, Features::Ext3).device();
    device
        .expect("mke2fs makes it")
        .save(&image)
        .expect("there is room");
    let places = {
        let device = FileDevice::open(&image, Access::ReadWrite, Duration::ZERO);
        let device = Arc::new(device.expect("the image"));
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let create = |name: &[u8]| {
            let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
            made.expect("room").inode
        };
        create(b"file");
        let nodes = create(b"nodes");
        let fill = |piece: usize, word: u32| {
            let words: Vec<u8> = [word, 0]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let bytes = words.repeat(BLOCK / words.len());
            let written = volume.write(nodes, (piece * BLOCK) as u64, &bytes);
            assert_eq!(written.expect("room"), BLOCK);
        };
        (0..4).for_each(|piece| fill(piece, 7));
        let ranges = volume.extents(nodes, 0, 4).expect("a sound map");
        let places: Vec<u64> = ranges
            .iter()
            .flat_map(|range| (range.physical..range.physical + range.length).step_by(BLOCK))
            .map(|byte| byte / BLOCK as u64)
            .collect();
        for (piece, next) in places[1..].iter().enumerate() {
            fill(piece, u32::try_from(*next).expect("a small image"));
        }
        volume.close().expect("the device works");
        places
    };
    let requests = [
        format!("set_inode_field file block[TIND] {}", places[0]),
        format!("set_inode_field file block[DIND] {}", places[1]),
        format!("set_inode_field file block[IND] {}", places[2]),
        format!("set_inode_field file size {}", 1u64 << 34),
    ];
    debugfs::command(&image, &requests).expect("debugfs is beside mke2fs");

    let reader = Reader::open(&image).expect("a sound superblock");
    let exported = reader.export("/", &mut io::sink()).map(drop);
    let told = exported.expect_err("no sound file is so long").to_string();
    assert!(told.contains("/file"), "{told}");
    assert!(
        told.contains("leads to more blocks than the file system has"),
        "{told}"
    );
    let copied = reader.get("/file", folder.path().join("copy"), &GetOptions::default());
    let told = copied.map(drop).expect_err("likewise").to_string();
    assert!(
        told.contains("leads to more blocks than the file system has"),
        "{told}"
    );
}
