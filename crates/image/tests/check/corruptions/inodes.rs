//! Corruptions of inodes, including the reserved ones.

use pext4_image::check::Kind;
use pext4_ondisk::extent::{ENTRY_SIZE, Extent, HEADER_SIZE, Header, Node};
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::indirect::set_entry;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Beside::{Complains, Silent};
use super::{Corruption, NOTE};
use crate::bases::Base;

/// A block number, as an indirect map stores it.
fn block_number(block: BlockNumber) -> u32 {
    u32::try_from(block.get()).expect("a small image")
}

/// Maps the last block of a file of one extent by an extent of its own, which `edit` changes.
fn part_last_block(inode: &mut Inode, edit: impl FnOnce(&mut Extent)) {
    let root = Node::parse(&inode.block).expect("a root");
    assert_eq!((root.depth(), root.len()), (0, 1));
    let all = Extent::decode(&root.entries()[0]).expect("sound");
    let two = Header {
        entries: 2,
        ..root.header()
    };
    let end = all.end();
    let part = |from, to| all.part(from, to).expect("a part of it");
    let mut last = part(end - 1, end);
    edit(&mut last);
    two.encode(&mut inode.block);
    let (entries, _) = inode.block[HEADER_SIZE..].as_chunks_mut::<ENTRY_SIZE>();
    entries[0] = part(0, end - 1).encode();
    entries[1] = last.encode();
}

pub fn inodes() -> Vec<Corruption> {
    vec![
        (Kind::InodeChecksum, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            let range = image.slot_range(small);
            image.bytes[range][0x7C] ^= 1;
        }),
        (Kind::InodeExtraSize, Base::NoSums, Complains, |image| {
            let small = image.find("/small");
            let range = image.slot_range(small);
            image.bytes[range][0x80] = 30;
        }),
        (Kind::InodeExtraSize, Base::Plain, Complains, |image| {
            // Unused, but reserved: its checksum counts.
            let range = image.slot_range(9);
            image.bytes[range][0x81] = 1;
        }),
        (Kind::InodeMode, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.mode = 0o110_644);
        }),
        (Kind::InodeDeletionTime, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.deletion_time = 1_000_000_000);
        }),
        (Kind::InodeNotDeleted, Base::Plain, Complains, |image| {
            let sparse = image.find("/sparse");
            let mut inode = Inode::new(256, 32);
            inode.mode = 0o100_644;
            // In the used part of the table, so that it is checked.
            image.set_inode(sparse, &inode);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.flags |= InodeFlags::INDEX);
        }),
        (Kind::InodeField, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_slot(small, |slot| slot[0x70] = 1);
        }),
        (Kind::InodeTime, Base::NoSums, Complains, |image| {
            let large = image.find("/large");
            let range = image.slot_range(large);
            let slot = &mut image.bytes[range];
            slot[0x13] = 0xF0;
            slot[0x88] = 3;
        }),
        (Kind::InodeSize, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.size = 5000);
        }),
        (Kind::InodeBlocks, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.blocks += 8);
        }),
        (Kind::SpecialFile, Base::Plain, Complains, |image| {
            let pipe = image.find("/pipe");
            image.edit_inode(pipe, |inode| inode.size = 77);
        }),
        (Kind::Symlink, Base::Plain, Complains, |image| {
            let fast = image.find("/fast");
            image.edit_inode(fast, |inode| inode.size += 1);
        }),
        (Kind::Symlink, Base::Plain, Complains, |image| {
            // In a block, where there is room for it in the inode.
            let slow = image.find("/slow");
            let block = image.blocks(slow)[0];
            image.block(block)[10..].fill(0);
            image.edit_inode(slow, |inode| inode.size = 10);
        }),
        (Kind::InodeSize, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.size = 1 << 52);
        }),
        (Kind::InodeSize, Base::Plain, Complains, |image| {
            // Numbers of blocks have 32 bits, and a block here a KiB.
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.size = 1 << 42);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let pipe = image.find("/pipe");
            image.edit_inode(pipe, |inode| inode.flags |= InodeFlags::IMMUTABLE);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let fast = image.find("/fast");
            image.edit_inode(fast, |inode| inode.flags |= InodeFlags::APPEND);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let fast = image.find("/fast");
            image.edit_inode(fast, |inode| inode.flags |= InodeFlags::EXTENTS);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.flags |= InodeFlags::CASEFOLD);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.flags |= InodeFlags::ENCRYPT);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.flags |= InodeFlags::IMAGIC);
        }),
        (Kind::InodeNotDeleted, Base::Plain, Complains, |image| {
            // As if it were in a list of orphans.
            let sparse = image.find("/sparse");
            let mut inode = Inode::new(256, 32);
            inode.deletion_time = 5;
            image.set_inode(sparse, &inode);
        }),
        (Kind::InodeNotDeleted, Base::Plain, Complains, |image| {
            image.edit_inode(4, |inode| inode.deletion_time = 14);
        }),
    ]
}

