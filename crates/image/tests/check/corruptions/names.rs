//! Corruptions of directories, their indexes, and of links.

use pext4_image::check::Kind;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory;
use pext4_ondisk::directory::{Entry, FileType, Format};
use pext4_ondisk::extent;
use pext4_ondisk::extent::Extent;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::htree;
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};

use super::Beside::{Complains, Silent};
use super::Corruption;
use crate::bases::Base;
use crate::image::Image;

/// Why e2fsck reports nothing.
const FOLDED: &str = "only with -D does it compare names without their case";

fn format(image: &Image) -> Format {
    Format::of(&image.superblock().features)
}

/// Changes the first block of a linear directory.
pub fn edit_directory(image: &mut Image, path: &str, edit: impl FnOnce(&mut [u8], Format)) {
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
        let record = directory::find(bytes, format, name).expect("a sound block");
        let at = record.expect("it is there").offset;
        directory::set_inode_at(bytes, format, at, inode, kind);
    });
}

/// Turns the end of the last record of a leaf with a tail into a free record of this length.
/// Returns its offset.
fn split_last(bytes: &mut [u8], length: usize) -> usize {
    let format = Format {
        has_tail: true,
        has_file_types: true,
        naming: Naming::Exact,
    };
    let last = directory::records(bytes, format).last();
    let last = last.expect("there are records").expect("a sound block");
    let (offset, end) = (last.offset, last.offset + last.length - length);
    let short = |length: usize| u16::try_from(length).expect("a short block").to_le_bytes();
    bytes[offset + 4..offset + 6].copy_from_slice(&short(end - offset));
    bytes[end..end + length].fill(0);
    bytes[end + 4..end + 6].copy_from_slice(&short(length));
    end
}

pub fn names_of() -> Vec<Corruption> {
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
        (Kind::DirectoryDotLong, Base::Plain, Complains, |image| {
            // It is empty, so the record of '..' is the last.
            edit_directory(image, "/dir/deeper", |bytes, _| {
                let mut last: [u8; 12] = bytes[12..24].try_into().expect("12 bytes");
                let length = u16::from_le_bytes([last[4], last[5]]) - 16;
                last[4..6].copy_from_slice(&length.to_le_bytes());
                bytes[4] = 28;
                bytes[12..28].fill(0);
                bytes[28..40].copy_from_slice(&last);
            });
        }),
        (Kind::DirectoryRecord, Base::Plain, Complains, |image| {
            // Free, and shorter than the name that it says it had.
            edit_directory(image, "/dir", |bytes, _| {
                let end = split_last(bytes, 36);
                bytes[end + 6] = 29;
            });
        }),
        (Kind::DirectoryRecord, Base::Plain, Complains, |image| {
            // Free, and too short for any name.
            edit_directory(image, "/dir", |bytes, _| {
                split_last(bytes, 8);
            });
        }),
        (Kind::DirectoryRecord, Base::Inline, Complains, |image| {
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| inode.block[4..8].fill(0));
            image.edit_inode(directory, |inode| inode.block[10] = 56);
        }),
        (Kind::EntryFileType, Base::Inline, Complains, |image| {
            // The first record, after the parent's number.
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| inode.block[4 + 7] = 9);
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
        (Kind::DirectoryDot, Base::Plain, Complains, |image| {
            edit_directory(image, "/dir", |bytes, _| bytes[9] = b'x');
        }),
        (Kind::DirectoryDotDot, Base::Plain, Complains, |image| {
            edit_directory(image, "/dir", |bytes, _| bytes[22] = b'x');
        }),
        (Kind::EntryFileType, Base::Plain, Complains, |image| {
            edit_directory(image, "/dir", |bytes, _| bytes[7] = 6);
        }),
        (Kind::EntryFileType, Base::Plain, Complains, |image| {
            edit_directory(image, "/dir", |bytes, _| bytes[19] = 1);
        }),
        (Kind::NameBad, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            add(image, "/dir", b"a/b", small, FileType::Regular);
        }),
        (Kind::NameBad, Base::Strict, Complains, |image| {
            let small = image.find("/small");
            add(image, "/dir", b"a\xC3", small, FileType::Regular);
        }),
        (Kind::NameDuplicate, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            add(image, "/dir", b"inner", small, FileType::Regular);
        }),
        (Kind::NameDuplicate, Base::Folded, Silent(FOLDED), |image| {
            let small = image.find("/small");
            add(image, "/dir", b"INNER", small, FileType::Regular);
            image.edit_inode(small, |inode| inode.links += 1);
        }),
        (Kind::NameDuplicate, Base::Folded, Silent(FOLDED), |image| {
            let small = image.find("/small");
            for name in ["Stra\u{DF}e \u{E9}", "STRASSE E\u{301}"] {
                add(image, "/dir", name.as_bytes(), small, FileType::Regular);
            }
            image.edit_inode(small, |inode| inode.links += 2);
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

/// Modifies the index root of `/many` and updates its checksum.
fn edit_root(image: &mut Image, edit: impl FnOnce(&mut [u8])) {
    let many = image.find("/many");
    let (block, seed) = (image.blocks(many)[0], image.seed().expect("it has sums"));
    let generation = image.inode(many).generation;
    let bytes = image.block(block);
    edit(bytes);
    htree::stamp(InodeSeed::new(seed, InodeNumber(many), generation), bytes);
}

pub fn indexes() -> Vec<Corruption> {
    vec![
        (Kind::HtreeRoot, Base::Indexed, Complains, |image| {
            edit_root(image, |bytes| bytes[0x1C] = 4);
        }),
        (Kind::HtreeRoot, Base::Indexed, Complains, |image| {
            // Hashes with a key, of names that have none.
            edit_root(image, |bytes| bytes[0x1C] = 6);
        }),
        (Kind::DirectoryDotDot, Base::Indexed, Complains, |image| {
            edit_root(image, |bytes| bytes[12..16].fill(0));
        }),
        (Kind::EntryFileType, Base::Plain, Complains, |image| {
            // The third record, after '.' and '..'.
            edit_directory(image, "/dir", |bytes, _| bytes[24 + 7] = 255);
        }),
        (Kind::EntryFileType, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat.remove(Incompat::FILETYPE);
            });
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
        (Kind::HtreeHash, Base::Folded, Complains, |image| {
            let many = image.find("/many");
            let block = image.blocks(many)[2];
            image.edit_leaf(many, block, |bytes| bytes[20..50].reverse());
        }),
    ]
}

pub fn links() -> Vec<Corruption> {
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
