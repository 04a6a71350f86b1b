//! Random corruption: the checker may report anything, but it always ends. The seed of a failed
//! round is printed.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use pext4_block::{Device, RamDevice};
use pext4_image::check::{self, Kind, Options};
use pext4_ondisk::extent::Index;
use pext4_sync::atomic::Ordering;

use super::bases::{Base, base};
use super::image::{Image, check_device, have_tools, make, names};

/// Where images with 1 KiB blocks contain metadata: the superblock, descriptors, bitmaps, inodes,
/// directories, nodes, attributes.
fn spots(image: &mut Image) -> Vec<Range<usize>> {
    let mut spots = vec![
        1024..2048,
        image.descriptor_range(0),
        image.descriptor_range(1),
    ];
    for group in 0..2 {
        let descriptor = image.descriptor(group);
        for block in [descriptor.block_bitmap, descriptor.inode_bitmap] {
            let start = usize::try_from(block.get() * 1024).expect("small");
            spots.push(start..start + 1024);
        }
    }
    for inode in 1..40 {
        spots.push(image.slot_range(inode));
    }
    for path in ["/", "/dir", "/many", "/sparse"] {
        let inode = image.find(path);
        for block in image.blocks(inode).into_iter().take(20) {
            let start = usize::try_from(block * 1024).expect("small");
            spots.push(start..start + 1024);
        }
    }
    let large = image.find("/large");
    let attributes = image.inode(large).attribute_block.get();
    if attributes != 0 {
        let start = usize::try_from(attributes * 1024).expect("small");
        spots.push(start..start + 1024);
    }
    spots
}

#[test]
fn mutations_never_panic_or_hang() {
    if !have_tools() {
        return;
    }
    let features = [
        "-O ^metadata_csum",
        "-O inline_data",
        "-O ^extents,^64bit,^metadata_csum",
    ];
    for (round, features) in features.into_iter().enumerate() {
        let mut words = vec!["-b", "1024", "-N", "1024"];
        words.extend(features.split(' '));
        let Some(mut image) = make(16 << 20, &words) else {
            continue;
        };
        if round == 0 {
            image.e2fsck_repairs(&["-fyD"]);
        }
        let spots = spots(&mut image);
        let whole = image.device();
        for seed in 0..120 {
            let mut random = Rng::with_seed(seed + 1000 * round as u64);
            let device = whole.fork();
            for _ in 0..=random.u64(..6) {
                let spot = &spots[random.u64(..spots.len() as u64) as usize];
                let at = spot.start + random.u64(..spot.len() as u64 - 4) as usize / 2 * 2;
                let width = [1, 2, 4][random.u64(..3) as usize];
                let bytes = match random.u64(..4) {
                    0 => [0; 8],
                    1 => [0xFF; 8],
                    2 => random.u64(..16_384).to_le_bytes(),
                    _ => random.u64(..).to_le_bytes(),
                };
                device.write_at(at as u64, &bytes[..width]).expect("within");
            }
            // This output identifies the seed of a panic.
            eprintln!("{features}, seed {seed}");
            let _ = check_device(Arc::new(device), 1);
        }
    }
}

#[test]
fn bytes_without_meaning_are_no_file_system() {
    let mut random = Rng::with_seed(5);
    for size in [0, 1, 1024, 2047, 2048, 100_000] {
        let device = RamDevice::new(size);
        let bytes: Vec<u8> = (0..size).map(|_| random.u64(..).to_le_bytes()[0]).collect();
        device.write_at(0, &bytes).expect("it fits");
        let error = check_device(Arc::new(device), 1).expect_err("it is none");
        assert!(matches!(error, check::Error::NoFileSystem(_)), "{error}");
    }
}

/// A device with an unreadable range.
struct Scratched {
    device: Arc<RamDevice>,
    lost: Range<u64>,
}

impl Device for Scratched {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset + into.len() as u64;
        if offset < self.lost.end && self.lost.start < end {
            return Err(io::Error::other("scratched"));
        }
        self.device.read_at(offset, into)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a checker does not write")
    }

    fn flush(&self) -> io::Result<()> {
        panic!("a checker does not write")
    }
}

