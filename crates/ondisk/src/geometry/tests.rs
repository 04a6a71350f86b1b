//! Layouts of constructed superblocks, and one refusal for each inconsistent field.

use proptest::prelude::*;

use super::Geometry;
use crate::feature::{Compat, Incompat, ReadOnlyCompat};
use crate::number::{BlockNumber, GroupNumber, InodeNumber};
use crate::superblock::Superblock;

/// 4 KiB blocks, 100 groups, 64-byte descriptors.
fn ordinary() -> Superblock {
    let mut superblock = Superblock::blank();
    superblock.revision = 1;
    superblock.log_block_size = 2;
    superblock.log_cluster_size = 2;
    superblock.blocks_per_group = 32768;
    superblock.clusters_per_group = 32768;
    superblock.inodes_per_group = 8192;
    superblock.blocks_count = 32768 * 100 - 5;
    superblock.inodes_count = 8192 * 100;
    superblock.first_inode = 11;
    superblock.inode_size = 256;
    superblock.desc_size = 64;
    superblock.features.incompat |= Incompat::SIXTY_FOUR_BIT;
    superblock.features.read_only_compat |= ReadOnlyCompat::SPARSE_SUPER;
    superblock
}

/// 1 KiB blocks, 40 groups, 32-byte descriptors.
fn small() -> Superblock {
    let mut superblock = ordinary();
    superblock
        .features
        .incompat
        .remove(Incompat::SIXTY_FOUR_BIT);
    superblock.log_block_size = 0;
    superblock.log_cluster_size = 0;
    superblock.first_data_block = 1;
    superblock.blocks_per_group = 8192;
    superblock.clusters_per_group = 8192;
    superblock.inodes_per_group = 512;
    superblock.blocks_count = 8192 * 40 + 1;
    superblock.inodes_count = 512 * 40;
    superblock
}

#[test]
fn groups_and_blocks_of_an_ordinary_file_system() {
    let geometry = Geometry::of(&ordinary()).expect("sound");
    assert_eq!(geometry.group_count, 100);
    assert_eq!(geometry.descriptors_per_block, 64);
    assert_eq!(geometry.descriptor_blocks, 2);
    assert_eq!(geometry.inode_table_blocks, 512);
    assert_eq!(geometry.blocks_in(GroupNumber(99)), 32768 - 5);
    assert_eq!(geometry.blocks_in(GroupNumber(100)), 0);
    assert_eq!(geometry.group_of(BlockNumber(32768)), Some(GroupNumber(1)));
    assert_eq!(geometry.group_of(BlockNumber(32768 * 100 - 5)), None);
    assert_eq!(geometry.offset_in_group(BlockNumber(32770)), Some(2));
    assert_eq!(
        geometry.descriptor_location(GroupNumber(70)),
        (BlockNumber(2), 6 * 64)
    );
    assert_eq!(geometry.superblock_overhead(GroupNumber(3)), 3);
    assert_eq!(geometry.superblock_overhead(GroupNumber(4)), 0);
}

#[test]
fn inodes_count_from_one() {
    let geometry = Geometry::of(&ordinary()).expect("sound");
    assert_eq!(geometry.inode_group(InodeNumber(0)), None);
    assert_eq!(
        geometry.inode_group(InodeNumber(1)),
        Some((GroupNumber(0), 0))
    );
    assert_eq!(
        geometry.inode_group(InodeNumber(8193)),
        Some((GroupNumber(1), 0))
    );
    assert_eq!(geometry.inode_group(InodeNumber(819_201)), None);
    assert_eq!(
        geometry.inode_at(GroupNumber(1), 0),
        Some(InodeNumber(8193))
    );
    assert_eq!(geometry.inode_at(GroupNumber(1), 8192), None);
    assert_eq!(
        geometry.inode_slot(BlockNumber(100), 17),
        Some((BlockNumber(101), 256))
    );
}

#[test]
fn one_kib_blocks_start_at_block_one() {
    let geometry = Geometry::of(&small()).expect("sound");
    assert_eq!(geometry.group_of(BlockNumber(0)), None);
    assert_eq!(geometry.group_of(BlockNumber(8192)), Some(GroupNumber(0)));
    assert_eq!(geometry.first_block(GroupNumber(1)), BlockNumber(8193));
    assert_eq!(
        geometry.descriptor_location(GroupNumber(33)),
        (BlockNumber(3), 32)
    );
    assert_eq!(
        geometry.superblock_copy(GroupNumber(0)),
        Some(BlockNumber(1))
    );
    assert_eq!(
        geometry.superblock_copy(GroupNumber(9)),
        Some(BlockNumber(8192 * 9 + 1))
    );
}

