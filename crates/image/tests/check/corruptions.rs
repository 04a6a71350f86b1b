//! The corruptions: what each does to which image, and what e2fsck says to it.

use pext4_image::check::Kind;
use pext4_ondisk::bitmap;
use pext4_ondisk::directory::{self, Entry, FileType, Format};
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::{Incompat, ReadOnlyCompat};
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::htree;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::superblock::State;
use pext4_ondisk::xattr;
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};

use super::bases::Base;
use super::image::Image;

/// What e2fsck says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Complains,
    /// It says nothing, and why that is so.
    Silent(&'static str),
    /// It is not asked, and why.
    NotAsked(&'static str),
}

use Beside::{Complains, NotAsked, Silent};

pub type Edit = fn(&mut Image);

/// All of them.
pub fn corruptions() -> Vec<(Kind, Base, Beside, Edit)> {
    [
        volume(),
        inodes(),
        maps(),
        attributes(),
        names_of(),
        indexes(),
        links(),
        summaries(),
    ]
    .concat()
}

const NOTE: &str = "a note: nothing is wrong";

fn volume() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::SuperblockLost, Base::Plain, Complains, |image| {
            image.bytes[1024 + 0x38] ^= 0xFF;
        }),
        (Kind::SuperblockChecksum, Base::Plain, Complains, |image| {
            image.bytes[1024 + 0x3FC] ^= 1;
        }),
        (Kind::DeviceTooSmall, Base::Plain, Complains, |image| {
            image.bytes.truncate(12 << 20);
        }),
        (Kind::FeaturesConflict, Base::NoSums, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat |= Incompat::CSUM_SEED;
            });
        }),
        (Kind::FeatureMissing, Base::Plain, Complains, |image| {
            let sparse = image.find("/sparse");
            image.edit_inode(sparse, |inode| inode.size = 3 << 30);
            image.edit_superblock(|superblock| {
                superblock
                    .features
                    .read_only_compat
                    .remove(ReadOnlyCompat::LARGE_FILE);
            });
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.reserved_blocks = 1 << 20);
        }),
        (Kind::StateUnclean, Base::NoJournal, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.state.remove(State::CLEAN));
        }),
        (Kind::StateErrors, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.state.insert(State::ERRORS));
        }),
        (Kind::ErrorRecord, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.error_count = 3);
        }),
        (Kind::JournalPending, Base::Dirty, Silent(NOTE), |_| {}),
        (Kind::JournalUnflagged, Base::Dirty, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat.remove(Incompat::RECOVER);
            });
        }),
        (
            Kind::JournalUnreplayable,
            Base::Dirty,
            Silent("with -n it replays nothing, and so does not see it"),
            |image| {
                let log = image.blocks(8);
                // The logged block behind the descriptor.
                image.block(log[2])[100] ^= 1;
            },
        ),
        (Kind::JournalSuperblock, Base::Plain, Complains, |image| {
            let log = image.blocks(8);
            image.block(log[0])[0] ^= 0xFF;
        }),
        (Kind::JournalBackup, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.journal_backup[5] ^= 1);
        }),
        (
            Kind::BackupSuperblock,
            Base::Plain,
            Silent("what it thinks of backups it tells only by mending them"),
            |image| image.block(8193)[0x68] ^= 1,
        ),
        (
            Kind::BackupDescriptors,
            Base::Plain,
            Silent("it does not compare descriptors with their backups"),
            |image| image.block(8194)[0] ^= 1,
        ),
        (Kind::MmpBlock, Base::Mmp, Complains, |image| {
            let block = image.superblock().mmp_block.get();
            image.block(block)[0] ^= 1;
        }),
        (
            Kind::MmpInUse,
            Base::Mmp,
            NotAsked("it waits for many seconds"),
            |image| {
                let (block, seed) = (image.superblock().mmp_block.get(), image.seed());
                let mut mmp = pext4_ondisk::mmp::Mmp::clean(5);
                mmp.sequence = 7;
                mmp.encode(image.block(block), seed);
            },
        ),
        (Kind::DescriptorChecksum, Base::Plain, Complains, |image| {
            let range = image.descriptor_range(1);
            image.bytes[range][0x1E] ^= 1;
        }),
        (Kind::DescriptorPlace, Base::Plain, Complains, |image| {
            image.edit_descriptor(1, |descriptor| {
                descriptor.block_bitmap = BlockNumber(1 << 20);
            });
        }),
        (Kind::DescriptorFlags, Base::NoSums, Complains, |image| {
            image.edit_descriptor(1, |descriptor| {
                descriptor.flags |= GroupFlags::INODE_UNINIT;
            });
        }),
        (Kind::MetadataOverlap, Base::Plain, Complains, |image| {
            let table = image.descriptor(0).inode_table;
            image.edit_descriptor(1, |descriptor| descriptor.block_bitmap = table);
        }),
    ]
}

