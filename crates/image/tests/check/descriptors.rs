//! Group descriptors that are lost: what a backup saves, and what follows where none does.

use pext4_image::check::{Kind, Report};
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::hostile::FROM_USE;
use super::image::{Image, make, names};

/// Blocks of 4 KiB and two groups: block 0 lies in the file system, and no metadata can.
const OPTIONS: [&str; 4] = ["-b", "4096", "-g", "8192"];
const SIZE: u64 = 40 << 20;

fn checked(image: &Image) -> Report {
    image.check().expect("it can be checked")
}

fn count(report: &Report, kind: Kind) -> u64 {
    let found = report.counts.iter().find(|one| one.0 == kind);
    found.map_or(0, |one| one.1)
}

/// All files are found, all passes ran, and nothing is wrong but for one finding of this kind in
/// each of so many groups.
fn is_saved(image: &Image, sound: &Report, kind: Kind, groups: u64, what: &str) {
    let report = checked(image);
    assert_eq!(
        names(&report),
        [kind.name()],
        "{what}: {:?}",
        report.findings
    );
    assert_eq!(count(&report, kind), groups, "{what}");
    assert!(report.is_complete && !report.is_clean(), "{what}");
    let files = |report: &Report| (report.files, report.directories, report.used_blocks);
    assert_eq!(files(&report), files(sound), "{what}");
    let text = &report.findings[0].text;
    assert!(text.contains("checked by the backup in block"), "{text}");
}

#[test]
fn a_lost_block_of_descriptors_is_replaced_by_its_backup() {
    let cases = [
        ("-b 4096 -g 8192", Kind::DescriptorChecksum),
        (
            "-b 4096 -g 8192 -O ^metadata_csum,uninit_bg",
            Kind::DescriptorChecksum,
        ),
        ("-b 4096 -g 8192 -O ^metadata_csum", Kind::DescriptorPlace),
        ("-b 4096 -g 8192 -O sparse_super2", Kind::DescriptorChecksum),
        ("-b 1024", Kind::DescriptorChecksum),
        ("-b 1024 -O ^flex_bg,^metadata_csum", Kind::DescriptorPlace),
        ("-b 1024 -O meta_bg,^resize_inode", Kind::DescriptorChecksum),
        (
            "-b 1024 -O bigalloc -C 4096 -g 8192",
            Kind::DescriptorChecksum,
        ),
    ];
    for (options, kind) in cases {
        let words: Vec<&str> = options.split(' ').collect();
        let Some(mut image) = make(SIZE, &words) else {
            return;
        };
        let sound = checked(&image);
        assert!(sound.is_clean(), "{options}: {:?}", sound.findings);
        let geometry = image.geometry();
        assert!(geometry.group_count > 1, "{options}: no group has a backup");
        assert_eq!(geometry.descriptor_blocks, 1, "{options}");
        image.block(geometry.descriptor_block(0).get()).fill(0);
        is_saved(&image, &sound, kind, geometry.group_count.into(), options);
    }
}

#[test]
fn one_lost_descriptor_is_one_finding() {
    let Some(sound) = make(SIZE, &OPTIONS) else {
        return;
    };
    let report = checked(&sound);
    for group in [0, 1] {
        let mut image = sound.clone();
        let range = image.descriptor_range(group);
        image.bytes[range].fill(0);
        assert_ne!(image.e2fsck().0, 0);
        is_saved(&image, &report, Kind::DescriptorChecksum, 1, "zeroes");
        // The checksum is right, and the table lies outside.
        let mut image = sound.clone();
        image.edit_descriptor(group, |descriptor| {
            descriptor.inode_table = BlockNumber(0x7FFF_FFFF);
        });
        assert_ne!(image.e2fsck().0, 0);
        is_saved(&image, &report, Kind::DescriptorPlace, 1, "outside");
    }
}

/// Superblocks, descriptors and their copies cannot hold anything else.
#[test]
fn no_metadata_lies_on_superblocks_and_descriptors() {
    let Some(sound) = make(SIZE, &OPTIONS) else {
        return;
    };
    let report = checked(&sound);
    let geometry = sound.geometry();
    assert!(geometry.reserved_gdt_blocks > 0);
    for block in [0, 1, 2, 8192, 8193, 8194] {
        let mut image = sound.clone();
        image.edit_descriptor(1, |descriptor| descriptor.block_bitmap = BlockNumber(block));
        is_saved(&image, &report, Kind::DescriptorPlace, 1, "a bitmap");
        // The table ends on them.
        let length = u64::from(geometry.inode_table_blocks);
        let Some(start) = (block + 1).checked_sub(length) else {
            continue;
        };
        let mut image = sound.clone();
        image.edit_descriptor(1, |descriptor| descriptor.inode_table = BlockNumber(start));
        is_saved(&image, &report, Kind::DescriptorPlace, 1, "a table");
    }
}

