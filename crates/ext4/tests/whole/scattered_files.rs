//! Fragmented files: deep extent trees on whole images, grown, punched, truncated, and checked by
//! e2fsck.

use fastrand::Rng;
use pext4_fs::{AllocateMode, InodeNumber, MappedRange, SetAttributes, Volume};

use crate::images::Image;

const KINDS: [&[&str]; 2] = [
    &["-b", "1024"],
    &["-b", "1024", "-O", "^has_journal,^metadata_csum"],
];
const BLOCK: u64 = 1024;

fn make_file(volume: &Volume) -> InodeNumber {
    volume.paths().write("/file", b"").expect("a file");
    volume.paths().attributes("/file").expect("the file").inode
}

/// The content of a block, which identifies its position in the file.
fn content(block: u64) -> Vec<u8> {
    block
        .to_le_bytes()
        .repeat(usize::try_from(BLOCK / 8).expect("small"))
}

fn check(volume: &Volume, inode: InodeNumber, expected: &[bool]) {
    let mut bytes = vec![1; usize::try_from(BLOCK).expect("small")];
    for (block, &written) in (0..).zip(expected) {
        volume
            .read(inode, block * BLOCK, &mut bytes)
            .expect("a read");
        let wanted = if written {
            content(block)
        } else {
            vec![0; bytes.len()]
        };
        assert!(bytes == wanted, "block {block}");
    }
}

/// Writes every second block, so that no two extents can merge.
#[test]
fn a_comb_survives_growing_and_cutting() {
    for arguments in KINDS {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        let inode = make_file(&volume);
        let mut expected = vec![false; 11_999];
        for block in (0..11_999).step_by(2) {
            volume
                .write(inode, block * BLOCK, &content(block))
                .expect("a write");
            expected[usize::try_from(block).expect("small")] = true;
        }
        check(&volume, inode, &expected);
        volume.close().expect("a clean close");
        image.assert_clean();

        let volume = image.open();
        check(&volume, inode, &expected);
        let size = Some(5001 * BLOCK);
        volume
            .set_attributes(
                inode,
                &SetAttributes {
                    size,
                    ..Default::default()
                },
            )
            .expect("a cut");
        expected.truncate(5001);
        volume
            .allocate(inode, AllocateMode::PunchHole, 1000 * BLOCK, 3000 * BLOCK)
            .expect("a hole");
        expected[1000..4000].fill(false);
        check(&volume, inode, &expected);
        volume.close().expect("a clean close");
        image.assert_clean();

        let volume = image.open();
        check(&volume, inode, &expected);
        volume.paths().remove_file("/file").expect("a file");
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

#[test]
fn a_preallocation_is_written_in_any_order() {
    for (seed, arguments) in (1..).zip(KINDS) {
        println!("seed {seed}");
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let mut random = Rng::with_seed(seed);
        let volume = image.open();
        let inode = make_file(&volume);
        let blocks = 4000;
        volume
            .allocate(inode, AllocateMode::Extend, 0, blocks * BLOCK)
            .expect("space");
        let mut expected = vec![false; usize::try_from(blocks).expect("small")];
        for _ in 0..1500 {
            let block = random.u64(..blocks);
            volume
                .write(inode, block * BLOCK, &content(block))
                .expect("a write");
            expected[usize::try_from(block).expect("small")] = true;
        }
        for _ in 0..100 {
            let (block, length) = (random.u64(..blocks), 1 + random.u64(..30));
            let end = (block + length).min(blocks);
            volume
                .allocate(
                    inode,
                    AllocateMode::PunchHole,
                    block * BLOCK,
                    (end - block) * BLOCK,
                )
                .expect("a hole");
            let range =
                usize::try_from(block).expect("small")..usize::try_from(end).expect("small");
            expected[range].fill(false);
        }
        check(&volume, inode, &expected);
        volume.close().expect("a clean close");
        image.assert_clean();
        check(&image.open(), inode, &expected);
    }
}

/// As the kernel writes the pages of a file: in requests that change places with their neighbours.
#[test]
fn parts_that_come_in_another_order_become_one_run() {
    const PART: u64 = 256 << 10;
    for arguments in [["-b", "1024"], ["-b", "4096"]] {
        let Some(image) = Image::make(&arguments) else {
            return;
        };
        let volume = image.open();
        let inode = make_file(&volume);
        for part in [0, 2, 1, 4, 3, 6, 5, 8, 9, 7] {
            let bytes = vec![7; usize::try_from(PART).expect("small")];
            volume.write(inode, part * PART, &bytes).expect("a write");
        }
        let ranges = volume.extents(inode, 0, 100).expect("a map");
        let is_break =
            |pair: &&[MappedRange]| pair[0].physical + pair[0].length != pair[1].physical;
        let breaks = ranges.windows(2).filter(is_break).count();
        assert_eq!(breaks, 0, "{arguments:?}: {ranges:?}");
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}

/// Extents that needed a node, and have become one since, need none.
#[test]
fn a_file_whose_extents_have_merged_has_no_node() {
    for arguments in KINDS {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        let inode = make_file(&volume);
        let allocated = volume.allocate(inode, AllocateMode::Extend, 0, 64 * BLOCK);
        allocated.expect("room");
        let sectors = || volume.attributes(inode).expect("there").sectors;
        for (first, expected) in [(0, 130), (1, 128)] {
            for block in (first..64).step_by(2) {
                let wrote = volume.write(inode, block * BLOCK, &content(block));
                wrote.expect("a write");
            }
            assert_eq!(sectors(), expected, "from block {first}");
        }
        check(&volume, inode, &[true; 64]);
        volume.close().expect("a clean close");
        image.assert_clean();
    }
}