fn inodes() -> Vec<(Kind, Base, Beside, Edit)> {
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
            // In the part of the table that is in use, so that it is looked at.
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
            pext4_ondisk::indirect::set_entry(bytes, slot, 5000);
        }),
        (Kind::ResizeInode, Base::NoneReserved, Complains, |image| {
            // As if no map were needed where it is empty.
            image.edit_inode(7, |inode| {
                pext4_ondisk::indirect::set_entry(&mut inode.block, 13, 0);
                assert!(inode.set_sectors(0, 4096, true));
            });
        }),
        (Kind::QuotaInode, Base::Quota, Complains, |image| {
            let block = image.blocks(3)[0];
            image.block(block)[0] ^= 1;
        }),
        (Kind::OrphanFile, Base::Plain, Complains, |image| {
            let number = image.superblock().orphan_file_inode.get();
            let block = image.blocks(number)[0];
            image.block(block)[1016] ^= 1;
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

/// The node below the root of `/sparse`.
fn node_of_sparse(image: &mut Image) -> (u32, u64) {
    let sparse = image.find("/sparse");
    let root = image.inode(sparse).block;
    let node = extent::Node::parse(&root).expect("a sound root");
    let entry = node.entries()[0];
    (sparse, extent::Index::decode(&entry).child.get())
}

/// Changes the first extent of a file whose root holds it.
fn edit_first_extent(image: &mut Image, path: &str, edit: impl FnOnce(&mut Extent)) {
    let number = image.find(path);
    image.edit_inode(number, |inode| {
        let entry = inode.block[12..24].try_into().expect("12 bytes");
        let mut extent = Extent::decode(&entry).expect("a sound extent");
        edit(&mut extent);
        inode.block[12..24].copy_from_slice(&extent.encode());
    });
}

fn maps() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::ExtentHeader, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.block[0] ^= 1);
        }),
        (Kind::ExtentChecksum, Base::Plain, Complains, |image| {
            let (_, node) = node_of_sparse(image);
            image.block(node)[1020] ^= 1;
        }),
        (Kind::ExtentEntry, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.block[16..18].fill(0));
        }),
        (Kind::ExtentOrder, Base::Plain, Complains, |image| {
            let (sparse, node) = node_of_sparse(image);
            image.edit_node(sparse, node, |bytes| {
                extent::set_logical(bytes, 5, LogicalBlock(1)).expect("it has so many");
            });
        }),
        (Kind::ExtentIndex, Base::Plain, Complains, |image| {
            let (sparse, _) = node_of_sparse(image);
            image.edit_inode(sparse, |inode| {
                extent::set_logical(&mut inode.block, 0, LogicalBlock(1)).expect("it has one");
            });
        }),
        (Kind::ExtentUnwritten, Base::Plain, Complains, |image| {
            edit_first_extent(image, "/dir", |extent| extent.unwritten = true);
        }),
        (Kind::BlockOutside, Base::Plain, Complains, |image| {
            edit_first_extent(image, "/large", |extent| {
                extent.start = BlockNumber(1 << 30)
            });
        }),
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            let table = image.descriptor(0).inode_table;
            edit_first_extent(image, "/dir/inner", |extent| extent.start = table);
        }),
        (Kind::BlockShared, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            let first = image.blocks(large)[0];
            edit_first_extent(image, "/dir/inner", |extent| {
                extent.start = BlockNumber(first)
            });
        }),
        (
            Kind::ClusterMisaligned,
            Base::Clusters,
            Complains,
            |image| {
                edit_first_extent(image, "/dir/inner", |extent| {
                    extent.start = BlockNumber(extent.start.get() + 1);
                });
            },
        ),
    ]
}