#[test]
fn sparse_super_names_powers_of_three_five_and_seven() {
    let mut superblock = ordinary();
    let copies = |superblock: &Superblock| -> Vec<u32> {
        let geometry = Geometry::of(superblock).expect("sound");
        geometry
            .groups()
            .filter(|&g| geometry.has_superblock(g))
            .map(GroupNumber::get)
            .collect()
    };
    assert_eq!(copies(&superblock), [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
    superblock.features.compat |= Compat::SPARSE_SUPER2;
    superblock.backup_groups = [1, 99];
    assert_eq!(copies(&superblock), [0, 1, 99]);
    superblock.features.compat.remove(Compat::SPARSE_SUPER2);
    superblock
        .features
        .read_only_compat
        .remove(ReadOnlyCompat::SPARSE_SUPER);
    assert_eq!(copies(&superblock).len(), 100);
}

#[test]
fn meta_bg_spreads_the_descriptors() {
    let mut superblock = small();
    superblock.features.incompat |= Incompat::META_BG;
    superblock.first_meta_bg = 1;
    let geometry = Geometry::of(&superblock).expect("sound");
    assert_eq!(geometry.descriptor_block(0), BlockNumber(2));
    // Group 32 starts the second meta group and has no superblock; 33 and 63 would hold copies,
    // but there are only 40 groups.
    let start = |group: u32| geometry.first_block(GroupNumber(group));
    assert_eq!(geometry.descriptor_block(1), start(32));
    assert_eq!(geometry.descriptor_block_copies(1), [start(33)]);
    assert_eq!(geometry.superblock_overhead(GroupNumber(0)), 2);
    assert_eq!(geometry.superblock_overhead(GroupNumber(1)), 2);
    assert_eq!(geometry.superblock_overhead(GroupNumber(2)), 0);
    assert_eq!(geometry.superblock_overhead(GroupNumber(33)), 1);
    // Of the groups with a superblock, only those before group 32 have copies of the first block.
    let classic = [1, 3, 5, 7, 9, 25, 27].map(|group| BlockNumber(start(group).get() + 1));
    assert_eq!(geometry.descriptor_block_copies(0), classic);
    superblock.blocks_count = 8192 * 50 + 1;
    superblock.inodes_count = superblock.inodes_per_group * 50;
    let longer = Geometry::of(&superblock).expect("sound");
    assert!(longer.has_superblock(GroupNumber(49)));
    assert_eq!(longer.descriptor_block_copies(0), classic);
    superblock.blocks_count = geometry.blocks_count;
    superblock.inodes_count = geometry.inodes_count;
    superblock.first_meta_bg = 0;
    let geometry = Geometry::of(&superblock).expect("sound");
    assert_eq!(geometry.descriptor_block(0), BlockNumber(2));
    // Group 1 has a superblock copy before its copy of the descriptors, group 31 has none.
    let copies = [BlockNumber(8193 + 1), geometry.first_block(GroupNumber(31))];
    assert_eq!(geometry.descriptor_block_copies(0), copies);
}

#[test]
fn bigalloc_with_one_kib_blocks_keeps_the_boot_block_in_group_zero() {
    let mut superblock = small();
    superblock.features.read_only_compat |= ReadOnlyCompat::BIGALLOC;
    superblock.first_data_block = 0;
    superblock.log_cluster_size = 4;
    superblock.blocks_per_group = 8192 * 16;
    superblock.blocks_count = 8192 * 16 * 40;
    let geometry = Geometry::of(&superblock).expect("sound");
    assert_eq!(
        geometry.superblock_copy(GroupNumber(0)),
        Some(BlockNumber(1))
    );
    assert_eq!(geometry.descriptor_block(0), BlockNumber(2));
    assert_eq!(geometry.superblock_overhead(GroupNumber(0)), 4);
    assert_eq!(geometry.superblock_overhead(GroupNumber(1)), 3);
    assert_eq!(
        geometry.cluster_in_group(BlockNumber(8192 * 16 + 33)),
        Some(2)
    );
}

/// The largest groups that mke2fs makes: what they count fits 16 bits.
#[test]
fn groups_are_as_large_as_descriptors_can_count() {
    let mut superblock = ordinary();
    (superblock.log_block_size, superblock.log_cluster_size) = (4, 4);
    superblock.blocks_per_group = 65528;
    superblock.clusters_per_group = 65528;
    superblock.blocks_count = 65528 * 3;
    superblock.inodes_per_group = 65536 - 64;
    superblock.inodes_count = superblock.inodes_per_group * 3;
    let geometry = Geometry::of(&superblock).expect("as mke2fs makes it");
    assert_eq!(geometry.clusters_per_group, 65528);
    assert_eq!(geometry.inode_table_blocks, 1023);
}

#[test]
fn absurdities_are_refused_by_name() {
    type Damage = fn(&mut Superblock);
    let cases: &[(&str, Damage)] = &[
        ("revision", |s| s.revision = 2),
        ("block size", |s| s.log_block_size = 7),
        ("cluster size", |s| s.log_cluster_size = 3),
        ("first data block", |s| s.first_data_block = 1),
        ("blocks in a group", |s| s.blocks_per_group = 0),
        ("blocks in a group", |s| s.blocks_per_group = 32776),
        ("blocks in a group", |s| s.blocks_per_group = 32767),
        ("blocks in a group", |s| {
            (s.log_block_size, s.log_cluster_size) = (4, 4);
            s.blocks_per_group = 65536;
        }),
        ("blocks", |s| s.blocks_count = 0),
        ("blocks", |s| s.blocks_count = (1 << 48) + 1),
        ("too many groups", |s| {
            s.blocks_per_group = 8;
            s.blocks_count = 1 << 47;
        }),
        ("inode size", |s| s.inode_size = 0),
        ("inode size", |s| s.inode_size = 192),
        ("inode size", |s| s.inode_size = 8192),
        ("inodes in a group", |s| s.inodes_per_group = 0),
        ("inodes in a group", |s| s.inodes_per_group = 32776),
        ("inodes in a group", |s| {
            (s.log_block_size, s.log_cluster_size) = (4, 4);
            s.inodes_per_group = 65536 - 64 + 8;
        }),
        ("inodes, but", |s| s.inodes_count -= 1),
        ("first free inode", |s| s.first_inode = 10),
        ("first free inode", |s| s.first_inode = u32::MAX),
        ("inode table", |s| {
            s.blocks_per_group = 512;
            s.blocks_count = 512 * 100;
        }),
        ("descriptor size", |s| s.desc_size = 32),
        ("descriptor size", |s| s.desc_size = 2048),
        ("descriptor size", |s| s.desc_size = 96),
        ("flexible group", |s| {
            s.features.incompat |= Incompat::FLEX_BG;
            s.log_groups_per_flex = 32;
        }),
        ("checksum type", |s| {
            s.features.read_only_compat |= ReadOnlyCompat::METADATA_CSUM
        }),
        ("reserved descriptor blocks", |s| {
            s.reserved_gdt_blocks = 1025
        }),
        ("first meta group", |s| {
            s.features.incompat |= Incompat::META_BG;
            s.first_meta_bg = 3;
        }),
        ("clusters in a group", |s| {
            s.features.read_only_compat |= ReadOnlyCompat::BIGALLOC;
            s.log_cluster_size = 3;
            s.clusters_per_group = 7;
            s.blocks_per_group = 65536;
        }),
    ];
    for (name, damage) in cases {
        let mut superblock = ordinary();
        damage(&mut superblock);
        let error = Geometry::of(&superblock).expect_err(name);
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}

proptest! {
    #[test]
    fn no_superblock_makes_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 1024),
        log in 0u32..8,
        sane in any::<bool>(),
    ) {
        let mut array: [u8; 1024] = bytes.try_into().expect("sized so");
        array[0x38..0x3A].copy_from_slice(&0xEF53u16.to_le_bytes());
        let mut superblock = Superblock::decode_unverified(&array).expect("magic is right");
        superblock.log_block_size = log;
        superblock.log_cluster_size = log;
        if sane {
            superblock.first_data_block = u32::from(log == 0);
            superblock.blocks_per_group = superblock.blocks_per_group % 4096 * 8;
            superblock.blocks_count %= 1 << 33;
            superblock.inode_size = 256;
            superblock.inodes_per_group = 512;
            superblock.revision = 1;
            superblock.first_inode = 11;
            superblock.desc_size = 64;
        }
        if let Ok(geometry) = Geometry::of(&superblock) {
            let last = GroupNumber(geometry.group_count - 1);
            prop_assert!(geometry.blocks_in(last) > 0);
            let _ = geometry.descriptor_location(last);
            let _ = geometry.superblock_overhead(last);
        }
    }
}