/// What follows from blocks and inodes in use, which are not known if a table is not read whole.
pub const FROM_USE: [Kind; 10] = [
    Kind::EntryUnused,
    Kind::BlockMarkedFree,
    Kind::BlockMarkedUsed,
    Kind::InodeMarkedFree,
    Kind::InodeMarkedUsed,
    Kind::GroupFreeBlocks,
    Kind::GroupFreeInodes,
    Kind::GroupDirectories,
    Kind::FreeBlocksTotal,
    Kind::FreeInodesTotal,
];

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_checked() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make(16 << 20, &["-b", "1024"]) else {
        return;
    };
    let descriptor = image.descriptor(0);
    let many = image.find("/many");
    let large = image.find("/large");
    let sparse = image.find("/sparse");
    let node = Index::decode(&image.inode(sparse).block[12..].as_chunks().0[0]).child;
    let places = [
        descriptor.inode_table.get(),
        descriptor.inode_table.get() + 3,
        node.get(),
        descriptor.block_bitmap.get(),
        descriptor.inode_bitmap.get(),
        image.blocks(many)[3],
        image.inode(large).attribute_block.get(),
        8193,
        2,
    ];
    for block in places.into_iter().filter(|&block| block != 0) {
        let device = Scratched {
            device: image.device(),
            lost: block * 1024..(block + 1) * 1024,
        };
        let report = check_device(Arc::new(device), 2).expect("the rest is there");
        let found: BTreeSet<&str> = names(&report).into_iter().collect();
        assert!(
            found.contains(Kind::Unreadable.name()),
            "{block}: {found:?}"
        );
        assert!(!report.is_complete && !report.is_clean());
        let consequence = FROM_USE.iter().find(|kind| found.contains(kind.name()));
        assert_eq!(consequence, None, "{block}");
        // The descriptors have a backup.
        assert!(block != 2 || found.len() == 1, "{found:?}");
    }
}

/// What owners take is not known.
#[test]
fn quotas_are_not_compared_with_inodes_that_cannot_be_read() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = base(Base::Quota) else {
        return;
    };
    let small = image.find("/small");
    let block = image.slot_range(small).start as u64 / 1024;
    let device = Scratched {
        device: image.device(),
        lost: block * 1024..(block + 1) * 1024,
    };
    let report = check_device(Arc::new(device), 2).expect("the rest is there");
    let found = names(&report);
    assert!(found.contains(&Kind::Unreadable.name()), "{found:?}");
    assert!(!found.contains(&Kind::QuotaUsage.name()), "{found:?}");
}

#[test]
fn findings_do_not_depend_on_threads() {
    if !have_tools() {
        return;
    }
    let Some(mut image) = make(16 << 20, &["-b", "1024"]) else {
        return;
    };
    let many = image.find("/many");
    let blocks = image.blocks(many);
    image.block(blocks[2])[40] ^= 0xFF;
    let (small, large) = (image.find("/small"), image.find("/large"));
    let stolen = image.inode(large).block;
    image.edit_inode(small, |inode| inode.block = stolen);
    let one = check_device(image.device(), 1).expect("an ext4");
    let many = check_device(image.device(), 7).expect("an ext4");
    assert!(one.findings.len() > 2, "{:?}", one.findings);
    assert_eq!(one.findings, many.findings);
    let paths: Vec<_> = one
        .findings
        .iter()
        .filter_map(|one| one.place.path.as_deref())
        .collect();
    assert!(paths.contains(&b"/many".as_slice()), "{paths:?}");
}

#[test]
fn a_cancel_ends_it() {
    let device = RamDevice::new(16 << 20);
    let made = pext4_image::mkfs::mkfs(&device, &pext4_image::mkfs::Options::default());
    made.expect("a plain image");
    let options = Options::default();
    options.cancel.store(true, Ordering::Relaxed);
    let ended = check::check(Arc::new(device), &options);
    assert!(matches!(ended, Err(check::Error::Interrupted)));
}