/// The attribute block of `/large`.
fn attribute_block(image: &mut Image) -> u64 {
    let large = image.find("/large");
    image.inode(large).file_acl.get()
}

fn edit_attributes(image: &mut Image, edit: impl FnOnce(&mut [u8])) {
    let (block, seed) = (attribute_block(image), image.seed().expect("it has sums"));
    let bytes = image.block(block);
    edit(bytes);
    xattr::stamp_block(seed, BlockNumber(block), bytes);
}

/// The inode that holds the value of the long attribute of `/small`.
fn value_inode(image: &mut Image) -> u32 {
    let count = image.superblock().inodes_count;
    (11..count)
        .find(|&number| image.inode(number).flags.contains(InodeFlags::EA_INODE))
        .expect("debugfs made one")
}

fn attributes() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::XattrHeader, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[8] = 2);
        }),
        (Kind::XattrChecksum, Base::Plain, Complains, |image| {
            let block = attribute_block(image);
            image.block(block)[16] ^= 1;
        }),
        (Kind::XattrEntry, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[34..36].fill(0xFF));
        }),
        (Kind::XattrHash, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[1000] ^= 1);
        }),
        (
            Kind::XattrDuplicate,
            Base::Plain,
            Silent("it does not compare names of attributes"),
            |image| {
                edit_attributes(image, |bytes| {
                    let mut block = xattr::Block::decode(bytes).expect("sound");
                    let twice = xattr::Attribute::new(1, b"twice", b"value");
                    block.attributes.extend([twice.clone(), twice]);
                    block.encode(bytes).expect("it fits");
                });
            },
        ),
        (Kind::XattrReferences, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| xattr::set_references(bytes, 2));
        }),
        (Kind::XattrValueInode, Base::Values, Complains, |image| {
            let value = value_inode(image);
            image.edit_inode(value, |inode| inode.flags.remove(InodeFlags::EA_INODE));
        }),
        (
            Kind::ValueInode,
            Base::Values,
            Silent("it reads no attribute's value"),
            |image| {
                let value = value_inode(image);
                let block = image.blocks(value)[0];
                image.block(block)[0] ^= 1;
            },
        ),
        (Kind::ValueReferences, Base::Values, Complains, |image| {
            let value = value_inode(image);
            image.edit_inode(value, |inode| inode.set_value_references(5));
        }),
        (Kind::InodeBlocks, Base::Values, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                let sectors = inode.sectors(1024);
                assert!(sectors >= 2, "the block of a value is on its account");
                assert!(inode.set_sectors(sectors - 2, 1024, true));
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| {
                assert!(inode.has_inline_data());
                inode.size += 4;
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.tail.fill(0));
        }),
    ]
}

fn format(image: &Image) -> Format {
    Format::of(&image.superblock().features)
}

/// Changes the first block of a linear directory.
fn edit_directory(image: &mut Image, path: &str, edit: impl FnOnce(&mut [u8], Format)) {
    let (number, format) = (image.find(path), format(image));
    let block = image.blocks(number)[0];
    image.edit_leaf(number, block, |bytes| edit(bytes, format));
}

fn add(image: &mut Image, path: &str, name: &[u8], inode: u32, file_type: FileType) {
    edit_directory(image, path, |bytes, format| {
        let entry = Entry {
            inode: InodeNumber(inode),
            file_type: Some(file_type),
            name,
        };
        let added = directory::insert(bytes, format, &entry).expect("a sound block");
        assert!(matches!(added, directory::Inserted::At(_)), "there is room");
    });
}

fn remove(image: &mut Image, path: &str, name: &[u8]) {
    edit_directory(image, path, |bytes, format| {
        directory::remove(bytes, format, name)
            .expect("a sound block")
            .expect("it is there");
    });
}

fn retarget(image: &mut Image, path: &str, name: &[u8], inode: u32, file_type: FileType) {
    edit_directory(image, path, |bytes, format| {
        let (inode, kind) = (InodeNumber(inode), Some(file_type));
        let is_there = directory::set_inode_of(bytes, format, name, inode, kind);
        assert!(is_there.expect("a sound block"));
    });
}