/// If the superblock's count of reserved blocks is wrong, all bitmaps seem to lie on them.
#[test]
fn without_a_sound_backup_metadata_on_reserved_blocks_is_followed() {
    let Some(mut image) = make(SIZE, &OPTIONS) else {
        return;
    };
    let sound = checked(&image);
    image.edit_superblock(|superblock| superblock.reserved_gdt_blocks += 4);
    let report = checked(&image);
    assert!(names(&report).contains(&Kind::MetadataOverlap.name()));
    assert_eq!(count(&report, Kind::DescriptorPlace), 0);
    assert_eq!(report.files, sound.files);
    assert!(report.is_complete);
}

/// A mount does not write backups.
#[test]
fn counts_and_marks_of_an_old_backup_are_not_used() {
    // So few inodes that the second group has some of the files.
    let Some(mut image) = make(SIZE, &["-b", "4096", "-g", "8192", "-N", "384"]) else {
        return;
    };
    let sound = checked(&image);
    assert!(sound.is_clean(), "{:?}", sound.findings);
    let geometry = image.geometry();
    let descriptor = image.descriptor(1);
    assert!(descriptor.free_inodes < geometry.inodes_per_group);
    let mut old = descriptor;
    old.flags |= GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    old.free_clusters = 7;
    old.free_inodes = geometry.inodes_per_group;
    old.unused_inodes = geometry.inodes_per_group;
    old.used_directories = 3;
    let size = usize::from(geometry.descriptor_size);
    for copy in geometry.descriptor_block_copies(0) {
        let slot = &mut image.block(copy.get())[size..2 * size];
        old.encode(slot, &geometry, GroupNumber(1));
    }
    let range = image.descriptor_range(1);
    image.bytes[range].fill(0);
    is_saved(&image, &sound, Kind::DescriptorChecksum, 1, "an old backup");
}

/// What is wrong then is the backup, and a good one is looked for behind it.
#[test]
fn a_backup_that_is_not_sound_is_not_used() {
    // Groups 1 and 3 have copies.
    let Some(mut image) = make(SIZE, &["-b", "4096", "-g", "2048"]) else {
        return;
    };
    let sound = checked(&image);
    let copies = image.geometry().descriptor_block_copies(0);
    assert!(copies.len() > 1, "{copies:?}");
    image.block(copies[0].get()).fill(0);
    let range = image.descriptor_range(1);
    image.bytes[range].fill(0);
    let report = checked(&image);
    let expected = [
        Kind::BackupDescriptors.name(),
        Kind::DescriptorChecksum.name(),
    ];
    assert_eq!(names(&report), expected, "{:?}", report.findings);
    let blamed = report.findings[0].place.block;
    assert_eq!(blamed, Some(copies[0]));
    assert_eq!(report.files, sound.files);
}

/// Nothing follows from inodes and blocks of which nothing is known.
#[test]
fn what_no_backup_saves_leaves_the_check_incomplete() {
    let Some(sound) = make(SIZE, &["-b", "1024", "-N", "640"]) else {
        return;
    };
    assert!(sound.descriptor(1).free_inodes < 128, "it is in use");
    let outside = BlockNumber(1 << 30);
    let losses: [fn(&mut GroupDescriptor, BlockNumber); 3] = [
        |descriptor, place| descriptor.inode_table = place,
        |descriptor, place| descriptor.block_bitmap = place,
        |descriptor, place| descriptor.inode_bitmap = place,
    ];
    for (number, lose) in losses.into_iter().enumerate() {
        for group in [0, 1] {
            let mut image = sound.clone();
            image.edit_descriptor(group, |descriptor| lose(descriptor, outside));
            image.copy_descriptors();
            let report = checked(&image);
            let what = format!("{number} of group {group}: {:?}", report.counts);
            assert_eq!(count(&report, Kind::DescriptorPlace), 1, "{what}");
            assert!(!report.is_complete, "{what}");
            let follows = |kind: &&Kind| count(&report, **kind) > 0;
            assert_eq!(FROM_USE.iter().find(follows), None, "{what}");
        }
    }
    let mut image = sound.clone();
    let block = image.geometry().descriptor_block(0).get();
    image.block(block).fill(0);
    image.copy_descriptors();
    let report = checked(&image);
    assert_eq!((report.files, report.directories), (0, 0));
    assert!(!report.is_complete);
}