/// Corruptions of reserved inodes.
pub fn reserved() -> Vec<Corruption> {
    vec![
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(1, |inode| inode.mode = 0o100_644);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(1, |inode| inode.links = 1);
        }),
        (Kind::BlockOutside, Base::Plain, Complains, |image| {
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 3, 9_999_999));
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(1, |inode| inode.uid = 28);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            image.edit_inode(9, |inode| inode.flags |= InodeFlags::CASEFOLD);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            image.edit_inode(6, |inode| inode.flags |= InodeFlags::INDEX);
        }),
        (Kind::InodeFlags, Base::Plain, Complains, |image| {
            let flags = InodeFlags::INLINE_DATA | InodeFlags::EXTENTS;
            image.edit_inode(10, |inode| inode.flags |= flags);
        }),
        (Kind::QuotaInode, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.project_quota_inode = InodeNumber(1));
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            let small = InodeNumber(image.find("/small"));
            image.edit_superblock(|superblock| superblock.user_quota_inode = small);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(5, |inode| inode.mode = 0o040_755);
        }),
        (
            Kind::ReservedInode,
            Base::Plain,
            Silent("it does not look, as nothing is listed"),
            |image| image.edit_inode(1, |inode| inode.flags |= InodeFlags::EXTENTS),
        ),
        (
            Kind::JournalInode,
            Base::Plain,
            Silent("it does not look"),
            |image| image.debugfs(&["punch <8> 5 9"]),
        ),
        // Bad blocks on which metadata lies: a superblock, a bitmap, inodes in use, and pointers on
        // a table that has none.
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, 1));
        }),
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            let bitmap = block_number(image.descriptor(1).inode_bitmap);
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 2, bitmap));
        }),
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            let table = block_number(image.descriptor(0).inode_table);
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, table));
        }),
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            let table = block_number(image.descriptor(1).inode_table);
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 12, table + 9));
        }),
        (Kind::BlockOutside, Base::NoSums, Complains, |image| {
            image.edit_inode(1, |inode| inode.attribute_block = BlockNumber(4_000_000));
        }),
        (Kind::BlockShared, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            let block = u32::try_from(image.blocks(large)[3]).expect("a small image");
            image.edit_inode(1, |inode| set_entry(&mut inode.block, 0, block));
        }),
        (Kind::QuotaInode, Base::Plain, Complains, |image| {
            image.edit_inode(3, |inode| inode.links = 1);
        }),
        (Kind::QuotaInode, Base::Plain, Complains, |image| {
            image.edit_inode(4, |inode| inode.blocks = 8);
        }),
        (Kind::QuotaInode, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.user_quota_inode = InodeNumber(99_999));
        }),
        (Kind::JournalInode, Base::NoJournal, Complains, |image| {
            image.edit_inode(8, |inode| inode.blocks = 8);
        }),
        (Kind::QuotaInode, Base::Plain, Complains, |image| {
            image.edit_inode(3, |inode| set_entry(&mut inode.block, 0, 5000));
        }),
        (Kind::JournalInode, Base::NoJournal, Complains, |image| {
            image.edit_inode(8, |inode| set_entry(&mut inode.block, 0, 5000));
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(6, |inode| inode.mode = 0o040_755);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(10, |inode| inode.size = 1 << 49);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(10, |inode| inode.blocks = 8);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            image.edit_inode(5, |inode| inode.attribute_block = BlockNumber(5000));
        }),
        (Kind::ResizeInode, Base::Plain, Complains, |image| {
            image.edit_inode(7, |inode| set_entry(&mut inode.block, 2, 5000));
        }),
        (Kind::ResizeInode, Base::Plain, Complains, |image| {
            image.edit_inode(7, |inode| set_entry(&mut inode.block, 14, 5000));
        }),
        (Kind::ResizeInode, Base::Plain, Complains, |image| {
            image.edit_inode(7, |inode| inode.size = 4096);
        }),
        (Kind::ResizeInode, Base::Plain, Complains, |image| {
            image.edit_inode(7, |inode| inode.size = 1 << 52);
        }),
        (Kind::ReservedInode, Base::Plain, Complains, |image| {
            let mut inode = Inode::new(256, 32);
            inode.mode = 0o100_644;
            inode.links = 1;
            image.set_inode(9, &inode);
        }),
        (Kind::RootMissing, Base::Plain, Complains, |image| {
            image.edit_inode(2, |inode| inode.mode = 0o100_755);
        }),
        (Kind::JournalInode, Base::Plain, Complains, |image| {
            image.edit_inode(8, |inode| inode.mode = 0o040_600);
        }),
        (Kind::ResizeInode, Base::Plain, Complains, |image| {
            let inode = image.inode(7);
            let map = u64::from(pext4_ondisk::indirect::entry(&inode.block, 13));
            let bytes = image.block(map);
            let slot = (0..256)
                .find(|&slot| pext4_ondisk::indirect::entry(bytes, slot) != 0)
                .expect("it reserves blocks");
            set_entry(bytes, slot, 5000);
        }),
        (Kind::ResizeInode, Base::NoneReserved, Complains, |image| {
            // As if no map were needed where it is empty.
            image.edit_inode(7, |inode| {
                set_entry(&mut inode.block, 13, 0);
                assert!(inode.set_sectors(0, 4096, true));
            });
        }),
        (Kind::OrphanFile, Base::Plain, Complains, |image| {
            let number = image.superblock().orphan_file_inode.get();
            let block = image.blocks(number)[0];
            image.block(block)[1016] ^= 1;
        }),
        (Kind::OrphanFile, Base::Plain, Complains, |image| {
            // Blocks that were never written, behind a gap.
            let number = image.superblock().orphan_file_inode.get();
            image.debugfs(&[&format!("fallocate <{number}> 97 113")]);
        }),
        (Kind::OrphanFile, Base::Plain, Complains, |image| {
            // A sound block of entries, and nothing else is wrong.
            let number = image.superblock().orphan_file_inode.get();
            image.edit_inode(number, |inode| {
                part_last_block(inode, |last| last.unwritten = true);
                inode.size -= 1024;
            });
        }),
        (
            Kind::OrphanFile,
            Base::Plain,
            Silent("it does not look for holes between the blocks"),
            |image| {
                let number = image.superblock().orphan_file_inode.get();
                image.edit_inode(number, |inode| {
                    part_last_block(inode, |last| last.logical.0 += 1);
                    inode.size += 1024;
                });
            },
        ),
        (Kind::OrphanFile, Base::Plain, Complains, |image| {
            // Left behind by who took the feature away.
            image.edit_superblock(|superblock| {
                superblock.features.compat.remove(Compat::ORPHAN_FILE);
            });
        }),
        (Kind::OrphanFlag, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.read_only_compat |= ReadOnlyCompat::ORPHAN_PRESENT;
            });
        }),
        (
            Kind::OrphanEntry,
            Base::Plain,
            Silent("with -n it does not follow the list"),
            |image| image.edit_superblock(|superblock| superblock.last_orphan = InodeNumber(5)),
        ),
        (Kind::OrphansPending, Base::Plain, Silent(NOTE), |image| {
            let small = image.find("/small");
            image.edit_superblock(|superblock| superblock.last_orphan = InodeNumber(small));
        }),
    ]
}