fn names_of() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::DirectoryTail, Base::Plain, Complains, |image| {
            let directory = image.find("/dir");
            let block = image.blocks(directory)[0];
            image.block(block)[1019] = 0;
        }),
        (Kind::DirectoryChecksum, Base::Plain, Complains, |image| {
            let directory = image.find("/dir");
            let block = image.blocks(directory)[0];
            image.block(block)[1020] ^= 1;
        }),
        (Kind::DirectoryRecord, Base::Plain, Complains, |image| {
            edit_directory(image, "/dir", |bytes, _| bytes[28] = 6);
        }),
        (Kind::DirectoryHole, Base::Plain, Complains, |image| {
            let many = image.find("/many");
            image.edit_inode(many, |inode| {
                let entry = inode.block[12..24].try_into().expect("12 bytes");
                let mut extent = Extent::decode(&entry).expect("a sound extent");
                extent.logical = LogicalBlock(1);
                extent.start = BlockNumber(extent.start.get() + 1);
                extent.length -= 1;
                let mut first = extent;
                first.logical = LogicalBlock(0);
                first.start = BlockNumber(extent.start.get() - 1);
                first.length = 1;
                extent.logical = LogicalBlock(2);
                inode.size += 1024;
                let entries = [first.encode(), extent.encode()];
                extent::write_node(&mut inode.block, 0, &entries);
            });
        }),
        (Kind::DirectoryDot, Base::Plain, Complains, |image| {
            retarget(image, "/dir", b".", 2, FileType::Directory);
        }),
        (Kind::DirectoryDotDot, Base::Plain, Complains, |image| {
            let deeper = image.find("/dir/deeper");
            retarget(image, "/dir", b"..", deeper, FileType::Directory);
        }),
        (Kind::NameBad, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            add(image, "/dir", b"a/b", small, FileType::Regular);
        }),
        (Kind::NameDuplicate, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            add(image, "/dir", b"inner", small, FileType::Regular);
        }),
        (Kind::EntryInode, Base::Plain, Complains, |image| {
            add(image, "/dir", b"journal", 8, FileType::Regular);
        }),
        (Kind::EntryUnused, Base::Plain, Complains, |image| {
            let (small, sparse) = (image.find("/small"), image.find("/sparse"));
            assert_ne!(small, sparse);
            image.edit_inode(sparse, |inode| {
                inode.links = 0;
                inode.deletion_time = 1_000_000_000;
            });
        }),
        (Kind::EntryUninitialised, Base::Plain, Complains, |image| {
            let last = image.superblock().inodes_count;
            add(image, "/dir", b"nowhere", last, FileType::Regular);
        }),
        (Kind::EntryFileType, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            retarget(image, "/dir", b"linked", small, FileType::Fifo);
        }),
        (
            Kind::DirectoryLinkedTwice,
            Base::Plain,
            Complains,
            |image| {
                let deeper = image.find("/dir/deeper");
                add(image, "/", b"again", deeper, FileType::Directory);
            },
        ),
    ]
}

/// Changes the index root of `/many` and makes its checksum anew.
fn edit_root(image: &mut Image, edit: impl FnOnce(&mut [u8])) {
    let many = image.find("/many");
    let (block, seed) = (image.blocks(many)[0], image.seed().expect("it has sums"));
    let generation = image.inode(many).generation;
    let bytes = image.block(block);
    edit(bytes);
    htree::stamp(seed, InodeNumber(many), generation, bytes);
}

