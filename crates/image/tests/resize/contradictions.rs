//! Images whose metadata contradicts itself, without a checksum that would tell: a resize that
//! believes it would overwrite what is in use, so it must refuse, and write nothing.

use pext4_block::{Device, RamDevice};
use pext4_image::resize::{Options, Plan, Resize, Target};

use super::rig::{MIB, image, open, scattered_image, scratch, source, tools};

const BLOCK: u64 = 1024;
/// Nothing has a checksum, so that any lie is well-formed.
const OPTIONS: &str = "-b 1024 -O ^metadata_csum,^uninit_bg,^64bit";

/// An image as it is, whose structures are read and changed by hand.
struct Spoilt(RamDevice);

impl Spoilt {
    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_at(offset, &mut bytes).expect("it lies within");
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.write_at(offset, bytes).expect("it lies within");
    }

    /// The offset of a field of a descriptor.
    fn field(group: u64, field: u64) -> u64 {
        2 * BLOCK + 32 * group + field
    }

    /// The number of the block bitmap (0), inode bitmap (4) or inode table (8) of a group.
    fn place(&self, group: u64, field: u64) -> u64 {
        let bytes = self.bytes(Self::field(group, field), 4);
        u32::from_le_bytes(bytes.try_into().expect("four bytes")).into()
    }

    fn set_place(&self, group: u64, field: u64, block: u64) {
        let block = u32::try_from(block).expect("a small image");
        self.write(Self::field(group, field), &block.to_le_bytes());
    }

    /// Adds to the count of free blocks (12) or inodes (14) of a group.
    fn add_free(&self, group: u64, field: u64, more: i32) {
        let at = Self::field(group, field);
        let bytes = self.bytes(at, 2);
        let free = i32::from(u16::from_le_bytes(bytes.try_into().expect("two bytes"))) + more;
        let free = u16::try_from(free).expect("a small image");
        self.write(at, &free.to_le_bytes());
    }

    /// Clears a bit of a bitmap, which must be set.
    fn clear(&self, bitmap: u64, bit: u64) {
        let at = bitmap * BLOCK + bit / 8;
        let byte = self.bytes(at, 1)[0];
        let mask = 1 << (bit % 8);
        assert!(byte & mask != 0, "bit {bit} is set");
        self.write(at, &[byte & !mask]);
    }
}

/// One way to contradict oneself: what it is, what the refusal says, and how to do it.
type Lie = (&'static str, &'static str, fn(&Spoilt));

/// Those of the only group of an image.
const BLOCKS: [Lie; 5] = [
    (
        "a block bitmap in the blocks reserved for descriptors",
        "its block bitmap overlaps the superblock and descriptors of group 0",
        |image| image.set_place(0, 0, 17),
    ),
    ("an empty block bitmap", "is free", |image| {
        image.write(image.place(0, 0) * BLOCK, &[0; 1024]);
    }),
    (
        "a free block of an inode table",
        "is free, which holds metadata",
        |image| {
            // Block 1 has the first bit.
            image.clear(image.place(0, 0), image.place(0, 8) + 3 - 1);
            image.add_free(0, 12, 1);
        },
    ),
    (
        "a free copy of the descriptors",
        "says that block 2 is free, which holds metadata",
        |image| {
            image.clear(image.place(0, 0), 2 - 1);
            image.add_free(0, 12, 1);
        },
    ),
    (
        "a wrong count of free blocks",
        "free blocks, the group descriptor says",
        |image| image.add_free(0, 12, 100),
    ),
];
const INODES: [Lie; 2] = [
    (
        "an inode that is used and counted, and free in the bitmap",
        "free inodes, the group descriptor says",
        |image| image.clear(image.place(0, 4), 13),
    ),
    (
        "a root that is free",
        "says that inode 2 is free, which is reserved",
        |image| {
            image.clear(image.place(0, 4), 1);
            image.add_free(0, 14, 1);
        },
    ),
];

fn assert_refused(device: &RamDevice, target: Target, lie: &str, says: &str) {
    let told = match Plan::make(device, target) {
        Ok(_) => panic!("{lie}, {target:?}: no refusal"),
        Err(error) => error.to_string(),
    };
    for part in [says, "group ", "`e2fsck -f`"] {
        assert!(told.contains(part), "{lie}, {target:?}: {told}");
    }
}

#[test]
fn a_bitmap_that_contradicts_what_is_known_is_not_believed() {
    if !tools() {
        return;
    }
    let (shrinks, grows) = (
        [Target::Less(2 * MIB), Target::Smallest],
        [Target::More(MIB)],
    );
    for kind in ["-t ext2", "-t ext4"] {
        let folder = scratch();
        let tree = source(folder.path(), 64 << 10);
        let path = image(
            folder.path(),
            &format!("{kind} {OPTIONS} -N 512"),
            8 * MIB - BLOCK,
            &tree,
        );
        let base = RamDevice::load(&path).expect("an image");
        for target in shrinks.into_iter().chain(grows) {
            assert!(Plan::make(&base.fork(), target).is_ok(), "{target:?}");
        }
        for (lie, says, spoil) in BLOCKS {
            let spoilt = Spoilt(base.fork());
            spoil(&spoilt);
            // Growing changes the bitmap of the group that was the last, which is this one.
            for target in shrinks.into_iter().chain(grows) {
                assert_refused(&spoilt.0.fork(), target, lie, says);
            }
        }
        for (lie, says, spoil) in INODES {
            let spoilt = Spoilt(base.fork());
            spoil(&spoilt);
            for target in shrinks {
                assert_refused(&spoilt.0.fork(), target, lie, says);
            }
        }
    }
}