fn indexes() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::HtreeRoot, Base::Indexed, Complains, |image| {
            edit_root(image, |bytes| bytes[0x1C] = 4);
        }),
        (Kind::HtreeNode, Base::Deep, Complains, |image| {
            let many = image.find("/many");
            let blocks = image.blocks(many);
            let node = blocks[1..]
                .iter()
                .copied()
                .find(|&block| htree::looks_like_node(image.block(block)))
                .expect("two levels");
            image.block(node)[8] = 1;
        }),
        (Kind::HtreeChecksum, Base::Indexed, Complains, |image| {
            let many = image.find("/many");
            let block = image.blocks(many)[0];
            let last = image.block(block).len() - 1;
            image.block(block)[last] ^= 1;
        }),
        (Kind::HtreeOrder, Base::Indexed, Complains, |image| {
            edit_root(image, |bytes| bytes[0x2B] = 0xFF);
        }),
        (Kind::HtreeBlock, Base::Indexed, Complains, |image| {
            edit_root(image, |bytes| bytes[0x2C] = 1);
        }),
        (Kind::HtreeHash, Base::Indexed, Complains, |image| {
            let many = image.find("/many");
            let block = image.blocks(many)[2];
            image.edit_leaf(many, block, |bytes| {
                // Other letters, another hash.
                bytes[20..50].reverse();
            });
        }),
    ]
}

fn links() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::DirectoryUnattached, Base::Plain, Complains, |image| {
            remove(image, "/dir", b"deeper");
        }),
        (Kind::DirectoryLoop, Base::Plain, Complains, |image| {
            let directory = image.find("/dir");
            add(image, "/dir/deeper", b"up", directory, FileType::Directory);
            remove(image, "/", b"dir");
        }),
        (Kind::LostFound, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            retarget(image, "/", b"lost+found", large, FileType::Regular);
        }),
        (Kind::InodeUnattached, Base::Plain, Complains, |image| {
            remove(image, "/dir", b"inner");
        }),
        (Kind::LinkCount, Base::Plain, Complains, |image| {
            remove(image, "/dir", b"linked");
        }),
    ]
}

/// Changes bits of a group's block bitmap and makes the checksums anew.
fn edit_block_bits(image: &mut Image, group: u32, edit: impl FnOnce(&mut [u8])) {
    let block = image.descriptor(group).block_bitmap.get();
    edit(image.block(block));
    image.stamp_bitmaps(group);
}

fn edit_inode_bits(image: &mut Image, group: u32, edit: impl FnOnce(&mut [u8])) {
    let block = image.descriptor(group).inode_bitmap.get();
    edit(image.block(block));
    image.stamp_bitmaps(group);
}

fn summaries() -> Vec<(Kind, Base, Beside, Edit)> {
    vec![
        (Kind::BlockBitmapChecksum, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.block_bitmap_checksum ^= 1);
        }),
        (Kind::InodeBitmapChecksum, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.inode_bitmap_checksum ^= 1);
        }),
        (Kind::BlockMarkedFree, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            let first = u32::try_from(image.blocks(large)[0]).expect("small");
            edit_block_bits(image, (first - 1) / 8192, |bits| {
                bitmap::clear(bits, (first - 1) % 8192);
            });
        }),
        (Kind::BlockMarkedUsed, Base::Plain, Complains, |image| {
            edit_block_bits(image, 0, |bits| {
                let free = bitmap::next_zero(bits, 0, 8192).expect("not full");
                bitmap::set(bits, free);
            });
        }),
        (Kind::InodeMarkedFree, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            edit_inode_bits(image, 0, |bits| {
                bitmap::clear(bits, small - 1);
            });
        }),
        (Kind::InodeMarkedUsed, Base::Plain, Complains, |image| {
            edit_inode_bits(image, 0, |bits| {
                let free = bitmap::next_zero(bits, 0, 1024).expect("not full");
                bitmap::set(bits, free);
            });
        }),
        (Kind::BitmapPadding, Base::Plain, Complains, |image| {
            edit_inode_bits(image, 0, |bits| {
                bitmap::clear(bits, 8000);
            });
        }),
        (Kind::UninitGroupUsed, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.flags |= GroupFlags::BLOCK_UNINIT);
        }),
        (Kind::TableUnused, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| {
                descriptor.unused_inodes = descriptor.free_inodes + 20;
                descriptor.free_inodes += 20;
            });
        }),
        (Kind::GroupFreeBlocks, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.free_clusters += 1);
        }),
        (Kind::GroupFreeInodes, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.free_inodes += 1);
        }),
        (Kind::GroupDirectories, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.used_directories += 1);
        }),
        (Kind::FreeBlocksTotal, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.free_blocks -= 1)
        }),
        (Kind::FreeInodesTotal, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.free_inodes -= 1)
        }),
    ]
}