/// What is moved into the log would be overwritten by the next transaction.
#[test]
fn a_journal_whose_blocks_are_free_is_not_overwritten() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let options = format!("-t ext4 {OPTIONS} -N 512");
    let path = image(folder.path(), &options, 8 * MIB - BLOCK, &tree);
    let bytes = std::fs::read(&path).expect("an image");
    let journal = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = bytes
        .chunks(1024)
        .position(|block| block.starts_with(&journal));
    let block = block.expect("a journal") as u64 + 5;
    let spoilt = Spoilt(RamDevice::load(&path).expect("an image"));
    spoilt.clear(spoilt.place(0, 0), block - 1);
    spoilt.add_free(0, 12, 1);
    for target in [Target::Less(2 * MIB), Target::Smallest, Target::More(MIB)] {
        let says = format!("says that block {block} is free, which holds metadata");
        assert_refused(
            &spoilt.0.fork(),
            target,
            "a free block of the journal",
            &says,
        );
    }
}

#[test]
fn structures_of_different_groups_that_overlap_are_refused() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let options = format!("-t ext4 {OPTIONS} -g 2048 -N 640");
    let path = scattered_image(folder.path(), &options, 20 * MIB, &tree);
    let base = RamDevice::load(&path).expect("an image");
    for target in [Target::Less(4 * MIB), Target::More(4 * MIB)] {
        assert!(Plan::make(&base.fork(), target).is_ok(), "{target:?}");
        let spoilt = Spoilt(base.fork());
        spoilt.set_place(2, 0, spoilt.place(0, 8) + 1);
        let lie = "a block bitmap in the inode table of another group";
        let says = "its block bitmap overlaps the inode table of group 0";
        assert_refused(&spoilt.0, target, lie, says);
        let spoilt = Spoilt(base.fork());
        // The descriptor copies of group 1 are in its first blocks.
        spoilt.set_place(2, 4, 2049 + 1);
        let lie = "an inode bitmap in descriptor copies of another group";
        let says = "its inode bitmap overlaps the superblock and descriptors of group 1";
        assert_refused(&spoilt.0, target, lie, says);
    }
}

#[test]
fn a_refused_image_is_not_written() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 64 << 10);
    let path = image(
        folder.path(),
        &format!("-t ext2 {OPTIONS} -N 512"),
        8 * MIB - BLOCK,
        &tree,
    );
    let spoilt = Spoilt(RamDevice::load(&path).expect("an image"));
    spoilt.set_place(0, 0, 17);
    spoilt.0.save(&path).expect("there is room");
    let before = std::fs::read(&path).expect("an image");
    for target in [Target::Less(2 * MIB), Target::Smallest, Target::More(MIB)] {
        let options = Options {
            in_place: true,
            ..Options::default()
        };
        assert!(Resize::prepare(open(&path), target, options).is_err());
        assert!(std::fs::read(&path).expect("an image") == before);
    }
}

/// The resize is refused, saying this, and no byte changes.
fn refused(path: &std::path::Path, target: Target, says: &str) {
    let before = std::fs::read(path).expect("an image");
    let told = Resize::prepare(open(path), target, Options::default()).expect_err(says);
    assert!(told.to_string().contains(says), "{told}");
    assert!(std::fs::read(path).expect("an image") == before, "{says}");
}

/// A bad block inside metadata that a shrink releases would become free.
#[test]
fn a_file_system_with_bad_blocks_is_not_made_smaller() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1);
    let path = image(folder.path(), "-b 1024 -O ^has_journal", 20 * MIB, &tree);
    let list = folder.path().join("bad");
    std::fs::write(&list, "15000\n").expect("there is room");
    let mut e2fsck = std::process::Command::new("e2fsck");
    let marked = e2fsck.arg("-fy").arg("-l").arg(&list).arg(&path).output();
    assert!(marked.expect("it runs").status.code() <= Some(1));
    refused(&path, Target::Bytes(18 * MIB), "bad blocks");
    refused(&path, Target::Smallest, "bad blocks");
}

#[test]
fn features_that_exclude_each_other_and_a_resize_inode_that_is_none_are_refused() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1);
    let path = image(folder.path(), OPTIONS, 20 * MIB, &tree);
    let device = Spoilt(RamDevice::load(&path).expect("an image"));
    let table = device.place(0, 8);
    let (features, slot) = (1024 + 0x60, table * BLOCK + 6 * 256);
    for (at, bytes, says) in [
        (
            features,
            vec![device.bytes(features, 1)[0] | 0x10],
            "meta_bg",
        ),
        (slot, vec![0; 128], "resize inode"),
    ] {
        let before = device.bytes(at, bytes.len());
        device.write(at, &bytes);
        device.0.save(&path).expect("there is room");
        refused(&path, Target::More(20 * MIB), says);
        refused(&path, Target::Less(MIB), says);
        device.write(at, &before);
    }
}

/// The feature forbids writing, to a resize as to everything else.
#[test]
fn a_file_system_that_must_not_be_written_keeps_its_size() {
    if !tools() {
        return;
    }
    let folder = scratch();
    let tree = source(folder.path(), 1);
    let path = image(folder.path(), OPTIONS, 20 * MIB, &tree);
    let mut tune2fs = std::process::Command::new("tune2fs");
    let marked = tune2fs.args(["-O", "read-only"]).arg(&path).output();
    assert!(marked.expect("it runs").status.success());
    for target in [Target::More(20 * MIB), Target::Less(MIB), Target::Smallest] {
        refused(&path, target, "read-only");
    }
}
